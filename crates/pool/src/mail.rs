//! What cores send each other, when a client has to wait. Never touched otherwise.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Connection, courier::Parcel};

/// The letters to one core. A mutex suffices: it is held to push or to take, and only on the waiting path.
pub(crate) struct Mailbox<C: Connection>(Mutex<Letters<C>>);

/// What has come in since the core looked last.
pub(crate) struct Letters<C: Connection> {
    /// Somebody works on this core.
    open: bool,
    /// Something changed: look whether your waiters can be served.
    pub(crate) look: bool,
    /// Somebody waits for an idle connection of yours.
    pub(crate) wanted: bool,
    /// An idle connection of yours has to make room.
    pub(crate) evict: bool,
    pub(crate) parcels: Vec<Parcel<C>>,
}

/// A message between cores.
pub(crate) enum Mail<C: Connection> {
    Look,
    Wanted,
    Evict,
    Parcel(Parcel<C>),
}

impl<C: Connection> Mailbox<C> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Letters::empty(false)))
    }

    /// Leave a message. `Ok(true)`: the core must be woken. `Err`: nobody works there.
    pub(crate) fn post(&self, mail: Mail<C>) -> Result<bool, Mail<C>> {
        let mut letters = self.lock();
        if !letters.open {
            return Err(mail);
        }
        let first = !letters.look && !letters.wanted && !letters.evict && letters.parcels.is_empty();
        match mail {
            Mail::Look => letters.look = true,
            Mail::Wanted => letters.wanted = true,
            Mail::Evict => letters.evict = true,
            Mail::Parcel(parcel) => letters.parcels.push(parcel),
        }
        Ok(first)
    }

    pub(crate) fn take(&self) -> Letters<C> {
        let mut letters = self.lock();
        let open = letters.open;
        std::mem::replace(&mut letters, Letters::empty(open))
    }

    /// Begin to accept messages. False if somebody does so already.
    pub(crate) fn open(&self) -> bool {
        !std::mem::replace(&mut self.lock().open, true)
    }

    /// Accept no more messages; returns those nobody read.
    pub(crate) fn close(&self) -> Letters<C> {
        std::mem::replace(&mut self.lock(), Letters::empty(false))
    }

    fn lock(&self) -> MutexGuard<'_, Letters<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Connection> Letters<C> {
    fn empty(open: bool) -> Self {
        Self { open, look: false, wanted: false, evict: false, parcels: Vec::new() }
    }
}
