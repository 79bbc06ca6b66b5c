//! The rows that a client of a whole log has.
//!
//! A log is read twice: first for hashes of the values of all rows, which are compared with a snapshot, and then for the rows
//! that differ. So the memory is a small part of the log, and does not depend on the length of values.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::Deserialize;

use super::{refused, unavailable};
use crate::row_form::RowForm;
use crate::run::items;
use crate::server::ShapeServer;
use crate::shape::{Extent, Shape, SnapshotFailure};
use crate::snapshotter::stopping;
use crate::store::Store;

/// Limit of the memory of the hashes.
const HASH_BYTES_MAX: usize = 256 << 20;
/// Memory of a row beside the hashes of its values: the key, a pointer and a length, and free places of the map.
const ROW_BYTES: usize = 64;
/// A read is repeated if segments were copied meanwhile.
const ATTEMPTS_MAX: u32 = 10;

/// The key of a row, hashed so that no two keys of a table are equal but by an accident of 1 in 2^64 tables.
pub(super) type KeyHash = u128;

/// Values of a row by the position of the column in the table; those that are not selected are absent.
pub(super) type StoredRow = Vec<Option<String>>;

/// Hashes with secret random keys.
#[derive(Clone, Debug, Default)]
pub(super) struct RowHasher([RandomState; 2]);

impl RowHasher {
    pub(super) fn key(&self, key: &[u8]) -> KeyHash {
        let [high, low] = self.0.each_ref().map(|state| u128::from(state.hash_one(key)));
        high << 64 | low
    }

    fn value(&self, value: Option<&[u8]>) -> u64 {
        self.0[0].hash_one(value)
    }
}

/// Hashes of the rows of a log.
pub(super) struct HashedRows {
    pub(super) hasher: RowHasher,
    form: Arc<RowForm>,
    /// Hashes of the values of the selected columns.
    rows: FxHashMap<KeyHash, Box<[u64]>>,
    is_too_large: bool,
}

/// A row of a snapshot beside the row of the log with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowState {
    /// The log does not have it.
    New,
    /// A selected column has another value.
    Changed,
    Same,
}

/// A message of a log.
#[derive(Deserialize)]
struct StoredMessage {
    key: Option<String>,
    #[serde(default)]
    value: HashMap<String, Option<String>>,
    headers: StoredHeaders,
}

#[derive(Deserialize)]
struct StoredHeaders {
    operation: Option<String>,
}

impl HashedRows {
    fn new(form: &Arc<RowForm>) -> Self {
        Self { hasher: RowHasher::default(), form: Arc::clone(form), rows: FxHashMap::default(), is_too_large: false }
    }

    fn apply(&mut self, message: StoredMessage) {
        let StoredMessage { key: Some(key), value, headers: StoredHeaders { operation: Some(operation) } } = message
        else {
            return;
        };
        let key = self.hasher.key(key.as_bytes());
        if operation == "delete" {
            self.rows.remove(&key);
            return;
        }
        let columns = &self.form.columns;
        self.is_too_large |= self.rows.len() * (ROW_BYTES + columns.len() * size_of::<u64>()) > HASH_BYTES_MAX;
        if self.is_too_large {
            return;
        }
        let null = self.hasher.value(None);
        let row = self.rows.entry(key).or_insert_with(|| vec![null; columns.len()].into());
        for (name, value) in value {
            let position = self.form.table.position(&name);
            if let Some(at) = position.and_then(|position| columns.binary_search(&position).ok()) {
                row[at] = self.hasher.value(value.as_deref().map(str::as_bytes));
            }
        }
    }

    /// Takes the row with the key of a row of a snapshot, and compares them.
    pub(super) fn take(&mut self, key: KeyHash, row: &[Option<&[u8]>]) -> RowState {
        let Some(hashes) = self.rows.remove(&key) else { return RowState::New };
        let mut columns = self.form.columns.iter().zip(&hashes);
        let is_same = |(column, hash): (&usize, &u64)| self.hasher.value(row.get(*column).copied().flatten()) == *hash;
        if columns.all(is_same) { RowState::Same } else { RowState::Changed }
    }

    /// The rows that were not taken.
    pub(super) fn left(&self) -> impl Iterator<Item = KeyHash> {
        self.rows.keys().copied()
    }
}

/// Reads the hashes of the rows of a log. The log has no appends while the changes of its shape are held.
pub(super) async fn hashed_rows(server: &ShapeServer, shape: &Arc<Shape>) -> Result<HashedRows, SnapshotFailure> {
    let form = Arc::clone(&shape.definition.form);
    let rows = read_log(server, shape, move || HashedRows::new(&form), HashedRows::apply).await?;
    match rows.is_too_large {
        true => Err(refused(format!("the hashes of its rows need more than {HASH_BYTES_MAX} bytes"))),
        false => Ok(rows),
    }
}

/// Some rows of a log.
struct SelectedRows {
    hasher: RowHasher,
    form: Arc<RowForm>,
    keys: Arc<HashSet<KeyHash>>,
    rows: HashMap<KeyHash, StoredRow>,
}

impl SelectedRows {
    fn apply(&mut self, message: StoredMessage) {
        let StoredMessage { key: Some(key), value, headers: StoredHeaders { operation: Some(operation) } } = message
        else {
            return;
        };
        let key = self.hasher.key(key.as_bytes());
        if !self.keys.contains(&key) {
            return;
        }
        if operation == "delete" {
            self.rows.remove(&key);
            return;
        }
        let row = self.rows.entry(key).or_insert_with(|| vec![None; self.form.table.columns.len()]);
        for (name, value) in value {
            if let Some(column) = self.form.table.position(&name).and_then(|position| row.get_mut(position)) {
                *column = value;
            }
        }
    }
}

/// Reads the rows of a log with these keys.
pub(super) async fn rows(
    server: &ShapeServer,
    shape: &Arc<Shape>,
    hasher: &RowHasher,
    keys: HashSet<KeyHash>,
) -> Result<HashMap<KeyHash, StoredRow>, SnapshotFailure> {
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let (form, hasher, keys) = (Arc::clone(&shape.definition.form), hasher.clone(), Arc::new(keys));
    let new = move || SelectedRows {
        hasher: hasher.clone(),
        form: Arc::clone(&form),
        keys: Arc::clone(&keys),
        rows: HashMap::new(),
    };
    Ok(read_log(server, shape, new, SelectedRows::apply).await?.rows)
}

/// Applies all messages of a log to a state, in a thread of its own.
async fn read_log<S: Send + 'static>(
    server: &ShapeServer,
    shape: &Arc<Shape>,
    new: impl Fn() -> S,
    apply: fn(&mut S, StoredMessage),
) -> Result<S, SnapshotFailure> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let (pieces, runs) = {
            let log = shape.log();
            (log.pieces.clone(), log.runs.clone())
        };
        let (store, mut state) = (server.store.clone(), new());
        let read = move || -> io::Result<S> {
            read_extents(&store, &pieces, &runs, |message| apply(&mut state, message))?;
            Ok(state)
        };
        match tokio::task::spawn_blocking(read).await.map_err(stopping)? {
            Ok(state) => return Ok(state),
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS_MAX => {}
            Err(error) => return Err(unavailable(format!("cannot read its log: {error}"))),
        }
    }
}

fn read_extents(
    store: &Store,
    pieces: &[Extent],
    runs: &[Extent],
    mut visit: impl FnMut(StoredMessage),
) -> io::Result<()> {
    for piece in pieces {
        let bytes = store.read(piece)?;
        // Pieces are divided between messages.
        let messages = bytes.strip_prefix(b",").unwrap_or(&bytes);
        let messages: Vec<StoredMessage> = serde_json::from_slice(&[b"[", messages, b"]"].concat())?;
        messages.into_iter().for_each(&mut visit);
    }
    for run in runs {
        for (_, json) in items(&store.read(run)?) {
            visit(serde_json::from_slice(json)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::{column, table};

    fn message(text: &str) -> StoredMessage {
        serde_json::from_str(text).unwrap()
    }

    /// Snapshot, updates of some columns, a changed value and its return, deletes.
    #[test]
    fn rows_of_a_log_are_compared_by_hashes() {
        let columns = vec![column("id", "int8", Some(0)), column("a", "text", None), column("b", "text", None)];
        let form = Arc::new(RowForm::new(Arc::new(table("public", "t", columns)), vec![0, 2]));
        let mut rows = HashedRows::new(&form);
        for text in [
            r#"{"key":"1","value":{"id":"1","b":"x"},"headers":{"operation":"insert"}}"#,
            r#"{"key":"2","value":{"id":"2","b":null},"headers":{"operation":"insert"}}"#,
            r#"{"key":"3","value":{"id":"3","b":"z"},"headers":{"operation":"insert"}}"#,
            r#"{"headers":{"control":"snapshot-end"}}"#,
            r#"{"key":"2","value":{"id":"2","b":"y"},"headers":{"operation":"update"}}"#,
            r#"{"key":"1","value":{"id":"1","b":"w"},"headers":{"operation":"update"}}"#,
            r#"{"key":"1","value":{"id":"1","b":"x"},"headers":{"operation":"update"}}"#,
            r#"{"key":"3","value":{"id":"3"},"headers":{"operation":"delete"}}"#,
            r#"{"key":"4","value":{"id":"4","b":""},"headers":{"operation":"insert"}}"#,
        ] {
            rows.apply(message(text));
        }
        let mut take = |key: &str, b: Option<&[u8]>| {
            let hash = rows.hasher.key(key.as_bytes());
            rows.take(hash, &[Some(key.as_bytes()), Some(b"not selected"), b])
        };
        assert_eq!(take("1", Some(b"x")), RowState::Same);
        assert_eq!(take("2", None), RowState::Changed);
        assert_eq!(take("3", Some(b"z")), RowState::New);
        let left: Vec<KeyHash> = rows.left().collect();
        assert_eq!(left, [rows.hasher.key(b"4")]);
    }
}
