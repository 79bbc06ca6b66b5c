//! Every interleaving of a releasing and a waiting core, tried by loom. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p tidegate-pool --release --lib`.

use loom::{sync::Arc, thread};

use super::{Board, lower, raise};

/// What a releasing core does: put the connection down, then look. True: it promised it to `core`.
fn releases(board: &Board, own: usize, waiting: usize) -> bool {
    board.publish_idle(own, 1);
    let seen = board.somebody_waits() && board.oldest_elsewhere(own).is_some_and(|(core, _)| core == waiting);
    seen && board.promise(waiting)
}

/// What a waiting core does: join, then look. True: it asks for an idle connection.
fn waits(board: &Board, own: usize, waiting: usize) -> bool {
    board.publish_waiting(own, waiting, Some(1));
    board.idle_elsewhere(own).is_some()
}

#[test]
fn a_release_and_a_new_waiter_never_miss_each_other() {
    loom::model(|| {
        let board = Arc::new(Board::new(2));
        let other = Arc::clone(&board);
        let releasing = thread::spawn(move || releases(&other, 0, 1));
        let asked = waits(&board, 1, 1);
        let given = releasing.join().expect("does not panic");
        assert!(asked || given, "an idle connection beside a waiting client, and neither knows");
    });
}

#[test]
fn a_release_and_a_new_waiter_do_not_miss_each_other_while_a_third_core_waits_already() {
    loom::model(|| {
        let board = Arc::new(Board::new(3));
        board.publish_waiting(2, 1, Some(5));
        board.promise(2);
        let other = Arc::clone(&board);
        let releasing = thread::spawn(move || releases(&other, 0, 1));
        let asked = waits(&board, 1, 1);
        let given = releasing.join().expect("does not panic");
        assert!(asked || given);
    });
}

#[test]
fn an_arrival_does_not_hide_the_waiter_after_it() {
    loom::model(|| {
        let board = Arc::new(Board::new(2));
        // A client of core 1 has been promised a connection; it arrives, and then the next client comes.
        board.publish_waiting(1, 1, Some(1));
        assert!(board.promise(1));
        let other = Arc::clone(&board);
        let releasing = thread::spawn(move || releases(&other, 0, 1));
        board.promise_ends(1);
        board.publish_waiting(1, 0, None);
        let asked = waits(&board, 1, 1);
        let given = releasing.join().expect("does not panic");
        assert!(asked || given);
    });
}

#[test]
fn two_givers_do_not_both_promise_to_one_waiter() {
    loom::model(|| {
        let board = Arc::new(Board::new(3));
        board.publish_waiting(2, 1, Some(1));
        let other = Arc::clone(&board);
        let one = thread::spawn(move || releases(&other, 0, 2));
        let two = releases(&board, 1, 2);
        let one = one.join().expect("does not panic");
        assert!(one ^ two, "promised by {}", u8::from(one) + u8::from(two));
    });
}

#[test]
fn who_follows_has_counted_what_it_granted_before() {
    loom::model(|| {
        let board = Arc::new(Board::new(1));
        board.acknowledge(0, 0);
        let other = Arc::clone(&board);
        let core = thread::spawn(move || {
            raise(&other.line(0).active);
            other.acknowledge(0, 1);
            raise(&other.line(0).cleaning);
            lower(&other.line(0).active);
        });
        if board.all_follow(1) {
            let active = board.line(0).active.load(super::Acquire);
            let cleaning = board.line(0).cleaning.load(super::Relaxed);
            assert!(active + cleaning > 0, "quiet while a connection is in use");
        }
        core.join().expect("does not panic");
    });
}
