//! What is run: so many records, over such keys, with a handler that takes so long, and a check that order was kept.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::precise;
use tidegate_lanes::{Epoch, Lane, Position, Record};

/// Stands for a precise sleep on the command line.
const PRECISE: u32 = u32::MAX;

/// How keys are spread over the records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keys {
    Unique,
    Uniform(u32),
    /// One after another, round and round.
    InTurn(u32),
    /// With the exponent 1.1.
    Zipf(u32),
}

/// What a handler does with a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handler {
    Nothing,
    /// So many sleeps of so many microseconds, by tokio's timer, which rounds up to the millisecond after.
    Sleeps(u32, u64),
    /// One sleep of so many microseconds, to the microsecond.
    Precise(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) records: u32,
    pub(crate) keys: Keys,
    pub(crate) handler: Handler,
    pub(crate) in_flight: usize,
}

impl Load {
    /// As one word, for the command line of a run.
    pub(crate) fn to_word(self) -> String {
        let (kind, keys) = match self.keys {
            Keys::Unique => ("unique", 0),
            Keys::Uniform(keys) => ("uniform", keys),
            Keys::InTurn(keys) => ("turn", keys),
            Keys::Zipf(keys) => ("zipf", keys),
        };
        let (sleeps, micros) = match self.handler {
            Handler::Nothing => (0, 0),
            Handler::Sleeps(sleeps, micros) => (sleeps, micros),
            Handler::Precise(micros) => (PRECISE, micros),
        };
        format!("{},{kind},{keys},{sleeps},{micros},{}", self.records, self.in_flight)
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        let parts: Vec<&str> = word.split(',').collect();
        let &[records, kind, keys, sleeps, micros, in_flight] = &parts[..] else { return None };
        let count = number(keys)?;
        let keys = match kind {
            "unique" => Keys::Unique,
            "uniform" => Keys::Uniform(count),
            "turn" => Keys::InTurn(count),
            _ => Keys::Zipf(count),
        };
        let handler = match (number(sleeps)?, number(micros)?) {
            (0, _) => Handler::Nothing,
            (PRECISE, micros) => Handler::Precise(micros),
            (sleeps, micros) => Handler::Sleeps(sleeps, micros),
        };
        Some(Self { records: number(records)?, keys, handler, in_flight: number(in_flight)? })
    }

    /// The numbers of the keys, record by record; the same for every subject.
    pub(crate) fn keys(&self) -> Vec<u32> {
        let mut random = fastrand::Rng::with_seed(42);
        match self.keys {
            Keys::Unique => (0..self.records).collect(),
            Keys::Uniform(keys) => (0..self.records).map(|_| random.u32(..keys)).collect(),
            Keys::InTurn(keys) => (0..self.records).map(|number| number % keys).collect(),
            Keys::Zipf(keys) => zipf(self.records, keys, &mut random),
        }
    }

    /// The records, all of one lane: a key of eight bytes, a payload of a hundred that begins with key and turn.
    pub(crate) fn records(&self, epoch: Epoch) -> Vec<Record> {
        let keys = self.keys();
        let mut turns = vec![0_u32; self.key_count(&keys)];
        let mut payload = [b'.'; 100];
        let record = |(position, key): (usize, &u32)| {
            turns[*key as usize] += 1;
            payload[..4].copy_from_slice(&key.to_le_bytes());
            payload[4..8].copy_from_slice(&turns[*key as usize].to_le_bytes());
            let name = u64::from(*key).to_be_bytes();
            Record::new(Lane(0), epoch, Position(position as u64), Some(&name), Some(&payload))
        };
        keys.iter().enumerate().map(record).collect()
    }

    pub(crate) fn key_count(&self, keys: &[u32]) -> usize {
        keys.iter().max().map_or(0, |most| *most as usize + 1)
    }
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn zipf(records: u32, keys: u32, random: &mut fastrand::Rng) -> Vec<u32> {
    let mut sum = 0.0;
    let mut cumulated = Vec::with_capacity(keys as usize);
    for rank in 1..=keys {
        sum += f64::from(rank).powf(-1.1);
        cumulated.push(sum);
    }
    let rank = |drawn| cumulated.partition_point(|part| *part < drawn) as u32;
    (0..records).map(|_| rank(random.f64() * sum)).collect()
}

/// Sees every record once at its start and once at its end.
#[derive(Debug)]
pub(crate) struct Check {
    turns: Vec<AtomicU32>,
    violations: AtomicU64,
}

impl Check {
    pub(crate) fn new(keys: usize) -> Self {
        let turns = (0..keys).map(|_| AtomicU32::new(0)).collect();
        Self { turns, violations: AtomicU64::new(0) }
    }

    /// The record must be the next one of its key, and the one before must have ended. Odd: one runs.
    pub(crate) fn begin(&self, record: &Record) -> u32 {
        let payload = record.payload().expect("every record of the bench has one");
        let of = |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().expect("four bytes"));
        let (key, turn) = (of(0), of(4));
        let before = self.turns[key as usize].swap(2 * turn - 1, Relaxed);
        if before != 2 * (turn - 1) {
            self.violations.fetch_add(1, Relaxed);
        }
        key
    }

    pub(crate) fn end(&self, key: u32) {
        self.turns[key as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn violations(&self) -> u64 {
        self.violations.load(Relaxed)
    }
}

/// The handler of all subjects.
pub(crate) async fn handle(handler: Handler, check: &Check, record: &Record) {
    let key = check.begin(record);
    match handler {
        Handler::Nothing => {}
        Handler::Sleeps(sleeps, micros) => {
            for _ in 0..sleeps {
                tokio::time::sleep(Duration::from_micros(micros)).await;
            }
        }
        Handler::Precise(micros) => precise::sleep(Duration::from_micros(micros)).await,
    }
    check.end(key);
}

/// The handler of all subjects that block.
pub(crate) fn handle_blocking(handler: Handler, check: &Check, record: &Record) {
    let key = check.begin(record);
    if let Handler::Sleeps(sleeps, micros) = handler {
        (0..sleeps).for_each(|_| std::thread::sleep(Duration::from_micros(micros)));
    }
    check.end(key);
}
