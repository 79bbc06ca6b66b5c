//! Contains panics of handlers and reports the panic message.
//!
//! A completion that is dropped during unwinding does not know the panic message; the code that catches the panic does.
//! So while a handler runs, such a completion is stored in a thread-local, and the catcher fails it with the message.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::failure::{FailureCause, RecordFailure};
use crate::messages::{HandlerOutcome, OutcomeSender};

thread_local! {
    static DEFERRED: Cell<DeferredOutcomes> = const { Cell::new(DeferredOutcomes::NotCatching) };
}

enum DeferredOutcomes {
    /// No handler runs on this thread.
    NotCatching,
    Catching(Vec<OutcomeSender>),
}

/// Calls `run`. If it panics, completions dropped during unwinding fail with the panic message.
pub(crate) fn contain<T>(run: impl FnOnce() -> T) -> Option<T> {
    let outer = DEFERRED.replace(DeferredOutcomes::Catching(Vec::new()));
    let result = catch_unwind(AssertUnwindSafe(run));
    let caught = DEFERRED.replace(outer);
    match result {
        Ok(value) => Some(value),
        Err(payload) => {
            let message = message(&*payload);
            // Dropping a payload may panic, too.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
            if let DeferredOutcomes::Catching(senders) = caught {
                let failed =
                    || HandlerOutcome::Failed(Box::new(RecordFailure::of(FailureCause::Panic, message.clone())));
                senders.iter().for_each(|sender| sender.send(failed()));
            }
            None
        }
    }
}

/// Stores a completion that is dropped by a panic for the catcher of this thread. Returns it if there is no catcher.
pub(crate) fn defer(sender: OutcomeSender) -> Option<OutcomeSender> {
    match DEFERRED.replace(DeferredOutcomes::NotCatching) {
        DeferredOutcomes::NotCatching => Some(sender),
        DeferredOutcomes::Catching(mut senders) => {
            senders.push(sender);
            DEFERRED.set(DeferredOutcomes::Catching(senders));
            None
        }
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no panic message".to_owned())
}
