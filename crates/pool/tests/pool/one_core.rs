//! A single core: which client gets which connection, and what a client that leaves does.

use std::{
    cell::Cell,
    rc::Rc,
    sync::atomic::Ordering::SeqCst,
    time::{Duration, Instant},
};

use tidegate_pool::{
    Checkout, CheckoutError, Lease, Limits, LocalPool, ManageConnection, PendingConnect, Pool, ReleaseAction,
};

use crate::fake::{Client, Conn, Failure, Fixture, ids, limits};

#[test]
fn idle_connections_are_taken_last_in_first_out() {
    let fixture = Fixture::eager(1, limits(3));
    let leases = [fixture.lease(0), fixture.lease(0), fixture.lease(0)];
    assert_eq!(ids(&leases), [0, 1, 2]);
    for lease in leases {
        lease.release(ReleaseAction::Reuse, fixture.now());
    }
    let again = [fixture.lease(0), fixture.lease(0), fixture.lease(0)];
    assert_eq!(ids(&again), [2, 1, 0]);
}

#[test]
fn waiters_are_served_first_in_first_out() {
    let fixture = Fixture::eager(1, limits(1));
    let mut lease = fixture.lease(0);
    let mut waiters: Vec<Client> = (0..5).map(|_| fixture.waiter(0)).collect();
    assert_eq!(waiters.iter().map(|w| w.checkout.clients_ahead()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    for at in 0..5 {
        lease.release(ReleaseAction::Reuse, fixture.now());
        let wakes: Vec<usize> = waiters.iter().map(Client::wakes).collect();
        assert!(wakes.iter().enumerate().all(|(i, &n)| n == usize::from(i <= at)), "{wakes:?}");
        lease = waiters[at].lease();
    }
    assert_eq!(fixture.counter.opened.load(SeqCst), 1);
}

#[test]
fn new_client_does_not_overtake_the_queue() {
    let fixture = Fixture::eager(1, limits(1));
    let lease = fixture.lease(0);
    let mut first = fixture.waiter(0);
    lease.release(ReleaseAction::Reuse, fixture.now());
    assert!(fixture.locals[0].try_checkout(fixture.now()).is_none());
    let _second = fixture.waiter(0);
    assert_eq!(first.lease().id, 0);
}

#[test]
fn waiter_that_left_is_skipped() {
    let fixture = Fixture::eager(1, limits(1));
    let lease = fixture.lease(0);
    let mut waiters: Vec<Client> = (0..4).map(|_| fixture.waiter(0)).collect();
    drop(waiters.remove(2));
    drop(waiters.remove(0));
    assert_eq!(fixture.pool.counts().waiting, 2);
    lease.release(ReleaseAction::Reuse, fixture.now());
    waiters[0].lease().release(ReleaseAction::Reuse, fixture.now());
    waiters[1].lease().release(ReleaseAction::Reuse, fixture.now());
    let counts = fixture.pool.counts();
    assert_eq!((counts.waiting, counts.active, counts.idle), (0, 0, 1));
}

#[test]
fn client_leaving_after_its_grant_passes_it_on() {
    let fixture = Fixture::eager(1, limits(1));
    let lease = fixture.lease(0);
    let (first, mut second) = (fixture.waiter(0), fixture.waiter(0));
    lease.release(ReleaseAction::Reuse, fixture.now());
    assert_eq!(first.wakes(), 1);
    drop(first);
    assert_eq!(second.lease().id, 0);
}

#[test]
fn unpolled_checkout_returns_its_connection() {
    let fixture = Fixture::eager(1, limits(1));
    fixture.lease(0).release(ReleaseAction::Reuse, fixture.now());
    drop(fixture.request(0));
    assert_eq!((fixture.pool.counts().idle, fixture.counter.open()), (1, 1));
}

#[test]
fn dropped_lease_is_replaced_for_the_next_client() {
    let fixture = Fixture::new(1, limits(1));
    let mut first = fixture.waiter(0);
    fixture.connected(0);
    let lease = first.lease();
    let mut second = fixture.waiter(0);
    assert_eq!(fixture.pending(0), 0);
    drop(lease);
    assert_eq!((fixture.counter.open(), fixture.pending(0)), (0, 1));
    fixture.connected(0);
    assert_eq!(second.lease().id, 1);
}

#[test]
fn connects_are_bounded_by_size_demand_and_rate() {
    // (size, connecting_max, waiters) -> expected connects
    let cases = [((10, 3, 5), 3), ((2, 8, 5), 2), ((10, 8, 5), 5), ((10, 8, 0), 0)];
    for ((size, connecting_max, waiters), expected) in cases {
        let fixture = Fixture::new(1, Limits { connecting_max, ..limits(size) });
        let _waiters: Vec<Client> = (0..waiters).map(|_| fixture.waiter(0)).collect();
        assert_eq!(fixture.pending(0), expected, "size {size}, connecting_max {connecting_max}, {waiters} waiters");
        assert_eq!(fixture.pool.counts().connecting, expected);
    }
}

#[test]
fn finished_connect_starts_the_next() {
    let fixture = Fixture::new(1, Limits { connecting_max: 1, ..limits(3) });
    let mut waiters: Vec<Client> = (0..3).map(|_| fixture.waiter(0)).collect();
    let mut leases = Vec::new();
    for waiter in &mut waiters {
        assert_eq!(fixture.pending(0), 1);
        fixture.connected(0);
        leases.push(waiter.lease());
    }
    assert_eq!((ids(&leases), fixture.pending(0)), (vec![0, 1, 2], 0));
}

#[test]
fn connection_opened_for_a_gone_client_becomes_idle() {
    let fixture = Fixture::new(1, limits(1));
    drop(fixture.waiter(0));
    fixture.connected(0);
    assert_eq!(fixture.pool.counts().idle, 1);
    assert_eq!(fixture.lease(0).id, 0);
}

#[test]
fn lease_has_the_generation_of_its_connect() {
    let fixture = Fixture::eager(1, limits(1));
    let lease = fixture.lease(0);
    assert_eq!(lease.generation(), fixture.pool.generation());
    fixture.pool.reconnect();
    assert!(lease.generation() < fixture.pool.generation());
    lease.release(ReleaseAction::Reuse, fixture.now());
    assert_eq!(fixture.counter.open(), 0);
}

#[test]
fn oldest_first_uses_connections_in_turn() {
    let turns = |oldest_first: bool| {
        let fixture = Fixture::eager(1, Limits { oldest_first, ..limits(3) });
        let leases: Vec<_> = (0..3).map(|_| fixture.lease(0)).collect();
        assert!(leases.iter().all(|lease| lease.released_at().is_none()));
        for lease in leases {
            lease.release(ReleaseAction::Reuse, fixture.now());
        }
        let turn = || {
            let lease = fixture.lease(0);
            assert!(lease.released_at().is_some());
            let id = lease.id;
            lease.release(ReleaseAction::Reuse, fixture.now());
            id
        };
        (0..4).map(|_| turn()).collect::<Vec<_>>()
    };
    assert_eq!(turns(true), [0, 1, 2, 0]);
    assert_eq!(turns(false), [2, 2, 2, 2]);
}

#[test]
fn checkout_skips_unusable_idle_connections() {
    let fixture = Fixture::eager(1, limits(2));
    let leases = [fixture.lease(0), fixture.lease(0)];
    let [warm, top] = leases;
    let handle = top.handle.clone();
    warm.release(ReleaseAction::Reuse, fixture.now());
    top.release(ReleaseAction::Reuse, fixture.now());
    handle.dead.store(true, SeqCst);
    assert_eq!(fixture.lease(0).id, 0);
    assert_eq!(fixture.counter.open(), 0, "one closed as unusable, one dropped with its lease");
}

#[test]
fn cleaned_connection_goes_to_the_next_client() {
    let fixture = Fixture::eager(1, limits(1));
    fixture.lease(0).release(ReleaseAction::Clean, fixture.now());
    let mut waiter = fixture.waiter(0);
    let counts = fixture.pool.counts();
    assert_eq!((counts.cleaning, counts.active, counts.idle), (1, 0, 0));
    let dirty = fixture.calls[0].to_clean.borrow_mut().pop_front().unwrap();
    dirty.release(ReleaseAction::Reuse, fixture.now());
    assert_eq!(fixture.pool.counts().cleaning, 0);
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn client_beyond_waiting_max_is_refused() {
    let fixture = Fixture::new(2, Limits { waiting_max: 2, ..limits(1) });
    let _waiting = (fixture.waiter(0), fixture.waiter(1));
    let (_, refused) = fixture.client(0);
    assert!(matches!(refused, Some(Err(CheckoutError::QueueFull))), "{refused:?}");
}

#[test]
fn failed_connect_with_nothing_open_fails_waiters() {
    let fixture = Fixture::new(2, Limits { connecting_max: 2, ..limits(5) });
    let mut waiters = [fixture.waiter(0), fixture.waiter(0), fixture.waiter(1)];
    fixture.failed(0, 1);
    assert!(waiters.iter_mut().all(|w| w.poll().is_none()), "the other connect can still succeed");
    fixture.failed(0, 2);
    fixture.deliver_all();
    for waiter in &mut waiters {
        let error = waiter.poll().expect("answered").unwrap_err();
        assert!(matches!(&error, CheckoutError::Connect(e) if **e == Failure(2)), "{error:?}");
    }
    // New clients get the same error, and no connect starts, until the next attempt is due.
    let (_, refused) = fixture.client(1);
    assert!(matches!(refused, Some(Err(CheckoutError::Connect(_)))));
    fixture.advance_ms(200);
    let _late = fixture.waiter(0);
    assert_eq!(fixture.pending(0), 1);
}

#[test]
fn failed_connect_beside_an_open_one_keeps_waiters() {
    let fixture = Fixture::new(1, limits(2));
    let mut first = fixture.waiter(0);
    fixture.connected(0);
    let lease = first.lease();
    let mut second = fixture.waiter(0);
    fixture.failed(0, 1);
    assert!(second.poll().is_none());
    assert_eq!(fixture.pending(0), 0, "retried during the pause");
    fixture.advance_ms(200);
    fixture.maintain(0);
    assert_eq!(fixture.pending(0), 1);
    lease.release(ReleaseAction::Reuse, fixture.now());
    assert_eq!(second.lease().id, 0);
}

#[test]
fn clients_wait_for_a_retried_connect() {
    let fixture = Fixture::new(1, limits(2));
    let mut early = fixture.waiter(0);
    fixture.failed(0, 1);
    assert!(early.poll().is_some());
    fixture.advance_ms(200);
    let mut first = fixture.waiter(0);
    fixture.next_pending(0).retry(fixture.now());
    let mut second = fixture.waiter(0);
    assert!(first.poll().is_none() && second.poll().is_none());
    assert_eq!(fixture.pending(0), 0, "retried during the pause");
    fixture.advance(limits(2).retry_max);
    fixture.maintain(0);
    fixture.connected(0);
    first.lease().release(ReleaseAction::Reuse, fixture.now());
    assert_eq!(second.lease().id, 0);
}

#[test]
fn dropped_pending_connect_releases_its_permit() {
    let fixture = Fixture::new(1, limits(1));
    let mut waiter = fixture.waiter(0);
    drop(fixture.next_pending(0));
    assert!(waiter.poll().is_none());
    assert_eq!(fixture.pool.counts().open, 0);
    fixture.advance_ms(200);
    fixture.maintain(0);
    fixture.connected(0);
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn clients_get_the_connect_error_despite_zero_backoff() {
    let fixture = Fixture::new(2, Limits { retry_start: Duration::ZERO, retry_max: Duration::ZERO, ..limits(2) });
    let (mut here, mut elsewhere) = (fixture.waiter(0), fixture.waiter(1));
    fixture.failed(1, 1);
    fixture.failed(0, 2);
    fixture.deliver_all();
    for client in [&mut here, &mut elsewhere] {
        let error = client.poll().expect("answered").unwrap_err();
        assert!(matches!(&error, CheckoutError::Connect(e) if **e == Failure(2)), "{error:?}");
    }
    fixture.advance_ms(1);
    let _next = fixture.waiter(0);
    assert_eq!(fixture.pending(0), 1);
}

#[test]
fn synchronous_connect_failure_does_not_loop() {
    struct NeverConnects(Rc<Cell<usize>>);
    impl ManageConnection<Conn> for NeverConnects {
        fn connect(&self, _: PendingConnect<Conn>) {
            self.0.set(self.0.get() + 1);
            assert!(self.0.get() < 100, "connect called in a loop");
        }
    }
    let calls = Rc::new(Cell::new(0));
    let limits = Limits { retry_start: Duration::ZERO, retry_max: Duration::ZERO, ..limits(2) };
    let pool = Pool::new(1, limits, 1, Instant::now(), |_| ());
    let local = LocalPool::new(&pool, 0, Instant::now(), NeverConnects(calls.clone()));
    let waiting = local.checkout(Instant::now());
    assert_eq!((calls.get(), pool.counts().open), (1, 0));
    drop(waiting);
}

#[test]
fn cancelled_connect_is_not_a_failure() {
    let fixture = Fixture::new(1, limits(1));
    drop(fixture.waiter(0));
    fixture.next_pending(0).cancel(fixture.now());
    assert_eq!((fixture.pool.counts().open, fixture.pending(0)), (0, 0), "no client waits");
    let mut waiter = fixture.waiter(0);
    fixture.next_pending(0).cancel(fixture.now());
    fixture.connected(0);
    assert_eq!(waiter.lease().id, 0, "no new connect started");
}

#[test]
fn pause_after_failures_grows_to_its_maximum() {
    let fixture = Fixture::new(1, limits(1));
    let pauses = (0..12).map(|number| {
        let _waiter = fixture.waiter(0);
        fixture.failed(0, number);
        let refused = |_: &u64| fixture.request(0).poll().is_some();
        (0..).take_while(refused).inspect(|_| fixture.advance_ms(10)).count() as u64 * 10
    });
    let pauses = pauses.collect::<Vec<_>>();
    assert!(pauses[0] <= 110 && pauses[5] > 1_000, "{pauses:?}");
    assert!(pauses.iter().all(|&pause| pause <= 15_010), "{pauses:?}");
}

#[test]
fn refused_connect_is_retried_without_a_pause() {
    let fixture = Fixture::new(1, limits(2));
    for number in 0..3 {
        let mut waiters = [fixture.waiter(0), fixture.waiter(0)];
        assert_eq!(fixture.pending(0), 2);
        for _ in &waiters {
            fixture.next_pending(0).refuse(Failure(number), fixture.now());
        }
        assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_some_and(|outcome| outcome.is_err())));
        assert_eq!(fixture.pending(0), 0, "a connect without waiting clients");
        fixture.advance_ms(1);
    }
}

#[test]
fn refused_connect_of_a_minimum_delays_no_client() {
    let fixture = Fixture::new(1, Limits { min: 1, ..limits(2) });
    for number in 0..4 {
        fixture.maintain(0);
        if fixture.pending(0) > 0 {
            fixture.next_pending(0).refuse(Failure(number), fixture.now());
        }
        fixture.advance_ms(1);
        fixture.maintain(0);
        assert_eq!(fixture.pending(0), 0, "a connect without waiting clients during the pause");
        let mut waiter = fixture.waiter(0);
        assert_eq!(fixture.pending(0), 1, "no connect for the waiting client");
        fixture.next_pending(0).refuse(Failure(10 + number), fixture.now());
        let error = waiter.poll().expect("answered").unwrap_err();
        assert!(matches!(&error, CheckoutError::Connect(e) if **e == Failure(10 + number)), "{error:?}");
        fixture.advance_ms(1);
    }
}

#[test]
fn refused_connect_beside_open_ones_pauses_briefly() {
    let fixture = Fixture::new(1, limits(2));
    let mut waiter = fixture.waiter(0);
    fixture.connected(0);
    let lease = waiter.lease();
    // The open connection can serve the waiting client, so that the retry pauses.
    let mut waiter = fixture.waiter(0);
    for number in 0..5 {
        fixture.next_pending(0).refuse(Failure(number), fixture.now());
        fixture.advance_ms(99);
        fixture.maintain(0);
        assert_eq!(fixture.pending(0), 0);
        fixture.advance_ms(1);
        fixture.maintain(0);
        assert_eq!(fixture.pending(0), 1, "the pause of a client grew");
    }
    fixture.next_pending(0).refuse(Failure(9), fixture.now());
    fixture.advance_ms(1);
    // No connection is open any more: the client gets the result of a new connect, not the last error.
    lease.release(ReleaseAction::Close, fixture.now());
    assert!(waiter.poll().is_none());
    fixture.next_pending(0).refuse(Failure(10), fixture.now());
    let error = waiter.poll().expect("answered").unwrap_err();
    assert!(matches!(&error, CheckoutError::Connect(e) if **e == Failure(10)), "{error:?}");
}

#[test]
fn reconnect_ends_the_pause_after_a_failure() {
    let fixture = Fixture::new(1, limits(1));
    let _waiter = fixture.waiter(0);
    fixture.failed(0, 1);
    fixture.pool.reconnect();
    let _next = fixture.waiter(0);
    assert_eq!(fixture.pending(0), 1);
}

#[test]
fn failure_before_reconnect_is_not_reported() {
    let fixture = Fixture::new(1, limits(1));
    let mut waiter = fixture.waiter(0);
    let pending = fixture.next_pending(0);
    // The address of the server changed meanwhile.
    fixture.pool.reconnect();
    pending.fail(Failure(1), fixture.now());
    assert!(waiter.poll().is_none(), "got the error of an old address");
    fixture.connected(0);
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn failure_before_resume_is_not_reported() {
    let fixture = Fixture::new(1, limits(1));
    let mut waiter = fixture.waiter(0);
    fixture.pool.pause();
    fixture.failed(0, 1);
    fixture.deliver_all();
    fixture.pool.resume();
    fixture.deliver_all();
    assert!(waiter.poll().is_none(), "got an error from before the resume");
    fixture.connected(0);
    assert_eq!(waiter.lease().id, 0);
}

#[test]
fn handles_are_small() {
    assert!(size_of::<Checkout<Conn>>() <= 64);
    assert!(size_of::<Lease<Conn>>() <= 16);
}

/// A connection is older than this lifetime before a client can have it.
#[test]
fn new_connection_serves_a_client_whatever_its_age() {
    for lifetime in [Duration::ZERO, Duration::from_nanos(1)] {
        let fixture = Fixture::eager(1, Limits { lifetime: Some(lifetime), ..limits(2) });
        for _ in 0..3 {
            let lease = fixture.lease(0);
            fixture.advance_ms(1);
            lease.release(ReleaseAction::Reuse, fixture.now());
            assert_eq!(fixture.pool.counts().open, 0, "closed when it is released");
        }
        assert_eq!(fixture.counter.opened.load(SeqCst), 3);
    }
}

#[test]
fn limits_may_be_the_largest_numbers() {
    let fixture = Fixture::eager(
        1,
        Limits {
            size: usize::MAX,
            reserve: usize::MAX,
            reserve_after: Duration::MAX,
            connecting_max: usize::MAX,
            waiting_max: usize::MAX,
            overtake_max: Duration::MAX,
            lifetime: Some(Duration::MAX),
            lifetime_jitter: Duration::MAX,
            idle_timeout: Some(Duration::MAX),
            retry_start: Duration::MAX,
            retry_max: Duration::MAX,
            ..limits(1)
        },
    );
    let leases = [fixture.lease(0), fixture.lease(0)];
    fixture.locals[0].maintain(fixture.now());
    leases.into_iter().for_each(|lease| lease.release(ReleaseAction::Reuse, fixture.now()));
    assert_eq!(fixture.pool.counts().idle, 2);
}
