//! The store against real files: recovery, damage, retention.

use std::path::Path;

use super::*;
use crate::definition::ShapeDefinition;
use crate::handle::ShapeHandle;
use crate::parameters::{LogMode, Replica};
use crate::row_form::{RowForm, TransactionSnapshot};
use crate::run;
use crate::shape::{OpenParts, ShapePhase};
use crate::table::tests::{column, table};

fn options(folder: &Path) -> StoreOptions {
    StoreOptions { segment_bytes: 4 << 10, cache_bytes: 1 << 10, ..StoreOptions::new(folder.to_owned()) }
}

fn definition() -> Arc<ShapeDefinition> {
    let table = Arc::new(table("public", "t", vec![column("id", "int8", Some(0))]));
    let form = Arc::new(RowForm::new(table, vec![0]));
    Arc::new(ShapeDefinition { form, predicate: None, replica: Replica::Default, log: LogMode::Full, inner: None })
}

struct Fixture {
    store: Store,
    index: Arc<ShapeIndex>,
}

impl Fixture {
    fn open(folder: &Path) -> (Self, RecoveredStore) {
        let index = Arc::new(ShapeIndex::default());
        let (store, recovered) = Store::open(options(folder), Arc::clone(&index)).unwrap();
        (Self { store, index }, recovered)
    }

    fn reopen(folder: &Path) -> (Self, Vec<Arc<Shape>>, u64) {
        let (fixture, recovered) = Self::open(folder);
        let shapes: Vec<Arc<Shape>> = recovered
            .shapes
            .into_iter()
            .map(|found| {
                let shape = Arc::new(Shape::new(found.record.id, found.record.handle, definition()));
                *shape.log() = found.log;
                fixture.index.restore(&shape);
                shape
            })
            .collect();
        (fixture, shapes, recovered.durable_lsn)
    }

    /// A shape with a snapshot of two chunks, of which the second has two pieces.
    async fn create(&self, id: ShapeId) -> Arc<Shape> {
        let shape = Arc::new(Shape::new(id, ShapeHandle { hash: 1, micros: id }, definition()));
        self.index.restore(&shape);
        self.store.create(Arc::clone(&shape)).await.unwrap();
        for (chunk, piece) in [(0, 0), (1, 1), (1, 2)] {
            let bytes = Bytes::from(format!("piece {piece} of {id}"));
            let last = LogOffset::snapshot_chunk(chunk);
            shape.update(|log| {
                log.pieces.push(Extent::unwritten(last, bytes.clone()));
                log.chunk_count = u32::try_from(chunk).unwrap() + 1;
            });
            self.store.put_piece(Arc::clone(&shape), chunk, piece, bytes).await.unwrap();
        }
        let filter = SnapshotFilter { snapshot: TransactionSnapshot::default(), until_lsn: 1 };
        let size = SnapshotSize { chunks: 2, pieces: 3 };
        self.store.finish_snapshot(Arc::clone(&shape), size, filter).await.unwrap();
        shape.log().phase = ShapePhase::Complete;
        shape
    }

    /// A transaction with one message for the shape.
    fn run(shape: &Arc<Shape>, lsn: u64) -> RunWrite {
        let at = LogOffset { tx: lsn, op: 0 };
        let mut bytes = Vec::new();
        run::push_item(&mut bytes, at, |out| {
            out.extend_from_slice(format!("message {lsn} of {}", shape.id).as_bytes());
        });
        let bytes = Bytes::from(bytes);
        let mut log = shape.log();
        let chunk_ends = run::chunk_ends(&bytes, 100, &mut log.open_chunk_bytes);
        log.add_chunk_ends(&chunk_ends);
        log.append(Extent::unwritten(at, bytes.clone()), false);
        let open_chunk_bytes = log.open_chunk_bytes;
        drop(log);
        RunWrite { shape: Arc::clone(shape), first: at, last: at, bytes, chunk_ends, open_chunk_bytes }
    }

    async fn durable(&self, lsn: u64) {
        self.store.progress().wait_for(|progress| progress.durable_lsn >= lsn).await.unwrap();
    }

    /// Ends the writer and waits for it, as the lock of the folder shows.
    async fn close(self, folder: &Path) {
        drop(self.store);
        let path = folder.join("lock");
        let wait = move || std::fs::File::open(path).unwrap().lock().unwrap();
        tokio::task::spawn_blocking(wait).await.unwrap();
    }
}

/// Chunks, messages, ends of chunks, end, and bytes of the open chunk.
type Contents = (Vec<String>, Vec<(LogOffset, String)>, Vec<LogOffset>, LogOffset, u64);

/// The readable contents of a shape.
fn contents(store: &Store, shape: &Shape) -> Contents {
    let (chunks, runs, ends, end, open) = {
        let log = shape.log();
        (log.pieces.clone(), log.runs.clone(), log.rare().chunk_ends.clone(), log.end, log.open_chunk_bytes)
    };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let chunks = chunks.iter().map(|chunk| text(&store.read(chunk).unwrap())).collect();
    let mut messages = Vec::new();
    for extent in runs {
        let bytes = store.read(&extent).unwrap();
        messages.extend(run::items(&bytes).map(|(offset, json)| (offset, text(json))));
    }
    (chunks, messages, ends, end, open)
}

/// SH-22: parts of a transaction count only if it has committed.
#[tokio::test]
async fn parts_without_a_commit_are_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let (fixture, _) = Fixture::open(folder.path());
    let (committed, interrupted) = (fixture.create(1).await, fixture.create(2).await);
    for shape in [&committed, &interrupted] {
        for op in [0, 2] {
            let last = LogOffset { tx: 10, op };
            let mut bytes = Vec::new();
            run::push_item(&mut bytes, last, |out| out.extend_from_slice(b"part"));
            let bytes = Bytes::from(bytes);
            shape.update(|log| {
                let parts = log.rare_mut().parts.get_or_insert_with(|| OpenParts::new(0));
                parts.extents.push(Extent::unwritten(last, bytes.clone()));
            });
            let shape = Arc::clone(shape);
            let part = RunWrite { shape, first: last, last, bytes, chunk_ends: Vec::new(), open_chunk_bytes: 4 };
            fixture.store.put_parts(vec![part]).await.unwrap();
        }
    }
    let parts = committed.log().take_parts().unwrap();
    committed.log().runs.extend(parts.extents);
    let mut run = Fixture::run(&committed, 10);
    let at = LogOffset { tx: 10, op: 4 };
    (run.first, run.last) = (at, at);
    let mut bytes = Vec::new();
    run::push_item(&mut bytes, at, |out| out.extend_from_slice(b"end"));
    run.bytes = bytes.into();
    committed.log().runs.last_mut().unwrap().last = at;
    committed.log().end = at;
    fixture.store.commit(vec![run], 11).await.unwrap();
    fixture.durable(11).await;
    fixture.close(folder.path()).await;
    let (fixture, shapes, _) = Fixture::reopen(folder.path());
    let texts = |shape: &Shape| contents(&fixture.store, shape).1.into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    assert_eq!(texts(&shapes[0]), ["part", "part", "end"]);
    assert!(texts(&shapes[1]).is_empty());
    assert_eq!(shapes[1].log().end, LogOffset::SNAPSHOT_END);
}

/// SH-09, SH-14: offsets, chunk ends and texts are the same after a restart.
#[tokio::test]
async fn logs_are_the_same_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (fixture, _) = Fixture::open(folder.path());
    let shapes = [fixture.create(1).await, fixture.create(2).await];
    for lsn in 1..300 {
        let runs =
            shapes.iter().filter(|shape| lsn % shape.id == 0).map(|shape| Fixture::run(shape, lsn * 10)).collect();
        fixture.store.commit(runs, lsn * 10 + 1).await.unwrap();
    }
    fixture.durable(2991).await;
    let before: Vec<_> = shapes.iter().map(|shape| contents(&fixture.store, shape)).collect();
    assert_eq!((before[0].1.len(), before[1].1.len()), (299, 149));
    fixture.close(folder.path()).await;
    for _ in 0..2 {
        let (fixture, shapes, durable_lsn) = Fixture::reopen(folder.path());
        assert_eq!(durable_lsn, 2991);
        let after: Vec<_> = shapes.iter().map(|shape| contents(&fixture.store, shape)).collect();
        assert_eq!(after, before);
        fixture.close(folder.path()).await;
    }
}

/// The log of a shape that has changes only has one piece, which is empty.
#[tokio::test]
async fn empty_piece_keeps_its_segment() {
    let folder = tempfile::tempdir().unwrap();
    let (fixture, _) = Fixture::open(folder.path());
    let shape = Arc::new(Shape::new(1, ShapeHandle { hash: 1, micros: 1 }, definition()));
    fixture.index.restore(&shape);
    fixture.store.create(Arc::clone(&shape)).await.unwrap();
    shape.log().pieces.push(Extent::unwritten(LogOffset::snapshot_chunk(0), Bytes::new()));
    fixture.store.put_piece(Arc::clone(&shape), 0, 0, Bytes::new()).await.unwrap();
    let filter = SnapshotFilter { snapshot: TransactionSnapshot::default(), until_lsn: 1 };
    let size = SnapshotSize { chunks: 1, pieces: 1 };
    fixture.store.finish_snapshot(shape, size, filter).await.unwrap();
    fixture.close(folder.path()).await;
    for _ in 0..3 {
        let (fixture, shapes, _) = Fixture::reopen(folder.path());
        assert_eq!(contents(&fixture.store, &shapes[0]).0, [""]);
        fixture.close(folder.path()).await;
    }
}

/// Many small runs are merged, and readers see no difference.
#[tokio::test]
async fn small_runs_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let (fixture, _) = Fixture::open(folder.path());
    let shape = fixture.create(1).await;
    for lsn in 1..=1000 {
        fixture.store.commit(vec![Fixture::run(&shape, lsn)], lsn).await.unwrap();
        fixture.durable(lsn).await;
    }
    let before = contents(&fixture.store, &shape);
    assert_eq!(before.1.len(), 1000);
    assert!(shape.log().runs.len() < 300, "{} runs", shape.log().runs.len());
    fixture.close(folder.path()).await;
    let (fixture, shapes, _) = Fixture::reopen(folder.path());
    assert_eq!(contents(&fixture.store, &shapes[0]), before);
    fixture.close(folder.path()).await;
}

/// A crash cuts the last segment anywhere: what was acknowledged is there, the rest is whole or absent.
#[tokio::test]
async fn torn_end_loses_nothing_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let (fixture, _) = Fixture::open(folder.path());
    let shape = fixture.create(1).await;
    for lsn in 1..=20 {
        fixture.store.commit(vec![Fixture::run(&shape, lsn)], lsn).await.unwrap();
    }
    fixture.durable(20).await;
    fixture.close(folder.path()).await;
    let numbers = segment::list(folder.path()).unwrap();
    let path = segment::path(folder.path(), *numbers.last().unwrap());
    let whole = std::fs::read(&path).unwrap();
    for len in (0..whole.len()).step_by(23) {
        let copy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        std::fs::write(segment::path(copy.path(), *numbers.last().unwrap()), &whole[..len]).unwrap();
        let (fixture, shapes, durable_lsn) = Fixture::reopen(copy.path());
        for shape in &shapes {
            let messages = contents(&fixture.store, shape).1;
            let lsns: Vec<u64> = messages.iter().map(|(at, _)| at.tx).collect();
            assert!(lsns.iter().copied().eq(1..=lsns.len() as u64), "cut at {len}: {lsns:?}");
            assert!(lsns.len() as u64 >= durable_lsn, "cut at {len}");
        }
        fixture.close(copy.path()).await;
    }
}

/// A damaged byte in the middle drops all shapes instead of serving a log with a gap.
#[tokio::test]
async fn damage_in_the_middle_drops_shapes() {
    let folder = tempfile::tempdir().unwrap();
    let (fixture, _) = Fixture::open(folder.path());
    let shape = fixture.create(1).await;
    for lsn in 1..=300 {
        fixture.store.commit(vec![Fixture::run(&shape, lsn)], lsn).await.unwrap();
        fixture.durable(lsn).await;
    }
    fixture.close(folder.path()).await;
    let first = segment::path(folder.path(), segment::list(folder.path()).unwrap()[0]);
    let mut bytes = std::fs::read(&first).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&first, bytes).unwrap();
    let (fixture, shapes, _) = Fixture::reopen(folder.path());
    assert!(shapes.is_empty());
    fixture.close(folder.path()).await;
}

/// Removed shapes free their disk space, and what others have is copied.
#[tokio::test]
async fn segments_of_removed_shapes_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (fixture, _) = Fixture::open(folder.path());
    let kept = fixture.create(1).await;
    for id in 2..40 {
        let shape = fixture.create(id).await;
        for lsn in 0..20 {
            let at = id * 100 + lsn;
            fixture.store.commit(vec![Fixture::run(&shape, at)], at).await.unwrap();
        }
        fixture.index.remove(shape.id);
        shape.update(|log| log.phase = ShapePhase::Removed);
        fixture.store.remove(shape).await.unwrap();
        fixture.store.commit(vec![Fixture::run(&kept, id * 100 + 50)], id * 100 + 51).await.unwrap();
        fixture.durable(id * 100 + 51).await;
    }
    let before = contents(&fixture.store, &kept);
    assert_eq!(before.1.len(), 38);
    assert!(fixture.store.used_bytes() < 32 << 10, "{} bytes", fixture.store.used_bytes());
    fixture.close(folder.path()).await;
    let (fixture, shapes, durable_lsn) = Fixture::reopen(folder.path());
    assert_eq!((shapes.len(), durable_lsn), (1, 3951));
    assert_eq!(contents(&fixture.store, &shapes[0]), before);
    fixture.close(folder.path()).await;
}

#[tokio::test]
async fn folder_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let (fixture, _) = Fixture::open(folder.path());
    let second = Store::open(options(folder.path()), Arc::default());
    assert!(matches!(second, Err(StoreError::InUse(_))));
    fixture.close(folder.path()).await;
}

/// SH-59: readers see every transaction up to the end of the log while runs are written, merged, copied and dropped from memory.
#[tokio::test(flavor = "multi_thread")]
async fn readers_miss_nothing_during_writes() {
    const TRANSACTIONS: u64 = 1500;
    let folder = tempfile::tempdir().unwrap();
    let (fixture, _) = Fixture::open(folder.path());
    let (shape, other) = (fixture.create(1).await, fixture.create(2).await);
    let (store, read) = (fixture.store.clone(), Arc::clone(&shape));
    let reader = tokio::task::spawn_blocking(move || {
        let (mut reads, mut seen) = (0_u64, 0);
        while seen < TRANSACTIONS {
            let slice = {
                let log = read.log();
                crate::shape::LogSlice { after: None, end: log.end, is_up_to_date: true, has_data: true }
            };
            if slice.end.is_in_snapshot() || slice.end == LogOffset::SNAPSHOT_END {
                continue;
            }
            let extents = read.log().extents(slice);
            let texts: io::Result<Vec<Bytes>> = extents.iter().map(|extent| store.read(extent)).collect();
            let texts = match texts {
                // The segment was copied meanwhile: requests look again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.unwrap(),
            };
            let found: Vec<u64> = texts.iter().flat_map(|run| run::items(run)).map(|(at, _)| at.tx).collect();
            assert!(found.iter().copied().eq(1..=found.len() as u64), "no gap: {found:?}");
            assert!(found.len() as u64 >= slice.end.tx, "{} of {}", found.len(), slice.end.tx);
            (reads, seen) = (reads + 1, slice.end.tx);
        }
        reads
    });
    for lsn in 1..=TRANSACTIONS {
        let runs = vec![Fixture::run(&shape, lsn), Fixture::run(&other, lsn)];
        fixture.store.commit(runs, lsn).await.unwrap();
        if lsn % 8 == 0 {
            fixture.durable(lsn).await;
        }
        if lsn == TRANSACTIONS / 2 {
            // Segments with little live data are copied.
            other.log().phase = ShapePhase::Removed;
            fixture.store.remove(Arc::clone(&other)).await.unwrap();
        }
    }
    assert!(reader.await.unwrap() > 1, "the log was read meanwhile");
    fixture.close(folder.path()).await;
}
