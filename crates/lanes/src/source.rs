//! Where records come from, and who is told what is done.
//!
//! A source hands out the records of its lanes and hears two things back: how far each lane is done ([`Source::commit`]),
//! and that a lane which it wants to take away has come to rest ([`Source::release`]). All methods return at once; a
//! source whose client blocks keeps a thread of its own and speaks to it through bounded queues.
//!
//! The life of a lane:
//!
//! ```text
//! Assigned ──> records, Passed ──> Revoked ──> release() by us ──> gone, may be Assigned again with another epoch
//!                              └─> Lost ──> gone at once: nothing of it is committed any more
//! ```

#[cfg(feature = "kafka")]
pub mod kafka;
mod memory;
mod ndjson;

use std::error::Error;
use std::task::{Context, Poll};
use std::time::Duration;

pub use memory::{Memory, MemoryHandle};
pub use ndjson::{Format, Ndjson, NdjsonError};

use crate::record::{Epoch, Lane, Position, Record};

/// How much a source may hand out now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Records at most. With 0 only other events are asked for.
    pub records: usize,
    /// Bytes (of [`Record::size_bytes`]) at most, except that one record may always exceed it, unless `records` is 0.
    pub bytes: usize,
}

/// Everything of the lane up to and including a position is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The lane.
    pub lane: Lane,
    /// The assignment that the mark belongs to; a source ignores marks of another.
    pub epoch: Epoch,
    /// The last position that is done, as are all before it.
    pub through: Position,
}

/// What a source has to say.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Records were put into the batch, at least one. Each carries its lane and epoch, which have been assigned before.
    Records,
    /// The lane is ours from now on.
    Assigned {
        /// The lane.
        lane: Lane,
        /// Greater than at any earlier assignment of the lane.
        epoch: Epoch,
    },
    /// The lanes are to be given back. No record of them follows. What has not begun is dropped, what runs may go on
    /// until `within` is over; each lane is then answered with [`Source::release`], each at its own time.
    Revoked {
        /// The lanes and their present epochs. Lanes that are not named go on as if nothing was.
        lanes: Vec<(Lane, Epoch)>,
        /// How long what runs may take to end.
        within: Duration,
    },
    /// The lanes are gone: somebody else may have them already. They are neither committed nor released.
    Lost {
        /// The lanes and the epochs that ended.
        lanes: Vec<(Lane, Epoch)>,
    },
    /// There is nothing (more) to run up to and including this position: markers, gaps, foreign changes. It is committed
    /// when all before it is done.
    Passed {
        /// The lane.
        lane: Lane,
        /// Its assignment.
        epoch: Epoch,
        /// Greater than the position of every record handed out so far.
        through: Position,
    },
    /// A commit did not succeed. It is repeated, with what is done by then, unless the lane is gone.
    CommitFailed {
        /// What was not committed.
        mark: Mark,
        /// Why, for the log.
        reason: String,
    },
    /// No record of any lane will follow. After all is done and committed, the subscription ends. Until then it goes on to
    /// poll; the source may say this again each time.
    Ended,
}

/// Where records come from.
///
/// The subscription calls it from one task. `poll` is also called with no room at all, so that lanes can be taken away
/// while everything is full; a source that must be polled to stay a member of its group sees to that by itself.
pub trait Source: Send + 'static {
    /// What cannot be mended by trying again; it ends the subscription. What can be mended the source mends itself.
    type Error: Error + Send + Sync + 'static;

    /// The next event. Appends records to `batch` only if it returns [`Event::Records`]. If pending, wakes `cx` when
    /// there is one.
    ///
    /// # Errors
    /// If the source cannot go on.
    fn poll(&mut self, cx: &mut Context<'_>, room: Room, batch: &mut Vec<Record>) -> Poll<Result<Event, Self::Error>>;

    /// Hand out no more records of this lane. A source that had some ready keeps them (and counts them in
    /// [`buffered_bytes`](Self::buffered_bytes)) or reads them again.
    fn pause(&mut self, lane: Lane, epoch: Epoch);

    /// Hand out records of this lane again.
    fn resume(&mut self, lane: Lane, epoch: Epoch);

    /// Confirm what is done, at once or soon, in the background. A later mark of a lane replaces an earlier one. Never
    /// called for a lane that was released or lost.
    fn commit(&mut self, marks: &[Mark]);

    /// A lane that was [`Revoked`](Event::Revoked) is at rest: nothing of it runs that would still be counted. Confirm
    /// `through` (if anything was done since the last commit) before the lane goes to somebody else.
    fn release(&mut self, lane: Lane, epoch: Epoch, through: Option<Position>);

    /// Finish: confirm the last marks, leave. Called until ready, and nothing is called after that.
    ///
    /// # Errors
    /// If the last marks could not be confirmed.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>>;

    /// Bytes that the source and its client hold ready and that have not been handed out; they count in the bound.
    fn buffered_bytes(&self) -> usize {
        0
    }

    /// The lane's name for people, for instance `orders/3`.
    fn lane_name(&self, lane: Lane) -> String {
        lane.to_string()
    }
}
