//! A thread with a tokio runtime of its own, for one shard and its handlers.

use std::future::poll_fn;
use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};

use crate::mailbox::Mailbox;

/// Dropped, it ends, and what still runs on it with it.
#[derive(Debug)]
pub(crate) struct Home {
    tokio: Handle,
    /// Mail is the end.
    end: Mailbox<Vec<()>>,
}

impl Home {
    /// # Errors
    /// If the system gives no thread, or no timer.
    pub(crate) fn start(name: &str, number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let tokio = runtime.handle().clone();
        let end = Mailbox::new();
        let ended = end.clone();
        let live = move || {
            runtime.block_on(poll_fn(|cx| ended.poll_take(cx, &mut Vec::new())));
            // What blocks a thread ends on its own.
            runtime.shutdown_background();
        };
        thread::Builder::new().name(format!("{name}-shard-{number}")).spawn(live)?;
        Ok(Self { tokio, end })
    }

    pub(crate) fn tokio(&self) -> Handle {
        self.tokio.clone()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.end.post(|mail| mail.push(()));
    }
}
