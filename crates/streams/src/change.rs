//! Changes of Postgres as records: keys, envelopes, barriers, and the positions to acknowledge.

mod column_json;
mod envelope;
mod position_map;
mod time_text;
mod translator;

use serde_json::Value;
use tidegate_lanes::Record;

use envelope::UNAVAILABLE;
pub(super) use position_map::PositionMap;
pub(super) use translator::{ChangeTranslator, CopiedTable, PendingRecord, TranslatedItem, TranslatorSettings};

/// Header of a record: position of the commit record of its transaction.
pub(super) const COMMIT_LSN: &str = "commit_lsn";
/// Header of a record: number of its change in the transaction.
pub(super) const SEQ: &str = "seq";
/// Header of a record: number of the record, where a change gives more than one.
pub(super) const PART: &str = "part";
/// The headers that name a record.
pub(super) const IDENTITY: [&str; 3] = [COMMIT_LSN, SEQ, PART];
/// Header of a record that was read from a table: the copy of the table and the key, the same whenever it is read again.
pub(super) const COPY: &str = "copy";
/// Header of a record for a sink that stores positions: how far the copy of a table is.
pub(super) const COPY_PROGRESS: &str = "copy_progress";
/// Header of a record: schema and name of its table.
pub(super) const TABLE: &str = "table";
/// Header of a record: its operation.
pub(super) const OP: &str = "op";

/// The text of a header.
pub(super) fn header<'r>(record: &'r Record, name: &str) -> Option<&'r str> {
    let header = record.headers().iter().find(|header| &*header.name == name)?;
    std::str::from_utf8(header.value.as_deref()?).ok()
}

/// Whether Postgres did not send the value of a column: it is in the list `unchanged`, or has Debezium's placeholder.
pub(super) fn is_unchanged(change: &Value, column: &str) -> bool {
    let change = if change.get("specversion").is_some() { change.get("data").unwrap_or(change) } else { change };
    let is_listed =
        |names: &Value| names.as_array().is_some_and(|names| names.iter().any(|name| name.as_str() == Some(column)));
    let has_placeholder = || change.get("after")?.get(column)?.as_str().map(|text| text == UNAVAILABLE);
    change.get("unchanged").is_some_and(is_listed) || has_placeholder().unwrap_or(false)
}
