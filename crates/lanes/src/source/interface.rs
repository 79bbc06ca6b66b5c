//! The trait of a source, and its events.

use std::error::Error;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::record::{Epoch, Lane, Position, Record};

/// How much a source may deliver in one poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollLimit {
    /// The largest number of records. With 0, only other events are delivered.
    pub records: usize,
    /// The largest number of bytes, by [`Record::size_bytes`]. One record may exceed it, unless `records` is 0.
    pub bytes: usize,
}

/// A commit: all records of the lane up to and including a position are finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneCommit {
    /// The lane.
    pub lane: Lane,
    /// The epoch of the assignment; a source ignores commits of another epoch.
    pub epoch: Epoch,
    /// The last position such that it and all positions before it are finished.
    pub through: Position,
}

/// An event of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SourceEvent {
    /// Records were appended to the batch, at least one. Each carries a lane and an epoch that were assigned before; records
    /// of other lanes or epochs are dropped.
    Records,
    /// The lane is assigned to this source.
    Assigned {
        /// The lane.
        lane: Lane,
        /// Greater than at any earlier assignment of the lane; otherwise the event is ignored.
        epoch: Epoch,
    },
    /// The lanes are revoked; no record of them follows. Queued records are dropped, running handlers have `within` to
    /// end. Each lane is then passed to [`Source::release`], each at its own time.
    Revoked {
        /// The lanes and their epochs. Other lanes are not affected.
        lanes: Vec<(Lane, Epoch)>,
        /// How long running handlers may take.
        within: Duration,
    },
    /// The lanes are gone and may already belong to another consumer. They are neither committed nor released.
    Lost {
        /// The lanes and the epochs that ended.
        lanes: Vec<(Lane, Epoch)>,
    },
    /// There are no records up to and including this position: control records, gaps, changes that are filtered out. The
    /// position is committed once all records before it are finished.
    Gap {
        /// The lane.
        lane: Lane,
        /// The epoch of its assignment.
        epoch: Epoch,
        /// Greater than the position of every record delivered so far.
        through: Position,
    },
    /// A commit failed. It is retried with the progress made by then, unless the lane is gone.
    CommitFailed {
        /// The failed commit.
        commit: LaneCommit,
        /// The reason, for the log.
        reason: String,
    },
    /// No further records follow. The subscription ends once all records are finished and committed. It keeps polling
    /// until then; the source may return this event each time.
    Ended,
}

/// A source of records.
///
/// The subscription calls it from one task. It also polls with a limit of 0 records, so that lanes can be revoked while
/// all bounds are reached. A source that must be polled to stay in its group has to arrange that itself.
pub trait Source: Send + 'static {
    /// A permanent error, which ends the subscription. A source retries transient errors itself.
    type Error: Error + Send + Sync + 'static;

    /// Returns the next event. Appends records to `batch` only with [`SourceEvent::Records`]. If pending, wakes `cx` once
    /// there is an event.
    ///
    /// # Errors
    /// Returns an error if the source failed permanently.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        room: PollLimit,
        batch: &mut Vec<Record>,
    ) -> Poll<Result<SourceEvent, Self::Error>>;

    /// Stops delivering records of this lane. A source may keep prefetched records, counted in
    /// [`buffered_bytes`](Self::buffered_bytes), or read them again later.
    fn pause(&mut self, lane: Lane, epoch: Epoch);

    /// Delivers records of this lane again.
    fn resume(&mut self, lane: Lane, epoch: Epoch);

    /// Commits progress in the background. A later commit of a lane replaces an earlier one. Not called for released or
    /// lost lanes.
    fn commit(&mut self, commits: &[LaneCommit]);

    /// The [`Revoked`](SourceEvent::Revoked) lane is drained. The source commits `through`, if there was progress since
    /// the last commit, before it gives up the lane.
    fn release(&mut self, lane: Lane, epoch: Epoch, through: Option<Position>);

    /// Completes the last commits and closes the source. Called until ready; nothing is called after that.
    ///
    /// # Errors
    /// Returns an error if the last commits failed.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>>;

    /// Bytes that the source and its client have prefetched; they count in
    /// [`Bounds::bytes_max`](crate::Bounds::bytes_max).
    fn buffered_bytes(&self) -> usize {
        0
    }

    /// The display name of the lane, for instance `orders/3`.
    fn lane_name(&self, lane: Lane) -> String {
        lane.to_string()
    }
}
