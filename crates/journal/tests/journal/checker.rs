//! The promise of the journal as one object: accepted ⊇ recovered ⊇ as safe as was said, each once, in order.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_journal::Ack;

/// A record of the tests is `producer:number`, and perhaps a blank and filling.
pub(crate) fn name(producer: usize, number: usize) -> String {
    format!("{producer}:{number}")
}

fn parse(record: &str) -> (usize, usize) {
    let (producer, number) = record.split(' ').next().unwrap().split_once(':').unwrap();
    (producer.parse().unwrap(), number.parse().unwrap())
}

/// What was handed in, and what was said of it.
#[derive(Clone, Default, Debug)]
pub(crate) struct Promises {
    offered: BTreeSet<(usize, usize)>,
    told: BTreeMap<(usize, usize), Ack>,
}

impl Promises {
    pub(crate) fn offer(&mut self, record: &str) {
        self.offered.insert(parse(record));
    }

    pub(crate) fn tell(&mut self, record: &str, ack: Ack) {
        let told = self.told.entry(parse(record)).or_default();
        *told = (*told).max(ack);
    }

    pub(crate) fn told(&self) -> usize {
        self.told.len()
    }

    /// Those of two.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.offered.extend(other.offered);
        for (record, ack) in other.told {
            let told = self.told.entry(record).or_default();
            *told = (*told).max(ack);
        }
        self
    }

    /// Whether what was found is what was promised for this kind of end: [`Ack::Written`] for a process that died,
    /// [`Ack::Durable`] for a loss of power, [`Ack::Accepted`] for none.
    pub(crate) fn check(&self, found: &[Vec<u8>], end: Ack) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        let mut last: BTreeMap<usize, usize> = BTreeMap::new();
        for record in found {
            let text = std::str::from_utf8(record).map_err(|error| error.to_string())?;
            let (producer, number) = parse(text);
            if !self.offered.contains(&(producer, number)) {
                return Err(format!("{text} was never handed in"));
            }
            if !seen.insert((producer, number)) {
                return Err(format!("{text} is there twice"));
            }
            if last.insert(producer, number).is_some_and(|before| before > number) {
                return Err(format!("{text} is out of order"));
            }
        }
        let promised = self.told.iter().filter(|(_, ack)| **ack >= end).map(|(record, _)| record);
        match promised.into_iter().find(|record| !seen.contains(record)) {
            Some(record) => Err(format!("{record:?} was promised to be {end:?}, and is lost")),
            None => Ok(()),
        }
    }
}
