//! The lane of a source that has only one: assigned by the first poll, and paused while the sink is full.

use std::task::{Context, Waker};

use tidegate_lanes::{Epoch, Lane, SourceEvent};

/// The slot or the copy is one lane, and a run is one assignment of it.
pub(super) const LANE: Lane = Lane(0);
pub(super) const EPOCH: Epoch = Epoch(1);

/// State of the lane.
#[derive(Debug, Default)]
pub(super) struct SingleLane {
    is_assigned: bool,
    is_paused: bool,
    waker: Option<Waker>,
}

impl SingleLane {
    /// The first event of the source.
    pub(super) fn take_assignment(&mut self) -> Option<SourceEvent> {
        let is_new = !std::mem::replace(&mut self.is_assigned, true);
        is_new.then_some(SourceEvent::Assigned { lane: LANE, epoch: EPOCH })
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(super) fn pause(&mut self) {
        self.is_paused = true;
    }

    /// Ends the pause and wakes the task.
    pub(super) fn resume(&mut self) {
        self.is_paused = false;
        self.wake();
    }

    /// Registers the task that [`resume`](Self::resume) and [`wake`](Self::wake) wake.
    pub(super) fn register(&mut self, cx: &Context<'_>) {
        self.waker = Some(cx.waker().clone());
    }

    pub(super) fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}
