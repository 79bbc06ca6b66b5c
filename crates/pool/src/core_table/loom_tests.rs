//! Loom models of a releasing core and a waiting core: every interleaving.
//! `RUSTFLAGS="--cfg loom" cargo test -p tidegate-pool --release --lib`

use loom::{sync::Arc, thread};

use super::{CoreTable, decrement, increment};

/// Steps of a releasing core: publish the idle connection, then check. Returns whether it reserved the connection for core
/// `waiting`.
fn release(table: &CoreTable, own: usize, waiting: usize) -> bool {
    table.publish_idle(own, 1);
    let seen = table.has_waiters() && table.oldest_elsewhere(own).is_some_and(|(core, _)| core == waiting);
    seen && table.reserve_incoming(waiting)
}

/// Steps of a waiting core: join, then check. Returns whether it asks for an idle connection.
fn wait(table: &CoreTable, own: usize, waiting: usize) -> bool {
    table.publish_waiting(own, waiting, Some(1));
    table.idle_elsewhere(own).is_some()
}

#[test]
fn release_and_new_waiter_see_each_other() {
    loom::model(|| {
        let table = Arc::new(CoreTable::new(2));
        let other = Arc::clone(&table);
        let releasing = thread::spawn(move || release(&other, 0, 1));
        let asked = wait(&table, 1, 1);
        let given = releasing.join().expect("does not panic");
        assert!(asked || given, "idle connection and waiting client missed each other");
    });
}

#[test]
fn release_and_waiter_see_each_other_beside_a_third() {
    loom::model(|| {
        let table = Arc::new(CoreTable::new(3));
        table.publish_waiting(2, 1, Some(5));
        table.reserve_incoming(2);
        let other = Arc::clone(&table);
        let releasing = thread::spawn(move || release(&other, 0, 1));
        let asked = wait(&table, 1, 1);
        let given = releasing.join().expect("does not panic");
        assert!(asked || given);
    });
}

#[test]
fn arrival_does_not_hide_the_next_waiter() {
    loom::model(|| {
        let table = Arc::new(CoreTable::new(2));
        // A connection is on its way to a client of core 1. It arrives, and then the next client comes.
        table.publish_waiting(1, 1, Some(1));
        assert!(table.reserve_incoming(1));
        let other = Arc::clone(&table);
        let releasing = thread::spawn(move || release(&other, 0, 1));
        table.end_incoming(1);
        table.publish_waiting(1, 0, None);
        let asked = wait(&table, 1, 1);
        let given = releasing.join().expect("does not panic");
        assert!(asked || given);
    });
}

#[test]
fn two_releases_do_not_both_serve_one_waiter() {
    loom::model(|| {
        let table = Arc::new(CoreTable::new(3));
        table.publish_waiting(2, 1, Some(1));
        let other = Arc::clone(&table);
        let one = thread::spawn(move || release(&other, 0, 2));
        let two = release(&table, 1, 2);
        let one = one.join().expect("does not panic");
        assert!(one ^ two, "reserved by {} cores", u8::from(one) + u8::from(two));
    });
}

#[test]
fn applied_epoch_implies_counted_grants() {
    loom::model(|| {
        let table = Arc::new(CoreTable::new(1));
        table.apply_epoch(0, 0);
        let other = Arc::clone(&table);
        let core = thread::spawn(move || {
            increment(&other.core(0).active);
            other.apply_epoch(0, 1);
            increment(&other.core(0).cleaning);
            decrement(&other.core(0).active);
        });
        if table.all_applied(1) {
            let active = table.core(0).active.load(super::Acquire);
            let cleaning = table.core(0).cleaning.load(super::Relaxed);
            assert!(active + cleaning > 0, "quiescent while a connection is in use");
        }
        core.join().expect("does not panic");
    });
}
