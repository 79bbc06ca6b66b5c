//! Checks the contract of the journal: accepted ⊇ recovered ⊇ acknowledged, each record once, in order.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_journal::Ack;

/// A record of the tests is `producer:number`, optionally followed by a space and padding.
pub(crate) fn name(producer: usize, number: usize) -> String {
    format!("{producer}:{number}")
}

fn parse(record: &str) -> (usize, usize) {
    let (producer, number) = record.split(' ').next().unwrap().split_once(':').unwrap();
    (producer.parse().unwrap(), number.parse().unwrap())
}

/// The offered and the acknowledged records.
#[derive(Clone, Default, Debug)]
pub(crate) struct DurabilityChecker {
    offered: BTreeSet<(usize, usize)>,
    acked: BTreeMap<(usize, usize), Ack>,
}

impl DurabilityChecker {
    pub(crate) fn offer(&mut self, record: &str) {
        self.offered.insert(parse(record));
    }

    pub(crate) fn acked(&mut self, record: &str, ack: Ack) {
        let level = self.acked.entry(parse(record)).or_default();
        *level = (*level).max(ack);
    }

    pub(crate) fn acked_total(&self) -> usize {
        self.acked.len()
    }

    /// Merges two checkers.
    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.offered.extend(other.offered);
        for (record, ack) in other.acked {
            let level = self.acked.entry(record).or_default();
            *level = (*level).max(ack);
        }
        self
    }

    /// Checks the records found after an end of this kind: [`Ack::Written`] after a process died, [`Ack::Durable`] after
    /// a power failure, [`Ack::Accepted`] after a close.
    pub(crate) fn check(&self, found: &[Vec<u8>], end: Ack) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        let mut last: BTreeMap<usize, usize> = BTreeMap::new();
        for record in found {
            let text = std::str::from_utf8(record).map_err(|error| error.to_string())?;
            let (producer, number) = parse(text);
            if !self.offered.contains(&(producer, number)) {
                return Err(format!("{text} was never offered"));
            }
            if !seen.insert((producer, number)) {
                return Err(format!("{text} occurs twice"));
            }
            if last.insert(producer, number).is_some_and(|before| before > number) {
                return Err(format!("{text} is out of order"));
            }
        }
        let expected = self.acked.iter().filter(|(_, ack)| **ack >= end).map(|(record, _)| record);
        match expected.into_iter().find(|record| !seen.contains(record)) {
            Some(record) => Err(format!("{record:?} was acknowledged as {end:?} and is lost")),
            None => Ok(()),
        }
    }
}
