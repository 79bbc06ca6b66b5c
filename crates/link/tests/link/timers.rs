//! Deadlines, sleeps, and wakes from another thread.

use std::{
    cell::RefCell,
    ops::ControlFlow,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::Poll,
    time::{Duration, Instant},
};

use tidegate_link::Reactor;

use crate::stage::{PATIENCE, each_mode, run};

#[test]
fn sleeps_end_in_the_order_of_their_times() {
    each_mode(|config| {
        run(config, |reactor| async move {
            let order = Rc::new(RefCell::new(Vec::new()));
            for wait_ms in [30, 10, 40, 20] {
                let (order, clock) = (order.clone(), reactor.clone());
                reactor.spawn(async move {
                    clock.sleep(Duration::from_millis(wait_ms)).await;
                    order.borrow_mut().push(wait_ms);
                });
            }
            while order.borrow().len() < 4 {
                reactor.sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(*order.borrow(), [10, 20, 30, 40]);
        });
    });
}

#[test]
fn dropped_sleep_does_not_wake_its_task() {
    each_mode(|config| {
        run(config, |reactor| async move {
            let mut long = Box::pin(reactor.sleep(PATIENCE * 2));
            let polled = std::future::poll_fn(|cx| Poll::Ready(long.as_mut().poll(cx).is_pending()));
            assert!(polled.await);
            drop(long);
            reactor.sleep(Duration::from_millis(1)).await;
        });
    });
}

#[test]
fn deadline_is_due_after_its_time_and_not_before() {
    each_mode(|config| {
        run(config, |reactor| async move {
            let mut deadline = reactor.deadline();
            let first = Instant::now() + Duration::from_millis(5);
            let later = first + Duration::from_millis(20);
            deadline.set(Some(first));
            let early = std::future::poll_fn(|cx| Poll::Ready(deadline.poll(first - Duration::from_millis(5), cx)));
            assert!(early.await.is_pending());
            deadline.set(Some(later));
            std::future::poll_fn(|cx| deadline.poll(reactor.now(), cx)).await;
            assert!(reactor.now() >= later);
            deadline.set(None);
            let never = std::future::poll_fn(|cx| Poll::Ready(deadline.poll(later + PATIENCE, cx)));
            assert!(never.await.is_pending());
        });
    });
}

/// Each wake waits for the one before, so that the reactor is waiting, or about to wait.
#[test]
fn every_wake_from_another_thread_arrives() {
    const CALLS: usize = 2000;
    each_mode(|config| {
        let reactor = Reactor::new(config).expect("a reactor");
        let remote = reactor.waker();
        let called = Arc::new(AtomicUsize::new(0));
        let (ack, acks) = mpsc::channel();
        let calls = called.clone();
        let caller = std::thread::spawn(move || {
            for _ in 0..CALLS {
                calls.fetch_add(1, Ordering::SeqCst);
                remote.wake();
                acks.recv_timeout(PATIENCE).expect("a wake was lost");
            }
        });
        let (mut seen, started) = (0, Instant::now());
        let turn = || {
            while seen < called.load(Ordering::SeqCst) {
                seen += 1;
                // The caller has panicked if it receives nothing; its own message is the better one.
                let _ = ack.send(());
            }
            if seen == CALLS || started.elapsed() > PATIENCE {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        // Ends the wait of a reactor that has missed a wake.
        let eventfd = reactor.sleep(PATIENCE + Duration::from_secs(1));
        reactor.spawn(eventfd);
        reactor.run(turn).expect("the event loop");
        drop(ack);
        caller.join().expect("the caller");
    });
}
