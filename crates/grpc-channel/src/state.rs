//! State that all clones of a channel share.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use http::uri::{Authority, Scheme};
use tidegate_balance::{Balancer, OutlierDetection, PickError, Policy, ResolveNow};
use tokio::sync::watch;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::retry::RetryThrottle;
use crate::service_config::ServiceConfig;

pub(crate) struct ChannelState {
    pub(crate) balancer: Balancer<Backend>,
    /// Read by each call, written by [`Channel::set_service_config`](crate::Channel::set_service_config).
    pub(crate) config: RwLock<Arc<CallConfig>>,
    /// The policy, if the service config has none.
    pub(crate) policy: Arc<dyn Policy>,
    /// The outlier detection, if the service config has none.
    pub(crate) outlier_detection: Option<OutlierDetection>,
    pub(crate) resolve_now: ResolveNow,
    pub(crate) origin: (Scheme, Authority),
    pub(crate) timeout: Option<Duration>,
    pub(crate) wait_for_ready: bool,
    pub(crate) replay_bytes_max: usize,
    /// The driver stops when this is dropped.
    #[expect(dead_code, reason = "only its drop is observed")]
    pub(crate) alive: watch::Sender<()>,
}

/// Service config of calls, replaced as a whole.
#[derive(Debug, Default)]
pub(crate) struct CallConfig {
    pub(crate) service: ServiceConfig,
    pub(crate) throttle: Option<RetryThrottle>,
}

impl CallConfig {
    pub(crate) fn new(service: ServiceConfig) -> Self {
        let throttle = service.retry_throttling.map(RetryThrottle::new);
        Self { service, throttle }
    }
}

/// Status of a call that found no backend.
pub(crate) fn no_backend(error: &PickError) -> Status {
    let is_full = matches!(error, PickError::TooManyWaiters { .. });
    let code = if is_full { Code::ResourceExhausted } else { Code::Unavailable };
    let mut status = Status::new(code, error.to_string());
    status.set_source(Arc::new(error.clone()));
    status
}
