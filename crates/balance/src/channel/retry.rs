//! Which failures may be tried again, and when.

use std::error::Error;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use tonic::Code;

use crate::lease::Outcome;
use crate::service_config::{RetryPolicy, Throttling};

/// Thousandths, so that an atomic can hold them.
const THOUSAND: f64 = 1000.0;

/// Fewer retries while many calls fail (gRPC proposal A6).
#[derive(Debug)]
pub(crate) struct Throttle {
    left: AtomicI64,
    most: i64,
    ratio: i64,
}

impl Throttle {
    pub(super) fn new(rules: Throttling) -> Self {
        let most = (rules.tokens * THOUSAND) as i64;
        Self { left: AtomicI64::new(most), most, ratio: (rules.ratio * THOUSAND) as i64 }
    }

    /// A call failed in a way that is tried again; may it be?
    pub(super) fn fail(&self) -> bool {
        let take = |left: i64| Some((left - THOUSAND as i64).max(0));
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.unwrap_or_else(|left| left) - THOUSAND as i64 > self.most / 2
    }

    pub(super) fn succeed(&self) {
        // A full one, the common case, is not written to.
        if self.left.load(Ordering::Relaxed) < self.most {
            let give = |left: i64| Some(left.saturating_add(self.ratio).min(self.most));
            let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
        }
    }
}

impl RetryPolicy {
    /// The pause before another attempt, after so many.
    pub(super) fn pause(&self, attempts: u32, random: f64) -> Duration {
        let grown = i32::try_from(attempts.saturating_sub(1)).unwrap_or(i32::MAX);
        let longest = (self.backoff_first.as_secs_f64() * self.factor.powi(grown)).min(self.backoff_max.as_secs_f64());
        Duration::from_secs_f64(longest * random)
    }
}

/// The status that an answer without a body has, or that its trailers have.
pub(super) fn status_of(headers: &HeaderMap) -> Option<Code> {
    let status = headers.get("grpc-status")?;
    Some(Code::from_bytes(status.as_bytes()))
}

/// When the server wants a retry; `Some(None)`: never.
pub(super) fn pushback(headers: &HeaderMap) -> Option<Option<Duration>> {
    let value = headers.get("grpc-retry-pushback-ms")?;
    Some(value.to_str().ok().and_then(|text| text.parse().ok()).map(Duration::from_millis))
}

/// What a status says of the backend's health. Most statuses are answers: the backend works.
pub(super) fn health(code: Code) -> Outcome {
    match code {
        Code::Unavailable | Code::Internal | Code::Unknown | Code::DataLoss | Code::DeadlineExceeded => {
            Outcome::Failure
        }
        // Saturated is not unhealthy.
        Code::ResourceExhausted | Code::Cancelled => Outcome::Neutral,
        _ => Outcome::Success,
    }
}

/// Did the server certainly not begin with it? Then any call may be sent again (RFC 9113, sections 6.8 and 8.7).
pub(super) fn is_unprocessed(error: &hyper::Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            let refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
            let gone = error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR);
            return refused || gone;
        }
        source = cause.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_stops_below_half_and_recovers() {
        let throttle = Throttle::new(Throttling { tokens: 10.0, ratio: 0.5 });
        let granted = (0..10).filter(|_| throttle.fail()).count();
        assert_eq!(granted, 4);
        (0..12).for_each(|_| throttle.succeed());
        assert!(!throttle.fail());
        (0..20).for_each(|_| throttle.succeed());
        assert!(throttle.fail());
    }
}
