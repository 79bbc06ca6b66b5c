//! Several cores: a connection goes where the oldest client waits, and nobody is missed.

use std::sync::atomic::Ordering::SeqCst;

use tidegate_pool::{Fate, Limits};

use crate::fake::{Bench, limits};

/// A pool of one connection that lies idle on core 0.
fn idle_on_core_0(cores: usize) -> Bench {
    let bench = Bench::eager(cores, limits(1));
    bench.lease(0).release(Fate::Reuse, bench.now());
    bench
}

#[test]
fn an_idle_connection_of_another_core_is_taken_when_the_own_core_has_none() {
    let bench = idle_on_core_0(2);
    let mut waiter = bench.waiter(1);
    bench.settle();
    assert_eq!(waiter.rings(), 1);
    waiter.lease().release(Fate::Reuse, bench.now());
    let counts = bench.pool.counts();
    assert_eq!((counts.idle, counts.moving, counts.open, bench.census.opened.load(SeqCst)), (1, 0, 1, 1));
    assert!(bench.locals[1].try_checkout(bench.now()).is_some());
}

#[test]
fn the_own_core_s_idle_connection_is_taken_first() {
    let bench = Bench::eager(2, limits(2));
    let (here, there) = (bench.lease(0), bench.lease(1));
    let id = here.id;
    here.release(Fate::Reuse, bench.now());
    there.release(Fate::Reuse, bench.now());
    assert_eq!(bench.lease(0).id, id);
}

#[test]
fn a_release_goes_to_the_client_of_another_core() {
    let bench = Bench::eager(3, limits(1));
    let lease = bench.lease(0);
    let mut waiter = bench.waiter(2);
    lease.release(Fate::Reuse, bench.now());
    bench.settle();
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn a_same_core_hand_over_overtakes_by_no_more_than_overtake_max() {
    // Milliseconds that the client elsewhere waits longer -> it is served first.
    for (lead, elsewhere_first) in [(0, false), (1, false), (2, false), (3, true), (50, true)] {
        let bench = Bench::eager(2, limits(1));
        let lease = bench.lease(0);
        let mut there = bench.waiter(1);
        bench.advance_ms(lead);
        let mut here = bench.waiter(0);
        lease.release(Fate::Reuse, bench.now());
        bench.settle();
        let served = (here.poll().is_some(), there.poll().is_some());
        assert_eq!(served, (!elsewhere_first, elsewhere_first), "{lead} ms");
    }
}

#[test]
fn a_newcomer_takes_no_idle_connection_that_an_older_client_elsewhere_waits_for() {
    let bench = idle_on_core_0(2);
    let mut older = bench.waiter(1);
    bench.advance_ms(3);
    // Core 0 has not read its mail yet.
    let mut newcomer = bench.waiter(0);
    bench.settle();
    older.lease().release(Fate::Reuse, bench.now());
    bench.settle();
    assert_eq!(newcomer.lease().id, 0);
}

#[test]
fn a_connection_that_arrives_after_its_client_left_becomes_idle_there() {
    let bench = Bench::eager(2, limits(1));
    let lease = bench.lease(0);
    let waiter = bench.waiter(1);
    lease.release(Fate::Reuse, bench.now());
    drop(waiter);
    assert_eq!(bench.pool.counts().moving, 1);
    bench.settle();
    assert_eq!(bench.pool.counts().idle, 1);
    assert!(bench.locals[1].try_checkout(bench.now()).is_some());
}

#[test]
fn one_waiter_is_promised_one_connection() {
    let bench = Bench::eager(3, limits(2));
    let leases = (bench.lease(0), bench.lease(1));
    let mut waiter = bench.waiter(2);
    leases.0.release(Fate::Reuse, bench.now());
    leases.1.release(Fate::Reuse, bench.now());
    assert_eq!(bench.pool.counts().moving, 1);
    bench.settle();
    assert_eq!(waiter.lease().id, 0);
    assert_eq!(bench.pool.counts().idle, 1);
}

#[test]
fn a_connection_that_dies_on_the_way_is_replaced() {
    let bench = Bench::eager(2, limits(1));
    let lease = bench.lease(0);
    let handle = lease.handle.clone();
    let mut waiter = bench.waiter(1);
    lease.release(Fate::Reuse, bench.now());
    handle.dead.store(true, SeqCst);
    bench.settle();
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn a_connection_that_is_not_ready_to_leave_is_brought_by_its_courier() {
    let bench = Bench::eager(2, limits(1));
    let lease = bench.lease(0);
    let handle = lease.handle.clone();
    let mut waiter = bench.waiter(1);
    handle.busy.store(true, SeqCst);
    lease.release(Fate::Reuse, bench.now());
    let mut courier = bench.asked[0].couriers.borrow_mut().pop_front().unwrap();
    assert_eq!(courier.destination(), Some(1));
    handle.busy.store(false, SeqCst);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(Future::poll(std::pin::Pin::new(&mut courier), &mut cx).is_ready());
    bench.settle();
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn a_dropped_courier_closes_its_connection_and_the_client_gets_another() {
    let bench = Bench::eager(2, limits(1));
    let lease = bench.lease(0);
    let mut waiter = bench.waiter(1);
    lease.handle.busy.store(true, SeqCst);
    lease.release(Fate::Reuse, bench.now());
    drop(bench.asked[0].couriers.borrow_mut().pop_front().unwrap());
    assert_eq!(bench.pool.counts().moving, 0);
    bench.settle();
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn a_permit_freed_on_one_core_lets_another_core_connect() {
    let bench = Bench::eager(2, limits(1));
    let lease = bench.lease(0);
    let mut waiter = bench.waiter(1);
    lease.release(Fate::Close, bench.now());
    bench.settle();
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn when_the_idle_connection_asked_for_is_gone_the_request_goes_on() {
    let bench = Bench::eager(3, limits(2));
    let (a, b) = (bench.lease(0), bench.lease(1));
    a.release(Fate::Reuse, bench.now());
    b.release(Fate::Reuse, bench.now());
    let mut waiter = bench.waiter(2);
    // The core that was asked first gives its connection to a client of its own before it reads its mail.
    let _taken = bench.lease(0);
    bench.settle();
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn when_no_idle_connection_is_left_the_client_s_core_opens_one() {
    let bench = Bench::eager(2, limits(2));
    bench.lease(0).release(Fate::Reuse, bench.now());
    let mut waiter = bench.waiter(1);
    let _taken = bench.lease(0);
    bench.settle();
    assert_eq!(waiter.lease().id, 1);
}

#[test]
fn when_several_cores_ask_for_the_last_idle_connection_none_of_them_is_forgotten() {
    let bench = Bench::new(4, limits(4));
    let mut first = bench.waiter(0);
    bench.connected(0);
    first.lease().release(Fate::Reuse, bench.now());
    let mut waiters = vec![bench.waiter(1), bench.waiter(2), bench.waiter(3)];
    // The core that had it serves the client of one of them, and that of another one leaves.
    assert!(bench.deliver(0));
    waiters.remove(1);
    bench.settle();
    assert_eq!(waiters.iter_mut().filter_map(|waiter| waiter.poll()).count(), 1);
    assert_eq!((1..4).map(|core| bench.slots(core)).sum::<usize>(), 1, "one is opened for the other");
}

#[test]
fn connects_asked_for_by_two_cores_share_one_limit() {
    let bench = Bench::new(2, Limits { connecting_max: 3, ..limits(4) });
    let _waiters: Vec<_> = (0..8).map(|i| bench.waiter(i % 2)).collect();
    assert_eq!(bench.slots(0) + bench.slots(1), 3);
    bench.connected(0);
    bench.settle();
    assert_eq!(bench.pool.counts().open, 4);
}

#[test]
fn a_core_that_leaves_closes_its_idle_connections_and_may_return() {
    let mut bench = idle_on_core_0(2);
    bench.locals.remove(0);
    assert_eq!((bench.pool.counts().open, bench.census.open()), (0, 0));
    struct Nobody;
    impl tidegate_pool::Host<crate::fake::Conn> for Nobody {
        fn connect(&self, _: tidegate_pool::Slot<crate::fake::Conn>) {}
    }
    let _again = bench.pool.local(0, bench.now(), Nobody);
}

#[test]
#[should_panic(expected = "has a Local already")]
fn a_core_has_one_local() {
    let bench = idle_on_core_0(1);
    struct Nobody;
    impl tidegate_pool::Host<crate::fake::Conn> for Nobody {
        fn connect(&self, _: tidegate_pool::Slot<crate::fake::Conn>) {}
    }
    let _ = bench.pool.local(0, bench.now(), Nobody);
}
