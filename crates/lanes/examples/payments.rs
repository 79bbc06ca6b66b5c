//! Payments of several accounts, from lines: concurrently across accounts, in order within one, and every line accounted for.
//!
//! `cargo run -p tidegate-lanes --example payments`. No server is needed: the lines stand here. Each payment takes a while, as
//! if a bank were asked. Dan's bank is away at first, so his payments are tried again, and only he waits. Eve's second payment is
//! no number: it goes to the dead-letter, and her third one goes on.

use std::error::Error;
use std::time::Duration;

use tidegate_lanes::source::{Format, Ndjson};
use tidegate_lanes::{Completion, Delivery, Exhausted, Failure, Interceptor, Letter, Record, Retry, Subscription};

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
    // What orders the lines is the account: those of one account run one after another.
    let source = Ndjson::reader("the example", LINES.as_bytes(), Format::keyed_by("/account"))?;
    let subscription = Subscription::builder("payments")
        .source(source)
        .concurrency(100)
        .retry(Retry { attempts: Some(5), first_wait: Duration::from_millis(20), ..Retry::default() })
        .exhausted(Exhausted::DeadLetter)
        .dead_letter(bury)
        .interceptor(Teller)
        .handler(|delivery: Delivery| async move {
            let Delivery { record, completion, attempt } = delivery;
            pay(&record, attempt, completion).await;
        })?;
    let tally = subscription.run().await?;
    println!("{} paid, {} tried again, {} in the dead-letter", tally.done, tally.retried, tally.dead_lettered);
    Ok(())
}

/// Pays, and says so by the completion. It could be moved to another task and finished there: the account waits for it.
async fn pay(record: &Record, attempt: u32, completion: Completion) {
    tokio::time::sleep(Duration::from_millis(10)).await;
    let line: serde_json::Value = serde_json::from_slice(record.payload().unwrap_or_default()).unwrap_or_default();
    match line["amount"].as_u64() {
        // Dropping the completion would be a failure, too; nothing is done that nobody has finished.
        None => completion.fail(Failure::permanent(format!("{} is no amount", line["amount"]))),
        Some(_) if record.key() == Some(b"dan") && attempt < 3 => completion.fail(Failure::new("the bank is away")),
        Some(_) => completion.finish(),
    }
}

/// Keeps what cannot be done. Only when this is over does the record count as done.
async fn bury(letter: Letter) -> Result<(), Box<dyn Error + Send + Sync>> {
    let line = String::from_utf8_lossy(letter.record.payload().unwrap_or_default()).into_owned();
    println!("  cannot be paid: {line}: {}", letter.failure);
    Ok(())
}

/// Is told of every attempt.
struct Teller;

impl Interceptor for Teller {
    fn after(&self, record: &Record, result: Result<(), &Failure>) {
        let account = String::from_utf8_lossy(record.key().unwrap_or_default()).into_owned();
        match result {
            Ok(()) => println!("  {account}: the line that ends at byte {} is paid", record.position()),
            Err(failure) => println!("  {account}: {failure}"),
        }
    }
}
