//! The time that a call has.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tonic::Status;

use crate::moment::after;

/// When a call's time is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    span: Duration,
    at: Instant,
}

impl Deadline {
    /// The time begins now. The shorter of what the call's header and others grant counts.
    pub(super) fn new(headers: &HeaderMap, granted: Option<Duration>) -> Option<Self> {
        [header_timeout(headers), granted].into_iter().flatten().min().map(Self::within)
    }

    /// The time begins now.
    pub(super) fn within(span: Duration) -> Self {
        Self { span, at: after(Instant::now().into_std(), span).into() }
    }

    /// The earlier one.
    pub(super) fn or_sooner(self, other: Option<Self>) -> Self {
        other.filter(|other| other.at < self.at).unwrap_or(self)
    }

    /// Whether there is time left.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(super) fn check(&self) -> Result<(), Status> {
        if self.at <= Instant::now() { Err(self.exceeded()) } else { Ok(()) }
    }

    /// What is left, for the header of an attempt.
    pub(super) fn header(&self) -> HeaderValue {
        let left = self.at.saturating_duration_since(Instant::now());
        // Eight digits, in the finest unit in which they are enough.
        let units = [(left.as_nanos(), "n"), (left.as_micros(), "u"), (left.as_millis(), "m")];
        let fitting = units.into_iter().find(|(number, _)| *number < 100_000_000);
        let (number, unit) = fitting.unwrap_or((u128::from(left.as_secs()).min(99_999_999), "S"));
        HeaderValue::from_str(&format!("{number}{unit}")).unwrap_or_else(|_| HeaderValue::from_static("0n"))
    }

    /// Until it is over.
    pub(super) fn sleep(&self) -> Sleep {
        sleep_until(self.at)
    }

    pub(super) fn exceeded(&self) -> Status {
        Status::deadline_exceeded(format!("no answer within {:?}", self.span))
    }
}

/// Does it, unless the time is over before it is done.
pub(super) async fn in_time<F: Future>(deadline: Option<Deadline>, doing: F) -> Result<F::Output, Status> {
    match deadline {
        None => Ok(doing.await),
        Some(deadline) => timeout_at(deadline.at, doing).await.map_err(|_| deadline.exceeded()),
    }
}

/// The time that a call's header grants, such as `100m` (milliseconds).
fn header_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // Eight digits are the most that the protocol has.
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
    async fn what_is_left_has_the_finest_unit_that_fits() {
        let of = |span: Duration| {
            let deadline = Deadline { span, at: Instant::now() + span };
            deadline.header().to_str().unwrap().to_owned()
        };
        assert_eq!(of(Duration::from_millis(99)), "99000000n");
        assert_eq!(of(Duration::from_millis(100)), "100000u");
        assert_eq!(of(Duration::from_secs(3600)), "3600000m");
        assert_eq!(of(Duration::from_secs(100_000 * 3600)), "99999999S");
        assert_eq!(of(Duration::ZERO), "0n");
    }

    #[test]
    fn timeouts_have_a_unit() {
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
