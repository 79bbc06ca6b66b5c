//! Backends that vanish, drain, come and go while calls are under way.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_balance::{
    Address, Backoff, Channel, ChannelBuilder, Dials, MakeResolver, Policy, Resolution, Resolve, ResolveError,
    ResolveRules, Resolved, Resolving, RoundRobin, State,
};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::backend::{Backend, Driven, backends, call, drive, in_flight, ready, soon, target, until};
use crate::calls::policies;

/// What a name means.
#[derive(Clone, Debug)]
pub(crate) enum Meaning {
    Addresses(Vec<Address>),
    /// The name service says that it cannot tell.
    Error,
    /// It says nothing.
    Silence,
    /// There is no such name.
    Nobody,
}

/// A resolver whose answer the test changes.
#[derive(Clone)]
pub(crate) struct Told(Arc<Mutex<(Meaning, usize)>>);

impl Default for Told {
    fn default() -> Self {
        Self(Arc::new(Mutex::new((Meaning::Addresses(Vec::new()), 0))))
    }
}

impl Told {
    fn tell(&self, backends: &[&Backend]) {
        self.mean(Meaning::Addresses(backends.iter().map(|backend| Address::Socket(backend.address)).collect()));
    }

    fn mean(&self, meaning: Meaning) {
        *self.0.lock().expect("not poisoned") = (meaning, 0);
    }

    /// How often it was asked since it means what it does.
    fn asked(&self) -> usize {
        self.0.lock().expect("not poisoned").1
    }

    fn make(&self) -> MakeResolver {
        let told = self.clone();
        Box::new(move || Ok(Box::new(told.clone())))
    }
}

impl Resolve for Told {
    fn resolve(&mut self) -> Resolving<'_> {
        let mut told = self.0.lock().expect("not poisoned");
        told.1 += 1;
        let meaning = told.0.clone();
        Box::pin(async move {
            let found = match meaning {
                Meaning::Addresses(list) => list.into_iter().map(Resolved::new).collect(),
                Meaning::Error => return Err(ResolveError::lookup("orders", std::io::Error::other("SERVFAIL"))),
                Meaning::Silence => std::future::pending().await,
                Meaning::Nobody => return Err(ResolveError::NoAddresses { name: "orders".to_owned() }),
            };
            Ok(Resolution { found, ttl: None })
        })
    }
}

fn drive_by(policy: &Arc<dyn Policy>, builder: ChannelBuilder) -> Driven {
    let driven = drive(builder);
    driven.channel.balancer().set_policy(Arc::clone(policy));
    driven
}

fn quickly() -> ResolveRules {
    let most = Duration::from_millis(5);
    ResolveRules { interval_min: most, interval: most, interval_max: most, jitter: 0.0, ..ResolveRules::default() }
}

#[tokio::test]
async fn t40_a_backend_that_falls_silent_is_evicted_by_its_pings() {
    let backends = backends(2).await;
    let pings = (Duration::from_millis(30), Duration::from_millis(30));
    let builder = Channel::builder(&target(&backends)).policy(RoundRobin).keep_alive(pings.0, pings.1);
    let driven = drive(builder.connect_timeout(Duration::from_millis(200)).backoff(soon()));
    until(|| ready(&driven.channel) == 2).await;
    backends[0].blackhole();
    until(|| ready(&driven.channel) == 1).await;
    // It accepts connections still, and says nothing on them: that is not ready.
    let accepted = backends[0].accepted();
    until(|| backends[0].accepted() >= accepted + 2).await;
    for _ in 0..20 {
        call(&driven.channel, "/t/Echo").await.unwrap();
    }
    assert_eq!((backends[0].calls(), backends[1].calls()), (0, 20));
}

#[tokio::test]
async fn t41_a_dead_backend_is_tried_with_pauses_and_not_once_per_call() {
    let backends = backends(2).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let (counting, dead) = (Arc::clone(&tries), backends[0].address);
    let builder = Channel::builder(&target(&backends)).policy(RoundRobin).connector(move |address| {
        let counting = Arc::clone(&counting);
        async move {
            let Address::Socket(address) = address else { return Err(std::io::ErrorKind::Unsupported.into()) };
            if address == dead {
                counting.fetch_add(1, Ordering::SeqCst);
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            tokio::net::TcpStream::connect(address).await
        }
    });
    // The first pause is far longer than the test.
    let driven = drive(builder.backoff(Backoff { first: Duration::from_secs(600), ..Backoff::default() }));
    until(|| ready(&driven.channel) == 1 && tries.load(Ordering::SeqCst) == 1).await;
    for _ in 0..200 {
        call(&driven.channel, "/t/Echo").await.unwrap();
    }
    assert_eq!(tries.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn t41_a_server_that_lets_in_and_answers_nothing_is_tried_with_pauses_and_not_waited_for() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // SETTINGS, and the end once the client has taken them.
            stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            let mut heard = Vec::new();
            while !heard.ends_with(&[0, 0, 0, 4, 1, 0, 0, 0, 0]) && stream.read_buf(&mut heard).await.unwrap_or(0) > 0 {
            }
        }
    });
    let backoff = Backoff { first: Duration::from_millis(1), factor: 1.01, ..Backoff::default() };
    let driven = drive(Channel::builder(&format!("ipv4:{address}")).policy(RoundRobin).backoff(backoff));
    let status = || driven.channel.balancer().status();
    until(|| status().first().is_some_and(|status| status.failures >= 5)).await;
    until(|| matches!(status()[0].state, State::Failed { .. })).await;
    let told = call(&driven.channel, "/t/Echo").await.unwrap_err();
    assert_eq!(told.code(), tonic::Code::Unavailable, "{told}");
    serving.abort();
}

#[tokio::test]
async fn a_connector_that_panics_has_failed_to_connect() {
    let backends = backends(1).await;
    let tries = AtomicUsize::new(0);
    let builder = Channel::builder(&target(&backends)).backoff(soon()).connector(move |address| {
        let number = tries.fetch_add(1, Ordering::SeqCst);
        assert!(number != 0, "on purpose");
        async move {
            assert!(number != 1, "on purpose");
            let Address::Socket(address) = address else { return Err(std::io::ErrorKind::Unsupported.into()) };
            tokio::net::TcpStream::connect(address).await
        }
    });
    let driven = drive(builder);
    until(|| ready(&driven.channel) == 1).await;
    assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
}

#[tokio::test]
async fn t43_a_removed_backend_finishes_its_calls_and_is_closed() {
    for policy in policies() {
        removed_it_finishes(policy).await;
    }
}

async fn removed_it_finishes(policy: Arc<dyn Policy>) {
    let backends = backends(2).await;
    let told = Told::default();
    told.tell(&[&backends[0]]);
    let driven = drive_by(&policy, Channel::builder("orders").resolver(told.make()).resolve(quickly()));
    let channel = driven.channel.clone();
    let held = tokio::spawn(async move { call(&channel, "/t/Hold").await });
    until(|| backends[0].held() == 1).await;
    told.tell(&[&backends[1]]);
    until(|| backends[1].open() == 1 && ready(&driven.channel) == 1).await;
    for _ in 0..10 {
        call(&driven.channel, "/t/Echo").await.unwrap();
    }
    assert_eq!((backends[0].open(), backends[1].calls()), (1, 10), "{policy:?}");
    backends[0].release();
    assert_eq!(held.await.unwrap().unwrap(), "hello");
    until(|| backends[0].open() == 0).await;
}

#[tokio::test]
async fn t43_a_removed_backend_whose_calls_do_not_end_is_closed_by_force() {
    for policy in policies() {
        removed_it_is_closed_by_force(policy).await;
    }
}

async fn removed_it_is_closed_by_force(policy: Arc<dyn Policy>) {
    let backends = backends(2).await;
    let told = Told::default();
    told.tell(&[&backends[0]]);
    let builder = Channel::builder("orders").resolver(told.make()).resolve(quickly());
    let driven = drive_by(&policy, builder.drain_timeout(Duration::from_millis(50)));
    let channel = driven.channel.clone();
    let held = tokio::spawn(async move { call(&channel, "/t/Hold").await });
    until(|| backends[0].held() == 1).await;
    told.tell(&[&backends[1]]);
    until(|| backends[0].open() == 0).await;
    assert!(held.await.unwrap().is_err());
    until(|| in_flight(&driven.channel) == 0).await;
    call(&driven.channel, "/t/Echo").await.unwrap();
}

#[tokio::test]
async fn t44_all_backends_replaced_at_once_and_again_without_a_failed_call() {
    let told = Told::default();
    let mut current = backends(3).await;
    told.tell(&current.iter().collect::<Vec<_>>());
    let driven = drive(Channel::builder("orders").policy(RoundRobin).resolver(told.make()).resolve(quickly()));
    driven.channel.connected(Duration::from_secs(5)).await.unwrap();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let (channel, stop) = (driven.channel.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    call(&channel, "/t/Echo").await.expect("a replacement costs no call");
                }
            })
        })
        .collect();
    // Twice by each policy.
    for policy in policies().into_iter().cycle().take(14) {
        driven.channel.balancer().set_policy(policy);
        let next = backends(3).await;
        told.tell(&next.iter().collect::<Vec<_>>());
        until(|| next.iter().any(|backend| backend.calls() > 0)).await;
        // The old ones end when nobody is connected to them any more, as an orchestrator does it.
        until(|| current.iter().all(|backend| backend.open() == 0)).await;
        current = next;
    }
    stop.store(true, Ordering::SeqCst);
    for calls in calling {
        calls.await.unwrap();
    }
}

#[tokio::test]
async fn t44_backends_that_drain_one_by_one_cost_no_call() {
    let mut backends = backends(3).await;
    let driven = drive(Channel::builder(&target(&backends)).policy(RoundRobin).backoff(soon()));
    until(|| ready(&driven.channel) == 3).await;
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let channel = driven.channel.clone();
            tokio::spawn(async move {
                for _ in 0..400 {
                    call(&channel, "/t/Echo").await.expect("a drain costs no call");
                }
            })
        })
        .collect();
    for victim in &mut backends {
        victim.drain();
        until(|| victim.open() == 0).await;
        *victim = Backend::at(victim.address).await;
        until(|| ready(&driven.channel) == 3).await;
    }
    for calls in calling {
        calls.await.unwrap();
    }
}

#[tokio::test]
async fn t45_calls_race_disconnects_without_a_panic() {
    for policy in policies() {
        calls_race_disconnects(policy).await;
    }
}

async fn calls_race_disconnects(policy: Arc<dyn Policy>) {
    let mut backends = backends(2).await;
    let driven = drive_by(&policy, Channel::builder(&target(&backends)).backoff(soon()));
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let channel = driven.channel.clone();
            tokio::spawn(async move {
                for _ in 0..100 {
                    // Without a policy for retries some fail; none may panic or hang.
                    let _ = call(&channel, "/t/Echo").await;
                }
            })
        })
        .collect();
    for round in 0..10 {
        let victim = round % 2;
        backends[victim].kill();
        let address = backends[victim].address;
        tokio::task::yield_now().await;
        backends[victim] = Backend::at(address).await;
    }
    for calls in calling {
        calls.await.expect("no panic");
    }
    until(|| in_flight(&driven.channel) == 0).await;
}

#[tokio::test]
async fn t47_removed_and_added_again_quickly_it_keeps_its_connection() {
    // Pick first keeps one connection, which is that of the other one by then.
    for policy in policies().into_iter().filter(|policy| policy.dials() == Dials::All) {
        removed_and_added_again(policy).await;
    }
}

async fn removed_and_added_again(policy: Arc<dyn Policy>) {
    let backends = backends(2).await;
    let told = Told::default();
    told.tell(&[&backends[0], &backends[1]]);
    let driven = drive(Channel::builder("orders").policy(RoundRobin).resolver(told.make()).resolve(quickly()));
    until(|| ready(&driven.channel) == 2).await;
    let channel = driven.channel.clone();
    // In turn, so that each has one. A call in flight at each keeps them from being closed in between.
    let held: Vec<_> = (0..2)
        .map(|_| {
            let channel = channel.clone();
            tokio::spawn(async move { call(&channel, "/t/Hold").await })
        })
        .collect();
    until(|| backends.iter().all(|backend| backend.held() == 1)).await;
    driven.channel.balancer().set_policy(Arc::clone(&policy));
    for _ in 0..10 {
        told.tell(&[&backends[1]]);
        until(|| ready(&driven.channel) == 1).await;
        told.tell(&[&backends[0], &backends[1]]);
        until(|| ready(&driven.channel) == 2).await;
    }
    assert_eq!((backends[0].accepted(), backends[1].accepted()), (1, 1), "{policy:?}");
    assert_eq!(driven.channel.balancer().status().len(), 2, "no ghost: {policy:?}");
    backends.iter().for_each(Backend::release);
    for call in held {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn t51_discovery_goes_on_without_calls() {
    let backends = backends(2).await;
    let told = Told::default();
    told.tell(&[&backends[0]]);
    let driven = drive(Channel::builder("orders").policy(RoundRobin).resolver(told.make()).resolve(quickly()));
    until(|| backends[0].open() == 1).await;
    told.tell(&[&backends[1]]);
    until(|| backends[0].open() == 0 && backends[1].open() == 1).await;
    assert_eq!(backends[0].calls() + backends[1].calls(), 0);
    drop(driven);
}

#[tokio::test]
async fn t23_no_answer_and_empty_answers_leave_connections_alone() {
    for policy in policies() {
        let backends = backends(1).await;
        let told = Told::default();
        told.tell(&[&backends[0]]);
        let builder = Channel::builder("orders").resolver(told.make());
        let (most, timeout) = (Duration::from_millis(5), Duration::from_millis(5));
        let backoff = Backoff { first: most, most, ..Backoff::default() };
        let driven = drive(builder.resolve(ResolveRules { timeout, backoff, ..quickly() }));
        driven.channel.balancer().set_policy(Arc::clone(&policy));
        call(&driven.channel, "/t/Echo").await.unwrap();
        for meaning in [Meaning::Error, Meaning::Silence, Meaning::Nobody, Meaning::Addresses(Vec::new())] {
            told.mean(meaning.clone());
            // Three times it came to nothing, a time-out among them.
            until(|| told.asked() > 3).await;
            call(&driven.channel, "/t/Echo").await.unwrap();
            assert_eq!(ready(&driven.channel), 1, "{policy:?}, {meaning:?}");
        }
        assert_eq!((backends[0].accepted(), backends[0].calls()), (1, 5), "{policy:?}");
    }
}

#[tokio::test]
async fn t23_a_set_that_is_older_than_it_may_be_is_given_up_and_calls_are_told_why() {
    let backends = backends(1).await;
    let told = Told::default();
    told.tell(&[&backends[0]]);
    let most = Duration::from_millis(5);
    let backoff = Backoff { first: most, most, ..Backoff::default() };
    let rules = ResolveRules { backoff, max_stale: Some(Duration::from_millis(50)), ..quickly() };
    let driven = drive(Channel::builder("orders").policy(RoundRobin).resolver(told.make()).resolve(rules));
    call(&driven.channel, "/t/Echo").await.unwrap();
    told.mean(Meaning::Error);
    until(|| backends[0].open() == 0).await;
    let failed = call(&driven.channel, "/t/Echo").await.unwrap_err();
    assert!(failed.message().contains("SERVFAIL"), "{failed}");
    told.tell(&[&backends[0]]);
    until(|| ready(&driven.channel) == 1).await;
    call(&driven.channel, "/t/Echo").await.unwrap();
}

#[tokio::test]
async fn t45_all_connections_lost_at_once_cost_no_call_that_no_server_began() {
    for policy in policies() {
        lose_all_at_once(policy).await;
    }
}

async fn lose_all_at_once(policy: Arc<dyn Policy>) {
    let backends = backends(2).await;
    let driven = drive_by(&policy, Channel::builder(&target(&backends)).backoff(soon()));
    let wanted = if policy.dials() == Dials::All { 2 } else { 1 };
    until(|| ready(&driven.channel) == wanted).await;
    for _ in 0..10 {
        // Both at once, and calls before the channel's own tasks had a chance to notice.
        backends.iter().for_each(Backend::say_goaway);
        let calls: Vec<_> = (0..20)
            .map(|_| {
                let channel = driven.channel.clone();
                tokio::spawn(async move { call(&channel, "/t/Echo").await })
            })
            .collect();
        for call in calls {
            call.await
                .unwrap()
                .unwrap_or_else(|told| panic!("no server began it, so it is sent again: {policy:?}, {told}"));
        }
    }
}
