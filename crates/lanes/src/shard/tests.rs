//! Unit tests of the shard: hash collisions, fairness, and random operations checked against a model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::failure::{ExhaustedAction, RecordRetryPolicy};
use crate::messages::{HandlerOutcome, OutcomeMessage};
use crate::policy::{Quota, SubscriptionPolicy};
use crate::record::{Epoch, HandlerRecords, Lane, Position};

const NOW: MonotonicTime = MonotonicTime(0);

fn record(at: u64, key: u8, epoch: Epoch) -> Record {
    Record::new(Lane(0), epoch, Position(at), Some(&[key]), Some(b""))
}

fn shard(change: impl FnOnce(&mut SubscriptionPolicy)) -> Shard {
    let mut policy = SubscriptionPolicy::new("test");
    change(&mut policy);
    Shard::new(Arc::new(policy), 42)
}

fn enqueue(shard: &mut Shard, at: u64, key: u8, hash: u64, now: MonotonicTime) {
    arrive_in(shard, Epoch(0), at, key, hash, now);
}

fn arrive_in(shard: &mut Shard, epoch: Epoch, at: u64, key: u8, hash: u64, now: MonotonicTime) {
    shard.enqueue(Arrival { record: record(at, key, epoch), hash, seq: at as u32 }, now);
}

fn message(id: ExecutionId, outcome: HandlerOutcome) -> OutcomeMessage {
    OutcomeMessage { id, outcome }
}

/// LA-06: keys with equal hashes are distinct.
#[test]
fn keys_with_equal_hashes_are_distinct() {
    let mut shard = shard(|_| {});
    for at in 0..20 {
        enqueue(&mut shard, at, (at % 5) as u8, 7, NOW);
    }
    let started: Vec<Dispatch> = std::iter::from_fn(|| shard.dispatch(NOW)).collect();
    let positions: Vec<u64> = started.iter().map(|start| start.records.first().position().0).collect();
    assert_eq!(positions, [0, 1, 2, 3, 4], "one record of each key runs");
    for start in started {
        assert!(shard.apply_outcome(message(start.id, HandlerOutcome::Done), NOW));
    }
    let next: Vec<u64> =
        std::iter::from_fn(|| shard.dispatch(NOW)).map(|start| start.records.first().position().0).collect();
    assert_eq!(next, [5, 6, 7, 8, 9]);
}

#[test]
fn hot_key_waits_for_all_other_ready_keys() {
    let mut shard = shard(|_| {});
    (0..100).for_each(|at| enqueue(&mut shard, at, 0, 0, NOW));
    (100..103).for_each(|at| enqueue(&mut shard, at, at as u8 - 99, at, NOW));
    let mut turns = Vec::new();
    for _ in 0..8 {
        let start = shard.dispatch(NOW).expect("a key is ready");
        turns.push(start.records.first().position().0);
        shard.apply_outcome(message(start.id, HandlerOutcome::Done), NOW);
    }
    assert_eq!(turns, [0, 100, 101, 102, 1, 2, 3, 4]);
}

/// An operation of the model.
#[derive(Clone, Debug)]
enum Step {
    Arrive(u8),
    Start,
    End(prop::sample::Index, Ending),
    Sleep(u16),
    /// The lane begins to drain, or the drain advances by a step.
    BeginDrain(bool),
    /// The time of a draining lane is over.
    Expire(bool),
    Unpark,
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Done,
    Failed,
    /// Failed, and the batch is kept.
    Kept,
    Permanent,
    KeyReleased,
    TwiceDone,
}

fn step() -> impl Strategy<Value = Step> {
    let ending = prop_oneof![
        5 => Just(Ending::Done),
        2 => Just(Ending::Failed),
        2 => Just(Ending::Kept),
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
        2 => any::<bool>().prop_map(Step::BeginDrain),
        1 => any::<bool>().prop_map(Step::Expire),
        1 => Just(Step::Unpark),
    ]
}

/// Applies operations to a shard and checks the invariants after each.
struct Simulation {
    shard: Shard,
    now: MonotonicTime,
    next: u64,
    /// Running executions: their positions, and their keys unless they were released.
    running: Vec<(ExecutionId, Vec<u64>, BTreeSet<u8>)>,
    /// The batches that failed and are kept, until another lane drains.
    kept: Vec<Vec<u64>>,
    keys: BTreeMap<u64, u8>,
    /// Records that released their key: their retries run concurrently with the key.
    released: BTreeSet<u64>,
    reported: BTreeMap<u64, bool>,
    compacts: bool,
    assignments: [Assignment; 2],
}

/// An assignment of the lane, which is revoked and assigned again from time to time.
#[derive(Clone, Copy, Debug, Default)]
struct Assignment {
    epoch: Epoch,
    /// The first position.
    since: u64,
    drain: DrainState,
    /// The last started position.
    last_started: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum DrainState {
    #[default]
    Not,
    Begun,
    Bounded,
}

impl Simulation {
    fn new(policy: impl FnOnce(&mut SubscriptionPolicy)) -> Self {
        let shard = shard(policy);
        let compacts = shard.policy.compact;
        let (running, keys, reported, released) = (Vec::new(), BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let kept = Vec::new();
        let assignments = [Assignment::default(), Assignment { epoch: Epoch(1), ..Assignment::default() }];
        Self { shard, now: NOW, next: 0, running, kept, keys, released, reported, compacts, assignments }
    }

    #[allow(clippy::needless_pass_by_value, reason = "each step is used once")]
    fn step(&mut self, step: Step) {
        match step {
            Step::Arrive(key) => self.enqueue(key),
            Step::Start => self.start(),
            Step::End(index, ending) if !self.running.is_empty() => self.end(index.index(self.running.len()), ending),
            Step::End(..) => {}
            Step::Sleep(ms) => self.now = self.now.after(Duration::from_millis(ms.into())),
            Step::BeginDrain(other) => self.begin_drain(usize::from(other)),
            Step::Expire(other) => self.expire(usize::from(other)),
            Step::Unpark => self.shard.unpark(None, self.now),
        }
        self.shard.fire_timers(self.now);
        self.read_reports();
    }

    fn enqueue(&mut self, key: u8) {
        let assignment = self.assignments[usize::from(key / 100)];
        if assignment.drain == DrainState::Not {
            arrive_in(&mut self.shard, assignment.epoch, self.next, key, u64::from(key % 3), self.now);
            self.keys.insert(self.next, key);
            self.next += 1;
        }
    }

    fn start(&mut self) {
        let Some(start) = self.shard.dispatch(self.now) else { return };
        let records = match start.records {
            HandlerRecords::One(record) => vec![record],
            HandlerRecords::Many(records) => records,
        };
        let positions: Vec<u64> = records.iter().map(|record| record.position().0).collect();
        let keys: BTreeSet<u8> = positions.iter().map(|at| self.keys[at]).collect();
        assert!(positions.is_sorted() && positions.len() <= self.shard.policy.batch_max);
        assert!(self.shard.policy.batches_across_keys || keys.len() == 1, "{keys:?}");
        let is_held = |at: &&u64| !self.released.contains(at);
        let keys: BTreeSet<u8> = positions.iter().filter(is_held).map(|at| self.keys[at]).collect();
        let overlaps = self.running.iter().any(|(.., others)| !others.is_disjoint(&keys));
        assert!(!overlaps, "two records of a key of {keys:?} run");
        self.check_kept(&positions, start.dead_letter.is_some());
        self.note_start(&positions, records[0].epoch());
        self.running.push((start.id, positions, keys));
    }

    /// A batch that was kept is started with the same records, unless its key was released or something drained.
    fn check_kept(&mut self, positions: &[u64], is_dead_letter: bool) {
        let has_drained =
            self.assignments.iter().any(|assignment| assignment.since > 0 || assignment.drain != DrainState::Not);
        let Some(at) = self.kept.iter().position(|kept| kept.iter().any(|at| positions.contains(at))) else { return };
        let kept = self.kept.swap_remove(at);
        if !has_drained && !is_dead_letter && kept.iter().all(|at| !self.released.contains(at)) {
            assert_eq!(positions, kept, "the batch changed");
        }
    }

    fn end(&mut self, index: usize, ending: Ending) {
        let id = self.running[index].0;
        if let Ending::KeyReleased = ending {
            self.running[index].2.clear();
            self.released.extend(&self.running[index].1);
            assert!(!self.shard.apply_outcome(message(id, HandlerOutcome::KeyReleased), self.now));
            return;
        }
        let outcome = match ending {
            Ending::Kept => {
                let attempts =
                    self.shard.executions.get(id).map(|running| self.shard.items[running.first.head].attempts);
                if attempts < Some(3) {
                    self.kept.push(self.running[index].1.clone());
                }
                HandlerOutcome::Failed(Box::new(RecordFailure::new("busy").keep_batch()))
            }
            Ending::Failed => HandlerOutcome::Failed(Box::new(RecordFailure::new("no"))),
            Ending::Permanent => HandlerOutcome::Failed(Box::new(RecordFailure::permanent("never"))),
            _ => HandlerOutcome::Done,
        };
        self.running.swap_remove(index);
        assert!(self.shard.apply_outcome(message(id, outcome), self.now));
        if let Ending::TwiceDone = ending {
            assert!(!self.shard.apply_outcome(message(id, HandlerOutcome::Done), self.now), "second outcome is late");
        }
    }

    /// A draining lane starts nothing beyond its last started record, and nothing of a key after a dropped record.
    fn note_start(&mut self, positions: &[u64], epoch: Epoch) {
        let key = self.keys[&positions[0]];
        let keys: BTreeSet<u8> = positions.iter().map(|at| self.keys[at]).collect();
        let assignment = &mut self.assignments[usize::from(key / 100)];
        assert_eq!(assignment.epoch, epoch, "ended assignment started a record");
        let last = positions.last().copied();
        if assignment.drain == DrainState::Not {
            assignment.last_started = assignment.last_started.max(last);
            return;
        }
        assert!(last <= assignment.last_started, "{last:?} is beyond {:?}", assignment.last_started);
        let first = |key: u8| positions.iter().copied().find(|at| self.keys[at] == key).unwrap_or(0);
        let mut before = self.reported.range(assignment.since..positions[positions.len() - 1]);
        let dropped = before.find(|(at, is_done)| {
            let key = self.keys[*at];
            !**is_done && keys.contains(&key) && **at < first(key) && !self.released.contains(at)
        });
        assert_eq!(dropped, None, "{positions:?} overtook a dropped record");
    }

    fn begin_drain(&mut self, which: usize) {
        let Assignment { epoch, drain, .. } = self.assignments[which];
        match drain {
            DrainState::Not => {
                self.shard.begin_drain(Lane(0), epoch);
                self.assignments[which].drain = DrainState::Begun;
            }
            DrainState::Begun => {
                let last_started = self.assignments[which].last_started.map(|at| at as u32);
                let reported_last: Vec<LastStarted> =
                    self.shard.last_started.extract_if(.., |last_started| last_started.epoch == epoch).collect();
                assert!(
                    reported_last.len() == 1 && reported_last[0].last <= last_started,
                    "{reported_last:?} of {last_started:?}"
                );
                self.shard.drop_after(Lane(0), epoch, last_started);
                self.assignments[which].drain = DrainState::Bounded;
            }
            DrainState::Bounded => self.expire(which),
        }
    }

    fn expire(&mut self, which: usize) {
        let Assignment { epoch, drain, .. } = self.assignments[which];
        if drain == DrainState::Not {
            return;
        }
        self.shard.drop_after(Lane(0), epoch, None);
        for id in self.shard.executions_of(Lane(0), epoch) {
            self.running.retain(|(other, ..)| *other != id);
            self.shard.abandon(id);
        }
        self.shard.last_started.retain(|last_started| last_started.epoch != epoch);
        self.assignments[which] = Assignment { epoch: Epoch(epoch.0 + 2), since: self.next, ..Assignment::default() };
    }

    fn read_reports(&mut self) {
        let mut reports = Vec::new();
        self.shard.take_reports(&mut reports);
        for report in reports {
            let at = u64::from(report.seq);
            assert_eq!(self.reported.insert(at, report.is_done), None, "{at} reported twice");
            assert!(
                self.running.iter().all(|(_, positions, _)| !positions.contains(&at)),
                "{at} reported while running"
            );
        }
    }

    /// Finishes everything. No record, key or timer may be left.
    fn finish(mut self) {
        for other in [false, true] {
            self.step(Step::Expire(other));
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
        assert_eq!((self.shard.items.len(), self.shard.keys.len(), self.shard.executions.len()), (0, 0, 0));
        assert_eq!((self.shard.held_records, self.shard.counters.keys_parked, self.shard.keys.ready()), (0, 0, 0));
        assert!(self.shard.draining.is_empty() && self.shard.last_started.is_empty());
        assert!(
            self.shard.dead_letters.is_empty()
                && self.shard.idle_key_records.is_empty()
                && self.shard.timers.is_empty()
        );
        assert_eq!(self.reported.len() as u64, self.next, "unreported records");
        assert!(self.compacts || self.reported.len() == self.keys.len());
    }
}

fn exhausted() -> impl Strategy<Value = ExhaustedAction> {
    prop_oneof![Just(ExhaustedAction::DeadLetter), Just(ExhaustedAction::Park), Just(ExhaustedAction::Skip)]
}

proptest! {
    #[test]
    fn every_record_ends_once_and_keys_never_overlap(
        steps in prop::collection::vec(step(), 1..300),
        exhausted in exhausted(),
        compact in any::<bool>(),
        batch_max in 1..6_usize,
        across_keys in any::<bool>(),
        quota in prop::option::of(1..3_u16),
    ) {
        let mut simulation = Simulation::new(|policy| {
            policy.exhausted = exhausted;
            policy.compact = compact;
            policy.batch_max = batch_max;
            policy.batches_across_keys = across_keys;
            policy.quota = quota.map(|records| Quota { records, window: Duration::from_millis(700) });
            policy.retry = RecordRetryPolicy {
                attempts_max: Some(3),
                wait_min: Duration::from_millis(300),
                ..RecordRetryPolicy::default()
            };
        });
        steps.into_iter().for_each(|step| simulation.step(step));
        simulation.finish();
    }
}
