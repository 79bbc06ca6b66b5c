//! Handlers as light tasks: one for each key that is busy.
//!
//! Many handlers end at their first poll, or would if they were asked: a filter, a cache that has the answer, a batch that
//! is not yet full. For those a task is most of the cost. So the shard polls a new handler once by itself, and makes a
//! task of it only if it has to wait. Where that seldom pays, or where handlers compute for long, it stops trying, and
//! looks again now and then.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::{Crew, Guarded, Running, Work};
use crate::panic;

/// A place for a handler's future that is used again.
type Place<F> = Pin<Box<Option<F>>>;

pub(crate) struct TaskCrew<H, F> {
    handler: H,
    tokio: Handle,
    spare: Option<Place<F>>,
    eagerness: Eagerness,
}

impl<H, F> TaskCrew<H, F> {
    pub(crate) fn new(handler: H, tokio: Handle) -> Self {
        Self { handler, tokio, spare: None, eagerness: Eagerness::default() }
    }
}

/// A task that can be aborted.
#[derive(Debug)]
pub(crate) struct Task(pub(crate) AbortHandle);

impl Running for Task {
    fn abort(&self) -> bool {
        let is_finished = self.0.is_finished();
        self.0.abort();
        is_finished
    }
}

impl<H, F> Crew for TaskCrew<H, F>
where
    H: Fn(Work) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    type Running = Task;

    fn run(&mut self, work: Work) -> Option<Task> {
        let span = work.span.clone();
        let handler = span.inside(|| panic::contain(|| (self.handler)(work)))?;
        if !self.eagerness.is_worth_a_try() {
            return Some(Task(self.tokio.spawn(Guarded::new(handler, span)).abort_handle()));
        }
        let mut place = self.place(handler);
        let mut first = Guarded::new(InPlace(place.as_mut()), span.clone());
        let began = self.eagerness.begin();
        let polled = Pin::new(&mut first).poll(&mut Context::from_waker(Waker::noop()));
        self.eagerness.end(began, polled.is_ready());
        if polled.is_ready() {
            place.set(None);
            self.spare = Some(place);
            return None;
        }
        // The task polls it again at once, with a waker of its own.
        Some(Task(self.tokio.spawn(Guarded::new(Moved(place), span)).abort_handle()))
    }
}

impl<H, F> TaskCrew<H, F> {
    fn place(&mut self, handler: F) -> Place<F> {
        match self.spare.take() {
            Some(mut place) => {
                place.set(Some(handler));
                place
            }
            None => Box::pin(Some(handler)),
        }
    }
}

/// The future in a place, by reference.
struct InPlace<'a, F>(Pin<&'a mut Option<F>>);

impl<F: Future<Output = ()>> Future for InPlace<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().as_pin_mut().map_or(Poll::Ready(()), |handler| handler.poll(cx))
    }
}

/// The future in a place, and the place.
struct Moved<F>(Place<F>);

impl<F: Future<Output = ()>> Future for Moved<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().as_pin_mut().map_or(Poll::Ready(()), |handler| handler.poll(cx))
    }
}

impl<H, F> fmt::Debug for TaskCrew<H, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskCrew").field("eagerness", &self.eagerness).finish_non_exhaustive()
    }
}

/// Whether the shard polls a new handler by itself.
#[derive(Debug)]
struct Eagerness {
    /// Of the last first polls, how many paid, as a score.
    score: u32,
    tries: u32,
    skipped: u32,
}

const SCORE_MAX: u32 = 64;
const SCORE_WORTH: u32 = 16;
/// Where it does not pay, one of so many handlers is tried.
const LOOK_AGAIN: u32 = 64;
/// Of the first polls, one of so many is timed.
const TIMED: u32 = 8;
/// A first poll that computes for longer keeps the shard from its other keys.
const LONG: Duration = Duration::from_micros(50);

impl Default for Eagerness {
    fn default() -> Self {
        Self { score: SCORE_WORTH, tries: 0, skipped: 0 }
    }
}

impl Eagerness {
    fn is_worth_a_try(&mut self) -> bool {
        if self.score >= SCORE_WORTH {
            return true;
        }
        self.skipped += 1;
        self.skipped.is_multiple_of(LOOK_AGAIN)
    }

    fn begin(&mut self) -> Option<Instant> {
        self.tries = self.tries.wrapping_add(1);
        let is_timed = self.score < SCORE_WORTH || self.tries.is_multiple_of(TIMED);
        is_timed.then(Instant::now)
    }

    fn end(&mut self, began: Option<Instant>, has_paid: bool) {
        let was_long = began.is_some_and(|began| began.elapsed() > LONG);
        self.score = match has_paid {
            _ if was_long => self.score.saturating_sub(SCORE_WORTH),
            true if self.score < SCORE_WORTH => self.score + SCORE_WORTH / 4,
            true => (self.score + 1).min(SCORE_MAX),
            false => self.score.saturating_sub(2),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stops_trying_where_that_does_not_pay_and_looks_again() {
        let mut eagerness = Eagerness::default();
        let mut tried = 0;
        for _ in 0..1000 {
            if eagerness.is_worth_a_try() {
                tried += 1;
                eagerness.end(None, false);
            }
        }
        assert!((10..60).contains(&tried), "{tried}");
        for _ in 0..1000 {
            if eagerness.is_worth_a_try() {
                eagerness.end(None, true);
            }
        }
        assert_eq!(eagerness.score, SCORE_MAX);
    }
}
