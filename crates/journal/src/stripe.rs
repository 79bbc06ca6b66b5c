//! A stripe: one staging buffer, one open segment, and the step that moves batches from one to the other.

#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::{
    ops::Range,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::Thread,
    time::{Duration, Instant},
};

use tidegate_backoff::{Backoff, Jitter};

use crate::{
    chunk::FrameChunk,
    config::JournalConfig,
    disk_bound::DiskBound,
    durability_tracker::DurabilityTracker,
    folder::FolderLock,
    frame::FrameInput,
    gap_record::Gap,
    health::{EventListener, HealthMonitor},
    memory_budget::{MemoryBudget, Reservation},
    observer::{self, RecordObserver},
    producer_record::Ack,
    segment_writer::{SealedSegment, SegmentWriter, StripeStart, WriterCounts},
    staging::{
        AppendContext, AppendFailure, BatchPolicy, BlockingMode, ClassCounters, GroupCommit, Staging, TakeResult,
        WakeAction, WriteBatch,
    },
    storage::Storage,
    sync::{Mutex, lock, lock_contended},
    timer::WakeTimer,
    timestamp::Timestamp,
};

/// The delays before a failed write is retried. Only one thread retries a stripe, so the delays need no jitter.
const RETRY_BACKOFF: Backoff =
    Backoff { jitter: Jitter::NONE, ..Backoff::new(Duration::from_millis(40), Duration::from_secs(1)) };
/// The largest batch. Larger writes cost no less per byte, and smaller batches free memory sooner.
const BATCH_BYTES: usize = 1 << 20;
/// The largest number of batches that a producer writes in place of the writer.
const ASSIST_BATCHES_MAX: usize = 4;
/// The time in which one of many woken producers waits for the next sync, if it does nothing else.
const PRODUCER_RETURN: Duration = Duration::from_nanos(700);
/// Group commit waits for up to the duration of the last sync if that was at most this long, and otherwise for half of
/// it.
const SHORT_SYNC: Duration = Duration::from_millis(2);
/// The bounds of the time without a new waiter after which a sync starts: a sixteenth of the duration of the last sync.
const QUIET: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// The number of ended segments that may wait for a sync by the maintenance thread before the writer syncs them itself.
const SEALED_MAX: usize = 4;

pub(crate) struct Stripe {
    pub(crate) index: u16,
    pub(crate) acks: DurabilityTracker,
    staging: Mutex<Staging>,
    writer: Mutex<WriterSlot>,
    /// Ended segments that are not synced.
    sealed: Mutex<Vec<SealedSegment>>,
    progress: Mutex<WriteProgress>,
    writer_thread: OnceLock<Thread>,
    reopen: AtomicBool,
    abandoned: AtomicBool,
    config: Arc<JournalConfig>,
    storage: Arc<dyn Storage>,
    budget: Arc<MemoryBudget>,
    health: Arc<HealthMonitor>,
    maintenance: Arc<OnceLock<Thread>>,
    timer: Arc<WakeTimer>,
    observer: Option<Arc<dyn RecordObserver>>,
    /// Records go to the observer only.
    is_in_memory: bool,
    /// The first sequence number after recovery.
    first_seq: u64,
}

/// The segment writer and its state between steps. Under a lock because producers that may block also write.
struct WriterSlot {
    writer: SegmentWriter,
    failures: u32,
    /// The number of waiters served by the last sync or already waiting for the next one, and the time when they were
    /// woken.
    synced: Option<(usize, Instant)>,
    /// A batch was given up: nothing behind it is written, so that no record number is missing before a later record.
    has_abandoned: bool,
}

/// The progress of the writer, for statistics that must not wait for the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteProgress {
    pub(crate) counts: WriterCounts,
    pub(crate) is_open: bool,
    /// Segments with smaller numbers are not written to any more.
    pub(crate) first_open: u64,
    pub(crate) open_bytes: u64,
    pub(crate) in_flight_bytes: usize,
    pub(crate) in_flight_oldest: Option<Timestamp>,
    /// The number of records and gaps written, and the number of them that are durable.
    pub(crate) written: u64,
    pub(crate) durable: u64,
    /// The number of written records that will never be durable.
    not_durable: u64,
}

impl WriteProgress {
    /// Counts all written records as durable, except those recorded as not durable.
    fn update_durable(&mut self) {
        self.durable = self.written.saturating_sub(self.not_durable);
    }
}

/// The next action of the writer thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriterStep {
    Again,
    /// Sleep until woken, or for at most this time.
    Sleep(Option<Duration>),
    Closed,
}

/// The shared state of the stripes.
#[derive(Clone)]
pub(crate) struct StripeContext {
    pub(crate) config: Arc<JournalConfig>,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) health: Arc<HealthMonitor>,
    pub(crate) maintenance: Arc<OnceLock<Thread>>,
    pub(crate) timer: Arc<WakeTimer>,
    /// Owned by the writer threads, not by producers.
    pub(crate) folder_lock: Weak<FolderLock>,
    pub(crate) disk_bound: Arc<DiskBound>,
    pub(crate) observer: Option<Arc<dyn RecordObserver>>,
    pub(crate) is_in_memory: bool,
}

impl StripeContext {
    /// The state of a journal with files, whose lock is set later. `used` is the size of the files in bytes.
    pub(crate) fn new(
        config: JournalConfig,
        storage: Arc<dyn Storage>,
        listener: EventListener,
        observer: Option<Arc<dyn RecordObserver>>,
        used: u64,
    ) -> Self {
        Self {
            budget: Arc::new(MemoryBudget::new(config.bytes_max, config.chunk_bytes())),
            disk_bound: Arc::new(DiskBound::new(config.segment_policy.disk_bytes_max(), used)),
            config: Arc::new(config),
            storage,
            health: Arc::new(HealthMonitor::new(listener)),
            maintenance: Arc::new(OnceLock::new()),
            timer: Arc::default(),
            folder_lock: Weak::new(),
            observer,
            is_in_memory: false,
        }
    }
}

impl Stripe {
    pub(crate) fn new(index: u16, context: &StripeContext, start: &StripeStart) -> Self {
        let StripeContext { config, storage, budget, health, maintenance, timer, .. } = context.clone();
        let StripeContext { folder_lock, disk_bound, observer, is_in_memory, .. } = context.clone();
        let writer =
            SegmentWriter::new(Arc::clone(&config), Arc::clone(&storage), folder_lock, disk_bound, index, start);
        Self {
            index,
            acks: DurabilityTracker::new(start.next_seq),
            staging: Mutex::new(Staging::new(config.classes.len(), start.next_seq)),
            writer: Mutex::new(WriterSlot { writer, failures: 0, synced: None, has_abandoned: false }),
            sealed: Mutex::new(Vec::new()),
            progress: Mutex::new(WriteProgress { first_open: start.next_number, ..WriteProgress::default() }),
            writer_thread: OnceLock::new(),
            reopen: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            config,
            storage,
            budget,
            health,
            maintenance,
            timer,
            observer,
            is_in_memory,
            first_seq: start.next_seq,
        }
    }

    /// Sets the thread that is woken when there is something to write.
    pub(crate) fn set_writer(&self, thread: Thread) {
        let _ = self.writer_thread.set(thread);
    }

    #[inline]
    pub(crate) fn append(
        &self,
        framed: &FrameInput<'_>,
        ack: Ack,
        blocking: BlockingMode,
        reservation: &mut Reservation,
    ) -> Result<u64, AppendFailure> {
        let context = AppendContext { classes: &self.config.classes, budget: &self.budget, reservation };
        let result = lock_contended(&self.staging).append(framed, ack, blocking, context);
        let (seq, action) = result?;
        if action != WakeAction::None {
            self.perform(action);
        }
        Ok(seq)
    }

    #[cold]
    fn perform(&self, action: WakeAction) {
        match action {
            WakeAction::None => {}
            WakeAction::Wake => self.unpark(),
            WakeAction::Write => self.assist_writer(),
        }
    }

    /// Wakes the writer, which retries a failed write.
    pub(crate) fn unpark(&self) {
        if let Some(writer) = self.writer_thread.get() {
            writer.unpark();
        }
    }

    /// Writes in place of the writer, unless another thread is writing.
    fn assist_writer(&self) {
        let Ok(mut slot) = self.writer.try_lock() else { return };
        for _ in 0..ASSIST_BATCHES_MAX {
            if slot.writer.has_pending() {
                break;
            }
            let Some(batch) = lock(&self.staging).take_full(BATCH_BYTES) else { break };
            self.accept(&mut slot, batch);
            self.store(&mut slot);
        }
        let failed = slot.writer.has_pending();
        drop(slot);
        if failed {
            // Retries need sleeps, which the writer thread does.
            self.unpark();
        } else if lock(&self.staging).has_full() {
            self.request_ack(Ack::Accepted);
        }
    }

    /// Records a loss before acceptance.
    pub(crate) fn record_loss(&self, gap: &Gap) {
        let action = lock(&self.staging).record_loss(gap);
        self.perform(action);
    }

    /// Requests an ack level for everything that is staged.
    pub(crate) fn request_ack(&self, ack: Ack) {
        let action = lock(&self.staging).request_ack(ack);
        self.perform(action);
    }

    /// Makes the next batch go to a new segment if the open one was renamed.
    pub(crate) fn reopen(&self) {
        self.reopen.store(true, Ordering::Release);
        // Makes an idle writer close the old segment now.
        lock(&self.staging).wake();
        self.unpark();
    }

    pub(crate) fn close(&self) {
        let action = lock(&self.staging).close();
        self.perform(action);
        self.unpark();
    }

    /// Marks everything that is not written by now as lost, whatever the disk does later, and wakes its waiters.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        let next = self.next_seq();
        self.acks.mark_lost(self.acks.written()..next, Ack::Written);
        self.acks.mark_lost(self.acks.durable()..next, Ack::Durable);
        self.unpark();
    }

    /// The main loop of the writer thread.
    pub(crate) fn write(&self) {
        reduce_timer_slack();
        loop {
            let step = self.step(&mut lock(&self.writer));
            match step {
                WriterStep::Again => {}
                WriterStep::Sleep(None) => std::thread::park(),
                WriterStep::Sleep(Some(time)) => std::thread::park_timeout(time),
                WriterStep::Closed => return,
            }
        }
    }

    /// Takes one batch and stores it.
    fn step(&self, slot: &mut WriterSlot) -> WriterStep {
        if self.reopen.swap(false, Ordering::AcqRel) {
            slot.writer.seal_if_renamed();
            self.on_sealed(slot);
        }
        if !slot.writer.has_pending() {
            let taken = lock(&self.staging).take(&self.batch_policy(slot), Instant::now());
            match taken {
                TakeResult::Batch(batch) => self.accept(slot, batch),
                TakeResult::Linger(time) => return WriterStep::Sleep(Some(time)),
                TakeResult::Idle => return WriterStep::Sleep(None),
                TakeResult::Closed => {
                    self.seal(slot);
                    self.sync_sealed();
                    self.on_closed();
                    return WriterStep::Closed;
                }
            }
        }
        self.store(slot)
    }

    /// Decides every record: those that are not marked as lost are durable, and no later sync will mark them.
    fn on_closed(&self) {
        lock(&self.progress).update_durable();
        self.acks.publish(self.next_seq(), Ack::Durable);
        while self.acks.wake_some() {}
    }

    /// Ends the open segment.
    fn seal(&self, slot: &mut WriterSlot) {
        slot.writer.seal();
        self.on_sealed(slot);
    }

    fn on_sealed(&self, slot: &mut WriterSlot) {
        self.update_progress(slot);
        self.hand_over_sealed(&mut slot.writer);
    }

    fn accept(&self, slot: &mut WriterSlot, batch: WriteBatch) {
        let mut progress = lock(&self.progress);
        progress.in_flight_bytes = batch.chunks.iter().map(|chunk| chunk.bytes().len()).sum();
        progress.in_flight_oldest = batch.chunks.iter().find_map(|chunk| chunk.times()).map(|(first, _)| first);
        drop(progress);
        if let Some(observer) = &self.observer {
            observer::observe(&**observer, &batch.chunks);
        }
        slot.writer.accept(batch);
    }

    /// Computes the group commit window. Producers woken by a sync join the next one, one after the other as they get to
    /// run. A sync that starts with the first of them would leave the others to the sync after it, so each sync would
    /// serve only a part. The sync is therefore delayed until all of them and the producers that joined meanwhile wait
    /// again, as long as more keep coming and for at most about its own duration. If a sync is faster than the producers,
    /// it is not delayed: while it serves some, the others come.
    fn batch_policy(&self, slot: &WriterSlot) -> BatchPolicy {
        let sync = slot.writer.counts.sync_time_last;
        let is_slow =
            |waiters: usize| sync > PRODUCER_RETURN.saturating_mul(u32::try_from(waiters).unwrap_or(u32::MAX));
        let group_commit =
            slot.synced.filter(|(waiters, _)| *waiters > 1 && is_slow(*waiters)).map(|(waiters, ended)| {
                let wait = (sync / 2).max(sync.min(SHORT_SYNC));
                GroupCommit { waiters, until: ended + wait, quiet: (sync / 16).clamp(QUIET.0, QUIET.1) }
            });
        BatchPolicy { linger: self.config.linger, bytes_max: BATCH_BYTES.min(self.config.bytes_max / 2), group_commit }
    }

    fn store(&self, slot: &mut WriterSlot) -> WriterStep {
        if slot.has_abandoned {
            self.abandon_pending(slot);
            return WriterStep::Again;
        }
        let stored = if self.is_in_memory { Ok(slot.writer.discard()) } else { slot.writer.store() };
        if slot.writer.take_folder_replaced() {
            self.health.on_folder_replaced(&self.config.folder);
        }
        match stored {
            Ok(Some(batch)) => {
                self.on_stored(slot, batch);
                WriterStep::Again
            }
            Ok(None) => WriterStep::Again,
            Err(error) => {
                let repeated = slot.failures > 0;
                slot.failures += 1;
                self.health.on_store_error(&error, repeated);
                self.update_progress(slot);
                if self.abandoned.load(Ordering::Acquire) {
                    self.abandon_pending(slot);
                    return WriterStep::Again;
                }
                // After an abandoned segment, the new one is tried immediately.
                if error.abandoned && !repeated {
                    WriterStep::Again
                } else {
                    WriterStep::Sleep(Some(RETRY_BACKOFF.delay(slot.failures, 0.0)))
                }
            }
        }
    }

    fn on_stored(&self, slot: &mut WriterSlot, batch: WriteBatch) {
        if slot.failures > 0 {
            slot.failures = 0;
            self.health.on_stored();
        }
        // Before the maintenance thread sees the ended segments.
        self.update_progress(slot);
        lock(&self.progress).written += batch.chunks.iter().map(FrameChunk::records).sum::<u64>();
        self.hand_over_sealed(&mut slot.writer);
        if batch.ack == Ack::Durable {
            self.sync_sealed();
            lock(&self.progress).update_durable();
        }
        // Release memory first, so that woken producers see current counters.
        batch.chunks.into_iter().for_each(|chunk| self.budget.release(chunk));
        self.acks.publish(batch.end, batch.ack);
        self.wake_ack_waiters(batch.ack);
        if batch.ack == Ack::Durable {
            // Counted from here: waking many waiters takes as long as a sync.
            let waiters = batch.waiters + lock(&self.staging).waiters();
            slot.synced = Some((waiters, Instant::now()));
        }
    }

    /// Wakes waiters. Once another sync is requested, leaves the rest to the woken ones, since waking all takes as long
    /// as a sync.
    fn wake_ack_waiters(&self, ack: Ack) {
        let is_requested = || ack == Ack::Durable && lock(&self.staging).waiters() > 0;
        while !is_requested() {
            if !self.acks.wake_some() {
                return;
            }
        }
        if self.acks.has_pending_wakes() {
            self.timer.request_wakes();
        }
    }

    /// Gives up the pending batch when the journal closes and the disk fails: marks its records as lost.
    fn abandon_pending(&self, slot: &mut WriterSlot) {
        let Some(batch) = slot.writer.abandon() else { return };
        slot.has_abandoned = true;
        let first = batch.chunks.iter().find_map(|chunk| chunk.seqs()).map_or(batch.end, |(first, _)| first);
        self.acks.mark_lost(first..batch.end, Ack::Written);
        batch.chunks.into_iter().for_each(|chunk| self.budget.release(chunk));
    }

    fn update_progress(&self, slot: &WriterSlot) {
        let WriterSlot { writer, .. } = slot;
        let mut progress = lock(&self.progress);
        (progress.counts, progress.open_bytes) = (writer.counts, writer.open_bytes());
        (progress.is_open, progress.first_open) = (writer.is_open(), writer.first_open());
        if !writer.has_pending() {
            (progress.in_flight_bytes, progress.in_flight_oldest) = (0, None);
        }
    }

    /// Hands ended segments to the maintenance thread, which syncs and compresses them.
    fn hand_over_sealed(&self, writer: &mut SegmentWriter) {
        for range in writer.take_not_durable() {
            self.mark_not_durable(range);
        }
        let fresh = writer.take_sealed();
        if !writer.take_has_sealed() {
            return;
        }
        let mut sealed = lock(&self.sealed);
        sealed.extend(fresh);
        let many = sealed.len() > SEALED_MAX;
        drop(sealed);
        if many {
            self.sync_sealed();
        }
        if let Some(maintenance) = self.maintenance.get() {
            maintenance.unpark();
        }
    }

    /// Makes ended segments durable. A concurrent caller waits for the first one.
    pub(crate) fn sync_sealed(&self) {
        let mut sealed = lock(&self.sealed);
        while let Some(mut segment) = sealed.pop() {
            let sync_name = || if segment.is_named { Ok(()) } else { self.storage.sync_folder(&self.config.folder) };
            if let Err(error) = segment.file.sync().and_then(|()| sync_name()) {
                self.health.on_maintenance_failed(&segment.path, &error);
                if !segment.seqs.is_empty() {
                    self.mark_not_durable(segment.seqs);
                }
            }
        }
    }

    /// Marks written records as never durable.
    fn mark_not_durable(&self, seqs: Range<u64>) {
        lock(&self.progress).not_durable += seqs.end - seqs.start;
        self.acks.mark_lost(seqs, Ack::Durable);
    }

    pub(crate) fn first_seq(&self) -> u64 {
        self.first_seq
    }

    pub(crate) fn next_seq(&self) -> u64 {
        lock(&self.staging).next_seq()
    }

    pub(crate) fn is_displaced(&self, seq: u64) -> bool {
        lock(&self.staging).is_displaced(seq)
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.staging).is_closed()
    }

    pub(crate) fn progress(&self) -> WriteProgress {
        *lock(&self.progress)
    }

    /// The staged bytes, the time of the oldest staged record, and the counters of all classes.
    pub(crate) fn staged(&self) -> (usize, Option<Timestamp>, Vec<ClassCounters>) {
        let staging = lock(&self.staging);
        let (bytes, oldest) = staging.staged();
        (bytes, oldest, staging.counters().to_vec())
    }
}

/// Reduces the timer slack of the thread. The default of 50 µs lengthens sleeps of the duration of a fast sync by half.
fn reduce_timer_slack() {
    #[cfg(target_os = "linux")]
    const SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).expect("1000 is not zero");
    // Ignored: syncs wait a little longer for producers.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(Some(SLACK_NS));
}
