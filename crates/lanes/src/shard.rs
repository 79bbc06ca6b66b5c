//! The part of the keys that one owner decides for: which record runs next, and what becomes of it.
//!
//! A shard is a core: it never waits, never reads a clock, never spawns. Records arrive, [`Shard::start`] says what to
//! run, words of completions come back, and out come reports: this record is done, or it is given up.
//!
//! A key is in exactly one state (`keys::State`). Its waiting records hang from it in order, so the one that runs is never
//! among them. All that can be due, back-offs and quotas, is in one heap; deadlines are in the list of flights, which is
//! in order by itself. Nothing is ever looked for among all keys, except when a lane is taken away.

mod begin;
mod exhaust;
mod flights;
mod hot;
mod keys;
mod leave;
mod park;
mod resolve;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::mem;
use std::sync::Arc;

use crate::completion::{Ticket, Word};
use crate::failure::Failure;
use crate::mailbox::Mail;
use crate::moment::{Moment, PackedMoment};
use crate::policy::{Keyless, Policy};
use crate::record::{Epoch, Lane, Position, Record};
use crate::slab::{NONE, Slab};
use crate::tally::Tally;
use flights::{Flights, Kind};
use hot::HotKeys;
use keys::{Keys, State};
use leave::Leaver;

pub(crate) use hot::Heat;
pub(crate) use leave::is_later;

/// A record on its way to its shard.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) record: Record,
    /// Of lane and key.
    pub(crate) hash: u64,
    /// Its number in its lane's frontier.
    pub(crate) seq: u32,
}

/// What a shard is told to do.
#[derive(Debug)]
pub(crate) enum Order {
    /// Begin nothing of this assignment behind what has begun, try nothing of it again, and say how far it has begun.
    Leave(Lane, Epoch),
    /// Give up what has not begun of it behind this number, or all that has not.
    LeaveBehind(Lane, Epoch, Option<u32>),
    /// Give up what still runs of it, too.
    Abandon(Lane, Epoch),
    /// Let parked keys go on: the one of this name, or all.
    Unpark(Option<Box<[u8]>>),
    /// The subscription is over.
    End,
}

/// What lies in the mailbox of a shard.
#[derive(Debug, Default)]
pub(crate) struct ShardMail {
    pub(crate) arrivals: Vec<Vec<Arrival>>,
    pub(crate) words: Vec<Word>,
    pub(crate) orders: Vec<Order>,
    /// The gate may be open again.
    pub(crate) is_nudged: bool,
}

impl Mail for ShardMail {
    fn is_empty(&self) -> bool {
        self.words.is_empty() && self.arrivals.is_empty() && self.orders.is_empty() && !self.is_nudged
    }
}

/// What a shard holds, as the intake sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Standing {
    /// Records of parked keys.
    pub(crate) held: usize,
    /// Keys whose turn may come.
    pub(crate) ready: usize,
    /// Records that ever arrived.
    pub(crate) arrived: u64,
}

impl Standing {
    /// Whether the intake is to hear of it, which was told `before`: what is parked, and that it wants more.
    pub(crate) fn is_news(&self, before: &Self, ready_low: usize) -> bool {
        let wants_more = self.ready < ready_low && (before.ready >= ready_low || before.arrived != self.arrived);
        self.held != before.held || wants_more
    }
}

/// What became of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Report {
    pub(crate) lane: Lane,
    pub(crate) epoch: Epoch,
    pub(crate) seq: u32,
    pub(crate) bytes: usize,
    /// Otherwise it was given up, and its position stays open.
    pub(crate) is_done: bool,
}

/// How far a shard has begun with an assignment that is to be given back: the last number, if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Begun {
    pub(crate) lane: Lane,
    pub(crate) epoch: Epoch,
    pub(crate) last: Option<u32>,
}

/// What somebody should know of at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Alarm {
    pub(crate) kind: AlarmKind,
    pub(crate) lane: Lane,
    pub(crate) epoch: Epoch,
    pub(crate) position: Position,
    pub(crate) key: Option<Box<[u8]>>,
    pub(crate) failure: Failure,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AlarmKind {
    Stop,
    Halt,
    Parked,
    Skipped,
    NotBuried,
}

/// One record or several of one key.
#[derive(Debug)]
pub(crate) enum Records {
    One(Record),
    Many(Vec<Record>),
}

impl Records {
    pub(crate) fn first(&self) -> &Record {
        match self {
            Self::One(record) => record,
            Self::Many(records) => &records[0],
        }
    }
}

/// Something to run.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) ticket: Ticket,
    pub(crate) records: Records,
    /// From 1.
    pub(crate) attempt: u32,
    /// Why they are to be buried, instead of run.
    pub(crate) bury: Option<Failure>,
}

/// A record that is here.
#[derive(Debug)]
struct Item {
    record: Record,
    seq: u32,
    /// The next one of its key, or of its flight.
    next: u32,
    arrived: PackedMoment,
    attempts: u16,
}

const _: () = assert!(size_of::<Option<Item>>() <= 72, "one lies in memory for every record that waits");

/// Why a record is to be buried, and how often that was tried.
#[derive(Debug)]
struct Verdict {
    failure: Failure,
    tries: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    /// The key's back-off is over.
    Retry,
    /// The window of the key's quota is over.
    Window,
}

#[derive(Debug)]
pub(crate) struct Shard {
    policy: Arc<Policy>,
    keys: Keys,
    items: Slab<Item>,
    flights: Flights,
    due: BinaryHeap<Reverse<(Moment, u32, Due)>>,
    /// Records to bury, by item.
    verdicts: HashMap<u32, Verdict>,
    /// A record of each key that a timer keeps here without records, so that it is found by name.
    namesakes: HashMap<u32, Record>,
    halted: Vec<(Lane, Epoch)>,
    /// Assignments that are on their way out and have records here.
    leavers: Vec<Leaver>,
    /// Records of parked keys.
    held: usize,
    /// Records that ever arrived.
    arrived: u64,
    hot: HotKeys,
    random: fastrand::Rng,
    reports: Vec<Report>,
    alarms: Vec<Alarm>,
    begun: Vec<Begun>,
    tally: Tally,
}

impl Shard {
    pub(crate) fn new(policy: Arc<Policy>, seed: u64) -> Self {
        Self {
            policy,
            keys: Keys::new(),
            items: Slab::new(),
            flights: Flights::new(),
            due: BinaryHeap::new(),
            verdicts: HashMap::new(),
            namesakes: HashMap::new(),
            halted: Vec::new(),
            leavers: Vec::new(),
            held: 0,
            arrived: 0,
            hot: HotKeys::new(seed),
            random: fastrand::Rng::with_seed(seed),
            reports: Vec::new(),
            alarms: Vec::new(),
            begun: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Takes a record in.
    pub(crate) fn arrive(&mut self, arrival: Arrival, now: Moment) {
        let Arrival { record, hash, seq } = arrival;
        self.hot.note(&record);
        self.arrived += 1;
        let key = self.key_of(&record, hash);
        if self.policy.compact && self.replace_last(key, &record, seq, now) {
            return;
        }
        let item = self.items.insert(Item { record, seq, next: NONE, arrived: now.into(), attempts: 0 });
        self.append(key, item);
        match self.keys.get(key).state {
            State::Idle => {
                self.forget_name(key);
                self.keys.make_ready(key);
            }
            State::Parked => self.held += 1,
            _ => {}
        }
    }

    fn key_of(&mut self, record: &Record, hash: u64) -> u32 {
        if record.key().is_none() && self.policy.keyless == Keyless::Unordered {
            return self.keys.insert_nameless();
        }
        let (items, flights, namesakes) = (&self.items, &self.flights, &self.namesakes);
        let found = self.keys.find(hash, |place, key| {
            let known = match (key.head, key.flight) {
                (NONE, NONE) => namesakes.get(&place),
                (NONE, flight) => Some(&items[flights.at(flight).head].record),
                (head, _) => Some(&items[head].record),
            };
            known.is_some_and(|known| known.lane() == record.lane() && known.key() == record.key())
        });
        found.unwrap_or_else(|| self.keys.insert_named(hash))
    }

    fn append(&mut self, key: u32, item: u32) {
        let key = self.keys.get(key);
        let last = mem::replace(&mut key.tail, item);
        key.len += 1;
        match last {
            NONE => key.head = item,
            last => self.items[last].next = item,
        }
    }

    /// Puts the record in the place of the last one of its key, if that has not begun: it is done with the newer one.
    fn replace_last(&mut self, key: u32, record: &Record, seq: u32, now: Moment) -> bool {
        let last = self.keys.get(key).tail;
        if last == NONE || record.key().is_none() || record.damage().is_some() {
            return false;
        }
        let item = &mut self.items[last];
        let is_fresh = item.attempts == 0 && item.record.damage().is_none() && item.record.epoch() == record.epoch();
        if !is_fresh {
            return false;
        }
        let newer = Item { record: record.clone(), seq, next: NONE, arrived: now.into(), attempts: 0 };
        let older = mem::replace(item, newer);
        self.tally.compacted += 1;
        self.report(&older, true);
        true
    }

    /// Keys whose turn may come.
    pub(crate) fn ready(&self) -> usize {
        self.keys.ready()
    }

    /// The next thing to run, if any may.
    pub(crate) fn start(&mut self, now: Moment) -> Option<Start> {
        loop {
            let key = self.keys.take_ready()?;
            if self.may_start(key, now) {
                return Some(self.begin(key, now));
            }
        }
    }

    /// Decides about the key whose turn it is. If it may not start, it has another state afterwards.
    fn may_start(&mut self, key: u32, now: Moment) -> bool {
        let head = self.keys.get(key).head;
        if head == NONE {
            self.rest(key);
            return false;
        }
        if !self.halted.is_empty() && self.is_halted(head) {
            self.park(key);
            return false;
        }
        if !self.leavers.is_empty() && self.withhold(key, head) {
            return false;
        }
        if !self.verdicts.contains_key(&head)
            && let Some(reason) = self.items[head].record.damage()
        {
            let failure = Failure::undecodable(reason);
            self.tally.undecodable += 1;
            self.exhaust(key, failure, self.policy.exhausted);
            return false;
        }
        self.policy.quota.is_none_or(|quota| self.count_start(key, quota, now))
    }

    /// The key has nothing to do.
    fn rest(&mut self, key: u32) {
        if !self.keys.rest(key) {
            self.forget_name(key);
        }
    }

    fn report(&mut self, item: &Item, is_done: bool) {
        let record = &item.record;
        let (lane, epoch, bytes) = (record.lane(), record.epoch(), record.size_bytes());
        self.reports.push(Report { lane, epoch, seq: item.seq, bytes, is_done });
        if !self.leavers.is_empty() {
            self.count_left(lane, epoch);
        }
    }

    /// Lets the keys go on whose time has come.
    pub(crate) fn wake(&mut self, now: Moment) {
        while let Some(Reverse((at, key, due))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            self.keys.end_timer(key);
            let state = self.keys.get(key).state;
            match (due, state) {
                (Due::Retry, State::Waiting) => self.go_on(key),
                (Due::Window, _) => self.end_window(key),
                (_, State::Idle) => self.rest(key),
                _ => {}
            }
        }
    }

    /// The key is free: its next record may run, if it has one.
    fn go_on(&mut self, key: u32) {
        self.keys.get(key).flight = NONE;
        if self.keys.get(key).len > 0 {
            self.keys.make_ready(key);
        } else {
            self.rest(key);
        }
    }

    /// The (first) record of an attempt that has not ended, and whether it missed its deadline.
    pub(crate) fn attempt(&self, ticket: Ticket) -> Option<(&Record, bool)> {
        let flight = self.flights.peek(ticket).filter(|flight| flight.kind == Kind::Run)?;
        Some((&self.items[flight.head].record, flight.is_overdue))
    }

    /// When [`wake`](Self::wake) or [`overdue`](Self::overdue) has something to do.
    pub(crate) fn due_at(&self) -> Option<Moment> {
        let timer = self.due.peek().map(|Reverse((at, ..))| *at);
        let deadline = self.flights.oldest().map(|(_, from)| from.after(self.policy.deadline));
        timer.into_iter().chain(deadline).min()
    }

    /// What became of records since it was asked last, in `into`.
    pub(crate) fn take_reports(&mut self, into: &mut Vec<Report>) {
        into.append(&mut self.reports);
    }

    pub(crate) fn take_alarms(&mut self) -> Vec<Alarm> {
        mem::take(&mut self.alarms)
    }

    /// How far it has begun with lanes that are to be given back.
    pub(crate) fn take_begun(&mut self) -> Vec<Begun> {
        mem::take(&mut self.begun)
    }

    /// What the intake wants to know of it.
    pub(crate) fn standing(&self) -> Standing {
        Standing { held: self.held, ready: self.keys.ready(), arrived: self.arrived }
    }

    /// Records that ever arrived.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// What it has counted, and what it holds.
    pub(crate) fn tally(&mut self) -> &Tally {
        let tally = &mut self.tally;
        tally.keys = self.keys.len();
        tally.keys_ready = self.keys.ready();
        tally.records_parked = self.held;
        tally.running = self.flights.len();
        tally
    }

    pub(crate) fn hot_keys(&self) -> Vec<Heat> {
        self.hot.list()
    }
}

#[cfg(test)]
mod tests;
