//! Outlier detection: ejects endpoints that fail more than the others.
//!
//! The rules are those of gRPC (proposal A50) and Envoy: consecutive failures, a failure percentage, and a success rate far
//! below the mean. Each ejection of an endpoint is longer than the one before, and only a part of all endpoints is ejected
//! at the same time.

use std::time::{Duration, Instant};

use tidegate_backoff::instant_after;

use crate::load::CallVolume;

/// When an endpoint is ejected, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutlierDetection {
    /// Number of consecutive failures that ejects an endpoint without waiting for the interval. Default: 0, which
    /// disables the rule.
    pub consecutive_failures: u32,
    /// How often the two rules below are applied, and ejections end. Default: 10 s.
    pub interval: Duration,
    /// Duration of the first ejection of an endpoint; each further ejection is longer by as much. Default:
    /// 30 s.
    pub ejection_time: Duration,
    /// Longest ejection. Default: 5 min.
    pub ejection_time_max: Duration,
    /// Maximum percentage of endpoints ejected at the same time. One endpoint can always be ejected.
    /// Default: 10.
    pub ejected_percent_max: u32,
    /// Ejects endpoints with a success rate far below the mean. Default: none.
    pub success_rate: Option<SuccessRateEjection>,
    /// Ejects endpoints with a high failure percentage. Default: none.
    pub failure_percentage: Option<FailurePercentageEjection>,
}

/// Ejects endpoints whose success rate is below (mean - `stdev_factor` x standard deviation / 1000).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuccessRateEjection {
    /// Thousandths of a standard deviation. Default: 1,900.
    pub stdev_factor: u32,
    /// Percentage of matching endpoints that are ejected. Default: 100.
    pub enforcement_percent: u32,
    /// Minimum number of endpoints with `requests_min` calls. Default: 5.
    pub endpoints_min: usize,
    /// Minimum number of calls in an interval for an endpoint to be considered. Default: 100.
    pub requests_min: u32,
}

/// Ejects endpoints that fail more than `threshold_percent` of their calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailurePercentageEjection {
    /// Percentage of the calls of an interval. Default: 85.
    pub threshold_percent: u32,
    /// Percentage of matching endpoints that are ejected. Default: 0, as in gRPC, which ejects none.
    pub enforcement_percent: u32,
    /// Minimum number of endpoints with `requests_min` calls. Default: 5.
    pub endpoints_min: usize,
    /// Minimum number of calls in an interval for an endpoint to be considered. Default: 50.
    pub requests_min: u32,
}

impl Default for SuccessRateEjection {
    fn default() -> Self {
        Self { stdev_factor: 1900, enforcement_percent: 100, endpoints_min: 5, requests_min: 100 }
    }
}

impl Default for FailurePercentageEjection {
    fn default() -> Self {
        Self { threshold_percent: 85, enforcement_percent: 0, endpoints_min: 5, requests_min: 50 }
    }
}

impl Default for OutlierDetection {
    /// gRPC's times and percentages; no rule.
    fn default() -> Self {
        Self {
            consecutive_failures: 0,
            interval: Duration::from_secs(10),
            ejection_time: Duration::from_secs(30),
            ejection_time_max: Duration::from_secs(300),
            ejected_percent_max: 10,
            success_rate: None,
            failure_percentage: None,
        }
    }
}

impl OutlierDetection {
    /// Ejects after `failures` consecutive failures, at most half of the endpoints.
    pub fn consecutive(failures: u32) -> Self {
        Self { consecutive_failures: failures, ejected_percent_max: 50, ..Self::default() }
    }

    /// Returns whether one more of `all` endpoints may be ejected while `ejected` are.
    pub(crate) fn may_eject(&self, ejected: usize, all: usize) -> bool {
        // The first one always: ten per cent of three endpoints would be none.
        ejected == 0 || (ejected + 1) * 100 <= self.ejected_percent_max as usize * all
    }

    /// The interval, at least 1 ms: with zero the owner would call `tick` in a loop.
    pub(crate) fn interval_bounded(&self) -> Duration {
        self.interval.max(Duration::from_millis(1))
    }

    /// Duration of the `times`-th ejection.
    pub(crate) fn ejection_duration(&self, times: u32) -> Duration {
        self.ejection_time.saturating_mul(times).min(self.ejection_time_max.max(self.ejection_time))
    }

    /// Indexes of the endpoints that the interval rules match.
    pub(crate) fn outliers(&self, volumes: &[CallVolume], random: &mut fastrand::Rng) -> Vec<usize> {
        let mut outliers = self.success_rate.map(|rule| rule.outliers(volumes, random)).unwrap_or_default();
        let more = self.failure_percentage.map(|rule| rule.outliers(volumes, random)).unwrap_or_default();
        outliers.extend(more);
        outliers.sort_unstable();
        outliers.dedup();
        outliers
    }
}

impl CallVolume {
    fn total(self) -> u32 {
        self.successes.saturating_add(self.failures)
    }

    fn success_rate(self) -> f64 {
        f64::from(self.successes) / f64::from(self.total().max(1))
    }
}

/// Indexes of the endpoints with enough calls; none if there are too few such endpoints.
fn considered(volumes: &[CallVolume], requests_min: u32, endpoints_min: usize) -> Vec<usize> {
    let indexes = 0..volumes.len();
    let considered: Vec<usize> = indexes.filter(|&index| volumes[index].total() >= requests_min.max(1)).collect();
    if considered.len() < endpoints_min { Vec::new() } else { considered }
}

impl SuccessRateEjection {
    fn outliers(&self, volumes: &[CallVolume], random: &mut fastrand::Rng) -> Vec<usize> {
        let considered = considered(volumes, self.requests_min, self.endpoints_min);
        let rate = |index: usize| volumes[index].success_rate();
        let count = considered.len().max(1) as f64;
        let mean = considered.iter().map(|&index| rate(index)).sum::<f64>() / count;
        let variance = considered.iter().map(|&index| (rate(index) - mean).powi(2)).sum::<f64>() / count;
        let threshold = mean - variance.sqrt() * f64::from(self.stdev_factor) / 1000.0;
        let below = considered.into_iter().filter(|&index| rate(index) < threshold);
        below.filter(|_| random.u32(..100) < self.enforcement_percent).collect()
    }
}

impl FailurePercentageEjection {
    fn outliers(&self, volumes: &[CallVolume], random: &mut fastrand::Rng) -> Vec<usize> {
        let considered = considered(volumes, self.requests_min, self.endpoints_min);
        let percent = |index: usize| (1.0 - volumes[index].success_rate()) * 100.0;
        let above = considered.into_iter().filter(|&index| percent(index) > f64::from(self.threshold_percent));
        above.filter(|_| random.u32(..100) < self.enforcement_percent).collect()
    }
}

/// Ejections of one endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EjectionState {
    pub(crate) until: Option<Instant>,
    /// Multiplier of the next ejection; decreases by one in each interval without an ejection.
    pub(crate) times: u32,
    /// Number of ejections since the endpoint was added.
    pub(crate) total: u64,
}

impl EjectionState {
    pub(crate) fn is_ejected(&self) -> bool {
        self.until.is_some()
    }

    pub(crate) fn eject(&mut self, now: Instant, rules: &OutlierDetection) {
        self.times = self.times.saturating_add(1);
        self.total += 1;
        self.until = Some(instant_after(now, rules.ejection_duration(self.times)));
    }

    /// Ends an ejection that is over. Returns whether it did.
    pub(crate) fn end_if_over(&mut self, now: Instant) -> bool {
        let over = self.until.is_some_and(|until| until <= now);
        if over {
            self.until = None;
        }
        over
    }
}
