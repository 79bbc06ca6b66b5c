//! A channel to a name, with a resolver that fails at first.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_balance::{
    Address, Backoff, Channel, Resolution, Resolve, ResolveError, ResolveRules, Resolved, Resolving, RoundRobin, Target,
};
use tonic::Code;

use crate::backend::{Backend, call, drive, until};

/// Fails so often, panics once, and then answers.
struct Late {
    looks: Arc<AtomicUsize>,
    failures: usize,
    address: Address,
}

impl Resolve for Late {
    fn resolve(&mut self) -> Resolving<'_> {
        let look = self.looks.fetch_add(1, Ordering::SeqCst);
        let (failures, address) = (self.failures, self.address.clone());
        Box::pin(async move {
            match look {
                look if look < failures => Err(ResolveError::lookup("orders", std::io::Error::other("SERVFAIL"))),
                look if look == failures => panic!("a resolver that panics"),
                _ => Ok(Resolution { found: vec![Resolved::new(address)], ttl: None }),
            }
        })
    }
}

fn quickly() -> ResolveRules {
    let most = Duration::from_millis(5);
    let backoff = Backoff { first: most, most, ..Backoff::default() };
    ResolveRules { interval_min: most, interval: most, interval_max: most, backoff, ..ResolveRules::default() }
}

#[tokio::test]
async fn t23_before_the_first_answer_calls_fail_with_its_cause_or_wait_for_it() {
    let backend = Backend::start().await;
    let looks = Arc::new(AtomicUsize::new(0));
    let (counting, address) = (Arc::clone(&looks), Address::Socket(backend.address));
    let make = move || {
        let late = Late { looks: Arc::clone(&counting), failures: 5, address: address.clone() };
        Ok(Box::new(late) as Box<dyn Resolve>)
    };
    let slowly =
        ResolveRules { backoff: Backoff { first: Duration::from_millis(200), ..Backoff::default() }, ..quickly() };
    let driven = drive(Channel::builder("orders").policy(RoundRobin).resolver(Box::new(make)).resolve(slowly));
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
    until(|| looks.load(Ordering::SeqCst) > 7).await;
    assert_eq!(backend.accepted(), 1, "answers that are the same connect to nobody again");
}

#[tokio::test]
async fn t37_a_name_of_the_hosts_file_is_found() {
    let backend = Backend::start().await;
    let target = format!("dns:///localhost:{}", backend.address.port());
    assert!(matches!(target.parse(), Ok(Target::Name { .. })));
    let driven = drive(Channel::builder(&target));
    assert_eq!(call(&driven.channel, "/t/Echo").await.unwrap(), "hello");
}
