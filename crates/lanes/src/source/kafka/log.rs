//! Log messages of the Kafka source; no-ops without the feature `tracing`.

#[cfg(feature = "tracing")]
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel as Level;
use rdkafka::error::KafkaError;
#[cfg(feature = "tracing")]
use rdkafka::error::RDKafkaErrorCode;

use super::offset_reset::OffsetJump;
#[cfg(feature = "tracing")]
use crate::sync::{Mutex, lock};

/// librdkafka reports an unreachable broker twenty times a second.
#[cfg(feature = "tracing")]
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Logs each kind of client error at most once per interval.
#[derive(Default)]
pub(super) struct ErrorLogLimiter {
    #[cfg(feature = "tracing")]
    logged: Mutex<Vec<(RDKafkaErrorCode, Instant)>>,
}

#[cfg(feature = "tracing")]
impl ErrorLogLimiter {
    pub(super) fn log(&self, error: &KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        // The end of a partition is not an error.
        if code != RDKafkaErrorCode::PartitionEOF && self.should_log(code, Instant::now()) {
            tracing::warn!(%error, "{reason}");
        }
    }

    fn should_log(&self, code: RDKafkaErrorCode, now: Instant) -> bool {
        let mut logged = lock(&self.logged);
        logged.retain(|(_, at)| now.saturating_duration_since(*at) < LOG_INTERVAL);
        let should_log = logged.iter().all(|(other, _)| *other != code);
        if should_log {
            logged.push((code, now));
        }
        should_log
    }
}

#[cfg(feature = "tracing")]
pub(super) fn offset_jump(lane: &str, jump: OffsetJump) {
    match jump {
        OffsetJump::Forward(from, to) => {
            let skipped = to - from;
            tracing::warn!(lane, from, to, skipped, "next offset is no longer in the log, records were skipped");
        }
        OffsetJump::Backward(from, to) => {
            tracing::warn!(lane, from, to, "log was truncated or recreated, reading from a lower offset");
        }
    }
}

#[cfg(feature = "tracing")]
pub(super) fn topic_missing(lane: &str) {
    let then = "once the topic exists again, it is read from the committed offset, or from `start`";
    tracing::warn!(lane, then, "topic does not exist, nothing of it is committed");
}

#[cfg(feature = "tracing")]
pub(super) fn session_lost(lane: &str) {
    tracing::warn!(lane, "group session lost, records since the last commit will be processed again");
}

#[cfg(feature = "tracing")]
pub(super) fn client(level: Level, facility: &str, message: &str) {
    match level {
        // Also delivered to the error callback.
        _ if facility == "FAIL" => tracing::debug!(facility, "{message}"),
        Level::Emerg | Level::Alert | Level::Critical | Level::Error => tracing::error!(facility, "{message}"),
        Level::Warning => tracing::warn!(facility, "{message}"),
        Level::Notice | Level::Info => tracing::info!(facility, "{message}"),
        Level::Debug => tracing::debug!(facility, "{message}"),
    }
}

#[cfg(not(feature = "tracing"))]
impl ErrorLogLimiter {
    pub(super) fn log(&self, _: &KafkaError, _: &str) {}
}

#[cfg(not(feature = "tracing"))]
pub(super) fn offset_jump(_: &str, _: OffsetJump) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn topic_missing(_: &str) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn session_lost(_: &str) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn client(_: Level, _: &str, _: &str) {}

#[cfg(all(test, feature = "tracing"))]
mod tests {
    use super::*;

    #[test]
    fn each_error_kind_is_logged_once_per_interval() {
        let (limiter, now) = (ErrorLogLimiter::default(), Instant::now());
        let (down, refused) = (RDKafkaErrorCode::AllBrokersDown, RDKafkaErrorCode::Authentication);
        let errors = [(down, 0), (down, 1), (refused, 2), (down, 29), (down, 31), (refused, 31), (down, 32)];
        let logged = errors.map(|(code, second)| limiter.should_log(code, now + Duration::from_secs(second)));
        assert_eq!(logged, [true, false, true, false, true, false, false]);
    }
}
