//! How often something may be started again, and how long to wait before it is. Pure: time and chance are arguments.

use std::time::{Duration, Instant};

/// So many restarts at once, refilled evenly over a time: a token bucket.
///
/// `Budget::new(5, 60 s)` allows five restarts in a row, then one every 12 s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    restarts: u32,
    per: Duration,
}

impl Budget {
    /// `restarts` at once, and as many again in every `per`. Zero restarts: none ever.
    pub fn new(restarts: u32, per: Duration) -> Self {
        /// Longer than anything runs, and short enough to be added to an instant.
        const EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        Self { restarts, per: per.min(EVER) }
    }

    /// Any number of restarts: the back-off alone says how often.
    pub fn unlimited() -> Self {
        Self::new(u32::MAX, Duration::ZERO)
    }

    /// A full bucket.
    pub(crate) fn bucket(self) -> Bucket {
        Bucket { budget: self, full_at: None }
    }
}

impl Default for Budget {
    /// Five restarts, refilled over a minute.
    fn default() -> Self {
        Self::new(5, Duration::from_secs(60))
    }
}

/// A budget in use. It keeps one instant: when the bucket would be full again if nothing more were taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    budget: Budget,
    full_at: Option<Instant>,
}

impl Bucket {
    /// Takes a restart if there is one; else says how long until there is.
    pub(crate) fn try_take(&mut self, now: Instant) -> Result<(), Duration> {
        let Some((full_at, wait)) = self.after_one_more(now) else { return Err(Duration::MAX) };
        if wait.is_zero() {
            self.full_at = Some(full_at);
            return Ok(());
        }
        Err(wait)
    }

    /// Takes a restart in any case, and says when it may happen; `None` if never.
    pub(crate) fn reserve(&mut self, now: Instant) -> Option<Duration> {
        let (full_at, wait) = self.after_one_more(now)?;
        self.full_at = Some(full_at);
        Some(wait)
    }

    fn after_one_more(&self, now: Instant) -> Option<(Instant, Duration)> {
        let each = self.budget.per.checked_div(self.budget.restarts)?;
        let full_at = self.full_at.map_or(now, |at| at.max(now)).checked_add(each)?;
        // Rounding of `each` must not let one more through than the budget says, nor one fewer.
        let room = each * self.budget.restarts;
        Some((full_at, full_at.duration_since(now).saturating_sub(room)))
    }
}

/// How long to wait before the next restart: doubled each time, and spread by chance so that a crowd that fell together
/// does not rise together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    recovered: Duration,
}

impl Backoff {
    /// About `first` before the first restart, doubled up to about `max`. A child that then lives for `max` begins
    /// again at `first`.
    pub fn new(first: Duration, max: Duration) -> Self {
        let max = max.max(first);
        Self { first, max, recovered: max }
    }

    /// With this as the time that a child has to live in order to begin again at `first`.
    #[must_use]
    pub fn recovered_after(self, recovered: Duration) -> Self {
        Self { recovered, ..self }
    }

    /// No wait at all.
    pub fn none() -> Self {
        Self::new(Duration::ZERO, Duration::ZERO)
    }

    /// The wait before restart number `attempt` (from 0), between a half and the whole of its nominal length as `chance`
    /// goes from 0 to 1.
    pub(crate) fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let doubled = self.first.saturating_mul(1u32.checked_shl(attempt).unwrap_or(u32::MAX));
        doubled.min(self.max).mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }

    /// Whether a child that lived so long has recovered.
    pub(crate) fn is_recovered(&self, lived: Duration) -> bool {
        lived >= self.recovered
    }
}

impl Default for Backoff {
    /// From 100 ms to 30 s.
    fn default() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(30))
    }
}

/// What a scope does when its own restart budget is used up.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Exhausted {
    /// Further restarts wait for their turn: the budget is a speed.
    #[default]
    Wait,
    /// The child is given up.
    GiveUp,
    /// The child is given up, and the scope with all below it is told to stop.
    StopScope,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn sv_25_a_bucket_gives_all_at_once_and_then_one_at_a_time() {
        let began = Instant::now();
        let mut bucket = Budget::new(3, 9 * SECOND).bucket();
        assert_eq!([(); 3].map(|()| bucket.try_take(began)), [Ok(()); 3]);
        assert_eq!(bucket.try_take(began), Err(3 * SECOND));
        let edge = began + 3 * SECOND;
        assert_eq!(bucket.try_take(edge.checked_sub(Duration::from_nanos(1)).unwrap()), Err(Duration::from_nanos(1)));
        assert_eq!(bucket.try_take(edge), Ok(()), "at the very edge");
        assert_eq!(bucket.try_take(edge), Err(3 * SECOND), "what was denied took nothing");
    }

    #[test]
    fn an_empty_budget_gives_nothing() {
        let mut bucket = Budget::new(0, SECOND).bucket();
        assert_eq!(bucket.try_take(Instant::now()), Err(Duration::MAX));
        assert_eq!(bucket.reserve(Instant::now()), None);
    }

    #[test]
    fn a_budget_for_ever_is_used_up_once() {
        let began = Instant::now();
        let mut bucket = Budget::new(2, Duration::MAX).bucket();
        assert_eq!([(); 2].map(|()| bucket.try_take(began)), [Ok(()); 2]);
        assert!(bucket.try_take(began + 1_000_000 * SECOND).is_err());
        let mut waiting = Budget::new(1, Duration::MAX).bucket();
        assert_eq!(waiting.reserve(began), Some(Duration::ZERO));
        assert!((0..10).all(|_| waiting.reserve(began) != Some(Duration::ZERO)), "and nobody waits for an end of time");
    }

    #[test]
    fn a_back_off_doubles_to_its_maximum() {
        let backoff = Backoff::new(SECOND, 10 * SECOND);
        let delays = [0, 1, 2, 3, 4, 40, u32::MAX].map(|attempt| backoff.delay(attempt, 1.0).as_secs());
        assert_eq!(delays, [1, 2, 4, 8, 10, 10, 10]);
        assert_eq!(backoff.delay(1, 0.0), SECOND);
    }

    proptest! {
        #[test]
        fn sv_25_no_window_holds_more_than_twice_the_budget(
            restarts in 1u32..20,
            gaps_ms in prop::collection::vec(0u64..500, 1..300),
        ) {
            let per = 2 * SECOND;
            let mut bucket = Budget::new(restarts, per).bucket();
            let (mut now, mut taken) = (Instant::now(), Vec::new());
            for gap in gaps_ms {
                now += Duration::from_millis(gap);
                if bucket.try_take(now).is_ok() {
                    taken.push(now);
                }
            }
            for (index, &first) in taken.iter().enumerate() {
                let within = taken[index..].iter().take_while(|&&at| at < first + per).count();
                prop_assert!(within <= 2 * restarts as usize);
            }
        }

        #[test]
        fn reserved_turns_never_come_faster_than_the_budget(restarts in 1u32..50, crowd in 1u32..500) {
            let (now, mut bucket) = (Instant::now(), Budget::new(restarts, SECOND).bucket());
            let turns: Vec<_> = (0..crowd).filter_map(|_| bucket.reserve(now)).collect();
            prop_assert!(turns.is_sorted());
            let last = turns.last().copied().unwrap_or_default();
            prop_assert!(last + SECOND / 1000 >= SECOND * crowd.saturating_sub(restarts) / restarts);
        }
    }
}
