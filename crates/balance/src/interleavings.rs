//! Every interleaving of the version, the slot and the lists of those who wait, tried by loom. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p tidegate-balance --release --lib`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use loom::{sync::Arc, thread};

use crate::published::Published;
use crate::slot::{Drained, Slot};
use crate::wait::Waiters;

/// Counts how often it was woken.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn bell() -> (std::sync::Arc<Bell>, Waker) {
    let bell = std::sync::Arc::new(Bell::default());
    (std::sync::Arc::clone(&bell), Waker::from(bell))
}

#[test]
fn t05_a_version_never_belongs_to_an_older_snapshot() {
    loom::model(|| {
        let published = Arc::new(Published::new(1, std::sync::Arc::new(10)));
        let writer = Arc::clone(&published);
        let writing = thread::spawn(move || {
            drop(writer.publish(2, std::sync::Arc::new(20)));
            drop(writer.publish(3, std::sync::Arc::new(30)));
        });
        let seen = published.version();
        let (version, value) = published.read();
        assert!(version >= seen, "{version} after {seen}");
        assert_eq!(*value, version * 10);
        assert!(published.version() >= version);
        writing.join().expect("does not panic");
        assert_eq!((published.version(), published.read().0), (3, 3));
    });
}

#[test]
fn t43_a_drain_never_misses_the_last_one_out() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        assert!(slot.enter());
        let holder = Arc::clone(&slot);
        let holding = thread::spawn(move || holder.leave());
        let (bell, waker) = bell();
        slot.drain();
        let first = slot.poll_drained(&Context::from_waker(&waker));
        holding.join().expect("does not panic");
        assert!(first.is_ready() || bell.0.load(Ordering::SeqCst) > 0, "empty, and the drain sleeps");
        assert_eq!(slot.poll_drained(&Context::from_waker(&waker)), Poll::Ready(Drained::Empty));
    });
}

#[test]
fn t43_nobody_is_inside_of_a_slot_that_closed_empty() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        let other = Arc::clone(&slot);
        let entering = thread::spawn(move || {
            let inside = other.enter();
            let closed = other.is_closed();
            if inside {
                assert!(!closed, "closed under a holder");
                other.leave();
            }
        });
        let (bell, waker) = bell();
        slot.drain();
        let first = slot.poll_drained(&Context::from_waker(&waker));
        entering.join().expect("does not panic");
        assert!(first.is_ready() || bell.0.load(Ordering::SeqCst) > 0);
        assert!(slot.poll_drained(&Context::from_waker(&waker)).is_ready());
        assert!(!slot.enter() && slot.holders() == 0);
    });
}

#[test]
fn t47_a_slot_is_closed_or_revived_but_not_both() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        slot.drain();
        let other = Arc::clone(&slot);
        let reviving = thread::spawn(move || other.revive());
        let (_, waker) = bell();
        let end = slot.poll_drained(&Context::from_waker(&waker));
        let revived = reviving.join().expect("does not panic");
        assert_eq!(end, Poll::Ready(if revived { Drained::Revived } else { Drained::Empty }));
        assert_eq!(slot.enter(), revived);
    });
}

#[test]
fn t47_a_drain_that_is_given_up_closes_nobody_who_was_brought_back() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        assert!(slot.enter());
        slot.drain();
        let other = Arc::clone(&slot);
        let reviving = thread::spawn(move || other.revive());
        let end = slot.force();
        let revived = reviving.join().expect("does not panic");
        assert_eq!(end, if revived { Drained::Revived } else { Drained::Empty });
        assert_eq!((slot.is_closed(), slot.enter()), (!revived, revived));
    });
}

#[test]
fn t50_who_waits_for_a_publication_is_woken_or_sees_it() {
    loom::model(|| {
        let shared = Arc::new((Published::new(1, std::sync::Arc::new(())), Waiters::new(8)));
        let writer = Arc::clone(&shared);
        let publishing = thread::spawn(move || {
            drop(writer.0.publish(2, std::sync::Arc::new(())));
            writer.1.wake_all();
        });
        let (bell, waker) = bell();
        let mut ticket = None;
        shared.1.join(&mut ticket, &waker).expect("there is room");
        let seen = shared.0.version() == 2;
        publishing.join().expect("does not panic");
        assert!(seen || bell.0.load(Ordering::SeqCst) == 1, "published, and the one who waits sleeps");
        shared.1.leave(ticket.expect("it joined"));
        assert_eq!(shared.1.len(), 0);
    });
}
