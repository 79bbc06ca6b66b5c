//! Ejections begin and end.

use std::time::Instant;

use super::{Change, Entry, Roster};
use crate::endpoint::EndpointId;
use crate::moment::after;
use crate::outlier::Outlier;

impl<T> Roster<T> {
    /// A run of failures reached the limit.
    pub(crate) fn eject(&mut self, id: EndpointId) -> Change {
        let (now, Some(rules)) = (self.now, self.outlier) else { return Change::None };
        let may = rules.may_eject(self.ejected(), self.present.len());
        let found = self.present.iter_mut().find(|entry| entry.endpoint.id == id);
        let Some(entry) = found.filter(|entry| may && !entry.ejection.is_out()) else { return Change::None };
        entry.ejection.begin(now, &rules);
        entry.endpoint.load.forgive();
        Change::Publish
    }

    /// What time alone changes: ejections end, intervals end, shares grow, those who leave have waited enough.
    pub(crate) fn tick(&mut self) -> Change {
        let now = self.now;
        let ended = self.present.iter_mut().filter(|entry| entry.ejection.is_out());
        let mut changed = ended.fold(false, |any, entry| entry.ejection.end(now) | any);
        // Who has left may be known for long: whoever still has it in a snapshot keeps it.
        for entry in &mut self.departing {
            entry.ejection.end(now);
        }
        if let Some(rules) = self.outlier.filter(|_| now >= self.interval_ends) {
            self.interval_ends = after(now, rules.every());
            changed |= self.end_interval(&rules);
        }
        let waited = |entry: &Entry<T>| entry.leaving.is_some_and(|until| until <= now);
        let grown = self.grow_shares();
        let again = self.unpublished.is_some_and(|at| at <= now);
        Change::when(changed || grown || again || self.present.iter().any(waited))
    }

    fn end_interval(&mut self, rules: &Outlier) -> bool {
        let volumes: Vec<_> = self.present.iter().map(|entry| entry.endpoint.load.take_volume()).collect();
        let suspects = rules.suspects(&volumes, &mut self.random);
        let (now, all) = (self.now, self.present.len());
        let mut ejected = self.ejected();
        let before = ejected;
        for (index, entry) in self.present.iter_mut().enumerate() {
            if entry.ejection.is_out() {
                continue;
            }
            if suspects.contains(&index) && rules.may_eject(ejected, all) {
                entry.ejection.begin(now, rules);
                ejected += 1;
            } else {
                entry.ejection.times = entry.ejection.times.saturating_sub(1);
            }
        }
        ejected > before
    }

    fn ejected(&self) -> usize {
        self.present.iter().filter(|entry| entry.ejection.is_out()).count()
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        let returns = self.present.iter().chain(&self.departing).filter_map(|entry| entry.ejection.until);
        let leaves = self.present.iter().filter_map(|entry| entry.leaving);
        let interval = self.outlier.map(|_| self.interval_ends);
        let next = returns.chain(leaves).chain(interval).chain(self.next_ramp()).min();
        // What is due and could not be published is due still: whoever ticks would do nothing else.
        self.unpublished.or(next)
    }
}
