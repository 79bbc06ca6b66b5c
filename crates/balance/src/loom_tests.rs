//! Loom models of the version, the in-flight count and the lists of waiters: every interleaving.
//! `RUSTFLAGS="--cfg loom" cargo test -p tidegate-balance --release --lib`

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use loom::{sync::Arc, thread};

use crate::in_flight::{DrainOutcome, InFlightCount};
use crate::published::Published;
use crate::waiters::Waiters;

/// Counts its wake-ups.
#[derive(Default)]
struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn wake_counter() -> (std::sync::Arc<WakeCounter>, Waker) {
    let wakes = std::sync::Arc::new(WakeCounter::default());
    (std::sync::Arc::clone(&wakes), Waker::from(wakes))
}

/// BA-5.
#[test]
fn version_never_belongs_to_an_older_snapshot() {
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

/// BA-43.
#[test]
fn drain_sees_the_last_lease_end() {
    loom::model(|| {
        let count = Arc::new(InFlightCount::new());
        assert!(count.enter());
        let lease = Arc::clone(&count);
        let leaving = thread::spawn(move || lease.leave());
        let (wakes, waker) = wake_counter();
        count.drain();
        let first = count.poll_drained(&Context::from_waker(&waker));
        leaving.join().expect("does not panic");
        assert!(first.is_ready() || wakes.0.load(Ordering::SeqCst) > 0, "no leases, and the drain was not woken");
        assert_eq!(count.poll_drained(&Context::from_waker(&waker)), Poll::Ready(DrainOutcome::Empty));
    });
}

/// BA-43.
#[test]
fn closed_endpoint_has_no_lease() {
    loom::model(|| {
        let count = Arc::new(InFlightCount::new());
        let other = Arc::clone(&count);
        let entering = thread::spawn(move || {
            let entered = other.enter();
            let closed = other.is_closed();
            if entered {
                assert!(!closed, "closed during a lease");
                other.leave();
            }
        });
        let (wakes, waker) = wake_counter();
        count.drain();
        let first = count.poll_drained(&Context::from_waker(&waker));
        entering.join().expect("does not panic");
        assert!(first.is_ready() || wakes.0.load(Ordering::SeqCst) > 0);
        assert!(count.poll_drained(&Context::from_waker(&waker)).is_ready());
        assert!(!count.enter() && count.count() == 0);
    });
}

/// BA-47.
#[test]
fn drained_endpoint_is_closed_or_revived() {
    loom::model(|| {
        let count = Arc::new(InFlightCount::new());
        count.drain();
        let other = Arc::clone(&count);
        let reviving = thread::spawn(move || other.revive());
        let (_, waker) = wake_counter();
        let outcome = count.poll_drained(&Context::from_waker(&waker));
        let revived = reviving.join().expect("does not panic");
        let expected = if revived { DrainOutcome::Revived } else { DrainOutcome::Empty };
        assert_eq!(outcome, Poll::Ready(expected));
        assert_eq!(count.enter(), revived);
    });
}

/// BA-47.
#[test]
fn abandoned_drain_does_not_close_a_revived_endpoint() {
    loom::model(|| {
        let count = Arc::new(InFlightCount::new());
        assert!(count.enter());
        count.drain();
        let other = Arc::clone(&count);
        let reviving = thread::spawn(move || other.revive());
        let outcome = count.force_close();
        let revived = reviving.join().expect("does not panic");
        assert_eq!(outcome, if revived { DrainOutcome::Revived } else { DrainOutcome::Empty });
        assert_eq!((count.is_closed(), count.enter()), (!revived, revived));
    });
}

/// BA-50.
#[test]
fn waiter_sees_a_publication_or_is_woken() {
    loom::model(|| {
        let shared = Arc::new((Published::new(1, std::sync::Arc::new(())), Waiters::new(8)));
        let writer = Arc::clone(&shared);
        let publishing = thread::spawn(move || {
            drop(writer.0.publish(2, std::sync::Arc::new(())));
            writer.1.wake_all();
        });
        let (wakes, waker) = wake_counter();
        let mut ticket = None;
        shared.1.join(&mut ticket, &waker).expect("the list has room");
        let seen = shared.0.version() == 2;
        publishing.join().expect("does not panic");
        assert!(seen || wakes.0.load(Ordering::SeqCst) == 1, "published, and the waiter was not woken");
        shared.1.leave(ticket.expect("it joined"));
        assert_eq!(shared.1.len(), 0);
    });
}
