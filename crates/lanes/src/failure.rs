//! Failures of records, and the policies for them.

use std::any::Any;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use tidegate_backoff::{Backoff, Jitter};

/// The failure of an attempt.
///
/// As an error, it passes through `?` in a function that returns `Box<dyn Error + Send + Sync>`. It is not recognised
/// inside an error of another type (such as `anyhow::Error`), which counts as retryable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordFailure {
    cause: FailureCause,
    reason: Cow<'static, str>,
    permanent: bool,
    keeps_batch: bool,
    retry_after: Option<Duration>,
}

/// The origin of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FailureCause {
    /// The handler returned an error.
    Handler,
    /// The handler panicked.
    Panic,
    /// The completion was dropped without being finished.
    Dropped,
    /// The deadline passed.
    Overdue,
    /// The execution was abandoned because its lane was revoked or the subscription stopped.
    Abandoned,
    /// The source could not decode the record.
    Undecodable,
}

impl RecordFailure {
    /// A retryable failure; see [`RecordRetryPolicy`].
    #[must_use]
    pub fn new(reason: impl fmt::Display) -> Self {
        Self::of(FailureCause::Handler, reason.to_string())
    }

    /// A permanent failure: the record is not retried.
    #[must_use]
    pub fn permanent(reason: impl fmt::Display) -> Self {
        Self { permanent: true, ..Self::new(reason) }
    }

    /// Replaces the wait of the back-off before the next attempt, for instance with a server's `Retry-After`.
    #[must_use]
    pub fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// States that no single record of the [`Batch`](crate::Batch) is the cause: the other side is down, slow or busy. The next
    /// attempt has the same records, and once the attempts are used up, all of them are exhausted. Without this, or if the
    /// failure is permanent, the records of a failed batch are retried one by one, so that processable records are processed.
    #[must_use]
    pub fn keep_batch(self) -> Self {
        Self { keeps_batch: true, ..self }
    }

    /// Converts the error of a handler. A `RecordFailure` keeps its properties; any other error is retryable.
    pub(crate) fn returned(error: impl fmt::Display + 'static) -> Self {
        let any: &dyn Any = &error;
        let shared = || any.downcast_ref::<Box<dyn Error + Send + Sync>>()?.downcast_ref::<Self>();
        let boxed = || any.downcast_ref::<Box<dyn Error>>()?.downcast_ref::<Self>();
        let failure = any.downcast_ref::<Self>().or_else(shared).or_else(boxed).cloned();
        failure.unwrap_or_else(|| Self::new(error))
    }

    pub(crate) fn of(cause: FailureCause, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { cause, reason: reason.into(), permanent: false, keeps_batch: false, retry_after: None }
    }

    pub(crate) fn undecodable(reason: &str) -> Self {
        Self { permanent: true, ..Self::of(FailureCause::Undecodable, reason.to_owned()) }
    }

    /// The origin of the failure.
    #[must_use]
    pub fn cause(&self) -> FailureCause {
        self.cause
    }

    /// The error text.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the record is not to be retried.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// Whether a failed batch is repeated as it is.
    pub(crate) fn keeps_batch(&self) -> bool {
        self.keeps_batch && !self.permanent
    }

    pub(crate) fn wait(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for RecordFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.cause {
            FailureCause::Handler => return f.write_str(&self.reason),
            FailureCause::Panic => "handler panicked",
            FailureCause::Dropped => "completion not finished",
            FailureCause::Overdue => "overdue",
            FailureCause::Abandoned => "abandoned",
            FailureCause::Undecodable => "cannot decode",
        };
        write!(f, "{what}: {}", self.reason)
    }
}

impl Error for RecordFailure {}

/// How often and when a failed record is retried. The key stays blocked between attempts; other keys continue.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RecordRetryPolicy {
    /// Attempts in total, including the first; `None` means no limit. Default: 10. Values above 65,535 count as 65,535.
    pub attempts_max: Option<u32>,
    /// Age, counted from when the record was taken from the source, beyond which it is not retried. The check uses the
    /// time at which the next attempt would start. Default: no limit.
    pub age_max: Option<Duration>,
    /// The wait after the first attempt; it doubles with each attempt. Default: 100 ms.
    pub wait_min: Duration,
    /// The longest wait. Default: 30 s.
    pub wait_max: Duration,
    /// The random part that is taken off each wait, 0 to 1, so that keys that failed together do not retry together.
    /// Default: 0.2.
    pub jitter: f64,
}

/// The largest attempt count that a queued record stores.
const ATTEMPTS_MAX: u32 = u16::MAX as u32;

impl Default for RecordRetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: Some(10),
            age_max: None,
            wait_min: Duration::from_millis(100),
            wait_max: Duration::from_secs(30),
            jitter: 0.2,
        }
    }
}

impl RecordRetryPolicy {
    /// No retries.
    #[must_use]
    pub fn never() -> Self {
        Self { attempts_max: Some(1), ..Self::default() }
    }

    /// The wait after this many attempts; `random` is in `0.0..1.0`.
    pub(crate) fn wait(&self, attempts: u32, random: f64) -> Duration {
        let jitter = Jitter::Below(self.jitter);
        let backoff = Backoff { jitter, ..Backoff::new(self.wait_min, self.wait_max) };
        backoff.delay(attempts.max(1), 1.0 - random)
    }

    /// Whether no further attempt is allowed after `attempts`, if the next attempt would start at `age`.
    pub(crate) fn is_exhausted(&self, attempts: u32, age: Duration) -> bool {
        self.attempts_max.is_some_and(|most| attempts >= most.min(ATTEMPTS_MAX))
            || self.age_max.is_some_and(|most| age >= most)
    }
}

/// The action for a record that has no attempts left or failed permanently. None of the actions commits it silently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ExhaustedAction {
    /// The subscription drains, commits finished records, and ends with an error that names the record. The default,
    /// because it assumes nothing.
    #[default]
    Stop,
    /// The lane starts no more records and is not committed beyond this record. Other lanes continue.
    HaltLane,
    /// The record and later records of its key wait until [`unpark`](crate::SubscriptionHandle::unpark). Other keys
    /// continue, within the bounds of the lane.
    Park,
    /// The [`DeadLetterQueue`](crate::DeadLetterQueue) receives the record, which is finished once the queue has accepted
    /// it. A refused record is sent again with the same back-off, without limit; the key stays blocked. If the queue refuses
    /// it for good ([`RecordFailure::permanent`]), the key is parked.
    DeadLetter,
    /// The record counts as finished, is logged, and is counted.
    Skip,
}

/// The action for a record that misses its deadline.
///
/// A handler that still runs is aborted first. If it does not end because it blocks its thread, its key stays blocked:
/// two handlers of one key never overlap. The action applies to completions that have moved out of the handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum OverdueAction {
    /// The attempt counts as failed. A later `finish` is ignored. The default.
    #[default]
    Retry,
    /// The deadline starts again, and the miss is counted and logged.
    Extend,
    /// The record goes straight to the [`DeadLetterQueue`](crate::DeadLetterQueue).
    DeadLetter,
    /// The lane starts no more records and is not committed beyond this record.
    HaltLane,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxed_failure_keeps_its_properties() {
        let permanent = || RecordFailure::permanent("no such thing");
        let question_mark = || -> Result<(), Box<dyn Error + Send + Sync>> { Err(permanent())? };
        let boxed: Box<dyn Error> = permanent().into();
        for returned in [RecordFailure::returned(permanent()), RecordFailure::returned(boxed)] {
            assert_eq!(returned, permanent());
        }
        assert_eq!(question_mark().map_err(RecordFailure::returned), Err(permanent()));
        let other: Box<dyn Error + Send + Sync> = "transient".into();
        assert_eq!(RecordFailure::returned(other), RecordFailure::new("transient"));
    }

    #[test]
    fn waits_double_up_to_wait_max() {
        let retry = RecordRetryPolicy { jitter: 0.5, ..RecordRetryPolicy::default() };
        let waits: Vec<u64> = [1, 2, 3, 9, 10, 4_000_000_000]
            .into_iter()
            .map(|attempts| retry.wait(attempts, 0.0).as_millis() as u64)
            .collect();
        assert_eq!(waits, [100, 200, 400, 25_600, 30_000, 30_000]);
        assert_eq!(retry.wait(1, 0.5).as_millis(), 75);
        for (jitter, expected) in [(f64::NAN, 100), (-1.0, 100), (2.0, 50), (f64::INFINITY, 50)] {
            assert_eq!(RecordRetryPolicy { jitter, ..retry }.wait(1, 0.5).as_millis(), expected, "{jitter}");
        }
    }

    #[test]
    fn attempts_and_age_limit_retries() {
        let retry = RecordRetryPolicy {
            attempts_max: Some(3),
            age_max: Some(Duration::from_secs(9)),
            ..RecordRetryPolicy::default()
        };
        assert!(!retry.is_exhausted(2, Duration::from_secs(8)));
        assert!(retry.is_exhausted(3, Duration::ZERO) && retry.is_exhausted(1, Duration::from_secs(9)));
        // A queued record stores at most 65,535 attempts; a higher limit would never be reached.
        let many = RecordRetryPolicy { attempts_max: Some(100_000), ..RecordRetryPolicy::default() };
        assert!(!many.is_exhausted(65_534, Duration::ZERO) && many.is_exhausted(65_535, Duration::ZERO));
    }
}
