//! What a socket shares with its operations under way.
//!
//! The kernel writes into the memory of [`Receive::Bulk`] and reads that of the chunk being sent. Both are taken from here
//! only by the completion of their operation.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    task::{Context, Waker},
};

use super::buffers::Loan;
use crate::chunk::Chunk;

/// A descriptor, and the operations under way on it: one receive and one send at most.
pub(super) struct Port {
    fd: OwnedFd,
    /// Its place in the ring.
    slot: Cell<u32>,
    receive: RefCell<Receive>,
    reader: Cell<Option<Waker>>,
    sending: Cell<Option<Chunk>>,
    sends: Cell<bool>,
    writer: Cell<Option<Waker>>,
    /// The socket is gone.
    abandoned: Cell<bool>,
}

/// What becomes of the bytes that arrive next.
enum Receive {
    Idle,
    /// Into a buffer of the ring.
    Lent,
    /// Into a large buffer of its own.
    Bulk(Vec<u8>),
    /// They have arrived.
    Done(io::Result<Chunk>),
}

/// What a receive has come to.
pub(super) enum Look {
    Idle,
    UnderWay,
    Done(io::Result<Chunk>),
}

impl Port {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            slot: Cell::new(u32::MAX),
            receive: RefCell::new(Receive::Idle),
            reader: Cell::default(),
            sending: Cell::default(),
            sends: Cell::new(false),
            writer: Cell::default(),
            abandoned: Cell::new(false),
        }
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The bare descriptor.
    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot.get()
    }

    pub(super) fn settle(&self, slot: u32) {
        self.slot.set(slot);
    }

    /// Takes what was received.
    #[inline]
    pub(super) fn look(&self) -> Look {
        let mut receive = self.receive.borrow_mut();
        match &*receive {
            Receive::Idle => Look::Idle,
            Receive::Lent | Receive::Bulk(_) => Look::UnderWay,
            Receive::Done(_) => match std::mem::replace(&mut *receive, Receive::Idle) {
                Receive::Done(received) => Look::Done(received),
                _ => Look::Idle,
            },
        }
    }

    /// Puts back what `look` has taken.
    pub(super) fn put_back(&self, received: io::Result<Chunk>) {
        self.receive.replace(Receive::Done(received));
    }

    /// A receive into a lent buffer begins.
    pub(super) fn lend(&self) {
        self.receive.replace(Receive::Lent);
    }

    /// A receive into memory of its own begins: where that is. It stays until the receive has ended.
    pub(super) fn make_room(&self, len: usize) -> *mut u8 {
        let mut bytes = vec![0; len];
        let start = bytes.as_mut_ptr();
        self.receive.replace(Receive::Bulk(bytes));
        start
    }

    /// The receive has ended.
    #[inline]
    pub(super) fn received(&self, result: io::Result<u32>, loan: Option<Loan>) {
        let mut receive = self.receive.borrow_mut();
        let done = result.map(|received| match std::mem::replace(&mut *receive, Receive::Idle) {
            Receive::Bulk(bytes) => {
                let mut chunk = Chunk::from(bytes);
                chunk.truncate(received as usize);
                chunk
            }
            _ => loan.map_or(Chunk::empty(), Chunk::ring),
        });
        *receive = Receive::Done(done);
        drop(receive);
        wake(&self.reader);
    }

    /// The task to be woken by the end of the receive.
    #[inline]
    pub(super) fn wake_reader(&self, cx: &Context<'_>) {
        store(&self.reader, cx);
    }

    /// A send begins: where its bytes are. They stay until the send has ended.
    pub(super) fn load(&self, chunk: Chunk) -> (*const u8, usize) {
        let bytes = (chunk.as_ptr(), chunk.len());
        self.sends.set(true);
        self.sending.set(Some(chunk));
        bytes
    }

    /// The send has ended. What of it the kernel has not taken, if it may go on.
    #[inline]
    pub(super) fn sent(&self, result: io::Result<u32>) -> Option<Chunk> {
        let chunk = self.sending.take();
        if let (Some(mut chunk), Ok(sent)) = (chunk, result)
            && sent > 0
            && (sent as usize) < chunk.len()
            && !self.abandoned.get()
        {
            chunk.advance(sent as usize);
            return Some(chunk);
        }
        // Why it has failed, the next receive tells.
        self.sends.set(false);
        wake(&self.writer);
        None
    }

    #[inline]
    pub(super) fn is_sending(&self) -> bool {
        self.sends.get()
    }

    /// The task to be woken by the end of the send.
    pub(super) fn wake_writer(&self, cx: &Context<'_>) {
        store(&self.writer, cx);
    }

    pub(super) fn is_receiving(&self) -> bool {
        matches!(&*self.receive.borrow(), Receive::Lent | Receive::Bulk(_))
    }

    #[cfg(test)]
    pub(super) fn is_lent(&self) -> bool {
        matches!(&*self.receive.borrow(), Receive::Lent)
    }

    /// Nothing is under way.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.is_sending() && !self.is_receiving()
    }

    /// The socket is gone: nobody is to be woken.
    pub(super) fn abandon(&self) {
        self.abandoned.set(true);
        drop((self.reader.take(), self.writer.take()));
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.get()
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The waker stays: the same task most often waits again.
fn wake(place: &Cell<Option<Waker>>) {
    if let Some(waker) = place.take() {
        waker.wake_by_ref();
        place.set(Some(waker));
    }
}

fn store(place: &Cell<Option<Waker>>, cx: &Context<'_>) {
    let before = place.take().filter(|waker| waker.will_wake(cx.waker()));
    place.set(Some(before.unwrap_or_else(|| cx.waker().clone())));
}
