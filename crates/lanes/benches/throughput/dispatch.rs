//! Dispatch latency at a steady load, with and without hot keys, and memory per live key.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tidegate_lanes::source::MemorySource;
use tidegate_lanes::{Bounds, Delivery, Epoch, Lane, Subscription};

use crate::load::{Handler, Keys, Load};
use crate::usage::status;

/// Records per second: a large part of what two cores can process, so that queues form.
const OFFERED: u32 = 20_000;
/// Keys of this rank and higher are cold.
const COLD: u32 = 100;

/// The 99th percentile of the wait of cold keys, in milliseconds; the handler takes 1 ms.
pub(crate) async fn cold_p99_ms(keys: Keys, seconds: u32) -> f64 {
    let load = Load { records: OFFERED * seconds, keys, handler: Handler::Nothing, in_flight: 10_000 };
    let (source, feed) = MemorySource::new();
    let epoch = feed.assign(Lane(0));
    let records = load.records(epoch);
    let began = Instant::now();
    let waits: Arc<Mutex<Vec<u64>>> = Arc::default();
    let noted = Arc::clone(&waits);
    let handler = move |delivery: Delivery| {
        let key = delivery
            .payload()
            .map_or(0, |payload| u32::from_le_bytes([payload[0], payload[1], payload[2], payload[3]]));
        if key >= COLD {
            let offered = due(delivery.position().0);
            let waited = began.elapsed().saturating_sub(offered).as_micros() as u64;
            noted.lock().expect("not poisoned").push(waited);
        }
        async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            delivery.finish();
        }
    };
    // Queued records of the hot key must not fill the bounds.
    let bounds = Bounds {
        records_max: usize::MAX,
        lane_records_max: usize::MAX,
        lane_span_max: usize::MAX,
        ..Bounds::default()
    };
    let subscription =
        Subscription::builder("bench").source(source).bounds(bounds).handler(handler).expect("valid settings");
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    for records in records.chunks(OFFERED as usize / 1000) {
        let at = due(records[0].position().0);
        tokio::time::sleep_until((began + at).into()).await;
        feed.extend(records.iter().cloned());
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    handle.stop(Duration::from_secs(1));
    running.await.expect("it does not panic").expect("no error");
    let mut waits = std::mem::take(&mut *waits.lock().expect("not poisoned"));
    waits.sort_unstable();
    waits.get(waits.len() * 99 / 100).map_or(f64::NAN, |micros| *micros as f64 / 1000.0)
}

/// When a record is due: the same number in each millisecond.
fn due(position: u64) -> Duration {
    Duration::from_millis(position / (u64::from(OFFERED) / 1000))
}

/// Resident bytes per key, for 300,000 keys with one queued record each, without the bytes of key and payload.
pub(crate) async fn bytes_per_key() -> f64 {
    const KEYS: u32 = 300_000;
    let load = Load { records: KEYS, keys: Keys::Unique, handler: Handler::Nothing, in_flight: 1 };
    let (source, feed) = MemorySource::new();
    let epoch: Epoch = feed.assign(Lane(0));
    let records = load.records(epoch);
    let bounds = Bounds {
        records_max: usize::MAX,
        lane_records_max: usize::MAX,
        bytes_max: usize::MAX,
        ready_max: usize::MAX,
        ..Bounds::default()
    };
    let builder = Subscription::builder("bench").source(source).bounds(bounds).rate(0.0);
    let subscription = builder.process(|_| async { Ok::<(), String>(()) }).expect("valid settings");
    let handle = subscription.handle();
    let running = tokio::spawn(subscription.run());
    let before = status("VmRSS:");
    for portion in records.chunks(1000) {
        feed.extend(portion.iter().cloned());
        while feed.queued() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    while handle.metrics().counters.keys < KEYS as usize {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let used = status("VmRSS:").saturating_sub(before);
    handle.stop(Duration::ZERO);
    running.await.expect("no panic").expect("it ends well");
    // The reference counts of the body belong to the library and were allocated before.
    used as f64 * 1024.0 / f64::from(KEYS) + 16.0
}
