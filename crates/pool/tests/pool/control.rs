//! What operators do: pause, resume, reconnect, change limits, close.

use tidegate_pool::{CheckoutError, Fate, Limits};

use crate::fake::{Bench, Failure, limits};

#[test]
fn a_paused_pool_grants_nothing_and_becomes_quiet() {
    let bench = Bench::eager(2, limits(2));
    let lease = bench.lease(0);
    bench.lease(1).release(Fate::Reuse, bench.now());
    bench.pool.pause();
    let mut waiter = bench.waiter(1);
    assert!(!bench.pool.is_quiet(), "core 0 has not heard of it and has a lease");
    bench.settle();
    assert!(!bench.pool.is_quiet(), "there is a lease");
    lease.release(Fate::Reuse, bench.now());
    assert!(bench.pool.is_quiet());
    assert!(waiter.poll().is_none());
    bench.pool.resume();
    bench.settle();
    assert!(!bench.pool.is_paused());
    waiter.lease().release(Fate::Reuse, bench.now());
    assert_eq!(bench.pool.counts().idle, 2);
}

#[test]
fn cleaning_is_not_quiet() {
    let bench = Bench::eager(1, limits(1));
    bench.lease(0).release(Fate::Clean, bench.now());
    bench.pool.pause();
    bench.settle();
    assert!(!bench.pool.is_quiet());
    let dirty = bench.asked[0].to_clean.borrow_mut().pop_front().unwrap();
    dirty.release(Fate::Reuse, bench.now());
    assert!(bench.pool.is_quiet());
}

#[test]
fn nothing_is_opened_while_paused() {
    let bench = Bench::new(1, limits(1));
    bench.pool.pause();
    let mut waiter = bench.waiter(0);
    assert_eq!(bench.slots(0), 0);
    bench.pool.resume();
    bench.settle();
    bench.connected(0);
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn a_slot_that_is_of_no_use_any_more_says_so_and_its_client_waits_for_another() {
    let bench = Bench::new(1, limits(1));
    let mut waiter = bench.waiter(0);
    let slot = bench.slot(0);
    assert!(!slot.is_revoked());
    bench.pool.pause();
    assert!(slot.is_revoked());
    bench.pool.resume();
    assert!(!slot.is_revoked(), "it may go on");
    bench.pool.reconnect();
    assert!(slot.is_revoked());
    slot.withdraw(bench.now());
    let slot = bench.slot(0);
    assert!(!slot.is_revoked() && waiter.poll().is_none());
    bench.pool.close(Failure(1));
    assert!(slot.is_revoked());
}

#[test]
fn reconnect_closes_idle_connections_by_sweep_and_leased_ones_at_release() {
    let bench = Bench::eager(1, limits(2));
    let (kept, idle) = (bench.lease(0), bench.lease(0));
    idle.release(Fate::Reuse, bench.now());
    bench.pool.reconnect();
    bench.sweep(0);
    assert_eq!(bench.census.open(), 1);
    kept.release(Fate::Reuse, bench.now());
    assert_eq!(bench.census.open(), 0);
    assert_eq!(bench.lease(0).id, 2);
}

#[test]
fn an_idle_connection_makes_room_and_a_leased_one_does_not() {
    let bench = Bench::eager(2, limits(3));
    let (kept, first, second) = (bench.lease(0), bench.lease(0), bench.lease(0));
    let warm = second.id;
    first.release(Fate::Reuse, bench.now());
    second.release(Fate::Reuse, bench.now());
    bench.pool.evict_idle();
    bench.settle();
    assert_eq!(bench.census.open(), 2);
    let again = bench.lease(0);
    assert_eq!(again.id, warm, "the one put down first has gone");
    bench.pool.evict_idle();
    bench.settle();
    assert_eq!((bench.census.open(), bench.pool.counts().open), (2, 2));
    drop((kept, again));
}

#[test]
fn a_pool_is_exhausted_when_nothing_is_idle_and_nothing_may_be_opened() {
    let bench = Bench::new(2, limits(2));
    let exhausted = || [0, 1].map(|core| bench.locals[core].is_exhausted());
    assert_eq!(exhausted(), [false; 2]);
    let (mut first, mut second) = (bench.waiter(0), bench.waiter(1));
    assert_eq!(exhausted(), [true; 2], "what is being opened is for those who wait");
    bench.connected(0);
    bench.connected(1);
    let (first, second) = (first.lease(), second.lease());
    assert_eq!(exhausted(), [true; 2]);
    first.release(Fate::Reuse, bench.now());
    assert_eq!(exhausted(), [false; 2], "an idle one serves clients of any core");
    assert_eq!([0, 1].map(|core| bench.locals[core].has_idle()), [true, false], "and lies on one");
    let again = bench.lease(0);
    assert_eq!(exhausted(), [true; 2]);
    assert!(!bench.locals[0].has_idle());
    second.release(Fate::Close, bench.now());
    assert_eq!(exhausted(), [false; 2], "one may be opened");
    bench.pool.set_limits(limits(1));
    bench.settle();
    assert_eq!(exhausted(), [true; 2]);
    drop(again);
}

#[test]
fn a_pool_that_must_not_connect_yet_is_exhausted() {
    let bench = Bench::new(1, limits(3));
    let mut first = bench.waiter(0);
    bench.connected(0);
    let _held = first.lease();
    let _waiting = bench.waiter(0);
    bench.failed(0, 1);
    assert!(bench.locals[0].is_exhausted());
    bench.advance(limits(3).retry_max);
    bench.sweep(0);
    assert!(!bench.locals[0].is_exhausted());
}

#[test]
fn an_idle_connection_of_an_older_generation_is_never_granted() {
    let bench = Bench::eager(1, limits(1));
    bench.lease(0).release(Fate::Reuse, bench.now());
    bench.pool.reconnect();
    assert_eq!(bench.lease(0).id, 1);
}

#[test]
fn a_connect_begun_before_reconnect_is_of_the_older_generation() {
    let bench = Bench::new(1, limits(1));
    let mut waiter = bench.waiter(0);
    let slot = bench.slot(0);
    bench.pool.reconnect();
    slot.fulfil(crate::fake::Conn::open(&bench.census), bench.now());
    assert!(waiter.poll().is_none());
    bench.connected(0);
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn a_lowered_size_closes_leased_connections_at_release_and_idle_ones_by_sweep() {
    let bench = Bench::eager(2, limits(4));
    let leases = [bench.lease(0), bench.lease(0), bench.lease(1), bench.lease(1)];
    let [a, b, c, d] = leases;
    a.release(Fate::Reuse, bench.now());
    bench.pool.set_limits(limits(1));
    for lease in [b, c] {
        lease.release(Fate::Reuse, bench.now());
    }
    assert_eq!(bench.pool.counts().open, 2);
    bench.sweep(0);
    assert_eq!(bench.pool.counts().open, 1);
    d.release(Fate::Reuse, bench.now());
    assert_eq!((bench.pool.counts().open, bench.census.open()), (1, 1));
    assert_eq!(bench.pool.limits().size, 1);
}

#[test]
fn a_raised_size_serves_waiters() {
    let bench = Bench::eager(1, limits(1));
    let _lease = bench.lease(0);
    let mut waiter = bench.waiter(0);
    bench.census.most.store(2, std::sync::atomic::Ordering::SeqCst);
    bench.pool.set_limits(limits(2));
    bench.settle();
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn a_changed_lifetime_holds_for_connections_that_are_open() {
    let bench = Bench::eager(1, limits(1));
    bench.lease(0).release(Fate::Reuse, bench.now());
    bench.advance_ms(5_000);
    let lifetime = Some(std::time::Duration::from_secs(4));
    bench.pool.set_limits(Limits { lifetime, ..limits(1) });
    assert_eq!(bench.lease(0).id, 1);
}

#[test]
fn a_closed_pool_answers_everybody_with_its_error_and_closes_everything() {
    let bench = Bench::new(2, limits(2));
    let mut first = bench.waiter(0);
    bench.connected(0);
    let lease = first.lease();
    let mut connecting = bench.waiter(1);
    let slot = bench.slot(1);
    bench.pool.close(Failure(9));
    bench.settle();
    let closed = |outcome| matches!(outcome, Some(Err(CheckoutError::Closed(e))) if *e == Failure(9));
    assert!(closed(connecting.poll()));
    assert!(closed(bench.client(0).1));
    slot.fulfil(crate::fake::Conn::open(&bench.census), bench.now());
    lease.release(Fate::Reuse, bench.now());
    assert_eq!((bench.census.open(), bench.pool.counts().open), (0, 0));
}

#[test]
fn the_oldest_wait_is_shown() {
    let bench = Bench::new(2, limits(1));
    let start = bench.now();
    let _first = bench.waiter(1);
    bench.advance_ms(5);
    let _second = bench.waiter(0);
    assert_eq!(bench.pool.counts().oldest_wait, Some(start));
}
