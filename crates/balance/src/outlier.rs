//! Who fails more than the others is left alone for a while.
//!
//! The rules are those of gRPC (proposal A50) and Envoy: so many failures in a row; a share of failures that is too
//! high; a rate of successes far below the mean of all. An ejection lasts longer each time, and only a part of all can
//! be ejected at once.

use std::time::{Duration, Instant};

use crate::load::Volume;
use crate::moment::after;

/// When to eject an endpoint, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlier {
    /// After so many failures in a row, at once; 0: never for this reason.
    pub consecutive: u32,
    /// How often the two rules below are applied, and ejections end.
    pub interval: Duration,
    /// The first ejection; each further one is longer by as much.
    pub base: Duration,
    /// The longest ejection.
    pub most: Duration,
    /// No more than so many per cent of all are ejected at once (but one may always be).
    pub percent_max: u32,
    /// Ejects who succeeds much less than all do.
    pub success_rate: Option<SuccessRate>,
    /// Ejects who fails too large a share.
    pub failure_share: Option<FailureShare>,
}

/// Ejects whose rate of successes is below (mean - `stdev_factor` x standard deviation / 1000).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuccessRate {
    /// In thousandths of a standard deviation.
    pub stdev_factor: u32,
    /// Per cent of the cases in which it is done.
    pub enforced: u32,
    /// So many endpoints must have had enough calls.
    pub hosts_min: usize,
    /// Enough calls, in an interval.
    pub volume_min: u32,
}

/// Ejects who fails more than `percent` of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureShare {
    /// Of the calls of an interval.
    pub percent: u32,
    /// Per cent of the cases in which it is done. 0 by default, as in gRPC: nobody is ejected until it is set.
    pub enforced: u32,
    /// So many endpoints must have had enough calls.
    pub hosts_min: usize,
    /// Enough calls, in an interval.
    pub volume_min: u32,
}

impl Default for SuccessRate {
    fn default() -> Self {
        Self { stdev_factor: 1900, enforced: 100, hosts_min: 5, volume_min: 100 }
    }
}

impl Default for FailureShare {
    fn default() -> Self {
        Self { percent: 85, enforced: 0, hosts_min: 5, volume_min: 50 }
    }
}

impl Default for Outlier {
    /// gRPC's times and shares; no rule.
    fn default() -> Self {
        Self {
            consecutive: 0,
            interval: Duration::from_secs(10),
            base: Duration::from_secs(30),
            most: Duration::from_secs(300),
            percent_max: 10,
            success_rate: None,
            failure_share: None,
        }
    }
}

impl Outlier {
    /// After so many failures in a row, up to half of all.
    pub fn consecutive(failures: u32) -> Self {
        Self { consecutive: failures, percent_max: 50, ..Self::default() }
    }

    /// May one more of `all` be ejected, when `ejected` are?
    pub(crate) fn may_eject(&self, ejected: usize, all: usize) -> bool {
        // The first may always be: of three, ten per cent would be none.
        ejected == 0 || (ejected + 1) * 100 <= self.percent_max as usize * all
    }

    /// How long an interval is: never none, or whoever applies the rules would do nothing else.
    pub(crate) fn every(&self) -> Duration {
        self.interval.max(Duration::from_millis(1))
    }

    /// How long an ejection lasts, when it is the `times`-th.
    pub(crate) fn lasts(&self, times: u32) -> Duration {
        self.base.saturating_mul(times).min(self.most.max(self.base))
    }

    /// Whom the rules over an interval would eject, by index, given what all answered.
    pub(crate) fn suspects(&self, volumes: &[Volume], random: &mut fastrand::Rng) -> Vec<usize> {
        let mut suspects = self.success_rate.map(|rule| rule.suspects(volumes, random)).unwrap_or_default();
        let more = self.failure_share.map(|rule| rule.suspects(volumes, random)).unwrap_or_default();
        suspects.extend(more);
        suspects.sort_unstable();
        suspects.dedup();
        suspects
    }
}

impl Volume {
    fn total(self) -> u32 {
        self.successes.saturating_add(self.failures)
    }

    fn success_rate(self) -> f64 {
        f64::from(self.successes) / f64::from(self.total().max(1))
    }
}

/// Indexes of those with enough calls, if they are enough.
fn busy(volumes: &[Volume], volume_min: u32, hosts_min: usize) -> Vec<usize> {
    let busy: Vec<usize> = (0..volumes.len()).filter(|&index| volumes[index].total() >= volume_min.max(1)).collect();
    if busy.len() < hosts_min { Vec::new() } else { busy }
}

impl SuccessRate {
    fn suspects(&self, volumes: &[Volume], random: &mut fastrand::Rng) -> Vec<usize> {
        let busy = busy(volumes, self.volume_min, self.hosts_min);
        let count = busy.len().max(1) as f64;
        let mean = busy.iter().map(|&index| volumes[index].success_rate()).sum::<f64>() / count;
        let variance = busy.iter().map(|&index| (volumes[index].success_rate() - mean).powi(2)).sum::<f64>() / count;
        let least = mean - variance.sqrt() * f64::from(self.stdev_factor) / 1000.0;
        let below = busy.into_iter().filter(|&index| volumes[index].success_rate() < least);
        below.filter(|_| random.u32(..100) < self.enforced).collect()
    }
}

impl FailureShare {
    fn suspects(&self, volumes: &[Volume], random: &mut fastrand::Rng) -> Vec<usize> {
        let busy = busy(volumes, self.volume_min, self.hosts_min);
        let share = |index: usize| (1.0 - volumes[index].success_rate()) * 100.0;
        let above = busy.into_iter().filter(|&index| share(index) > f64::from(self.percent));
        above.filter(|_| random.u32(..100) < self.enforced).collect()
    }
}

/// The ejections of one endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ejection {
    pub(crate) until: Option<Instant>,
    /// Makes the next ejection longer; goes down by one in each interval without one.
    pub(crate) times: u32,
    /// Ever.
    pub(crate) total: u64,
}

impl Ejection {
    pub(crate) fn is_out(&self) -> bool {
        self.until.is_some()
    }

    pub(crate) fn begin(&mut self, now: Instant, rules: &Outlier) {
        self.times = self.times.saturating_add(1);
        self.total += 1;
        self.until = Some(after(now, rules.lasts(self.times)));
    }

    /// True: it ended just now.
    pub(crate) fn end(&mut self, now: Instant) -> bool {
        let ended = self.until.is_some_and(|until| until <= now);
        if ended {
            self.until = None;
        }
        ended
    }
}
