//! Settings of a balancer.

use std::time::Duration;

use tidegate_backoff::Backoff;

use crate::outlier::OutlierDetection;

/// State of a new endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InitialState {
    /// Picked from the start: its value connects by itself, or needs no connection.
    Ready,
    /// Picked after [`Balancer::mark_ready`](crate::Balancer::mark_ready).
    #[default]
    Idle,
}

/// Settings of a balancer, besides its policy. Values out of range are limited to the range.
#[derive(Clone, Debug)]
pub struct BalancerSettings {
    /// State of a new endpoint. Default: idle.
    pub initial_state: InitialState,
    /// Delay before a failed endpoint is tried again. Default: gRPC's, from 1 to 120 s.
    pub backoff: Backoff,
    /// Ejection of endpoints that fail calls. Default: none.
    pub outlier_detection: Option<OutlierDetection>,
    /// Share of the ready endpoints, from 0 to 1, below which ejections are ignored: when most endpoints fail, they are probably
    /// not the cause. If all are ejected, all are used regardless. Default: 0.
    pub panic_threshold: f64,
    /// Time over which the share of an endpoint that became ready grows from a tenth to the whole. Default: zero, no slow start.
    pub slow_start: Duration,
    /// How long a removed endpoint stays in use while none of its replacements is ready. Default: 30 s.
    pub replace_timeout: Duration,
    /// Decay time of the latencies of [`PeakEwma`](crate::PeakEwma). Default: 10 s.
    pub latency_decay: Duration,
    /// Maximum number of callers that wait for an endpoint. Default: 65,536.
    pub waiters_max: usize,
}

impl Default for BalancerSettings {
    fn default() -> Self {
        Self {
            initial_state: InitialState::Idle,
            backoff: Backoff::grpc(),
            outlier_detection: None,
            panic_threshold: 0.0,
            slow_start: Duration::ZERO,
            replace_timeout: Duration::from_secs(30),
            latency_decay: Duration::from_secs(10),
            waiters_max: 65_536,
        }
    }
}
