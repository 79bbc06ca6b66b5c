//! Sinks that cannot be reached yet.

use std::fmt::Display;
use std::time::Duration;

use tidegate_config::stream::StreamKeys;
use tidegate_supervise::Backoff;

/// Waits before the next attempt to open a sink that is away.
pub(crate) async fn wait_for_sink(keys: &StreamKeys, error: &(impl Display + Sync), failures: u32) {
    let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
    let delay = backoff.delay(failures, fastrand::f64());
    tracing::warn!(stream = keys.name, %error, ?delay, "the sink cannot be used yet");
    tokio::time::sleep(delay).await;
}
