//! At most so many children, and the line of those who wait for a place.
//!
//! The line is served strictly first come, first served: while someone waits, a freed place goes to the head of the
//! line and to nobody else.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
pub(crate) struct Limit {
    max: usize,
    line: Mutex<Line>,
}

#[derive(Debug)]
struct Line {
    free: usize,
    waiting: VecDeque<Arc<Ticket>>,
}

/// One waiter's place in the line.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    New,
    Waiting(Waker),
    Granted,
    /// The grant was taken, or the waiter left.
    Over,
}

impl Limit {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, line: Mutex::new(Line { free: max, waiting: VecDeque::new() }) }
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Takes a place if one is free and nobody waits.
    pub(crate) fn try_take(&self) -> bool {
        let mut line = lock(&self.line);
        let taken = line.free > 0;
        line.free -= usize::from(taken);
        taken
    }

    /// Gives a place to the head of the line, or back.
    pub(crate) fn give_back(&self) {
        let mut line = lock(&self.line);
        while let Some(head) = line.waiting.pop_front() {
            if let Some(waker) = head.grant() {
                drop(line);
                waker.wake();
                return;
            }
        }
        line.free += 1;
        debug_assert!(line.free <= self.max, "a place is given back once");
    }

    pub(crate) fn poll_take(&self, ticket: &Arc<Ticket>, cx: &Context<'_>) -> Poll<()> {
        let mut line = lock(&self.line);
        let mut state = lock(&ticket.0);
        match &mut *state {
            State::New if line.free > 0 => {
                line.free -= 1;
                *state = State::Over;
                return Poll::Ready(());
            }
            State::New => line.waiting.push_back(Arc::clone(ticket)),
            State::Waiting(_) => {}
            State::Granted | State::Over => {
                *state = State::Over;
                return Poll::Ready(());
            }
        }
        *state = State::Waiting(cx.waker().clone());
        Poll::Pending
    }

    /// The waiter leaves: out of the line, and a grant it never took goes on to the next.
    pub(crate) fn leave(&self, ticket: &Arc<Ticket>) {
        let was = {
            let mut line = lock(&self.line);
            line.waiting.retain(|other| !Arc::ptr_eq(other, ticket));
            std::mem::replace(&mut *lock(&ticket.0), State::Over)
        };
        if matches!(was, State::Granted) {
            self.give_back();
        }
    }

    /// Wakes everybody in line, so that they see that the scope takes no more children.
    pub(crate) fn wake_all(&self) {
        let waiting: Vec<_> = lock(&self.line).waiting.iter().cloned().collect();
        for ticket in waiting {
            let waker = match &*lock(&ticket.0) {
                State::Waiting(waker) => waker.clone(),
                _ => continue,
            };
            waker.wake();
        }
    }
}

impl Ticket {
    fn grant(&self) -> Option<Waker> {
        match std::mem::replace(&mut *lock(&self.0), State::Granted) {
            State::Waiting(waker) => Some(waker),
            _ => None,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
