//! How much may run: permits for what is under way, and a rate of starts; one gate for all shards.
//!
//! A mutex suffices: shards ask for many permits at a time. Who was refused waits in a queue, and whoever comes later
//! leaves one permit to each that is ahead, so no shard starves another.

use std::collections::VecDeque;
use std::time::Duration;

use super::sync::{Mutex, lock};
use crate::moment::Moment;

#[derive(Debug)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug)]
struct State {
    limit: usize,
    used: usize,
    bucket: Option<Bucket>,
    /// Shards that were refused, the oldest first.
    waiting: VecDeque<usize>,
}

/// What a shard may start now, and when to ask again if that is not all it wanted and nobody will wake it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Grant {
    pub(crate) count: usize,
    pub(crate) again_at: Option<Moment>,
}

impl Gate {
    pub(crate) fn new(limit: usize, rate: Option<f64>) -> Self {
        let bucket = rate.map(|rate| Bucket::new(rate, Moment::default()));
        Self(Mutex::new(State { limit, used: 0, bucket, waiting: VecDeque::new() }))
    }

    /// Up to `want` permits, at least one of them if the shard is not to wait.
    pub(crate) fn take(&self, shard: usize, want: usize, now: Moment) -> Grant {
        let mut state = lock(&self.0);
        let ahead = state.waiting.iter().take_while(|other| **other != shard).count();
        let free = state.limit.saturating_sub(state.used).saturating_sub(ahead);
        let mut grant = Grant { count: want.min(free), again_at: None };
        if let Some(bucket) = &mut state.bucket {
            grant = bucket.take(grant.count, ahead, now);
        }
        state.used += grant.count;
        if grant.count > 0 {
            state.waiting.retain(|other| *other != shard);
        } else if !state.waiting.contains(&shard) {
            state.waiting.push_back(shard);
        }
        grant
    }

    /// Gives permits back. Wakes, through `wake`, those who wait for them.
    pub(crate) fn give(&self, count: usize, wake: impl FnMut(usize)) {
        let mut state = lock(&self.0);
        state.used -= count;
        state.wake(count, wake);
    }

    /// Permits that were taken and not needed, with their part of the rate.
    pub(crate) fn give_unused(&self, count: usize, wake: impl FnMut(usize)) {
        let mut state = lock(&self.0);
        // They may be of an earlier rate: then a pause stays one.
        if let Some(bucket) = state.bucket.as_mut().filter(|bucket| bucket.per_second > 0.0) {
            bucket.tokens += count as f64;
        }
        state.used -= count;
        state.wake(count, wake);
    }

    /// The shard wants nothing any more.
    pub(crate) fn leave(&self, shard: usize, wake: impl FnMut(usize)) {
        let mut state = lock(&self.0);
        state.waiting.retain(|other| *other != shard);
        state.wake(usize::MAX, wake);
    }

    pub(crate) fn set_limit(&self, limit: usize, wake: impl FnMut(usize)) {
        let mut state = lock(&self.0);
        state.limit = limit;
        state.wake(usize::MAX, wake);
    }

    /// Starts per second from now on: none at 0, any number with `None`.
    pub(crate) fn set_rate(&self, rate: Option<f64>, now: Moment, wake: impl FnMut(usize)) {
        let mut state = lock(&self.0);
        let before = state.bucket.take();
        state.bucket = rate.map(|rate| Bucket::new(rate, now).with_tokens_of(before));
        state.wake(usize::MAX, wake);
    }

    /// Nothing starts until somebody changes that.
    pub(crate) fn is_shut(&self) -> bool {
        let state = lock(&self.0);
        state.limit == 0 || state.bucket.as_ref().is_some_and(|bucket| bucket.per_second <= 0.0)
    }

    pub(crate) fn used(&self) -> usize {
        lock(&self.0).used
    }
}

impl State {
    fn wake(&self, most: usize, wake: impl FnMut(usize)) {
        self.waiting.iter().copied().take(most).for_each(wake);
    }
}

/// A token bucket: tokens come at the rate, and a tenth of a second's worth (at least one) may pile up.
#[derive(Debug)]
struct Bucket {
    per_second: f64,
    tokens: f64,
    at: Moment,
}

impl Bucket {
    fn new(per_second: f64, at: Moment) -> Self {
        Self { per_second: per_second.max(0.0), tokens: 0.0, at }
    }

    /// What has come at an earlier rate stays, as far as it may pile up at this one: else who changes the rate often, to lower
    /// it by and by, would let nothing start at all. A pause has none.
    fn with_tokens_of(self, earlier: Option<Self>) -> Self {
        let Some(mut earlier) = earlier.filter(|_| self.per_second > 0.0) else { return self };
        earlier.refill(self.at);
        Self { tokens: earlier.tokens.min(self.most()), ..self }
    }

    fn most(&self) -> f64 {
        (self.per_second / 10.0).max(1.0)
    }

    fn take(&mut self, want: usize, ahead: usize, now: Moment) -> Grant {
        self.refill(now);
        let count = want.min((self.tokens.max(0.0) as usize).saturating_sub(ahead));
        self.tokens -= count as f64;
        let missing = (ahead + 1) as f64 - self.tokens;
        let wait = missing.max(0.0) / self.per_second;
        let is_short = count < want && wait.is_finite();
        Grant {
            count,
            again_at: is_short.then(|| now.after(Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX))),
        }
    }

    fn refill(&mut self, now: Moment) {
        let come = now.since(self.at).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + come).min(self.most().max(self.tokens));
        self.at = self.at.max(now);
    }
}
