//! Takes records from the source, sends them to their shards, and tells the source what is done.
//!
//! One owner of the source and of all frontiers. Once it is told to end, it takes nothing more, lets every lane come to
//! rest as if it were taken away, commits, and closes the source.

mod ending;
mod log;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use crate::assigned::{Assigned, Leaving, Step, Valve, Who};
use crate::bounds::{Bounds, low};
use crate::error::RunError;
use crate::mailbox::Mail;
use crate::moment::Moment;
use crate::observe::IntakeStatus;
use crate::pace::Appetite;
use crate::policy::Keyless;
use crate::record::{Epoch, Lane, Record};
use crate::shard::{Alarm, Arrival, Begun, Order, Report, Standing};
use crate::source::{Event, Room, Source};
use crate::worker::Shared;
use ending::Phase;

/// What the handle of a subscription asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Stop(Duration),
    Finish,
    SetBounds(Bounds),
}

/// What lies in the mailbox of the intake.
#[derive(Debug, Default)]
pub(crate) struct IntakeMail {
    pub(crate) reports: Vec<Report>,
    pub(crate) alarms: Vec<Alarm>,
    /// What shards say of lanes that are to be given back. What they had done before is among the reports.
    pub(crate) begun: Vec<Begun>,
    /// Shards and what they hold.
    pub(crate) standings: Vec<(usize, Standing)>,
    pub(crate) requests: Vec<Request>,
}

impl Mail for IntakeMail {
    fn is_empty(&self) -> bool {
        let has_news = !self.reports.is_empty() || !self.standings.is_empty() || !self.begun.is_empty();
        !has_news && self.alarms.is_empty() && self.requests.is_empty()
    }
}

/// Records taken from the source at once.
const BATCH: usize = 1024;
/// Events in one turn, after which others on the thread have theirs.
const TURN_EVENTS: usize = 8;

pub(crate) struct Intake<S> {
    source: S,
    shared: Arc<Shared>,
    assigned: Assigned,
    bounds: Bounds,
    commit_every: Duration,
    /// What a stop that nobody asked for gives to what runs.
    drain: Duration,
    phase: Phase,
    /// Records, and bytes, that are with the shards.
    pending: usize,
    pending_bytes: usize,
    is_full: bool,
    appetite: Appetite,
    hasher: RandomState,
    mail: IntakeMail,
    batch: Vec<Record>,
    sorted: Vec<Vec<Arrival>>,
    valves: Vec<Valve>,
    commits_failed: u64,
    /// What was told of skipped records, and of those that the dead-letter did not take.
    skipped: log::Lately,
    not_buried: log::Lately,
    /// When the marks that are there are committed.
    commit_at: Option<Moment>,
    sleep: Pin<Box<Sleep>>,
    sleeps_until: Moment,
}

/// What a subscription needs besides its source.
pub(crate) struct IntakeSettings {
    pub(crate) bounds: Bounds,
    pub(crate) commit_every: Duration,
    pub(crate) drain: Duration,
}

impl<S: Source> Intake<S> {
    pub(crate) fn new(source: S, settings: &IntakeSettings, shared: Arc<Shared>) -> Self {
        let shards = shared.shards.len();
        let sleep = Box::pin(tokio::time::sleep_until(shared.clock.instant(Moment(u64::MAX))));
        Self {
            source,
            shared,
            assigned: Assigned::default(),
            bounds: settings.bounds,
            commit_every: settings.commit_every,
            drain: settings.drain,
            phase: Phase::Running,
            pending: 0,
            pending_bytes: 0,
            is_full: false,
            appetite: Appetite::new(shards),
            hasher: RandomState::new(),
            mail: IntakeMail::default(),
            batch: Vec::new(),
            sorted: (0..shards).map(|_| Vec::new()).collect(),
            valves: Vec::new(),
            commits_failed: 0,
            skipped: log::Lately::default(),
            not_buried: log::Lately::default(),
            commit_at: None,
            sleep,
            sleeps_until: Moment(u64::MAX),
        }
    }

    /// Goes on until the source is closed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        for _ in 0..TURN_EVENTS {
            let now = self.shared.clock.now();
            let has_mail = self.read_mail(cx, now);
            let has_event = self.poll_source(cx, now);
            self.settle(now);
            if let Poll::Ready(result) = self.poll_end(cx, now) {
                self.tell_of_others(now, true);
                self.write_status();
                return Poll::Ready(result);
            }
            if !has_mail && !has_event && self.poll_timer(cx).is_pending() {
                self.write_status();
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn read_mail(&mut self, cx: &mut Context<'_>, now: Moment) -> bool {
        let mut mail = mem::take(&mut self.mail);
        let is_there = self.shared.intake.poll_take(cx, &mut mail).is_ready();
        for report in mail.reports.drain(..) {
            self.pending -= 1;
            self.pending_bytes -= report.bytes;
            self.assigned.report(&report);
        }
        for begun in mail.begun.drain(..) {
            if let Some(last) = self.assigned.heard(begun) {
                self.order(|| Order::LeaveBehind(begun.lane, begun.epoch, last));
            }
        }
        for (shard, standing) in mail.standings.drain(..) {
            self.appetite.note(shard, standing);
        }
        for alarm in mail.alarms.drain(..) {
            self.heed(alarm, now);
        }
        for request in mail.requests.drain(..) {
            match request {
                Request::SetBounds(bounds) => {
                    self.bounds = bounds;
                    self.shared.pace.set(bounds.ready_max);
                }
                Request::Finish => self.phase.source_ended(),
                Request::Stop(within) => self.begin_end(None, now, now.after(within)),
            }
        }
        self.mail = mail;
        is_there
    }

    /// Takes an event from the source, if there is one.
    fn poll_source(&mut self, cx: &mut Context<'_>, now: Moment) -> bool {
        if !self.phase.listens() {
            return false;
        }
        let room = self.room();
        match self.source.poll(cx, room, &mut self.batch) {
            Poll::Pending => return false,
            // It may say so again and again.
            Poll::Ready(Ok(Event::Ended)) if !self.phase.takes_records() => return false,
            Poll::Ready(Ok(event)) => self.take_event(event, now),
            Poll::Ready(Err(error)) => {
                self.begin_end(Some(RunError::Source(Box::new(error))), now, now.after(self.drain));
            }
        }
        true
    }

    fn room(&self) -> Room {
        if self.is_full || !self.phase.takes_records() || self.appetite.is_sated(&self.shared.pace) {
            return Room { records: 0, bytes: 0 };
        }
        let records = BATCH.min(self.bounds.records_max.saturating_sub(self.pending));
        let bytes = self.bounds.bytes_taken_max(self.source.buffered_bytes()).saturating_sub(self.pending_bytes);
        Room { records, bytes: bytes.max(1) }
    }

    fn take_event(&mut self, event: Event, now: Moment) {
        match event {
            Event::Records => self.take_records(now),
            // One that comes while we end is not taken up: nobody would let go of it.
            Event::Assigned { lane, epoch } if self.phase.takes_records() => {
                // Whoever took it away has not waited for us.
                if let Some(earlier) = self.assigned.epoch(lane) {
                    self.lose(&[(lane, earlier)]);
                }
                self.assigned.assign(lane, epoch);
            }
            Event::Assigned { .. } => {}
            Event::Revoked { lanes, within } => self.give_back(&lanes, now, now.after(within), Who::Source),
            Event::Lost { lanes } => self.lose(&lanes),
            Event::Passed { lane, epoch, through } => self.assigned.pass(lane, epoch, through),
            Event::CommitFailed { mark, reason } => {
                self.commits_failed += 1;
                self.assigned.not_committed(mark);
                let lane = self.source.lane_name(mark.lane);
                log::failed_commit(&self.shared.policy.subscription, &lane, mark, &reason);
            }
            Event::Ended => self.phase.source_ended(),
        }
    }

    fn take_records(&mut self, now: Moment) {
        let mut batch = mem::take(&mut self.batch);
        let shards = self.sorted.len() as u64;
        for record in batch.drain(..) {
            let Some(seq) = self.assigned.admit(&record, now) else { continue };
            self.pending += 1;
            self.pending_bytes += record.size_bytes();
            let hash = self.hash(&record, seq);
            // The upper half chooses the shard: the table of a shard uses the lower bits, and a few of the highest.
            let shard = (((hash >> 24) & 0xffff_ffff) * shards) >> 32;
            self.sorted[shard as usize].push(Arrival { record, hash, seq });
        }
        self.batch = batch;
        for (shard, arrivals) in self.sorted.iter_mut().enumerate().filter(|(_, arrivals)| !arrivals.is_empty()) {
            // The next batch will be about as large.
            let next = Vec::with_capacity(arrivals.len());
            let arrivals = mem::replace(arrivals, next);
            self.appetite.sent(shard, arrivals.len());
            self.shared.shards[shard].post(|mail| mail.arrivals.push(arrivals));
        }
    }

    fn hash(&self, record: &Record, seq: u32) -> u64 {
        match record.key() {
            None if self.shared.policy.keyless == Keyless::Unordered => {
                // Spread evenly: 2^64 divided by the golden ratio.
                u64::from(seq).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            }
            key => {
                let mut hasher = self.hasher.build_hasher();
                hasher.write_u32(record.lane().0);
                hasher.write(key.unwrap_or_default());
                hasher.finish()
            }
        }
    }

    /// What follows from all that was heard: bounds, lanes that can go, commits.
    fn settle(&mut self, now: Moment) {
        self.measure();
        let mut valves = mem::take(&mut self.valves);
        self.assigned.valves(&self.bounds, &mut valves);
        for valve in valves.drain(..) {
            match valve {
                Valve::Pause(lane, epoch) => self.source.pause(lane, epoch),
                Valve::Resume(lane, epoch) => self.source.resume(lane, epoch),
            }
        }
        self.valves = valves;
        self.release_left(now);
        self.commit_when_due(now);
        self.tell_of_others(now, false);
    }

    fn measure(&mut self) {
        let records_max = self.bounds.records_max;
        let bytes_max = self.bounds.bytes_taken_max(self.source.buffered_bytes());
        self.is_full = if self.is_full {
            self.pending > low(records_max) || self.pending_bytes > low(bytes_max)
        } else {
            self.pending >= records_max || (self.pending > 0 && self.pending_bytes >= bytes_max)
        };
    }

    fn commit_when_due(&mut self, now: Moment) {
        match self.commit_at {
            Some(at) if at <= now => {
                self.commit_at = None;
                let marks = self.assigned.marks();
                if !marks.is_empty() {
                    self.source.commit(&marks);
                }
            }
            None if self.assigned.has_marks() => self.commit_at = Some(now.after(self.commit_every)),
            _ => {}
        }
    }

    fn order(&self, order: impl Fn() -> Order) {
        for shard in &self.shared.shards {
            shard.post(|mail| mail.orders.push(order()));
        }
    }

    /// Lets go of lanes when they are at rest, or `by` then.
    fn give_back(&mut self, lanes: &[(Lane, Epoch)], now: Moment, by: Moment, who: Who) {
        let leaving = Leaving::new(now, by, who, self.shared.shards.len()).shut(self.shared.gate.is_shut());
        for (lane, epoch) in lanes.iter().copied() {
            match self.assigned.leave(lane, epoch, leaving) {
                Some(Step::First) => self.order(|| Order::Leave(lane, epoch)),
                Some(Step::Further) => {}
                None => self.source.release(lane, epoch, None),
            }
        }
    }

    /// Gives up what waits and what runs.
    fn abandon(&self, lane: Lane, epoch: Epoch) {
        self.order(|| Order::LeaveBehind(lane, epoch, None));
        self.order(|| Order::Abandon(lane, epoch));
    }

    fn lose(&mut self, lanes: &[(Lane, Epoch)]) {
        for (lane, epoch) in lanes.iter().copied() {
            self.assigned.remove(lane, epoch);
            self.abandon(lane, epoch);
        }
    }

    /// Ready if something became due.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let told = self.skipped.due().into_iter().chain(self.not_buried.due());
        let due =
            self.commit_at.into_iter().chain(self.assigned.leave_by()).chain(told).min().unwrap_or(Moment(u64::MAX));
        if due != self.sleeps_until {
            self.sleep.as_mut().reset(self.shared.clock.instant(due));
            self.sleeps_until = due;
        }
        if due == Moment(u64::MAX) { Poll::Pending } else { self.sleep.as_mut().poll(cx) }
    }

    fn write_status(&mut self) {
        let source = &self.source;
        self.shared.board.write_intake(IntakeStatus {
            pending: self.pending,
            pending_bytes: self.pending_bytes,
            oldest: self.assigned.oldest(),
            is_full: self.is_full,
            commits_failed: self.commits_failed,
            lanes: self.assigned.status(|lane| source.lane_name(lane)),
        });
    }
}
