//! The catalogue: which shapes exist. One line per event, `CRC32C JSON`, so that it can be read and repaired by hand.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_changes::SlotIdentity;

use super::SnapshotSize;
use crate::definition::DefinitionKey;
use crate::handle::ShapeHandle;
use crate::shape::{ShapeId, SnapshotFilter};
use crate::table::TableInfo;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CatalogueEvent {
    Source(SlotIdentity),
    Table(TableInfo),
    Shape(ShapeRecord),
    Snapshot {
        id: ShapeId,
        chunks: u64,
        /// Absent if each chunk is one piece.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pieces: Option<u64>,
        filter: SnapshotFilter,
    },
    Removed {
        id: ShapeId,
    },
    /// The highest id and time of a handle so far.
    Used {
        id: ShapeId,
        micros: u64,
    },
}

impl CatalogueEvent {
    /// The end of a snapshot.
    pub(super) fn snapshot(id: ShapeId, size: SnapshotSize, filter: SnapshotFilter) -> Self {
        let pieces = Some(size.pieces).filter(|pieces| *pieces != size.chunks);
        Self::Snapshot { id, chunks: size.chunks, pieces, filter }
    }
}

/// A shape as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShapeRecord {
    /// Identifies the shape.
    pub id: ShapeId,
    /// The handle.
    pub handle: ShapeHandle,
    /// The definition.
    pub definition: DefinitionKey,
    /// OIDs of the tables of its subqueries, by their number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inner: Vec<u32>,
}

/// A shape with a complete snapshot.
#[derive(Clone, Debug)]
pub(super) struct StoredShape {
    pub(super) record: ShapeRecord,
    pub(super) size: SnapshotSize,
    pub(super) filter: SnapshotFilter,
}

/// The contents of the catalogue.
#[derive(Debug, Default)]
pub(super) struct CatalogueContents {
    pub(super) source: Option<SlotIdentity>,
    pub(super) tables: BTreeMap<u32, TableInfo>,
    pub(super) shapes: BTreeMap<ShapeId, StoredShape>,
    /// The highest handle and id ever given out, also of removed shapes.
    pub(super) micros_max: u64,
    pub(super) id_max: ShapeId,
    /// Lines without effect.
    pub(super) stale_lines: usize,
}

/// The open file.
pub(super) struct ShapeCatalogue {
    file: File,
    /// Length of the whole lines in the file.
    len: u64,
    /// Whether lines were written since the last sync.
    is_dirty: bool,
    pending: Vec<u8>,
}

const FILE: &str = "catalogue";
const NEW_FILE: &str = "catalogue.new";

impl ShapeCatalogue {
    /// Reads the catalogue, and writes a new file aside if much of it is stale (SH-58).
    pub(super) fn open(folder: &Path) -> io::Result<(Self, CatalogueContents)> {
        let path = folder.join(FILE);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let (contents, valid_len) = read(&bytes);
        if valid_len < bytes.len() || contents.stale_lines > contents.shapes.len() + 1000 {
            rewrite(folder, &contents)?;
        }
        let file = File::options().create(true).append(true).open(&path)?;
        sync_folder(folder)?;
        let len = file.metadata()?.len();
        Ok((Self { file, len, is_dirty: true, pending: Vec::new() }, contents))
    }

    /// Appends an event; [`Self::write`] writes it.
    pub(super) fn push(&mut self, event: &CatalogueEvent) {
        push_line(&mut self.pending, event);
    }

    /// Writes the appended events, so that they survive the death of this process.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.file.write_all(&self.pending) {
            // A line that is cut off, as on a full disk, would hide all that follow it.
            self.file.set_len(self.len)?;
            return Err(error);
        }
        self.len += self.pending.len() as u64;
        self.is_dirty = true;
        self.pending.clear();
        Ok(())
    }

    /// Writes the events and waits until they survive the death of the machine.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.write()?;
        if self.is_dirty {
            // A sync of a file without changes waits for the disk as well.
            self.file.sync_data()?;
            self.is_dirty = false;
        }
        Ok(())
    }
}

fn push_line(out: &mut Vec<u8>, event: &CatalogueEvent) {
    let json = serde_json::to_string(event).expect("an event has string keys only");
    out.extend_from_slice(format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes())).as_bytes());
}

/// Reads up to the first damaged line.
fn read(bytes: &[u8]) -> (CatalogueContents, usize) {
    let mut contents = CatalogueContents::default();
    let mut unfinished: BTreeMap<ShapeId, ShapeRecord> = BTreeMap::new();
    let mut valid_len = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let Some(event) = parse_line(line) else { break };
        valid_len += line.len();
        match event {
            CatalogueEvent::Source(source) => contents.source = Some(source),
            CatalogueEvent::Table(table) => drop(contents.tables.insert(table.oid, table)),
            CatalogueEvent::Shape(record) => {
                contents.micros_max = contents.micros_max.max(record.handle.micros);
                contents.id_max = contents.id_max.max(record.id);
                unfinished.insert(record.id, record);
            }
            CatalogueEvent::Snapshot { id, chunks, pieces, filter } => {
                if let Some(record) = unfinished.remove(&id) {
                    let size = SnapshotSize { chunks, pieces: pieces.unwrap_or(chunks) };
                    contents.shapes.insert(id, StoredShape { record, size, filter });
                }
            }
            CatalogueEvent::Removed { id } => {
                unfinished.remove(&id);
                contents.shapes.remove(&id);
                contents.stale_lines += 3;
            }
            CatalogueEvent::Used { id, micros } => {
                contents.micros_max = contents.micros_max.max(micros);
                contents.id_max = contents.id_max.max(id);
            }
        }
    }
    contents.stale_lines += unfinished.len();
    (contents, valid_len)
}

fn parse_line(line: &[u8]) -> Option<CatalogueEvent> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (checksum, json) = line.split_once(' ')?;
    let is_valid = u32::from_str_radix(checksum, 16) == Ok(crc32c::crc32c(json.as_bytes()));
    if is_valid { serde_json::from_str(json).ok() } else { None }
}

fn rewrite(folder: &Path, contents: &CatalogueContents) -> io::Result<()> {
    let mut out = Vec::new();
    contents.source.iter().for_each(|source| push_line(&mut out, &CatalogueEvent::Source(source.clone())));
    contents.tables.values().for_each(|table| push_line(&mut out, &CatalogueEvent::Table(table.clone())));
    // Handles and ids of removed shapes are not given out again.
    push_line(&mut out, &CatalogueEvent::Used { id: contents.id_max, micros: contents.micros_max });
    for (id, stored) in &contents.shapes {
        push_line(&mut out, &CatalogueEvent::Shape(stored.record.clone()));
        push_line(&mut out, &CatalogueEvent::snapshot(*id, stored.size, stored.filter.clone()));
    }
    let path: PathBuf = folder.join(NEW_FILE);
    let mut file = File::create(&path)?;
    file.write_all(&out)?;
    file.sync_all()?;
    fs::rename(&path, folder.join(FILE))
}

/// Makes new and removed names in a folder durable.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::{LogMode, Replica};
    use crate::row_form::TransactionSnapshot;

    fn record(id: ShapeId) -> ShapeRecord {
        let definition = DefinitionKey {
            oid: 5,
            columns: vec!["id".into()],
            predicate: Some("a = 'line\nbreak'".into()),
            replica: Replica::Full,
            log: LogMode::Full,
        };
        let inner = if id.is_multiple_of(2) { Vec::new() } else { vec![6, 5] };
        ShapeRecord { id, handle: ShapeHandle { hash: 1, micros: 1000 + id }, definition, inner }
    }

    fn finished(id: ShapeId) -> CatalogueEvent {
        let filter = SnapshotFilter { snapshot: TransactionSnapshot { xmin: 1, xmax: 2, xip: vec![1] }, until_lsn: 9 };
        CatalogueEvent::snapshot(id, SnapshotSize { chunks: 2, pieces: 2 }, filter)
    }

    #[test]
    fn shapes_with_a_snapshot_are_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let (mut catalogue, contents) = ShapeCatalogue::open(folder.path()).unwrap();
        assert!(contents.shapes.is_empty() && contents.source.is_none());
        for id in 1..=4 {
            catalogue.push(&CatalogueEvent::Shape(record(id)));
        }
        [1, 3, 4].iter().for_each(|id| catalogue.push(&finished(*id)));
        catalogue.push(&CatalogueEvent::Removed { id: 4 });
        catalogue.sync().unwrap();
        let (_, contents) = ShapeCatalogue::open(folder.path()).unwrap();
        assert_eq!(contents.shapes.keys().copied().collect::<Vec<_>>(), [1, 3]);
        assert_eq!((contents.id_max, contents.micros_max), (4, 1004), "handles of removed shapes are not used again");
        assert_eq!(contents.shapes[&3].record, record(3));
    }

    /// SH-58: a torn end is cut off, and what was before it stays.
    #[test]
    fn torn_end_is_cut_off() {
        let mut bytes = Vec::new();
        for id in 1..=3 {
            push_line(&mut bytes, &CatalogueEvent::Shape(record(id)));
            push_line(&mut bytes, &finished(id));
        }
        for len in (0..bytes.len()).step_by(13) {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join(FILE), &bytes[..len]).unwrap();
            let (mut catalogue, contents) = ShapeCatalogue::open(folder.path()).unwrap();
            let before = contents.shapes.len();
            catalogue.push(&CatalogueEvent::Shape(record(9)));
            catalogue.push(&finished(9));
            catalogue.sync().unwrap();
            let (_, contents) = ShapeCatalogue::open(folder.path()).unwrap();
            assert_eq!(contents.shapes.len(), before + 1, "cut at {len}");
        }
    }
}
