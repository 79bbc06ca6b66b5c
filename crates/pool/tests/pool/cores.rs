//! Several cores: a free connection goes to the oldest client, and no client is missed.

use std::sync::atomic::Ordering::SeqCst;

use tidegate_pool::{Limits, LocalPool, ReleaseAction};

use crate::fake::{Fixture, limits};

/// A pool of one connection, idle on core 0.
fn idle_on_core_0(cores: usize) -> Fixture {
    let fixture = Fixture::eager(cores, limits(1));
    fixture.lease(0).release(ReleaseAction::Reuse, fixture.now());
    fixture
}

#[test]
fn idle_connection_of_another_core_serves_a_client() {
    let fixture = idle_on_core_0(2);
    let mut waiter = fixture.waiter(1);
    fixture.deliver_all();
    assert_eq!(waiter.wakes(), 1);
    waiter.lease().release(ReleaseAction::Reuse, fixture.now());
    let counts = fixture.pool.counts();
    assert_eq!((counts.idle, counts.moving, counts.open, fixture.counter.opened.load(SeqCst)), (1, 0, 1, 1));
    assert!(fixture.locals[1].try_checkout(fixture.now()).is_some());
}

#[test]
fn idle_connection_of_the_own_core_is_first() {
    let fixture = Fixture::eager(2, limits(2));
    let (here, there) = (fixture.lease(0), fixture.lease(1));
    let id = here.id;
    here.release(ReleaseAction::Reuse, fixture.now());
    there.release(ReleaseAction::Reuse, fixture.now());
    assert_eq!(fixture.lease(0).id, id);
}

#[test]
fn release_serves_a_client_of_another_core() {
    let fixture = Fixture::eager(3, limits(1));
    let lease = fixture.lease(0);
    let mut waiter = fixture.waiter(2);
    lease.release(ReleaseAction::Reuse, fixture.now());
    fixture.deliver_all();
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn same_core_grant_overtakes_by_at_most_overtake_max() {
    // Milliseconds by which the client of the other core waited longer -> that client is served first.
    for (lead_ms, other_first) in [(0, false), (1, false), (2, false), (3, true), (50, true)] {
        let fixture = Fixture::eager(2, limits(1));
        let lease = fixture.lease(0);
        let mut there = fixture.waiter(1);
        fixture.advance_ms(lead_ms);
        let mut here = fixture.waiter(0);
        lease.release(ReleaseAction::Reuse, fixture.now());
        fixture.deliver_all();
        let served = (here.poll().is_some(), there.poll().is_some());
        assert_eq!(served, (!other_first, other_first), "{lead_ms} ms");
    }
}

#[test]
fn new_client_leaves_idle_connection_to_an_older_one() {
    let fixture = idle_on_core_0(2);
    let mut older = fixture.waiter(1);
    fixture.advance_ms(3);
    // Core 0 has not read its messages yet.
    let mut new_client = fixture.waiter(0);
    fixture.deliver_all();
    older.lease().release(ReleaseAction::Reuse, fixture.now());
    fixture.deliver_all();
    assert_eq!(new_client.lease().id, 0);
}

#[test]
fn transferred_connection_without_client_becomes_idle() {
    let fixture = Fixture::eager(2, limits(1));
    let lease = fixture.lease(0);
    let waiter = fixture.waiter(1);
    lease.release(ReleaseAction::Reuse, fixture.now());
    drop(waiter);
    assert_eq!(fixture.pool.counts().moving, 1);
    fixture.deliver_all();
    assert_eq!(fixture.pool.counts().idle, 1);
    assert!(fixture.locals[1].try_checkout(fixture.now()).is_some());
}

#[test]
fn one_connection_is_sent_to_one_waiter() {
    let fixture = Fixture::eager(3, limits(2));
    let leases = (fixture.lease(0), fixture.lease(1));
    let mut waiter = fixture.waiter(2);
    leases.0.release(ReleaseAction::Reuse, fixture.now());
    leases.1.release(ReleaseAction::Reuse, fixture.now());
    assert_eq!(fixture.pool.counts().moving, 1);
    fixture.deliver_all();
    assert_eq!(waiter.lease().id, 0);
    assert_eq!(fixture.pool.counts().idle, 1);
}

#[test]
fn connection_that_dies_in_transfer_is_replaced() {
    let fixture = Fixture::eager(2, limits(1));
    let lease = fixture.lease(0);
    let handle = lease.handle.clone();
    let mut waiter = fixture.waiter(1);
    lease.release(ReleaseAction::Reuse, fixture.now());
    handle.dead.store(true, SeqCst);
    fixture.deliver_all();
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn pending_detach_is_completed_by_a_transfer() {
    let fixture = Fixture::eager(2, limits(1));
    let lease = fixture.lease(0);
    let handle = lease.handle.clone();
    let mut waiter = fixture.waiter(1);
    handle.busy.store(true, SeqCst);
    lease.release(ReleaseAction::Reuse, fixture.now());
    let mut transfer = fixture.calls[0].transfers.borrow_mut().pop_front().unwrap();
    assert_eq!(transfer.destination(), Some(1));
    handle.busy.store(false, SeqCst);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(Future::poll(std::pin::Pin::new(&mut transfer), &mut cx).is_ready());
    fixture.deliver_all();
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn dropped_transfer_closes_its_connection() {
    let fixture = Fixture::eager(2, limits(1));
    let lease = fixture.lease(0);
    let mut waiter = fixture.waiter(1);
    lease.handle.busy.store(true, SeqCst);
    lease.release(ReleaseAction::Reuse, fixture.now());
    drop(fixture.calls[0].transfers.borrow_mut().pop_front().unwrap());
    assert_eq!(fixture.pool.counts().moving, 0);
    fixture.deliver_all();
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn permit_freed_on_one_core_lets_another_connect() {
    let fixture = Fixture::eager(2, limits(1));
    let lease = fixture.lease(0);
    let mut waiter = fixture.waiter(1);
    lease.release(ReleaseAction::Close, fixture.now());
    fixture.deliver_all();
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn request_for_a_taken_idle_connection_is_forwarded() {
    let fixture = Fixture::eager(3, limits(2));
    let (a, b) = (fixture.lease(0), fixture.lease(1));
    a.release(ReleaseAction::Reuse, fixture.now());
    b.release(ReleaseAction::Reuse, fixture.now());
    let mut waiter = fixture.waiter(2);
    // The core that gets the request grants its connection to its own client before it reads the message.
    let _taken = fixture.lease(0);
    fixture.deliver_all();
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn core_connects_when_the_idle_connection_is_taken() {
    let fixture = Fixture::eager(2, limits(2));
    fixture.lease(0).release(ReleaseAction::Reuse, fixture.now());
    let mut waiter = fixture.waiter(1);
    let _taken = fixture.lease(0);
    fixture.deliver_all();
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn cores_asking_for_one_idle_connection_are_served() {
    let fixture = Fixture::new(4, limits(4));
    let mut first = fixture.waiter(0);
    fixture.connected(0);
    first.lease().release(ReleaseAction::Reuse, fixture.now());
    let mut waiters = vec![fixture.waiter(1), fixture.waiter(2), fixture.waiter(3)];
    // The core with the idle connection serves a client of one core, and a client of another core leaves.
    assert!(fixture.deliver(0));
    waiters.remove(1);
    fixture.deliver_all();
    assert_eq!(waiters.iter_mut().filter_map(|waiter| waiter.poll()).count(), 1);
    assert_eq!((1..4).map(|core| fixture.pending(core)).sum::<usize>(), 1, "a connect for the remaining client");
}

#[test]
fn connects_of_two_cores_share_one_limit() {
    let fixture = Fixture::new(2, Limits { connecting_max: 3, ..limits(4) });
    let _waiters: Vec<_> = (0..8).map(|i| fixture.waiter(i % 2)).collect();
    assert_eq!(fixture.pending(0) + fixture.pending(1), 3);
    fixture.connected(0);
    fixture.deliver_all();
    assert_eq!(fixture.pool.counts().open, 4);
}

#[test]
fn dropped_local_pool_closes_idle_connections() {
    let mut fixture = idle_on_core_0(2);
    fixture.locals.remove(0);
    assert_eq!((fixture.pool.counts().open, fixture.counter.open()), (0, 0));
    struct NeverConnects;
    impl tidegate_pool::ManageConnection<crate::fake::Conn> for NeverConnects {
        fn connect(&self, _: tidegate_pool::PendingConnect<crate::fake::Conn>) {}
    }
    let _again = LocalPool::new(&fixture.pool, 0, fixture.now(), NeverConnects);
}

#[test]
#[should_panic(expected = "has a LocalPool already")]
fn core_has_one_local_pool() {
    let fixture = idle_on_core_0(1);
    struct NeverConnects;
    impl tidegate_pool::ManageConnection<crate::fake::Conn> for NeverConnects {
        fn connect(&self, _: tidegate_pool::PendingConnect<crate::fake::Conn>) {}
    }
    let _ = LocalPool::new(&fixture.pool, 0, fixture.now(), NeverConnects);
}
