//! Unit tests of the limiter, in a file of their own because `limiter.rs` is compiled a second time under loom.

use crate::limiter::{Limiter, Permits};
use crate::monotonic_time::MonotonicTime;

fn at(seconds: f64) -> MonotonicTime {
    MonotonicTime((seconds * 1e6) as u64)
}

fn woken(release: impl FnOnce(&mut dyn FnMut(usize))) -> Vec<usize> {
    let mut woken = Vec::new();
    release(&mut |shard| woken.push(shard));
    woken
}

#[test]
fn permits_do_not_exceed_the_limit() {
    let limiter = Limiter::new(3, None);
    assert_eq!(limiter.acquire(0, 2, at(0.0)).count, 2);
    assert_eq!(limiter.acquire(1, 2, at(0.0)).count, 1);
    assert_eq!(limiter.acquire(1, 2, at(0.0)), Permits { count: 0, retry_at: None });
    assert_eq!(woken(|wake| limiter.release(1, wake)), [1]);
    assert_eq!(limiter.acquire(1, 2, at(0.0)).count, 1);
}

#[test]
fn refused_shard_has_priority() {
    let limiter = Limiter::new(1, None);
    assert_eq!(limiter.acquire(0, 1, at(0.0)).count, 1);
    assert_eq!(limiter.acquire(1, 1, at(0.0)).count, 0);
    limiter.release(1, |_| {});
    assert_eq!(limiter.acquire(0, 1, at(0.0)).count, 0);
    assert_eq!(limiter.acquire(1, 1, at(0.0)).count, 1);
    limiter.release(1, |_| {});
    assert_eq!(limiter.acquire(1, 1, at(0.0)).count, 0);
    assert_eq!(limiter.acquire(0, 1, at(0.0)).count, 1);
}

#[test]
fn lowered_limit_applies_as_permits_are_released() {
    let limiter = Limiter::new(4, None);
    assert_eq!(limiter.acquire(0, 4, at(0.0)).count, 4);
    limiter.set_limit(1, |_| {});
    limiter.release(3, |_| {});
    assert_eq!(limiter.acquire(0, 1, at(0.0)).count, 0);
    limiter.release(1, |_| {});
    assert_eq!((limiter.acquire(0, 1, at(0.0)).count, limiter.in_use()), (1, 1));
}

#[test]
fn rate_is_kept_and_shared_between_shards() {
    let limiter = Limiter::new(1000, Some(10.0));
    let mut starts = [0, 0];
    for tick in 0..10_000 {
        for shard in [0, 1] {
            let grant = limiter.acquire(shard, 5, at(f64::from(tick) / 1000.0));
            starts[shard] += grant.count;
            limiter.release(grant.count, |_| {});
        }
    }
    assert!(starts.iter().sum::<usize>().abs_diff(100) <= 1, "{starts:?}");
    assert!(starts[0].abs_diff(starts[1]) <= 2, "{starts:?}");
}

#[test]
fn rate_zero_is_a_pause() {
    let limiter = Limiter::new(1, Some(0.0));
    assert_eq!(limiter.acquire(0, 1, at(1e6)), Permits { count: 0, retry_at: None });
    assert_eq!(woken(|wake| limiter.set_rate(Some(1.0), at(1e6), wake)), [0]);
    let retry_at = limiter.acquire(0, 1, at(1e6)).retry_at.expect("a time");
    assert_eq!(limiter.acquire(0, 1, retry_at).count, 1);
}

#[test]
fn unused_permits_do_not_end_a_pause() {
    let limiter = Limiter::new(10, Some(100.0));
    let taken = limiter.acquire(0, 5, at(1.0)).count;
    limiter.set_rate(Some(0.0), at(1.0), |_| {});
    limiter.release_unused(taken, |_| {});
    assert_eq!((limiter.acquire(0, 1, at(1e6)).count, limiter.in_use()), (0, 0));
}
