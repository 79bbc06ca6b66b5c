//! The core by itself: equal hashes, and random lives of keys against a model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::completion::{Outcome, Ticket};
use crate::failure::{Exhausted, Retry};
use crate::policy::Quota;

const NOW: Moment = Moment(0);

fn record(at: u64, key: u8, epoch: Epoch) -> Record {
    Record::new(Lane(0), epoch, Position(at), Some(&[key]), Some(b""))
}

fn shard(change: impl FnOnce(&mut Policy)) -> Shard {
    let mut policy = Policy::new("test");
    change(&mut policy);
    Shard::new(Arc::new(policy), 42)
}

fn arrive(shard: &mut Shard, at: u64, key: u8, hash: u64, now: Moment) {
    arrive_in(shard, Epoch(0), at, key, hash, now);
}

fn arrive_in(shard: &mut Shard, epoch: Epoch, at: u64, key: u8, hash: u64, now: Moment) {
    shard.arrive(Arrival { record: record(at, key, epoch), hash, seq: at as u32 }, now);
}

fn word(ticket: Ticket, outcome: Outcome) -> Word {
    Word { ticket, outcome }
}

#[test]
fn la_06_keys_with_equal_hashes_are_distinct() {
    let mut shard = shard(|_| {});
    for at in 0..20 {
        arrive(&mut shard, at, (at % 5) as u8, 7, NOW);
    }
    let started: Vec<Start> = std::iter::from_fn(|| shard.start(NOW)).collect();
    let positions: Vec<u64> = started.iter().map(|start| start.records.first().position().0).collect();
    assert_eq!(positions, [0, 1, 2, 3, 4], "each key has one that runs");
    for start in started {
        assert!(shard.resolve(word(start.ticket, Outcome::Done), NOW));
    }
    let next: Vec<u64> =
        std::iter::from_fn(|| shard.start(NOW)).map(|start| start.records.first().position().0).collect();
    assert_eq!(next, [5, 6, 7, 8, 9]);
}

#[test]
fn a_hot_key_has_its_turn_after_all_others() {
    let mut shard = shard(|_| {});
    (0..100).for_each(|at| arrive(&mut shard, at, 0, 0, NOW));
    (100..103).for_each(|at| arrive(&mut shard, at, at as u8 - 99, at, NOW));
    let mut turns = Vec::new();
    for _ in 0..8 {
        let start = shard.start(NOW).expect("something is ready");
        turns.push(start.records.first().position().0);
        shard.resolve(word(start.ticket, Outcome::Done), NOW);
    }
    assert_eq!(turns, [0, 100, 101, 102, 1, 2, 3, 4]);
}

/// What may happen to a shard.
#[derive(Clone, Debug)]
enum Step {
    Arrive(u8),
    Start,
    End(prop::sample::Index, Ending),
    Sleep(u16),
    /// A lane begins to leave, or gets a step further on its way.
    Leave(bool),
    /// A lane that leaves has no time left for what waits.
    Hurry(bool),
    Unpark,
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Done,
    Failed,
    Permanent,
    KeyReleased,
    TwiceDone,
}

fn step() -> impl Strategy<Value = Step> {
    let ending = prop_oneof![
        5 => Just(Ending::Done),
        2 => Just(Ending::Failed),
        1 => Just(Ending::Permanent),
        1 => Just(Ending::KeyReleased),
        1 => Just(Ending::TwiceDone),
    ];
    // Keys from 100 belong to another assignment.
    let key = prop_oneof![4 => 0..6_u8, 1 => 100..103_u8];
    prop_oneof![
        8 => key.prop_map(Step::Arrive),
        8 => Just(Step::Start),
        8 => (any::<prop::sample::Index>(), ending).prop_map(|(index, ending)| Step::End(index, ending)),
        2 => (0..2000_u16).prop_map(Step::Sleep),
        2 => any::<bool>().prop_map(Step::Leave),
        1 => any::<bool>().prop_map(Step::Hurry),
        1 => Just(Step::Unpark),
    ]
}

/// Plays steps, and checks after each of them what must hold.
struct Play {
    shard: Shard,
    now: Moment,
    next: u64,
    /// What runs: its positions, and its key unless that was released.
    running: Vec<(Ticket, Vec<u64>, Option<u8>)>,
    keys: BTreeMap<u64, u8>,
    /// Records that let their key go on: when they are tried again, it is beside the others.
    released: BTreeSet<u64>,
    reported: BTreeMap<u64, bool>,
    compacts: bool,
    assignments: [Assignment; 2],
}

/// An assignment of the lane, which is given back now and then and comes again.
#[derive(Clone, Copy, Debug, Default)]
struct Assignment {
    epoch: Epoch,
    /// Its first position.
    since: u64,
    leaving: Leaving,
    /// The last position of it that ever began.
    begun: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Leaving {
    #[default]
    Not,
    Asked,
    Told,
}

impl Play {
    fn new(policy: impl FnOnce(&mut Policy)) -> Self {
        let shard = shard(policy);
        let compacts = shard.policy.compact;
        let (running, keys, reported, released) = (Vec::new(), BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let assignments = [Assignment::default(), Assignment { epoch: Epoch(1), ..Assignment::default() }];
        Self { shard, now: NOW, next: 0, running, keys, released, reported, compacts, assignments }
    }

    #[allow(clippy::needless_pass_by_value, reason = "a step is taken once")]
    fn step(&mut self, step: Step) {
        match step {
            Step::Arrive(key) => self.arrive(key),
            Step::Start => self.start(),
            Step::End(index, ending) if !self.running.is_empty() => self.end(index.index(self.running.len()), ending),
            Step::End(..) => {}
            Step::Sleep(ms) => self.now = self.now.after(Duration::from_millis(ms.into())),
            Step::Leave(other) => self.leave(usize::from(other)),
            Step::Hurry(other) => self.hurry(usize::from(other)),
            Step::Unpark => self.shard.unpark(None, self.now),
        }
        self.shard.wake(self.now);
        self.read_reports();
    }

    fn arrive(&mut self, key: u8) {
        let assignment = self.assignments[usize::from(key / 100)];
        if assignment.leaving == Leaving::Not {
            arrive_in(&mut self.shard, assignment.epoch, self.next, key, u64::from(key % 3), self.now);
            self.keys.insert(self.next, key);
            self.next += 1;
        }
    }

    fn start(&mut self) {
        let Some(start) = self.shard.start(self.now) else { return };
        let records = match start.records {
            Records::One(record) => vec![record],
            Records::Many(records) => records,
        };
        let positions: Vec<u64> = records.iter().map(|record| record.position().0).collect();
        let key = self.keys[&positions[0]];
        assert!(positions.is_sorted() && positions.iter().all(|at| self.keys[at] == key));
        let key = (!self.released.contains(&positions[0])).then_some(key);
        let overlaps = self.running.iter().any(|(.., other)| key.is_some() && *other == key);
        assert!(!overlaps, "two of key {key:?} run");
        self.note_start(&positions, records[0].epoch());
        self.running.push((start.ticket, positions, key));
    }

    fn end(&mut self, index: usize, ending: Ending) {
        let ticket = self.running[index].0;
        if let Ending::KeyReleased = ending {
            self.running[index].2 = None;
            self.released.extend(&self.running[index].1);
            assert!(!self.shard.resolve(word(ticket, Outcome::KeyReleased), self.now));
            return;
        }
        let outcome = match ending {
            Ending::Failed => Outcome::Failed(Box::new(Failure::new("no"))),
            Ending::Permanent => Outcome::Failed(Box::new(Failure::permanent("never"))),
            _ => Outcome::Done,
        };
        self.running.swap_remove(index);
        assert!(self.shard.resolve(word(ticket, outcome), self.now));
        if let Ending::TwiceDone = ending {
            assert!(!self.shard.resolve(word(ticket, Outcome::Done), self.now), "the second word is late");
        }
    }

    /// Of a lane that leaves, nothing begins behind what had begun, or behind what was given up of its key.
    fn note_start(&mut self, positions: &[u64], epoch: Epoch) {
        let key = self.keys[&positions[0]];
        let assignment = &mut self.assignments[usize::from(key / 100)];
        assert_eq!(assignment.epoch, epoch, "what is over does not begin");
        let last = positions.last().copied();
        if assignment.leaving == Leaving::Not {
            assignment.begun = assignment.begun.max(last);
            return;
        }
        assert!(last <= assignment.begun, "{last:?} stands behind {:?}", assignment.begun);
        let mut before = self.reported.range(assignment.since..positions[0]);
        let given_up = before.find(|(at, is_done)| !**is_done && self.keys[*at] == key && !self.released.contains(at));
        assert_eq!(given_up, None, "{positions:?} overtook what was given up");
    }

    fn leave(&mut self, which: usize) {
        let Assignment { epoch, leaving, .. } = self.assignments[which];
        match leaving {
            Leaving::Not => {
                self.shard.leave(Lane(0), epoch);
                self.assignments[which].leaving = Leaving::Asked;
            }
            Leaving::Asked => {
                let begun = self.assignments[which].begun.map(|at| at as u32);
                let said: Vec<Begun> = self.shard.begun.extract_if(.., |begun| begun.epoch == epoch).collect();
                assert!(said.len() == 1 && said[0].last <= begun, "{said:?} of {begun:?}");
                self.shard.leave_behind(Lane(0), epoch, begun);
                self.assignments[which].leaving = Leaving::Told;
            }
            Leaving::Told => self.hurry(which),
        }
    }

    fn hurry(&mut self, which: usize) {
        let Assignment { epoch, leaving, .. } = self.assignments[which];
        if leaving == Leaving::Not {
            return;
        }
        self.shard.leave_behind(Lane(0), epoch, None);
        for ticket in self.shard.running_of(Lane(0), epoch) {
            self.running.retain(|(other, ..)| *other != ticket);
            self.shard.abandon(ticket);
        }
        self.shard.begun.retain(|begun| begun.epoch != epoch);
        self.assignments[which] = Assignment { epoch: Epoch(epoch.0 + 2), since: self.next, ..Assignment::default() };
    }

    fn read_reports(&mut self) {
        let mut reports = Vec::new();
        self.shard.take_reports(&mut reports);
        for report in reports {
            let at = u64::from(report.seq);
            assert_eq!(self.reported.insert(at, report.is_done), None, "{at} is reported once");
            assert!(self.running.iter().all(|(_, positions, _)| !positions.contains(&at)), "{at} still runs");
        }
    }

    /// Ends everything well. Nothing may be left: no record, no key, no timer.
    fn finish(mut self) {
        for other in [false, true] {
            self.step(Step::Hurry(other));
        }
        for _ in 0..10_000 {
            self.step(Step::Unpark);
            self.step(Step::Start);
            while !self.running.is_empty() {
                self.end(0, Ending::Done);
            }
            self.step(Step::Sleep(500));
            if self.shard.items.len() == 0 && self.shard.keys.len() == 0 {
                break;
            }
        }
        assert_eq!((self.shard.items.len(), self.shard.keys.len(), self.shard.flights.len()), (0, 0, 0));
        assert_eq!((self.shard.held, self.shard.tally.keys_parked, self.shard.keys.ready()), (0, 0, 0));
        assert!(self.shard.leavers.is_empty() && self.shard.begun.is_empty());
        assert!(self.shard.verdicts.is_empty() && self.shard.namesakes.is_empty() && self.shard.due.is_empty());
        assert_eq!(self.reported.len() as u64, self.next, "every record is reported");
        assert!(self.compacts || self.reported.len() == self.keys.len());
    }
}

fn exhausted() -> impl Strategy<Value = Exhausted> {
    prop_oneof![Just(Exhausted::DeadLetter), Just(Exhausted::Park), Just(Exhausted::Skip)]
}

proptest! {
    #[test]
    fn whatever_happens_every_record_ends_once_and_keys_never_overlap(
        steps in prop::collection::vec(step(), 1..300),
        exhausted in exhausted(),
        compact in any::<bool>(),
        batch_max in 1..4_usize,
        quota in prop::option::of(1..3_u16),
    ) {
        let mut play = Play::new(|policy| {
            policy.exhausted = exhausted;
            policy.compact = compact;
            policy.batch_max = batch_max;
            policy.quota = quota.map(|records| Quota { records, window: Duration::from_millis(700) });
            policy.retry = Retry { attempts: Some(3), first_wait: Duration::from_millis(300), ..Retry::default() };
        });
        steps.into_iter().for_each(|step| play.step(step));
        play.finish();
    }
}
