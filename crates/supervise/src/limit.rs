//! Limit on the number of children, with a queue of waiters for a permit.
//!
//! The queue is strictly first-in, first-out: while a waiter is queued, a returned permit goes to the oldest waiter only.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
pub(crate) struct Limit {
    max: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    free: usize,
    waiting: VecDeque<Arc<Ticket>>,
}

/// Queue entry of one waiter.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Mutex<LimitState>);

#[derive(Debug, Default)]
enum LimitState {
    #[default]
    New,
    Waiting(Waker),
    Granted,
    /// The permit was taken, or the waiter left.
    Over,
}

impl Limit {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, queue: Mutex::new(Queue { free: max, waiting: VecDeque::new() }) }
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Takes a permit if one is free. While a waiter is queued, none is free.
    pub(crate) fn try_take(&self) -> bool {
        let mut queue = lock(&self.queue);
        let taken = queue.free > 0;
        queue.free -= usize::from(taken);
        taken
    }

    /// Hands a permit to the oldest waiter, or returns it to the free count.
    pub(crate) fn give_back(&self) {
        let mut queue = lock(&self.queue);
        while let Some(head) = queue.waiting.pop_front() {
            if let Some(waker) = head.grant() {
                drop(queue);
                waker.wake();
                return;
            }
        }
        queue.free += 1;
        debug_assert!(queue.free <= self.max, "a permit is returned once");
    }

    pub(crate) fn poll_take(&self, ticket: &Arc<Ticket>, cx: &Context<'_>) -> Poll<()> {
        let mut queue = lock(&self.queue);
        let mut state = lock(&ticket.0);
        match &mut *state {
            LimitState::New if queue.free > 0 => {
                queue.free -= 1;
                *state = LimitState::Over;
                return Poll::Ready(());
            }
            LimitState::New => queue.waiting.push_back(Arc::clone(ticket)),
            LimitState::Waiting(_) => {}
            LimitState::Granted | LimitState::Over => {
                *state = LimitState::Over;
                return Poll::Ready(());
            }
        }
        *state = LimitState::Waiting(cx.waker().clone());
        Poll::Pending
    }

    /// Removes the waiter from the queue; a permit that it was granted but never took goes to the next waiter.
    pub(crate) fn leave(&self, ticket: &Arc<Ticket>) {
        let was = {
            let mut queue = lock(&self.queue);
            queue.waiting.retain(|other| !Arc::ptr_eq(other, ticket));
            std::mem::replace(&mut *lock(&ticket.0), LimitState::Over)
        };
        if matches!(was, LimitState::Granted) {
            self.give_back();
        }
    }

    /// Wakes all waiters, so that they see that the scope accepts no more children.
    pub(crate) fn wake_all(&self) {
        let waiting: Vec<_> = lock(&self.queue).waiting.iter().cloned().collect();
        for ticket in waiting {
            let waker = match &*lock(&ticket.0) {
                LimitState::Waiting(waker) => waker.clone(),
                _ => continue,
            };
            waker.wake();
        }
    }
}

impl Ticket {
    fn grant(&self) -> Option<Waker> {
        match std::mem::replace(&mut *lock(&self.0), LimitState::Granted) {
            LimitState::Waiting(waker) => Some(waker),
            _ => None,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
