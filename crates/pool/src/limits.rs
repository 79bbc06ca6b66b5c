//! Bounds of a pool.

use std::time::Duration;

use tidegate_backoff::Backoff;

/// Bounds of a pool. [`Pool::set_limits`](crate::Pool::set_limits) changes them while the pool is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of open connections over all cores, connects in progress included. Default: 20.
    pub size: usize,
    /// Number of connections that [`LocalPool::maintain`](crate::LocalPool::maintain) keeps open without demand. Default: 0.
    pub min: usize,
    /// Connections beyond `size` for clients that have waited longer than `reserve_after`. Default: 0.
    pub reserve: usize,
    /// Wait after which a client may use the `reserve`. Default: 5 s.
    pub reserve_after: Duration,
    /// Maximum number of connects in progress over all cores. Default: 4.
    pub connecting_max: usize,
    /// Maximum number of waiting clients over all cores; the next client gets
    /// [`CheckoutError::QueueFull`](crate::CheckoutError::QueueFull). Clients that arrive on several cores in the same
    /// moment can exceed it by one for each other core. Default: 65,536.
    pub waiting_max: usize,
    /// How much later than the longest-waiting client of all cores a client of the releasing core may have arrived and still
    /// be served first. Zero is strict order, at the price of more transfers between cores. Default: 2 ms.
    pub overtake_max: Duration,
    /// Age at which a connection is closed when it is released or idle. `None`: never. A new connection serves the client that
    /// waits for it, however short the lifetime is. Default: 1 h.
    pub lifetime: Option<Duration>,
    /// Each lifetime is shortened by a random part of this, at most by half, so that connections opened together are not
    /// closed together. Default: 6 min.
    pub lifetime_jitter: Duration,
    /// Idle time after which [`LocalPool::maintain`](crate::LocalPool::maintain) closes a connection, down to `min`. `None`:
    /// never. Default: 10 min.
    pub idle_timeout: Option<Duration>,
    /// Whether the connection that has been idle for longest is used first, so that all are used in turn (PgBouncer's
    /// `server_round_robin`). It moves the other idle connections in their list. Default: the most recently used is first.
    pub oldest_first: bool,
    /// Pause after a failed connect; doubles with each consecutive failure. Default: 100 ms.
    pub retry_start: Duration,
    /// Longest pause after a failed connect. Default: 15 s.
    pub retry_max: Duration,
}

impl Limits {
    /// Lifetime of a connection with this share (from 0 to 1) of the jitter.
    pub(crate) fn jittered_lifetime(&self, jitter_share: f64) -> Option<Duration> {
        let shortened = |lifetime: Duration| lifetime - self.lifetime_jitter.min(lifetime / 2).mul_f64(jitter_share);
        self.lifetime.map(shortened)
    }

    /// Maximum number of open connections, the reserve included.
    pub(crate) fn open_max(&self) -> usize {
        self.size.saturating_add(self.reserve)
    }

    /// Pauses after failed connects.
    pub(crate) fn connect_backoff(&self) -> Backoff {
        Backoff::new(self.retry_start, self.retry_max)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            size: 20,
            min: 0,
            reserve: 0,
            reserve_after: Duration::from_secs(5),
            connecting_max: 4,
            waiting_max: 65_536,
            overtake_max: Duration::from_millis(2),
            lifetime: Some(Duration::from_secs(3600)),
            lifetime_jitter: Duration::from_secs(360),
            idle_timeout: Some(Duration::from_secs(600)),
            oldest_first: false,
            retry_start: Duration::from_millis(100),
            retry_max: Duration::from_secs(15),
        }
    }
}
