//! Requests of live queries.

use tidegate_shapes::read_request;

/// A query string, a zero byte, and the body of a POST: accepted, or refused with a JSON text. The table and the order of a
/// subset are text of ours: read again, they do not change. Secrets are not logged.
pub fn shape_request(data: &[u8]) {
    let (query, body) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], Some(&data[at + 1..])),
        None => (data, None),
    };
    let Ok(query) = str::from_utf8(query) else { return };
    let Ok(found) = read_request(query, body) else { return };
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let mut again = format!("offset=-1&table={}", encoded(&found.table));
    if let Some(order) = &found.order_by {
        again += &format!("&subset__limit=1&subset__order_by={}", encoded(order));
    }
    let repeated = match read_request(&again, None) {
        Ok(repeated) => repeated,
        Err(error) => panic!("{found:?}: {error}"),
    };
    assert_eq!((&repeated.table, &repeated.order_by), (&found.table, &found.order_by));
    let marked = format!("{query}&secret=canary7381");
    if let Ok(found) = read_request(&marked, body) {
        assert!(!found.logged.contains("canary7381"), "{}", found.logged);
    }
}
