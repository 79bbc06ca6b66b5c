//! Sleeps that are exact to a microsecond, by a thread of their own. Tokio rounds up to the next millisecond, which is a
//! tenth of 10 ms.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Condvar, Mutex, OnceLock};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Sleepers by wake-up time.
#[derive(Default)]
struct Clock {
    sleepers: Mutex<BTreeMap<(Instant, u64), Waker>>,
    changed: Condvar,
}

static CLOCK: OnceLock<&'static Clock> = OnceLock::new();

fn clock() -> &'static Clock {
    CLOCK.get_or_init(|| {
        let clock: &'static Clock = Box::leak(Box::default());
        std::thread::spawn(|| clock.run());
        clock
    })
}

impl Clock {
    fn run(&self) {
        let mut sleepers = self.sleepers.lock().expect("not poisoned");
        loop {
            let now = Instant::now();
            let later = sleepers.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut *sleepers, later);
            if !due.is_empty() {
                drop(sleepers);
                due.into_values().for_each(Waker::wake);
                sleepers = self.sleepers.lock().expect("not poisoned");
                continue;
            }
            let wait =
                sleepers.keys().next().map_or(Duration::from_secs(1), |(at, _)| at.saturating_duration_since(now));
            sleepers = self.changed.wait_timeout(sleepers, wait).expect("not poisoned").0;
        }
    }

    fn add(&self, at: Instant, waker: Waker) {
        let mut sleepers = self.sleepers.lock().expect("not poisoned");
        let is_first = sleepers.keys().next().is_none_or(|(first, _)| at < *first);
        let number = sleepers.range(..=(at, u64::MAX)).next_back().map_or(
            0,
            |((last, number), _)| {
                if *last == at { number + 1 } else { 0 }
            },
        );
        sleepers.insert((at, number), waker);
        drop(sleepers);
        if is_first {
            self.changed.notify_one();
        }
    }
}

pub(crate) async fn sleep(wait: Duration) {
    let until = Instant::now() + wait;
    poll_fn(|cx| {
        if Instant::now() >= until {
            return Poll::Ready(());
        }
        clock().add(until, cx.waker().clone());
        Poll::Pending
    })
    .await;
}
