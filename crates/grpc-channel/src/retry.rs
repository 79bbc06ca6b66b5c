//! Retryable failures, and the outcome of a status for the backend.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use tidegate_balance::CallOutcome;
use tonic::Code;

use crate::service_config::RetryThrottling;

/// Scale of tokens in an atomic integer.
const THOUSAND: f64 = 1000.0;

/// Limits retries while many calls fail (gRPC proposal A6).
#[derive(Debug)]
pub(crate) struct RetryThrottle {
    tokens: AtomicI64,
    tokens_max: i64,
    ratio: i64,
}

impl RetryThrottle {
    pub(crate) fn new(rules: RetryThrottling) -> Self {
        let tokens_max = (rules.tokens * THOUSAND) as i64;
        Self { tokens: AtomicI64::new(tokens_max), tokens_max, ratio: (rules.ratio * THOUSAND) as i64 }
    }

    /// Counts a retryable failure. Returns whether a retry is allowed.
    pub(crate) fn on_failure(&self) -> bool {
        let take = |tokens: i64| Some((tokens - THOUSAND as i64).max(0));
        let before = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.unwrap_or_else(|tokens| tokens) - THOUSAND as i64 > self.tokens_max / 2
    }

    pub(crate) fn on_success(&self) {
        // A full bucket, the common case, is not written to.
        if self.tokens.load(Ordering::Relaxed) < self.tokens_max {
            let give = |tokens: i64| Some(tokens.saturating_add(self.ratio).min(self.tokens_max));
            let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
        }
    }
}

/// The status in the head of a response without a body, or in trailers.
pub(crate) fn status_of(headers: &HeaderMap) -> Option<Code> {
    let status = headers.get("grpc-status")?;
    Some(Code::from_bytes(status.as_bytes()))
}

/// When the server asks for the retry; `Some(None)`: it refuses one.
pub(crate) fn pushback(headers: &HeaderMap) -> Option<Option<Duration>> {
    let value = headers.get("grpc-retry-pushback-ms")?;
    Some(value.to_str().ok().and_then(|text| text.parse().ok()).map(Duration::from_millis))
}

/// The outcome of a status for the backend. Most statuses are answers of a healthy backend.
pub(crate) fn outcome_of(code: Code) -> CallOutcome {
    match code {
        Code::Unavailable | Code::Internal | Code::Unknown | Code::DataLoss | Code::DeadlineExceeded => {
            CallOutcome::Failure
        }
        // A saturated backend is not unhealthy.
        Code::ResourceExhausted | Code::Cancelled => CallOutcome::Neutral,
        _ => CallOutcome::Success,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_stops_below_half_and_recovers() {
        let throttle = RetryThrottle::new(RetryThrottling { tokens: 10.0, ratio: 0.5 });
        let allowed = (0..10).filter(|_| throttle.on_failure()).count();
        assert_eq!(allowed, 4);
        (0..12).for_each(|_| throttle.on_success());
        assert!(!throttle.on_failure());
        (0..20).for_each(|_| throttle.on_success());
        assert!(throttle.on_failure());
    }
}
