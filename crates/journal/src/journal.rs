//! Opens, monitors and closes a journal.

use std::{
    fmt, fs,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    blocking::{self, after},
    config::JournalConfig,
    error::{OpenError, RecordLost},
    folder::{self, FolderLock},
    gap_record::LossCause,
    health::{self, HealthMonitor, JournalEvent},
    journal_context::JournalContext,
    maintenance::Maintenance,
    observer::RecordObserver,
    producer::{AckFuture, Producer},
    producer_record::{Ack, Class},
    reader::ReaderPosition,
    recovery::{self, RecoveryReport},
    segment,
    segment_writer::StripeStart,
    stats::{ClassStats, JournalStats},
    storage::{FileStorage, Storage},
    stripe::{Stripe, StripeContext},
    timestamp::Timestamp,
    write_watch::WriteWatch,
};

/// How long dropping a journal may take to write accepted records.
const DROP_DEADLINE: Duration = Duration::from_secs(1);

/// An open journal. See the crate documentation.
///
/// Dropping it closes it with a deadline of one second; [`Journal::close`] returns a report.
pub struct Journal {
    context: Arc<JournalContext>,
    health: Arc<HealthMonitor>,
    maintenance: Arc<Maintenance>,
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Receives a message from each thread that has ended, the writers first. The lock only makes `Journal` `Sync`;
    /// closing has exclusive access.
    ended: Mutex<mpsc::Receiver<()>>,
    closed: bool,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("folder", &self.context.config.folder).finish_non_exhaustive()
    }
}

/// The result of closing a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CloseReport {
    /// Records and gaps that got a sequence number since the journal was opened.
    pub numbered: u64,
    /// The number of these written to the operating system in time. The others are [`unwritten`](Self::unwritten) or
    /// were displaced by newer records.
    pub written: u64,
    /// Accepted records that were not written to the operating system by the deadline.
    pub unwritten: u64,
    /// Records lost to overload and counted in gap records.
    pub lost: u64,
    /// The duration of closing.
    pub elapsed: Duration,
}

impl CloseReport {
    /// Whether every accepted record was written.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.unwritten == 0
    }
}

impl Journal {
    /// Opens the journal of a folder: locks the folder, truncates a partial record at the end of the log, and starts the
    /// writer threads. The newest segment is continued if it is undamaged, has room and is younger than
    /// [`segment_age`](JournalConfig::segment_age); a ring begins a new one. Events are printed on standard error.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the configuration is invalid, the folder is in use, or the folder cannot be read or
    /// written.
    pub fn open(config: JournalConfig) -> Result<(Self, RecoveryReport), OpenError> {
        Self::open_with(config, Arc::new(FileStorage), health::to_stderr)
    }

    /// Like [`open`](Self::open), with another storage for segments and a listener for events. The journal's threads call
    /// the listener and wait for it.
    ///
    /// # Errors
    /// Returns [`OpenError`] as [`open`](Self::open) does.
    pub fn open_with(
        config: JournalConfig,
        storage: Arc<dyn Storage>,
        listener: impl Fn(&JournalEvent) + Send + Sync + 'static,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        Self::open_observed(config, storage, listener, None)
    }

    /// Like [`open_with`](Self::open_with), with an observer of all records.
    ///
    /// # Errors
    /// Returns [`OpenError`] as [`open`](Self::open) does.
    pub fn open_observed(
        config: JournalConfig,
        storage: Arc<dyn Storage>,
        listener: impl Fn(&JournalEvent) + Send + Sync + 'static,
        observer: Option<Arc<dyn RecordObserver>>,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        config.check()?;
        folder::create(&config.folder).map_err(OpenError::io(&config.folder))?;
        let folder_lock = FolderLock::acquire(&config.folder).map_err(OpenError::io(&config.folder))?;
        let Some(folder_lock) = folder_lock else { return Err(OpenError::InUse(config.folder)) };
        let (recovery, starts) = recovery::recover(&config)?;
        remove_unfinished(&config.folder);
        let folder_lock = Arc::new(folder_lock);
        let used = segment::bytes_on_disk(&config.folder, &config.name).map_err(OpenError::io(&config.folder))?;
        let mut context = StripeContext::new(config, storage, Box::new(listener), observer, used);
        context.folder_lock = Arc::downgrade(&folder_lock);
        let journal = Self::start(&context, &starts, Some(&folder_lock)).map_err(OpenError::Thread)?;
        Ok((journal, recovery))
    }

    /// Starts a journal without files: each record is passed to the observer, and then forgotten. The folder of the
    /// configuration is not used. Bounds of memory and overload policies apply as with files; an acknowledgement of any level
    /// means that the observer had the record.
    ///
    /// # Errors
    /// [`OpenError::Config`] and [`OpenError::Thread`].
    pub fn in_memory(config: JournalConfig, observer: Arc<dyn RecordObserver>) -> Result<Self, OpenError> {
        config.check()?;
        let listener = Box::new(health::to_stderr);
        let mut context = StripeContext::new(config, Arc::new(FileStorage), listener, Some(observer), 0);
        context.is_in_memory = true;
        let start = StripeStart { next_number: 1, ..StripeStart::default() };
        let starts = vec![start; context.config.stripes];
        Self::start(&context, &starts, None).map_err(OpenError::Thread)
    }

    fn start(
        stripe_context: &StripeContext,
        starts: &[StripeStart],
        folder_lock: Option<&Arc<FolderLock>>,
    ) -> std::io::Result<Self> {
        let stripe = |(index, start)| Arc::new(Stripe::new(index, stripe_context, start));
        let stripes: Box<[_]> = (0..).zip(starts).map(stripe).collect();
        let (config, health) = (Arc::clone(&stripe_context.config), Arc::clone(&stripe_context.health));
        let disk_bound = Arc::clone(&stripe_context.disk_bound);
        let maintenance = Maintenance::new(Arc::clone(&config), Arc::clone(&health), disk_bound, stripes.clone());
        let maintenance = Arc::new(maintenance);
        let (budget, timer) = (Arc::clone(&stripe_context.budget), Arc::clone(&stripe_context.timer));
        let next_stripe = AtomicUsize::new(0);
        let context = Arc::new(JournalContext { config, budget, stripes, timer, next_stripe });
        let (end, ended) = mpsc::channel();
        let stopped = Arc::new(AtomicBool::new(false));
        let mut journal = Self {
            context,
            health,
            maintenance,
            stopped,
            threads: Vec::new(),
            ended: Mutex::new(ended),
            closed: false,
        };
        // An error drops the journal, which stops the threads that were started.
        for stripe in &journal.context.stripes.clone() {
            journal.threads.push(start_writer(stripe, folder_lock.cloned(), end.clone())?);
        }
        if folder_lock.is_some() {
            let (maintaining, kept) = (Arc::clone(&journal.maintenance), end.clone());
            let maintenance = thread::Builder::new().name("journal-run".to_owned()).spawn(move || {
                lower_priority();
                maintaining.run();
                let _ = kept.send(());
            })?;
            let _ = stripe_context.maintenance.set(maintenance.thread().clone());
            journal.threads.push(maintenance);
        }
        let stripes = journal.context.stripes.clone();
        let wake_all = move || stripes.iter().for_each(|stripe| while stripe.acks.wake_some() {});
        let timer = stripe_context.timer.start(&stripe_context.budget, wake_all, Arc::clone(&journal.stopped), end)?;
        journal.threads.push(timer);
        Ok(journal)
    }

    /// Creates a producer on the next stripe (round robin).
    #[must_use]
    pub fn producer(&self) -> Producer {
        self.producer_on(self.context.next_stripe.fetch_add(1, Ordering::Relaxed))
    }

    /// Creates a producer on the stripe of a key, such as the number of a core: equal keys share a stripe, and so an
    /// order.
    #[must_use]
    pub fn producer_for(&self, key: usize) -> Producer {
        self.producer_on(key)
    }

    fn producer_on(&self, stripe: usize) -> Producer {
        let stripes = &self.context.stripes;
        Producer::new(Arc::clone(&self.context), Arc::clone(&stripes[stripe % stripes.len()]))
    }

    /// The class with a name.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<Class> {
        let at = self.context.config.classes.iter().position(|class| class.name == name)?;
        u8::try_from(at).ok().map(Class::new)
    }

    /// The configuration of the journal.
    #[must_use]
    pub fn config(&self) -> &JournalConfig {
        &self.context.config
    }

    /// The current statistics. Does not wait for the disk.
    #[must_use]
    pub fn stats(&self) -> JournalStats {
        let context = &self.context;
        let mut stats = JournalStats::new(self.health.state(), self.health.last_error());
        stats.classes = context.config.classes.iter().map(|class| ClassStats::named(&class.name)).collect();
        stats.blocked = context.budget.waiting();
        (stats.reserved_bytes, stats.reserved_bytes_max) = (context.budget.used(), context.budget.used_max());
        stats.disk_bytes = self.maintenance.disk_usage.bytes.load(Ordering::Relaxed);
        stats.segments = self.maintenance.disk_usage.segments.load(Ordering::Relaxed);
        let mut oldest = None;
        for stripe in &context.stripes {
            let time = stats.add(stripe);
            oldest = [oldest, time].into_iter().flatten().min();
        }
        stats.lag = oldest.map_or(Duration::ZERO, |oldest: Timestamp| Timestamp::now().since(oldest));
        stats
    }

    /// Waits until every record accepted so far reaches `ack`. `false`: the deadline came first.
    ///
    /// # Errors
    /// Returns [`RecordLost`] if a record was lost.
    pub fn flush(&self, ack: Ack, deadline: Duration) -> Result<bool, RecordLost> {
        flush(&self.context, ack, after(deadline))
    }

    /// Releases the records before a position: segments that hold only released records are removed in the background,
    /// and appends that wait for room continue. Only with
    /// [`SegmentPolicy::UntilReleased`](crate::SegmentPolicy::UntilReleased); otherwise the call has no effect.
    ///
    /// The segment of the position stays, so that a reader can be opened at the position. A release is not recorded on the
    /// disk: after a crash, segments that were released and not yet removed are there again.
    pub fn release(&self, before: &ReaderPosition) {
        self.maintenance.release(before);
        // The maintenance thread was started after the writers.
        if let Some(maintenance) = self.threads.get(self.context.stripes.len()) {
            maintenance.thread().unpark();
        }
    }

    /// Watches for written records, for a reader that follows this journal.
    #[must_use]
    pub fn watch(&self) -> WriteWatch {
        WriteWatch::new(Arc::clone(&self.context))
    }

    /// Ends the open segments that were renamed or removed; the next records go to new ones. Call it after a log
    /// rotation. Without the call, a rename is detected within a second of the next write.
    pub fn reopen(&self) {
        self.context.stripes.iter().for_each(|stripe| stripe.reopen());
    }

    /// Installs a panic hook that first calls the previous hook, then waits up to `deadline` until all records are
    /// written.
    ///
    /// The hook stays installed for the life of the process, and does nothing after the journal was closed.
    pub fn flush_on_panic(&self, deadline: Duration) {
        let context = Arc::downgrade(&self.context);
        let next = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            next(panic);
            // A panic in the journal's own code must not wait for the journal.
            if let Some(context) = context.upgrade().filter(|_| !crate::reentrancy::is_active()) {
                let _ = flush(&context, Ack::Written, after(deadline));
            }
        }));
    }

    /// Rejects further records, writes the accepted ones, then ends and syncs the segments. Waits up to `deadline`.
    ///
    /// A hanging disk cannot be interrupted: records held up by it are reported as unwritten, and the writer thread ends
    /// when the disk responds. Until then the folder stays locked.
    pub fn close(mut self, deadline: Duration) -> CloseReport {
        self.finish(deadline)
    }

    fn finish(&mut self, deadline: Duration) -> CloseReport {
        self.closed = true;
        let begun = Instant::now();
        self.context.stripes.iter().for_each(|stripe| stripe.close());
        self.context.budget.release_all();
        let writers = self.context.stripes.len().min(self.threads.len());
        let in_time = self.have_ended(writers, begun, deadline);
        if !in_time {
            self.context.stripes.iter().for_each(|stripe| stripe.abandon());
        }
        self.stop_threads(in_time, begun, deadline);
        let lost = self.stats().classes.iter().map(ClassStats::lost_total).sum();
        let mut report = CloseReport { numbered: 0, written: 0, unwritten: 0, lost, elapsed: begun.elapsed() };
        for stripe in &self.context.stripes {
            let (numbered, written) = (stripe.next_seq() - stripe.first_seq(), stripe.progress().written);
            let displaced: u64 =
                stripe.staged().2.iter().map(|counters| counters.lost[LossCause::Oldest as usize]).sum();
            report.numbered += numbered;
            report.written += written;
            report.unwritten += numbered.saturating_sub(written + displaced);
        }
        report
    }

    /// Whether `threads` more threads end before the deadline.
    fn have_ended(&mut self, threads: usize, begun: Instant, deadline: Duration) -> bool {
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        (0..threads).all(|_| ended.recv_timeout(deadline.saturating_sub(begun.elapsed())).is_ok())
    }

    /// Stops the threads; does not join threads that hang, which end by themselves.
    fn stop_threads(&mut self, in_time: bool, begun: Instant, deadline: Duration) {
        self.maintenance.stop();
        self.stopped.store(true, Ordering::Release);
        self.threads.iter().for_each(|thread| thread.thread().unpark());
        let others = self.threads.len().saturating_sub(self.context.stripes.len());
        // The maintenance thread may hang as well: on the disk, or in the listener.
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

/// Waits until every record accepted so far reaches `ack`. `false`: the deadline came first.
fn flush(context: &JournalContext, ack: Ack, deadline: Instant) -> Result<bool, RecordLost> {
    for stripe in &context.stripes {
        let Some(last) = stripe.next_seq().checked_sub(1) else { continue };
        let Some(result) = blocking::block_until(AckFuture::new(stripe, last, ack), Some(deadline)) else {
            return Ok(false);
        };
        // Covers all records, not only the last one; each loss is reported once.
        let has_lost = stripe.acks.take_unreported_loss(ack);
        result?;
        if has_lost {
            return Err(RecordLost);
        }
    }
    Ok(true)
}

fn start_writer(
    stripe: &Arc<Stripe>,
    folder_lock: Option<Arc<FolderLock>>,
    end: mpsc::Sender<()>,
) -> std::io::Result<JoinHandle<()>> {
    let name = format!("journal-write-{}", stripe.index);
    let writer = Arc::clone(stripe);
    let run = move || {
        crate::reentrancy::enter(|| writer.write());
        // The lock is held as long as this thread may write to the folder.
        drop(folder_lock);
        // The receiver may be gone.
        let _ = end.send(());
    };
    let thread = thread::Builder::new().name(name).spawn(run)?;
    stripe.set_writer(thread.thread().clone());
    Ok(thread)
}

/// Removes compressed segments that were unfinished when the process ended.
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

/// Lowers the priority of the current thread. Linux has priorities per thread; elsewhere the call would affect the
/// process.
fn lower_priority() {
    /// The middle of the nice range above 0.
    #[cfg(target_os = "linux")]
    const NICE: i32 = 10;
    // Ignored: the thread works at normal priority as well.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}
