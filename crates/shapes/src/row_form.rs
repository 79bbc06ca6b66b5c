//! Rows and changes as messages of the protocol.
//!
//! A [`RowForm`] is shared by all shapes with the same table and columns; a change is encoded once for all of them. Values
//! are the texts of Postgres' output functions, in snapshots and in changes alike (SH-10).

use std::sync::Arc;

use crate::json::{push_number, push_string};
use crate::parameters::Replica;
use crate::table::TableInfo;

/// Values of a row by the position of the column in its [`TableInfo`]; `None` is NULL.
pub(crate) type RowValues<'a> = [Option<&'a [u8]>];

/// A change of a row, as one shape has it: an update that moves a row into a shape is an insert there.
#[derive(Clone, Copy, Debug)]
pub enum ShapeChange<'a> {
    /// A new row.
    Insert {
        /// The row.
        new: &'a RowValues<'a>,
    },
    /// A changed row.
    Update {
        /// The row before.
        old: &'a RowValues<'a>,
        /// The row after.
        new: &'a RowValues<'a>,
    },
    /// A removed row.
    Delete {
        /// The row before.
        old: &'a RowValues<'a>,
    },
}

/// Where a change comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeOrigin {
    /// LSN of the transaction's commit record.
    pub lsn: u64,
    /// Number of the operation in the transaction; a changed key takes this one and the next.
    pub op: u64,
    /// Transaction ID, 32 bits as clients expect it; 0 for rows that move by other transactions than their own.
    pub txid: u32,
}

/// A message and the number of its operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeMessage {
    /// Number of the operation in the transaction.
    pub op: u64,
    /// The JSON text.
    pub json: Vec<u8>,
}

/// How to encode rows of a table for a list of columns.
#[derive(Debug)]
pub struct RowForm {
    /// The table.
    pub table: Arc<TableInfo>,
    /// Selected columns, in the order of the table.
    pub columns: Vec<usize>,
    /// Columns of the key.
    key_columns: Vec<usize>,
    /// `"schema"."table"` as in keys.
    key_prefix: Vec<u8>,
    /// `["schema","table"]`.
    relation: Vec<u8>,
    /// The names of all columns as JSON strings.
    names: Vec<Vec<u8>>,
    /// The header `electric-schema`.
    pub schema_header: String,
}

impl RowForm {
    /// Prepares the encoding. `columns` are positions in the table.
    #[must_use]
    pub fn new(table: Arc<TableInfo>, mut columns: Vec<usize>) -> Self {
        columns.sort_unstable();
        columns.dedup();
        let json = |text: &str| {
            let mut out = Vec::new();
            push_string(&mut out, text.as_bytes());
            out
        };
        let doubled = |name: &str| name.replace('.', "..").replace('/', "//");
        let name = &table.name;
        Self {
            key_prefix: format!("\"{}\".\"{}\"", doubled(&name.schema), doubled(&name.table)).into_bytes(),
            relation: [b"[", &*json(&name.schema), b",", &*json(&name.table), b"]"].concat(),
            names: table.columns.iter().map(|column| json(&column.name)).collect(),
            key_columns: table.key_columns(),
            schema_header: table.schema_header(&columns),
            columns,
            table,
        }
    }

    /// The columns of the key, the selected ones, and further ones, in the order of the table.
    #[must_use]
    pub(crate) fn read_columns(&self, more: &[usize]) -> Vec<usize> {
        let mut columns = [&*self.columns, &*self.key_columns, more].concat();
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// The key of a row: unique among the rows of all tables (SH-50).
    #[must_use]
    pub fn key(&self, row: &RowValues<'_>) -> Vec<u8> {
        let mut key = self.key_prefix.clone();
        for column in &self.key_columns {
            key.push(b'/');
            match value(row, *column) {
                // NULL has no quotes, so it differs from the text `_`.
                None => key.push(b'_'),
                Some(text) => {
                    key.push(b'"');
                    for part in text.split_inclusive(|byte| *byte == b'/') {
                        key.extend_from_slice(part);
                        if part.ends_with(b"/") {
                            key.push(b'/');
                        }
                    }
                    key.push(b'"');
                }
            }
        }
        key
    }

    /// Appends the message of a row of a snapshot. `extra` is appended to the headers, with its leading comma.
    pub fn push_snapshot_row(&self, out: &mut Vec<u8>, row: &RowValues<'_>, extra: &[u8]) {
        self.push_key(out, &self.key(row));
        out.extend_from_slice(b",\"value\":");
        self.push_values(out, row, |_| true);
        out.extend_from_slice(b",\"headers\":{\"operation\":\"insert\",\"relation\":");
        out.extend_from_slice(&self.relation);
        out.extend_from_slice(extra);
        out.extend_from_slice(b"}}");
    }

    /// The messages of a change: one, none if no selected column changed, or two if the key changed (SH-49).
    #[must_use]
    pub fn change(&self, change: ShapeChange<'_>, replica: Replica, origin: ChangeOrigin) -> Vec<ChangeMessage> {
        match change {
            ShapeChange::Insert { new } => vec![self.insert(new, origin, None)],
            ShapeChange::Delete { old } => vec![self.delete(old, replica, origin, None)],
            ShapeChange::Update { old, new } => {
                let (old_key, new_key) = (self.key(old), self.key(new));
                if old_key != new_key {
                    let second = ChangeOrigin { op: origin.op + 1, ..origin };
                    return vec![
                        self.delete(old, replica, origin, Some(&new_key)),
                        self.insert(new, second, Some(&old_key)),
                    ];
                }
                self.update(old, new, &new_key, replica, origin).into_iter().collect()
            }
        }
    }

    fn insert(&self, new: &RowValues<'_>, origin: ChangeOrigin, key_change_from: Option<&[u8]>) -> ChangeMessage {
        let mut json = Vec::with_capacity(256);
        self.push_key(&mut json, &self.key(new));
        json.extend_from_slice(b",\"value\":");
        self.push_values(&mut json, new, |_| true);
        self.push_headers(&mut json, "insert", origin, key_change_from.map(|key| ("key_change_from", key)));
        ChangeMessage { op: origin.op, json }
    }

    fn delete(
        &self,
        old: &RowValues<'_>,
        replica: Replica,
        origin: ChangeOrigin,
        key_change_to: Option<&[u8]>,
    ) -> ChangeMessage {
        let mut json = Vec::with_capacity(256);
        self.push_key(&mut json, &self.key(old));
        json.extend_from_slice(b",\"value\":");
        self.push_values(&mut json, old, |column| replica == Replica::Full || self.key_columns.contains(&column));
        self.push_headers(&mut json, "delete", origin, key_change_to.map(|key| ("key_change_to", key)));
        ChangeMessage { op: origin.op, json }
    }

    fn update(
        &self,
        old: &RowValues<'_>,
        new: &RowValues<'_>,
        key: &[u8],
        replica: Replica,
        origin: ChangeOrigin,
    ) -> Option<ChangeMessage> {
        let changed = |column: usize| value(old, column) != value(new, column);
        if !self.columns.iter().any(|column| changed(*column)) {
            return None;
        }
        let mut json = Vec::with_capacity(256);
        self.push_key(&mut json, key);
        json.extend_from_slice(b",\"value\":");
        let is_sent = |column| replica == Replica::Full || changed(column) || self.key_columns.contains(&column);
        self.push_values(&mut json, new, is_sent);
        if replica == Replica::Full {
            json.extend_from_slice(b",\"old_value\":");
            self.push_values(&mut json, old, changed);
        }
        self.push_headers(&mut json, "update", origin, None);
        Some(ChangeMessage { op: origin.op, json })
    }

    fn push_key(&self, out: &mut Vec<u8>, key: &[u8]) {
        out.extend_from_slice(b"{\"key\":");
        push_string(out, key);
    }

    /// Only selected columns are written (SH-48).
    fn push_values(&self, out: &mut Vec<u8>, row: &RowValues<'_>, is_sent: impl Fn(usize) -> bool) {
        out.push(b'{');
        let mut separator: &[u8] = b"";
        for column in self.columns.iter().copied().filter(|column| is_sent(*column)) {
            out.extend_from_slice(separator);
            separator = b",";
            out.extend_from_slice(&self.names[column]);
            out.push(b':');
            match value(row, column) {
                None => out.extend_from_slice(b"null"),
                Some(text) => push_string(out, text),
            }
        }
        out.push(b'}');
    }

    fn push_headers(
        &self,
        out: &mut Vec<u8>,
        operation: &str,
        origin: ChangeOrigin,
        key_change: Option<(&str, &[u8])>,
    ) {
        out.extend_from_slice(b",\"headers\":{\"operation\":\"");
        out.extend_from_slice(operation.as_bytes());
        out.extend_from_slice(b"\",\"relation\":");
        out.extend_from_slice(&self.relation);
        if let Some((name, key)) = key_change {
            out.extend_from_slice(format!(",\"{name}\":").as_bytes());
            push_string(out, key);
        }
        if origin.txid != 0 {
            out.extend_from_slice(b",\"txids\":[");
            push_number(out, origin.txid.into());
            out.push(b']');
        }
        out.extend_from_slice(b",\"lsn\":\"");
        push_number(out, origin.lsn);
        out.extend_from_slice(b"\",\"op_position\":");
        push_number(out, origin.op);
        out.extend_from_slice(b"}}");
    }
}

fn value<'a>(row: &RowValues<'a>, column: usize) -> Option<&'a [u8]> {
    row.get(column).copied().flatten()
}

/// Appends a message of [`RowForm::change`] as the last one of its transaction for a shape.
pub(crate) fn push_last(out: &mut Vec<u8>, message: &[u8]) {
    let body = message.strip_suffix(b"}}").unwrap_or(message);
    out.extend_from_slice(body);
    out.extend_from_slice(b",\"last\":true}}");
}

/// The transactions that a snapshot of the database sees (`pg_current_snapshot()`), in 64 bits (SH-03, SH-04).
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TransactionSnapshot {
    /// All older transactions had ended.
    pub xmin: u64,
    /// The first transaction that had not been assigned.
    pub xmax: u64,
    /// Transactions in progress.
    pub xip: Vec<u64>,
}

impl TransactionSnapshot {
    /// Parses `xmin:xmax:xip,xip`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (xmin, xmax) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let xip = parts.next()?.split(',').filter(|xid| !xid.is_empty());
        let xip = xip.map(|xid| xid.parse().ok()).collect::<Option<Vec<u64>>>()?;
        if parts.next().is_some() { None } else { Some(Self { xmin, xmax, xip }) }
    }

    /// Whether the snapshot sees a committed transaction.
    #[must_use]
    pub fn sees(&self, xid: u64) -> bool {
        xid < self.xmin || (xid < self.xmax && !self.xip.contains(&xid))
    }

    /// The fields `xmin`, `xmax` and `xip_list` of messages, as strings.
    pub(crate) fn push_fields(&self, out: &mut Vec<u8>) {
        let list: Vec<String> = self.xip.iter().map(|xid| format!("\"{xid}\"")).collect();
        let text = format!("\"xmin\":\"{}\",\"xmax\":\"{}\",\"xip_list\":[{}]", self.xmin, self.xmax, list.join(","));
        out.extend_from_slice(text.as_bytes());
    }

    /// The last message of a snapshot.
    #[must_use]
    pub fn end_message(&self) -> Vec<u8> {
        let mut out = b"{\"headers\":{\"control\":\"snapshot-end\",".to_vec();
        self.push_fields(&mut out);
        out.extend_from_slice(b"}}");
        out
    }
}

/// The last message of an answer that is up to date.
#[must_use]
pub(crate) fn up_to_date_message(global_last_seen_lsn: u64) -> String {
    format!("{{\"headers\":{{\"control\":\"up-to-date\",\"global_last_seen_lsn\":\"{global_last_seen_lsn}\"}}}}")
}

/// The body of a 409.
pub(crate) const MUST_REFETCH: &str = r#"[{"headers":{"control":"must-refetch"}}]"#;

#[cfg(test)]
mod tests;
