//! A channel with a resolver that fails at first.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_balance::{
    Backoff, EndpointAddress, Resolution, Resolve, ResolveError, ResolveFuture, ResolveSettings, ResolvedAddress,
    RoundRobin, Target,
};
use tidegate_grpc_channel::Channel;
use tonic::Code;

use crate::test_server::{TestServer, call, drive, until};

/// Fails `failures` times, panics once, and then answers.
struct FailingResolver {
    lookups: Arc<AtomicUsize>,
    failures: usize,
    address: EndpointAddress,
}

impl Resolve for FailingResolver {
    fn resolve(&mut self) -> ResolveFuture<'_> {
        let lookup = self.lookups.fetch_add(1, Ordering::SeqCst);
        let (failures, address) = (self.failures, self.address.clone());
        Box::pin(async move {
            match lookup {
                lookup if lookup < failures => Err(ResolveError::lookup("orders", std::io::Error::other("SERVFAIL"))),
                lookup if lookup == failures => panic!("deliberate panic"),
                _ => Ok(Resolution { addresses: vec![ResolvedAddress::new(address)], ttl: None }),
            }
        })
    }
}

fn short_intervals() -> ResolveSettings {
    let max = Duration::from_millis(5);
    let backoff = Backoff { first: max, max, ..Backoff::grpc() };
    ResolveSettings { interval_min: max, interval: max, interval_max: max, backoff, ..ResolveSettings::default() }
}

/// BA-23.
#[tokio::test]
async fn calls_before_the_first_answer_fail_or_wait() {
    let server = TestServer::start().await;
    let lookups = Arc::new(AtomicUsize::new(0));
    let (counting, address) = (Arc::clone(&lookups), EndpointAddress::Socket(server.address));
    let factory = move || {
        let resolver = FailingResolver { lookups: Arc::clone(&counting), failures: 5, address: address.clone() };
        Ok(Box::new(resolver) as Box<dyn Resolve>)
    };
    let settings = ResolveSettings {
        backoff: Backoff { first: Duration::from_millis(200), ..Backoff::grpc() },
        ..short_intervals()
    };
    let driven = drive(Channel::builder("orders").policy(RoundRobin).resolver(Box::new(factory)).resolve(settings));
    let failed = call(&driven.channel, "/t/Echo").await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("SERVFAIL"), "{failed}");
    driven
        .channel
        .set_service_config(
            r#"{"methodConfig":[{"name":[{}],"waitForReady":true}],"loadBalancingConfig":[{"round_robin":{}}]}"#,
        )
        .unwrap();
    assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
    until(|| lookups.load(Ordering::SeqCst) > 7).await;
    assert_eq!(server.accepted(), 1, "an unchanged answer opens no connection");
}

/// BA-37.
#[tokio::test]
async fn name_in_the_hosts_file_is_found() {
    let server = TestServer::start().await;
    let target = format!("dns:///localhost:{}", server.address.port());
    assert!(matches!(target.parse(), Ok(Target::Name { .. })));
    let driven = drive(Channel::builder(&target));
    assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
}
