//! What a socket shares with its operations under way.
//!
//! The kernel writes into the room for a bulk receive and reads the chunk being sent. Both are taken from here only by the
//! completion of their operation.

use std::{
    cell::Cell,
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    task::{Context, Waker},
};

use super::{buffers::Loan, files::FileNumber, was_stopped};
use crate::chunk::{Chunk, Lent};

/// A descriptor, and the operations under way on it: one receive (or one that goes on from receive to receive) and one send
/// at most.
pub(super) struct Port {
    fd: OwnedFd,
    /// Its place in the ring.
    slot: Cell<u32>,
    /// By which the kernel knows the descriptor, if it does.
    number: Cell<Option<FileNumber>>,
    receiving: Cell<Receiving>,
    /// Where a bulk receive writes.
    room: Cell<Option<Lent>>,
    /// What has arrived first and was not taken yet.
    arrived: Cell<Option<io::Result<Chunk>>>,
    /// What has arrived behind it.
    later: Cell<Option<Box<Later>>>,
    sending: Cell<Option<Chunk>>,
    sends: Cell<bool>,
    /// The task that waits, for what arrives or for the end of the send.
    waker: Cell<Option<Waker>>,
    /// It waits for what arrives.
    awaits_bytes: Cell<bool>,
    /// It waits for the end of the send.
    awaits_sent: Cell<bool>,
    /// The socket is gone.
    abandoned: Cell<bool>,
    speech: Cell<Speech>,
}

/// Whether the peer has to be looked at, as it may have left right behind its last words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Speech {
    #[default]
    Seen,
    /// It will be looked at when it falls silent.
    Noted,
    /// It has spoken since it was noted, or since somebody wanted to look.
    Speaking,
}

/// In a box, for a port that has none is to be small.
#[derive(Default)]
struct Later(VecDeque<io::Result<Chunk>>);

/// Which receive is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    Nothing,
    /// Into a buffer of the ring.
    Once,
    /// Into one buffer of the ring after the other, until it is asked to end.
    Stream,
    /// Into a large buffer of its own.
    Bulk,
}

/// What a receive has come to.
pub(super) enum Look {
    Idle,
    UnderWay,
    Done(io::Result<Chunk>),
}

/// A stream that has brought so much behind what nobody has taken yet is to end.
const LATER_MAX: usize = 3;

impl Port {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            slot: Cell::new(u32::MAX),
            number: Cell::default(),
            receiving: Cell::new(Receiving::Nothing),
            room: Cell::default(),
            arrived: Cell::default(),
            later: Cell::default(),
            sending: Cell::default(),
            sends: Cell::new(false),
            waker: Cell::default(),
            awaits_bytes: Cell::new(false),
            awaits_sent: Cell::new(false),
            abandoned: Cell::new(false),
            speech: Cell::default(),
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

    #[inline]
    pub(super) fn number(&self) -> Option<FileNumber> {
        self.number.get()
    }

    pub(super) fn set_number(&self, number: Option<FileNumber>) {
        self.number.set(number);
    }

    /// Takes what was received.
    #[inline]
    pub(super) fn look(&self) -> Look {
        match self.arrived.take() {
            Some(received) => {
                if let Some(mut later) = self.later.take() {
                    self.arrived.set(later.0.pop_front());
                    self.later.set(Some(later).filter(|later| !later.0.is_empty()));
                }
                Look::Done(received)
            }
            None if self.receiving.get() == Receiving::Nothing => Look::Idle,
            None => Look::UnderWay,
        }
    }

    /// A receive begins that is given buffers of the ring.
    pub(super) fn lend(&self, receiving: Receiving) {
        self.receiving.set(receiving);
    }

    /// A receive into memory of its own begins: where that is. It stays until the receive has ended.
    pub(super) fn make_room(&self, mut room: Lent) -> (*mut u8, usize) {
        let bytes = room.as_mut_slice();
        let place = (bytes.as_mut_ptr(), bytes.len());
        self.room.set(Some(room));
        self.receiving.set(Receiving::Bulk);
        place
    }

    /// A receive has ended, or has brought something and goes on. Says whether that is too much for whoever reads, so that
    /// it is to be stopped.
    #[inline]
    pub(super) fn received(&self, result: io::Result<u32>, loan: Option<Loan>, goes_on: bool) -> bool {
        if !goes_on {
            self.receiving.set(Receiving::Nothing);
        }
        let room = self.room.take();
        let received = result.map(|len| match (room, loan) {
            (Some(room), _) => Chunk::bulk(room, len as usize),
            (None, loan) => loan.map_or(Chunk::empty(), Chunk::ring),
        });
        // What was stopped is begun anew when somebody listens.
        let is_crowded = match received {
            Err(error) if was_stopped(&error) => false,
            _ if self.abandoned.get() => false,
            received => self.keep(received) && goes_on,
        };
        if self.awaits_bytes.take() {
            self.wake();
        }
        is_crowded
    }

    /// Keeps what has arrived until it is taken. Says whether that has become much.
    #[inline]
    fn keep(&self, received: io::Result<Chunk>) -> bool {
        // Nobody waits for it, so that it must not keep a buffer from others.
        let received = if self.awaits_bytes.get() { received } else { received.map(Chunk::park) };
        match self.arrived.take() {
            None => {
                self.arrived.set(Some(received));
                false
            }
            first => {
                self.arrived.set(first);
                let mut later = self.later.take().unwrap_or_default();
                later.0.push_back(received);
                let is_much = later.0.len() == LATER_MAX;
                self.later.set(Some(later));
                is_much
            }
        }
    }

    /// Whoever waits is woken by what arrives.
    #[inline]
    pub(super) fn await_bytes(&self, cx: &Context<'_>) {
        self.awaits_bytes.set(true);
        self.note_waker(cx);
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
        if self.awaits_sent.take() {
            self.wake();
        }
        None
    }

    #[inline]
    pub(super) fn is_sending(&self) -> bool {
        self.sends.get()
    }

    /// Whoever waits is woken by the end of the send.
    pub(super) fn await_sent(&self, cx: &Context<'_>) {
        self.awaits_sent.set(true);
        self.note_waker(cx);
    }

    /// The same task most often waits again.
    #[inline]
    fn note_waker(&self, cx: &Context<'_>) {
        let before = self.waker.take().filter(|waker| waker.will_wake(cx.waker()));
        self.waker.set(Some(before.unwrap_or_else(|| cx.waker().clone())));
    }

    /// The waker stays.
    #[inline]
    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake_by_ref();
            self.waker.set(Some(waker));
        }
    }

    /// The peer has said something. Whether it is to be noted.
    #[inline]
    pub(super) fn speaks(&self) -> bool {
        self.speech.replace(Speech::Speaking) == Speech::Seen
    }

    /// Somebody wants to look: whether nothing was said since the last time. If so, it counts as seen.
    pub(super) fn falls_silent(&self) -> bool {
        let is_silent = self.speech.get() != Speech::Speaking;
        self.speech.set(if is_silent { Speech::Seen } else { Speech::Noted });
        is_silent
    }

    pub(super) fn receiving(&self) -> Receiving {
        self.receiving.get()
    }

    /// Nothing is under way.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.is_sending() && self.receiving.get() == Receiving::Nothing
    }

    /// The socket is gone: nobody is to be woken, and nobody takes what has arrived.
    pub(super) fn abandon(&self) {
        self.abandoned.set(true);
        drop((self.waker.take(), self.arrived.take(), self.later.take()));
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
