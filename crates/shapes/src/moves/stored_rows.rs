//! The rows that a client of a whole log has.
//!
//! A log is read twice: first for hashes of the values of all rows, which are compared with a snapshot, and then for the rows
//! that differ. So the memory is a small part of the log, and does not depend on the length of values. If the hashes are too
//! many, the log is read for each part of the keys.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::Deserialize;

use super::{MOVED_BYTES_MAX, refused, unavailable};
use crate::row_form::RowForm;
use crate::run::items;
use crate::server::ShapeServer;
use crate::shape::{Extent, Shape, SnapshotFailure};
use crate::snapshotter::stopping;
use crate::store::Store;

/// Limit of the rows that differ, with the columns that are not selected.
const SELECTED_BYTES_MAX: usize = 4 * MOVED_BYTES_MAX;
/// Limit of the parts of the keys.
const PARTS_MAX: u64 = 64;
/// Memory of a row beside the hashes of its values: the key, a number, a pointer and a length, and free places of the map.
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

/// A part of all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyPart {
    number: u64,
    count: u64,
}

impl KeyPart {
    /// All keys.
    pub(super) const ALL: Self = Self { number: 0, count: 1 };

    /// Whether a key is in this part.
    pub(super) fn has(self, key: KeyHash) -> bool {
        // The map of the hashes takes the low bits.
        (key >> 64) as u64 % self.count == self.number
    }

    /// The halves of it; none if it is as small as parts may be.
    fn halves(self) -> Option<[Self; 2]> {
        let half = |number| Self { number, count: self.count * 2 };
        (self.count < PARTS_MAX).then(|| [half(self.number), half(self.number + self.count)])
    }
}

/// Hashes of the rows of a log.
pub(super) struct HashedRows {
    pub(super) hasher: RowHasher,
    /// The keys that are considered.
    pub(super) part: KeyPart,
    form: Arc<RowForm>,
    rows: FxHashMap<KeyHash, HashedRow>,
    bytes_max: usize,
    is_too_large: bool,
}

/// The rows with one key. There may be several if the table has no primary key: the key has all columns then.
#[derive(Default)]
struct HashedRow {
    count: u32,
    /// Hashes of the values of the selected columns.
    values: Box<[u64]>,
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
    fn new(form: &Arc<RowForm>, hasher: RowHasher, part: KeyPart, bytes_max: usize) -> Self {
        Self { hasher, part, form: Arc::clone(form), rows: FxHashMap::default(), bytes_max, is_too_large: false }
    }

    fn apply(&mut self, message: StoredMessage) -> ControlFlow<()> {
        let StoredMessage { key: Some(key), value, headers: StoredHeaders { operation: Some(operation) } } = message
        else {
            return ControlFlow::Continue(());
        };
        let key = self.hasher.key(key.as_bytes());
        if !self.part.has(key) {
            return ControlFlow::Continue(());
        }
        if operation == "delete" {
            self.remove(key);
            return ControlFlow::Continue(());
        }
        let columns = &self.form.columns;
        self.is_too_large = self.rows.len() * (ROW_BYTES + columns.len() * size_of::<u64>()) > self.bytes_max;
        if self.is_too_large {
            return ControlFlow::Break(());
        }
        let null = self.hasher.value(None);
        let new = || HashedRow { count: 0, values: vec![null; columns.len()].into() };
        let row = self.rows.entry(key).or_insert_with(new);
        row.count += u32::from(operation == "insert");
        for (name, value) in value {
            let position = self.form.table.position(&name);
            if let Some(at) = position.and_then(|position| columns.binary_search(&position).ok()) {
                row.values[at] = self.hasher.value(value.as_deref().map(str::as_bytes));
            }
        }
        ControlFlow::Continue(())
    }

    /// Removes a row with this key. Returns the hashes of its values.
    fn remove(&mut self, key: KeyHash) -> Option<Box<[u64]>> {
        let row = self.rows.get_mut(&key)?;
        if row.count > 1 {
            row.count -= 1;
            return Some(row.values.clone());
        }
        self.rows.remove(&key).map(|row| row.values)
    }

    /// Takes a row with the key of a row of a snapshot, and compares them.
    pub(super) fn take(&mut self, key: KeyHash, row: &[Option<&[u8]>]) -> RowState {
        let Some(hashes) = self.remove(key) else { return RowState::New };
        let mut columns = self.form.columns.iter().zip(&hashes);
        let is_same = |(column, hash): (&usize, &u64)| self.hasher.value(row.get(*column).copied().flatten()) == *hash;
        if columns.all(is_same) { RowState::Same } else { RowState::Changed }
    }

    /// The rows that were not taken.
    pub(super) fn left(&self) -> impl Iterator<Item = KeyHash> {
        self.rows.iter().flat_map(|(key, row)| std::iter::repeat_n(*key, row.count as usize))
    }
}

/// Reads the hashes of the rows of a log with the keys of the next part, which is halved until they fit; `None` after the last
/// part. The log has no appends while the changes of its shape are held.
pub(super) async fn hashed_rows(
    server: &ShapeServer,
    shape: &Arc<Shape>,
    hasher: &RowHasher,
    parts: &mut Vec<KeyPart>,
) -> Result<Option<HashedRows>, SnapshotFailure> {
    let bytes_max = server.options.comparison_bytes_max;
    while let Some(part) = parts.pop() {
        let (form, hasher) = (Arc::clone(&shape.definition.form), hasher.clone());
        let new = move || HashedRows::new(&form, hasher.clone(), part, bytes_max);
        let rows = read_log(server, shape, new, HashedRows::apply).await?;
        if !rows.is_too_large {
            return Ok(Some(rows));
        }
        let text = || format!("the hashes of its rows need more than {PARTS_MAX} times {bytes_max} bytes");
        parts.extend(part.halves().ok_or_else(|| refused(text()))?);
    }
    Ok(None)
}

/// Some rows of a log.
struct SelectedRows {
    hasher: RowHasher,
    form: Arc<RowForm>,
    keys: Arc<HashSet<KeyHash>>,
    rows: HashMap<KeyHash, StoredRow>,
    /// Bytes of the values.
    bytes: usize,
}

fn bytes_of(row: &[Option<String>]) -> usize {
    row.iter().map(|value| size_of::<Option<String>>() + value.as_ref().map_or(0, String::len)).sum()
}

impl SelectedRows {
    fn apply(&mut self, message: StoredMessage) -> ControlFlow<()> {
        let StoredMessage { key: Some(key), value, headers: StoredHeaders { operation: Some(operation) } } = message
        else {
            return ControlFlow::Continue(());
        };
        let key = self.hasher.key(key.as_bytes());
        if !self.keys.contains(&key) {
            return ControlFlow::Continue(());
        }
        // A later row with the key has all columns again, and an equal one may be left.
        if operation == "delete" {
            return ControlFlow::Continue(());
        }
        let before = self.rows.get(&key).map_or(0, |row| bytes_of(row));
        let row = self.rows.entry(key).or_insert_with(|| vec![None; self.form.table.columns.len()]);
        for (name, value) in value {
            if let Some(column) = self.form.table.position(&name).and_then(|position| row.get_mut(position)) {
                *column = value;
            }
        }
        self.bytes = self.bytes - before + bytes_of(row);
        // An earlier state of the rows may be larger than the last one: it is in memory as well.
        if self.bytes > SELECTED_BYTES_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
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
        bytes: 0,
    };
    let selected = read_log(server, shape, new, SelectedRows::apply).await?;
    match selected.bytes > SELECTED_BYTES_MAX {
        true => Err(refused(format!("more than {SELECTED_BYTES_MAX} bytes of rows have moved"))),
        false => Ok(selected.rows),
    }
}

/// Applies the messages of a log to a state, until that needs no more, in a thread of its own.
async fn read_log<S: Send + 'static>(
    server: &ShapeServer,
    shape: &Arc<Shape>,
    new: impl Fn() -> S,
    apply: fn(&mut S, StoredMessage) -> ControlFlow<()>,
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
    mut visit: impl FnMut(StoredMessage) -> ControlFlow<()>,
) -> io::Result<()> {
    for piece in pieces {
        let bytes = store.read(piece)?;
        // Pieces are divided between messages.
        let messages = bytes.strip_prefix(b",").unwrap_or(&bytes);
        let messages: Vec<StoredMessage> = serde_json::from_slice(&[b"[", messages, b"]"].concat())?;
        if messages.into_iter().try_for_each(&mut visit).is_break() {
            return Ok(());
        }
    }
    for run in runs {
        for (_, json) in items(&store.read(run)?) {
            if visit(serde_json::from_slice(json)?).is_break() {
                return Ok(());
            }
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
        let mut rows = HashedRows::new(&form, RowHasher::default(), KeyPart::ALL, usize::MAX);
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
            assert!(rows.apply(message(text)).is_continue());
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

    /// SH-62: equal rows of a table without a primary key are counted.
    #[test]
    fn equal_rows_are_compared_by_number() {
        let form = Arc::new(RowForm::new(Arc::new(table("public", "t", vec![column("a", "text", None)])), vec![0]));
        let mut rows = HashedRows::new(&form, RowHasher::default(), KeyPart::ALL, usize::MAX);
        for operation in ["insert", "insert", "insert", "delete"] {
            let text = format!(r#"{{"key":"a","value":{{"a":"a"}},"headers":{{"operation":"{operation}"}}}}"#);
            assert!(rows.apply(message(&text)).is_continue());
        }
        let key = rows.hasher.key(b"a");
        assert_eq!(rows.left().collect::<Vec<_>>(), [key, key]);
        let found = [(); 3].map(|()| rows.take(key, &[Some(b"a")]));
        assert_eq!(found, [RowState::Same, RowState::Same, RowState::New]);
        assert_eq!(rows.left().count(), 0);
    }

    #[test]
    fn each_key_is_in_one_part() {
        let hasher = RowHasher::default();
        let [one, other] = KeyPart::ALL.halves().unwrap();
        let [two, three] = one.halves().unwrap();
        let parts = [two, three, other];
        for number in 0..1000_u32 {
            let key = hasher.key(&number.to_be_bytes());
            assert_eq!(parts.iter().filter(|part| part.has(key)).count(), 1);
        }
        let columns = vec![column("id", "int8", Some(0))];
        let form = Arc::new(RowForm::new(Arc::new(table("public", "t", columns)), vec![0]));
        let bytes_max = ROW_BYTES * 150;
        let is_full = |part: KeyPart| {
            let mut rows = HashedRows::new(&form, hasher.clone(), part, bytes_max);
            (0..200).any(|id| {
                let text = format!(r#"{{"key":"{id}","value":{{"id":"{id}"}},"headers":{{"operation":"insert"}}}}"#);
                rows.apply(message(&text)).is_break()
            })
        };
        assert!(is_full(KeyPart::ALL) && !parts.iter().any(|part| is_full(*part)));
        let smallest = std::iter::successors(Some(KeyPart::ALL), |part| Some(part.halves()?[1])).last().unwrap();
        assert_eq!((smallest.number, smallest.count), (PARTS_MAX - 1, PARTS_MAX));
    }
}
