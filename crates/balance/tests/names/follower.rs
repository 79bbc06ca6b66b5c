//! When a name is looked up, and what survives.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_balance::{
    Address, Follow, MakeResolver, Resolution, Resolve, ResolveError, ResolveEvent, ResolveNow, ResolveRules, Resolved,
    Resolving,
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};

const SECOND: Duration = Duration::from_secs(1);

/// What the next looks do; the last goes on for ever.
#[derive(Clone, Copy, Debug)]
enum Look {
    Good(u16),
    Empty,
    Error,
    Hang,
    Panic,
    PanicAtOnce,
}

#[derive(Clone, Default)]
struct Script {
    looks: Arc<Mutex<VecDeque<Look>>>,
    /// When each look began.
    began: Arc<Mutex<Vec<Instant>>>,
    made: Arc<AtomicUsize>,
    alive: Arc<AtomicUsize>,
    under_way: Arc<AtomicUsize>,
}

struct Scripted(Script);

impl Drop for Scripted {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts looks that are under way.
struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Resolve for Scripted {
    fn resolve(&mut self) -> Resolving<'_> {
        let look = {
            let mut looks = self.0.looks.lock().expect("not poisoned");
            if looks.len() > 1 { looks.pop_front().expect("more than one") } else { looks[0] }
        };
        self.0.began.lock().expect("not poisoned").push(Instant::now());
        assert!(!matches!(look, Look::PanicAtOnce), "a resolver that panics at once");
        assert_eq!(self.0.under_way.fetch_add(1, Ordering::SeqCst), 0, "never two looks at once");
        let guard = UnderWay(Arc::clone(&self.0.under_way));
        Box::pin(async move {
            let _guard = guard;
            tokio::task::yield_now().await;
            match look {
                Look::Good(port) => Ok(resolution(port)),
                Look::Empty => Ok(Resolution { found: Vec::new(), ttl: None }),
                Look::Error => Err(ResolveError::lookup("orders", std::io::Error::other("SERVFAIL"))),
                Look::Hang => std::future::pending().await,
                Look::Panic | Look::PanicAtOnce => panic!("a resolver that panics"),
            }
        })
    }
}

fn resolution(port: u16) -> Resolution {
    let address = Address::Socket(([10, 0, 0, 1], port).into());
    Resolution { found: vec![Resolved::new(address)], ttl: None }
}

struct Following {
    script: Script,
    events: Arc<Mutex<Vec<ResolveEvent>>>,
    now: ResolveNow,
    running: JoinHandle<()>,
}

fn rules() -> ResolveRules {
    let mut rules = ResolveRules { jitter: 0.0, ..ResolveRules::default() };
    rules.backoff.jitter = 0.0;
    rules
}

fn follow(looks: &[Look], rules: ResolveRules) -> Following {
    let script = Script { looks: Arc::new(Mutex::new(looks.iter().copied().collect())), ..Script::default() };
    let making = script.clone();
    let make: MakeResolver = Box::new(move || {
        making.made.fetch_add(1, Ordering::SeqCst);
        making.alive.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Scripted(making.clone())))
    });
    let (now, events) = (ResolveNow::default(), Arc::new(Mutex::new(Vec::new())));
    let follow = Follow::new(make, rules, now.clone(), 1);
    let telling = Arc::clone(&events);
    let running = tokio::spawn(follow.run(move |event| telling.lock().expect("not poisoned").push(event)));
    Following { script, events, now, running }
}

impl Following {
    fn looks(&self) -> usize {
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

impl Drop for Following {
    fn drop(&mut self) {
        self.running.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn t23_failures_of_every_kind_are_told_and_leave_the_set_alone() {
    let following = follow(&[Look::Good(1), Look::Error, Look::Empty, Look::Hang, Look::Panic, Look::Good(2)], rules());
    sleep(200 * SECOND).await;
    let events = following.events.lock().expect("not poisoned");
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

#[tokio::test(start_paused = true)]
async fn t25_t26_pauses_double_and_begin_anew_after_an_answer() {
    let looks = [Look::Error, Look::Error, Look::Error, Look::Error, Look::Good(1), Look::Error, Look::Good(1)];
    let following = follow(&looks, rules());
    sleep(120 * SECOND).await;
    assert_eq!(following.gaps()[..6], [5, 10, 20, 40, 30, 5]);
}

#[tokio::test(start_paused = true)]
async fn t27_t28_a_thousand_requests_are_one_look_at_the_end_of_the_interval() {
    let following = follow(&[Look::Good(1)], rules());
    sleep(SECOND).await;
    assert_eq!(following.looks(), 1);
    for _ in 0..1000 {
        following.now.ask();
        tokio::task::yield_now().await;
    }
    sleep(3 * SECOND).await;
    assert_eq!(following.looks(), 1, "not before the least interval has passed");
    sleep(20 * SECOND).await;
    assert_eq!(following.looks(), 2, "once");
    assert_eq!(following.gaps(), [5]);
    following.now.ask();
    advance(Duration::from_millis(1)).await;
    tokio::task::yield_now().await;
    sleep(SECOND).await;
    assert_eq!(following.looks(), 3, "at once, when the interval has passed");
}

#[tokio::test(start_paused = true)]
async fn t26_lost_endpoints_do_not_make_a_failing_resolver_look_more_often() {
    let following = follow(&[Look::Good(1), Look::Error], rules());
    // Somebody tries to connect to what is gone, each second.
    for _ in 0..400 {
        sleep(SECOND).await;
        following.now.hint();
    }
    assert_eq!(following.gaps(), [5, 5, 10, 20, 40, 80, 160], "the first hint is followed, the others wait");
    // An operator who knows better is heard.
    following.now.ask();
    sleep(SECOND).await;
    assert_eq!(following.looks(), 9);
}

#[tokio::test(start_paused = true)]
async fn t29_a_look_that_hangs_ends_by_its_time_out_and_with_its_owner() {
    let following = follow(&[Look::Good(1), Look::Hang], rules());
    sleep(45 * SECOND).await;
    assert_eq!((following.sets(), following.script.under_way.load(Ordering::SeqCst)), (1, 0));
    // In the middle of the next one.
    sleep(3 * SECOND).await;
    while following.script.under_way.load(Ordering::SeqCst) == 0 {
        sleep(SECOND).await;
    }
    following.running.abort();
    while !following.running.is_finished() {
        tokio::task::yield_now().await;
    }
    assert_eq!(following.script.under_way.load(Ordering::SeqCst), 0);
    assert_eq!(following.script.alive.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn t30_a_resolver_that_panics_is_made_anew_and_is_never_two() {
    let following = follow(&[Look::Good(1), Look::Panic, Look::PanicAtOnce, Look::Good(2)], rules());
    sleep(100 * SECOND).await;
    assert!(following.sets() >= 2);
    assert_eq!(following.script.made.load(Ordering::SeqCst), 3);
    assert_eq!(following.script.alive.load(Ordering::SeqCst), 1);
    assert!(!following.running.is_finished());
}

#[tokio::test(start_paused = true)]
async fn t31_the_death_of_another_task_starts_no_second_resolver() {
    let following = follow(&[Look::Good(1)], rules());
    let other = tokio::spawn(async { panic!("unrelated") });
    assert!(other.await.is_err());
    sleep(100 * SECOND).await;
    assert_eq!(following.script.made.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn t32_a_resolver_that_cannot_start_is_tried_with_pauses() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&tries);
    let make: MakeResolver = Box::new(move || match counting.fetch_add(1, Ordering::SeqCst) % 2 {
        0 => Err(ResolveError::Start(Arc::new(std::io::Error::other("no resolv.conf")))),
        _ => panic!("worse"),
    });
    let failures = Arc::new(AtomicUsize::new(0));
    let telling = Arc::clone(&failures);
    let follow = Follow::new(make, rules(), ResolveNow::default(), 1);
    let running = tokio::spawn(follow.run(move |event| {
        assert!(matches!(event, ResolveEvent::Failed(_)));
        telling.fetch_add(1, Ordering::SeqCst);
    }));
    sleep(3600 * SECOND).await;
    // 5 + 10 + 20 + 40 + 80 + 160 s, then every 300 s.
    assert_eq!((tries.load(Ordering::SeqCst), failures.load(Ordering::SeqCst)), (17, 17));
    assert!(!running.is_finished());
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_name_may_be_looked_up_once_and_when_somebody_asks() {
    const EVER: Duration = Duration::MAX;
    let backoff = tidegate_balance::Backoff { first: EVER, most: EVER, ..Default::default() };
    let rules = ResolveRules {
        interval: EVER,
        interval_max: EVER,
        max_stale: Some(EVER),
        timeout: EVER,
        jitter: 0.2,
        backoff,
        ..rules()
    };
    let following = follow(&[Look::Good(1), Look::Error, Look::Good(2)], rules);
    for looks in 1..=3 {
        sleep(3600 * SECOND).await;
        assert_eq!(following.looks(), looks);
        following.now.ask();
    }
    sleep(SECOND).await;
    assert_eq!((following.looks(), following.running.is_finished()), (4, false));
}

#[tokio::test(start_paused = true)]
async fn a_set_is_given_up_only_after_its_longest_age() {
    let following = follow(&[Look::Good(1), Look::Error], ResolveRules { max_stale: Some(600 * SECOND), ..rules() });
    sleep(599 * SECOND).await;
    assert!(!following.events.lock().expect("not poisoned").iter().any(|event| matches!(event, ResolveEvent::Stale)));
    sleep(1000 * SECOND).await;
    let stale = following
        .events
        .lock()
        .expect("not poisoned")
        .iter()
        .filter(|event| matches!(event, ResolveEvent::Stale))
        .count();
    assert_eq!(stale, 1);
}
