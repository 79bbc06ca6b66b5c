//! Opening, watching and closing.

use std::{
    fmt, fs,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    budget::Budget,
    clock::Clock,
    config::Config,
    error::{Lost, OpenError},
    folder::{self, Ownership},
    gap::Cause,
    health::{self, Event, Health, Listener},
    keeper::Keeper,
    note::{Ack, Class, Note},
    producer::{Acked, Producer, after},
    recovery::{self, Recovery},
    stats::{ClassStats, Stats},
    storage::{Disk, Storage},
    stripe::{Stripe, Surroundings},
    time::Time,
    waiting,
};

/// How long a journal that is dropped may take to write what it has.
const DROP_DEADLINE: Duration = Duration::from_secs(1);

/// What the handles of a journal share.
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) budget: Arc<Budget>,
    stripes: Box<[Arc<Stripe>]>,
    clock: Arc<Clock>,
    next_stripe: AtomicUsize,
}

impl Shared {
    pub(crate) fn stripe(&self, index: u16) -> &Stripe {
        &self.stripes[usize::from(index)]
    }

    /// What a note asks for, by itself or by its class.
    pub(crate) fn ack(&self, note: &Note<'_>) -> Ack {
        let class = self.config.classes.get(usize::from(note.class.index()));
        note.ack.or(class.map(|class| class.ack)).unwrap_or_default()
    }

    /// A deadline came that is nearer than the one that the clock waits for.
    pub(crate) fn wake_clock(&self) {
        self.clock.wake();
    }

    fn producer(self: &Arc<Self>, stripe: usize) -> Producer {
        Producer::new(Arc::clone(self), Arc::clone(&self.stripes[stripe % self.stripes.len()]))
    }

    /// Waits until everything accepted so far is as safe as that. `false`: the deadline came first.
    fn flush(&self, ack: Ack, deadline: Instant) -> Result<bool, Lost> {
        for stripe in &self.stripes {
            let Some(last) = stripe.next_seq().checked_sub(1) else { continue };
            let Some(result) = waiting::block_until(Acked::new(stripe, last, ack), Some(deadline)) else {
                return Ok(false);
            };
            // Of all, not of the last alone; each loss is told once.
            let has_lost = stripe.acks.take_untold(ack);
            result?;
            if has_lost {
                return Err(Lost);
            }
        }
        Ok(true)
    }
}

/// A journal that is open. See the documentation of the crate.
///
/// Dropping it closes it, with a deadline of one second; [`Journal::close`] says how it went.
pub struct Journal {
    shared: Arc<Shared>,
    health: Arc<Health>,
    keeper: Arc<Keeper>,
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// A thread tells that it has ended, the writers first. The lock only lets threads share the journal; closing has it alone.
    ended: Mutex<mpsc::Receiver<()>>,
    closed: bool,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("folder", &self.shared.config.folder).finish_non_exhaustive()
    }
}

/// How closing went, exactly.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CloseReport {
    /// Records and gaps of this journal's whole life, on disk or not.
    pub numbered: u64,
    /// Of these, what was handed to the operating system in time; the rest are [`unwritten`](Self::unwritten), or were
    /// displaced by younger ones.
    pub written: u64,
    /// Records that were accepted and did not reach the operating system: still in memory at the deadline.
    pub unwritten: u64,
    /// Records that were lost to overload and told in gap records.
    pub lost: u64,
    /// How long it took.
    pub took: Duration,
}

impl CloseReport {
    /// Whether every accepted record was written.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.unwritten == 0
    }
}

impl Journal {
    /// Opens the journal of a folder: takes the folder, repairs the end of what an earlier life left, and starts the
    /// writers. Trouble with the disk is reported on standard error.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(config: Config) -> Result<(Self, Recovery), OpenError> {
        Self::open_with(config, Arc::new(Disk), health::to_stderr)
    }

    /// [`open`](Self::open) with another place for segments, and with a listener that hears of trouble instead of standard
    /// error. The listener is called on the journal's threads and holds them up.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open_with(
        config: Config,
        storage: Arc<dyn Storage>,
        listener: impl Fn(&Event) + Send + Sync + 'static,
    ) -> Result<(Self, Recovery), OpenError> {
        config.check()?;
        folder::make(&config.folder).map_err(OpenError::io(&config.folder))?;
        let ownership = Ownership::take(&config.folder).map_err(OpenError::io(&config.folder))?;
        let Some(ownership) = ownership else { return Err(OpenError::Owned(config.folder)) };
        let (recovery, beginnings) = recovery::recover(&config)?;
        remove_unfinished(&config.folder);
        let ownership = Arc::new(ownership);
        let around = Surroundings {
            budget: Arc::new(Budget::new(config.bytes_max, config.chunk_bytes())),
            config: Arc::new(config),
            storage,
            health: Arc::new(Health::new(Box::new(listener) as Listener)),
            keeper: Arc::new(OnceLock::new()),
            clock: Arc::default(),
            ownership: Arc::downgrade(&ownership),
        };
        let stripe = |(index, beginning)| Arc::new(Stripe::new(index, &around, beginning));
        let stripes = (0..).zip(&beginnings).map(stripe).collect();
        Ok((Self::start(&around, stripes, &ownership).map_err(OpenError::Thread)?, recovery))
    }

    fn start(around: &Surroundings, stripes: Box<[Arc<Stripe>]>, ownership: &Arc<Ownership>) -> std::io::Result<Self> {
        let (config, health) = (Arc::clone(&around.config), Arc::clone(&around.health));
        let keeper = Arc::new(Keeper::new(Arc::clone(&config), Arc::clone(&health), stripes.clone()));
        let (budget, clock) = (Arc::clone(&around.budget), Arc::clone(&around.clock));
        let next_stripe = AtomicUsize::new(0);
        let shared = Arc::new(Shared { config, budget, stripes, clock, next_stripe });
        let (end, ended) = mpsc::channel();
        let stopped = Arc::new(AtomicBool::new(false));
        let mut journal =
            Self { shared, health, keeper, stopped, threads: Vec::new(), ended: Mutex::new(ended), closed: false };
        // An error drops the journal, which stops what was started.
        for stripe in &journal.shared.stripes.clone() {
            journal.threads.push(start_writer(stripe, Arc::clone(ownership), end.clone())?);
        }
        let (keeping, kept) = (Arc::clone(&journal.keeper), end.clone());
        let keeper = thread::Builder::new().name("journal-keep".to_owned()).spawn(move || {
            give_way();
            keeping.keep();
            let _ = kept.send(());
        })?;
        let _ = around.keeper.set(keeper.thread().clone());
        journal.threads.push(keeper);
        let stripes = journal.shared.stripes.clone();
        let clock = around.clock.start(&around.budget, stripes, Arc::clone(&journal.stopped), end)?;
        journal.threads.push(clock);
        Ok(journal)
    }

    /// A new producer, on the next stripe in turn.
    #[must_use]
    pub fn producer(&self) -> Producer {
        self.shared.producer(self.shared.next_stripe.fetch_add(1, Ordering::Relaxed))
    }

    /// A new producer on the stripe of a key, such as the number of a core: equal keys share a stripe, and so an order.
    #[must_use]
    pub fn producer_for(&self, key: usize) -> Producer {
        self.shared.producer(key)
    }

    /// The class of a name.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<Class> {
        let at = self.shared.config.classes.iter().position(|class| class.name == name)?;
        u8::try_from(at).ok().map(Class::new)
    }

    /// The configuration that it was opened with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Figures, without waiting for a disk.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shared = &self.shared;
        let mut stats = Stats::new(self.health.state(), self.health.last_error());
        stats.classes = shared.config.classes.iter().map(|class| ClassStats::named(&class.name)).collect();
        stats.blocked = shared.budget.waiting();
        (stats.reserved_bytes, stats.reserved_bytes_max) = (shared.budget.used(), shared.budget.used_max());
        stats.disk_bytes = self.keeper.disk.bytes.load(Ordering::Relaxed);
        stats.segments = self.keeper.disk.segments.load(Ordering::Relaxed);
        let mut oldest = None;
        for stripe in &shared.stripes {
            let time = stats.add(stripe);
            oldest = [oldest, time].into_iter().flatten().min();
        }
        stats.lag = oldest.map_or(Duration::ZERO, |oldest: Time| Time::now().since(oldest));
        stats
    }

    /// Waits until everything accepted so far is as safe as `ack` says. `false`: the deadline came first.
    ///
    /// # Errors
    /// [`Lost`] if the disk failed for good.
    pub fn flush(&self, ack: Ack, deadline: Duration) -> Result<bool, Lost> {
        self.shared.flush(ack, after(deadline))
    }

    /// Lets go of the open segments: what comes next goes to new ones. For a log rotation that renamed them. Whoever does
    /// not call this after a rename is found out within a second of the next write.
    pub fn reopen(&self) {
        self.shared.stripes.iter().for_each(|stripe| stripe.reopen());
    }

    /// After the program's own panic hook ran, waits up to `deadline` until everything is written.
    ///
    /// The hook stays for the life of the process, and does nothing after the journal was closed.
    pub fn flush_on_panic(&self, deadline: Duration) {
        let shared = Arc::downgrade(&self.shared);
        let next = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            next(panic);
            // A panic inside the journal must not wait for itself.
            if let Some(shared) = shared.upgrade().filter(|_| !crate::inside::is_inside()) {
                let _ = shared.flush(Ack::Written, after(deadline));
            }
        }));
    }

    /// Takes nothing more, writes what was accepted, ends the segments and syncs them; waits up to `deadline`.
    ///
    /// A disk that hangs cannot be interrupted: what it holds up is reported as unwritten, and the thread that waits for it
    /// ends when the disk answers. Until then the folder stays owned.
    pub fn close(mut self, deadline: Duration) -> CloseReport {
        self.finish(deadline)
    }

    fn finish(&mut self, deadline: Duration) -> CloseReport {
        self.closed = true;
        let begun = Instant::now();
        self.shared.stripes.iter().for_each(|stripe| stripe.close());
        self.shared.budget.dismiss();
        let writers = self.shared.stripes.len().min(self.threads.len());
        let in_time = self.have_ended(writers, begun, deadline);
        if !in_time {
            self.shared.stripes.iter().for_each(|stripe| stripe.abandon());
        }
        self.stop_threads(in_time, begun, deadline);
        let lost = self.stats().classes.iter().map(ClassStats::lost_in_all).sum();
        let mut report = CloseReport { numbered: 0, written: 0, unwritten: 0, lost, took: begun.elapsed() };
        for stripe in &self.shared.stripes {
            let (numbered, written) = (stripe.next_seq() - stripe.first_seq(), stripe.progress().written);
            let displaced: u64 = stripe.staged().2.iter().map(|books| books.lost[Cause::Oldest as usize]).sum();
            report.numbered += numbered;
            report.written += written;
            report.unwritten += numbered.saturating_sub(written + displaced);
        }
        report
    }

    /// Whether so many more threads end before the deadline.
    fn have_ended(&mut self, threads: usize, begun: Instant, deadline: Duration) -> bool {
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        (0..threads).all(|_| ended.recv_timeout(deadline.saturating_sub(begun.elapsed())).is_ok())
    }

    /// Threads that hang are left alone: they end by themselves.
    fn stop_threads(&mut self, in_time: bool, begun: Instant, deadline: Duration) {
        self.keeper.stop();
        self.stopped.store(true, Ordering::Release);
        self.threads.iter().for_each(|thread| thread.thread().unpark());
        let others = self.threads.len().saturating_sub(self.shared.stripes.len());
        // The keeper may hang as well: with the disk, or with whoever listens.
        let all = in_time && self.have_ended(others, begun, deadline);
        for thread in self.threads.drain(..).filter(|thread| all || thread.is_finished()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if !self.closed {
            self.finish(DROP_DEADLINE);
        }
    }
}

fn start_writer(
    stripe: &Arc<Stripe>,
    ownership: Arc<Ownership>,
    end: mpsc::Sender<()>,
) -> std::io::Result<JoinHandle<()>> {
    let name = format!("journal-write-{}", stripe.index);
    let writer = Arc::clone(stripe);
    let run = move || {
        crate::inside::enter(|| writer.write());
        // The folder was ours as long as somebody might write to it.
        drop(ownership);
        // Nobody may listen any more.
        let _ = end.send(());
    };
    let thread = thread::Builder::new().name(name).spawn(run)?;
    stripe.set_writer(thread.thread().clone());
    Ok(thread)
}

/// Packed segments that were not finished when the process ended.
fn remove_unfinished(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_ours = name.to_str().and_then(|name| name.strip_suffix(".part")).is_some_and(is_segment);
        if is_ours && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_segment(name: &str) -> bool {
    crate::segment::SegmentName::parse(name).is_some()
}

/// Everybody else goes before this thread. On Linux a priority is a thread's own; elsewhere it would be the process's.
fn give_way() {
    /// Half way to the least weight.
    #[cfg(target_os = "linux")]
    const NICE: i32 = 10;
    // Refused, it works as well with the weight that it has.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}
