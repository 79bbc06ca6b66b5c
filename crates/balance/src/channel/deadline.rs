//! The time that a call has.

use std::time::Duration;

use http::HeaderMap;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use crate::moment::after;

/// When a call's time is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    span: Duration,
    at: Instant,
}

impl Deadline {
    /// The time begins now. The shorter of what the call's header and the channel grant counts.
    pub(super) fn new(headers: &HeaderMap, granted: Option<Duration>) -> Option<Self> {
        let span = [header_timeout(headers), granted].into_iter().flatten().min()?;
        Some(Self { span, at: after(Instant::now().into_std(), span).into() })
    }

    /// Whether there is time left.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(super) fn check(&self) -> Result<(), Status> {
        if self.at <= Instant::now() { Err(self.exceeded()) } else { Ok(()) }
    }

    fn exceeded(&self) -> Status {
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
