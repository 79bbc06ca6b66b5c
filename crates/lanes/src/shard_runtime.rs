//! A thread with its own tokio runtime, for one shard and its handlers.

use std::future::poll_fn;
use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};

use crate::mailbox::ShardMailbox;

/// Dropping it shuts the runtime down and aborts the tasks on it.
#[derive(Debug)]
pub(crate) struct ShardRuntime {
    tokio: Handle,
    /// Any message requests shutdown.
    shutdown: ShardMailbox<Vec<()>>,
}

impl ShardRuntime {
    /// # Errors
    /// Returns an error if the system refuses a thread or the runtime's driver.
    pub(crate) fn start(name: &str, number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let tokio = runtime.handle().clone();
        let shutdown = ShardMailbox::new();
        let shutdown_ = shutdown.clone();
        let run = move || {
            runtime.block_on(poll_fn(|cx| shutdown_.poll_receive(cx, &mut Vec::new())));
            // Blocking tasks end on their own.
            runtime.shutdown_background();
        };
        thread::Builder::new().name(format!("{name}-shard-{number}")).spawn(run)?;
        Ok(Self { tokio, shutdown })
    }

    pub(crate) fn tokio(&self) -> Handle {
        self.tokio.clone()
    }
}

impl Drop for ShardRuntime {
    fn drop(&mut self) {
        self.shutdown.post(|messages| messages.push(()));
    }
}
