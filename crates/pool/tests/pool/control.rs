//! Operations of operators: pause, resume, reconnect, limits, close.

use tidegate_pool::{CheckoutError, Limits, ReleaseAction};

use crate::fake::{Failure, Fixture, limits};

#[test]
fn paused_pool_grants_nothing_and_becomes_quiescent() {
    let fixture = Fixture::eager(2, limits(2));
    let lease = fixture.lease(0);
    fixture.lease(1).release(ReleaseAction::Reuse, fixture.now());
    fixture.pool.pause();
    let mut waiter = fixture.waiter(1);
    assert!(!fixture.pool.is_quiescent(), "core 0 has not applied the pause and has a lease");
    fixture.deliver_all();
    assert!(!fixture.pool.is_quiescent(), "a lease is held");
    lease.release(ReleaseAction::Reuse, fixture.now());
    assert!(fixture.pool.is_quiescent());
    assert!(waiter.poll().is_none());
    fixture.pool.resume();
    fixture.deliver_all();
    assert!(!fixture.pool.is_paused());
    waiter.lease().release(ReleaseAction::Reuse, fixture.now());
    assert_eq!(fixture.pool.counts().idle, 2);
}

#[test]
fn cleaning_is_not_quiescent() {
    let fixture = Fixture::eager(1, limits(1));
    fixture.lease(0).release(ReleaseAction::Clean, fixture.now());
    fixture.pool.pause();
    fixture.deliver_all();
    assert!(!fixture.pool.is_quiescent());
    let dirty = fixture.calls[0].to_clean.borrow_mut().pop_front().unwrap();
    dirty.release(ReleaseAction::Reuse, fixture.now());
    assert!(fixture.pool.is_quiescent());
}

#[test]
fn paused_pool_opens_nothing() {
    let fixture = Fixture::new(1, limits(1));
    fixture.pool.pause();
    let mut waiter = fixture.waiter(0);
    assert_eq!(fixture.pending(0), 0);
    fixture.pool.resume();
    fixture.deliver_all();
    fixture.connected(0);
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn useless_pending_connect_is_revoked() {
    let fixture = Fixture::new(1, limits(1));
    let mut waiter = fixture.waiter(0);
    let pending = fixture.next_pending(0);
    assert!(!pending.is_revoked());
    fixture.pool.pause();
    assert!(pending.is_revoked());
    fixture.pool.resume();
    assert!(!pending.is_revoked(), "resumed");
    fixture.pool.reconnect();
    assert!(pending.is_revoked());
    pending.cancel(fixture.now());
    let pending = fixture.next_pending(0);
    assert!(!pending.is_revoked() && waiter.poll().is_none());
    fixture.pool.close(Failure(1));
    assert!(pending.is_revoked());
}

#[test]
fn reconnect_closes_idle_and_released_connections() {
    let fixture = Fixture::eager(1, limits(2));
    let (kept, idle) = (fixture.lease(0), fixture.lease(0));
    idle.release(ReleaseAction::Reuse, fixture.now());
    fixture.pool.reconnect();
    fixture.maintain(0);
    assert_eq!(fixture.counter.open(), 1);
    kept.release(ReleaseAction::Reuse, fixture.now());
    assert_eq!(fixture.counter.open(), 0);
    assert_eq!(fixture.lease(0).id, 2);
}

#[test]
fn reconnect_closes_idle_without_maintenance() {
    let fixture = Fixture::eager(2, limits(3));
    let (kept, first, second) = (fixture.lease(0), fixture.lease(0), fixture.lease(1));
    first.release(ReleaseAction::Reuse, fixture.now());
    second.release(ReleaseAction::Reuse, fixture.now());
    fixture.pool.reconnect();
    fixture.deliver_all();
    assert_eq!((fixture.counter.open(), fixture.pool.counts().idle), (1, 0));
    let new = fixture.lease(1);
    new.release(ReleaseAction::Reuse, fixture.now());
    fixture.pool.set_limits(limits(3));
    fixture.deliver_all();
    assert_eq!(fixture.pool.counts().idle, 1, "a change of limits replaces no connection");
    drop(kept);
}

#[test]
fn adopted_connection_may_exceed_the_size() {
    let fixture = Fixture::eager(1, limits(1));
    fixture.counter.open_max.store(2, std::sync::atomic::Ordering::SeqCst);
    let lease = fixture.lease(0);
    let adopted = fixture.adopt(0);
    assert_eq!((fixture.pool.counts().open, fixture.pool.counts().active), (2, 2));
    adopted.release(ReleaseAction::Reuse, fixture.now());
    assert_eq!((fixture.pool.counts().open, fixture.counter.open()), (1, 1), "it is surplus");
    drop(lease);
    fixture.adopt(0).release(ReleaseAction::Reuse, fixture.now());
    assert_eq!((fixture.pool.counts().idle, fixture.pool.counts().open), (1, 1));
}

#[test]
fn eviction_closes_idle_but_not_leased_connections() {
    let fixture = Fixture::eager(2, limits(3));
    let (kept, first, second) = (fixture.lease(0), fixture.lease(0), fixture.lease(0));
    let warm = second.id;
    first.release(ReleaseAction::Reuse, fixture.now());
    second.release(ReleaseAction::Reuse, fixture.now());
    fixture.pool.evict_idle();
    fixture.deliver_all();
    assert_eq!(fixture.counter.open(), 2);
    let again = fixture.lease(0);
    assert_eq!(again.id, warm, "the least recently used one was closed");
    fixture.pool.evict_idle();
    fixture.deliver_all();
    assert_eq!((fixture.counter.open(), fixture.pool.counts().open), (2, 2));
    drop((kept, again));
}

#[test]
fn pool_is_exhausted_without_idle_or_free_permits() {
    let fixture = Fixture::new(2, limits(2));
    let exhausted = || [0, 1].map(|core| fixture.locals[core].is_exhausted());
    assert_eq!(exhausted(), [false; 2]);
    let (mut first, mut second) = (fixture.waiter(0), fixture.waiter(1));
    assert_eq!(exhausted(), [true; 2], "connects in progress are for waiting clients");
    fixture.connected(0);
    fixture.connected(1);
    let (first, second) = (first.lease(), second.lease());
    assert_eq!(exhausted(), [true; 2]);
    first.release(ReleaseAction::Reuse, fixture.now());
    assert_eq!(exhausted(), [false; 2], "an idle connection serves clients of any core");
    assert_eq!([0, 1].map(|core| fixture.locals[core].has_idle()), [true, false], "and belongs to one core");
    let again = fixture.lease(0);
    assert_eq!(exhausted(), [true; 2]);
    assert!(!fixture.locals[0].has_idle());
    second.release(ReleaseAction::Close, fixture.now());
    assert_eq!(exhausted(), [false; 2], "a permit is free");
    fixture.pool.set_limits(limits(1));
    fixture.deliver_all();
    assert_eq!(exhausted(), [true; 2]);
    drop(again);
}

#[test]
fn pool_in_connect_backoff_is_exhausted() {
    let fixture = Fixture::new(1, limits(3));
    let mut first = fixture.waiter(0);
    fixture.connected(0);
    let _held = first.lease();
    let _waiting = fixture.waiter(0);
    fixture.failed(0, 1);
    assert!(fixture.locals[0].is_exhausted());
    fixture.advance(limits(3).retry_max);
    fixture.maintain(0);
    assert!(!fixture.locals[0].is_exhausted());
}

#[test]
fn idle_connection_of_old_generation_is_not_granted() {
    let fixture = Fixture::eager(1, limits(1));
    fixture.lease(0).release(ReleaseAction::Reuse, fixture.now());
    fixture.pool.reconnect();
    assert_eq!(fixture.lease(0).id, 1);
}

#[test]
fn connect_begun_before_reconnect_is_discarded() {
    let fixture = Fixture::new(1, limits(1));
    let mut waiter = fixture.waiter(0);
    let pending = fixture.next_pending(0);
    fixture.pool.reconnect();
    pending.succeed(crate::fake::Conn::open(&fixture.counter), fixture.now());
    assert!(waiter.poll().is_none());
    fixture.connected(0);
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn lowered_size_closes_released_and_idle_connections() {
    let fixture = Fixture::eager(2, limits(4));
    let leases = [fixture.lease(0), fixture.lease(0), fixture.lease(1), fixture.lease(1)];
    let [a, b, c, d] = leases;
    a.release(ReleaseAction::Reuse, fixture.now());
    fixture.pool.set_limits(limits(1));
    for lease in [b, c] {
        lease.release(ReleaseAction::Reuse, fixture.now());
    }
    assert_eq!(fixture.pool.counts().open, 2);
    fixture.maintain(0);
    assert_eq!(fixture.pool.counts().open, 1);
    d.release(ReleaseAction::Reuse, fixture.now());
    assert_eq!((fixture.pool.counts().open, fixture.counter.open()), (1, 1));
    assert_eq!(fixture.pool.limits().size, 1);
}

#[test]
fn raised_size_serves_waiters() {
    let fixture = Fixture::eager(1, limits(1));
    let _lease = fixture.lease(0);
    let mut waiter = fixture.waiter(0);
    fixture.counter.open_max.store(2, std::sync::atomic::Ordering::SeqCst);
    fixture.pool.set_limits(limits(2));
    fixture.deliver_all();
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn changed_lifetime_applies_to_open_connections() {
    let fixture = Fixture::eager(1, limits(1));
    fixture.lease(0).release(ReleaseAction::Reuse, fixture.now());
    fixture.advance_ms(5_000);
    let lifetime = Some(std::time::Duration::from_secs(4));
    fixture.pool.set_limits(Limits { lifetime, ..limits(1) });
    assert_eq!(fixture.lease(0).id, 1);
}

#[test]
fn closed_pool_fails_clients_and_closes_connections() {
    let fixture = Fixture::new(2, limits(2));
    let mut first = fixture.waiter(0);
    fixture.connected(0);
    let lease = first.lease();
    let mut connecting = fixture.waiter(1);
    let pending = fixture.next_pending(1);
    fixture.pool.close(Failure(9));
    fixture.deliver_all();
    let closed = |outcome| matches!(outcome, Some(Err(CheckoutError::Closed(e))) if *e == Failure(9));
    assert!(closed(connecting.poll()));
    assert!(closed(fixture.client(0).1));
    pending.succeed(crate::fake::Conn::open(&fixture.counter), fixture.now());
    lease.release(ReleaseAction::Reuse, fixture.now());
    assert_eq!((fixture.counter.open(), fixture.pool.counts().open), (0, 0));
}

#[test]
fn oldest_wait_is_reported() {
    let fixture = Fixture::new(2, limits(1));
    let start = fixture.now();
    let _first = fixture.waiter(1);
    fixture.advance_ms(5);
    let _second = fixture.waiter(0);
    assert_eq!(fixture.pool.counts().oldest_wait, Some(start));
}
