//! Ejections, and everything else that changes with time.

use std::time::Instant;

use tidegate_backoff::instant_after;

use crate::endpoint::EndpointId;
use crate::endpoint_record::EndpointRecord;
use crate::membership::{Membership, SnapshotChange};
use crate::outlier::OutlierDetection;

impl<T> Membership<T> {
    /// Ejects an endpoint whose consecutive failures have reached the limit.
    pub(crate) fn eject(&mut self, id: EndpointId) -> SnapshotChange {
        let (now, Some(rules)) = (self.now, self.outlier_detection) else { return SnapshotChange::None };
        let may_eject = rules.may_eject(self.ejected(), self.present.len());
        let found = self.present.iter_mut().find(|record| record.endpoint.id == id);
        let Some(record) = found.filter(|record| may_eject && !record.ejection.is_ejected()) else {
            return SnapshotChange::None;
        };
        record.ejection.eject(now, &rules);
        record.endpoint.load.reset_streak();
        SnapshotChange::Publish
    }

    /// Applies what is due: ends of ejections, interval rules, slow starts, the replace timeout, and a repeated publication.
    pub(crate) fn tick(&mut self) -> SnapshotChange {
        let now = self.now;
        let ejected = self.present.iter_mut().filter(|record| record.ejection.is_ejected());
        let mut changed = ejected.fold(false, |any, record| record.ejection.end_if_over(now) | any);
        // A departing endpoint can be revived later, so its ejection ends as well.
        for record in &mut self.departing {
            record.ejection.end_if_over(now);
        }
        if let Some(rules) = self.outlier_detection.filter(|_| now >= self.interval_ends) {
            self.interval_ends = instant_after(now, rules.interval_bounded());
            changed |= self.end_interval(&rules);
        }
        let timed_out = |record: &EndpointRecord<T>| record.leaving.is_some_and(|until| until <= now);
        let ramped = self.update_ramps();
        let retry = self.retry_publication_at.is_some_and(|at| at <= now);
        SnapshotChange::when(changed || ramped || retry || self.present.iter().any(timed_out))
    }

    fn end_interval(&mut self, rules: &OutlierDetection) -> bool {
        let volumes: Vec<_> = self.present.iter().map(|record| record.endpoint.load.take_volume()).collect();
        let outliers = rules.outliers(&volumes, &mut self.random);
        let (now, all) = (self.now, self.present.len());
        let mut ejected = self.ejected();
        let before = ejected;
        for (index, record) in self.present.iter_mut().enumerate() {
            if record.ejection.is_ejected() {
                continue;
            }
            if outliers.contains(&index) && rules.may_eject(ejected, all) {
                record.ejection.eject(now, rules);
                ejected += 1;
            } else {
                record.ejection.times = record.ejection.times.saturating_sub(1);
            }
        }
        ejected > before
    }

    fn ejected(&self) -> usize {
        self.present.iter().filter(|record| record.ejection.is_ejected()).count()
    }

    /// When the next [`tick`](Self::tick) is due.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        let ejections = self.present.iter().chain(&self.departing).filter_map(|record| record.ejection.until);
        let removals = self.present.iter().filter_map(|record| record.leaving);
        let interval = self.outlier_detection.map(|_| self.interval_ends);
        let next = ejections.chain(removals).chain(interval).chain(self.next_ramp()).min();
        // While the policy fails, due changes stay due; `next` would make the owner call `tick` in a loop.
        self.retry_publication_at.or(next)
    }
}
