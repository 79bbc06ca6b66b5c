//! When a name is resolved again. Pure: times and random numbers are arguments.

use std::time::{Duration, Instant};

use tidegate_backoff::{Backoff, Jitter, instant_after};

/// When a name is resolved again, and how long an answer may be used.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolveSettings {
    /// Minimum time between two lookups, regardless of TTLs and of [`ResolveNow`](super::ResolveNow). Default: 5 s.
    pub interval_min: Duration,
    /// Maximum time between two lookups, regardless of TTLs. Default: 5 min.
    pub interval_max: Duration,
    /// Time between two lookups if the answer has no TTL. Default: 30 s.
    pub interval: Duration,
    /// Random part of each interval, so that clients that were started together do not query together. Default:
    /// 20 % around it.
    pub jitter: Jitter,
    /// Time limit of one lookup. Default: 10 s.
    pub timeout: Duration,
    /// Delay after consecutive failures, at least `interval_min`. Default: 5 s, doubled up to 5 min.
    pub backoff: Backoff,
    /// How long a set is used after its answer; `None`: without limit. Default: `None`.
    pub max_stale: Option<Duration>,
}

impl Default for ResolveSettings {
    fn default() -> Self {
        Self {
            interval_min: Duration::from_secs(5),
            interval_max: Duration::from_secs(300),
            interval: Duration::from_secs(30),
            jitter: Jitter::Around(0.2),
            timeout: Duration::from_secs(10),
            backoff: Backoff {
                first: Duration::from_secs(5),
                factor: 2.0,
                max: Duration::from_secs(300),
                jitter: Jitter::Around(0.2),
            },
            max_stale: None,
        }
    }
}

/// How a lookup is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResolveTrigger {
    /// Even if the last lookup failed.
    Now,
    /// Unless the last lookup failed: its delay holds.
    Hint,
}

/// When the next lookup is due.
#[derive(Debug)]
pub(crate) struct ResolveSchedule {
    settings: ResolveSettings,
    /// Start of the last lookup.
    started_at: Option<Instant>,
    due: Instant,
    failures: u32,
    /// When the set in use was received.
    received_at: Option<Instant>,
}

impl ResolveSchedule {
    /// The first lookup is due now.
    pub(crate) fn new(settings: ResolveSettings, now: Instant) -> Self {
        Self { settings, started_at: None, due: now, failures: 0, received_at: None }
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    pub(crate) fn started(&mut self, now: Instant) {
        self.started_at = Some(now);
    }

    /// Makes the next lookup due as soon as `interval_min` allows. Repeated requests change nothing.
    pub(crate) fn request(&mut self, now: Instant, trigger: ResolveTrigger) {
        if trigger == ResolveTrigger::Now || self.failures == 0 {
            self.due = self.due.min(self.earliest().max(now));
        }
    }

    pub(crate) fn succeeded(&mut self, now: Instant, ttl: Option<Duration>, random: f64) {
        let interval =
            ttl.unwrap_or(self.settings.interval).min(self.settings.interval_max).max(self.settings.interval_min);
        (self.failures, self.received_at) = (0, Some(now));
        self.due = instant_after(now, self.settings.jitter.apply(interval, random)).max(self.earliest());
    }

    pub(crate) fn failed(&mut self, now: Instant, random: f64) {
        self.failures = self.failures.saturating_add(1);
        self.due = instant_after(now, self.settings.backoff.delay(self.failures, random)).max(self.earliest());
    }

    /// When the set in use becomes stale.
    pub(crate) fn stale_at(&self) -> Option<Instant> {
        Some(instant_after(self.received_at?, self.settings.max_stale?))
    }

    /// The set was discarded.
    pub(crate) fn set_discarded(&mut self) {
        self.received_at = None;
    }

    fn earliest(&self) -> Instant {
        self.started_at.map_or(self.due, |started_at| instant_after(started_at, self.settings.interval_min))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule() -> (ResolveSchedule, Instant) {
        let now = Instant::now();
        let mut schedule = ResolveSchedule::new(ResolveSettings::default(), now);
        assert_eq!(schedule.due(), now);
        schedule.started(now);
        (schedule, now)
    }

    /// BA-35.
    #[test]
    fn ttl_is_kept_within_its_bounds() {
        for (ttl, expected) in [(Some(60), 60), (Some(0), 5), (Some(1), 5), (Some(86_400), 300), (None, 30)] {
            let (mut schedule, now) = schedule();
            schedule.succeeded(now, ttl.map(Duration::from_secs), 0.5);
            assert_eq!(schedule.due(), now + Duration::from_secs(expected), "{ttl:?}");
        }
    }

    /// BA-26.
    #[test]
    fn intervals_have_jitter_and_delays_double() {
        let (mut schedule, now) = schedule();
        for (random, seconds) in [(0.0, 48), (0.5, 60), (1.0, 72)] {
            schedule.succeeded(now, Some(60 * SECOND), random);
            assert_eq!(schedule.due(), now + seconds * SECOND);
        }
        let delays: Vec<u64> = (0..8)
            .map(|_| {
                schedule.failed(now, 0.5);
                schedule.due().duration_since(now).as_secs()
            })
            .collect();
        assert_eq!(delays, [5, 10, 20, 40, 80, 160, 300, 300]);
        schedule.failed(now, 1.0);
        assert_eq!(schedule.due(), now + 360 * SECOND);
    }

    /// BA-25.
    #[test]
    fn answer_resets_the_delay() {
        let (mut schedule, now) = schedule();
        (0..8).for_each(|_| schedule.failed(now, 0.5));
        schedule.succeeded(now, None, 0.5);
        schedule.failed(now, 0.5);
        assert_eq!(schedule.due(), now + 5 * SECOND);
    }

    /// BA-27.
    #[test]
    fn early_requests_cause_one_lookup() {
        let (mut schedule, now) = schedule();
        schedule.succeeded(now, None, 0.5);
        for millis in 0..1000 {
            schedule.request(now + Duration::from_millis(millis), ResolveTrigger::Hint);
            assert_eq!(schedule.due(), now + 5 * SECOND);
        }
        schedule.request(now + 7 * SECOND, ResolveTrigger::Now);
        assert_eq!(schedule.due(), now + 5 * SECOND, "already due");
    }

    /// BA-27.
    #[test]
    fn hint_keeps_the_delay_and_request_ends_it() {
        let (mut schedule, now) = schedule();
        (0..4).for_each(|_| schedule.failed(now, 0.5));
        schedule.request(now + SECOND, ResolveTrigger::Hint);
        assert_eq!(schedule.due(), now + 40 * SECOND);
        schedule.request(now + SECOND, ResolveTrigger::Now);
        assert_eq!(schedule.due(), now + 5 * SECOND, "`interval_min` holds");
    }

    #[test]
    fn set_becomes_stale_after_max_stale() {
        let (mut schedule, now) = schedule();
        schedule.succeeded(now, None, 0.5);
        assert_eq!(schedule.stale_at(), None);
        schedule.settings.max_stale = Some(60 * SECOND);
        assert_eq!(schedule.stale_at(), Some(now + 60 * SECOND));
        schedule.failed(now + 30 * SECOND, 0.5);
        assert_eq!(schedule.stale_at(), Some(now + 60 * SECOND), "a failure does not refresh it");
    }
}
