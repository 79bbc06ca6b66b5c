//! The lanes that are ours, and how far each is done.
//!
//! A core: it is told what was assigned, taken and done, and says what is to be paused, committed and released.

use std::collections::{BTreeMap, VecDeque};

use crate::bounds::{Bounds, low};
use crate::frontier::Frontier;
use crate::moment::Moment;
use crate::record::{Epoch, Lane, Position, Record};
use crate::shard::{Begun, Report, is_later};
use crate::source::Mark;

/// One assignment of a lane.
#[derive(Debug)]
pub(crate) struct Assignment {
    pub(crate) epoch: Epoch,
    frontier: Frontier,
    /// Records that are with the shards.
    open: usize,
    /// The last number that is done.
    done: Option<u32>,
    /// When the record of a number, and those behind it, arrived.
    arrivals: VecDeque<(u32, Moment)>,
    committed: Option<Position>,
    flow: Flow,
    leaving: Option<Leaving>,
    is_halted: bool,
}

/// It is to be given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    since: Moment,
    /// At the latest then.
    by: Moment,
    who: Who,
    waits: Waits,
    /// Nothing begins any more, whatever waits.
    is_shut: bool,
}

/// What waits in the shards: it runs if it stands before something that has begun, as long as there is time.
#[derive(Clone, Copy, Debug)]
enum Waits {
    /// So many shards have to say how far they have begun; the furthest yet.
    Asked { shards: usize, last: Option<u32> },
    /// The shards have been told how far they may go.
    Told,
    /// They have been told to drop all.
    Dropped,
}

impl Leaving {
    /// All `shards` are to be asked.
    pub(crate) fn new(since: Moment, by: Moment, who: Who, shards: usize) -> Self {
        Self { since, by, who, waits: Waits::Asked { shards, last: None }, is_shut: false }
    }

    /// If nothing may begin, what waits is waited for in vain.
    pub(crate) fn shut(self, is_shut: bool) -> Self {
        Self { is_shut, ..self }
    }

    /// When what waits is dropped, so that what runs has as much time again.
    fn drop_at(&self) -> Moment {
        if self.is_shut { self.since } else { self.since.after(self.by.since(self.since) / 2) }
    }

    /// When it has to be looked at.
    fn due(&self) -> Moment {
        if matches!(self.waits, Waits::Dropped) { self.by } else { self.drop_at().min(self.by) }
    }
}

/// Whether it was to be given back before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    First,
    Further,
}

/// Who wants a lane to be given back, and hears when it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    Source,
    Us,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    Open,
    Paused,
}

/// What the source is to be told about the flow of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Valve {
    Pause(Lane, Epoch),
    Resume(Lane, Epoch),
}

/// A lane as others see it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LaneStatus {
    /// The lane.
    pub lane: Lane,
    /// Its name, as the source calls it.
    pub name: String,
    /// Its assignment.
    pub epoch: Epoch,
    /// Records that were taken and are not done.
    pub pending: usize,
    /// Records from the first that is not done to the last one taken.
    pub span: usize,
    /// Everything up to here is done.
    pub done_through: Option<Position>,
    /// What was committed last.
    pub committed: Option<Position>,
    /// It takes nothing, since a bound is reached.
    pub is_paused: bool,
    /// It starts nothing, since a record could not be done.
    pub is_halted: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Assigned {
    lanes: BTreeMap<Lane, Assignment>,
}

impl Assigned {
    pub(crate) fn assign(&mut self, lane: Lane, epoch: Epoch) {
        let assignment = Assignment {
            epoch,
            frontier: Frontier::new(),
            open: 0,
            done: None,
            arrivals: VecDeque::new(),
            committed: None,
            flow: Flow::Open,
            leaving: None,
            is_halted: false,
        };
        self.lanes.insert(lane, assignment);
    }

    /// Of the assignment that the lane has.
    pub(crate) fn epoch(&self, lane: Lane) -> Option<Epoch> {
        self.lanes.get(&lane).map(|assignment| assignment.epoch)
    }

    fn of(&mut self, lane: Lane, epoch: Epoch) -> Option<&mut Assignment> {
        self.lanes.get_mut(&lane).filter(|assignment| assignment.epoch == epoch)
    }

    /// Takes a record; its number, unless it is of no assignment of ours.
    pub(crate) fn admit(&mut self, record: &Record, now: Moment) -> Option<u32> {
        let assignment = self.of(record.lane(), record.epoch()).filter(|assignment| assignment.leaving.is_none())?;
        let seq = assignment.frontier.open(record.position());
        assignment.open += 1;
        if assignment.arrivals.back().is_none_or(|(_, at)| *at < now) {
            assignment.arrivals.push_back((seq, now));
        }
        Some(seq)
    }

    pub(crate) fn pass(&mut self, lane: Lane, epoch: Epoch, through: Position) {
        let assignment = self.of(lane, epoch).filter(|assignment| assignment.leaving.is_none());
        assignment.into_iter().for_each(|assignment| assignment.frontier.pass(through));
    }

    /// What became of a record. Without effect for one whose assignment is over.
    pub(crate) fn report(&mut self, report: &Report) {
        let Some(assignment) = self.of(report.lane, report.epoch) else { return };
        assignment.open -= 1;
        if report.is_done {
            assignment.frontier.close(report.seq);
            assignment.done = Some(latest(assignment.done, report.seq));
        }
    }

    /// Which lanes are too full or not so any more; they count as told.
    pub(crate) fn valves(&mut self, bounds: &Bounds, valves: &mut Vec<Valve>) {
        for (lane, assignment) in &mut self.lanes {
            let (open, span) = (assignment.open, assignment.frontier.span());
            let is_full = open >= bounds.lane_records_max || span >= bounds.lane_span_max;
            let is_low = open <= low(bounds.lane_records_max) && span <= low(bounds.lane_span_max);
            match assignment.flow {
                Flow::Open if is_full || assignment.is_halted => {
                    assignment.flow = Flow::Paused;
                    valves.push(Valve::Pause(*lane, assignment.epoch));
                }
                Flow::Paused if is_low && !assignment.is_halted && assignment.leaving.is_none() => {
                    assignment.flow = Flow::Open;
                    valves.push(Valve::Resume(*lane, assignment.epoch));
                }
                _ => {}
            }
        }
    }

    pub(crate) fn halt(&mut self, lane: Lane, epoch: Epoch) {
        self.of(lane, epoch).into_iter().for_each(|assignment| assignment.is_halted = true);
    }

    /// Marks of all lanes that got further since they were asked last, or failed to be committed.
    pub(crate) fn marks(&mut self) -> Vec<Mark> {
        let mut marks = Vec::new();
        for (lane, assignment) in self.lanes.iter_mut() {
            let through = assignment.frontier.through();
            if through > assignment.committed {
                assignment.committed = through;
                marks.extend(through.map(|through| Mark { lane: *lane, epoch: assignment.epoch, through }));
            }
        }
        marks
    }

    pub(crate) fn has_marks(&self) -> bool {
        self.lanes.values().any(|assignment| assignment.frontier.through() > assignment.committed)
    }

    /// A commit did not succeed: it will be among the [`marks`](Self::marks) again.
    pub(crate) fn not_committed(&mut self, mark: Mark) {
        let assignment = self.of(mark.lane, mark.epoch);
        assignment.into_iter().for_each(|assignment| assignment.committed = None);
    }

    /// The lane is to be given back, by the earlier time if that is said twice. `None` if it is not ours.
    pub(crate) fn leave(&mut self, lane: Lane, epoch: Epoch, new: Leaving) -> Option<Step> {
        let leaving = &mut self.of(lane, epoch)?.leaving;
        let Some(leaving) = leaving else {
            *leaving = Some(new);
            return Some(Step::First);
        };
        (leaving.by, leaving.who) = (leaving.by.min(new.by), new.who);
        Some(Step::Further)
    }

    /// A shard has said how far it has begun with a lane. When all have, how far the lane has, if at all.
    pub(crate) fn heard(&mut self, begun: Begun) -> Option<Option<u32>> {
        let assignment = self.of(begun.lane, begun.epoch)?;
        let Waits::Asked { shards, last } = &mut assignment.leaving.as_mut()?.waits else { return None };
        *shards -= 1;
        *last = begun.last.map(|seq| latest(*last, seq)).or(*last);
        if *shards > 0 {
            return None;
        }
        // Of a halted lane nothing is committed behind the record for which it was.
        let last = last.filter(|_| !assignment.is_halted);
        let last = assignment.done.filter(|_| !assignment.is_halted).map(|seq| latest(last, seq)).or(last);
        assignment.leaving.as_mut()?.waits = Waits::Told;
        Some(last)
    }

    /// Lanes on their way out that have no time left for what has not begun; each is said once.
    pub(crate) fn take_impatient(&mut self, now: Moment) -> Vec<(Lane, Epoch)> {
        let mut impatient = Vec::new();
        for (lane, assignment) in &mut self.lanes {
            let Some(leaving) = &mut assignment.leaving else { continue };
            if !matches!(leaving.waits, Waits::Dropped) && leaving.drop_at() <= now {
                leaving.waits = Waits::Dropped;
                impatient.push((*lane, assignment.epoch));
            }
        }
        impatient
    }

    /// Lanes that are to be given back are so `by` then at the latest.
    pub(crate) fn hasten(&mut self, by: Moment) {
        let leaving = self.lanes.values_mut().filter_map(|assignment| assignment.leaving.as_mut());
        leaving.for_each(|leaving| leaving.by = leaving.by.min(by));
    }

    pub(crate) fn remove(&mut self, lane: Lane, epoch: Epoch) {
        if self.of(lane, epoch).is_some() {
            self.lanes.remove(&lane);
        }
    }

    /// Takes out a lane that is to be given back, and that is at rest or out of time: its mark, and whether it is at rest.
    pub(crate) fn take_left(&mut self, now: Moment) -> Option<Left> {
        let has_left = |(lane, assignment): (&Lane, &Assignment)| {
            let leaving = assignment.leaving?;
            (assignment.open == 0 || leaving.by <= now).then_some((*lane, leaving.who))
        };
        let (lane, who) = self.lanes.iter().find_map(has_left)?;
        let assignment = self.lanes.remove(&lane)?;
        let through = assignment.frontier.through();
        Some(Left { lane, epoch: assignment.epoch, through, is_at_rest: assignment.open == 0, who })
    }

    /// When the first lane that is to be given back runs out of time, for what waits or for what runs.
    pub(crate) fn leave_by(&self) -> Option<Moment> {
        self.lanes.values().filter_map(|assignment| assignment.leaving).map(|leaving| leaving.due()).min()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Lanes that are not to be given back.
    pub(crate) fn staying(&self) -> Vec<(Lane, Epoch)> {
        let stays = |(_, assignment): &(&Lane, &Assignment)| assignment.leaving.is_none();
        self.lanes.iter().filter(stays).map(|(lane, assignment)| (*lane, assignment.epoch)).collect()
    }

    /// When the oldest record that is not done arrived.
    pub(crate) fn oldest(&mut self) -> Option<Moment> {
        self.lanes.values_mut().filter_map(Assignment::oldest).min()
    }

    pub(crate) fn status(&self, name: impl Fn(Lane) -> String) -> Vec<LaneStatus> {
        let status = |(lane, assignment): (&Lane, &Assignment)| LaneStatus {
            lane: *lane,
            name: name(*lane),
            epoch: assignment.epoch,
            pending: assignment.open,
            span: assignment.frontier.span(),
            done_through: assignment.frontier.through(),
            committed: assignment.committed,
            is_paused: assignment.flow == Flow::Paused,
            is_halted: assignment.is_halted,
        };
        self.lanes.iter().map(status).collect()
    }
}

/// A lane that can be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Left {
    pub(crate) lane: Lane,
    pub(crate) epoch: Epoch,
    pub(crate) through: Option<Position>,
    pub(crate) is_at_rest: bool,
    pub(crate) who: Who,
}

/// The later one of two numbers.
fn latest(known: Option<u32>, seq: u32) -> u32 {
    known.filter(|known| is_later(*known, seq)).unwrap_or(seq)
}

impl Assignment {
    fn oldest(&mut self) -> Option<Moment> {
        let head = self.frontier.head_seq();
        // The batch of the head is the last one that began at or before it.
        while self.arrivals.get(1).is_some_and(|(seq, _)| head.wrapping_sub(*seq) as i32 >= 0) {
            self.arrivals.pop_front();
        }
        if self.frontier.open_count() == 0 {
            self.arrivals.clear();
        }
        self.arrivals.front().map(|(_, at)| *at)
    }
}
