//! What clock and machine allow where each key has its next record always at hand: a bare task for each key, which does
//! nothing but sleep, again and again.

use std::time::Duration;

use crate::load::{Handler, Keys, Load};
use crate::precise;

/// By the clock of the handlers, which wakes to the microsecond.
pub(crate) const SLEEPERS: &str = "bare sleepers";
/// By tokio's, which wakes at the millisecond after.
pub(crate) const TOKIO_SLEEPERS: &str = "bare sleepers, tokio's clock";

/// As many sleeps as the load has records, by as many tasks as it has keys.
pub(crate) async fn sleep_all(subject: &str, load: Load) {
    let (Keys::InTurn(keys), Handler::Precise(micros)) = (load.keys, load.handler) else {
        panic!("sleepers stand for keys in turn and a handler that sleeps once");
    };
    let (wait, is_precise) = (Duration::from_micros(micros), subject == SLEEPERS);
    let sleeper = |_| {
        tokio::spawn(async move {
            for _ in 0..load.records / keys {
                if is_precise { precise::sleep(wait).await } else { tokio::time::sleep(wait).await }
            }
        })
    };
    let tasks: Vec<_> = (0..keys).map(sleeper).collect();
    for task in tasks {
        task.await.expect("the bench does not panic");
    }
}
