use serde_json::{Value, json};

use super::*;
use crate::offset::LogOffset;

fn read(query: &str) -> Result<ShapeRequest, Value> {
    let query = QueryParameters::decode(query).expect("UTF-8");
    ShapeRequest::read(&query, None).map_err(|errors| serde_json::from_str(&errors.body()).unwrap())
}

/// SH-46: every malformed parameter is a 400 with the text of the protocol.
#[test]
fn malformed_parameters_name_their_field() {
    let cases = [
        ("offset=-1", json!({"table": ["can't be blank"]})),
        ("table=&offset=-1", json!({"table": ["can't be blank"]})),
        ("table=t", json!({"offset": ["can't be blank"]})),
        ("table=t&offset=", json!({"offset": ["can't be blank"]})),
        ("table=t&offset=invalid", json!({"offset": ["has invalid format"]})),
        ("table=t&offset=-1_0", json!({"offset": ["has invalid format"]})),
        ("table=t&offset=0_0", json!({"handle": ["can't be blank when offset != -1"]})),
        ("table=t&offset=-1&live=true", json!({"live": ["can't be true when offset == -1"]})),
        ("table=t&offset=-1&live", json!({"live": ["can't be true when offset == -1"]})),
        ("table=t&offset=now&live=true", json!({"live": ["can't be true when offset is 'now'"]})),
        ("table=t&offset=0_0&handle=h&live_sse=true", json!({"live_sse": ["can't be true unless live is also true"]})),
        ("table=.x&offset=-1", json!({"table": ["Invalid zero-length delimited identifier"]})),
        ("table=t&offset=-1&columns=", json!({"columns": ["Invalid zero-length delimited identifier"]})),
        ("table=t&offset=-1&replica=some", json!({"replica": ["is invalid"]})),
        ("table=t&offset=-1&log=some", json!({"log": ["is invalid"]})),
        ("table=t&replica=some", json!({"replica": ["is invalid"], "offset": ["can't be blank"]})),
        (
            "table=t&offset=-1&params[2]=x",
            json!({"params": ["Parameters must be numbered sequentially, starting from 1"]}),
        ),
        ("table=t&offset=-1&params[a]=x", json!({"params": ["Parameters can only use numbers as keys"]})),
        ("table=t&offset=-1&subset__limit=x", json!({"subset": {"limit": ["is invalid"]}})),
        ("table=t&offset=-1&subset__limit=0", json!({"subset": {"limit": ["must be greater than 0"]}})),
        ("table=t&offset=-1&subset__offset=-1", json!({"subset": {"offset": ["must be greater than or equal to 0"]}})),
        (
            "table=t&offset=-1&subset__limit=5",
            json!({"subset": {"order_by": ["order_by is required when limit or offset is present"]}}),
        ),
        ("table=t&offset=-1&subset__params=5", json!({"subset": {"params": ["params must be a JSON object"]}})),
        ("table=t&offset=-1&subset__params=%7B", json!({"subset": {"params": ["params must be valid JSON"]}})),
    ];
    for (query, errors) in cases {
        assert_eq!(read(query), Err(json!({"message": "Invalid request", "errors": errors})), "{query}");
    }
}

#[test]
fn parameters_are_decoded() {
    let request =
        read("table=s.%22T%22&offset=5_2&handle=1-2&live&cursor=7&where=a%20%3D+%241&params[1]=%26&x=y").unwrap();
    assert_eq!(request.definition.table, TableName { schema: "s".to_owned(), table: "T".to_owned() });
    assert_eq!(request.offset, RequestOffset::After(LogOffset { tx: 5, op: 2 }));
    let handle = Some(Ok(ShapeHandle { hash: 1, micros: 2 }));
    assert_eq!((request.handle, request.live, request.cursor), (handle, LiveMode::LongPoll, Some(7)));
    assert_eq!(request.definition.predicate.as_deref(), Some("a = $1"));
    assert_eq!(request.definition.params, ["&"]);
    assert_eq!(request.subset, None);
}

#[test]
fn handle_is_ignored_at_the_start() {
    for offset in ["-1", "now"] {
        assert_eq!(read(&format!("table=t&offset={offset}&handle=x&live=false")).unwrap().handle, None);
    }
}

#[test]
fn queryable_columns_are_the_default_of_columns() {
    let columns = |query: &str| read(query).unwrap().definition.columns.clone();
    assert_eq!(columns("table=t&offset=-1"), None);
    assert_eq!(columns("table=t&offset=-1&queryable_columns=id,a"), Some(vec!["id".to_owned(), "a".to_owned()]));
    assert_eq!(columns("table=t&offset=-1&queryable_columns=id,a&columns=id"), Some(vec!["id".to_owned()]));
}

#[test]
fn subset_is_read_from_query_and_body() {
    let expected = SubsetParameters {
        predicate: Some("a = $1".to_owned()),
        params: vec!["1".to_owned()],
        limit: Some(5),
        offset: Some(0),
        order_by: Some("id".to_owned()),
    };
    let query = "table=t&offset=-1&subset__where=a%20=%20$1&subset__params=%7B%221%22:%221%22%7D&subset__limit=5\
                 &subset__offset=0&subset__order_by=id";
    assert_eq!(read(query).unwrap().subset.as_deref(), Some(&expected));
    let fields =
        json!({"where": "a = $1", "params": {"1": 1}, "limit": 5, "offset": 0, "order_by": "id", "where_expr": {}});
    for body in [fields.clone(), json!({ "subset": fields })] {
        assert_eq!(SubsetBody::read(body.to_string().as_bytes()).unwrap().unwrap().0.as_ref(), Some(&expected));
    }
    assert_eq!(SubsetBody::read(b" ").unwrap().unwrap(), SubsetBody(None));
    assert_eq!(SubsetBody::read(b"[1]"), Err(SubsetBodyError::NotAnObject));
    assert_eq!(SubsetBody::read(b"{"), Err(SubsetBodyError::Json));
}

#[test]
fn delete_needs_a_definition_or_a_handle() {
    let read =
        |query: &str| DeleteRequest::read(&QueryParameters::decode(query).unwrap()).map_err(|errors| errors.body());
    assert!(read("").unwrap_err().contains("can't be blank when shape definition is missing"));
    assert!(read("handle=1-2").is_ok_and(|request| request.definition.is_none()));
    // SH-47: the predicate belongs to the definition.
    assert!(read("table=t&where=a=1").unwrap().definition.unwrap().predicate.is_some());
}

#[test]
fn secrets_are_redacted_in_logs() {
    let query = QueryParameters::decode("table=t&secret=s3cret&api_secret=a&token=b&password=c&api_key=d").unwrap();
    let text = query.redacted();
    assert!(text.contains("table=t") && text.contains("secret=[redacted]"), "{text}");
    assert!(["s3cret", "=a", "=b", "=c", "=d"].iter().all(|secret| !text.contains(secret)), "{text}");
}

#[test]
fn bytes_that_are_no_text_are_rejected() {
    assert!(QueryParameters::decode("table=%ff").is_err());
    assert!(QueryParameters::decode("where=%00").is_err());
    assert_eq!(QueryParameters::decode("where=%4&a=%zz").unwrap().get("where"), Some("%4"));
}
