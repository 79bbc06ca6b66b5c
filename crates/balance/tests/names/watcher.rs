//! When a name is resolved, and which failures keep the set.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_balance::{
    Backoff, EndpointAddress, Jitter, NameWatcher, Resolution, Resolve, ResolveError, ResolveEvent, ResolveFuture,
    ResolveNow, ResolveSettings, ResolvedAddress, ResolverFactory,
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// Result of a lookup. The last one of a script repeats.
#[derive(Clone, Copy, Debug)]
enum ScriptedLookup {
    Good(u16),
    Empty,
    Error,
    Hang,
    Panic,
    PanicInCall,
}

#[derive(Clone, Default)]
struct Script {
    lookups: Arc<Mutex<VecDeque<ScriptedLookup>>>,
    /// Start of each lookup.
    began: Arc<Mutex<Vec<Instant>>>,
    created: Arc<AtomicUsize>,
    alive: Arc<AtomicUsize>,
    in_progress: Arc<AtomicUsize>,
}

struct ScriptedResolver(Script);

impl Drop for ScriptedResolver {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts a lookup in progress until it is dropped.
struct InProgress(Arc<AtomicUsize>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Resolve for ScriptedResolver {
    fn resolve(&mut self) -> ResolveFuture<'_> {
        let lookup = {
            let mut lookups = self.0.lookups.lock().expect("not poisoned");
            if lookups.len() > 1 { lookups.pop_front().expect("more than one") } else { lookups[0] }
        };
        self.0.began.lock().expect("not poisoned").push(Instant::now());
        assert!(!matches!(lookup, ScriptedLookup::PanicInCall), "deliberate panic");
        assert_eq!(self.0.in_progress.fetch_add(1, Ordering::SeqCst), 0, "two concurrent lookups");
        let guard = InProgress(Arc::clone(&self.0.in_progress));
        Box::pin(async move {
            let _guard = guard;
            tokio::task::yield_now().await;
            match lookup {
                ScriptedLookup::Good(port) => Ok(resolution(port)),
                ScriptedLookup::Empty => Ok(Resolution { addresses: Vec::new(), ttl: None }),
                ScriptedLookup::Error => Err(ResolveError::lookup("orders", std::io::Error::other("SERVFAIL"))),
                ScriptedLookup::Hang => std::future::pending().await,
                ScriptedLookup::Panic | ScriptedLookup::PanicInCall => panic!("deliberate panic"),
            }
        })
    }
}

fn resolution(port: u16) -> Resolution {
    let address = EndpointAddress::Socket(([10, 0, 0, 1], port).into());
    Resolution { addresses: vec![ResolvedAddress::new(address)], ttl: None }
}

struct RunningWatcher {
    script: Script,
    events: Arc<Mutex<Vec<ResolveEvent>>>,
    now: ResolveNow,
    running: JoinHandle<()>,
}

fn settings_without_jitter() -> ResolveSettings {
    let mut settings = ResolveSettings { jitter: Jitter::NONE, ..ResolveSettings::default() };
    settings.backoff.jitter = Jitter::NONE;
    settings
}

fn watch(lookups: &[ScriptedLookup], settings: ResolveSettings) -> RunningWatcher {
    let script = Script { lookups: Arc::new(Mutex::new(lookups.iter().copied().collect())), ..Script::default() };
    let factory_script = script.clone();
    let factory: ResolverFactory = Box::new(move || {
        factory_script.created.fetch_add(1, Ordering::SeqCst);
        factory_script.alive.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(ScriptedResolver(factory_script.clone())))
    });
    let (now, events) = (ResolveNow::default(), Arc::new(Mutex::new(Vec::new())));
    let watcher = NameWatcher::new(factory, settings, now.clone(), 1);
    let pushed = Arc::clone(&events);
    let running = tokio::spawn(watcher.run(move |event| pushed.lock().expect("not poisoned").push(event)));
    RunningWatcher { script, events, now, running }
}

impl RunningWatcher {
    fn lookups(&self) -> usize {
        self.script.began.lock().expect("not poisoned").len()
    }

    fn gaps(&self) -> Vec<u64> {
        let began = self.script.began.lock().expect("not poisoned");
        began.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect()
    }

    fn sets(&self) -> usize {
        self.events.lock().expect("not poisoned").iter().filter(|event| matches!(event, ResolveEvent::Set(_))).count()
    }
}

impl Drop for RunningWatcher {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// BA-23.
#[tokio::test(start_paused = true)]
async fn every_failure_is_reported_and_keeps_the_set() {
    let watcher = watch(
        &[
            ScriptedLookup::Good(1),
            ScriptedLookup::Error,
            ScriptedLookup::Empty,
            ScriptedLookup::Hang,
            ScriptedLookup::Panic,
            ScriptedLookup::Good(2),
        ],
        settings_without_jitter(),
    );
    sleep(200 * SECOND).await;
    let events = watcher.events.lock().expect("not poisoned");
    let kinds: Vec<&str> = events
        .iter()
        .take(6)
        .map(|event| match event {
            ResolveEvent::Set(_) => "set",
            ResolveEvent::Failed(ResolveError::Lookup { .. }) => "error",
            ResolveEvent::Failed(ResolveError::NoAddresses { .. }) => "empty",
            ResolveEvent::Failed(ResolveError::TimedOut(_)) => "late",
            ResolveEvent::Failed(ResolveError::Panicked) => "panicked",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["set", "error", "empty", "late", "panicked", "set"]);
}

/// BA-25 and BA-26.
#[tokio::test(start_paused = true)]
async fn delays_double_and_an_answer_resets_them() {
    let lookups = [
        ScriptedLookup::Error,
        ScriptedLookup::Error,
        ScriptedLookup::Error,
        ScriptedLookup::Error,
        ScriptedLookup::Good(1),
        ScriptedLookup::Error,
        ScriptedLookup::Good(1),
    ];
    let watcher = watch(&lookups, settings_without_jitter());
    sleep(120 * SECOND).await;
    assert_eq!(watcher.gaps()[..6], [5, 10, 20, 40, 30, 5]);
}

/// BA-27 and BA-28.
#[tokio::test(start_paused = true)]
async fn many_requests_cause_one_lookup() {
    let watcher = watch(&[ScriptedLookup::Good(1)], settings_without_jitter());
    sleep(SECOND).await;
    assert_eq!(watcher.lookups(), 1);
    for _ in 0..1000 {
        watcher.now.request();
        tokio::task::yield_now().await;
    }
    sleep(3 * SECOND).await;
    assert_eq!(watcher.lookups(), 1, "`interval_min` holds");
    sleep(20 * SECOND).await;
    assert_eq!(watcher.lookups(), 2, "once");
    assert_eq!(watcher.gaps(), [5]);
    watcher.now.request();
    advance(Duration::from_millis(1)).await;
    tokio::task::yield_now().await;
    sleep(SECOND).await;
    assert_eq!(watcher.lookups(), 3, "due now, after `interval_min`");
}

/// BA-26.
#[tokio::test(start_paused = true)]
async fn hints_do_not_shorten_the_delay_after_failures() {
    let watcher = watch(&[ScriptedLookup::Good(1), ScriptedLookup::Error], settings_without_jitter());
    // A connect to a lost endpoint fails each second.
    for _ in 0..400 {
        sleep(SECOND).await;
        watcher.now.hint();
    }
    assert_eq!(watcher.gaps(), [5, 5, 10, 20, 40, 80, 160], "only the first hint causes a lookup");
    // A request is served.
    watcher.now.request();
    sleep(SECOND).await;
    assert_eq!(watcher.lookups(), 9);
}

/// BA-29.
#[tokio::test(start_paused = true)]
async fn hanging_lookup_ends_by_timeout_or_drop() {
    let watcher = watch(&[ScriptedLookup::Good(1), ScriptedLookup::Hang], settings_without_jitter());
    sleep(45 * SECOND).await;
    assert_eq!((watcher.sets(), watcher.script.in_progress.load(Ordering::SeqCst)), (1, 0));
    // During the next lookup.
    sleep(3 * SECOND).await;
    while watcher.script.in_progress.load(Ordering::SeqCst) == 0 {
        sleep(SECOND).await;
    }
    watcher.running.abort();
    while !watcher.running.is_finished() {
        tokio::task::yield_now().await;
    }
    assert_eq!(watcher.script.in_progress.load(Ordering::SeqCst), 0);
    assert_eq!(watcher.script.alive.load(Ordering::SeqCst), 0);
}

/// BA-30.
#[tokio::test(start_paused = true)]
async fn panicked_resolver_is_replaced() {
    let watcher = watch(
        &[ScriptedLookup::Good(1), ScriptedLookup::Panic, ScriptedLookup::PanicInCall, ScriptedLookup::Good(2)],
        settings_without_jitter(),
    );
    sleep(100 * SECOND).await;
    assert!(watcher.sets() >= 2);
    assert_eq!(watcher.script.created.load(Ordering::SeqCst), 3);
    assert_eq!(watcher.script.alive.load(Ordering::SeqCst), 1);
    assert!(!watcher.running.is_finished());
}

/// BA-31.
#[tokio::test(start_paused = true)]
async fn panic_of_another_task_starts_no_resolver() {
    let watcher = watch(&[ScriptedLookup::Good(1)], settings_without_jitter());
    let other = tokio::spawn(async { panic!("unrelated") });
    assert!(other.await.is_err());
    sleep(100 * SECOND).await;
    assert_eq!(watcher.script.created.load(Ordering::SeqCst), 1);
}

/// BA-32.
#[tokio::test(start_paused = true)]
async fn failing_resolver_start_is_retried_with_delays() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&tries);
    let factory: ResolverFactory = Box::new(move || match counting.fetch_add(1, Ordering::SeqCst) % 2 {
        0 => Err(ResolveError::Start(Arc::new(std::io::Error::other("no resolv.conf")))),
        _ => panic!("deliberate panic"),
    });
    let failures = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&failures);
    let watcher = NameWatcher::new(factory, settings_without_jitter(), ResolveNow::default(), 1);
    let running = tokio::spawn(watcher.run(move |event| {
        assert!(matches!(event, ResolveEvent::Failed(_)));
        counter.fetch_add(1, Ordering::SeqCst);
    }));
    sleep(3600 * SECOND).await;
    // 5 + 10 + 20 + 40 + 80 + 160 s, then every 300 s.
    assert_eq!((tries.load(Ordering::SeqCst), failures.load(Ordering::SeqCst)), (17, 17));
    assert!(!running.is_finished());
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn unlimited_interval_resolves_on_request_only() {
    const EVER: Duration = Duration::MAX;
    let backoff = Backoff { first: EVER, max: EVER, ..Backoff::grpc() };
    let settings = ResolveSettings {
        interval: EVER,
        interval_max: EVER,
        max_stale: Some(EVER),
        timeout: EVER,
        jitter: Jitter::Around(0.2),
        backoff,
        ..settings_without_jitter()
    };
    let watcher = watch(&[ScriptedLookup::Good(1), ScriptedLookup::Error, ScriptedLookup::Good(2)], settings);
    for lookups in 1..=3 {
        sleep(3600 * SECOND).await;
        assert_eq!(watcher.lookups(), lookups);
        watcher.now.request();
    }
    sleep(SECOND).await;
    assert_eq!((watcher.lookups(), watcher.running.is_finished()), (4, false));
}

#[tokio::test(start_paused = true)]
async fn set_becomes_stale_after_max_stale() {
    let watcher = watch(
        &[ScriptedLookup::Good(1), ScriptedLookup::Error],
        ResolveSettings { max_stale: Some(600 * SECOND), ..settings_without_jitter() },
    );
    sleep(599 * SECOND).await;
    assert!(!watcher.events.lock().expect("not poisoned").iter().any(|event| matches!(event, ResolveEvent::Stale)));
    sleep(1000 * SECOND).await;
    let stale = watcher
        .events
        .lock()
        .expect("not poisoned")
        .iter()
        .filter(|event| matches!(event, ResolveEvent::Stale))
        .count();
    assert_eq!(stale, 1);
}

#[test]
fn resolve_error_has_its_cause_as_source() {
    let error = ResolveError::lookup("orders", std::io::Error::other("SERVFAIL"));
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert_eq!(source.as_deref(), Some("SERVFAIL"));
}
