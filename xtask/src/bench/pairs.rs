//! Measures small differences, to a percent or two. Two gateways run the same load at the same time against the same
//! servers, so that disturbances of the machine affect both. There are many short pairs, the first of a pair
//! alternates, and processes are restarted several times, because equal processes differ by their memory layout. A pair
//! of equal gateways shows the remaining error.

use std::path::Path;

use anyhow::{Context, Result};

use super::Pace;
use super::load::{self, Load, LoadResult};
use super::report::{BenchReport, Metric, MetricTarget};
use super::sample::{Mean, median};
use super::subject::Subject;

/// Number and duration of pairs.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Times {
    /// Duration of a pair in seconds
    #[arg(long, default_value_t = 1)]
    seconds: u32,
    /// Pairs of each kind before a restart of the processes
    #[arg(long, default_value_t = 6)]
    pairs: u32,
    /// Number of restarts
    #[arg(long, default_value_t = 8)]
    starts: u32,
}

impl Times {
    pub(super) fn at(self, pace: Pace) -> Self {
        Self { pairs: pace.scale(self.pairs), starts: pace.scale(self.starts).max(2), ..self }
    }

    /// A note for the head of a table.
    pub(super) fn note(self) -> String {
        let Self { seconds, pairs, starts } = self;
        format!(
            "each works beside the first at the same time, {pairs} times {seconds} s for each protocol and start, \
             {starts} starts; medians; ratios are geometric means, with the standard error of the starts' means"
        )
    }
}

/// A second process equal to the baseline.
pub(super) const AGAIN: &str = "the same again";

/// Latencies are not evaluated.
const LOGGED_SHARE: f64 = 0.01;

const TPS: Metric = Metric::new("tps", "");
const FIRST_TPS: Metric = Metric::new("tps of the first", "");
const CPU: Metric = Metric::new("cpu", "us/tx");
const FIRST_CPU: Metric = Metric::new("cpu of the first", "us/tx");
const ERROR: Metric = Metric::new("error of the ratio", "");

/// A comparison of a baseline with several other subjects.
pub(super) struct PairedComparison<'a> {
    pub(super) pgbench: &'a Path,
    pub(super) times: Times,
    /// Clients of each subject.
    pub(super) clients: u32,
    pub(super) ratio: Metric,
}

/// Name of another subject, and its limit.
pub(super) type Allowed = (&'static str, Option<MetricTarget>);

/// Results of pairs: by restart, then by pair.
type Yields = Vec<Vec<[LoadResult; 2]>>;

impl PairedComparison<'_> {
    /// Measures all protocols with each set of processes that `start` returns: the baseline first, then the others.
    pub(super) fn run(
        &self,
        protocols: &[&'static str],
        others: &[Allowed],
        mut start: impl FnMut() -> Result<Vec<Subject>>,
        report: &mut BenchReport,
    ) -> Result<()> {
        let mut yields = vec![vec![Yields::new(); others.len()]; protocols.len()];
        for number in 1..=self.times.starts {
            let subjects = start()?;
            let (first, rest) = subjects.split_first().context("there is a first")?;
            for (protocol, yields) in protocols.iter().zip(&mut yields) {
                let load = Load {
                    protocol,
                    clients: self.clients,
                    seconds: self.times.seconds,
                    script: None,
                    logged_share: LOGGED_SHARE,
                };
                self.pairs(&load, first, rest, yields)?;
                eprintln!("start {number} of {}: {protocol}", self.times.starts);
            }
        }
        for (protocol, yields) in protocols.iter().zip(&yields) {
            others.iter().zip(yields).for_each(|(other, yields)| self.report(protocol, other, yields, report));
        }
        Ok(())
    }

    fn pairs(&self, load: &Load, first: &Subject, others: &[Subject], yields: &mut [Yields]) -> Result<()> {
        // Fills the pools first.
        for other in others {
            load::run_both(self.pgbench, [first, other], &Load { seconds: 1, ..load.clone() })?;
        }
        yields.iter_mut().for_each(|of_start| of_start.push(Vec::new()));
        for round in 0..self.times.pairs {
            for (other, yields) in others.iter().zip(&mut *yields) {
                let pair = if round % 2 == 0 {
                    load::run_both(self.pgbench, [first, other], load)?
                } else {
                    let [other, first] = load::run_both(self.pgbench, [other, first], load)?;
                    [first, other]
                };
                yields.last_mut().context("one was pushed")?.push(pair);
            }
        }
        Ok(())
    }

    fn report(&self, protocol: &str, (name, limit): &Allowed, yields: &Yields, report: &mut BenchReport) {
        let of = |index: usize, quantity: fn(&LoadResult) -> f64| {
            median(&yields.iter().flatten().map(|pair| quantity(&pair[index])).collect::<Vec<_>>())
        };
        let ratio = ratio(yields);
        report.add(name, protocol, FIRST_TPS, of(0, |got| got.tps), None);
        report.add(name, protocol, TPS, of(1, |got| got.tps), None);
        report.add(name, protocol, FIRST_CPU, of(0, LoadResult::cpu_us_per_transaction), None);
        report.add(name, protocol, CPU, of(1, LoadResult::cpu_us_per_transaction), None);
        report.add(name, protocol, ERROR, ratio.error * ratio.mean, None);
        report.add(name, protocol, self.ratio, ratio.mean, *limit);
    }
}

/// Ratio of CPU time per transaction to the baseline, with its relative error.
fn ratio(yields: &Yields) -> Mean {
    let logarithm =
        |[first, other]: &[LoadResult; 2]| (other.cpu_us_per_transaction() / first.cpu_us_per_transaction()).ln();
    let of_start = |pairs: &Vec<[LoadResult; 2]>| Mean::of(&pairs.iter().map(logarithm).collect::<Vec<_>>()).mean;
    let Mean { mean, error } = Mean::of(&yields.iter().map(of_start).collect::<Vec<_>>());
    Mean { mean: mean.exp(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(cpu_seconds: f64) -> LoadResult {
        LoadResult { transactions: 1.0, tps: 1.0, cpu_seconds, p50_ms: 0.0, p99_ms: 0.0 }
    }

    #[test]
    fn error_of_the_ratio_is_between_restarts() {
        let pair = |first: f64, other: f64| [used(first), used(other)];
        let same = ratio(&vec![vec![pair(1.0, 1.1), pair(3.0, 3.3)], vec![pair(2.0, 2.2)]]);
        assert!((same.mean - 1.1).abs() < 1e-9 && same.error < 1e-9, "{same:?}");
        // Equal within a restart and different between restarts: the error is that of two samples, however many pairs
        // there are.
        let apart = ratio(&vec![vec![pair(1.0, 1.0); 100], vec![pair(1.0, 1.21); 100]]);
        assert!((apart.mean - 1.1).abs() < 1e-9, "{apart:?}");
        assert!((apart.error - 1.1_f64.ln()).abs() < 1e-9, "{apart:?}");
    }
}
