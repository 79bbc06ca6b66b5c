//! The interactive session: terminal, keys, signals.

use anyhow::{Context as _, anyhow};
use crossterm::event::{Event, EventStream, KeyEventKind};
use futures_util::StreamExt as _;
use ratatui::DefaultTerminal;
use tidegate_changes::{ConnectOptions, PgConnection};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
};

use crate::{
    MonitorArgs, Screen,
    app::{App, KeyEffect},
    draw::{self, Theme},
    sample,
    sampler::{self, GatewaySampler, SampleRequest},
};

/// Reports of the sampler that are not shown yet.
const REPORTS_MAX: usize = 4;

/// Connects, with advice if that fails.
pub(crate) async fn connect(options: &ConnectOptions) -> anyhow::Result<PgConnection> {
    sampler::connect(options).await.context(
        "cannot connect to the admin console; name it as postgres://USER@HOST:PORT/tidegate, with a user of admin.users or \
         admin.stats_users",
    )
}

/// Restores the terminal, also when a panic unwinds.
struct TerminalGuard(DefaultTerminal);

impl TerminalGuard {
    /// Switches to the alternate screen. ratatui's panic hook restores the terminal before the message of a panic.
    fn enter() -> anyhow::Result<Self> {
        ratatui::try_init().map(Self).context("the terminal cannot be used")
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = ratatui::try_restore();
    }
}

/// Signals that end the program.
struct EndSignals([Signal; 4]);

impl EndSignals {
    fn new() -> std::io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
        let [interrupt, terminate, hangup, quit] = kinds.map(signal);
        Ok(Self([interrupt?, terminate?, hangup?, quit?]))
    }

    /// Waits for one of them. Cancel-safe.
    async fn recv(&mut self) {
        std::future::poll_fn(|cx| {
            let is_raised = self.0.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
            if is_raised { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }
}

/// Runs until the user quits or a signal arrives.
///
/// # Errors
/// The console cannot be reached at the start, or the terminal fails.
pub(crate) async fn run(args: &MonitorArgs, options: ConnectOptions, theme: Theme) -> anyhow::Result<()> {
    let mut connection = connect(&options).await?;
    let request = SampleRequest {
        screen: args.screen.unwrap_or(Screen::Overview),
        interval: args.interval,
        is_paused: false,
        minutes: args.minutes,
    };
    // An error of the first sample is an error of the command, printed on the usual screen.
    sample::read(&mut connection, Screen::Overview, request.minutes, false).await?;
    let mut app = App::new(connection.address().to_owned(), request.clone());
    for screen in Screen::ALL {
        let view = app.view_mut(screen);
        if let Some(filter) = &args.filter {
            filter.clone_into(&mut view.filter);
        }
        if args.screen == Some(screen)
            && let Some(sort) = &args.sort
        {
            view.sort_by(sort);
        }
    }
    let (requests, requested) = watch::channel(request);
    let (kills, killed) = mpsc::channel(1);
    let (reporter, mut reports) = mpsc::channel(REPORTS_MAX);
    let sampler = GatewaySampler { options, requests: requested, kills: killed, reports: reporter };
    let mut signals = EndSignals::new()?;
    let mut terminal = TerminalGuard::enter()?;
    let mut events = EventStream::new();
    let sampler = tokio::spawn(sampler.run(connection));
    loop {
        terminal.0.draw(|frame| draw::draw(frame, &mut app, &theme))?;
        // All three are cancel-safe.
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => match app.on_key(key) {
                    KeyEffect::Quit => break,
                    // A second one is refused while the first has not been sent.
                    KeyEffect::Kill(client) => drop(kills.try_send(client)),
                    KeyEffect::None => {}
                },
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).context("the terminal cannot be read"),
                None => break,
            },
            report = reports.recv() => match report {
                Some(report) => app.on_report(report),
                None => return Err(anyhow!("the task that reads the console has failed")),
            },
            () = signals.recv() => break,
        }
        requests.send_if_modified(|request| {
            let is_changed = *request != app.request;
            request.clone_from(&app.request);
            is_changed
        });
    }
    sampler.abort();
    Ok(())
}
