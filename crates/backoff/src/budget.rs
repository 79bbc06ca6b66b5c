//! A limit on the number of attempts: a token bucket.

use std::time::{Duration, Instant};

use crate::time::DURATION_MAX;

/// Configuration of a [`TokenBucket`]: `burst` attempts at a time, refilled evenly over `period`.
///
/// `Budget::new(5, 60 s)` admits five attempts in a row, then one every 12 s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    burst: u32,
    period: Duration,
}

impl Budget {
    /// `burst` attempts at a time, and as many again in every `period`. A `burst` of zero admits no attempt.
    pub fn new(burst: u32, period: Duration) -> Self {
        Self { burst, period: period.min(DURATION_MAX) }
    }

    /// Admits every attempt.
    pub fn unlimited() -> Self {
        Self::new(u32::MAX, Duration::ZERO)
    }

    /// Returns a full bucket.
    pub fn bucket(self) -> TokenBucket {
        TokenBucket { budget: self, full_at: None }
    }
}

impl Default for Budget {
    /// Five attempts, refilled over a minute.
    fn default() -> Self {
        Self::new(5, Duration::from_secs(60))
    }
}

/// Token bucket of a [`Budget`]. Its whole state is one instant: when the bucket is full again if no token is taken.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    budget: Budget,
    full_at: Option<Instant>,
}

impl TokenBucket {
    /// Takes a token.
    ///
    /// # Errors
    ///
    /// The time until the next token, if the bucket is empty; [`Duration::MAX`] if it never gets one. No token is taken.
    pub fn try_take(&mut self, now: Instant) -> Result<(), Duration> {
        let Some((full_at, wait)) = self.after_one_more(now) else { return Err(Duration::MAX) };
        if wait.is_zero() {
            self.full_at = Some(full_at);
            return Ok(());
        }
        Err(wait)
    }

    /// Takes a token in advance, and returns how long the attempt must wait for it. `None` if the bucket never gets one.
    pub fn reserve(&mut self, now: Instant) -> Option<Duration> {
        let (full_at, wait) = self.after_one_more(now)?;
        self.full_at = Some(full_at);
        Some(wait)
    }

    /// When the bucket is full after one more token is taken, and how long that token must be waited for.
    fn after_one_more(&self, now: Instant) -> Option<(Instant, Duration)> {
        let per_token = self.budget.period.checked_div(self.budget.burst)?;
        let full_at = self.full_at.map_or(now, |at| at.max(now)).checked_add(per_token)?;
        // Not `period`: the division rounds down, and the bucket must hold exactly `burst` tokens.
        let capacity = per_token * self.budget.burst;
        Some((full_at, full_at.duration_since(now).saturating_sub(capacity)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// SV-25: the burst is admitted at one moment, then one attempt per refill.
    #[test]
    fn bucket_admits_a_burst_then_one_at_a_time() {
        let start = Instant::now();
        let mut bucket = Budget::new(3, 9 * SECOND).bucket();
        assert_eq!([(); 3].map(|()| bucket.try_take(start)), [Ok(()); 3]);
        assert_eq!(bucket.try_take(start), Err(3 * SECOND));
        let refill = start + 3 * SECOND;
        let before = refill.checked_sub(Duration::from_nanos(1)).unwrap();
        assert_eq!(bucket.try_take(before), Err(Duration::from_nanos(1)));
        assert_eq!(bucket.try_take(refill), Ok(()), "at the moment of the refill");
        assert_eq!(bucket.try_take(refill), Err(3 * SECOND), "refused attempts took no token");
    }

    #[test]
    fn budget_of_zero_admits_nothing() {
        let mut bucket = Budget::new(0, SECOND).bucket();
        assert_eq!(bucket.try_take(Instant::now()), Err(Duration::MAX));
        assert_eq!(bucket.reserve(Instant::now()), None);
    }

    #[test]
    fn unlimited_budget_admits_everything() {
        let (mut bucket, now) = (Budget::unlimited().bucket(), Instant::now());
        assert!((0..10_000).all(|_| bucket.try_take(now).is_ok()));
    }

    #[test]
    fn endless_period_admits_one_burst() {
        let start = Instant::now();
        let mut bucket = Budget::new(2, Duration::MAX).bucket();
        assert_eq!([(); 2].map(|()| bucket.try_take(start)), [Ok(()); 2]);
        assert!(bucket.try_take(start + 1_000_000 * SECOND).is_err());
        let mut reserved = Budget::new(1, Duration::MAX).bucket();
        assert_eq!(reserved.reserve(start), Some(Duration::ZERO));
        assert!((0..10).all(|_| reserved.reserve(start) != Some(Duration::ZERO)));
    }

    proptest! {
        /// SV-25: no period admits more than twice the budget.
        #[test]
        fn no_period_admits_twice_the_budget(
            burst in 1u32..20,
            gaps_ms in prop::collection::vec(0u64..500, 1..300),
        ) {
            let period = 2 * SECOND;
            let mut bucket = Budget::new(burst, period).bucket();
            let (mut now, mut taken) = (Instant::now(), Vec::new());
            for gap in gaps_ms {
                now += Duration::from_millis(gap);
                if bucket.try_take(now).is_ok() {
                    taken.push(now);
                }
            }
            for (index, &first) in taken.iter().enumerate() {
                let within = taken[index..].iter().take_while(|&&at| at < first + period).count();
                prop_assert!(within <= 2 * burst as usize);
            }
        }

        #[test]
        fn reservations_are_no_faster_than_the_budget(burst in 1u32..50, attempts in 1u32..500) {
            let (now, mut bucket) = (Instant::now(), Budget::new(burst, SECOND).bucket());
            let waits: Vec<_> = (0..attempts).filter_map(|_| bucket.reserve(now)).collect();
            prop_assert!(waits.is_sorted());
            let last = waits.last().copied().unwrap_or_default();
            prop_assert!(last + SECOND / 1000 >= SECOND * attempts.saturating_sub(burst) / burst);
        }
    }
}
