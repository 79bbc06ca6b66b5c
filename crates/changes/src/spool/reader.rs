//! Reads events from the log and sends them to the consumer.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use tidegate_journal::{AtEnd, JournalEntry, JournalReader, ReadError, ReadFrom, ReaderPosition};
use tidegate_wire::replication::Lsn;

use super::{
    SpoolError, SpoolShared,
    files::SpoolCheckpoint,
    frame::{FrameJoiner, SpoolFrame},
};
use crate::{
    change::Change,
    error::ChangeStreamError,
    event::ChangeEvent,
    relation::{Relations, SchemaChange},
    stream::EventSender,
};

/// The size of a batch, in events and in bytes of frames.
const BATCH_EVENTS: usize = 512;
const BATCH_BYTES: usize = 256 << 10;

/// Transactions that a crash left without their commit: their numbers, counted from the checkpoint. The server sends them
/// again, so what is in the log of them is not delivered.
pub(super) type TornTransactions = BTreeSet<u64>;

/// The end of the last complete transaction in the log, and the incomplete ones.
pub(super) fn survey(
    folder: &Path,
    checkpoint: Option<&SpoolCheckpoint>,
) -> Result<(Lsn, TornTransactions), SpoolError> {
    let mut reader = open(folder, checkpoint, AtEnd::Stop)?;
    let mut joiner = FrameJoiner::default();
    let (mut end, mut torn, mut begun, mut is_open) = (Lsn::ZERO, TornTransactions::new(), 0, false);
    // Log of an earlier run may begin within a transaction, or hold a transaction that passed through: neither is complete.
    while let Some(frame) = next_frame(&mut reader, &mut joiner)? {
        let reached = match frame {
            SpoolFrame::Begin(_) => {
                if is_open {
                    torn.insert(begun);
                }
                (begun, is_open) = (begun + 1, true);
                continue;
            }
            SpoolFrame::Change { .. } => continue,
            SpoolFrame::Passing(_) => {
                if std::mem::replace(&mut is_open, false) {
                    torn.insert(begun);
                }
                continue;
            }
            SpoolFrame::Commit(commit) => {
                if !std::mem::replace(&mut is_open, false) {
                    continue;
                }
                commit.end_lsn
            }
            SpoolFrame::Message(message) => message.end_lsn,
            SpoolFrame::Progress(lsn) => lsn,
        };
        end = end.max(reached);
    }
    if is_open {
        torn.insert(begun);
    }
    Ok((end, torn))
}

/// Opens the log at its checkpoint. A segment that was released is not needed any more.
fn open(folder: &Path, checkpoint: Option<&SpoolCheckpoint>, at_end: AtEnd) -> Result<JournalReader, ReadError> {
    let position = checkpoint.and_then(|checkpoint| checkpoint.position.parse::<ReaderPosition>().ok());
    if let Some(position) = position {
        match JournalReader::open(folder, &ReadFrom::Position(position), at_end) {
            Err(ReadError::SegmentMissing { .. }) => {}
            opened => return opened,
        }
    }
    JournalReader::open(folder, &ReadFrom::Beginning, at_end)
}

/// The next whole frame; `None` at the end of the log.
fn next_frame(reader: &mut JournalReader, joiner: &mut FrameJoiner) -> Result<Option<SpoolFrame>, SpoolError> {
    loop {
        let joined = match reader.read()? {
            None => return Ok(None),
            Some(JournalEntry::Record(record)) => joiner.push(record.payload),
            Some(JournalEntry::Damage(damage)) => {
                let text = format!("{} bytes at {} of {}", damage.bytes, damage.at, damage.path.display());
                return Err(SpoolError::Damaged(text));
            }
            Some(JournalEntry::Missing { records, .. }) => {
                return Err(SpoolError::Damaged(format!("{records} records are missing")));
            }
            Some(_) => return Err(SpoolError::Damaged("records were not stored".to_owned())),
        };
        let malformed = |error: super::frame::FrameError| SpoolError::Damaged(error.to_string());
        if let Some(bytes) = joined.map_err(malformed)? {
            return SpoolFrame::decode(bytes).map(Some).map_err(malformed);
        }
    }
}

/// The state of reading, moved to a thread that may block for each batch.
struct SpoolReader {
    reader: JournalReader,
    joiner: FrameJoiner,
    /// The definitions that the consumer has.
    relations: Relations,
    /// Transactions whose commit record starts before this position were acknowledged.
    skip_before: Lsn,
    /// Transactions that are skipped because they are incomplete.
    torn: TornTransactions,
    /// The number of transactions since the checkpoint.
    begun: u64,
    /// Whether the events of the current transaction are sent.
    is_open: bool,
    /// Whether the frames of the current transaction are not needed after they were read.
    is_passing: bool,
    /// The end of the last transaction whose frames are needed until it is acknowledged.
    kept: Lsn,
    /// The last batch ended inside of a transaction.
    is_inside: bool,
}

struct ReadBatch {
    events: Vec<ChangeEvent>,
    /// The end of the last transaction in the batch, and the position after it.
    mark: Option<(Lsn, ReaderPosition)>,
    /// The batch ends within a transaction whose frames are not needed: the end of the one before, and the position.
    passing: Option<(Lsn, ReaderPosition)>,
}

pub(super) async fn run(
    shared: &SpoolShared,
    consumer: &EventSender,
    checkpoint: Option<SpoolCheckpoint>,
    torn: TornTransactions,
) -> Result<(), Option<ChangeStreamError>> {
    let failed = |error: SpoolError| Some(ChangeStreamError::from(error));
    let mut watch = shared.journal.watch();
    let reader =
        open(&shared.config.folder, checkpoint.as_ref(), AtEnd::Follow).map_err(|error| failed(error.into()))?;
    shared.marks().reached = Some(reader.position());
    let mut reader = SpoolReader {
        reader,
        joiner: FrameJoiner::default(),
        relations: Relations::default(),
        skip_before: checkpoint.map_or(Lsn::ZERO, |checkpoint| checkpoint.lsn),
        torn,
        begun: 0,
        is_open: false,
        // A log that begins within a transaction has lost its beginning, because it passed through.
        is_passing: true,
        kept: Lsn::ZERO,
        is_inside: false,
    };
    loop {
        let frames = tokio::task::spawn_blocking(move || {
            let frames = reader.read_frames();
            (reader, frames)
        });
        let (returned, frames) = frames.await.map_err(|_| Some(ChangeStreamError::Ended))?;
        reader = returned;
        let (frames, position) = frames.map_err(failed)?;
        let is_empty = frames.is_empty();
        let batch = reader.events(shared, frames, position).map_err(Some)?;
        if let Some(mark) = batch.mark {
            shared.marks().delivered.push_back(mark);
        }
        let has_passed = batch.passing.is_some();
        if has_passed {
            shared.marks().passing = batch.passing;
        }
        if !batch.events.is_empty() && !consumer.send(Ok(batch.events)).await {
            return Err(None);
        }
        if has_passed {
            shared.has_passed.notify_one();
        }
        if is_empty {
            watch.written().await;
        }
    }
}

impl SpoolReader {
    /// Reads frames up to the size of a batch. A batch ends with a transaction if it can, so that its position is one from
    /// which reading may start.
    fn read_frames(&mut self) -> Result<(Vec<SpoolFrame>, ReaderPosition), SpoolError> {
        let (mut frames, mut bytes) = (Vec::new(), 0);
        let begins_inside = std::mem::replace(&mut self.is_inside, false);
        while frames.len() < BATCH_EVENTS && bytes < BATCH_BYTES {
            let Some(frame) = next_frame(&mut self.reader, &mut self.joiner)? else { break };
            let is_end = !matches!(frame, SpoolFrame::Begin(_) | SpoolFrame::Change { .. } | SpoolFrame::Passing(_));
            if let SpoolFrame::Change { message, .. } = &frame {
                bytes += message.len();
            }
            frames.push(frame);
            self.is_inside = !is_end;
            if is_end && (begins_inside || frames.len() >= BATCH_EVENTS / 2 || bytes >= BATCH_BYTES / 2) {
                break;
            }
        }
        Ok((frames, self.reader.position()))
    }

    /// Decodes frames.
    fn events(
        &mut self,
        shared: &SpoolShared,
        frames: Vec<SpoolFrame>,
        position: ReaderPosition,
    ) -> Result<ReadBatch, ChangeStreamError> {
        let mut events = Vec::with_capacity(frames.len());
        let mut end = None;
        for frame in frames {
            self.kept = end.take().unwrap_or(self.kept);
            match frame {
                SpoolFrame::Begin(begin) => {
                    self.begun += 1;
                    self.is_passing = self.torn.remove(&self.begun);
                    self.is_open = !self.is_passing && begin.commit_lsn >= self.skip_before;
                    if self.is_open {
                        events.push(ChangeEvent::Begin(begin));
                    }
                }
                SpoolFrame::Change { id, tables, message } if self.is_open => {
                    self.use_versions(shared, &tables, &mut events);
                    let change = Change::decode(id, &message, &self.relations);
                    let change =
                        change.map_err(|error| ChangeStreamError::from(SpoolError::Damaged(error.to_string())))?;
                    events.push(ChangeEvent::Change(change));
                }
                SpoolFrame::Change { .. } => {}
                SpoolFrame::Passing(_) => self.is_passing = true,
                SpoolFrame::Commit(commit) => {
                    let was_open = std::mem::replace(&mut self.is_open, false);
                    if was_open {
                        events.push(ChangeEvent::Commit(commit));
                    }
                    // A transaction that passed through in an earlier run comes again, and nothing waits for this end.
                    if !std::mem::replace(&mut self.is_passing, false) || was_open {
                        end = Some(commit.end_lsn);
                    }
                }
                SpoolFrame::Message(message) => {
                    end = Some(message.end_lsn);
                    if message.end_lsn > self.skip_before {
                        events.push(ChangeEvent::Message(message));
                    }
                }
                SpoolFrame::Progress(lsn) => {
                    end = Some(lsn);
                    events.push(ChangeEvent::Progress(lsn));
                }
            }
        }
        self.kept = end.unwrap_or(self.kept);
        let passing = (self.is_passing && end.is_none()).then(|| (self.kept, position.clone()));
        // Reading may start again after the last frame only if that ends a transaction.
        Ok(ReadBatch { events, mark: end.map(|end| (end, position)), passing })
    }

    /// Makes the definitions current that a change was written with.
    fn use_versions(&mut self, shared: &SpoolShared, tables: &[(u32, u32)], events: &mut Vec<ChangeEvent>) {
        for (oid, version) in tables {
            let before = self.relations.get(*oid);
            if before.is_some_and(|relation| relation.version == *version) {
                continue;
            }
            let before = before.cloned();
            if let Some(after) = shared.relations().get(*oid, *version).cloned() {
                self.relations.restore(Arc::clone(&after));
                events.push(ChangeEvent::Schema(SchemaChange { before, after }));
            }
        }
    }
}
