//! Deadlines of calls.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tidegate_backoff::instant_after;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tonic::Status;

/// The deadline of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallDeadline {
    timeout: Duration,
    at: Instant,
}

impl CallDeadline {
    /// The shorter of the call's `grpc-timeout` and `timeout`, from now.
    pub(crate) fn new(headers: &HeaderMap, timeout: Option<Duration>) -> Option<Self> {
        [header_timeout(headers), timeout].into_iter().flatten().min().map(Self::after)
    }

    /// The deadline at `timeout` from now.
    pub(crate) fn after(timeout: Duration) -> Self {
        Self { timeout, at: instant_after(Instant::now().into_std(), timeout).into() }
    }

    /// The earlier of two deadlines.
    pub(crate) fn or_sooner(self, other: Option<Self>) -> Self {
        other.filter(|other| other.at < self.at).unwrap_or(self)
    }

    /// Checks that time is left.
    ///
    /// # Errors
    ///
    /// `DEADLINE_EXCEEDED`, if none is.
    pub(crate) fn check(&self) -> Result<(), Status> {
        if self.at <= Instant::now() { Err(self.exceeded()) } else { Ok(()) }
    }

    /// The remaining time, for the `grpc-timeout` header of an attempt.
    pub(crate) fn header(&self) -> HeaderValue {
        let left = self.at.saturating_duration_since(Instant::now());
        // The protocol allows eight digits: the finest unit that fits.
        let units = [(left.as_nanos(), "n"), (left.as_micros(), "u"), (left.as_millis(), "m")];
        let fitting = units.into_iter().find(|(number, _)| *number < 100_000_000);
        let (number, unit) = fitting.unwrap_or((u128::from(left.as_secs()).min(99_999_999), "S"));
        HeaderValue::from_str(&format!("{number}{unit}")).unwrap_or_else(|_| HeaderValue::from_static("0n"))
    }

    /// Sleeps until the deadline.
    pub(crate) fn sleep(&self) -> Sleep {
        sleep_until(self.at)
    }

    pub(crate) fn exceeded(&self) -> Status {
        Status::deadline_exceeded(format!("no answer within {:?}", self.timeout))
    }
}

/// Runs `future` until the deadline.
///
/// # Errors
///
/// `DEADLINE_EXCEEDED`.
pub(crate) async fn with_deadline<F: Future>(deadline: Option<CallDeadline>, future: F) -> Result<F::Output, Status> {
    match deadline {
        None => Ok(future.await),
        Some(deadline) => timeout_at(deadline.at, future).await.map_err(|_| deadline.exceeded()),
    }
}

/// The `grpc-timeout` of a call, such as `100m` (milliseconds).
fn header_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // The protocol allows eight digits.
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn remaining_time_has_the_finest_unit_that_fits() {
        let of = |timeout: Duration| {
            let deadline = CallDeadline { timeout, at: Instant::now() + timeout };
            deadline.header().to_str().unwrap().to_owned()
        };
        assert_eq!(of(Duration::from_millis(99)), "99000000n");
        assert_eq!(of(Duration::from_millis(100)), "100000u");
        assert_eq!(of(Duration::from_secs(3600)), "3600000m");
        assert_eq!(of(Duration::from_secs(100_000 * 3600)), "99999999S");
        assert_eq!(of(Duration::ZERO), "0n");
    }

    #[test]
    fn grpc_timeout_has_a_unit() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            header_timeout(&headers)
        };
        assert_eq!(of("100m"), Some(Duration::from_millis(100)));
        assert_eq!(of("2H"), Some(Duration::from_secs(7200)));
        for text in ["", "m", "1", "1x", "123456789n", "-1S"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
