//! Limits how many handlers run and how many start per second, over all shards.
//!
//! A mutex suffices, because shards acquire many permits at a time. A refused shard waits in a queue. A shard that
//! acquires later leaves one permit for each waiting shard ahead of it, so no shard starves.

use std::collections::VecDeque;
use std::time::Duration;

use super::sync::{Mutex, lock};
use crate::monotonic_time::MonotonicTime;

#[derive(Debug)]
pub(crate) struct Limiter(Mutex<LimiterState>);

#[derive(Debug)]
struct LimiterState {
    limit: usize,
    in_use: usize,
    bucket: Option<TokenBucket>,
    /// Refused shards, the oldest first.
    waiting: VecDeque<usize>,
}

/// The number of calls a shard may start now, and when to retry if a refill of the token bucket, and no notification,
/// brings more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Permits {
    pub(crate) count: usize,
    pub(crate) retry_at: Option<MonotonicTime>,
}

impl Limiter {
    pub(crate) fn new(limit: usize, rate: Option<f64>) -> Self {
        let bucket = rate.map(|rate| TokenBucket::new(rate, MonotonicTime::default()));
        Self(Mutex::new(LimiterState { limit, in_use: 0, bucket, waiting: VecDeque::new() }))
    }

    /// Acquires up to `requested` permits. With no permit, the shard is queued.
    pub(crate) fn acquire(&self, shard: usize, requested: usize, now: MonotonicTime) -> Permits {
        let mut state = lock(&self.0);
        let ahead = state.waiting.iter().take_while(|other| **other != shard).count();
        let free = state.limit.saturating_sub(state.in_use).saturating_sub(ahead);
        let mut permits = Permits { count: requested.min(free), retry_at: None };
        if let Some(bucket) = &mut state.bucket {
            permits = bucket.acquire(permits.count, ahead, now);
        }
        state.in_use += permits.count;
        if permits.count > 0 {
            state.waiting.retain(|other| *other != shard);
        } else if !state.waiting.contains(&shard) {
            state.waiting.push_back(shard);
        }
        permits
    }

    /// Releases permits and notifies waiting shards through `wake`.
    pub(crate) fn release(&self, count: usize, wake: impl FnMut(usize)) {
        let mut state = lock(&self.0);
        state.in_use -= count;
        state.wake(count, wake);
    }

    /// Releases permits that were acquired and not used, and returns their tokens to the bucket.
    pub(crate) fn release_unused(&self, count: usize, wake: impl FnMut(usize)) {
        let mut state = lock(&self.0);
        // The permits may date from an earlier rate; a pause must stay a pause.
        if let Some(bucket) = state.bucket.as_mut().filter(|bucket| bucket.per_second > 0.0) {
            bucket.tokens += count as f64;
        }
        state.in_use -= count;
        state.wake(count, wake);
    }

    /// Removes the shard from the queue.
    pub(crate) fn cancel_wait(&self, shard: usize, wake: impl FnMut(usize)) {
        let mut state = lock(&self.0);
        state.waiting.retain(|other| *other != shard);
        state.wake(usize::MAX, wake);
    }

    pub(crate) fn set_limit(&self, limit: usize, wake: impl FnMut(usize)) {
        let mut state = lock(&self.0);
        state.limit = limit;
        state.wake(usize::MAX, wake);
    }

    /// Sets the starts per second: 0 pauses, `None` removes the limit.
    pub(crate) fn set_rate(&self, rate: Option<f64>, now: MonotonicTime, wake: impl FnMut(usize)) {
        let mut state = lock(&self.0);
        let before = state.bucket.take();
        state.bucket = rate.map(|rate| TokenBucket::new(rate, now).with_tokens_of(before));
        state.wake(usize::MAX, wake);
    }

    /// Whether nothing can start until the limits change.
    pub(crate) fn is_blocked(&self) -> bool {
        let state = lock(&self.0);
        state.limit == 0 || state.bucket.as_ref().is_some_and(|bucket| bucket.per_second <= 0.0)
    }

    pub(crate) fn in_use(&self) -> usize {
        lock(&self.0).in_use
    }
}

impl LimiterState {
    fn wake(&self, count: usize, wake: impl FnMut(usize)) {
        self.waiting.iter().copied().take(count).for_each(wake);
    }
}

/// A token bucket. It holds up to a tenth of a second's tokens, at least one.
#[derive(Debug)]
struct TokenBucket {
    per_second: f64,
    tokens: f64,
    at: MonotonicTime,
}

impl TokenBucket {
    fn new(per_second: f64, at: MonotonicTime) -> Self {
        Self { per_second: per_second.max(0.0), tokens: 0.0, at }
    }

    /// Keeps the tokens of an earlier rate, up to the capacity of this rate. Otherwise a client that lowers the rate step
    /// by step would never let a call start. A pause keeps none.
    fn with_tokens_of(self, earlier: Option<Self>) -> Self {
        let Some(mut earlier) = earlier.filter(|_| self.per_second > 0.0) else { return self };
        earlier.refill(self.at);
        Self { tokens: earlier.tokens.min(self.capacity()), ..self }
    }

    fn capacity(&self) -> f64 {
        (self.per_second / 10.0).max(1.0)
    }

    fn acquire(&mut self, requested: usize, ahead: usize, now: MonotonicTime) -> Permits {
        self.refill(now);
        let count = requested.min((self.tokens.max(0.0) as usize).saturating_sub(ahead));
        self.tokens -= count as f64;
        let missing = (ahead + 1) as f64 - self.tokens;
        let wait = missing.max(0.0) / self.per_second;
        let is_short = count < requested && wait.is_finite();
        Permits {
            count,
            retry_at: is_short.then(|| now.after(Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX))),
        }
    }

    fn refill(&mut self, now: MonotonicTime) {
        let come = now.since(self.at).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + come).min(self.capacity().max(self.tokens));
        self.at = self.at.max(now);
    }
}
