//! Settings of a run.

use super::gateway_access::GatewayAccess;
use super::limits::differ_in_limits_only;
use tidegate_config::StreamConfig;

/// Settings of one run.
#[derive(Debug, Clone)]
pub(super) struct StreamPlan {
    pub(super) stream: StreamConfig,
    pub(super) access: GatewayAccess,
}

impl StreamPlan {
    /// Whether a run with these settings can continue with the `other` ones.
    pub(super) fn can_continue_as(&self, other: &Self) -> bool {
        differ_in_limits_only(&self.stream.keys, &other.stream.keys)
            && self.stream.tls == other.stream.tls
            && self.access.has_same_login(&other.access, &self.stream)
    }
}
