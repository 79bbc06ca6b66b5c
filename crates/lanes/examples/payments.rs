//! Payments of several accounts, read from lines: concurrent across accounts, in order within an account, and no line is
//! lost.
//!
//! `cargo run -p tidegate-lanes --example payments`. No server is needed. Each payment takes a while, like a call to a
//! bank. The bank of Dan is unavailable at first, so his payments are retried and only his account waits. The second
//! payment of Eve has an invalid amount and goes to the dead-letter queue; her third one continues.

use std::error::Error;
use std::time::Duration;

use tidegate_lanes::source::{NdjsonFormat, NdjsonSource};
use tidegate_lanes::{
    Completion, DeadLetter, Delivery, ExhaustedAction, Interceptor, Record, RecordFailure, RecordRetryPolicy,
    Subscription,
};

const LINES: &str = r#"{"account":"ann","amount":5}
{"account":"bob","amount":7}
{"account":"ann","amount":30}
{"account":"dan","amount":1}
{"account":"eve","amount":2}
{"account":"eve","amount":"much"}
{"account":"dan","amount":2}
{"account":"eve","amount":3}
{"account":"ann","amount":8}
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The account is the ordering key.
    let source = NdjsonSource::reader("example", LINES.as_bytes(), NdjsonFormat::keyed_by("/account"))?;
    let subscription = Subscription::builder("payments")
        .source(source)
        .concurrency(100)
        .retry(RecordRetryPolicy {
            attempts_max: Some(5),
            wait_min: Duration::from_millis(20),
            ..RecordRetryPolicy::default()
        })
        .exhausted(ExhaustedAction::DeadLetter)
        .dead_letter_queue(dead_letter)
        .interceptor(Teller)
        .handler(|delivery: Delivery| async move {
            let Delivery { record, completion, attempt } = delivery;
            pay(&record, attempt, completion).await;
        })?;
    let counters = subscription.run().await?;
    println!("{} paid, {} retried, {} dead letters", counters.done, counters.retried, counters.dead_lettered);
    Ok(())
}

/// Pays, and ends the completion. The completion could be moved to another task: the account waits for it.
async fn pay(record: &Record, attempt: u32, completion: Completion) {
    tokio::time::sleep(Duration::from_millis(10)).await;
    let line: serde_json::Value = serde_json::from_slice(record.payload().unwrap_or_default()).unwrap_or_default();
    match line["amount"].as_u64() {
        // Dropping the completion would also count as a failure.
        None => completion.fail(RecordFailure::permanent(format!("{} is not an amount", line["amount"]))),
        Some(_) if record.key() == Some(b"dan") && attempt < 3 => {
            completion.fail(RecordFailure::new("bank unavailable"));
        }
        Some(_) => completion.finish(),
    }
}

/// Stores a dead letter. The record counts as finished once the future resolves.
async fn dead_letter(letter: DeadLetter) -> Result<(), Box<dyn Error + Send + Sync>> {
    let line = String::from_utf8_lossy(letter.record.payload().unwrap_or_default()).into_owned();
    println!("  not paid: {line}: {}", letter.failure);
    Ok(())
}

/// Prints every attempt.
struct Teller;

impl Interceptor for Teller {
    fn after(&self, record: &Record, result: Result<(), &RecordFailure>) {
        let account = String::from_utf8_lossy(record.key().unwrap_or_default()).into_owned();
        match result {
            Ok(()) => println!("  {account}: line ending at byte {} paid", record.position()),
            Err(failure) => println!("  {account}: {failure}"),
        }
    }
}
