//! What a pool may open, keep and let wait.

use std::time::Duration;

/// The bounds of one pool. All of them can be changed while the pool works, with
/// [`Pool::set_limits`](crate::Pool::set_limits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at once, over all cores, those being opened included. Default: 20.
    pub size: usize,
    /// Connections that [`Local::sweep`](crate::Local::sweep) keeps open without demand. Default: 0.
    pub min: usize,
    /// Connections beyond `size` for clients that waited longer than `reserve_after`. Default: 0.
    pub reserve: usize,
    /// How long a client waits before `reserve` is opened for it. Default: 5 s.
    pub reserve_after: Duration,
    /// Connections being opened at once, over all cores. Default: 4.
    pub connecting_max: usize,
    /// Clients waiting at once, over all cores; the next one is refused with
    /// [`CheckoutError::Full`](crate::CheckoutError::Full). Clients that arrive on several cores in the same moment may
    /// pass it by one per other core. Default: 65,536.
    pub waiting_max: usize,
    /// How much younger than the oldest waiter of all cores a client of the releasing core may be and still be served
    /// before it. Zero is strict order at the price of more hand-overs between cores. Default: 2 ms.
    pub overtake_max: Duration,
    /// A connection older than this is closed when it is released or idle. `None`: never. Default: 1 h.
    pub lifetime: Option<Duration>,
    /// Each connection's lifetime is shortened by a random part of this, but by no more than half, so that
    /// connections opened together do not end together. Default: 6 min.
    pub lifetime_jitter: Duration,
    /// A connection idle for longer is closed by a sweep, down to `min`. `None`: never. Default: 10 min.
    pub idle_timeout: Option<Duration>,
    /// Whether the connection that was idle for longest is taken first, so that all are used in turn. It costs a move of
    /// the others. Default: the one that was put down last is taken first.
    pub oldest_first: bool,
    /// Pause after a failed connect; doubles with each failure in a row. Default: 100 ms.
    pub retry_start: Duration,
    /// Longest pause after a failed connect. Default: 15 s.
    pub retry_max: Duration,
}

impl Limits {
    /// How long a connection lives whose share of the jitter is `early`, 0 to 1.
    pub(crate) fn life(&self, early: f64) -> Option<Duration> {
        let shortened = |life: Duration| life - self.lifetime_jitter.min(life / 2).mul_f64(early);
        self.lifetime.map(shortened)
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
