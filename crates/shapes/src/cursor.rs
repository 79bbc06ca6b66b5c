//! The cursor of live answers, and the headers that limit how long caches use an answer.
//!
//! A cache collapses equal live requests. The cursor makes the next request of a client differ from its last, so that a cache
//! cannot answer with what the client has already.

use std::borrow::Cow;
use std::time::Duration;

/// Cursors count seconds since 2024-10-09T00:00:00Z, as Electric's do.
const EPOCH: u64 = 1_728_432_000;

/// The largest random step of a cursor that would not advance.
const STEP_MAX: u64 = 3600;

/// The next cursor: the end of the current interval, or more than the client's cursor if that is not smaller (SH-35).
/// `random` is any number.
#[must_use]
pub(crate) fn next_cursor(unix_seconds: u64, interval: Duration, client: Option<u64>, random: u64) -> u64 {
    let interval = interval.as_secs().max(1);
    let next = unix_seconds.saturating_sub(EPOCH).div_ceil(interval).saturating_mul(interval);
    match client {
        Some(cursor) if next <= cursor => cursor.saturating_add(1 + random % STEP_MAX),
        _ => next,
    }
}

/// The kind of an answer for caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cacheability {
    /// The first chunk of a shape never changes.
    Snapshot,
    /// Another chunk, or the growing end of the log.
    CatchUp,
    /// A long-poll.
    Live,
    /// A stream of events.
    EventStream,
    /// Another handle is current.
    Moved,
    /// Errors, and a 409 that names no handle (SH-31, SH-32).
    Never,
    /// Subsets, and methods without a cacheable answer.
    Revalidate,
}

/// Ages that can be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheAges {
    /// `max-age` of answers that are not live.
    pub max_age: Duration,
    /// `stale-while-revalidate` of these.
    pub stale_age: Duration,
    /// How long a stream of events lasts.
    pub event_stream: Duration,
}

impl Default for CacheAges {
    fn default() -> Self {
        Self {
            max_age: Duration::from_secs(60),
            stale_age: Duration::from_secs(300),
            event_stream: Duration::from_secs(60),
        }
    }
}

/// The header `cache-control`.
#[must_use]
pub(crate) fn cache_control(answer: Cacheability, ages: &CacheAges) -> Cow<'static, str> {
    Cow::Borrowed(match answer {
        // A CDN looks again each hour, a browser never.
        Cacheability::Snapshot => "public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746",
        Cacheability::CatchUp => {
            let (max_age, stale_age) = (ages.max_age.as_secs(), ages.stale_age.as_secs());
            return format!("public, max-age={max_age}, stale-while-revalidate={stale_age}").into();
        }
        Cacheability::Live => "public, max-age=5, stale-while-revalidate=5",
        Cacheability::EventStream => {
            return format!("public, max-age={}", ages.event_stream.as_secs().saturating_sub(1)).into();
        }
        Cacheability::Moved => "public, max-age=60, must-revalidate",
        Cacheability::Never => "no-store",
        Cacheability::Revalidate => "no-cache",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(20);

    /// SH-35.
    #[test]
    fn cursor_never_goes_back() {
        assert_eq!(next_cursor(EPOCH + 1, INTERVAL, None, 0), 20);
        assert_eq!(next_cursor(EPOCH + 20, INTERVAL, Some(0), 0), 20);
        let mut cursor = None;
        for second in 0..500 {
            // Seconds 100 to 200 repeat, as with a clock that was set back.
            let now = EPOCH + if second > 200 { second - 100 } else { second };
            let next = next_cursor(now, INTERVAL, cursor, second * 7919);
            assert!(cursor.is_none_or(|cursor| next > cursor), "second {second}");
            cursor = Some(next);
        }
        assert_eq!(next_cursor(0, INTERVAL, Some(u64::MAX), 5), u64::MAX);
    }

    /// SH-32: the table of the protocol.
    #[test]
    fn cache_control_follows_the_protocol() {
        let cases = [
            (Cacheability::Snapshot, "public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746"),
            (Cacheability::CatchUp, "public, max-age=60, stale-while-revalidate=300"),
            (Cacheability::Live, "public, max-age=5, stale-while-revalidate=5"),
            (Cacheability::EventStream, "public, max-age=59"),
            (Cacheability::Moved, "public, max-age=60, must-revalidate"),
            (Cacheability::Never, "no-store"),
            (Cacheability::Revalidate, "no-cache"),
        ];
        for (answer, expected) in cases {
            assert_eq!(cache_control(answer, &CacheAges::default()), expected);
        }
    }
}
