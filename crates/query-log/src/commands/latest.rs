//! The latest records of a period, for the web console.

use std::{
    collections::VecDeque,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use serde_json::{Value, json};
use tidegate_journal::AtEnd;

use super::{
    log_entry::EntryContent,
    source::{LogLocation, MergedSources},
    top::group_statement,
    units::truncate,
};
use crate::record::{LogRecord, RecordKind, RecordTimestamp};

/// Maximum length of a statement, in characters.
const STATEMENT_CHARS: usize = 1000;

/// Selects records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatestRecords {
    /// How far back from now.
    pub period: Duration,
    /// Only queries and transactions with an error, and refused logins.
    pub only_errors: bool,
    /// Only queries and transactions of at least this duration, the wait included; zero is no limit.
    pub slower_than: Duration,
    /// Limit of records that are read, the oldest first.
    pub records_max: u64,
    /// Limit of records that are returned.
    pub lines: usize,
}

impl LatestRecords {
    fn selects(&self, record: &LogRecord) -> bool {
        let is_failed = record.sqlstate.is_some() || record.kind == RecordKind::LoginFailed;
        let is_query = matches!(record.kind, RecordKind::Query | RecordKind::Transaction);
        let took = Duration::from_micros(record.total_us.unwrap_or(0));
        let is_slow = self.slower_than.is_zero() || is_query && took >= self.slower_than;
        (is_failed || !self.only_errors) && is_slow
    }
}

/// The latest records, the newest first, as JSON, with literals of statements as `?`. `matches` counts all that were selected;
/// `is_complete` reports whether the limit of records was not reached.
///
/// # Errors
/// If the folder cannot be read.
pub fn latest_records(folder: &Path, request: &LatestRecords) -> Result<Value> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let begin = now.saturating_sub(request.period).as_micros();
    let since = RecordTimestamp::from_micros(u64::try_from(begin).unwrap_or(u64::MAX));
    let location = LogLocation::find_if_present(folder)?;
    let mut sources = MergedSources::open(location.as_slice(), Some(since), AtEnd::Stop)?;
    let mut found = VecDeque::new();
    let (mut records, mut matches, mut lost, mut is_complete) = (0, 0_u64, 0_u64, true);
    while let Some(entry) = sources.next()? {
        if entry.time < since {
            continue;
        }
        records += 1;
        if records > request.records_max {
            is_complete = false;
            break;
        }
        match &entry.content {
            EntryContent::Record { record, .. } if request.selects(record) => {
                matches += 1;
                found.push_front(shown(record));
                found.truncate(request.lines);
            }
            EntryContent::Loss(loss) => lost = lost.saturating_add(loss.records),
            _ => {}
        }
    }
    let records = Value::from(Vec::from(found));
    Ok(json!({ "records": records, "matches": matches, "lost": lost, "is_complete": is_complete }))
}

fn shown(record: &LogRecord) -> Value {
    let statement = record.statement.as_ref().map(|_| group_statement(record));
    let statement = statement.as_deref().map(|text| truncate(text, STATEMENT_CHARS));
    json!({
        "at": record.time.micros() / 1000,
        "kind": record.kind.name(),
        "user": record.user,
        "database": record.database,
        "application": record.application,
        "client": record.client,
        "session": record.session,
        "server": record.server,
        "wait_us": record.wait_us,
        "total_us": record.total_us,
        "rows": record.rows,
        "sqlstate": record.sqlstate,
        "message": record.message,
        "reason": record.reason,
        "fingerprint": record.fingerprint,
        "statement": statement,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rest: &str) -> LogRecord {
        LogRecord::from_json(format!(r#"{{"time":"2026-03-01T12:00:00Z",{rest}}}"#).as_bytes()).expect("a record")
    }

    #[test]
    fn errors_and_slow_queries_are_selected() {
        let fast = record(r#""kind":"query","total_us":900"#);
        let slow = record(r#""kind":"query","total_us":1000"#);
        let failed = record(r#""kind":"query","total_us":5,"sqlstate":"42601""#);
        let refused = record(r#""kind":"login_failed""#);
        let left = record(r#""kind":"disconnect","total_us":999999"#);
        let all = LatestRecords::default();
        let errors = LatestRecords { only_errors: true, ..all };
        let slower = LatestRecords { slower_than: Duration::from_millis(1), ..all };
        for (record, expected) in [
            (&fast, [true, false, false]),
            (&slow, [true, false, true]),
            (&failed, [true, true, false]),
            (&refused, [true, true, false]),
            (&left, [true, false, false]),
        ] {
            assert_eq!([all, errors, slower].map(|request| request.selects(record)), expected, "{record:?}");
        }
    }
}
