//! What a sweep closes and opens.

use std::{collections::HashSet, sync::atomic::Ordering::SeqCst, time::Duration};

use tidegate_pool::{Fate, Limits};

use crate::fake::{Bench, Client, limits};

fn release_all(bench: &Bench, count: usize) {
    let leases: Vec<_> = (0..count).map(|_| bench.lease(0)).collect();
    leases.into_iter().for_each(|lease| lease.release(Fate::Reuse, bench.now()));
}

#[test]
fn connections_idle_too_long_are_closed_down_to_min() {
    let idle_timeout = Some(Duration::from_secs(10));
    let bench = Bench::eager(1, Limits { idle_timeout, ..limits(5) });
    release_all(&bench, 5);
    bench.pool.set_limits(Limits { idle_timeout, min: 2, ..limits(5) });
    bench.advance_ms(9_000);
    let used = bench.lease(0);
    assert_eq!(used.id, 4);
    used.release(Fate::Reuse, bench.now());
    bench.sweep(0);
    assert_eq!(bench.census.open(), 5);
    bench.advance_ms(2_000);
    bench.sweep(0);
    assert_eq!(bench.census.open(), 2);
    assert_eq!(bench.lease(0).id, 4, "the one used last is kept");
}

#[test]
fn dead_idle_connections_are_closed() {
    let bench = Bench::eager(1, limits(2));
    let (a, b) = (bench.lease(0), bench.lease(0));
    let handle = a.handle.clone();
    a.release(Fate::Reuse, bench.now());
    b.release(Fate::Reuse, bench.now());
    handle.dead.store(true, SeqCst);
    bench.sweep(0);
    assert_eq!((bench.census.open(), bench.pool.counts().idle), (1, 1));
}

#[test]
fn a_connection_beyond_its_lifetime_is_closed_at_release_and_by_sweep() {
    let lifetime = Some(Duration::from_secs(60));
    let bench = Bench::eager(1, Limits { lifetime, lifetime_jitter: Duration::ZERO, ..limits(2) });
    release_all(&bench, 2);
    let lease = bench.lease(0);
    bench.advance_ms(60_000);
    bench.sweep(0);
    assert_eq!(bench.census.open(), 1);
    lease.release(Fate::Reuse, bench.now());
    assert_eq!(bench.census.open(), 0);
}

#[test]
fn connections_opened_together_do_not_end_together() {
    let lifetime = Some(Duration::from_secs(60));
    let limits = Limits { lifetime, lifetime_jitter: Duration::from_secs(30), ..limits(20) };
    let bench = Bench::eager(1, limits);
    release_all(&bench, 20);
    let mut seen = HashSet::new();
    bench.advance_ms(29_000);
    for _ in 0..31 {
        bench.sweep(0);
        seen.insert(bench.census.open());
        bench.advance_ms(1_000);
    }
    bench.sweep(0);
    assert!(seen.contains(&20) && seen.len() > 5, "{seen:?}");
    assert_eq!(bench.census.open(), 0);
}

#[test]
fn min_is_opened_without_demand() {
    let bench = Bench::new(2, Limits { min: 3, connecting_max: 2, ..limits(5) });
    bench.sweep(0);
    bench.sweep(1);
    assert_eq!((bench.slots(0), bench.slots(1)), (2, 0));
    bench.connected(0);
    bench.connected(0);
    assert_eq!((bench.pool.counts().open, bench.slots(0)), (3, 1));
    bench.connected(0);
    bench.sweep(1);
    assert_eq!((bench.pool.counts().idle, bench.slots(0), bench.slots(1)), (3, 0, 0));
}

#[test]
fn min_above_size_neither_opens_nor_closes_in_circles() {
    let bench = Bench::eager(1, Limits { min: 9, ..limits(2) });
    for _ in 0..5 {
        bench.advance_ms(1_000);
        bench.sweep(0);
    }
    assert_eq!((bench.census.open(), bench.census.opened.load(SeqCst)), (2, 2));
}

#[test]
fn the_reserve_is_for_clients_that_waited_long_and_is_closed_afterwards() {
    let limits = Limits { reserve: 2, reserve_after: Duration::from_secs(5), ..limits(1) };
    let bench = Bench::eager(1, limits);
    let lease = bench.lease(0);
    let mut early: Vec<Client> = (0..1).map(|_| bench.waiter(0)).collect();
    bench.advance_ms(4_000);
    let mut late: Vec<Client> = (0..3).map(|_| bench.waiter(0)).collect();
    bench.sweep(0);
    assert_eq!(bench.census.open(), 1);
    bench.advance_ms(1_000);
    bench.sweep(0);
    assert_eq!((bench.census.open(), early[0].lease().id), (2, 1));
    bench.advance_ms(4_000);
    // The connection of the first was closed with its lease: within size there is one.
    assert!(late.iter_mut().all(|client| client.poll().is_none()));
    bench.sweep(0);
    let served: Vec<_> = late.iter_mut().filter_map(Client::poll).collect();
    assert_eq!((served.len(), bench.pool.counts().open), (2, 3));
    drop(late);
    for lease in served {
        lease.unwrap().release(Fate::Reuse, bench.now());
    }
    lease.release(Fate::Reuse, bench.now());
    bench.sweep(0);
    assert_eq!(bench.pool.counts().open, 1);
}
