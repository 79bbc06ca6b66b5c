//! gRPC's service config: which policy, which calls wait, which are tried again.
//!
//! Names and rules are those of grpc-go. Of `loadBalancingConfig` the first policy with a known name counts; if its
//! body is invalid, the whole config is. Unknown fields are passed over.

mod duration;
mod policy;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::outlier::Outlier;
use crate::policy::Policy;

use self::duration::Proto;

/// A service config that was checked.
#[derive(Clone, Debug, Default)]
pub struct ServiceConfig {
    pub(crate) policy: Option<Arc<dyn Policy>>,
    pub(crate) outlier: Option<Outlier>,
    /// The header that [`RingHash`](crate::RingHash) chooses by.
    pub(crate) hash_header: Option<String>,
    methods: HashMap<String, Arc<MethodConfig>>,
    pub(crate) throttling: Option<Throttling>,
}

/// Why a text is no service config.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the service config is refused, and what was in use stays: {reason}")]
pub struct ServiceConfigError {
    reason: String,
}

impl ServiceConfigError {
    fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// What holds for calls of a method.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MethodConfig {
    pub(crate) wait_for_ready: Option<bool>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Option<RetryPolicy>,
}

/// When a call is tried again (gRPC proposal A6).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RetryPolicy {
    /// The first attempt included; 2 to 5.
    pub(crate) attempts_max: u32,
    /// The longest first pause.
    pub(crate) backoff_first: Duration,
    /// The longest pause.
    pub(crate) backoff_max: Duration,
    /// How much longer each pause may be than the one before.
    pub(crate) factor: f64,
    /// gRPC status codes after which a call is tried again.
    pub(crate) codes: Vec<i32>,
}

/// Fewer retries when many calls fail: every failure takes a token, every success gives `ratio` back; below half of
/// `tokens` nothing is tried again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Throttling {
    pub(crate) tokens: f64,
    pub(crate) ratio: f64,
}

const ATTEMPTS_MAX: u32 = 5;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawConfig {
    load_balancing_config: Option<Vec<serde_json::Map<String, serde_json::Value>>>,
    load_balancing_policy: Option<String>,
    #[serde(default)]
    method_config: Vec<RawMethod>,
    retry_throttling: Option<RawThrottling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMethod {
    #[serde(default)]
    name: Vec<RawName>,
    wait_for_ready: Option<bool>,
    timeout: Option<Proto>,
    retry_policy: Option<RawRetry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawName {
    service: String,
    method: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRetry {
    max_attempts: u32,
    initial_backoff: Proto,
    max_backoff: Proto,
    backoff_multiplier: f64,
    retryable_status_codes: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawThrottling {
    max_tokens: f64,
    token_ratio: f64,
}

impl ServiceConfig {
    /// Reads and checks a service config in JSON.
    ///
    /// # Errors
    ///
    /// When it is no JSON, or a value is out of its range; the text says which.
    pub fn from_json(text: &str) -> Result<Self, ServiceConfigError> {
        let raw: RawConfig = serde_json::from_str(text).map_err(|error| ServiceConfigError::new(error.to_string()))?;
        let mut config = Self::default();
        policy::choose(&mut config, raw.load_balancing_config, raw.load_balancing_policy.as_deref())?;
        for method in raw.method_config {
            config.add_method(method)?;
        }
        config.throttling = raw.retry_throttling.as_ref().map(check_throttling).transpose()?;
        Ok(config)
    }

    fn add_method(&mut self, raw: RawMethod) -> Result<(), ServiceConfigError> {
        let retry = raw.retry_policy.as_ref().map(check_retry).transpose()?;
        let timeout = raw.timeout.map(|timeout| timeout.0);
        let config = Arc::new(MethodConfig { wait_for_ready: raw.wait_for_ready, timeout, retry });
        for RawName { service, method } in raw.name {
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

    /// What holds for a path such as `/orders.Orders/Get`: of the method, of its service, or of all.
    pub(crate) fn method(&self, path: &str) -> Option<&Arc<MethodConfig>> {
        if self.methods.is_empty() {
            return None;
        }
        let service = path.rfind('/').map_or("", |slash| &path[..=slash]);
        [path, service, ""].into_iter().find_map(|name| self.methods.get(name))
    }
}

fn check_retry(raw: &RawRetry) -> Result<RetryPolicy, ServiceConfigError> {
    let codes = raw.retryable_status_codes.iter().map(code).collect::<Result<Vec<_>, _>>()?;
    let (first, max, factor) = (raw.initial_backoff.0, raw.max_backoff.0, raw.backoff_multiplier);
    let problem = match () {
        () if raw.max_attempts < 2 => "maxAttempts must be 2 or more",
        () if first.is_zero() || max.is_zero() => "initialBackoff and maxBackoff must be more than 0s",
        () if !(factor.is_finite() && factor > 0.0) => "backoffMultiplier must be more than 0",
        () if codes.is_empty() => "retryableStatusCodes must name a code",
        () => {
            let attempts_max = raw.max_attempts.min(ATTEMPTS_MAX);
            return Ok(RetryPolicy { attempts_max, backoff_first: first, backoff_max: max, factor, codes });
        }
    };
    Err(ServiceConfigError::new(format!("retryPolicy: {problem}")))
}

/// A code by number, or by name in any case.
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
    number.ok_or_else(|| ServiceConfigError::new(format!("retryPolicy: {value} is no status code")))
}

fn check_throttling(raw: &RawThrottling) -> Result<Throttling, ServiceConfigError> {
    let fits = raw.max_tokens > 0.0 && raw.max_tokens <= 1000.0 && raw.token_ratio > 0.0;
    if !fits {
        return Err(ServiceConfigError::new("retryThrottling: maxTokens must be in (0, 1000], tokenRatio more than 0"));
    }
    Ok(Throttling { tokens: raw.max_tokens, ratio: raw.token_ratio })
}

#[cfg(test)]
mod tests;
