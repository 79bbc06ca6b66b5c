//! Load of the last minutes, from samples.

use std::{collections::VecDeque, time::Instant};

use tidegate_stats::{LoadRates, LoadSample};

use crate::sample::{GatewaySample, number};

/// Points that are kept: more than the width of a terminal.
const POINTS_MAX: usize = 600;

/// Load between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LoadPoint {
    pub(crate) rates: LoadRates,
    pub(crate) waiting: u64,
}

/// The points, oldest first.
#[derive(Debug, Default)]
pub(crate) struct LoadHistory {
    last: Option<(Instant, LoadSample)>,
    points: VecDeque<LoadPoint>,
}

impl LoadHistory {
    /// Adds the load since the sample before.
    pub(crate) fn add(&mut self, sample: &GatewaySample) {
        if let Some((before, earlier)) = self.last.replace((sample.at, sample.load)) {
            let rates = LoadRates::between(&earlier, &sample.load, sample.at.saturating_duration_since(before));
            if self.points.len() >= POINTS_MAX {
                self.points.pop_front();
            }
            self.points.push_back(LoadPoint { rates, waiting: waiting(sample) });
        }
    }

    /// Forgets the last sample: counters begin again in another process.
    pub(crate) fn restart(&mut self) {
        self.last = None;
    }

    pub(crate) fn last(&self) -> Option<&LoadPoint> {
        self.points.back()
    }

    pub(crate) fn points(&self) -> impl ExactSizeIterator<Item = &LoadPoint> {
        self.points.iter()
    }
}

/// Clients that wait for a server.
pub(crate) fn waiting(sample: &GatewaySample) -> u64 {
    sample.pools.rows.iter().map(|row| number(&sample.pools, row, "cl_waiting")).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn first_sample_of_a_process_has_no_rates() {
        let mut history = LoadHistory::default();
        let mut sample = crate::sample::tests::sample();
        let mut add = |history: &mut LoadHistory, queries, seconds| {
            sample.load.totals.query_count = queries;
            sample.at += Duration::from_secs(seconds);
            history.add(&sample);
            history.points().map(|point| point.rates.queries).collect::<Vec<_>>()
        };
        assert!(add(&mut history, 1_000, 0).is_empty());
        assert_eq!(add(&mut history, 1_100, 2), [50.0]);
        history.restart();
        assert_eq!(add(&mut history, 3, 2), [50.0], "another process counts from zero");
        assert_eq!(add(&mut history, 13, 1), [50.0, 10.0]);
        assert_eq!(history.last().map(|point| point.waiting), Some(3));
    }
}
