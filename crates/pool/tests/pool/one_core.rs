//! One core: who gets which connection, and what becomes of those who leave.

use std::{
    cell::Cell,
    rc::Rc,
    sync::atomic::Ordering::SeqCst,
    time::{Duration, Instant},
};

use tidegate_pool::{Checkout, CheckoutError, Fate, Host, Lease, Limits, Pool, Slot};

use crate::fake::{Bench, Client, Conn, Failure, ids, limits};

#[test]
fn idle_connections_are_taken_last_in_first_out() {
    let bench = Bench::eager(1, limits(3));
    let leases = [bench.lease(0), bench.lease(0), bench.lease(0)];
    assert_eq!(ids(&leases), [0, 1, 2]);
    for lease in leases {
        lease.release(Fate::Reuse, bench.now());
    }
    let again = [bench.lease(0), bench.lease(0), bench.lease(0)];
    assert_eq!(ids(&again), [2, 1, 0]);
}

#[test]
fn waiters_are_served_first_in_first_out() {
    let bench = Bench::eager(1, limits(1));
    let mut lease = bench.lease(0);
    let mut waiters: Vec<Client> = (0..5).map(|_| bench.waiter(0)).collect();
    assert_eq!(waiters.iter().map(|w| w.checkout.ahead()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    for at in 0..5 {
        lease.release(Fate::Reuse, bench.now());
        let rings: Vec<usize> = waiters.iter().map(Client::rings).collect();
        assert!(rings.iter().enumerate().all(|(i, &n)| n == usize::from(i <= at)), "{rings:?}");
        lease = waiters[at].lease();
    }
    assert_eq!(bench.census.opened.load(SeqCst), 1);
}

#[test]
fn a_newcomer_does_not_overtake_the_queue() {
    let bench = Bench::eager(1, limits(1));
    let lease = bench.lease(0);
    let mut first = bench.waiter(0);
    lease.release(Fate::Reuse, bench.now());
    assert!(bench.locals[0].try_checkout(bench.now()).is_none());
    let _second = bench.waiter(0);
    assert_eq!(first.lease().id, 0);
}

#[test]
fn a_waiter_that_leaves_is_skipped() {
    let bench = Bench::eager(1, limits(1));
    let lease = bench.lease(0);
    let mut waiters: Vec<Client> = (0..4).map(|_| bench.waiter(0)).collect();
    drop(waiters.remove(2));
    drop(waiters.remove(0));
    assert_eq!(bench.pool.counts().waiting, 2);
    lease.release(Fate::Reuse, bench.now());
    waiters[0].lease().release(Fate::Reuse, bench.now());
    waiters[1].lease().release(Fate::Reuse, bench.now());
    let counts = bench.pool.counts();
    assert_eq!((counts.waiting, counts.active, counts.idle), (0, 0, 1));
}

#[test]
fn a_client_that_leaves_after_the_hand_over_passes_its_connection_on() {
    let bench = Bench::eager(1, limits(1));
    let lease = bench.lease(0);
    let (first, mut second) = (bench.waiter(0), bench.waiter(0));
    lease.release(Fate::Reuse, bench.now());
    assert_eq!(first.rings(), 1);
    drop(first);
    assert_eq!(second.lease().id, 0);
}

#[test]
fn a_checkout_served_at_once_and_never_polled_gives_its_connection_back() {
    let bench = Bench::eager(1, limits(1));
    bench.lease(0).release(Fate::Reuse, bench.now());
    drop(bench.ask(0));
    assert_eq!((bench.pool.counts().idle, bench.census.open()), (1, 1));
}

#[test]
fn a_dropped_lease_closes_and_a_new_connection_is_opened_for_the_next() {
    let bench = Bench::new(1, limits(1));
    let mut first = bench.waiter(0);
    bench.connected(0);
    let lease = first.lease();
    let mut second = bench.waiter(0);
    assert_eq!(bench.slots(0), 0);
    drop(lease);
    assert_eq!((bench.census.open(), bench.slots(0)), (0, 1));
    bench.connected(0);
    assert_eq!(second.lease().id, 1);
}

#[test]
fn connects_are_bounded_by_size_demand_and_connecting_max() {
    // (size, connecting_max, waiters) -> connects asked for
    let cases = [((10, 3, 5), 3), ((2, 8, 5), 2), ((10, 8, 5), 5), ((10, 8, 0), 0)];
    for ((size, connecting_max, waiters), expected) in cases {
        let bench = Bench::new(1, Limits { connecting_max, ..limits(size) });
        let _waiters: Vec<Client> = (0..waiters).map(|_| bench.waiter(0)).collect();
        assert_eq!(bench.slots(0), expected, "size {size}, at once {connecting_max}, {waiters} waiters");
        assert_eq!(bench.pool.counts().connecting, expected);
    }
}

#[test]
fn a_finished_connect_lets_the_next_begin() {
    let bench = Bench::new(1, Limits { connecting_max: 1, ..limits(3) });
    let mut waiters: Vec<Client> = (0..3).map(|_| bench.waiter(0)).collect();
    let mut leases = Vec::new();
    for waiter in &mut waiters {
        assert_eq!(bench.slots(0), 1);
        bench.connected(0);
        leases.push(waiter.lease());
    }
    assert_eq!((ids(&leases), bench.slots(0)), (vec![0, 1, 2], 0));
}

#[test]
fn a_connection_whose_client_left_while_it_was_opened_becomes_idle() {
    let bench = Bench::new(1, limits(1));
    drop(bench.waiter(0));
    bench.connected(0);
    assert_eq!(bench.pool.counts().idle, 1);
    assert_eq!(bench.lease(0).id, 0);
}

#[test]
fn a_lease_tells_whether_it_is_to_be_replaced() {
    let bench = Bench::eager(1, limits(1));
    let lease = bench.lease(0);
    assert_eq!(lease.generation(), bench.pool.generation());
    bench.pool.reconnect();
    assert!(lease.generation() < bench.pool.generation());
    lease.release(Fate::Reuse, bench.now());
    assert_eq!(bench.census.open(), 0);
}

#[test]
fn connections_are_used_in_turn_if_the_oldest_is_to_come_first() {
    let turns = |oldest_first: bool| {
        let bench = Bench::eager(1, Limits { oldest_first, ..limits(3) });
        let leases: Vec<_> = (0..3).map(|_| bench.lease(0)).collect();
        assert!(leases.iter().all(|lease| lease.released().is_none()));
        for lease in leases {
            lease.release(Fate::Reuse, bench.now());
        }
        let turn = || {
            let lease = bench.lease(0);
            assert!(lease.released().is_some());
            let id = lease.id;
            lease.release(Fate::Reuse, bench.now());
            id
        };
        (0..4).map(|_| turn()).collect::<Vec<_>>()
    };
    assert_eq!(turns(true), [0, 1, 2, 0]);
    assert_eq!(turns(false), [2, 2, 2, 2]);
}

#[test]
fn a_dead_idle_connection_is_closed_and_the_next_taken() {
    let bench = Bench::eager(1, limits(2));
    let leases = [bench.lease(0), bench.lease(0)];
    let [warm, top] = leases;
    let handle = top.handle.clone();
    warm.release(Fate::Reuse, bench.now());
    top.release(Fate::Reuse, bench.now());
    handle.dead.store(true, SeqCst);
    assert_eq!(bench.lease(0).id, 0);
    assert_eq!(bench.census.open(), 0, "the dead one was closed, the other dropped");
}

#[test]
fn a_connection_to_be_cleaned_goes_to_the_host_and_then_to_the_next_client() {
    let bench = Bench::eager(1, limits(1));
    bench.lease(0).release(Fate::Clean, bench.now());
    let mut waiter = bench.waiter(0);
    let counts = bench.pool.counts();
    assert_eq!((counts.cleaning, counts.active, counts.idle), (1, 0, 0));
    let dirty = bench.asked[0].to_clean.borrow_mut().pop_front().unwrap();
    dirty.release(Fate::Reuse, bench.now());
    assert_eq!(bench.pool.counts().cleaning, 0);
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn the_client_beyond_waiting_max_is_refused() {
    let bench = Bench::new(2, Limits { waiting_max: 2, ..limits(1) });
    let _waiting = (bench.waiter(0), bench.waiter(1));
    let (_, refused) = bench.client(0);
    assert!(matches!(refused, Some(Err(CheckoutError::Full))), "{refused:?}");
}

#[test]
fn a_failed_connect_with_nothing_open_fails_every_waiter() {
    let bench = Bench::new(2, Limits { connecting_max: 2, ..limits(5) });
    let mut waiters = [bench.waiter(0), bench.waiter(0), bench.waiter(1)];
    bench.failed(0, 1);
    assert!(waiters.iter_mut().all(|w| w.poll().is_none()), "the other connect may still succeed");
    bench.failed(0, 2);
    bench.settle();
    for waiter in &mut waiters {
        let error = waiter.poll().expect("answered").unwrap_err();
        assert!(matches!(&error, CheckoutError::Connect(e) if **e == Failure(2)), "{error:?}");
    }
    // Until the next attempt is due, newcomers get the same error and nothing is tried.
    let (_, early) = bench.client(1);
    assert!(matches!(early, Some(Err(CheckoutError::Connect(_)))));
    bench.advance_ms(200);
    let _late = bench.waiter(0);
    assert_eq!(bench.slots(0), 1);
}

#[test]
fn a_failed_connect_with_a_live_connection_lets_waiters_wait() {
    let bench = Bench::new(1, limits(2));
    let mut first = bench.waiter(0);
    bench.connected(0);
    let lease = first.lease();
    let mut second = bench.waiter(0);
    bench.failed(0, 1);
    assert!(second.poll().is_none());
    assert_eq!(bench.slots(0), 0, "not before the pause is over");
    bench.advance_ms(200);
    bench.sweep(0);
    assert_eq!(bench.slots(0), 1);
    lease.release(Fate::Reuse, bench.now());
    assert_eq!(second.lease().id, 0);
}

#[test]
fn clients_wait_for_a_connect_that_is_retried_and_hear_of_no_older_error() {
    let bench = Bench::new(1, limits(2));
    let mut told = bench.waiter(0);
    bench.failed(0, 1);
    assert!(told.poll().is_some());
    bench.advance_ms(200);
    let mut first = bench.waiter(0);
    bench.slot(0).retry(bench.now());
    let mut second = bench.waiter(0);
    assert!(first.poll().is_none() && second.poll().is_none());
    assert_eq!(bench.slots(0), 0, "not before the pause is over");
    bench.advance(limits(2).retry_max);
    bench.sweep(0);
    bench.connected(0);
    first.lease().release(Fate::Reuse, bench.now());
    assert_eq!(second.lease().id, 0);
}

#[test]
fn a_dropped_slot_gives_its_permit_back_and_clients_keep_waiting() {
    let bench = Bench::new(1, limits(1));
    let mut waiter = bench.waiter(0);
    drop(bench.slot(0));
    assert!(waiter.poll().is_none());
    assert_eq!(bench.pool.counts().open, 0);
    bench.advance_ms(200);
    bench.sweep(0);
    bench.connected(0);
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn clients_hear_of_a_failed_connect_even_if_the_next_is_tried_at_once() {
    let bench = Bench::new(2, Limits { retry_start: Duration::ZERO, retry_max: Duration::ZERO, ..limits(2) });
    let (mut told, mut elsewhere) = (bench.waiter(0), bench.waiter(1));
    bench.failed(1, 1);
    bench.failed(0, 2);
    bench.settle();
    for client in [&mut told, &mut elsewhere] {
        let error = client.poll().expect("answered").unwrap_err();
        assert!(matches!(&error, CheckoutError::Connect(e) if **e == Failure(2)), "{error:?}");
    }
    bench.advance_ms(1);
    let _next = bench.waiter(0);
    assert_eq!(bench.slots(0), 1);
}

#[test]
fn a_host_that_refuses_to_connect_is_not_asked_again_and_again_in_one_call() {
    struct Nobody(Rc<Cell<usize>>);
    impl Host<Conn> for Nobody {
        fn connect(&self, _: Slot<Conn>) {
            self.0.set(self.0.get() + 1);
            assert!(self.0.get() < 100, "asked for ever");
        }
    }
    let asked = Rc::new(Cell::new(0));
    let limits = Limits { retry_start: Duration::ZERO, retry_max: Duration::ZERO, ..limits(2) };
    let pool = Pool::new(1, limits, 1, Instant::now(), |_| ());
    let local = pool.local(0, Instant::now(), Nobody(asked.clone()));
    let waiting = local.checkout(Instant::now());
    assert_eq!((asked.get(), pool.counts().open), (1, 0));
    drop(waiting);
}

#[test]
fn a_slot_that_is_withdrawn_is_no_failure() {
    let bench = Bench::new(1, limits(1));
    drop(bench.waiter(0));
    bench.slot(0).withdraw(bench.now());
    assert_eq!((bench.pool.counts().open, bench.slots(0)), (0, 0), "nobody waits");
    let mut waiter = bench.waiter(0);
    bench.slot(0).withdraw(bench.now());
    bench.connected(0);
    assert_eq!(waiter.lease().id, 0, "it was asked for again at once");
}

#[test]
fn the_pause_after_failures_grows_up_to_its_maximum() {
    let bench = Bench::new(1, limits(1));
    let pauses = (0..12).map(|number| {
        let _waiter = bench.waiter(0);
        bench.failed(0, number);
        let refused = |_: &u64| bench.ask(0).poll().is_some();
        (0..).take_while(refused).inspect(|_| bench.advance_ms(10)).count() as u64 * 10
    });
    let pauses = pauses.collect::<Vec<_>>();
    assert!(pauses[0] <= 110 && pauses[5] > 1_000, "{pauses:?}");
    assert!(pauses.iter().all(|&pause| pause <= 15_010), "{pauses:?}");
}

#[test]
fn a_refused_connect_is_tried_again_without_a_pause() {
    let bench = Bench::new(1, limits(2));
    for number in 0..3 {
        let mut waiters = [bench.waiter(0), bench.waiter(0)];
        assert_eq!(bench.slots(0), 2);
        for _ in &waiters {
            bench.slot(0).refuse(Failure(number), bench.now());
        }
        assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_some_and(|outcome| outcome.is_err())));
        assert_eq!(bench.slots(0), 0, "those who waited are told, and nothing is tried for nobody");
        bench.advance_ms(1);
    }
}

#[test]
fn a_refused_connect_of_a_minimum_delays_no_client() {
    let bench = Bench::new(1, Limits { min: 1, ..limits(2) });
    for number in 0..4 {
        bench.sweep(0);
        if bench.slots(0) > 0 {
            bench.slot(0).refuse(Failure(number), bench.now());
        }
        bench.advance_ms(1);
        bench.sweep(0);
        assert_eq!(bench.slots(0), 0, "nothing is tried for nobody during the pause");
        let mut waiter = bench.waiter(0);
        assert_eq!(bench.slots(0), 1, "the client has it tried again");
        bench.slot(0).refuse(Failure(10 + number), bench.now());
        let error = waiter.poll().expect("answered").unwrap_err();
        assert!(matches!(&error, CheckoutError::Connect(e) if **e == Failure(10 + number)), "{error:?}");
        bench.advance_ms(1);
    }
}

#[test]
fn a_refused_connect_beside_open_ones_pauses_shortly() {
    let bench = Bench::new(1, limits(2));
    let mut waiter = bench.waiter(0);
    bench.connected(0);
    let lease = waiter.lease();
    // The waiting client may get that one, and is no reason to ask again and again.
    let mut waiter = bench.waiter(0);
    for number in 0..5 {
        bench.slot(0).refuse(Failure(number), bench.now());
        bench.advance_ms(99);
        bench.sweep(0);
        assert_eq!(bench.slots(0), 0);
        bench.advance_ms(1);
        bench.sweep(0);
        assert_eq!(bench.slots(0), 1, "the pause does not grow for a client");
    }
    bench.slot(0).refuse(Failure(9), bench.now());
    bench.advance_ms(1);
    // Nothing is open any more: the client gets the answer to an attempt of now.
    lease.release(Fate::Close, bench.now());
    assert!(waiter.poll().is_none());
    bench.slot(0).refuse(Failure(10), bench.now());
    let error = waiter.poll().expect("answered").unwrap_err();
    assert!(matches!(&error, CheckoutError::Connect(e) if **e == Failure(10)), "{error:?}");
}

#[test]
fn reconnect_ends_the_pause_after_a_failure() {
    let bench = Bench::new(1, limits(1));
    let _waiter = bench.waiter(0);
    bench.failed(0, 1);
    bench.pool.reconnect();
    let _next = bench.waiter(0);
    assert_eq!(bench.slots(0), 1);
}

#[test]
fn nobody_hears_of_a_failure_of_before_a_reconnect() {
    let bench = Bench::new(1, limits(1));
    let mut waiter = bench.waiter(0);
    let slot = bench.slot(0);
    // What it leads to was moved meanwhile.
    bench.pool.reconnect();
    slot.fail(Failure(1), bench.now());
    assert!(waiter.poll().is_none(), "told of a place that is not asked any more");
    bench.connected(0);
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn nobody_hears_of_a_failure_of_before_a_resume() {
    let bench = Bench::new(1, limits(1));
    let mut waiter = bench.waiter(0);
    bench.pool.pause();
    bench.failed(0, 1);
    bench.settle();
    bench.pool.resume();
    bench.settle();
    assert!(waiter.poll().is_none(), "told of what was so before the pause was over");
    bench.connected(0);
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn handles_are_small() {
    assert!(size_of::<Checkout<Conn>>() <= 64);
    assert!(size_of::<Lease<Conn>>() <= 16);
}
