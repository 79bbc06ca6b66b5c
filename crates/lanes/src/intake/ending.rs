//! How a subscription ends: lanes come to rest, the last marks are committed, the source is closed.

use std::task::{Context, Poll};

use super::{Intake, log};
use crate::assigned::Who;
use crate::error::RunError;
use crate::moment::Moment;
use crate::shard::{Alarm, AlarmKind, Order};
use crate::source::{Mark, Source};

#[derive(Debug)]
pub(super) enum Phase {
    Running,
    /// The source has no more records; what was taken is still to be done.
    Ended,
    /// All lanes are to come to rest, by a deadline.
    Draining(Option<RunError>),
    /// The source has all marks.
    Closing(Option<RunError>),
}

impl Phase {
    fn is_end(&self) -> bool {
        matches!(self, Self::Draining(_) | Self::Closing(_))
    }

    /// Are events wanted?
    pub(super) fn listens(&self) -> bool {
        match self {
            Self::Running | Self::Ended => true,
            Self::Draining(why) => !matches!(why, Some(RunError::Source(_))),
            Self::Closing(_) => false,
        }
    }

    pub(super) fn takes_records(&self) -> bool {
        matches!(self, Self::Running)
    }

    pub(super) fn source_ended(&mut self) {
        if matches!(self, Self::Running) {
            *self = Self::Ended;
        }
    }
}

impl<S: Source> Intake<S> {
    /// Takes nothing more, and ends when every lane is at rest, or `by` then. The first reason counts, and the nearest
    /// deadline.
    pub(super) fn begin_end(&mut self, why: Option<RunError>, now: Moment, by: Moment) {
        self.assigned.hasten(by);
        if matches!(self.phase, Phase::Running | Phase::Ended) {
            self.phase = Phase::Draining(why);
            let lanes = self.assigned.staying();
            self.give_back(&lanes, now, by, Who::Us);
        }
    }

    /// Does what an alarm asks for, and logs it.
    pub(super) fn heed(&mut self, alarm: Alarm, now: Moment) {
        let lane = self.source.lane_name(alarm.lane);
        // Where a sink is away, everything that runs fails for the one reason, which is said once.
        let is_news = match alarm.kind {
            AlarmKind::Stop => !self.phase.is_end(),
            AlarmKind::Skipped => self.skipped.tells(now),
            AlarmKind::NotBuried => self.not_buried.tells(now),
            AlarmKind::Halt | AlarmKind::Parked => true,
        };
        log::alarm(&self.shared.policy.subscription, &lane, &alarm, is_news);
        match alarm.kind {
            AlarmKind::Halt => self.assigned.halt(alarm.lane, alarm.epoch),
            AlarmKind::Stop => {
                let error = RunError::Exhausted { lane, position: alarm.position, failure: alarm.failure };
                self.begin_end(Some(error), now, now.after(self.drain));
            }
            AlarmKind::Parked | AlarmKind::Skipped | AlarmKind::NotBuried => {}
        }
    }

    /// Says how many more there were than were told of one by one, if it is time to.
    pub(super) fn tell_of_others(&mut self, now: Moment, is_end: bool) {
        let subscription = &self.shared.policy.subscription;
        if let Some(records) = self.skipped.over(now, is_end) {
            log::others(subscription, records, "they are skipped");
        }
        if let Some(records) = self.not_buried.over(now, is_end) {
            log::others(subscription, records, "the dead-letter did not take them and will be asked again");
        }
    }

    /// Ready when all is over.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>, now: Moment) -> Poll<Result<(), RunError>> {
        if matches!(self.phase, Phase::Ended) && !self.end_when_done(now) {
            return Poll::Pending;
        }
        if let Phase::Draining(why) = &mut self.phase
            && self.assigned.is_empty()
        {
            self.phase = Phase::Closing(why.take());
        }
        let Phase::Closing(why) = &mut self.phase else { return Poll::Pending };
        let Poll::Ready(closed) = self.source.poll_close(cx) else { return Poll::Pending };
        let closed = closed.map_err(|error| RunError::Source(Box::new(error)));
        Poll::Ready(why.take().map_or(closed, Err))
    }

    /// The source has ended: so do we when nothing can be done any more. `true` if that is so.
    fn end_when_done(&mut self, now: Moment) -> bool {
        let held = self.appetite.held();
        let is_done = self.pending <= held;
        if is_done {
            self.begin_end((held > 0).then_some(RunError::HeldBack { records: held }), now, now);
            self.settle(now);
        }
        is_done
    }

    /// Lets go of lanes that are at rest or out of time.
    pub(super) fn release_left(&mut self, now: Moment) {
        for (lane, epoch) in self.assigned.take_impatient(now) {
            self.order(|| Order::LeaveBehind(lane, epoch, None));
        }
        while let Some(left) = self.assigned.take_left(now) {
            let (lane, epoch) = (left.lane, left.epoch);
            if !left.is_at_rest {
                self.abandon(lane, epoch);
            }
            match (left.who, left.through) {
                (Who::Source, through) => self.source.release(lane, epoch, through),
                (Who::Us, Some(through)) => self.source.commit(&[Mark { lane, epoch, through }]),
                (Who::Us, None) => {}
            }
        }
    }

    /// The subscription is over: shards end.
    pub(crate) fn dismiss(&self) {
        self.order(|| Order::End);
    }
}
