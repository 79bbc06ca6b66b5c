//! What went wrong with a record, and what is done about it.

use std::any::Any;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Why a record is not done.
///
/// As an error, it leaves a function that returns `Box<dyn Error + Send + Sync>` by `?`, and is still what it says. Within an
/// error of another type (such as `anyhow::Error`) it is not seen: the record is tried again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    cause: Cause,
    reason: Cow<'static, str>,
    permanent: bool,
    retry_after: Option<Duration>,
}

/// Who said that a record is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The handler did.
    Handler,
    /// The handler panicked.
    Panic,
    /// The completion was dropped without being finished.
    Dropped,
    /// It was not finished by its deadline.
    Overdue,
    /// It was ended with its lane, or with the subscription.
    Abandoned,
    /// The source could not decode it.
    Undecodable,
}

impl Failure {
    /// A failure that may go away: the record is tried again, as [`Retry`] says.
    #[must_use]
    pub fn new(reason: impl fmt::Display) -> Self {
        Self::of(Cause::Handler, reason.to_string())
    }

    /// A failure that will not go away: the record is not tried again.
    #[must_use]
    pub fn permanent(reason: impl fmt::Display) -> Self {
        Self { permanent: true, ..Self::new(reason) }
    }

    /// Try again after this wait instead of the back-off's: what a server asked for, say.
    #[must_use]
    pub fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// What a handler returned. A failure is what it says; any other error may go away.
    pub(crate) fn returned(error: impl fmt::Display + 'static) -> Self {
        let any: &dyn Any = &error;
        let shared = || any.downcast_ref::<Box<dyn Error + Send + Sync>>()?.downcast_ref::<Self>();
        let boxed = || any.downcast_ref::<Box<dyn Error>>()?.downcast_ref::<Self>();
        let failure = any.downcast_ref::<Self>().or_else(shared).or_else(boxed).cloned();
        failure.unwrap_or_else(|| Self::new(error))
    }

    pub(crate) fn of(cause: Cause, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { cause, reason: reason.into(), permanent: false, retry_after: None }
    }

    pub(crate) fn undecodable(reason: &str) -> Self {
        Self { permanent: true, ..Self::of(Cause::Undecodable, reason.to_owned()) }
    }

    /// Who said so.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// What was said.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// It was said that trying again is in vain.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    pub(crate) fn wait(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.cause {
            Cause::Handler => return f.write_str(&self.reason),
            Cause::Panic => "the handler panicked",
            Cause::Dropped => "not finished",
            Cause::Overdue => "overdue",
            Cause::Abandoned => "abandoned",
            Cause::Undecodable => "not decodable",
        };
        write!(f, "{what}: {}", self.reason)
    }
}

impl Error for Failure {}

/// How often and when a failed record is tried again. Meanwhile its key waits, and no other.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Retry {
    /// Attempts in all, the first one included; `None` is without end. 10 by default, and 65,535 at most: more is as many.
    pub attempts: Option<u32>,
    /// Age (since it was taken from the source) beyond which a record is not tried again, which is known as soon as the
    /// wait for the next attempt would end later; none by default.
    pub age_max: Option<Duration>,
    /// The wait after the first attempt; it doubles from attempt to attempt. 100 ms by default.
    pub first_wait: Duration,
    /// The longest wait. 30 s by default.
    pub longest_wait: Duration,
    /// Up to this part of each wait is taken off at random, so that keys that failed together do not return together.
    /// 0.2 by default.
    pub jitter: f64,
}

/// What a record counts up to.
const ATTEMPTS_MAX: u32 = u16::MAX as u32;

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: Some(10),
            age_max: None,
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(30),
            jitter: 0.2,
        }
    }
}

impl Retry {
    /// No second attempt.
    #[must_use]
    pub fn never() -> Self {
        Self { attempts: Some(1), ..Self::default() }
    }

    /// The wait after so many attempts; `random` is in `0.0..1.0`.
    pub(crate) fn wait(&self, attempts: u32, random: f64) -> Duration {
        let doubled = self.first_wait.saturating_mul(1 << attempts.saturating_sub(1).min(30));
        let wait = doubled.min(self.longest_wait);
        // What is no number takes nothing off.
        let jitter = if self.jitter > 0.0 { self.jitter.min(1.0) } else { 0.0 };
        wait.mul_f64(1.0 - jitter * random)
    }

    /// After so many attempts, and if the next one were made at that age?
    pub(crate) fn is_exhausted(&self, attempts: u32, age: Duration) -> bool {
        self.attempts.is_some_and(|most| attempts >= most.min(ATTEMPTS_MAX))
            || self.age_max.is_some_and(|most| age >= most)
    }
}

/// What becomes of a record whose attempts are used up, or that cannot succeed. None of these commits it silently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Exhausted {
    /// The subscription drains, commits what is done, and ends with an error that names the record. The default: nobody
    /// said that anything else is right.
    #[default]
    Stop,
    /// Its lane starts nothing more, and is not committed beyond the record. Other lanes go on.
    HaltLane,
    /// It and its key's later records wait until somebody [unparks](crate::Handle::unpark) them. Other keys go on, as long
    /// as the bounds of the lane allow.
    Park,
    /// It is given to the [`DeadLetter`](crate::DeadLetter) and counts as done when that has taken it. While that fails,
    /// it is tried again with the same back-off, without end, and the key waits.
    DeadLetter,
    /// It counts as done, and is logged and counted.
    Skip,
}

/// What becomes of a record that is not finished by its deadline.
///
/// A handler that still runs then is aborted first, and if it does not end (it blocks its thread), its key goes on
/// waiting for it: two handlers of one key never overlap. The choice is about completions that were moved away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Overdue {
    /// It counts as a failed attempt. A finish that comes too late is ignored. The default.
    #[default]
    Retry,
    /// It gets as much time again, and is counted and logged.
    Extend,
    /// It goes straight to the [`DeadLetter`](crate::DeadLetter).
    DeadLetter,
    /// Its lane starts nothing more, and is not committed beyond it.
    HaltLane,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_what_it_says_in_a_box_too() {
        let permanent = || Failure::permanent("no such thing");
        let question_mark = || -> Result<(), Box<dyn Error + Send + Sync>> { Err(permanent())? };
        let boxed: Box<dyn Error> = permanent().into();
        for returned in [Failure::returned(permanent()), Failure::returned(boxed)] {
            assert_eq!(returned, permanent());
        }
        assert_eq!(question_mark().map_err(Failure::returned), Err(permanent()));
        let other: Box<dyn Error + Send + Sync> = "it may go away".into();
        assert_eq!(Failure::returned(other), Failure::new("it may go away"));
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let retry = Retry { jitter: 0.5, ..Retry::default() };
        let waits: Vec<u64> = [1, 2, 3, 9, 10, 4_000_000_000]
            .into_iter()
            .map(|attempts| retry.wait(attempts, 0.0).as_millis() as u64)
            .collect();
        assert_eq!(waits, [100, 200, 400, 25_600, 30_000, 30_000]);
        assert_eq!(retry.wait(1, 0.5).as_millis(), 75);
        for (jitter, expected) in [(f64::NAN, 100), (-1.0, 100), (2.0, 50), (f64::INFINITY, 50)] {
            assert_eq!(Retry { jitter, ..retry }.wait(1, 0.5).as_millis(), expected, "{jitter}");
        }
    }

    #[test]
    fn attempts_and_age_both_end_it() {
        let retry = Retry { attempts: Some(3), age_max: Some(Duration::from_secs(9)), ..Retry::default() };
        assert!(!retry.is_exhausted(2, Duration::from_secs(8)));
        assert!(retry.is_exhausted(3, Duration::ZERO) && retry.is_exhausted(1, Duration::from_secs(9)));
        // A record's count goes no further: waiting for a higher one would last for ever.
        let many = Retry { attempts: Some(100_000), ..Retry::default() };
        assert!(!many.is_exhausted(65_534, Duration::ZERO) && many.is_exhausted(65_535, Duration::ZERO));
    }
}
