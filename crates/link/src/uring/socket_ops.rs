//! State that a socket shares with its operations in flight.
//!
//! The kernel writes into the buffer of a bulk receive and reads the chunk of a send. Both are taken from here only by
//! the completion of their operation.

use std::{
    cell::Cell,
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    task::{Context, Waker},
};

use super::{buffers::ProvidedBuffer, files::FixedFile, is_cancelled};
use crate::{buffer_pool::PooledBuffer, chunk::Chunk};

/// A descriptor, and its operations in flight: at most one receive (single or multishot) and one send.
pub(super) struct SocketOps {
    fd: OwnedFd,
    /// Index of the slot in the ring.
    slot: Cell<u32>,
    /// Index of the registered descriptor.
    fixed_file: Cell<Option<FixedFile>>,
    receiving: Cell<RecvKind>,
    /// Destination of a bulk receive.
    bulk_buffer: Cell<Option<PooledBuffer>>,
    /// The first received chunk that was not taken yet.
    received_first: Cell<Option<io::Result<Chunk>>>,
    /// Received chunks behind it.
    received_later: Cell<Option<Box<LaterChunks>>>,
    sending: Cell<Option<Chunk>>,
    is_send_in_flight: Cell<bool>,
    /// The task that waits for a receive or a send.
    waker: Cell<Option<Waker>>,
    /// Whether it waits for a receive.
    awaits_receive: Cell<bool>,
    /// Whether it waits for a send.
    awaits_send: Cell<bool>,
    /// Whether the socket has been dropped.
    detached: Cell<bool>,
    reset_check: Cell<ResetCheck>,
}

/// Whether the peer must be checked for a reset right behind its last bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ResetCheck {
    #[default]
    Done,
    /// A check is scheduled.
    Scheduled,
    /// Bytes have arrived since the check was scheduled, or since the last check.
    Active,
}

/// Boxed, because most sockets have none.
#[derive(Default)]
struct LaterChunks(VecDeque<io::Result<Chunk>>);

/// The kind of receive in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecvKind {
    None,
    /// A receive into a buffer of the ring.
    Single,
    /// A multishot receive into buffers of the ring, until it is cancelled.
    Multishot,
    /// A receive into a large buffer.
    Bulk,
}

/// The result of a receive.
pub(super) enum RecvState {
    NotStarted,
    InFlight,
    Done(io::Result<Chunk>),
}

/// A multishot receive is cancelled once it has this many chunks behind an unread one.
const UNREAD_CHUNKS_MAX: usize = 3;

impl SocketOps {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            slot: Cell::new(u32::MAX),
            fixed_file: Cell::default(),
            receiving: Cell::new(RecvKind::None),
            bulk_buffer: Cell::default(),
            received_first: Cell::default(),
            received_later: Cell::default(),
            sending: Cell::default(),
            is_send_in_flight: Cell::new(false),
            waker: Cell::default(),
            awaits_receive: Cell::new(false),
            awaits_send: Cell::new(false),
            detached: Cell::new(false),
            reset_check: Cell::default(),
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

    pub(super) fn set_slot(&self, slot: u32) {
        self.slot.set(slot);
    }

    #[inline]
    pub(super) fn fixed_file(&self) -> Option<FixedFile> {
        self.fixed_file.get()
    }

    pub(super) fn set_fixed_file(&self, fixed_file: Option<FixedFile>) {
        self.fixed_file.set(fixed_file);
    }

    /// Takes the first received chunk.
    #[inline]
    pub(super) fn take_received(&self) -> RecvState {
        match self.received_first.take() {
            Some(received) => {
                if let Some(mut received_later) = self.received_later.take() {
                    self.received_first.set(received_later.0.pop_front());
                    self.received_later.set(Some(received_later).filter(|received_later| !received_later.0.is_empty()));
                }
                RecvState::Done(received)
            }
            None if self.receiving.get() == RecvKind::None => RecvState::NotStarted,
            None => RecvState::InFlight,
        }
    }

    /// Marks a receive into buffers of the ring as started.
    pub(super) fn set_receiving(&self, receiving: RecvKind) {
        self.receiving.set(receiving);
    }

    /// Marks a bulk receive as started. Returns its memory, which stays valid until the receive has ended.
    pub(super) fn start_bulk_receive(&self, mut bulk_buffer: PooledBuffer) -> (*mut u8, usize) {
        let bytes = bulk_buffer.as_mut_slice();
        let place = (bytes.as_mut_ptr(), bytes.len());
        self.bulk_buffer.set(Some(bulk_buffer));
        self.receiving.set(RecvKind::Bulk);
        place
    }

    /// Handles a completion of a receive. Returns true if a multishot receive has too many unread chunks and must be
    /// cancelled.
    #[inline]
    pub(super) fn finish_receive(
        &self,
        result: io::Result<u32>,
        buffer: Option<ProvidedBuffer>,
        is_multishot: bool,
    ) -> bool {
        if !is_multishot {
            self.receiving.set(RecvKind::None);
        }
        let bulk_buffer = self.bulk_buffer.take();
        let received = result.map(|len| match (bulk_buffer, buffer) {
            (Some(bulk_buffer), _) => Chunk::bulk(bulk_buffer, len as usize),
            (None, buffer) => buffer.map_or(Chunk::empty(), Chunk::provided),
        });
        // A cancelled receive restarts when a task polls.
        let is_full = match received {
            Err(error) if is_cancelled(&error) => false,
            _ if self.detached.get() => false,
            received => self.keep(received) && is_multishot,
        };
        if self.awaits_receive.take() {
            self.wake();
        }
        is_full
    }

    /// Keeps a chunk until it is taken. Returns true if too many are kept.
    #[inline]
    fn keep(&self, received: io::Result<Chunk>) -> bool {
        // No task waits for the bytes, so they must not occupy a shared buffer.
        let received = if self.awaits_receive.get() { received } else { received.map(Chunk::park) };
        match self.received_first.take() {
            None => {
                self.received_first.set(Some(received));
                false
            }
            first => {
                self.received_first.set(first);
                let mut received_later = self.received_later.take().unwrap_or_default();
                received_later.0.push_back(received);
                let is_full = received_later.0.len() == UNREAD_CHUNKS_MAX;
                self.received_later.set(Some(received_later));
                is_full
            }
        }
    }

    /// Wakes the task on the next receive.
    #[inline]
    pub(super) fn await_receive(&self, cx: &Context<'_>) {
        self.awaits_receive.set(true);
        self.store_waker(cx);
    }

    /// Marks a send as started. Returns its memory, which stays valid until the send has ended.
    pub(super) fn start_send(&self, chunk: Chunk) -> (*const u8, usize) {
        let bytes = (chunk.as_ptr(), chunk.len());
        self.is_send_in_flight.set(true);
        self.sending.set(Some(chunk));
        bytes
    }

    /// Handles the completion of a send. Returns the rest if the send was short and should continue.
    #[inline]
    pub(super) fn finish_send(&self, result: io::Result<u32>) -> Option<Chunk> {
        let chunk = self.sending.take();
        if let (Some(mut chunk), Ok(sent)) = (chunk, result)
            && sent > 0
            && (sent as usize) < chunk.len()
            && !self.detached.get()
        {
            chunk.advance(sent as usize);
            return Some(chunk);
        }
        // The next receive reports the error.
        self.is_send_in_flight.set(false);
        if self.awaits_send.take() {
            self.wake();
        }
        None
    }

    #[inline]
    pub(super) fn is_sending(&self) -> bool {
        self.is_send_in_flight.get()
    }

    /// Wakes the task at the end of the send.
    pub(super) fn await_send(&self, cx: &Context<'_>) {
        self.awaits_send.set(true);
        self.store_waker(cx);
    }

    /// Usually the same task waits again, so its waker is not cloned again.
    #[inline]
    fn store_waker(&self, cx: &Context<'_>) {
        let before = self.waker.take().filter(|waker| waker.will_wake(cx.waker()));
        self.waker.set(Some(before.unwrap_or_else(|| cx.waker().clone())));
    }

    /// Keeps the waker.
    #[inline]
    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake_by_ref();
            self.waker.set(Some(waker));
        }
    }

    /// Records received bytes. Returns true if a check must be scheduled.
    #[inline]
    pub(super) fn needs_reset_check(&self) -> bool {
        self.reset_check.replace(ResetCheck::Active) == ResetCheck::Done
    }

    /// Whether nothing has arrived since the last check. If so, the check is done.
    pub(super) fn is_quiet(&self) -> bool {
        let is_quiet = self.reset_check.get() != ResetCheck::Active;
        self.reset_check.set(if is_quiet { ResetCheck::Done } else { ResetCheck::Scheduled });
        is_quiet
    }

    pub(super) fn receiving(&self) -> RecvKind {
        self.receiving.get()
    }

    /// Whether no operation is in flight.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_sending() && self.receiving.get() == RecvKind::None
    }

    /// Detaches the dropped socket: no task is woken, and received chunks are discarded.
    pub(super) fn detach(&self) {
        self.detached.set(true);
        drop((self.waker.take(), self.received_first.take(), self.received_later.take()));
    }

    pub(super) fn is_detached(&self) -> bool {
        self.detached.get()
    }
}

impl AsFd for SocketOps {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
