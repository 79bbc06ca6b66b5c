//! One staging buffer, one segment, and the step that moves batches from the one to the other.

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

use crate::{
    acks::Acks,
    budget::{Budget, Credit},
    chunk::Chunk,
    clock::Clock,
    config::Config,
    folder::Ownership,
    frame::Framed,
    gap::Gap,
    health::Health,
    note::Ack,
    sink::{Beginning, Ended, Sink, SinkCounts},
    staging::{Batch, ClassBooks, Gather, Nudge, Outside, Pace, Patience, Room, Staging, Taken},
    storage::Storage,
    sync::{Mutex, lock, lock_crowded},
    time::Time,
};

/// How long after a failure the disk is tried again, at first and at last.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// What is taken from producers at a time. Larger writes cost no less per byte, and smaller batches return room sooner.
const BATCH_BYTES: usize = 1 << 20;
/// How many batches a producer writes at most in the writer's place before it lets go.
const HELP_TURNS: usize = 4;
/// How long it takes until one of many producers that were told asks again, if nothing else is to be done.
const COMES_BACK: Duration = Duration::from_nanos(700);
/// A sync of up to this is waited for once more while producers come; of a longer one, half.
const GATHER_SHORT: Duration = Duration::from_millis(2);
/// How long nobody may come until the next sync begins: a sixteenth of the last one's time, within these.
const QUIET: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// How many ended segments may wait for their sync before the writer does it itself.
const ENDED_MAX: usize = 4;

pub(crate) struct Stripe {
    pub(crate) index: u16,
    pub(crate) acks: Acks,
    staging: Mutex<Staging>,
    sink: Mutex<Writing>,
    /// Ended segments that are not synced.
    ended: Mutex<Vec<Ended>>,
    progress: Mutex<Progress>,
    writer: OnceLock<Thread>,
    reopen: AtomicBool,
    abandoned: AtomicBool,
    config: Arc<Config>,
    storage: Arc<dyn Storage>,
    budget: Arc<Budget>,
    health: Arc<Health>,
    keeper: Arc<OnceLock<Thread>>,
    clock: Arc<Clock>,
    /// Where this life began.
    first_seq: u64,
}

/// The segment, and what the writer remembers from one step to the next. Under a lock because producers that may block
/// write too.
struct Writing {
    sink: Sink,
    failures: u32,
    /// How many were told of the last sync or wait for the next one already, and when they were told.
    synced: Option<(usize, Instant)>,
}

/// What is in the writer's hands, for metrics that must not wait for a disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) counts: SinkCounts,
    pub(crate) is_open: bool,
    /// Segments of smaller numbers are not written to any more.
    pub(crate) first_open: u64,
    pub(crate) open_bytes: u64,
    pub(crate) in_flight_bytes: usize,
    pub(crate) in_flight_oldest: Option<Time>,
    /// Records and gaps that are written, and how many of them are durable.
    pub(crate) written: u64,
    pub(crate) durable: u64,
    /// Of those that are written, how many will never be called durable.
    doubtful: u64,
}

impl Progress {
    /// All that is written is durable, but for what is in doubt.
    fn settle(&mut self) {
        self.durable = self.written.saturating_sub(self.doubtful);
    }
}

/// What the writer does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Again,
    /// Sleep until woken, or for so long.
    Sleep(Option<Duration>),
    Ended,
}

/// What stripes share.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) config: Arc<Config>,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) health: Arc<Health>,
    pub(crate) keeper: Arc<OnceLock<Thread>>,
    pub(crate) clock: Arc<Clock>,
    /// Held by the threads that write, not by those who hold a producer.
    pub(crate) ownership: Weak<Ownership>,
}

impl Stripe {
    pub(crate) fn new(index: u16, around: &Surroundings, beginning: &Beginning) -> Self {
        let Surroundings { config, storage, budget, health, keeper, clock, ownership } = around.clone();
        let sink = Sink::new(Arc::clone(&config), Arc::clone(&storage), ownership, index, beginning);
        Self {
            index,
            acks: Acks::new(beginning.next_seq),
            staging: Mutex::new(Staging::new(config.classes.len(), beginning.next_seq)),
            sink: Mutex::new(Writing { sink, failures: 0, synced: None }),
            ended: Mutex::new(Vec::new()),
            progress: Mutex::new(Progress { first_open: beginning.next_number, ..Progress::default() }),
            writer: OnceLock::new(),
            reopen: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            config,
            storage,
            budget,
            health,
            keeper,
            clock,
            first_seq: beginning.next_seq,
        }
    }

    /// Who is woken when there is something to write.
    pub(crate) fn set_writer(&self, thread: Thread) {
        let _ = self.writer.set(thread);
    }

    #[inline]
    pub(crate) fn append(
        &self,
        framed: &Framed<'_>,
        ack: Ack,
        patience: Patience,
        credit: &mut Credit,
    ) -> Result<u64, Outside> {
        let room = Room { classes: &self.config.classes, budget: &self.budget, credit };
        let result = lock_crowded(&self.staging).append(framed, ack, patience, room);
        let (seq, nudge) = result?;
        if nudge != Nudge::None {
            self.heed(nudge);
        }
        Ok(seq)
    }

    #[cold]
    fn heed(&self, nudge: Nudge) {
        match nudge {
            Nudge::None => {}
            Nudge::Wake => self.unpark(),
            Nudge::Write => self.help(),
        }
    }

    fn unpark(&self) {
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    /// Writes in place of the writer, unless somebody does already.
    fn help(&self) {
        let Ok(mut writing) = self.sink.try_lock() else { return };
        for _ in 0..HELP_TURNS {
            if writing.sink.has_pending() {
                break;
            }
            let Some(batch) = lock(&self.staging).take_full(BATCH_BYTES) else { break };
            self.accept(&mut writing, batch);
            self.store(&mut writing);
        }
        let failed = writing.sink.has_pending();
        drop(writing);
        if failed {
            // It takes patience, which the writer has.
            self.unpark();
        } else if lock(&self.staging).has_full() {
            self.demand(Ack::Accepted);
        }
    }

    /// A record was lost at the door.
    pub(crate) fn lose(&self, gap: &Gap) {
        let nudge = lock(&self.staging).lose(gap);
        self.heed(nudge);
    }

    /// Everything staged shall be as safe as that.
    pub(crate) fn demand(&self, ack: Ack) {
        let nudge = lock(&self.staging).demand(ack);
        self.heed(nudge);
    }

    /// The next batch goes to a new segment.
    pub(crate) fn reopen(&self) {
        self.reopen.store(true, Ordering::Release);
        // Idle as it may be, the old segment is let go now.
        lock(&self.staging).wake();
        self.unpark();
    }

    pub(crate) fn close(&self) {
        let nudge = lock(&self.staging).close();
        self.heed(nudge);
        self.unpark();
    }

    /// What is not written by now is lost, whatever the disk does later: its waiters are told.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        let next = self.next_seq();
        self.acks.lose(self.acks.written()..next, Ack::Written);
        self.acks.lose(self.acks.durable()..next, Ack::Durable);
        self.unpark();
    }

    /// The body of the writer's thread.
    pub(crate) fn write(&self) {
        wake_in_time();
        loop {
            let step = self.step(&mut lock(&self.sink));
            match step {
                Step::Again => {}
                Step::Sleep(None) => std::thread::park(),
                Step::Sleep(Some(time)) => std::thread::park_timeout(time),
                Step::Ended => return,
            }
        }
    }

    /// Takes one batch and stores it.
    fn step(&self, writing: &mut Writing) -> Step {
        if self.reopen.swap(false, Ordering::AcqRel) {
            self.end(writing);
        }
        if !writing.sink.has_pending() {
            let taken = lock(&self.staging).take(&self.pace(writing), Instant::now());
            match taken {
                Taken::Batch(batch) => self.accept(writing, batch),
                Taken::Linger(time) => return Step::Sleep(Some(time)),
                Taken::Idle => return Step::Sleep(None),
                Taken::Ended => {
                    self.end(writing);
                    self.sync_ended();
                    return Step::Ended;
                }
            }
        }
        self.store(writing)
    }

    /// Lets go of the open segment.
    fn end(&self, writing: &mut Writing) {
        writing.sink.end();
        self.note(writing);
        self.hand_over(&mut writing.sink);
    }

    fn accept(&self, writing: &mut Writing, batch: Batch) {
        let mut progress = lock(&self.progress);
        progress.in_flight_bytes = batch.chunks.iter().map(|chunk| chunk.bytes().len()).sum();
        progress.in_flight_oldest = batch.chunks.iter().find_map(|chunk| chunk.times()).map(|(first, _)| first);
        drop(progress);
        writing.sink.accept(batch);
    }

    /// Producers that were just woken by a sync ask for the next one, one after the other as they come to run. A sync that
    /// began with the first of them would leave the others to the one after it, and each would serve a part only. So it
    /// waits for all of them and for those who asked meanwhile, as long as more of them come, and not for much of its own
    /// time. A disk that syncs faster than they come waits for nobody: while it works for some, the others come.
    fn pace(&self, writing: &Writing) -> Pace {
        let sync = writing.sink.counts.sync_time_last;
        let is_slow = |asks: usize| sync > COMES_BACK.saturating_mul(u32::try_from(asks).unwrap_or(u32::MAX));
        let gather = writing.synced.filter(|(asks, _)| *asks > 1 && is_slow(*asks)).map(|(asks, ended)| {
            let wait = (sync / 2).max(sync.min(GATHER_SHORT));
            Gather { asks, until: ended + wait, quiet: (sync / 16).clamp(QUIET.0, QUIET.1) }
        });
        Pace { linger: self.config.linger, bytes_max: BATCH_BYTES.min(self.config.bytes_max / 2), gather }
    }

    fn store(&self, writing: &mut Writing) -> Step {
        let stored = writing.sink.store();
        if writing.sink.take_anew() {
            self.health.anew(&self.config.folder);
        }
        match stored {
            Ok(Some(batch)) => {
                self.stored(writing, batch);
                Step::Again
            }
            Ok(None) => Step::Again,
            Err(trouble) => {
                let repeated = writing.failures > 0;
                writing.failures += 1;
                self.health.trouble(&trouble, repeated);
                self.note(writing);
                if self.abandoned.load(Ordering::Acquire) {
                    self.give_up(writing);
                    return Step::Again;
                }
                // The fresh segment after a poisoned one is tried at once.
                if trouble.poisoned && !repeated { Step::Again } else { Step::Sleep(Some(delay(writing.failures))) }
            }
        }
    }

    fn stored(&self, writing: &mut Writing, batch: Batch) {
        if writing.failures > 0 {
            writing.failures = 0;
            self.health.stored();
        }
        // Before the keeper looks at what has ended.
        self.note(writing);
        lock(&self.progress).written += batch.chunks.iter().map(Chunk::records).sum::<u64>();
        self.hand_over(&mut writing.sink);
        if batch.ask == Ack::Durable {
            self.sync_ended();
            lock(&self.progress).settle();
        }
        // First the room, so that whoever is told finds the books settled.
        batch.chunks.into_iter().for_each(|chunk| self.budget.give(chunk));
        self.acks.publish(batch.end, batch.ask);
        self.tell(batch.ask);
        if batch.ask == Ack::Durable {
            // From when on they can come back: to wake many takes as long as to sync.
            let asks = batch.asks + lock(&self.staging).asks();
            writing.synced = Some((asks, Instant::now()));
        }
    }

    /// Those who were told tell the others where a sync is asked for already, since to tell all takes as long as one.
    fn tell(&self, ack: Ack) {
        let is_asked = || ack == Ack::Durable && lock(&self.staging).asks() > 0;
        while !is_asked() {
            if !self.acks.tell() {
                return;
            }
        }
        if self.acks.has_called() {
            self.clock.mind_calls();
        }
    }

    /// The journal is being closed and the disk does not take the batch: its records are lost, and their waiters told.
    fn give_up(&self, writing: &mut Writing) {
        let Some(batch) = writing.sink.abandon() else { return };
        let first = batch.chunks.iter().find_map(|chunk| chunk.seqs()).map_or(batch.end, |(first, _)| first);
        self.acks.lose(first..batch.end, Ack::Written);
        batch.chunks.into_iter().for_each(|chunk| self.budget.give(chunk));
    }

    fn note(&self, writing: &Writing) {
        let Writing { sink, .. } = writing;
        let mut progress = lock(&self.progress);
        (progress.counts, progress.open_bytes) = (sink.counts, sink.open_bytes());
        (progress.is_open, progress.first_open) = (sink.is_open(), sink.first_open());
        if !sink.has_pending() {
            (progress.in_flight_bytes, progress.in_flight_oldest) = (0, None);
        }
    }

    /// Ended segments go to the keeper, who syncs and packs them.
    fn hand_over(&self, sink: &mut Sink) {
        for range in sink.take_unsafe() {
            self.doubt(range);
        }
        let fresh = sink.take_ended();
        if !sink.take_has_ended() {
            return;
        }
        let mut ended = lock(&self.ended);
        ended.extend(fresh);
        let many = ended.len() > ENDED_MAX;
        drop(ended);
        if many {
            self.sync_ended();
        }
        if let Some(keeper) = self.keeper.get() {
            keeper.unpark();
        }
    }

    /// Makes ended segments durable. Whoever comes second waits for the first.
    pub(crate) fn sync_ended(&self) {
        let mut ended = lock(&self.ended);
        while let Some(mut segment) = ended.pop() {
            let named = || if segment.named { Ok(()) } else { self.storage.sync_folder(&self.config.folder) };
            if let Err(error) = segment.file.sync().and_then(|()| named()) {
                self.health.upkeep(&segment.path, &error);
                if !segment.seqs.is_empty() {
                    self.doubt(segment.seqs);
                }
            }
        }
    }

    /// These are written, and will never be called durable.
    fn doubt(&self, seqs: Range<u64>) {
        lock(&self.progress).doubtful += seqs.end - seqs.start;
        self.acks.lose(seqs, Ack::Durable);
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

    pub(crate) fn progress(&self) -> Progress {
        *lock(&self.progress)
    }

    /// Bytes staged, the time of the oldest record among them, and the books of all classes.
    pub(crate) fn staged(&self) -> (usize, Option<Time>, Vec<ClassBooks>) {
        let staging = lock(&self.staging);
        let (bytes, oldest) = staging.staged();
        (bytes, oldest, staging.books().to_vec())
    }
}

/// A thread that sleeps for as long as a sync of a fast disk takes does not sleep half as long again, as it does by default.
fn wake_in_time() {
    #[cfg(target_os = "linux")]
    const SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).expect("it is more than nothing");
    // Refused, syncs wait a little longer for producers.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(Some(SLACK_NS));
}

fn delay(failures: u32) -> Duration {
    RETRY.0.saturating_mul(1 << failures.min(6)).min(RETRY.1)
}
