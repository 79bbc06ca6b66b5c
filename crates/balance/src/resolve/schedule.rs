//! When to look again. Pure: times and random numbers come from outside.

use std::time::{Duration, Instant};

use crate::backoff::{Backoff, jittered};
use crate::moment::after;

/// When to look again, and how long an answer may be used.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolveRules {
    /// Never more often than this, whatever the answer's time to live is and however often somebody
    /// [asks](super::ResolveNow).
    pub interval_min: Duration,
    /// At least so often, however long the answer lives.
    pub interval_max: Duration,
    /// If the answer does not say how long it lives.
    pub interval: Duration,
    /// From 0 to 1: each interval is randomly shorter or longer by up to this share, so that clients that were started
    /// together do not ask together.
    pub jitter: f64,
    /// One look takes no longer than this.
    pub timeout: Duration,
    /// Pauses after failures in a row; never shorter than `interval_min`.
    pub backoff: Backoff,
    /// For so long, a set may be used after the last answer; `None`: for ever.
    pub max_stale: Option<Duration>,
}

impl Default for ResolveRules {
    fn default() -> Self {
        Self {
            interval_min: Duration::from_secs(5),
            interval_max: Duration::from_secs(300),
            interval: Duration::from_secs(30),
            jitter: 0.2,
            timeout: Duration::from_secs(10),
            backoff: Backoff {
                first: Duration::from_secs(5),
                factor: 2.0,
                most: Duration::from_secs(300),
                jitter: 0.2,
            },
            max_stale: None,
        }
    }
}

/// How a look is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    /// Whatever happened to the last one.
    Now,
    /// Unless the last one failed: its pause stands.
    Hint,
}

/// When the next look is due.
#[derive(Debug)]
pub(crate) struct Schedule {
    rules: ResolveRules,
    /// Of the latest look.
    began: Option<Instant>,
    due: Instant,
    failures: u32,
    /// When the set in use was answered.
    answered: Option<Instant>,
}

impl Schedule {
    /// The first look is due at once.
    pub(crate) fn new(rules: ResolveRules, now: Instant) -> Self {
        Self { rules, began: None, due: now, failures: 0, answered: None }
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    pub(crate) fn begin(&mut self, now: Instant) {
        self.began = Some(now);
    }

    /// Somebody wants a look soon: as soon as it may be. Once asked, asking again changes nothing.
    pub(crate) fn ask(&mut self, now: Instant, asking: Asking) {
        if asking == Asking::Now || self.failures == 0 {
            self.due = self.due.min(self.earliest().max(now));
        }
    }

    pub(crate) fn succeed(&mut self, now: Instant, ttl: Option<Duration>, random: f64) {
        let lives = ttl.unwrap_or(self.rules.interval).min(self.rules.interval_max).max(self.rules.interval_min);
        (self.failures, self.answered) = (0, Some(now));
        self.due = after(now, jittered(lives, self.rules.jitter, random)).max(self.earliest());
    }

    pub(crate) fn fail(&mut self, now: Instant, random: f64) {
        self.failures = self.failures.saturating_add(1);
        self.due = after(now, self.rules.backoff.pause(self.failures, random)).max(self.earliest());
    }

    /// When the set in use is too old, if it may become so.
    pub(crate) fn stale_at(&self) -> Option<Instant> {
        Some(after(self.answered?, self.rules.max_stale?))
    }

    /// The set was given up.
    pub(crate) fn forget(&mut self) {
        self.answered = None;
    }

    fn earliest(&self) -> Instant {
        self.began.map_or(self.due, |began| after(began, self.rules.interval_min))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule() -> (Schedule, Instant) {
        let now = Instant::now();
        let mut schedule = Schedule::new(ResolveRules::default(), now);
        assert_eq!(schedule.due(), now);
        schedule.begin(now);
        (schedule, now)
    }

    #[test]
    fn t35_the_time_to_live_is_honoured_between_a_floor_and_a_ceiling() {
        for (ttl, expected) in [(Some(60), 60), (Some(0), 5), (Some(1), 5), (Some(86_400), 300), (None, 30)] {
            let (mut schedule, now) = schedule();
            schedule.succeed(now, ttl.map(Duration::from_secs), 0.5);
            assert_eq!(schedule.due(), now + Duration::from_secs(expected), "{ttl:?}");
        }
    }

    #[test]
    fn t26_intervals_jitter_and_pauses_double_up_to_a_limit() {
        let (mut schedule, now) = schedule();
        for (random, seconds) in [(0.0, 48), (0.5, 60), (1.0, 72)] {
            schedule.succeed(now, Some(60 * SECOND), random);
            assert_eq!(schedule.due(), now + seconds * SECOND);
        }
        let pauses: Vec<u64> = (0..8)
            .map(|_| {
                schedule.fail(now, 0.5);
                schedule.due().duration_since(now).as_secs()
            })
            .collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
        schedule.fail(now, 1.0);
        assert_eq!(schedule.due(), now + 360 * SECOND);
    }

    #[test]
    fn t25_an_answer_begins_the_pauses_anew() {
        let (mut schedule, now) = schedule();
        (0..8).for_each(|_| schedule.fail(now, 0.5));
        schedule.succeed(now, None, 0.5);
        schedule.fail(now, 0.5);
        assert_eq!(schedule.due(), now + 5 * SECOND);
    }

    #[test]
    fn t27_who_asks_too_soon_is_served_once_as_soon_as_it_may_be() {
        let (mut schedule, now) = schedule();
        schedule.succeed(now, None, 0.5);
        for millis in 0..1000 {
            schedule.ask(now + Duration::from_millis(millis), Asking::Hint);
            assert_eq!(schedule.due(), now + 5 * SECOND);
        }
        schedule.ask(now + 7 * SECOND, Asking::Now);
        assert_eq!(schedule.due(), now + 5 * SECOND, "already due");
    }

    #[test]
    fn t27_a_hint_does_not_cut_the_pause_after_a_failure_short_and_who_asks_does() {
        let (mut schedule, now) = schedule();
        (0..4).for_each(|_| schedule.fail(now, 0.5));
        schedule.ask(now + SECOND, Asking::Hint);
        assert_eq!(schedule.due(), now + 40 * SECOND);
        schedule.ask(now + SECOND, Asking::Now);
        assert_eq!(schedule.due(), now + 5 * SECOND, "and not before the least interval has passed");
    }

    #[test]
    fn a_set_becomes_stale_only_if_it_may() {
        let (mut schedule, now) = schedule();
        schedule.succeed(now, None, 0.5);
        assert_eq!(schedule.stale_at(), None);
        schedule.rules.max_stale = Some(60 * SECOND);
        assert_eq!(schedule.stale_at(), Some(now + 60 * SECOND));
        schedule.fail(now + 30 * SECOND, 0.5);
        assert_eq!(schedule.stale_at(), Some(now + 60 * SECOND), "a failure makes it no fresher");
    }
}
