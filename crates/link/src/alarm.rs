//! Ends the wait of a thread from another one.

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

/// Rings once however often it is woken, and costs a store while its thread is awake.
pub(crate) struct Alarm {
    fd: OwnedFd,
    state: AtomicU8,
}

/// The thread runs, waits, or was woken since it last waited.
const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const RUNG: u8 = 2;

impl Alarm {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { fd, state: AtomicU8::new(AWAKE) }))
    }

    /// What becomes readable when it rings.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The thread is about to wait. True if it has been woken since it last did, and shall not.
    pub(crate) fn is_rung(&self) -> bool {
        self.state.swap(ASLEEP, Ordering::SeqCst) == RUNG
    }

    /// The thread has waited.
    pub(crate) fn rise(&self) {
        self.state.store(AWAKE, Ordering::SeqCst);
    }

    /// Makes it silent again.
    pub(crate) fn hush(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.fd, &mut count);
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(RUNG, Ordering::SeqCst) == ASLEEP {
            // A full counter means that the alarm already rings.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}
