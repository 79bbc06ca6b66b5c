//! The exit of a child, for those that wait for it.

use std::task::Waker;

use crate::Exit;
use crate::sync::{Mutex, lock};

/// Passes a child's exit to a waiter.
#[derive(Debug, Default)]
pub(crate) struct ExitWatch(pub(crate) Mutex<(Option<Exit>, Option<Waker>)>);

impl ExitWatch {
    pub(crate) fn notify(&self, exit: Exit) {
        let waker = {
            let mut watch = lock(&self.0);
            watch.0 = Some(exit);
            watch.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
