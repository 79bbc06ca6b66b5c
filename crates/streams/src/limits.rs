//! How much of a stream may be under way: the settings that change while it runs.

use tidegate_config::{Stream, stream::StreamKeys};
use tidegate_lanes::{Bounds, SubscriptionHandle};

/// How many deliveries at a time the sink of a run bears.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Width {
    /// Its connections or processes, if it has a number of them.
    pub(super) hands: Option<usize>,
    /// Whether many cost it nothing.
    pub(super) is_wide: bool,
}

/// What a run keeps to, of its settings and its sink.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limits {
    pub(super) concurrency: usize,
    pub(super) bounds: Bounds,
    /// Deliveries begun in a second; any number if `None`.
    pub(super) rate: Option<f64>,
}

/// Deliveries at a time where each is but a place in a queue.
const WIDE: usize = 10_000;

impl Limits {
    pub(super) fn of(stream: &Stream, width: Width) -> Self {
        let keys = &stream.keys;
        let is_free = width.is_wide && !stream.sets_concurrency();
        let concurrency = if is_free { WIDE } else { keys.concurrency as usize };
        let records_max = keys.records_max as usize;
        Self {
            concurrency: width.hands.map_or(concurrency, |hands| hands.min(concurrency)),
            bounds: Bounds {
                records_max,
                bytes_max: usize::try_from(keys.bytes_max).unwrap_or(usize::MAX),
                lane_records_max: records_max,
                lane_span_max: keys.span_max as usize,
                ..Bounds::default()
            },
            rate: (keys.rate > 0).then(|| f64::from(keys.rate)),
        }
    }

    /// Puts them in force in a run; none begins while it is paused.
    pub(super) fn apply(&self, handle: &SubscriptionHandle, is_paused: bool) {
        handle.set_concurrency(self.concurrency);
        handle.set_bounds(self.bounds);
        handle.set_rate(if is_paused { Some(0.0) } else { self.rate });
    }
}

/// Whether a run by the one would differ from a run by the other in nothing but its limits.
pub(super) fn differ_in_limits_only(one: &StreamKeys, other: &StreamKeys) -> bool {
    let limited = StreamKeys {
        rate: one.rate,
        concurrency: one.concurrency,
        records_max: one.records_max,
        span_max: one.span_max,
        ..other.clone()
    };
    *one == limited
}
