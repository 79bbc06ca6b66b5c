//! A whole gateway: threads, listeners, signals, reload, shutdown.

mod activation;
mod duties;
mod ending;
mod files;
mod handover;
mod process;
mod reloads;
mod sockets;
mod streams;

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tidegate_link::{IoMode, Listener, Reactor, ReactorConfig};
use tidegate_supervise::{Exits, Tokio};
use tokio::signal::unix::{Signal, SignalKind, signal};

use tidegate_admin::{console, http};
use tidegate_config::{Config, ConfigErrors, Dialect, Finding, Io, Severity, pgbouncer::UNREAD_USERS};
use tidegate_logging as log;
use tidegate_pg_client::resolve::Resolver;
use tidegate_proxy::{
    client, listen,
    plane::{Gateway, Mailbox, Phase, ReloadReply, Setup, SetupError, Worker},
};
use tidegate_query_log::record::Archive;
use tidegate_streams::Fleet;
use tidegate_tasks::Ear;

use crate::cli;

use activation::Activated;
use ending::Names;
use handover::{Goods, Predecessor};
use process::PidFile;
use reloads::Reloads;
use sockets::Sockets;

/// A gateway that runs, for the binary and for tests.
pub struct Running {
    gateway: Arc<Gateway>,
    threads: Vec<JoinHandle<()>>,
    listeners: Vec<Listener>,
    /// What flows beside the queries.
    streams: Fleet,
    /// The command line, for reading the configuration again.
    source: cli::Run,
    /// What had ended when the shutdown began.
    exits_before: Option<Exits>,
    _pid_file: Option<PidFile>,
}

/// `tidegate run`.
///
/// # Errors
/// When the configuration cannot be used, or the gateway cannot start.
pub fn main(run: &cli::Run) -> anyhow::Result<()> {
    let config = run.config().map_err(|errors| anyhow::anyhow!("the configuration cannot be used\n\n{errors}"))?;
    process::become_user(&config.runtime.user)?;
    if run.bouncer.as_ref().is_some_and(|bouncer| bouncer.daemon) {
        if config.runtime.pid_file.as_os_str().is_empty() {
            anyhow::bail!("-d needs a pid file: add pidfile = /path/to/tidegate.pid");
        }
        if !process::is_background() {
            return process::go_to_background();
        }
        process::leave_terminal();
    }
    let activated = Activated::take()?;
    let log = log::init(&config.log)?;
    say(&config.warnings);
    let control = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let ended = control.block_on(async {
        // Before anybody can see that the process is there: a SIGHUP that nobody hears would end it.
        let signals = Signals::hear()?;
        let running = start(config, run.clone(), log, activated)?;
        running.until_stopped(signals).await
    });
    // Whatever still runs on a thread that may block, nobody waits for it any more.
    control.shutdown_timeout(STOP_ABORT);
    ended
}

/// What keeps a gateway with this configuration from starting on this machine, as errors for `tidegate check`: files that
/// cannot be used, users and groups that do not exist.
#[must_use]
pub fn refusals(config: &Config) -> Vec<Finding> {
    let mut refusals: Vec<Finding> = Setup::errors(config).iter().map(SetupError::finding).collect();
    let (user, group) = (&config.runtime.user, &config.listen.unix_socket_group);
    if !user.is_empty() && !process::is_account(user) {
        let reason = format!("runtime.user: there is no user `{user}` on this machine");
        refusals.push(Finding::in_file("/etc/passwd", 1, "runtime.user", reason));
    }
    if !group.is_empty() && process::group(group).is_none() {
        let reason = format!("listen.unix_socket_group: there is no group `{group}` on this machine");
        refusals.push(Finding::in_file("/etc/group", 1, "listen.unix_socket_group", reason));
    }
    refusals
}

/// `tidegate stream`; with the exit status.
///
/// # Errors
/// When the streams cannot be read or started.
pub fn stream(stream: &cli::Stream) -> anyhow::Result<std::process::ExitCode> {
    let cli::Streams { streams, config, log } = stream.streams().map_err(|text| anyhow::anyhow!("{text}"))?;
    log::init(&log)?;
    tidegate_streams::standalone::run(&streams, config.as_ref(), stream.quiet)
}

/// `tidegate demo`.
///
/// # Errors
/// What the demo says.
pub fn demo(demo: &cli::Demo) -> anyhow::Result<()> {
    crate::demo::run(demo)
}

/// The signals that the gateway follows.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    pause: Signal,
    resume: Signal,
}

impl Signals {
    fn hear() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            pause: signal(SignalKind::user_defined1())?,
            resume: signal(SignalKind::user_defined2())?,
        })
    }
}

fn start(config: Config, source: cli::Run, log: log::Handle, activated: Activated) -> anyhow::Result<Running> {
    files::raise_limit(&config);
    let takes_over = source.takes_over() && !activated.is_some();
    let mut predecessor = if takes_over { Predecessor::meet(&config)? } else { None };
    let mut pid_file = if predecessor.is_none() { PidFile::claim(&config.runtime.pid_file)? } else { None };
    let sockets = Sockets::open(&config, activated, predecessor.as_mut())?;
    let workers = match config.runtime.workers {
        // Few busy threads take more messages per system call than many idle ones: see docs/src/internals/decisions/workers.md.
        0 => std::thread::available_parallelism().map_or(1, |cores| usize::from(cores).div_ceil(2)),
        workers => usize::from(workers),
    };
    let mode = match config.runtime.io {
        Io::Auto => IoMode::Auto,
        Io::IoUring => IoMode::IoUring,
        Io::Epoll => IoMode::Epoll,
    };
    let setup = Setup::new(config)?;
    let resolver = Resolver::new(tokio::runtime::Handle::current()).with(&setup.config.dns);
    let mut gateway = Gateway::new(setup, workers, resolver)?;
    gateway.archive = Archive::open(&gateway.config.setup().config.journal)?;
    gateway.config.log = Some(log);
    gateway.config.set_file(source.file().map(absolute));
    let gateway = Arc::new(gateway);
    let Workers { threads, starts } = spawn_workers(&gateway, workers, mode, &sockets.listeners)?;
    // Before anybody is let in, who might ask for them.
    let streams = streams::start(&gateway)?;
    for start in starts {
        // A thread that has ended meanwhile has said so.
        let _ = start.send(());
    }
    sockets.announce();
    let copies = sockets.metrics.iter().map(|socket| socket.try_clone().map(Into::into));
    let metrics = copies.collect::<std::io::Result<Vec<OwnedFd>>>()?;
    let scrapes = http::serve(&gateway, sockets.metrics)?;
    let listeners = sockets.listeners;
    let door = predecessor.as_mut().and_then(Predecessor::take_door);
    handover::open(&gateway, Goods { listeners: listeners.clone(), metrics, scrapes }, door);
    if let Some(predecessor) = predecessor {
        if let Err(error) = predecessor.release() {
            // Its sockets are here in any case.
            tracing::warn!(%error, "the process that ran before has gone meanwhile");
        }
        tracing::info!("took over from the process that ran before");
        pid_file = PidFile::replace(&gateway.config.setup().config.runtime.pid_file)?;
    }
    process::announce_ready();
    Ok(Running { gateway, threads, listeners, streams, source, exits_before: None, _pid_file: pid_file })
}

/// The threads of the data plane. Each waits for its word to start, and ends if none will come.
struct Workers {
    threads: Vec<JoinHandle<()>>,
    starts: Vec<mpsc::Sender<()>>,
}

/// Makes the threads of the data plane, and waits until all have their event loop.
fn spawn_workers(
    gateway: &Arc<Gateway>,
    workers: usize,
    mode: IoMode,
    listeners: &[Listener],
) -> anyhow::Result<Workers> {
    let (ready, arrivals) = mpsc::channel();
    let mut threads = Vec::new();
    let mut starts = Vec::new();
    for index in 0..workers {
        let (start, started) = mpsc::channel::<()>();
        let (gateway, ready, listeners) = (gateway.clone(), ready.clone(), listeners.to_vec());
        let body = move || work(index, mode, &gateway, listeners, &ready, &started);
        threads.push(std::thread::Builder::new().name(format!("worker-{index}")).spawn(body)?);
        starts.push(start);
    }
    drop(ready);
    let mut mailboxes: Vec<Option<Arc<Mailbox>>> = (0..workers).map(|_| None).collect();
    for _ in 0..workers {
        let (index, mailbox) = arrivals.recv().context("a worker thread ended while it started")?;
        let (mailbox, mode) = mailbox.context("cannot start a worker thread")?;
        tracing::debug!(worker = index, io = ?mode, "worker started");
        mailboxes[index] = Some(mailbox);
    }
    gateway.set_workers(mailboxes.into_iter().flatten().collect());
    Ok(Workers { threads, starts })
}

type Arrival = (usize, std::io::Result<(Arc<Mailbox>, IoMode)>);

/// The body of a worker thread.
fn work(
    index: usize,
    mode: IoMode,
    gateway: &Arc<Gateway>,
    listeners: Vec<Listener>,
    ready: &mpsc::Sender<Arrival>,
    started: &mpsc::Receiver<()>,
) {
    let settings = ReactorConfig { mode, ..ReactorConfig::default() };
    let reactor = match Reactor::new(&settings) {
        Ok(reactor) => reactor,
        Err(error) => {
            let _ = ready.send((index, Err(error)));
            return;
        }
    };
    let mailbox = Arc::new(Mailbox::new(reactor.waker()));
    let _ = ready.send((index, Ok((mailbox.clone(), reactor.mode()))));
    if started.recv().is_err() {
        return;
    }
    let worker = Worker::new(index, reactor, gateway.clone(), mailbox, console::serve);
    // The thread keeps none of them: whoever keeps one keeps the kernel from refusing connections.
    for (number, listener) in listeners.into_iter().enumerate() {
        let ear = Ear::Clients { thread: index, listener: number };
        if let Err(error) = listen::start(&worker, listener, ear) {
            tracing::error!(worker = index, %error, "cannot accept on this thread");
        }
    }
    if let Err(error) = worker.run(client::start) {
        tracing::error!(worker = index, %error, "the event loop failed");
    }
}

impl Running {
    /// What its threads share.
    #[must_use]
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Follows signals and the console until the gateway is to end; then ends it.
    async fn until_stopped(mut self, signals: Signals) -> anyhow::Result<()> {
        let Signals { mut hangup, mut terminate, mut interrupt, mut quit, mut pause, mut resume } = signals;
        let mut reloads = Reloads::new(self.gateway.config.take_reloads().context("a gateway is run once")?);
        duties::start(&self.gateway);
        self.gateway.open_kept_pools();
        let mut stops_since = None;
        loop {
            let gateway = self.gateway.clone();
            let phase = gateway.lifecycle.phase();
            if !phase.goes_on() {
                stops_since.get_or_insert_with(Instant::now);
                self.close_listeners().await;
            }
            tokio::select! {
                _ = hangup.recv() => self.hang_up(&mut reloads),
                (reply, outcome) = reloads.next(&gateway, &self.source) => self.reloaded(reply, outcome),
                _ = terminate.recv() => self.escalate("SIGTERM", Phase::WaitingForClients),
                _ = interrupt.recv() => self.escalate("SIGINT", Phase::WaitingForTransactions),
                _ = quit.recv() => self.escalate("SIGQUIT", Phase::Stopping),
                _ = pause.recv() => self.pause(),
                _ = resume.recv() => self.resume(),
                () = drained(&gateway, &self.streams, phase, stops_since) => break,
                () = gateway.lifecycle.phase_changed.notified() => {}
            }
        }
        self.stop().await
    }

    /// The first signal says what to wait for, the second ends the wait.
    fn escalate(&self, signal: &str, wanted: Phase) {
        let phase = self.gateway.change_phase(|phase| match phase {
            Phase::Active | Phase::Paused | Phase::Suspended => wanted,
            Phase::WaitingForClients if wanted == Phase::WaitingForTransactions => wanted,
            _ => Phase::Stopping,
        });
        process::notify("STOPPING=1");
        let what = match phase {
            Phase::WaitingForClients => "shutting down, waiting for all clients disconnect",
            Phase::WaitingForTransactions => "shutting down, waiting for all servers connections to be released",
            _ => "fast exit",
        };
        self.say_got(signal, what);
        tracing::info!(?phase, clients = self.gateway.clients.count(), "shutting down");
    }

    /// What PgBouncer's log says of a signal, if its words are wanted.
    fn say_got(&self, signal: &str, what: &str) {
        if self.gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer {
            tracing::info!("got {signal}, {what}");
        }
    }

    /// SIGUSR1, as PAUSE in the console.
    fn pause(&self) {
        if self.gateway.lifecycle.phase() == Phase::Active {
            self.say_got("SIGUSR1", "pausing all activity");
            tracing::info!("paused by a signal");
            self.gateway.pause(None);
        }
    }

    /// SIGUSR2, as RESUME.
    fn resume(&self) {
        if self.gateway.lifecycle.holds_all() {
            self.say_got("SIGUSR2", "continuing from PAUSE");
            tracing::info!("resumed by a signal");
            self.gateway.resume(None);
        }
    }

    /// From here on the kernel refuses connections, so that clients turn to another gateway at once.
    async fn close_listeners(&mut self) {
        self.exits_before.get_or_insert_with(|| ending::exits(&self.gateway));
        self.streams.board().stop();
        if self.listeners.is_empty() {
            return;
        }
        self.listeners.clear();
        self.gateway.lifecycle.listen_scope.stop(Tokio::current(), STOP_GRACE, STOP_ABORT).await;
        // Clients that were accepted last are with their threads by now, and counted.
        self.gateway.ask_all(|_| ()).await;
        tracing::info!("no longer listening");
    }

    /// SIGHUP: a log rotation has renamed files, or the configuration has changed.
    fn hang_up(&self, reloads: &mut Reloads) {
        self.say_got("SIGHUP", "re-reading config");
        if let Some(archive) = &self.gateway.archive {
            archive.reopen();
        }
        if let Some(log) = &self.gateway.config.log {
            log.follow(&self.gateway.config.setup().config.log);
        }
        reloads.ask();
    }

    /// The configuration was read again. A bad one has changed nothing; the reason is logged and given back.
    fn reloaded(&mut self, reply: Option<ReloadReply>, outcome: anyhow::Result<()>) {
        let outcome = self.adopt(outcome);
        if let Some(reply) = reply {
            // Whoever asked may have left.
            let _ = reply.send(outcome);
        }
    }

    fn adopt(&mut self, outcome: anyhow::Result<()>) -> Result<(), String> {
        let reloaded = outcome.map_err(|error| {
            match error.downcast_ref::<ConfigErrors>() {
                Some(errors) => {
                    say(errors.findings());
                    tracing::error!("reload failed, the old configuration stays in force");
                }
                None => tracing::error!("reload failed, the old configuration stays in force: {error:#}"),
            }
            outline(&error, self.gateway.config.file().as_deref())
        });
        reloaded?;
        if !self.gateway.lifecycle.phase().goes_on() {
            return Ok(());
        }
        streams::adopt(&mut self.streams, &self.gateway).map_err(|error| {
            tracing::error!("{error:#}");
            "the streams cannot be started; the rest is in force".to_owned()
        })
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.gateway.change_phase(|_| Phase::Stopping);
        self.close_listeners().await;
        // What has not ended by now has no time left; what it did not commit comes again.
        self.streams.abort(STOP_ABORT).await;
        let names = Names::gather(&self.gateway);
        let mut report = self.gateway.lifecycle.scope.stop(Tokio::current(), STOP_GRACE, STOP_ABORT).await;
        // Listeners, clients and streams may have been stopped before, each in its turn.
        report.exits = ending::exits(&self.gateway) - self.exits_before.take().unwrap_or_default();
        names.log(&report);
        drop(self.streams);
        for worker in self.gateway.workers() {
            worker.visit(|worker| worker.stop());
        }
        let (threads, gateway) = (self.threads, self.gateway.clone());
        let joined = tokio::task::spawn_blocking(move || {
            if !ending::joined(&threads, STOP_GRACE) {
                tracing::error!("a worker thread hangs, and is left alone");
            }
            // Last: no thread hands anything in any more.
            let deadline = gateway.config.setup().config.journal.close_timeout;
            if let Some(archive) = &gateway.archive {
                archive.close(deadline);
            }
        });
        joined.await.context("waiting for the worker threads")?;
        tracing::info!("stopped");
        Ok(())
    }
}

/// Completes when the gateway may end, given what the operator wants, and since when it is about to end.
async fn drained(gateway: &Arc<Gateway>, streams: &Fleet, phase: Phase, since: Option<Instant>) {
    match phase {
        Phase::Active | Phase::Paused | Phase::Suspended => std::future::pending().await,
        Phase::Stopping => {}
        Phase::WaitingForClients => {
            let limit = gateway.config.setup().config.timeouts.shutdown;
            // From the beginning of the stop: whatever happens meanwhile does not prolong it.
            let rest = limit.saturating_sub(since.map_or(Duration::ZERO, |since| since.elapsed()));
            if limit.is_zero() {
                no_clients(gateway, streams).await;
            } else if tokio::time::timeout(rest, no_clients(gateway, streams)).await.is_err() {
                tracing::warn!(clients = gateway.clients.count(), "timeouts.shutdown is over");
            }
        }
        Phase::WaitingForTransactions => {
            // They are clients as well, and what they deliver may take several transactions.
            streams::ended(streams).await;
            // Each client is told to leave, and does so when it has no transaction open.
            gateway.lifecycle.client_scope.stop(Tokio::current(), TRANSACTIONS_GRACE, STOP_ABORT).await;
        }
    }
}

/// Looks ten times a second: nothing waits for this but the end of the process. Clients of the console do not count:
/// somebody may want to watch.
async fn no_clients(gateway: &Gateway, streams: &Fleet) {
    streams::ended(streams).await;
    while gateway.clients.count() > gateway.statistics.console.clients() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Transactions may take as long as they like; a second signal ends the wait.
const TRANSACTIONS_GRACE: Duration = Duration::from_secs(365 * 24 * 3600);
/// Clients and servers get so long for their last words,
const STOP_GRACE: Duration = Duration::from_secs(2);
/// and so long until they are given up.
const STOP_ABORT: Duration = Duration::from_secs(1);

/// Wherever the process goes, it finds its file again.
fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned())
}

/// More lines about one file help nobody who reads a log; `tidegate check` has them all.
const FINDINGS_LOGGED_MAX: usize = 100;

/// Tells the log what was found in a configuration, a line each.
fn say(findings: &[Finding]) {
    for finding in findings.iter().take(FINDINGS_LOGGED_MAX) {
        let Finding { severity, file, line, reason, help, .. } = finding;
        let at = format_args!("{file}:{line}");
        match severity {
            Severity::Error => tracing::error!(%at, help, "configuration: {reason}"),
            _ => tracing::warn!(%at, help, "configuration: {reason}"),
        }
    }
    let more = findings.len().saturating_sub(FINDINGS_LOGGED_MAX);
    if more > 0 {
        tracing::warn!(more, "configuration: there is more; tidegate check tells all");
    }
}

/// Why a reload failed, for the console: nothing of what the files say, as who may use the console may not be who may read
/// them.
fn outline(error: &anyhow::Error, file: Option<&Path>) -> String {
    if let Some(errors) = error.downcast_ref::<ConfigErrors>() {
        return errors.outline(file.unwrap_or(Path::new("--database")));
    }
    if let Some(error) = error.downcast_ref::<SetupError>() {
        return error.outline();
    }
    match error.downcast_ref::<ReloadError>() {
        Some(error) => error.outline().to_owned(),
        None => "a file of the configuration cannot be used".to_owned(),
    }
}

/// Why a configuration that is good by itself does not take the place of the one in force.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    /// The file of users cannot be read.
    #[error("{0}: those who are known would be locked out")]
    Users(String),
    /// A stream cannot run beside a gateway.
    #[error("the stream `{0}` reads standard input: run it by itself, with `tidegate stream -c FILE {0}`")]
    Stdin(String),
}

impl ReloadError {
    fn outline(&self) -> &'static str {
        match self {
            Self::Users(_) => "auth_file: the file cannot be used, and those who are known would be locked out",
            Self::Stdin(_) => "a stream reads standard input: run it by itself, with `tidegate stream`",
        }
    }
}

/// Puts the configuration of `source` in force, as far as it can be without a restart.
fn reload(gateway: &Arc<Gateway>, source: &cli::Run) -> anyhow::Result<()> {
    let _alone = gateway.config.edit();
    let source = source.reading(gateway.config.file());
    let mut config = source.config()?;
    let old = gateway.config.setup();
    let unread = config.warnings.iter().find(|warning| warning.key == UNREAD_USERS);
    if let Some(unread) = unread.filter(|_| !old.config.users.is_empty()) {
        return Err(ReloadError::Users(unread.reason.clone()).into());
    }
    streams::check(&config)?;
    for key in Config::diff_needs_restart(&old.config, &config) {
        tracing::warn!(key, "this change needs a restart");
    }
    say(&config.warnings);
    config.keep_fixed(&old.config);
    let setup = Setup::new(config)?;
    gateway.replace_setup(setup);
    for worker in gateway.workers() {
        worker.visit(|worker| worker.refresh_plans());
    }
    tracing::info!(file = source.file().map(|file| tracing::field::display(file.display())), "configuration reloaded");
    Ok(())
}
