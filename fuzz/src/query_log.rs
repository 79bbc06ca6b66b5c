//! Records of the query log.

use tidegate_query_log::record::{
    BoundParameter, LogRecord, RecordDraft, RecordKind, RecordTimestamp, SessionFields, TimestampEncoder,
    write_parameter, write_server_fields, write_session_fields,
};

/// Every record of client and server bytes is one line of JSON that decodes to the same bytes; every line of a file is
/// a record or an error.
pub fn journal_entry(data: &[u8]) {
    let _ = LogRecord::from_json(data);
    let parts: Vec<&[u8]> = data.split(|byte| *byte == 1).collect();
    let part = |at: usize| parts.get(at).copied().unwrap_or_default();
    let (mut session_fields, mut server, mut parameters) = (Vec::new(), Vec::new(), b"[".to_vec());
    let fields =
        SessionFields { client: part(0), user: part(1), database: part(2), application: part(3), session: Some(7) };
    write_session_fields(&fields, &mut session_fields);
    write_server_fields(part(4), 5, &mut server);
    write_parameter(BoundParameter::Text(part(5)), &mut parameters);
    parameters.push(b',');
    write_parameter(BoundParameter::Binary(part(6)), &mut parameters);
    parameters.push(b']');
    let draft = RecordDraft {
        time: RecordTimestamp::from_micros(data.len() as u64),
        kind: Some(RecordKind::Query),
        session_fields: &session_fields,
        statement: part(7),
        prepared: part(8),
        parameters: &parameters,
        server: &server,
        tag: part(9),
        message: part(10),
        reason: part(11),
        ..RecordDraft::default()
    };
    let mut line = Vec::new();
    draft.write(&mut TimestampEncoder::default(), &mut line);
    assert!(line.iter().all(|byte| *byte >= b' '), "a record is one line: {}", line.escape_ascii());
    let read = LogRecord::from_json(&line).expect("what is written is read");
    assert_eq!(read.time, draft.time);
    same(read.user.as_deref(), part(1));
    same(read.application.as_deref(), part(3));
    same(read.statement.as_deref(), part(7));
    same(read.message.as_deref(), part(10));
    same(read.reason.as_deref(), part(11));
}

/// Bytes that are not UTF-8 have several encodings.
fn same(read: Option<&str>, bytes: &[u8]) {
    match str::from_utf8(bytes) {
        Ok(text) => assert_eq!(read, (!text.is_empty()).then_some(text)),
        Err(_) => assert!(read.is_some()),
    }
}
