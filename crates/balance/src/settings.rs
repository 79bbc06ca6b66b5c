//! What a balancer may be told beyond its policy.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::outlier::Outlier;

/// In which state an added endpoint begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// It can be chosen at once: its value connects by itself, or needs no connection.
    Ready,
    /// It is chosen once [`ready`](crate::Balancer::ready) was said of it.
    #[default]
    Idle,
}

/// What a balancer may be told beyond its policy. A value that is not sensible is brought into range.
#[derive(Clone, Debug)]
pub struct Settings {
    /// In which state an added endpoint begins.
    pub start: Start,
    /// When a failed endpoint is to be tried again.
    pub backoff: Backoff,
    /// When endpoints that answer wrongly are ejected for a while; not at all by default.
    pub outlier: Option<Outlier>,
    /// If a smaller share of the ready endpoints than this is left after ejections, ejections are ignored: it is
    /// probably not the endpoints. When all are ejected, all are used, whatever this says.
    pub panic_threshold: f64,
    /// For so long, an endpoint that became ready gets a share that grows from a tenth to all of it; zero: at once.
    pub slow_start: Duration,
    /// A removed endpoint stays in use for so long at most while none of its replacements is ready.
    pub replace_within: Duration,
    /// How fast [`PeakEwma`](crate::PeakEwma) forgets.
    pub latency_decay: Duration,
    /// So many callers may wait for an endpoint at once.
    pub waiters_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            start: Start::Idle,
            backoff: Backoff::default(),
            outlier: None,
            panic_threshold: 0.0,
            slow_start: Duration::ZERO,
            replace_within: Duration::from_secs(30),
            latency_decay: Duration::from_secs(10),
            waiters_max: 65_536,
        }
    }
}
