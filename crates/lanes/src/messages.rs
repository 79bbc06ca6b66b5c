//! Messages between intake, shards and completions.

use std::time::Duration;

use crate::bounds::Bounds;
use crate::failure::RecordFailure;
use crate::mailbox::{MailboxContents, ShardMailbox};
use crate::record::{Epoch, Lane, Position, Record};

/// Identifies an execution: a slot of the shard's table and a generation, so that a reused slot is distinguished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ExecutionId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// The outcome of an execution.
#[derive(Debug)]
pub(crate) enum HandlerOutcome {
    Done,
    Failed(Box<RecordFailure>),
    /// The execution goes on, but the key may continue.
    KeyReleased,
}

/// The outcome that a completion sends to its shard.
#[derive(Debug)]
pub(crate) struct OutcomeMessage {
    pub(crate) id: ExecutionId,
    pub(crate) outcome: HandlerOutcome,
}

/// Sends the outcome of one execution to its shard.
#[derive(Debug)]
pub(crate) struct OutcomeSender {
    pub(crate) mailbox: ShardMailbox<ShardMessages>,
    pub(crate) id: ExecutionId,
}

impl OutcomeSender {
    pub(crate) fn send(&self, outcome: HandlerOutcome) {
        let message = OutcomeMessage { id: self.id, outcome };
        self.mailbox.post(|messages| messages.outcomes.push(message));
    }
}

/// A record on its way to its shard.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) record: Record,
    /// Hash of lane and key.
    pub(crate) hash: u64,
    /// Sequence number in the lane's frontier.
    pub(crate) seq: u32,
}

/// A command to a shard.
#[derive(Debug)]
pub(crate) enum ShardCommand {
    /// Start no record of this assignment beyond the last started one, retry none, and report the last started one.
    BeginDrain(Lane, Epoch),
    /// Drop queued records of the assignment after this sequence number, or all of them.
    DropAfter(Lane, Epoch, Option<u32>),
    /// Abandon running executions of the assignment.
    Abandon(Lane, Epoch),
    /// Resume parked keys: those with this value, or all.
    Unpark(Option<Box<[u8]>>),
    /// End the worker.
    Shutdown,
}

/// The messages to a shard.
#[derive(Debug, Default)]
pub(crate) struct ShardMessages {
    pub(crate) arrivals: Vec<Vec<Arrival>>,
    pub(crate) outcomes: Vec<OutcomeMessage>,
    pub(crate) commands: Vec<ShardCommand>,
    /// The limiter may have permits.
    pub(crate) has_permits: bool,
}

impl MailboxContents for ShardMessages {
    fn is_empty(&self) -> bool {
        self.outcomes.is_empty() && self.arrivals.is_empty() && self.commands.is_empty() && !self.has_permits
    }
}

/// The status of a shard, for the intake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ShardStatus {
    /// Records of parked keys.
    pub(crate) held_records: usize,
    /// Keys that are ready to run.
    pub(crate) ready: usize,
    /// Records that ever arrived.
    pub(crate) arrived: u64,
}

impl ShardStatus {
    /// Whether this status differs from the reported one in a way that matters to the intake: held records changed, or
    /// the shard needs more records.
    pub(crate) fn needs_report(&self, before: &Self, ready_low: usize) -> bool {
        let needs_records = self.ready < ready_low && (before.ready >= ready_low || before.arrived != self.arrived);
        self.held_records != before.held_records || needs_records
    }
}

/// The end of a record in its shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordReport {
    pub(crate) lane: Lane,
    pub(crate) epoch: Epoch,
    pub(crate) seq: u32,
    pub(crate) bytes: usize,
    /// Whether the record is finished; otherwise it was dropped and its position stays open.
    pub(crate) is_done: bool,
}

/// The last sequence number of a draining assignment that a shard has started, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LastStarted {
    pub(crate) lane: Lane,
    pub(crate) epoch: Epoch,
    pub(crate) last: Option<u32>,
}

/// A failed record that needs an action of the intake or a log message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FailureEvent {
    pub(crate) kind: FailureAction,
    pub(crate) lane: Lane,
    pub(crate) epoch: Epoch,
    pub(crate) position: Position,
    pub(crate) key: Option<Box<[u8]>>,
    pub(crate) failure: RecordFailure,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FailureAction {
    Stop,
    HaltLane,
    ParkKey,
    Skip,
    RetryDeadLetter,
    /// The dead-letter queue will never accept the record.
    ParkDeadLetter,
}

/// A command of the [`SubscriptionHandle`](crate::SubscriptionHandle) to the intake.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IntakeCommand {
    Stop(Duration),
    Finish,
    SetBounds(Bounds),
}

/// The messages to the intake.
#[derive(Debug, Default)]
pub(crate) struct IntakeMessages {
    pub(crate) reports: Vec<RecordReport>,
    pub(crate) failure_events: Vec<FailureEvent>,
    /// Reports of shards about draining lanes. Earlier outcomes of the same shard are among the record reports.
    pub(crate) last_started: Vec<LastStarted>,
    /// Shards and their status.
    pub(crate) statuses: Vec<(usize, ShardStatus)>,
    pub(crate) commands: Vec<IntakeCommand>,
}

impl MailboxContents for IntakeMessages {
    fn is_empty(&self) -> bool {
        let has_news = !self.reports.is_empty() || !self.statuses.is_empty() || !self.last_started.is_empty();
        !has_news && self.failure_events.is_empty() && self.commands.is_empty()
    }
}
