//! Limits of requests: at a time, and per second.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tidegate_backoff::{Budget, TokenBucket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Two limits: requests that may create a shape, and requests for a known one. A storm of the former cannot keep the latter
/// out (SH-45, SH-61).
pub(crate) struct Admission {
    initial: Arc<Semaphore>,
    existing: Arc<Semaphore>,
}

/// A request that was admitted; the place is free when it is dropped.
pub(crate) struct AdmittedRequest {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Admission {
    pub(crate) fn new(initial: usize, existing: usize) -> Self {
        Self { initial: Arc::new(Semaphore::new(initial)), existing: Arc::new(Semaphore::new(existing)) }
    }

    /// Admits a request for a known shape; `None` at the limit.
    pub(crate) fn existing(&self) -> Option<AdmittedRequest> {
        Arc::clone(&self.existing).try_acquire_owned().ok().map(|permit| AdmittedRequest { _permit: Some(permit) })
    }

    /// Waits until a request that may create a shape is admitted.
    pub(crate) async fn initial(&self) -> AdmittedRequest {
        AdmittedRequest { _permit: Arc::clone(&self.initial).acquire_owned().await.ok() }
    }
}

/// Limit of addresses whose requests are counted.
const ADDRESSES_MAX: usize = 4096;
/// Seconds of requests that an address may send as a burst.
const BURST: u32 = 2;

/// Limit of requests per second and address. Addresses of IPv6 count by their /64, which one subscriber has.
pub(crate) struct RequestRate {
    budget: Option<Budget>,
    buckets: Mutex<FxHashMap<IpAddr, TokenBucket>>,
}

impl RequestRate {
    /// `per_second` 0 is without limit.
    pub(crate) fn new(per_second: u32) -> Self {
        let burst = per_second.saturating_mul(BURST);
        let budget = (per_second > 0).then(|| Budget::new(burst, Duration::from_secs(BURST.into())));
        Self { budget, buckets: Mutex::default() }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// The time until the next request of this address.
    pub(crate) fn admit(&self, peer: IpAddr, now: Instant) -> Result<(), Duration> {
        let Some(budget) = self.budget else { return Ok(()) };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let address = subscriber(peer);
        if buckets.len() >= ADDRESSES_MAX && !buckets.contains_key(&address) {
            // A client with so many addresses is not limited by one of them; the others begin with a full bucket.
            buckets.clear();
        }
        buckets.entry(address).or_insert_with(|| budget.bucket()).try_take(now)
    }
}

fn subscriber(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn requests_per_second_are_limited_by_address() {
        let (rate, start) = (RequestRate::new(10), Instant::now());
        let [one, two]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        for _ in 0..20 {
            assert_eq!(rate.admit(one, start), Ok(()));
        }
        assert!(rate.admit(one, start).is_err_and(|wait| wait <= Duration::from_millis(100)));
        assert_eq!(rate.admit("::ffff:10.0.0.2".parse().unwrap(), start), Ok(()));
        assert_eq!(rate.admit(one, start + Duration::from_millis(100)), Ok(()));
        let [near, far]: [IpAddr; 2] = ["2001:db8::1", "2001:db8:0:1::1"].map(|text| text.parse().unwrap());
        for _ in 0..20 {
            assert_eq!(rate.admit(near, start), Ok(()));
        }
        assert!(rate.admit("2001:db8::ffff".parse().unwrap(), start).is_err(), "one subscriber");
        assert_eq!(rate.admit(far, start), Ok(()));
        assert!((0..1000).all(|_| RequestRate::new(0).admit(two, start).is_ok()), "no limit");
    }

    #[test]
    fn addresses_that_are_counted_are_bounded() {
        let (rate, start) = (RequestRate::new(1), Instant::now());
        for number in 0..3 * ADDRESSES_MAX as u32 {
            assert_eq!(rate.admit(IpAddr::from(number.to_be_bytes()), start), Ok(()));
        }
        assert!(rate.buckets.lock().unwrap().len() <= ADDRESSES_MAX);
    }

    /// SH-45.
    #[tokio::test]
    async fn place_is_free_after_each_request() {
        let admission = Admission::new(1, 2);
        let first = admission.initial().await;
        let mut context = Context::from_waker(Waker::noop());
        let mut second = std::pin::pin!(admission.initial());
        assert!(second.as_mut().poll(&mut context).is_pending());
        let known = [admission.existing(), admission.existing()];
        assert!(known.iter().all(Option::is_some) && admission.existing().is_none());
        drop(first);
        assert!(second.as_mut().poll(&mut context).is_ready());
        drop(known);
        assert!(admission.existing().is_some());
    }
}
