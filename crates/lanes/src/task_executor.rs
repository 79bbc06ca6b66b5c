//! Runs handlers as tokio tasks, one per busy key.
//!
//! Many handlers are ready at their first poll: a filter, a cache hit, a batch that is not full yet. For those, spawning
//! a task is most of the cost. So the shard polls a new handler once inline and spawns a task only if it is pending.
//! Where this rarely pays, or where handlers compute for long, the shard stops polling inline and probes again from time
//! to time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::executor::{ContainPanics, HandlerCall, HandlerExecutor, RunningHandler};
use crate::panic;

/// A reusable allocation for a handler's future.
type ReusableSlot<F> = Pin<Box<Option<F>>>;

pub(crate) struct TaskExecutor<H, F> {
    handler: H,
    tokio: Handle,
    spare_slot: Option<ReusableSlot<F>>,
    inline_polling: InlinePolling,
}

impl<H, F> TaskExecutor<H, F> {
    pub(crate) fn new(handler: H, tokio: Handle) -> Self {
        Self { handler, tokio, spare_slot: None, inline_polling: InlinePolling::default() }
    }
}

/// A task that can be aborted.
#[derive(Debug)]
pub(crate) struct AbortableTask(pub(crate) AbortHandle);

impl RunningHandler for AbortableTask {
    fn abort(&self) -> bool {
        let is_finished = self.0.is_finished();
        self.0.abort();
        is_finished
    }
}

impl<H, F> HandlerExecutor for TaskExecutor<H, F>
where
    H: Fn(HandlerCall) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    type Running = AbortableTask;

    fn run(&mut self, work: HandlerCall) -> Option<AbortableTask> {
        let span = work.span.clone();
        let handler = span.in_scope(|| panic::contain(|| (self.handler)(work)))?;
        if !self.inline_polling.should_try() {
            return Some(AbortableTask(self.tokio.spawn(ContainPanics::new(handler, span)).abort_handle()));
        }
        let mut slot = self.slot(handler);
        let mut first = ContainPanics::new(PinnedSlot(slot.as_mut()), span.clone());
        let began = self.inline_polling.begin();
        let polled = Pin::new(&mut first).poll(&mut Context::from_waker(Waker::noop()));
        self.inline_polling.end(began, polled.is_ready());
        if polled.is_ready() {
            slot.set(None);
            self.spare_slot = Some(slot);
            return None;
        }
        // The first poll used a no-op waker; the task polls again right away.
        Some(AbortableTask(self.tokio.spawn(ContainPanics::new(OwnedSlot(slot), span)).abort_handle()))
    }
}

impl<H, F> TaskExecutor<H, F> {
    fn slot(&mut self, handler: F) -> ReusableSlot<F> {
        match self.spare_slot.take() {
            Some(mut slot) => {
                slot.set(Some(handler));
                slot
            }
            None => Box::pin(Some(handler)),
        }
    }
}

/// The future in a slot, by reference.
struct PinnedSlot<'a, F>(Pin<&'a mut Option<F>>);

impl<F: Future<Output = ()>> Future for PinnedSlot<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().as_pin_mut().map_or(Poll::Ready(()), |handler| handler.poll(cx))
    }
}

/// The future and its slot.
struct OwnedSlot<F>(ReusableSlot<F>);

impl<F: Future<Output = ()>> Future for OwnedSlot<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().as_pin_mut().map_or(Poll::Ready(()), |handler| handler.poll(cx))
    }
}

impl<H, F> fmt::Debug for TaskExecutor<H, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskExecutor").field("inline_polling", &self.inline_polling).finish_non_exhaustive()
    }
}

/// Decides whether the shard polls a new handler inline.
#[derive(Debug)]
struct InlinePolling {
    /// Rises with each first poll that was ready, falls with each that was pending.
    score: u32,
    tries: u32,
    skipped: u32,
}

const SCORE_MAX: u32 = 64;
const SCORE_ENABLED: u32 = 16;
/// While inline polling is off, one of this many handlers is polled inline as a probe.
const PROBE_EVERY: u32 = 64;
/// The sampling interval: one of this many inline polls is timed.
const TIME_EVERY: u32 = 8;
/// An inline poll that takes longer delays the shard's other keys.
const LONG_POLL: Duration = Duration::from_micros(50);

impl Default for InlinePolling {
    fn default() -> Self {
        Self { score: SCORE_ENABLED, tries: 0, skipped: 0 }
    }
}

impl InlinePolling {
    fn should_try(&mut self) -> bool {
        if self.score >= SCORE_ENABLED {
            return true;
        }
        self.skipped += 1;
        self.skipped.is_multiple_of(PROBE_EVERY)
    }

    fn begin(&mut self) -> Option<Instant> {
        self.tries = self.tries.wrapping_add(1);
        let is_timed = self.score < SCORE_ENABLED || self.tries.is_multiple_of(TIME_EVERY);
        is_timed.then(Instant::now)
    }

    fn end(&mut self, began: Option<Instant>, was_ready: bool) {
        let was_long = began.is_some_and(|began| began.elapsed() > LONG_POLL);
        self.score = match was_ready {
            _ if was_long => self.score.saturating_sub(SCORE_ENABLED),
            true if self.score < SCORE_ENABLED => self.score + SCORE_ENABLED / 4,
            true => (self.score + 1).min(SCORE_MAX),
            false => self.score.saturating_sub(2),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_polling_stops_when_futile_and_probes() {
        let mut inline_polling = InlinePolling::default();
        let mut tried = 0;
        for _ in 0..1000 {
            if inline_polling.should_try() {
                tried += 1;
                inline_polling.end(None, false);
            }
        }
        assert!((10..60).contains(&tried), "{tried}");
        for _ in 0..1000 {
            if inline_polling.should_try() {
                inline_polling.end(None, true);
            }
        }
        assert_eq!(inline_polling.score, SCORE_MAX);
    }
}
