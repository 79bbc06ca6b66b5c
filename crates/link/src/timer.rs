//! Deadlines that are cheap to move.
//!
//! A proxy sets a deadline with every query and almost never reaches one. Moving a [`Deadline`] later is therefore a
//! store. The timer queue holds at most one entry per deadline; an entry that fires early is inserted again at the
//! current time of the deadline.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

/// The timer queue of one thread.
#[derive(Default)]
pub(crate) struct Timers {
    queue: RefCell<TimerQueue>,
}

#[derive(Default)]
struct TimerQueue {
    next_id: u64,
    entries: BTreeMap<(Instant, u64), Waker>,
}

impl Timers {
    fn insert(&self, at: Instant, waker: Waker) -> (Instant, u64) {
        let mut queue = self.queue.borrow_mut();
        queue.next_id += 1;
        let key = (at, queue.next_id);
        queue.entries.insert(key, waker);
        key
    }

    fn remove(&self, key: (Instant, u64)) -> bool {
        self.queue.borrow_mut().entries.remove(&key).is_some()
    }

    fn holds(&self, key: (Instant, u64)) -> bool {
        self.queue.borrow().entries.contains_key(&key)
    }

    /// Time until the first entry is due.
    pub(crate) fn wait_from(&self, now: Instant) -> Option<Duration> {
        let queue = self.queue.borrow();
        queue.entries.first_key_value().map(|((at, _), _)| at.saturating_duration_since(now))
    }

    /// Wakes the tasks of all due entries.
    pub(crate) fn fire(&self, now: Instant) {
        loop {
            let mut queue = self.queue.borrow_mut();
            match queue.entries.first_entry() {
                Some(entry) if entry.key().0 <= now => {
                    let waker = entry.remove();
                    drop(queue);
                    waker.wake();
                }
                _ => return,
            }
        }
    }
}

/// A point in time for one task that can be moved or cleared at any moment.
pub struct Deadline {
    timers: Rc<Timers>,
    at: Option<Instant>,
    entry: Option<(Instant, u64)>,
}

impl Deadline {
    pub(crate) fn new(timers: Rc<Timers>) -> Self {
        Self { timers, at: None, entry: None }
    }

    /// Moves the deadline; `None` clears it.
    #[inline]
    pub fn set(&mut self, at: Option<Instant>) {
        self.at = at;
    }

    /// The time at which it is due.
    #[must_use]
    pub fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Ready once the deadline has passed at `now`; registers the task otherwise.
    pub fn poll(&mut self, now: Instant, cx: &Context<'_>) -> Poll<()> {
        let Some(at) = self.at else { return Poll::Pending };
        if at <= now {
            return Poll::Ready(());
        }
        if self.entry.is_none_or(|entry| entry.0 > at || !self.timers.holds(entry)) {
            self.deregister();
            self.entry = Some(self.timers.insert(at, cx.waker().clone()));
        }
        Poll::Pending
    }

    fn deregister(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.timers.remove(entry);
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.deregister();
    }
}

/// Completes once, at its time.
#[must_use = "a sleep does nothing unless awaited"]
pub struct Sleep {
    timers: Rc<Timers>,
    at: Instant,
    entry: Option<(Instant, u64)>,
}

impl Sleep {
    pub(crate) fn new(timers: Rc<Timers>, at: Instant) -> Self {
        Self { timers, at, entry: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.at {
            return Poll::Ready(());
        }
        if let Some(entry) = self.entry.take() {
            self.timers.remove(entry);
        }
        self.entry = Some(self.timers.insert(self.at, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.timers.remove(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_moved_later_reuses_its_early_entry() {
        let timers = Rc::new(Timers::default());
        let mut deadline = Deadline::new(timers.clone());
        let start = Instant::now();
        let cx = Context::from_waker(Waker::noop());
        deadline.set(Some(start + Duration::from_secs(1)));
        assert!(deadline.poll(start, &cx).is_pending());
        deadline.set(Some(start + Duration::from_secs(5)));
        assert!(deadline.poll(start, &cx).is_pending());
        assert_eq!(timers.wait_from(start), Some(Duration::from_secs(1)), "the early entry serves");
        timers.fire(start + Duration::from_secs(1));
        assert!(deadline.poll(start + Duration::from_secs(1), &cx).is_pending());
        assert_eq!(timers.wait_from(start), Some(Duration::from_secs(5)));
        assert!(deadline.poll(start + Duration::from_secs(5), &cx).is_ready());
    }

    #[test]
    fn deadline_moved_earlier_fires_in_time() {
        let timers = Rc::new(Timers::default());
        let mut deadline = Deadline::new(timers.clone());
        let start = Instant::now();
        let cx = Context::from_waker(Waker::noop());
        deadline.set(Some(start + Duration::from_secs(5)));
        assert!(deadline.poll(start, &cx).is_pending());
        deadline.set(Some(start + Duration::from_secs(2)));
        assert!(deadline.poll(start, &cx).is_pending());
        assert_eq!(timers.wait_from(start), Some(Duration::from_secs(2)));
        drop(deadline);
        assert_eq!(timers.wait_from(start), None, "a dropped deadline leaves nothing behind");
    }
}
