//! Panics of handlers: contained, and told with the panic's own words.
//!
//! A completion that is dropped by an unwinding handler knows that there was a panic, but not what it said; whoever
//! catches it knows. So while a handler runs, a completion dropped by its panic leaves word in a cell of the thread, and
//! the catcher sends both together.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::completion::Completion;

thread_local! {
    static CATCHER: Cell<Catcher> = const { Cell::new(Catcher::Absent) };
}

enum Catcher {
    /// No handler runs on this thread.
    Absent,
    Present(Vec<Completion>),
}

/// Runs `run`. If it panics, the completions that it dropped in doing so fail with the panic's words.
pub(crate) fn contain<T>(run: impl FnOnce() -> T) -> Option<T> {
    let outer = CATCHER.replace(Catcher::Present(Vec::new()));
    let result = catch_unwind(AssertUnwindSafe(run));
    let caught = CATCHER.replace(outer);
    match result {
        Ok(value) => Some(value),
        Err(payload) => {
            let words = words(&*payload);
            // The drop of a payload may panic itself.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
            if let Catcher::Present(completions) = caught {
                completions.into_iter().for_each(|completion| completion.panicked(words.clone()));
            }
            None
        }
    }
}

/// Gives a completion that is being dropped by a panic to the catcher of this thread; back, if there is none.
pub(crate) fn leave(completion: Completion) -> Option<Completion> {
    match CATCHER.replace(Catcher::Absent) {
        Catcher::Absent => Some(completion),
        Catcher::Present(mut completions) => {
            completions.push(completion);
            CATCHER.set(Catcher::Present(completions));
            None
        }
    }
}

fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without words".to_owned())
}
