//! Backends that fail, drain, and are added and removed during calls.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_balance::{
    Backoff, ConnectStrategy, ConnectivityState, EndpointAddress, Jitter, Policy, Resolution, Resolve, ResolveError,
    ResolveFuture, ResolveSettings, ResolvedAddress, ResolverFactory, RoundRobin,
};
use tidegate_grpc_channel::{Channel, ChannelBuilder};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::calls::policies;
use crate::test_server::{
    DrivenChannel, TestServer, call, drive, in_flight, ready, servers, short_backoff, target, until,
};

/// Result of a lookup.
#[derive(Clone, Debug)]
pub(crate) enum LookupResult {
    Addresses(Vec<EndpointAddress>),
    /// SERVFAIL.
    Error,
    /// No answer.
    Hang,
    /// The name does not exist.
    NoName,
}

/// A resolver whose result the test sets.
#[derive(Clone)]
pub(crate) struct TestResolver(Arc<Mutex<(LookupResult, usize)>>);

impl Default for TestResolver {
    fn default() -> Self {
        Self(Arc::new(Mutex::new((LookupResult::Addresses(Vec::new()), 0))))
    }
}

impl TestResolver {
    fn set_servers(&self, servers: &[&TestServer]) {
        self.set(LookupResult::Addresses(
            servers.iter().map(|server| EndpointAddress::Socket(server.address)).collect(),
        ));
    }

    fn set(&self, result: LookupResult) {
        *self.0.lock().expect("not poisoned") = (result, 0);
    }

    /// Number of lookups since the result was set.
    fn lookups(&self) -> usize {
        self.0.lock().expect("not poisoned").1
    }

    fn factory(&self) -> ResolverFactory {
        let resolver = self.clone();
        Box::new(move || Ok(Box::new(resolver.clone())))
    }
}

impl Resolve for TestResolver {
    fn resolve(&mut self) -> ResolveFuture<'_> {
        let mut set = self.0.lock().expect("not poisoned");
        set.1 += 1;
        let result = set.0.clone();
        Box::pin(async move {
            let addresses = match result {
                LookupResult::Addresses(list) => list.into_iter().map(ResolvedAddress::new).collect(),
                LookupResult::Error => return Err(ResolveError::lookup("orders", std::io::Error::other("SERVFAIL"))),
                LookupResult::Hang => std::future::pending().await,
                LookupResult::NoName => return Err(ResolveError::NoAddresses { name: "orders".to_owned() }),
            };
            Ok(Resolution { addresses, ttl: None })
        })
    }
}

fn drive_with(policy: &Arc<dyn Policy>, builder: ChannelBuilder) -> DrivenChannel {
    let driven = drive(builder);
    driven.channel.balancer().set_policy(Arc::clone(policy));
    driven
}

fn short_intervals() -> ResolveSettings {
    let max = Duration::from_millis(5);
    ResolveSettings {
        interval_min: max,
        interval: max,
        interval_max: max,
        jitter: Jitter::NONE,
        ..ResolveSettings::default()
    }
}

/// BA-40.
#[tokio::test]
async fn silent_backend_is_removed_by_keep_alive() {
    let servers = servers(2).await;
    let pings = (Duration::from_millis(30), Duration::from_millis(30));
    let builder = Channel::builder(&target(&servers)).policy(RoundRobin).keep_alive(pings.0, pings.1);
    let driven = drive(builder.connect_timeout(Duration::from_millis(200)).backoff(short_backoff()));
    until(|| ready(&driven.channel) == 2).await;
    servers[0].blackhole();
    until(|| ready(&driven.channel) == 1).await;
    // The server still accepts connections, but sends nothing: not ready.
    let accepted = servers[0].accepted();
    until(|| servers[0].accepted() >= accepted + 2).await;
    for _ in 0..20 {
        call(&driven.channel, "/t/Echo").await.unwrap();
    }
    assert_eq!((servers[0].calls(), servers[1].calls()), (0, 20));
}

/// BA-41.
#[tokio::test]
async fn failed_connect_is_retried_with_backoff() {
    let servers = servers(2).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let (counting, dead) = (Arc::clone(&tries), servers[0].address);
    let builder = Channel::builder(&target(&servers)).policy(RoundRobin).connector(move |address| {
        let counting = Arc::clone(&counting);
        async move {
            let EndpointAddress::Socket(address) = address else { return Err(std::io::ErrorKind::Unsupported.into()) };
            if address == dead {
                counting.fetch_add(1, Ordering::SeqCst);
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            tokio::net::TcpStream::connect(address).await
        }
    });
    // The first delay is far longer than the test.
    let driven = drive(builder.backoff(Backoff { first: Duration::from_secs(600), ..Backoff::grpc() }));
    until(|| ready(&driven.channel) == 1 && tries.load(Ordering::SeqCst) == 1).await;
    for _ in 0..200 {
        call(&driven.channel, "/t/Echo").await.unwrap();
    }
    assert_eq!(tries.load(Ordering::SeqCst), 1);
}

/// BA-41.
#[tokio::test]
async fn connection_without_a_response_counts_as_failed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // SETTINGS; closed once the client has acknowledged them.
            stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(&[0, 0, 0, 4, 1, 0, 0, 0, 0]) && stream.read_buf(&mut read).await.unwrap_or(0) > 0 {}
        }
    });
    let backoff = Backoff { first: Duration::from_millis(1), factor: 1.01, ..Backoff::grpc() };
    let driven = drive(Channel::builder(&format!("ipv4:{address}")).policy(RoundRobin).backoff(backoff));
    let status = || driven.channel.balancer().status();
    until(|| status().first().is_some_and(|status| status.failures >= 5)).await;
    until(|| matches!(status()[0].state, ConnectivityState::Failed { .. })).await;
    let error = call(&driven.channel, "/t/Echo").await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unavailable, "{error}");
    serving.abort();
}

#[tokio::test]
async fn connector_panic_is_a_failed_connect() {
    let servers = servers(1).await;
    let tries = AtomicUsize::new(0);
    let builder = Channel::builder(&target(&servers)).backoff(short_backoff()).connector(move |address| {
        let number = tries.fetch_add(1, Ordering::SeqCst);
        assert!(number != 0, "deliberate panic");
        async move {
            assert!(number != 1, "deliberate panic");
            let EndpointAddress::Socket(address) = address else { return Err(std::io::ErrorKind::Unsupported.into()) };
            tokio::net::TcpStream::connect(address).await
        }
    });
    let driven = drive(builder);
    until(|| ready(&driven.channel) == 1).await;
    assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
}

/// BA-43.
#[tokio::test]
async fn removed_backend_finishes_its_calls() {
    for policy in policies() {
        check_finished_calls(policy).await;
    }
}

async fn check_finished_calls(policy: Arc<dyn Policy>) {
    let servers = servers(2).await;
    let resolver = TestResolver::default();
    resolver.set_servers(&[&servers[0]]);
    let driven =
        drive_with(&policy, Channel::builder("orders").resolver(resolver.factory()).resolve(short_intervals()));
    let channel = driven.channel.clone();
    let held = tokio::spawn(async move { call(&channel, "/t/Hold").await });
    until(|| servers[0].held() == 1).await;
    resolver.set_servers(&[&servers[1]]);
    until(|| servers[1].open() == 1 && ready(&driven.channel) == 1).await;
    for _ in 0..10 {
        call(&driven.channel, "/t/Echo").await.unwrap();
    }
    assert_eq!((servers[0].open(), servers[1].calls()), (1, 10), "{policy:?}");
    servers[0].release();
    assert_eq!(held.await.unwrap().unwrap(), "hello");
    until(|| servers[0].open() == 0).await;
}

/// BA-43.
#[tokio::test]
async fn removed_backend_is_closed_after_drain_timeout() {
    for policy in policies() {
        check_drain_timeout(policy).await;
    }
}

async fn check_drain_timeout(policy: Arc<dyn Policy>) {
    let servers = servers(2).await;
    let resolver = TestResolver::default();
    resolver.set_servers(&[&servers[0]]);
    let builder = Channel::builder("orders").resolver(resolver.factory()).resolve(short_intervals());
    let driven = drive_with(&policy, builder.drain_timeout(Duration::from_millis(50)));
    let channel = driven.channel.clone();
    let held = tokio::spawn(async move { call(&channel, "/t/Hold").await });
    until(|| servers[0].held() == 1).await;
    resolver.set_servers(&[&servers[1]]);
    until(|| servers[0].open() == 0).await;
    assert!(held.await.unwrap().is_err());
    until(|| in_flight(&driven.channel) == 0).await;
    call(&driven.channel, "/t/Echo").await.unwrap();
}

/// BA-44.
#[tokio::test]
async fn replacing_all_backends_loses_no_call() {
    let resolver = TestResolver::default();
    let mut current = servers(3).await;
    resolver.set_servers(&current.iter().collect::<Vec<_>>());
    let driven =
        drive(Channel::builder("orders").policy(RoundRobin).resolver(resolver.factory()).resolve(short_intervals()));
    driven.channel.connected(Duration::from_secs(5)).await.unwrap();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let (channel, stop) = (driven.channel.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    call(&channel, "/t/Echo").await.expect("replacing backends loses no call");
                }
            })
        })
        .collect();
    // Twice with each policy.
    for policy in policies().into_iter().cycle().take(14) {
        driven.channel.balancer().set_policy(policy);
        let next = servers(3).await;
        resolver.set_servers(&next.iter().collect::<Vec<_>>());
        until(|| next.iter().any(|server| server.calls() > 0)).await;
        // The old servers end when no client is connected, as with an orchestrator.
        until(|| current.iter().all(|server| server.open() == 0)).await;
        current = next;
    }
    stop.store(true, Ordering::SeqCst);
    for calls in calling {
        calls.await.unwrap();
    }
}

/// BA-44.
#[tokio::test]
async fn rolling_drain_loses_no_call() {
    let mut servers = servers(3).await;
    let driven = drive(Channel::builder(&target(&servers)).policy(RoundRobin).backoff(short_backoff()));
    until(|| ready(&driven.channel) == 3).await;
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let channel = driven.channel.clone();
            tokio::spawn(async move {
                for _ in 0..400 {
                    call(&channel, "/t/Echo").await.expect("a drain loses no call");
                }
            })
        })
        .collect();
    for victim in &mut servers {
        victim.drain();
        until(|| victim.open() == 0).await;
        *victim = TestServer::at(victim.address).await;
        until(|| ready(&driven.channel) == 3).await;
    }
    for calls in calling {
        calls.await.unwrap();
    }
}

/// BA-45.
#[tokio::test]
async fn calls_survive_racing_disconnects() {
    for policy in policies() {
        check_racing_disconnects(policy).await;
    }
}

async fn check_racing_disconnects(policy: Arc<dyn Policy>) {
    let mut servers = servers(2).await;
    let driven = drive_with(&policy, Channel::builder(&target(&servers)).backoff(short_backoff()));
    let calling: Vec<_> = (0..8)
        .map(|_| {
            let channel = driven.channel.clone();
            tokio::spawn(async move {
                for _ in 0..100 {
                    // Some calls fail without a retry policy; none may panic or hang.
                    let _ = call(&channel, "/t/Echo").await;
                }
            })
        })
        .collect();
    for round in 0..10 {
        let victim = round % 2;
        servers[victim].kill();
        let address = servers[victim].address;
        tokio::task::yield_now().await;
        servers[victim] = TestServer::at(address).await;
    }
    for calls in calling {
        calls.await.expect("no panic");
    }
    until(|| in_flight(&driven.channel) == 0).await;
}

/// BA-47.
#[tokio::test]
async fn backend_added_again_keeps_its_connection() {
    // Pick first keeps one connection, that of the other backend.
    for policy in policies().into_iter().filter(|policy| policy.connect_strategy() == ConnectStrategy::All) {
        check_added_again(policy).await;
    }
}

async fn check_added_again(policy: Arc<dyn Policy>) {
    let servers = servers(2).await;
    let resolver = TestResolver::default();
    resolver.set_servers(&[&servers[0], &servers[1]]);
    let driven =
        drive(Channel::builder("orders").policy(RoundRobin).resolver(resolver.factory()).resolve(short_intervals()));
    until(|| ready(&driven.channel) == 2).await;
    let channel = driven.channel.clone();
    // Round robin: one call on each. A call in flight keeps the backend open after its removal.
    let held: Vec<_> = (0..2)
        .map(|_| {
            let channel = channel.clone();
            tokio::spawn(async move { call(&channel, "/t/Hold").await })
        })
        .collect();
    until(|| servers.iter().all(|server| server.held() == 1)).await;
    driven.channel.balancer().set_policy(Arc::clone(&policy));
    for _ in 0..10 {
        resolver.set_servers(&[&servers[1]]);
        until(|| ready(&driven.channel) == 1).await;
        resolver.set_servers(&[&servers[0], &servers[1]]);
        until(|| ready(&driven.channel) == 2).await;
    }
    assert_eq!((servers[0].accepted(), servers[1].accepted()), (1, 1), "{policy:?}");
    assert_eq!(driven.channel.balancer().status().len(), 2, "duplicate endpoints: {policy:?}");
    servers.iter().for_each(TestServer::release);
    for call in held {
        call.await.unwrap().unwrap();
    }
}

/// BA-51.
#[tokio::test]
async fn names_are_resolved_without_calls() {
    let servers = servers(2).await;
    let resolver = TestResolver::default();
    resolver.set_servers(&[&servers[0]]);
    let driven =
        drive(Channel::builder("orders").policy(RoundRobin).resolver(resolver.factory()).resolve(short_intervals()));
    until(|| servers[0].open() == 1).await;
    resolver.set_servers(&[&servers[1]]);
    until(|| servers[0].open() == 0 && servers[1].open() == 1).await;
    assert_eq!(servers[0].calls() + servers[1].calls(), 0);
    drop(driven);
}

/// BA-23.
#[tokio::test]
async fn failed_lookups_keep_connections() {
    for policy in policies() {
        let servers = servers(1).await;
        let resolver = TestResolver::default();
        resolver.set_servers(&[&servers[0]]);
        let builder = Channel::builder("orders").resolver(resolver.factory());
        let (max, timeout) = (Duration::from_millis(5), Duration::from_millis(5));
        let backoff = Backoff { first: max, max, ..Backoff::grpc() };
        let driven = drive(builder.resolve(ResolveSettings { timeout, backoff, ..short_intervals() }));
        driven.channel.balancer().set_policy(Arc::clone(&policy));
        call(&driven.channel, "/t/Echo").await.unwrap();
        for result in
            [LookupResult::Error, LookupResult::Hang, LookupResult::NoName, LookupResult::Addresses(Vec::new())]
        {
            resolver.set(result.clone());
            // Three lookups without a result, a timeout among them.
            until(|| resolver.lookups() > 3).await;
            call(&driven.channel, "/t/Echo").await.unwrap();
            assert_eq!(ready(&driven.channel), 1, "{policy:?}, {result:?}");
        }
        assert_eq!((servers[0].accepted(), servers[0].calls()), (1, 5), "{policy:?}");
    }
}

/// BA-23.
#[tokio::test]
async fn stale_set_is_discarded_with_its_error() {
    let servers = servers(1).await;
    let resolver = TestResolver::default();
    resolver.set_servers(&[&servers[0]]);
    let max = Duration::from_millis(5);
    let backoff = Backoff { first: max, max, ..Backoff::grpc() };
    let settings = ResolveSettings { backoff, max_stale: Some(Duration::from_millis(50)), ..short_intervals() };
    let driven = drive(Channel::builder("orders").policy(RoundRobin).resolver(resolver.factory()).resolve(settings));
    call(&driven.channel, "/t/Echo").await.unwrap();
    resolver.set(LookupResult::Error);
    until(|| servers[0].open() == 0).await;
    let failed = call(&driven.channel, "/t/Echo").await.unwrap_err();
    assert!(failed.message().contains("SERVFAIL"), "{failed}");
    resolver.set_servers(&[&servers[0]]);
    until(|| ready(&driven.channel) == 1).await;
    call(&driven.channel, "/t/Echo").await.unwrap();
}

/// BA-45.
#[tokio::test]
async fn losing_all_connections_loses_no_unbegun_call() {
    for policy in policies() {
        check_losing_all_connections(policy).await;
    }
}

async fn check_losing_all_connections(policy: Arc<dyn Policy>) {
    let servers = servers(2).await;
    let driven = drive_with(&policy, Channel::builder(&target(&servers)).backoff(short_backoff()));
    let expected = if policy.connect_strategy() == ConnectStrategy::All { 2 } else { 1 };
    until(|| ready(&driven.channel) == expected).await;
    for _ in 0..10 {
        // Both together, with calls before the tasks of the channel run.
        servers.iter().for_each(TestServer::send_goaway);
        let calls: Vec<_> = (0..20)
            .map(|_| {
                let channel = driven.channel.clone();
                tokio::spawn(async move { call(&channel, "/t/Echo").await })
            })
            .collect();
        for call in calls {
            call.await
                .unwrap()
                .unwrap_or_else(|error| panic!("an unprocessed call is sent again: {policy:?}, {error}"));
        }
    }
}
