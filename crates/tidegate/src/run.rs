//! The process of a gateway: threads, listeners, signals, reload, shutdown.

mod activation;
mod control_tasks;
mod file_limit;
mod handover;
mod process;
mod reloads;
mod shapes;
mod shutdown_report;
mod sockets;
mod start_line;
mod streams;
mod systemd;
mod traces;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    rc::Rc,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tidegate_link::{IoMode, Listener, Reactor, ReactorConfig};
use tidegate_supervise::{Exits, Tokio};
use tokio::signal::unix::{Signal, SignalKind, signal};

use tidegate_admin::{AdminContext, console, http, web};
use tidegate_config::{
    Config, ConfigErrors, Diagnostic, DiagnosticSeverity, Dialect, IoBackend, LogConfig, LogFormat,
    pgbouncer::UNREAD_USERS,
};
use tidegate_logging as log;
use tidegate_pg_client::resolve::Resolver;
use tidegate_proxy::{
    client, listen,
    plane::{
        Configuration, Console, FileReader, Gateway, Mailbox, OLD_TLS, Phase, ReloadAnswer, ReloadReply, Setup,
        SetupError, Worker, WorkerMailbox, Workers,
    },
};
use tidegate_query_log::{
    spans::SpanQueue,
    writer::{QueryLog, QueryLogError},
};
use tidegate_streams::StreamManager;
use tidegate_tasks::ListenerKey;

use crate::cli;

use activation::ActivatedSockets;
use handover::{PassedSockets, Predecessor};
use process::PidFile;
use reloads::ReloadQueue;
use shutdown_report::TaskNames;
use sockets::Sockets;
use start_line::ChosenIo;
use systemd::SystemdWatchdog;

/// A running gateway.
pub struct RunningGateway {
    gateway: Arc<Gateway>,
    workers: Arc<Workers>,
    threads: Vec<JoinHandle<()>>,
    listeners: Vec<Listener>,
    streams: StreamManager,
    /// The streams start when those of the previous process have ended.
    awaits_streams: bool,
    /// The server of `[shapes]`; none after the listeners are closed.
    shapes: Option<shapes::RunningShapes>,
    /// Exports spans, if `[traces]` has an endpoint.
    traces: Option<Arc<tidegate_traces::TraceExporter>>,
    /// Arguments for reading the configuration again.
    source: cli::RunArgs,
    watchdog: SystemdWatchdog,
    /// Exits when the shutdown began.
    exits_before: Option<Exits>,
    _pid_file: Option<PidFile>,
}

/// `tidegate run`. Returns the exit status if the error was logged.
///
/// # Errors
/// If the configuration is invalid, or the gateway cannot start, unless the log has JSON lines: then standard error has no other
/// text.
pub fn main(run: &cli::RunArgs) -> anyhow::Result<ExitCode> {
    let config = match run.config() {
        Ok(config) => config,
        Err(errors) if run.log_format == Some(LogFormat::Json) => {
            let _ = log::init(&LogConfig { format: LogFormat::Json, ..LogConfig::default() });
            log_findings(errors.diagnostics());
            tracing::error!(error = "invalid configuration", "fatal error");
            return Ok(ExitCode::FAILURE);
        }
        Err(errors) => anyhow::bail!("invalid configuration\n\n{errors}"),
    };
    let log = config.log.clone();
    let Err(error) = run_with(config, run) else { return Ok(ExitCode::SUCCESS) };
    if log.format != LogFormat::Json && log.stderr {
        return Err(error);
    }
    // Fails if the log is set up already.
    if let Ok(pending) = log::prepare(&log) {
        pending.fail(&log);
    }
    tracing::error!(error = crate::error_line(&error), "fatal error");
    if log.format == LogFormat::Json { Ok(ExitCode::FAILURE) } else { Err(error) }
}

/// Runs the gateway until it is stopped.
fn run_with(config: Config, run: &cli::RunArgs) -> anyhow::Result<()> {
    if run.bouncer.as_ref().is_some_and(|bouncer| bouncer.daemon) {
        if config.runtime.pid_file.as_os_str().is_empty() {
            anyhow::bail!("-d needs a pid file: add pidfile = /path/to/tidegate.pid");
        }
        if !process::is_background() {
            return process::go_to_background();
        }
        process::leave_terminal();
    }
    let (pending, log) = (log::prepare(&config.log)?, config.log.clone());
    run_logged(config, run, &pending).inspect_err(|_| pending.fail(&log))
}

/// Runs the gateway, whose lines are kept until the user has changed and the log is open.
fn run_logged(config: Config, run: &cli::RunArgs, pending: &log::PendingLog) -> anyhow::Result<()> {
    // Before the user changes: keys and rules may be readable by root alone.
    let early = if config.runtime.user.is_empty() { None } else { Some(Setup::new(config.clone())?) };
    process::change_user(&config.runtime.user)?;
    let activated = ActivatedSockets::take()?;
    let log = pending.open(&config.log)?;
    log_findings(&config.warnings);
    log_findings(&config.unreadable_files(run.file()));
    let control = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let ended = control.block_on(async {
        // Before other processes can see this one: without a handler, SIGHUP would terminate it.
        let signals = Signals::install()?;
        let running = start(config, early, run.clone(), log, activated)?;
        running.until_stopped(signals).await
    });
    // Blocking tasks that still run are abandoned.
    control.shutdown_timeout(STOP_ABORT);
    ended
}

/// Errors of this configuration on this machine, for `tidegate check`: unreadable files, and users and groups that do not exist.
#[must_use]
pub fn startup_errors(config: &Config) -> Vec<Diagnostic> {
    let mut startup_errors: Vec<Diagnostic> = Setup::errors(config).iter().map(SetupError::finding).collect();
    let (user, group) = (&config.runtime.user, &config.listen.unix_socket_group);
    if !user.is_empty() && !process::user_exists(user) {
        let reason = format!("runtime.user: there is no user `{user}` on this machine");
        startup_errors.push(Diagnostic::file_error("/etc/passwd", 1, "runtime.user", reason));
    }
    if !group.is_empty() && process::group_id(group).is_none() {
        let reason = format!("listen.unix_socket_group: there is no group `{group}` on this machine");
        startup_errors.push(Diagnostic::file_error("/etc/group", 1, "listen.unix_socket_group", reason));
    }
    startup_errors
}

/// Runs `tidegate stream`. Returns the exit status.
///
/// # Errors
/// If the streams cannot be read or started.
pub fn stream(stream: &cli::StreamArgs) -> anyhow::Result<ExitCode> {
    let cli::SelectedStreams { streams, config, log } = stream.streams().map_err(|text| anyhow::anyhow!("{text}"))?;
    log::init(&log)?;
    tidegate_streams::standalone::run(&streams, config.as_ref(), stream.quiet)
}

/// Runs `tidegate shapes` until a signal stops it.
///
/// # Errors
/// If the URL, the address or the folder cannot be used.
pub fn shapes(arguments: &cli::ShapesArgs) -> anyhow::Result<()> {
    shapes::run(arguments)
}

/// Runs `tidegate demo`.
///
/// # Errors
/// Errors of the demo.
pub fn demo(demo: &cli::DemoArgs) -> anyhow::Result<()> {
    crate::demo::run(demo)
}

/// Handlers of the signals.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    pause: Signal,
    resume: Signal,
}

impl Signals {
    fn install() -> std::io::Result<Self> {
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

fn start(
    config: Config,
    early: Option<Setup>,
    source: cli::RunArgs,
    log: log::LogHandle,
    activated: ActivatedSockets,
) -> anyhow::Result<RunningGateway> {
    file_limit::raise_limit(&config);
    let takes_over = source.takes_over() && !activated.is_some();
    let mut predecessor = if takes_over { Predecessor::request(&config)? } else { None };
    let mut pid_file = if predecessor.is_none() { PidFile::claim(&config.runtime.pid_file)? } else { None };
    let mut sockets = Sockets::open(&config, activated, predecessor.as_mut())?;
    let threads = match config.runtime.workers {
        // A few busy threads need fewer system calls per message than many idle ones: see
        // docs/src/internals/decisions/workers.md.
        0 => std::thread::available_parallelism().map_or(1, |cores| usize::from(cores).div_ceil(2)),
        threads => usize::from(threads),
    };
    let mode = io_mode(config.runtime.io);
    let setup = early.map_or_else(|| Setup::new(config), Ok)?;
    let resolver = Resolver::new(tokio::runtime::Handle::current()).with_settings(&setup.config.dns);
    let workers = Arc::new(Workers::new(threads));
    let mut gateway = Gateway::new(setup, workers.clone(), resolver)?;
    gateway.moves.set_first_thread(predecessor.as_ref().map_or(0, Predecessor::first_thread));
    let traces = traces::exporter(&gateway.config.setup().config.traces)?;
    let spans = traces.as_ref().map(|exporter| exporter.queue());
    gateway.query_log = open_query_log(&gateway.config, predecessor.is_some(), spans)?;
    gateway.config.log = Some(log);
    gateway.config.set_file(source.file().map(absolute));
    let gateway = Arc::new(gateway);
    gateway.config.set_reader(file_reader(&gateway, source.clone()));
    let context = Arc::new(AdminContext::new(gateway.clone(), workers.clone()));
    let WorkerThreads { threads, starts, io } = spawn_workers(&context, mode, &sockets.listeners)?;
    // Before clients are accepted, because they may use the streams. Two processes must not consume the same source.
    let awaits_streams = predecessor.is_some();
    let streams = streams::start(&context, !awaits_streams)?;
    traces::start(&gateway.lifecycle.scope, traces.as_ref());
    let http = sockets.http_copies()?;
    let shapes = shapes::start(&context, std::mem::take(&mut sockets.shapes), predecessor.is_some())?;
    for start in starts {
        // A thread that has ended has logged an error.
        let _ = start.send(());
    }
    sockets.announce();
    start_line::log(&gateway.config, workers.count(), &io, &sockets);
    let scrapes = http::serve(&context, sockets.metrics)?;
    let pages = web::serve(&context, sockets.web)?;
    let listeners = sockets.listeners;
    let handover_socket = predecessor.as_mut().and_then(Predecessor::take_handover_socket);
    let passed = PassedSockets { listeners: listeners.clone(), http, scrapes, pages };
    handover::open(&context, passed, handover_socket);
    if let Some(predecessor) = predecessor {
        if let Err(error) = predecessor.confirm(&context) {
            // This process has the sockets in any case.
            tracing::warn!(%error, "the previous process ended before it was confirmed");
        }
        tracing::info!("took over from the previous process");
        pid_file = PidFile::replace(&gateway.config.setup().config.runtime.pid_file)?;
        systemd::main_process(rustix::process::getpid());
    }
    systemd::ready("accepting clients");
    process::announce_ready();
    let watchdog = SystemdWatchdog::from_environment(takes_over);
    Ok(RunningGateway {
        gateway,
        workers,
        threads,
        listeners,
        streams,
        awaits_streams,
        shapes,
        traces,
        source,
        watchdog,
        exits_before: None,
        _pid_file: pid_file,
    })
}

fn io_mode(backend: IoBackend) -> IoMode {
    match backend {
        IoBackend::Auto => IoMode::Auto,
        IoBackend::IoUring => IoMode::IoUring,
        IoBackend::Epoll => IoMode::Epoll,
    }
}

fn open_query_log(
    config: &Configuration,
    is_successor: bool,
    spans: Option<Arc<SpanQueue>>,
) -> Result<Option<QueryLog>, QueryLogError> {
    let journal = &config.setup().config.journal;
    if is_successor { QueryLog::open_as_successor(journal, spans.as_ref()) } else { QueryLog::open(journal, spans) }
}

/// Reads the configuration for the web console, which shows how the file differs from the settings in force.
fn file_reader(gateway: &Arc<Gateway>, source: cli::RunArgs) -> FileReader {
    let owner = Arc::downgrade(gateway);
    Box::new(move || {
        let file = owner.upgrade().and_then(|gateway| gateway.config.file());
        source.with_file(file.clone()).config().map_err(|errors| outline(&errors.into(), file.as_deref()))
    })
}

/// Threads of the data plane. Each starts to accept on a message; it ends if its sender is dropped.
struct WorkerThreads {
    threads: Vec<JoinHandle<()>>,
    starts: Vec<mpsc::Sender<()>>,
    /// The interface that the threads use.
    io: ChosenIo,
}

/// Starts the threads of the data plane, and waits until all have an event loop.
fn spawn_workers(context: &Arc<AdminContext>, mode: IoMode, listeners: &[Listener]) -> anyhow::Result<WorkerThreads> {
    let workers = context.workers.count();
    let (ready, ready_workers) = mpsc::channel();
    let mut threads = Vec::new();
    let mut starts = Vec::new();
    for index in 0..workers {
        let (start, started) = mpsc::channel::<()>();
        let (context, ready, listeners) = (context.clone(), ready.clone(), listeners.to_vec());
        let body = move || work(index, mode, &context, listeners, &ready, &started);
        threads.push(std::thread::Builder::new().name(format!("worker-{index}")).spawn(body)?);
        starts.push(start);
    }
    drop(ready);
    let mut chosen = None;
    let mut mailboxes: Vec<Option<Arc<WorkerMailbox>>> = (0..workers).map(|_| None).collect();
    for _ in 0..workers {
        let (index, mailbox) = ready_workers.recv().context("a worker thread ended while it started")?;
        let (mailbox, io) = mailbox.context("cannot start a worker thread")?;
        tracing::debug!(worker = index, io = ?io.mode, "worker started");
        mailboxes[index] = Some(mailbox);
        chosen = Some(io);
    }
    context.workers.set(mailboxes.into_iter().flatten().collect());
    Ok(WorkerThreads { threads, starts, io: chosen.context("a gateway has at least one worker thread")? })
}

type WorkerReady = (usize, std::io::Result<(Arc<WorkerMailbox>, ChosenIo)>);

/// Body of a worker thread.
fn work(
    index: usize,
    mode: IoMode,
    context: &Arc<AdminContext>,
    listeners: Vec<Listener>,
    ready: &mpsc::Sender<WorkerReady>,
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
    let _ = ready.send((index, Ok((mailbox, ChosenIo::of(&reactor)))));
    if started.recv().is_err() {
        return;
    }
    let owner = context.clone();
    let console: Console = Rc::new(move |worker, client| console::serve(owner.clone(), worker, client));
    let worker = Worker::new(index, reactor, context.gateway.clone(), context.workers.clone(), console);
    // The thread keeps no listeners: an open one would prevent the kernel from refusing connections.
    for (number, listener) in listeners.into_iter().enumerate() {
        let key = ListenerKey::Clients { thread: index, listener: number };
        if let Err(error) = listen::start(&worker, listener, key) {
            tracing::error!(worker = index, %error, "cannot accept on this thread");
        }
    }
    if let Err(error) = worker.run(client::start) {
        tracing::error!(worker = index, %error, "the event loop failed");
    }
}

impl RunningGateway {
    /// State shared by the threads.
    #[must_use]
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Handles signals and commands of the console until the gateway ends.
    async fn until_stopped(mut self, signals: Signals) -> anyhow::Result<()> {
        let Signals { mut hangup, mut terminate, mut interrupt, mut quit, mut pause, mut resume } = signals;
        let mut reloads = ReloadQueue::new(self.gateway.config.take_reloads().context("a gateway is run once")?);
        control_tasks::start(&self.gateway, &self.workers);
        self.gateway.open_kept_pools();
        let mut stops_since = None;
        loop {
            let gateway = self.gateway.clone();
            let phase = gateway.lifecycle.phase();
            let delay = self.listen_delay(phase, &mut stops_since);
            if !phase.goes_on() && delay.is_none() {
                // As in PgBouncer, the console can be reached over the unix socket until the end.
                let is_pgbouncer = gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer;
                let keep_unix = is_pgbouncer && phase != Phase::Stopping && !gateway.lifecycle.is_handed_over();
                self.close_listeners(keep_unix).await;
            }
            tokio::select! {
                _ = hangup.recv() => self.handle_hangup(&mut reloads),
                (reply, outcome) = reloads.next(&gateway, &self.workers, &self.source) => {
                    let status = self.finish_reload(reply, outcome);
                    // A reload that a signal requested meanwhile is still to come.
                    if !reloads.is_requested_by_signal() && self.gateway.lifecycle.phase().goes_on() {
                        systemd::ready(&status);
                    }
                }
                _ = terminate.recv() => self.escalate("SIGTERM", Phase::WaitingForClients),
                _ = interrupt.recv() => self.escalate("SIGINT", Phase::WaitingForTransactions),
                _ = quit.recv() => self.escalate("SIGQUIT", Phase::Stopping),
                _ = pause.recv() => self.pause(),
                _ = resume.recv() => self.resume(),
                () = tokio::time::sleep(delay.unwrap_or_default()), if delay.is_some() => {}
                () = wait_until_drained(&gateway, &self.streams, phase, stops_since), if delay.is_none() => break,
                () = gateway.lifecycle.phase_changed.notified() => {}
                () = streams::until_allowed(&gateway.moves), if self.awaits_streams => self.start_streams(),
                () = self.watchdog.feed(&self.workers) => {}
            }
        }
        self.stop().await
    }

    /// How long new clients are still accepted, if the gateway waits for clients after a signal or a command: load balancers need
    /// time to follow `/ready`. After a hand-over, the other process accepts.
    fn listen_delay(&self, phase: Phase, stops_since: &mut Option<Instant>) -> Option<Duration> {
        if phase.goes_on() {
            return None;
        }
        let since = *stops_since.get_or_insert_with(Instant::now);
        if phase != Phase::WaitingForClients || self.gateway.lifecycle.is_handed_over() || self.listeners.is_empty() {
            return None;
        }
        let rest = self.gateway.config.setup().config.timeouts.shutdown_delay.saturating_sub(since.elapsed());
        (!rest.is_zero()).then_some(rest)
    }

    /// Starts the streams after those of the previous process.
    fn start_streams(&mut self) {
        self.awaits_streams = false;
        if !self.gateway.lifecycle.phase().goes_on() {
            return;
        }
        if let Err(error) = streams::apply(&mut self.streams, &self.gateway, &self.workers) {
            tracing::error!("{error:#}");
        }
    }

    /// The first signal sets the condition to wait for, the second ends the wait.
    fn escalate(&self, signal: &str, target: Phase) {
        let phase = self.gateway.change_phase(|phase| match phase {
            Phase::Active | Phase::Paused | Phase::Suspended => target,
            Phase::WaitingForClients if target == Phase::WaitingForTransactions => target,
            _ => Phase::Stopping,
        });
        let what = match phase {
            Phase::WaitingForClients => "shutting down, waiting for all clients disconnect",
            Phase::WaitingForTransactions => "shutting down, waiting for all servers connections to be released",
            _ => "fast exit",
        };
        self.log_signal(signal, what);
        let limit = match phase {
            Phase::WaitingForClients => self.gateway.config.setup().config.timeouts.shutdown,
            _ => Duration::ZERO,
        };
        systemd::stopping(what, limit);
        tracing::info!(?phase, clients = self.gateway.clients.count(), "shutting down");
    }

    /// Logs PgBouncer's text for a signal, if the configuration is a pgbouncer.ini.
    fn log_signal(&self, signal: &str, what: &str) {
        if self.gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer {
            tracing::info!("got {signal}, {what}");
        }
    }

    /// Handles SIGUSR1, like PAUSE in the console.
    fn pause(&self) {
        if self.gateway.lifecycle.phase() != Phase::Active {
            return self.log_signal("SIGUSR1", "but already paused/suspended");
        }
        self.log_signal("SIGUSR1", "pausing all activity");
        tracing::info!("paused by a signal");
        systemd::status("paused by SIGUSR1");
        self.gateway.pause(None);
    }

    /// Handles SIGUSR2, like RESUME.
    fn resume(&self) {
        let is_pgbouncer = self.gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer;
        if is_pgbouncer && !self.gateway.lifecycle.phase().goes_on() {
            tracing::info!("got SIGUSR2 while shutting down, ignoring");
        } else if !self.gateway.lifecycle.holds_all() {
            self.log_signal("SIGUSR2", "but not paused/suspended");
        } else {
            self.log_signal("SIGUSR2", "continuing from PAUSE");
            tracing::info!("resumed by a signal");
            systemd::status("accepting clients");
            self.gateway.resume(None);
        }
    }

    /// Closes the listeners. From now on the kernel refuses connections, so that clients try another gateway immediately.
    /// `keep_unix` leaves those of unix sockets open.
    async fn close_listeners(&mut self, keep_unix: bool) {
        self.exits_before.get_or_insert_with(|| shutdown_report::exits(&self.gateway.lifecycle.scope));
        self.streams.status_table().stop();
        self.close_client_listeners(keep_unix).await;
        // After the copies of its sockets. Its clients connect again, to the next process if there is one.
        if let Some(shapes) = self.shapes.take() {
            shapes.stop().await;
        }
    }

    async fn close_client_listeners(&mut self, keep_unix: bool) {
        let open = self.listeners.len();
        self.listeners.retain(|listener| keep_unix && listener.local_addr().is_none());
        if self.listeners.len() == open {
            return;
        }
        let lifecycle = &self.gateway.lifecycle;
        lifecycle.listen_scope.stop(Tokio::current(), STOP_GRACE, STOP_ABORT).await;
        if !keep_unix {
            lifecycle.unix_listen_scope.stop(Tokio::current(), STOP_GRACE, STOP_ABORT).await;
        }
        // Clients that were accepted last are counted now.
        self.workers.ask_all(|_| ()).await;
        tracing::info!("no longer listening");
    }

    /// Handles SIGHUP: files were renamed by log rotation, or the configuration has changed.
    fn handle_hangup(&self, reloads: &mut ReloadQueue) {
        self.log_signal("SIGHUP", "re-reading config");
        systemd::reloading();
        if let Some(query_log) = &self.gateway.query_log {
            query_log.reopen();
        }
        if let Some(log) = &self.gateway.config.log {
            log.reopen(&self.gateway.config.setup().config.log);
        }
        reloads.request_by_signal();
    }

    /// Applies the result of a reload and sends the reply. An error is logged and changes nothing. Returns the status for
    /// systemd.
    fn finish_reload(&mut self, reply: Option<ReloadReply>, outcome: anyhow::Result<Option<&'static str>>) -> String {
        let outcome = self.apply_reload(outcome);
        self.gateway.config.note_reload(outcome.is_ok());
        let status = match &outcome {
            Ok(None) => "accepting clients; configuration reloaded".to_owned(),
            Ok(Some(notice)) => format!("accepting clients; configuration reloaded; {notice}"),
            Err(reason) => format!("accepting clients; reload failed, the old configuration stays in force: {reason}"),
        };
        if let Some(reply) = reply {
            // The requester may have disconnected.
            let _ = reply.send(outcome);
        }
        status
    }

    fn apply_reload(&mut self, outcome: anyhow::Result<Option<&'static str>>) -> ReloadAnswer {
        let finish_reload = outcome.map_err(|error| {
            match error.downcast_ref::<ConfigErrors>() {
                Some(errors) => {
                    log_findings(errors.diagnostics());
                    tracing::error!("reload failed, the old configuration stays in force");
                }
                None => tracing::error!("reload failed, the old configuration stays in force: {error:#}"),
            }
            outline(&error, self.gateway.config.file().as_deref())
        });
        let notice = finish_reload?;
        if self.awaits_streams || !self.gateway.lifecycle.phase().goes_on() {
            return Ok(notice);
        }
        let applied = streams::apply(&mut self.streams, &self.gateway, &self.workers).map_err(|error| {
            tracing::error!("{error:#}");
            "cannot start the streams; the other changes are applied".to_owned()
        });
        applied.map(|()| notice)
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.gateway.change_phase(|_| Phase::Stopping);
        self.close_listeners(false).await;
        // Streams that still run have no time left; uncommitted records will be read again.
        self.streams.abort(STOP_ABORT).await;
        let names = TaskNames::collect(&self.gateway.pools, &self.workers);
        let mut report = self.gateway.lifecycle.scope.stop(Tokio::current(), STOP_GRACE, STOP_ABORT).await;
        // Listeners, clients and streams may have been stopped earlier.
        report.exits =
            shutdown_report::exits(&self.gateway.lifecycle.scope) - self.exits_before.take().unwrap_or_default();
        names.log(&report);
        drop(self.streams);
        self.workers.visit_all(|worker| worker.stop());
        let (threads, gateway) = (self.threads, self.gateway.clone());
        let threads_joined = tokio::task::spawn_blocking(move || {
            if !shutdown_report::join_within(&threads, STOP_GRACE) {
                tracing::error!("a worker thread does not end and is abandoned");
            }
            // Last, because no thread sends records any more.
            let deadline = gateway.config.setup().config.journal.close_timeout;
            if let Some(query_log) = &gateway.query_log {
                query_log.close(deadline);
            }
        });
        threads_joined.await.context("waiting for the worker threads")?;
        if let Some(exporter) = &self.traces {
            // The last records became spans when the query log was closed.
            exporter.flush(Instant::now() + traces::FLUSH_LIMIT).await;
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Waits until the gateway may end. `since` is the start of the shutdown.
async fn wait_until_drained(gateway: &Arc<Gateway>, streams: &StreamManager, phase: Phase, since: Option<Instant>) {
    match phase {
        Phase::Active | Phase::Paused | Phase::Suspended => std::future::pending().await,
        Phase::Stopping => {}
        Phase::WaitingForClients => {
            let timeouts = &gateway.config.setup().config.timeouts;
            // The next process accepts, so that nothing waits for the end of this one.
            let is_handed_over = gateway.lifecycle.is_handed_over();
            let limit = if is_handed_over { timeouts.take_over } else { timeouts.shutdown };
            // Measured from the start of the shutdown, so that no other event extends it.
            let rest = limit.saturating_sub(since.map_or(Duration::ZERO, |since| since.elapsed()));
            if limit.is_zero() {
                wait_for_no_clients(gateway, streams).await;
            } else if tokio::time::timeout(rest, wait_for_no_clients(gateway, streams)).await.is_err() {
                let clients = gateway.clients.count();
                match is_handed_over {
                    true => tracing::warn!(clients, "timeouts.take_over has passed"),
                    false => tracing::warn!(clients, "timeouts.shutdown has passed"),
                }
            }
        }
        Phase::WaitingForTransactions => {
            // Streams are clients too, and a delivery may take several transactions.
            streams::wait_until_ended(streams).await;
            if gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer {
                gateway.drain();
                while gateway.servers_in_use() > 0 {
                    tokio::time::sleep(DRAIN_CHECK).await;
                }
                return;
            }
            // Each client disconnects when it has no open transaction.
            gateway.lifecycle.client_scope.stop(Tokio::current(), TRANSACTIONS_GRACE, STOP_ABORT).await;
        }
    }
}

/// Waits until no client but those of the console is connected. Ten checks per second are enough for the end of the process.
/// Clients of the console do not count, because they may watch the shutdown. After a hand-over, a process that has not ended yet
/// and was replaced by this one counts as a client: its sessions and cancel requests pass through this process.
async fn wait_for_no_clients(gateway: &Gateway, streams: &StreamManager) {
    streams::wait_until_ended(streams).await;
    let is_handed_over = gateway.lifecycle.is_handed_over();
    if is_handed_over && gateway.moves.is_arriving() {
        // The streams of this process have not started; those of the next one wait for the same.
        streams::until_allowed(&gateway.moves).await;
    }
    gateway.moves.streams_ended.send_replace(true);
    while gateway.clients.count() > gateway.statistics.console.clients()
        || is_handed_over && gateway.moves.is_arriving()
    {
        tokio::time::sleep(DRAIN_CHECK).await;
    }
}

/// Interval of the checks whether clients or servers are left.
const DRAIN_CHECK: Duration = Duration::from_millis(100);

/// Transactions have no time limit; a second signal ends the wait.
const TRANSACTIONS_GRACE: Duration = Duration::from_secs(365 * 24 * 3600);
/// Time for clients and servers to end,
const STOP_GRACE: Duration = Duration::from_secs(2);
/// and then until they are aborted.
const STOP_ABORT: Duration = Duration::from_secs(1);

/// The path of a file, independent of the current directory.
fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned())
}

/// Limit of logged findings; `tidegate check` lists all.
const FINDINGS_LOGGED_MAX: usize = 100;

/// Logs findings of a configuration, a line each.
fn log_findings(findings: &[Diagnostic]) {
    for finding in findings.iter().take(FINDINGS_LOGGED_MAX) {
        let Diagnostic { severity, file, line, reason, help, .. } = finding;
        let at = format_args!("{file}:{line}");
        match severity {
            DiagnosticSeverity::Error => tracing::error!(%at, help, "configuration: {reason}"),
            _ => tracing::warn!(%at, help, "configuration: {reason}"),
        }
    }
    let more = findings.len().saturating_sub(FINDINGS_LOGGED_MAX);
    if more > 0 {
        tracing::warn!(more, "configuration: more findings; tidegate check lists all");
    }
}

/// Reason of a failed reload for the console. Contains no text of the files, because users of the console may lack the permission
/// to read them.
fn outline(error: &anyhow::Error, file: Option<&Path>) -> String {
    let reason = outline_of_cause(error, file);
    match error.downcast_ref::<UnreadableFiles>() {
        Some(unreadable) => format!("{reason}; {unreadable}"),
        None => reason,
    }
}

fn outline_of_cause(error: &anyhow::Error, file: Option<&Path>) -> String {
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

/// Errors of a reload whose configuration is valid by itself.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    /// The file of users is unreadable.
    #[error("{0}: all known users would be locked out")]
    Users(String),
    /// A stream cannot run in a gateway.
    #[error("the stream `{0}` reads standard input: run it with `tidegate stream -c FILE {0}`")]
    Stdin(String),
}

impl ReloadError {
    fn outline(&self) -> &'static str {
        match self {
            Self::Users(_) => "auth_file: the file is unreadable; all known users would be locked out",
            Self::Stdin(_) => "a stream reads standard input: run it with `tidegate stream`",
        }
    }
}

/// After the change to `runtime.user`, the process may lack the permission to read files that it has read as root.
#[derive(Debug, thiserror::Error)]
#[error("the user `{0}` of the process cannot read a file again: chmod 640, and chgrp it to a group of `{0}`")]
struct UnreadableFiles(String);

/// Applies the configuration of `source`, and logs the files that the user of the process cannot read if this fails.
fn reload(gateway: &Arc<Gateway>, workers: &Workers, source: &cli::RunArgs) -> anyhow::Result<Option<&'static str>> {
    let _alone = gateway.config.edit();
    let source = source.with_file(gateway.config.file());
    let old = gateway.config.setup();
    let (outcome, mut unreadable) = match source.config() {
        Ok(config) => {
            let unreadable = config.unreadable_files(source.file());
            (apply(gateway, workers, &source, config), unreadable)
        }
        Err(errors) => (Err(errors.into()), Vec::new()),
    };
    if matches!(outcome, Ok(None)) {
        return outcome;
    }
    if unreadable.is_empty() {
        // Files that could not be read now are known from the configuration in force.
        unreadable = old.config.unreadable_files(source.file());
    }
    if unreadable.is_empty() {
        return outcome;
    }
    log_findings(&unreadable);
    outcome.map_err(|error| error.context(UnreadableFiles(old.config.runtime.user.clone())))
}

/// Applies a configuration, except for changes that need a restart.
fn apply(
    gateway: &Arc<Gateway>,
    workers: &Workers,
    source: &cli::RunArgs,
    mut config: Config,
) -> anyhow::Result<Option<&'static str>> {
    let old = gateway.config.setup();
    let unread = config.warnings.iter().find(|warning| warning.key == UNREAD_USERS);
    if let Some(unread) = unread.filter(|_| !old.config.users.is_empty()) {
        return Err(ReloadError::Users(unread.reason.clone()).into());
    }
    streams::check(&config)?;
    for key in Config::diff_needs_restart(&old.config, &config) {
        tracing::warn!(key, "this change needs a restart");
    }
    log_findings(&config.warnings);
    config.keep_restart_only(&old.config);
    let mut notice = None;
    let setup = match Setup::new(config.clone()) {
        Err(SetupError::Tls(error)) if config.listen.dialect == Dialect::Pgbouncer => {
            tracing::error!(%error, "{OLD_TLS}");
            notice = Some(OLD_TLS);
            Setup::with_old_tls(config, &old)?
        }
        setup => setup?,
    };
    gateway.replace_setup(setup);
    gateway.config.set_related(Vec::new());
    workers.visit_all(|worker| worker.refresh_plans());
    tracing::info!(file = source.file().map(|file| tracing::field::display(file.display())), "configuration reloaded");
    Ok(notice)
}
