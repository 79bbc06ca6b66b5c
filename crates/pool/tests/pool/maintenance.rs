//! Connections that maintenance closes and opens.

use std::{collections::HashSet, sync::atomic::Ordering::SeqCst, time::Duration};

use tidegate_pool::{Limits, ReleaseAction};

use crate::fake::{Client, Fixture, limits};

fn release_all(fixture: &Fixture, count: usize) {
    let leases: Vec<_> = (0..count).map(|_| fixture.lease(0)).collect();
    leases.into_iter().for_each(|lease| lease.release(ReleaseAction::Reuse, fixture.now()));
}

#[test]
fn idle_timeout_closes_connections_down_to_min() {
    let idle_timeout = Some(Duration::from_secs(10));
    let fixture = Fixture::eager(1, Limits { idle_timeout, ..limits(5) });
    release_all(&fixture, 5);
    fixture.pool.set_limits(Limits { idle_timeout, min: 2, ..limits(5) });
    fixture.advance_ms(9_000);
    let used = fixture.lease(0);
    assert_eq!(used.id, 4);
    used.release(ReleaseAction::Reuse, fixture.now());
    fixture.maintain(0);
    assert_eq!(fixture.counter.open(), 5);
    fixture.advance_ms(2_000);
    fixture.maintain(0);
    assert_eq!(fixture.counter.open(), 2);
    assert_eq!(fixture.lease(0).id, 4, "the most recently used connection is kept");
}

#[test]
fn unusable_idle_connections_are_closed() {
    let fixture = Fixture::eager(1, limits(2));
    let (a, b) = (fixture.lease(0), fixture.lease(0));
    let handle = a.handle.clone();
    a.release(ReleaseAction::Reuse, fixture.now());
    b.release(ReleaseAction::Reuse, fixture.now());
    handle.dead.store(true, SeqCst);
    fixture.maintain(0);
    assert_eq!((fixture.counter.open(), fixture.pool.counts().idle), (1, 1));
}

#[test]
fn expired_connection_is_closed() {
    let lifetime = Some(Duration::from_secs(60));
    let fixture = Fixture::eager(1, Limits { lifetime, lifetime_jitter: Duration::ZERO, ..limits(2) });
    release_all(&fixture, 2);
    let lease = fixture.lease(0);
    fixture.advance_ms(60_000);
    fixture.maintain(0);
    assert_eq!(fixture.counter.open(), 1);
    lease.release(ReleaseAction::Reuse, fixture.now());
    assert_eq!(fixture.counter.open(), 0);
}

#[test]
fn lifetime_jitter_spreads_closes() {
    let lifetime = Some(Duration::from_secs(60));
    let limits = Limits { lifetime, lifetime_jitter: Duration::from_secs(30), ..limits(20) };
    let fixture = Fixture::eager(1, limits);
    release_all(&fixture, 20);
    let mut seen = HashSet::new();
    fixture.advance_ms(29_000);
    for _ in 0..31 {
        fixture.maintain(0);
        seen.insert(fixture.counter.open());
        fixture.advance_ms(1_000);
    }
    fixture.maintain(0);
    assert!(seen.contains(&20) && seen.len() > 5, "{seen:?}");
    assert_eq!(fixture.counter.open(), 0);
}

#[test]
fn min_is_opened_without_demand() {
    let fixture = Fixture::new(2, Limits { min: 3, connecting_max: 2, ..limits(5) });
    fixture.maintain(0);
    fixture.maintain(1);
    assert_eq!((fixture.pending(0), fixture.pending(1)), (2, 0));
    fixture.connected(0);
    fixture.connected(0);
    assert_eq!((fixture.pool.counts().open, fixture.pending(0)), (3, 1));
    fixture.connected(0);
    fixture.maintain(1);
    assert_eq!((fixture.pool.counts().idle, fixture.pending(0), fixture.pending(1)), (3, 0, 0));
}

#[test]
fn min_above_size_is_limited_by_size() {
    let fixture = Fixture::eager(1, Limits { min: 9, ..limits(2) });
    for _ in 0..5 {
        fixture.advance_ms(1_000);
        fixture.maintain(0);
    }
    assert_eq!((fixture.counter.open(), fixture.counter.opened.load(SeqCst)), (2, 2));
}

#[test]
fn reserve_serves_long_waits_and_is_closed_afterwards() {
    let limits = Limits { reserve: 2, reserve_after: Duration::from_secs(5), ..limits(1) };
    let fixture = Fixture::eager(1, limits);
    let lease = fixture.lease(0);
    let mut early: Vec<Client> = (0..1).map(|_| fixture.waiter(0)).collect();
    fixture.advance_ms(4_000);
    let mut late: Vec<Client> = (0..3).map(|_| fixture.waiter(0)).collect();
    fixture.maintain(0);
    assert_eq!(fixture.counter.open(), 1);
    fixture.advance_ms(1_000);
    fixture.maintain(0);
    assert_eq!((fixture.counter.open(), early[0].lease().id), (2, 1));
    fixture.advance_ms(4_000);
    // The first connection was closed with its lease: one connection is open, as many as `size`.
    assert!(late.iter_mut().all(|client| client.poll().is_none()));
    fixture.maintain(0);
    let served: Vec<_> = late.iter_mut().filter_map(Client::poll).collect();
    assert_eq!((served.len(), fixture.pool.counts().open), (2, 3));
    drop(late);
    for lease in served {
        lease.unwrap().release(ReleaseAction::Reuse, fixture.now());
    }
    lease.release(ReleaseAction::Reuse, fixture.now());
    fixture.maintain(0);
    assert_eq!(fixture.pool.counts().open, 1);
}
