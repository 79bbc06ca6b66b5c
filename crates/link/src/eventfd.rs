//! Wakes a waiting event loop from another thread.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::Wake,
};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that is written at most once per wait. A wake costs one store while the thread runs.
pub(crate) struct EventFdWaker {
    fd: OwnedFd,
    state: AtomicU8,
}

/// The thread runs, and was not woken since its last wait.
const RUNNING: u8 = 0;
const WAITING: u8 = 1;
const NOTIFIED: u8 = 2;

impl EventFdWaker {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { fd, state: AtomicU8::new(RUNNING) }))
    }

    /// The descriptor that becomes readable on a wake.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Marks the thread as waiting. Returns true if a wake has come since the last wait: then the thread must not
    /// block.
    pub(crate) fn begin_wait(&self) -> bool {
        self.state.swap(WAITING, Ordering::SeqCst) == NOTIFIED
    }

    /// Marks the thread as running.
    pub(crate) fn end_wait(&self) {
        self.state.store(RUNNING, Ordering::SeqCst);
    }

    /// Resets the counter.
    pub(crate) fn drain(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.fd, &mut count);
    }
}

impl Wake for EventFdWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(NOTIFIED, Ordering::SeqCst) == WAITING {
            // A full counter means that the descriptor is already readable.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}
