//! The load: number of records, distribution of keys, handler, and an order check.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::precise;
use tidegate_lanes::{Epoch, Lane, Position, Record};

/// Marks a precise sleep on the command line.
const PRECISE: u32 = u32::MAX;

/// The distribution of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keys {
    Unique,
    Uniform(u32),
    /// Keys in rotation.
    InTurn(u32),
    /// Zipf with exponent 1.1.
    Zipf(u32),
}

/// The work of a handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handler {
    Nothing,
    /// This many sleeps of this many microseconds, with tokio's timer, which rounds up to the next millisecond.
    Sleeps(u32, u64),
    /// A sleep of this many microseconds, exact to a microsecond.
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
    /// As one argument of the command line.
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

    /// The key of each record, equal for all subjects.
    pub(crate) fn keys(&self) -> Vec<u32> {
        let mut random = fastrand::Rng::with_seed(42);
        match self.keys {
            Keys::Unique => (0..self.records).collect(),
            Keys::Uniform(keys) => (0..self.records).map(|_| random.u32(..keys)).collect(),
            Keys::InTurn(keys) => (0..self.records).map(|number| number % keys).collect(),
            Keys::Zipf(keys) => zipf(self.records, keys, &mut random),
        }
    }

    /// The records of one lane: a key of 8 bytes and a payload of 100 bytes that starts with key and turn.
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

/// Checks each record at its start and end.
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

    /// The record must be the next of its key, and the previous one must have ended. An odd value means running.
    pub(crate) fn begin(&self, record: &Record) -> u32 {
        let payload = record.payload().expect("benchmark records have a payload");
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

/// The handler of all blocking subjects.
pub(crate) fn handle_blocking(handler: Handler, check: &Check, record: &Record) {
    let key = check.begin(record);
    if let Handler::Sleeps(sleeps, micros) = handler {
        (0..sleeps).for_each(|_| std::thread::sleep(Duration::from_micros(micros)));
    }
    check.end(key);
}
