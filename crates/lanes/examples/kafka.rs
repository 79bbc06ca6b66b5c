//! A member of a consumer group: reads a topic, works on each record, commits what is done, and tells how it goes.
//!
//! `cargo run -p tidegate-lanes --features kafka --example kafka -- localhost:9092 TOPIC GROUP`; a line on standard input (or
//! its end) ends it. Start it a second time to see the partitions being shared out: those that stay go on, those that leave
//! come to rest first.

use std::error::Error;
use std::time::Duration;

use tidegate_lanes::source::kafka::Kafka;
use tidegate_lanes::{Bounds, Handle, Record, Subscription};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(brokers), Some(topic), Some(group)) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: kafka BROKER:9092 TOPIC GROUP".into());
    };
    let source = Kafka::builder(&brokers, &group).topic(&topic).drain(Duration::from_secs(10)).build()?;
    let subscription = Subscription::builder("example")
        .source(source)
        .concurrency(1_000)
        .bounds(Bounds { bytes_max: 64 << 20, ..Bounds::default() })
        .process(work)?;
    let handle = subscription.handle();
    let told = tokio::spawn(tell(handle.clone()));
    // Whatever was read is done and committed before `run` returns.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        handle.finish();
    });
    let tally = subscription.run().await?;
    told.abort();
    println!("{} done, {} tried again", tally.done, tally.retried);
    Ok(())
}

/// Records of one key run one after another; those of other keys meanwhile.
async fn work(record: Record) -> Result<(), std::str::Utf8Error> {
    let _text = std::str::from_utf8(record.payload().unwrap_or_default())?;
    tokio::time::sleep(Duration::from_millis(4)).await;
    Ok(())
}

/// Once a second: what is done, what waits, and how far each partition is.
async fn tell(handle: Handle) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let metrics = handle.metrics();
        println!("{} done, {} pending, {} in flight", metrics.tally.done, metrics.pending, metrics.in_flight);
        for lane in &metrics.lanes {
            println!("  {}: done through {:?}, {} pending", lane.name, lane.done_through, lane.pending);
        }
        for key in metrics.hot_keys.iter().take(3) {
            println!("  hot: {} ({:.0} %)", String::from_utf8_lossy(&key.key), key.share * 100.0);
        }
    }
}
