//! A member of a consumer group: processes a topic, commits finished records, and prints metrics.
//!
//! `cargo run -p tidegate-lanes --features kafka --example kafka -- localhost:9092 TOPIC GROUP`. A line on standard
//! input, or its end, stops the program. Start a second instance to watch a rebalance: lanes that stay continue, revoked
//! lanes drain first.

use std::error::Error;
use std::time::Duration;

use tidegate_lanes::source::kafka::KafkaSource;
use tidegate_lanes::{Bounds, Record, Subscription, SubscriptionHandle};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(brokers), Some(topic), Some(group)) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: kafka BROKER:9092 TOPIC GROUP".into());
    };
    let source = KafkaSource::builder(&brokers, &group).topic(&topic).drain(Duration::from_secs(10)).build()?;
    let subscription = Subscription::builder("example")
        .source(source)
        .concurrency(1_000)
        .bounds(Bounds { bytes_max: 64 << 20, ..Bounds::default() })
        .process(work)?;
    let handle = subscription.handle();
    let reporter = tokio::spawn(report(handle.clone()));
    // All taken records are finished and committed before `run` returns.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        handle.finish();
    });
    let counters = subscription.run().await?;
    reporter.abort();
    println!("{} finished, {} retried", counters.done, counters.retried);
    Ok(())
}

/// Records of one key run one after another, those of other keys concurrently.
async fn work(record: Record) -> Result<(), std::str::Utf8Error> {
    let _text = std::str::from_utf8(record.payload().unwrap_or_default())?;
    tokio::time::sleep(Duration::from_millis(4)).await;
    Ok(())
}

/// Prints metrics every second.
async fn report(handle: SubscriptionHandle) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let metrics = handle.metrics();
        println!("{} finished, {} pending, {} in flight", metrics.counters.done, metrics.pending, metrics.in_flight);
        for lane in &metrics.lanes {
            println!("  {}: finished through {:?}, {} pending", lane.name, lane.done_through, lane.pending);
        }
        for key in metrics.hot_keys.iter().take(3) {
            println!("  hot: {} ({:.0} %)", String::from_utf8_lossy(&key.key), key.share * 100.0);
        }
    }
}
