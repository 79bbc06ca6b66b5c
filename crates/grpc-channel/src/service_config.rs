//! gRPC's service config: the policy, and for each method whether calls wait and are retried.
//!
//! Names and rules are those of grpc-go. The first policy in `loadBalancingConfig` with a known name is used; if its body is
//! invalid, the whole config is invalid. Unknown fields are ignored.

mod duration;
mod policy;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tidegate_backoff::{Backoff, Jitter};
use tidegate_balance::{OutlierDetection, Policy};

use self::duration::ProtoDuration;

/// A valid service config.
#[derive(Clone, Debug, Default)]
pub struct ServiceConfig {
    pub(crate) policy: Option<Arc<dyn Policy>>,
    pub(crate) outlier_detection: Option<OutlierDetection>,
    /// Header whose value is the hash of [`RingHash`](tidegate_balance::RingHash).
    pub(crate) hash_header: Option<String>,
    methods: HashMap<String, Arc<MethodConfig>>,
    pub(crate) retry_throttling: Option<RetryThrottling>,
}

/// Why a service config is invalid.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the service config is refused, and the previous one stays: {reason}")]
pub struct ServiceConfigError {
    reason: String,
}

impl ServiceConfigError {
    fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// Settings of a method.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MethodConfig {
    pub(crate) wait_for_ready: Option<bool>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Option<CallRetryPolicy>,
}

/// When a call is retried (gRPC proposal A6).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallRetryPolicy {
    /// Number of attempts, the first one included: 2 to 5.
    pub(crate) attempts_max: u32,
    /// Delay before each further attempt.
    pub(crate) backoff: Backoff,
    /// gRPC status codes after which a call is retried.
    pub(crate) codes: Vec<i32>,
}

/// Limit on retries: every failure takes a token, every success returns `ratio` tokens, and below half of `tokens` no call is
/// retried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RetryThrottling {
    pub(crate) tokens: f64,
    pub(crate) ratio: f64,
}

const ATTEMPTS_MAX: u32 = 5;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawServiceConfig {
    load_balancing_config: Option<Vec<serde_json::Map<String, serde_json::Value>>>,
    load_balancing_policy: Option<String>,
    #[serde(default)]
    method_config: Vec<RawMethodConfig>,
    retry_throttling: Option<RawRetryThrottling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMethodConfig {
    #[serde(default)]
    name: Vec<RawMethodName>,
    wait_for_ready: Option<bool>,
    timeout: Option<ProtoDuration>,
    retry_policy: Option<RawRetryPolicy>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawMethodName {
    service: String,
    method: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRetryPolicy {
    max_attempts: u32,
    initial_backoff: ProtoDuration,
    max_backoff: ProtoDuration,
    backoff_multiplier: f64,
    retryable_status_codes: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRetryThrottling {
    max_tokens: f64,
    token_ratio: f64,
}

impl ServiceConfig {
    /// Parses a service config in JSON.
    ///
    /// # Errors
    ///
    /// If it is not JSON, or a value is out of its range; the message names the field.
    pub fn from_json(text: &str) -> Result<Self, ServiceConfigError> {
        let raw: RawServiceConfig =
            serde_json::from_str(text).map_err(|error| ServiceConfigError::new(error.to_string()))?;
        let mut config = Self::default();
        policy::choose(&mut config, raw.load_balancing_config, raw.load_balancing_policy.as_deref())?;
        for method in raw.method_config {
            config.add_method(method)?;
        }
        config.retry_throttling = raw.retry_throttling.as_ref().map(check_throttling).transpose()?;
        Ok(config)
    }

    fn add_method(&mut self, raw: RawMethodConfig) -> Result<(), ServiceConfigError> {
        let retry = raw.retry_policy.as_ref().map(check_retry).transpose()?;
        let timeout = raw.timeout.map(|timeout| timeout.0);
        let config = Arc::new(MethodConfig { wait_for_ready: raw.wait_for_ready, timeout, retry });
        for RawMethodName { service, method } in raw.name {
            if service.is_empty() && !method.is_empty() {
                return Err(ServiceConfigError::new(format!("method `{method}` has no service")));
            }
            let name = if service.is_empty() { String::new() } else { format!("/{service}/{method}") };
            if self.methods.insert(name.clone(), Arc::clone(&config)).is_some() {
                return Err(ServiceConfigError::new(format!("the name `{name}` has two method configs")));
            }
        }
        Ok(())
    }

    /// Settings for a path such as `/orders.Orders/Get`: of the method, of its service, or of all methods.
    pub(crate) fn method(&self, path: &str) -> Option<&Arc<MethodConfig>> {
        if self.methods.is_empty() {
            return None;
        }
        let service = path.rfind('/').map_or("", |slash| &path[..=slash]);
        [path, service, ""].into_iter().find_map(|name| self.methods.get(name))
    }
}

fn check_retry(raw: &RawRetryPolicy) -> Result<CallRetryPolicy, ServiceConfigError> {
    let codes = raw.retryable_status_codes.iter().map(code).collect::<Result<Vec<_>, _>>()?;
    let (first, max, factor) = (raw.initial_backoff.0, raw.max_backoff.0, raw.backoff_multiplier);
    let problem = match () {
        () if raw.max_attempts < 2 => "maxAttempts must be 2 or more",
        () if first.is_zero() || max.is_zero() => "initialBackoff and maxBackoff must be more than 0s",
        () if !(factor.is_finite() && factor > 0.0) => "backoffMultiplier must be more than 0",
        () if codes.is_empty() => "retryableStatusCodes must name a code",
        () => {
            let attempts_max = raw.max_attempts.min(ATTEMPTS_MAX);
            let backoff = Backoff { first, max, factor, jitter: Jitter::FULL };
            return Ok(CallRetryPolicy { attempts_max, backoff, codes });
        }
    };
    Err(ServiceConfigError::new(format!("retryPolicy: {problem}")))
}

/// A status code by number, or by name in any case.
fn code(value: &serde_json::Value) -> Result<i32, ServiceConfigError> {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    let by_name = |name: &str| NAMES.iter().position(|known| known.eq_ignore_ascii_case(name));
    let number = match value {
        serde_json::Value::String(name) => by_name(name),
        other => other.as_u64().and_then(|number| usize::try_from(number).ok()).filter(|&number| number < NAMES.len()),
    };
    let number = number.and_then(|number| i32::try_from(number).ok());
    number.ok_or_else(|| ServiceConfigError::new(format!("retryPolicy: {value} is not a status code")))
}

fn check_throttling(raw: &RawRetryThrottling) -> Result<RetryThrottling, ServiceConfigError> {
    let fits = raw.max_tokens > 0.0 && raw.max_tokens <= 1000.0 && raw.token_ratio > 0.0;
    if !fits {
        return Err(ServiceConfigError::new("retryThrottling: maxTokens must be in (0, 1000], tokenRatio more than 0"));
    }
    Ok(RetryThrottling { tokens: raw.max_tokens, ratio: raw.token_ratio })
}

#[cfg(test)]
mod tests;
