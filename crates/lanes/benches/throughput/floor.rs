//! The lower bound set by clock and machine: one bare task per key that only sleeps.

use std::time::Duration;

use crate::load::{Handler, Keys, Load};
use crate::precise;

/// The clock of the handlers, which is exact to a microsecond.
pub(crate) const SLEEPERS: &str = "bare sleepers";
/// The timer of tokio, which rounds up to the next millisecond.
pub(crate) const TOKIO_SLEEPERS: &str = "bare sleepers, tokio's clock";

/// As many sleeps as records, in as many tasks as keys.
pub(crate) async fn sleep_all(subject: &str, load: Load) {
    let (Keys::InTurn(keys), Handler::Precise(micros)) = (load.keys, load.handler) else {
        panic!("needs keys in rotation and one sleep per record");
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
        task.await.expect("benchmark panicked");
    }
}
