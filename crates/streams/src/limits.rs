//! Limits of a stream that change while it runs.

use tidegate_config::{
    StreamConfig,
    stream::{StreamKeys, StreamSink},
};
use tidegate_lanes::{Bounds, SubscriptionHandle};

/// Limits of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StreamLimits {
    pub(super) concurrency: usize,
    pub(super) bounds: Bounds,
    /// Deliveries started per second; `None` means unlimited.
    pub(super) rate: Option<f64>,
}

/// Lines of one write to standard output.
const LINES_MAX: usize = 512;

impl StreamLimits {
    pub(super) fn of(stream: &StreamConfig) -> Self {
        let keys = &stream.keys;
        let records_max = stream.records_max() as usize;
        Self {
            concurrency: stream.concurrency() as usize,
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

    /// Applies the limits to a run. A paused run starts no deliveries.
    pub(super) fn apply(&self, handle: &SubscriptionHandle, is_paused: bool) {
        handle.set_concurrency(self.concurrency);
        handle.set_bounds(self.bounds);
        handle.set_rate(if is_paused { Some(0.0) } else { self.rate });
    }
}

/// Maximum number of records in a delivery. Standard output takes whatever is waiting in one write: its lines are separate
/// records either way, and a write per line costs more than the rest of a stream. A rate or a quota counts deliveries, and
/// then a delivery stays as small as configured.
pub(super) fn batch_max(keys: &StreamKeys) -> usize {
    let is_free = keys.to == StreamSink::Stdout && keys.rate == 0 && keys.quota == 0;
    let configured = keys.batch as usize;
    if is_free { configured.max(LINES_MAX) } else { configured }
}

/// Whether the settings differ in limits only.
pub(super) fn differ_in_limits_only(one: &StreamKeys, other: &StreamKeys) -> bool {
    let limited = StreamKeys {
        rate: one.rate,
        concurrency: one.concurrency,
        records_max: one.records_max,
        span_max: one.span_max,
        ..other.clone()
    };
    *one == limited && batch_max(one) == batch_max(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_keeps_lines_in_small_deliveries() {
        let keys = StreamKeys { to: StreamSink::Stdout, batch: 2, ..StreamKeys::default() };
        assert_eq!(batch_max(&keys), LINES_MAX);
        let limited = StreamKeys { rate: 10, ..keys.clone() };
        assert_eq!(batch_max(&limited), 2);
        assert_eq!(batch_max(&StreamKeys { quota: 1, ..keys.clone() }), 2);
        assert_eq!(batch_max(&StreamKeys { to: StreamSink::Unset, ..keys.clone() }), 2);
        assert!(!differ_in_limits_only(&keys, &limited), "the run has other deliveries");
        assert!(differ_in_limits_only(&limited, &StreamKeys { rate: 20, ..limited.clone() }));
    }
}
