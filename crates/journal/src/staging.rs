//! The staging buffer: records accepted and not yet taken by the writer, under a stripe's lock.
//!
//! Producers copy frames into the current chunk; full chunks queue behind it. The writer takes whole chunks by moving
//! them, so it writes without the lock while producers fill the next chunk. Nothing here blocks.

use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

use crate::{
    chunk::FrameChunk,
    config::{ClassConfig, OverloadPolicy},
    frame::{FrameInput, FrameKind},
    gap_record::{Gap, LossCause, PendingGaps},
    memory_budget::{MemoryBudget, Reservation},
    producer_record::Ack,
    range_set::RangeSet,
    timestamp::Timestamp,
};

/// When the writer must be woken. The writer sets it under the lock, so no wake-up is lost and none is sent twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriterAttention {
    /// Never: the writer checks again by itself.
    Busy,
    /// When `waiters` records are waited for, or a chunk is full. The writer checks again by itself soon.
    Lingering { waiters: usize },
    /// Any record wakes the writer.
    Idle,
}

/// The action of a producer after it has released the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WakeAction {
    None,
    /// Wake the writer.
    Wake,
    /// A chunk is full: write it.
    Write,
}

/// Whether a producer may block on disk I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockingMode {
    /// The producer writes full chunks itself: cheaper than waking another thread.
    MayBlock,
    /// The producer never writes.
    NonBlocking,
}

/// The inputs of an append besides the record.
pub(crate) struct AppendContext<'a> {
    pub(crate) classes: &'a [ClassConfig],
    pub(crate) budget: &'a MemoryBudget,
    /// Memory set aside for this record.
    pub(crate) reservation: &'a mut Reservation,
}

/// The counters of one class. Every offered record is accepted, dropped before acceptance, or timed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ClassCounters {
    pub(crate) accepted: u64,
    pub(crate) accepted_bytes: u64,
    /// Indexed by [`LossCause`].
    pub(crate) lost: [u64; 5],
    pub(crate) lost_bytes: [u64; 5],
}

/// Why an append failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AppendFailure {
    /// There is no room now.
    Full,
    /// The class is sampled and this record is not in the sample.
    Sampled,
    Closed,
}

/// The result of [`Staging::take`].
#[derive(Debug)]
pub(crate) enum TakeResult {
    Batch(WriteBatch),
    /// No batch is due; check again after this time or when woken.
    Linger(Duration),
    /// No record is staged; check again when woken.
    Idle,
    /// The journal is closed and everything was taken.
    Closed,
}

/// Chunks to write, and the ack level to reach before they are released.
#[derive(Debug)]
pub(crate) struct WriteBatch {
    pub(crate) chunks: Vec<FrameChunk>,
    pub(crate) ack: Ack,
    /// All sequence numbers below are in this batch or an earlier one.
    pub(crate) end: u64,
    /// The number of records in the batch that a producer waits for.
    pub(crate) waiters: usize,
}

/// When a batch is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchPolicy {
    pub(crate) linger: Duration,
    /// The largest size of the chunks of a batch in bytes; a batch has at least one chunk.
    pub(crate) bytes_max: usize,
    /// Set if more producers are expected to wait for the same sync.
    pub(crate) group_commit: Option<GroupCommit>,
}

/// Group commit: how long a sync is delayed so that it serves more waiters than the first one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupCommit {
    /// The sync starts when this many records are waited for.
    pub(crate) waiters: usize,
    /// The sync starts at this time at the latest.
    pub(crate) until: Instant,
    /// The sync starts if no waiter joins for this long.
    pub(crate) quiet: Duration,
}

/// How often the writer checks for new waiters within `quiet`.
const GROUP_CHECKS: u32 = 4;

pub(crate) struct Staging {
    full: VecDeque<FrameChunk>,
    current: Option<FrameChunk>,
    next_seq: u64,
    /// The highest ack level requested by a staged record or by `request_ack`.
    ack: Ack,
    waiters: usize,
    /// The number of waiters at the last check, and since when it is unchanged.
    group_waiters: Option<(usize, Instant)>,
    /// When the first staged record or loss arrived.
    since: Option<Instant>,
    losses: PendingGaps,
    attention: WriterAttention,
    closed: bool,
    /// Records of each class counted while the class is sampled.
    samples: Box<[u32]>,
    counters: Box<[ClassCounters]>,
    /// Sequence numbers of displaced records.
    displaced: RangeSet,
}

impl Staging {
    pub(crate) fn new(classes: usize, next_seq: u64) -> Self {
        Self {
            full: VecDeque::new(),
            current: None,
            next_seq,
            ack: Ack::Accepted,
            waiters: 0,
            group_waiters: None,
            since: None,
            losses: PendingGaps::default(),
            attention: WriterAttention::Busy,
            closed: false,
            samples: vec![0; classes].into(),
            counters: vec![ClassCounters::default(); classes].into(),
            displaced: RangeSet::default(),
        }
    }

    /// Accepts a record and returns its sequence number.
    #[inline]
    pub(crate) fn append(
        &mut self,
        framed: &FrameInput<'_>,
        ack: Ack,
        blocking: BlockingMode,
        context: AppendContext<'_>,
    ) -> Result<(u64, WakeAction), AppendFailure> {
        if self.closed {
            return Err(AppendFailure::Closed);
        }
        let class = usize::from(framed.class.index());
        if let OverloadPolicy::Sample { one_in } = context.classes[class].overload
            && !self.is_sampled(class, one_in, context.budget)
        {
            return Err(AppendFailure::Sampled);
        }
        let bytes = framed.bytes();
        if !self.current.as_ref().is_some_and(|chunk| chunk.has_room_for(bytes)) {
            self.rotate_chunk(bytes, class, context)?;
        }
        let chunk = self.current.as_mut().expect("rotate_chunk provides a chunk with room");
        let seq = self.next_seq;
        chunk.push(framed, seq);
        self.next_seq += 1;
        self.counters[class].accepted += 1;
        self.counters[class].accepted_bytes += framed.payload.len() as u64;
        if ack > Ack::Accepted {
            chunk.pin();
            self.waiters += 1;
            self.ack = self.ack.max(ack);
        }
        if self.since.is_none() {
            self.since = Some(Instant::now());
        }
        Ok((seq, self.action(blocking)))
    }

    /// Moves the current chunk to the full ones and starts a new one.
    fn rotate_chunk(&mut self, bytes: usize, class: usize, context: AppendContext<'_>) -> Result<(), AppendFailure> {
        let AppendContext { classes, budget, reservation } = context;
        let can_wait = matches!(classes[class].overload, OverloadPolicy::Block { .. });
        if can_wait && reservation.is_empty() && budget.needs_headroom(bytes) {
            return Err(AppendFailure::Full);
        }
        let fresh = match budget.acquire(bytes, reservation) {
            Some(chunk) => chunk,
            None if classes[class].overload == OverloadPolicy::DropOldest && self.drop_oldest(classes, budget) => {
                budget.acquire(bytes, reservation).ok_or(AppendFailure::Full)?
            }
            None => return Err(AppendFailure::Full),
        };
        self.full.extend(self.current.replace(fresh));
        Ok(())
    }

    fn is_sampled(&mut self, class: usize, one_in: u32, budget: &MemoryBudget) -> bool {
        if !budget.is_half_used() {
            return true;
        }
        self.samples[class] = (self.samples[class] + 1) % one_in;
        self.samples[class] == 0
    }

    #[inline]
    fn action(&mut self, blocking: BlockingMode) -> WakeAction {
        let full = !self.full.is_empty();
        let wake = match self.attention {
            WriterAttention::Busy => false,
            WriterAttention::Lingering { waiters } => full || (waiters > 0 && self.waiters >= waiters),
            WriterAttention::Idle => true,
        };
        match blocking {
            BlockingMode::MayBlock if full => WakeAction::Write,
            _ if wake => self.wake(),
            _ => WakeAction::None,
        }
    }

    /// Wakes the writer unless it is busy; once per wait.
    pub(crate) fn wake(&mut self) -> WakeAction {
        let asleep = mem::replace(&mut self.attention, WriterAttention::Busy) != WriterAttention::Busy;
        if asleep { WakeAction::Wake } else { WakeAction::None }
    }

    /// Drops displaceable records until a whole chunk is free. `false`: there were too few.
    fn drop_oldest(&mut self, classes: &[ClassConfig], budget: &MemoryBudget) -> bool {
        self.full.extend(self.current.take());
        let mut at = 0;
        while at < self.full.len() {
            if self.full[at].is_pinned() || !self.try_free_chunk(at, classes) {
                at += 1;
                continue;
            }
            // A chunk with gap records is outside the bound, so removing it frees nothing.
            if let Some(chunk) = self.full.remove(at).filter(|chunk| chunk.budget_bytes() > 0) {
                budget.release(chunk);
                return true;
            }
        }
        false
    }

    /// Drops the displaceable records of a chunk. Returns whether the chunk is empty or its rest was merged into the
    /// previous one.
    fn try_free_chunk(&mut self, at: usize, classes: &[ClassConfig]) -> bool {
        self.remove_frames(at, classes);
        self.full[at].is_empty() || (at > 0 && self.append_chunk(at))
    }

    fn remove_frames(&mut self, at: usize, classes: &[ClassConfig]) {
        let Self { full, losses, counters, displaced, .. } = self;
        full[at].remove_frames(|frame| {
            let class = usize::from(frame.class.index());
            let drops = frame.kind == FrameKind::Record && classes[class].overload == OverloadPolicy::DropOldest;
            if drops {
                let gap = Gap::new(frame.class, LossCause::Oldest, frame.payload.len(), frame.time);
                counters[class].record_loss(&gap);
                losses.add(&gap);
                displaced.add(frame.seq..frame.seq + 1);
            }
            drops
        });
    }

    fn append_chunk(&mut self, at: usize) -> bool {
        let (earlier, later) = self.full.make_contiguous().split_at_mut(at);
        earlier.last_mut().is_some_and(|earlier| !earlier.is_pinned() && earlier.append_chunk(&later[0]))
    }

    /// Records a loss before acceptance.
    pub(crate) fn record_loss(&mut self, gap: &Gap) -> WakeAction {
        self.counters[usize::from(gap.class.index())].record_loss(gap);
        self.losses.add(gap);
        if self.since.is_none() {
            self.since = Some(Instant::now());
        }
        if self.attention == WriterAttention::Idle { self.wake() } else { WakeAction::None }
    }

    /// Requests an ack level for everything that is staged.
    pub(crate) fn request_ack(&mut self, ack: Ack) -> WakeAction {
        self.ack = self.ack.max(ack);
        self.wake()
    }

    /// Rejects further records.
    pub(crate) fn close(&mut self) -> WakeAction {
        self.closed = true;
        self.wake()
    }

    /// Returns a batch for the writer: the full chunks, or all chunks if they are due.
    pub(crate) fn take(&mut self, policy: &BatchPolicy, now: Instant) -> TakeResult {
        let age = self.since.map(|since| now.saturating_duration_since(since));
        let group_wait = self.group_commit_wait(policy, now);
        let ack_due = self.ack > Ack::Accepted && group_wait.is_none();
        let due = ack_due || self.closed || age.is_some_and(|age| age >= policy.linger);
        if due && (self.since.is_some() || ack_due) {
            return TakeResult::Batch(self.batch(policy, true));
        }
        if !self.full.is_empty() {
            return TakeResult::Batch(self.batch(policy, false));
        }
        if self.closed {
            return TakeResult::Closed;
        }
        if age.is_none() && group_wait.is_none() {
            self.attention = WriterAttention::Idle;
            return TakeResult::Idle;
        }
        // A request_ack for records taken earlier can be pending while nothing is staged.
        let (waiters, wait) = group_wait.unwrap_or((1, policy.linger));
        self.attention = WriterAttention::Lingering { waiters };
        TakeResult::Linger(age.map_or(wait, |age| wait.min(policy.linger.saturating_sub(age))))
    }

    /// Returns full chunks to a producer that writes them in place of the writer. Does not change the writer's attention,
    /// as the writer sleeps or continues. Leaves syncs to the writer.
    pub(crate) fn take_full(&mut self, bytes_max: usize) -> Option<WriteBatch> {
        if self.full.is_empty() || self.ack == Ack::Durable {
            return None;
        }
        let chunks = self.pop_chunks(bytes_max);
        Some(WriteBatch { chunks, ack: Ack::Written, end: self.staged_from(), waiters: 0 })
    }

    fn pop_chunks(&mut self, bytes_max: usize) -> Vec<FrameChunk> {
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        while let Some(chunk) = self.full.pop_front_if(|chunk| bytes == 0 || bytes + chunk.budget_bytes() <= bytes_max)
        {
            bytes += chunk.budget_bytes();
            chunks.push(chunk);
        }
        chunks
    }

    /// The first sequence number that is still staged.
    fn staged_from(&self) -> u64 {
        let first = self.full.front().or(self.current.as_ref()).and_then(FrameChunk::seqs);
        first.map_or(self.next_seq, |(first, _)| first)
    }

    /// The number of waiters that the writer waits for, and the time until it checks again.
    fn group_commit_wait(&mut self, policy: &BatchPolicy, now: Instant) -> Option<(usize, Duration)> {
        let GroupCommit { waiters, until, quiet } = policy.group_commit?;
        if self.ack == Ack::Accepted || !self.full.is_empty() || self.waiters >= waiters || self.closed {
            return None;
        }
        let (known, since) =
            self.group_waiters.filter(|(known, _)| *known >= self.waiters).unwrap_or((self.waiters, now));
        self.group_waiters = Some((known, since));
        let until = until.min(since + quiet);
        (now < until).then(|| (waiters, (until - now).min(quiet / GROUP_CHECKS)))
    }

    fn batch(&mut self, policy: &BatchPolicy, due: bool) -> WriteBatch {
        if due {
            self.append_gaps();
            self.full.extend(self.current.take());
        }
        let chunks = self.pop_chunks(policy.bytes_max);
        let is_rest = !self.full.is_empty() || self.current.is_some();
        self.since = is_rest.then(Instant::now);
        self.attention = WriterAttention::Busy;
        let ack = mem::take(&mut self.ack);
        let waiters = mem::take(&mut self.waiters);
        self.group_waiters = None;
        // The rest keeps its ack level.
        if !self.full.is_empty() {
            self.ack = ack;
        }
        WriteBatch { chunks, ack, end: self.staged_from(), waiters }
    }

    /// Appends pending gaps as records once something is written again. They are few and small, and outside the bound.
    fn append_gaps(&mut self) {
        if self.losses.is_empty() {
            return;
        }
        let mut chunk = FrameChunk::unbudgeted();
        for gap in self.losses.drain() {
            let payload = gap.payload();
            let framed =
                FrameInput { kind: FrameKind::Gap, class: gap.class, time: Timestamp::now(), payload: &payload };
            chunk.push(&framed, self.next_seq);
            self.next_seq += 1;
        }
        self.full.extend(self.current.take());
        self.full.push_back(chunk);
    }

    /// Whether the record was displaced by a newer one.
    pub(crate) fn is_displaced(&self, seq: u64) -> bool {
        self.displaced.contains(seq)
    }

    /// The number of records that a producer waits for.
    pub(crate) fn waiters(&self) -> usize {
        self.waiters
    }

    pub(crate) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn counters(&self) -> &[ClassCounters] {
        &self.counters
    }

    /// The staged bytes, and the time of the oldest staged record.
    pub(crate) fn staged(&self) -> (usize, Option<Timestamp>) {
        let chunks = || self.full.iter().chain(&self.current);
        let oldest = chunks().find_map(FrameChunk::times).map(|(first, _)| first);
        (chunks().map(|chunk| chunk.bytes().len()).sum(), oldest)
    }
}

impl ClassCounters {
    fn record_loss(&mut self, gap: &Gap) {
        self.lost[gap.cause as usize] += gap.records;
        self.lost_bytes[gap.cause as usize] += gap.bytes;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::producer_record::Class;

    const QUIET: Duration = Duration::from_micros(100);

    fn ack(staging: &mut Staging, budget: &MemoryBudget) {
        let classes = [ClassConfig::new("one")];
        let framed =
            FrameInput { kind: FrameKind::Record, class: Class::new(0), time: Timestamp::MIN, payload: b"record" };
        let context = AppendContext { classes: &classes, budget, reservation: &mut Reservation::default() };
        staging.append(&framed, Ack::Durable, BlockingMode::NonBlocking, context).expect("there is room");
    }

    #[test]
    fn finds_room_behind_gap_records() {
        const CHUNK: usize = 4 << 10;
        let (mut staging, budget) = (Staging::new(2, 0), MemoryBudget::new(4 * CHUNK, CHUNK));
        let classes = [ClassConfig::new("goes").overload(OverloadPolicy::DropOldest), ClassConfig::new("stays")];
        let offer = |staging: &mut Staging, class: u8| {
            let framed = FrameInput {
                kind: FrameKind::Record,
                class: Class::new(class),
                time: Timestamp::MIN,
                payload: &[b'x'; 1000],
            };
            let context =
                AppendContext { classes: &classes, budget: &budget, reservation: &mut Reservation::default() };
            staging.append(&framed, Ack::Accepted, BlockingMode::NonBlocking, context).map(|(seq, _)| seq)
        };
        // A chunk with a record that stays, a gap, and three chunks of displaceable records.
        for class in [1, 0, 0, 0] {
            offer(&mut staging, class).expect("there is room");
        }
        staging.record_loss(&Gap::new(Class::new(0), LossCause::TooLarge, 1, Timestamp::MIN));
        staging.append_gaps();
        for _ in 0..12 {
            offer(&mut staging, 0).expect("there is room");
        }
        assert_eq!(offer(&mut staging, 0), Ok(17), "older records are displaced");
        assert_eq!(staging.counters()[0].lost[LossCause::Oldest as usize], 3 + 4);
    }

    #[test]
    fn sync_waits_for_as_many_waiters_as_last_time() {
        let (mut staging, budget) = (Staging::new(1, 0), MemoryBudget::new(1 << 20, 64 << 10));
        let begun = Instant::now();
        let group_commit = GroupCommit { waiters: 4, until: begun + 10 * QUIET, quiet: QUIET };
        let policy =
            BatchPolicy { linger: Duration::from_secs(1), bytes_max: 1 << 20, group_commit: Some(group_commit) };
        let waiters = |taken: TakeResult| match taken {
            TakeResult::Batch(batch) => Some(batch.waiters),
            TakeResult::Linger(time) => {
                assert!(time <= QUIET, "{time:?}");
                None
            }
            other => panic!("{other:?}"),
        };
        // All four waiters come.
        for _ in 0..3 {
            ack(&mut staging, &budget);
            assert_eq!(waiters(staging.take(&policy, begun)), None);
        }
        ack(&mut staging, &budget);
        assert_eq!(waiters(staging.take(&policy, begun)), Some(4));
        // Only two waiters come.
        ack(&mut staging, &budget);
        assert_eq!(waiters(staging.take(&policy, begun)), None);
        ack(&mut staging, &budget);
        assert_eq!(waiters(staging.take(&policy, begun + QUIET)), None, "one more waiter came");
        assert_eq!(waiters(staging.take(&policy, begun + QUIET + QUIET / 2)), None, "woken early");
        assert_eq!(waiters(staging.take(&policy, begun + 2 * QUIET)), Some(2));
        // A request for records taken earlier, and no other waiter.
        staging.request_ack(Ack::Durable);
        assert_eq!(waiters(staging.take(&policy, begun + 3 * QUIET)), None);
        assert_eq!(waiters(staging.take(&policy, begun + 4 * QUIET)), Some(0));
        // The group commit window has ended.
        ack(&mut staging, &budget);
        assert_eq!(waiters(staging.take(&policy, begun + 10 * QUIET)), Some(1));
    }
}
