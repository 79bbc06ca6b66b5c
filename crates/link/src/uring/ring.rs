//! The ring of one thread: submits operations, and dispatches completions to their owners.
//!
//! All unsafe code of the crate is here and in `buffers`. The kernel reads and writes the memory of an operation until
//! its completion is seen. So all of that memory belongs to a `SocketOps` or a `OneShot` in a slot of the ring, which
//! stays until then, whatever happens to the socket.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::{AsFd, AsRawFd},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use io_uring::{
    EnterFlags, IoUring, cqueue, opcode,
    squeue::{Entry, Flags},
    types::{Fd, Fixed, SubmitArgs, Timespec},
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::{RecvFlags, SendFlags},
};

use super::{
    buffers::{BufferRing, GROUP},
    files::RegisteredFiles,
    one_shot::{OneShot, OneShotKind},
    reset_check::ResetChecks,
    socket_ops::{RecvKind, SocketOps},
};
use crate::{
    buffer_pool::{BufferPool, PooledBuffer},
    chunk::Chunk,
    config::ReactorConfig,
    eventfd::EventFdWaker,
};

/// The io_uring of one thread, with its buffer ring.
pub(crate) struct Ring {
    kernel: RefCell<IoUring>,
    slots: RefCell<Slots>,
    /// Completions that were taken from the kernel and not dispatched yet.
    completions: RefCell<Vec<Completion>>,
    eventfd: Arc<EventFdWaker>,
    eventfd_is_polled: Cell<bool>,
    buffer_ring: Rc<BufferRing>,
    files: RegisteredFiles,
    reset_checks: ResetChecks,
    /// Large buffers for bulk receives.
    bulk_buffers: BufferPool,
    wait_flags: EnterFlags,
    /// Whether the kernel supports a minimum wait time (`IORING_FEAT_MIN_TIMEOUT`).
    supports_min_wait: bool,
    /// Whether the next wait coalesces completions.
    coalesces: Cell<bool>,
    last_bulk_slot: Cell<u32>,
    /// Remaining turns in which several peers count as sending in bulk.
    multi_bulk_turns: Cell<u8>,
    turns: Cell<u64>,
}

/// Owners of the memory of operations in flight.
#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Clone)]
enum Slot {
    Free,
    Socket(Rc<SocketOps>),
    OneShot(Rc<OneShot>),
}

struct Completion {
    token: u64,
    result: io::Result<u32>,
    flags: u32,
}

/// The kind of an operation, as a part of its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpKind {
    Receive = 0,
    Send = 1,
    OneShot = 2,
}

const OP_KIND_BITS: u32 = 2;
const OP_KIND_MASK: u64 = 3;

/// Tokens without a slot.
const EVENTFD: u64 = u64::MAX;
const IGNORED: u64 = u64::MAX - 1;

fn token(slot: u32, kind: OpKind) -> u64 {
    u64::from(slot) << OP_KIND_BITS | kind as u64
}

impl Ring {
    /// Creates a ring.
    ///
    /// # Errors
    /// The kernel forbids io_uring or lacks an operation.
    pub(crate) fn new(config: &ReactorConfig) -> io::Result<Self> {
        Self::with_entries(config, ENTRIES)
    }

    /// Creates a ring whose submission queue has this many entries.
    pub(super) fn with_entries(config: &ReactorConfig, entries: u32) -> io::Result<Self> {
        let kernel = IoUring::builder()
            .setup_cqsize(4 * entries)
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .dontfork()
            .build(entries)?;
        let buffer_ring = BufferRing::register(&kernel.submitter(), config.buffer_count, config.buffer_len)?;
        let files = RegisteredFiles::register(&kernel.submitter());
        let supports_min_wait = kernel.params().is_feature_min_timeout();
        let mut wait_flags = EnterFlags::GETEVENTS;
        if kernel.params().is_feature_no_iowait() {
            // The CPU does not count this wait as I/O wait: the thread waits for clients, not for a disk.
            wait_flags |= EnterFlags::NO_IOWAIT;
        }
        let ring = Self {
            kernel: RefCell::new(kernel),
            slots: RefCell::default(),
            completions: RefCell::default(),
            eventfd: EventFdWaker::new()?,
            eventfd_is_polled: Cell::new(false),
            buffer_ring,
            files,
            reset_checks: ResetChecks::default(),
            bulk_buffers: BufferPool::new(config.bulk_buffer_len, BULK_BUFFERS_KEPT),
            wait_flags,
            supports_min_wait,
            coalesces: Cell::new(false),
            last_bulk_slot: Cell::new(u32::MAX),
            multi_bulk_turns: Cell::new(0),
            turns: Cell::new(0),
        };
        // The first turn reports what `build` does not: a ring that may be created but not entered.
        ring.turn(Some(Duration::ZERO))?;
        Ok(ring)
    }

    /// Takes a large buffer.
    pub(super) fn bulk_buffer(&self) -> PooledBuffer {
        self.bulk_buffers.take()
    }

    /// Hints that a peer is in the middle of a large transfer. If another peer was within the last turns, the next wait
    /// coalesces completions. For a single peer that would only add latency.
    pub(super) fn hint_bulk_receive(&self, ops: &SocketOps) {
        if self.last_bulk_slot.replace(ops.slot()) != ops.slot() {
            self.multi_bulk_turns.set(MULTI_BULK_TURNS);
        }
        self.coalesces.set(self.supports_min_wait && self.multi_bulk_turns.get() > 0);
    }

    /// Size of a buffer of the ring, in bytes.
    pub(super) fn buffer_len(&self) -> usize {
        self.buffer_ring.buffer_len()
    }

    /// Whether no slot is in use.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.slots.borrow().is_empty()
    }

    pub(crate) fn eventfd(&self) -> &Arc<EventFdWaker> {
        &self.eventfd
    }

    /// Submits the queued operations, waits for completions unless another thread has woken this one, and dispatches
    /// them.
    pub(crate) fn turn(&self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.eventfd_is_polled.replace(true) {
            let watch = opcode::PollAdd::new(Fd(self.eventfd.fd().as_raw_fd()), POLLIN).multi(true).build();
            // SAFETY: the entry names no memory.
            unsafe { self.push(&watch.user_data(EVENTFD)) }?;
        }
        let timeout =
            if self.eventfd.begin_wait() { Some(Duration::ZERO) } else { self.reset_checks.limit_wait(timeout) };
        let entered = self.enter(timeout);
        self.turns.set(self.turns.get() + 1);
        self.eventfd.end_wait();
        entered?;
        self.dispatch_completions();
        if let Some(slots) = self.reset_checks.take_due() {
            self.check_for_resets(&slots)?;
        }
        Ok(())
    }

    /// Number of turns so far.
    pub(super) fn turns(&self) -> u64 {
        self.turns.get()
    }

    /// Cancels the receives of sockets that have been quiet since their last bytes and whose peer has reset the
    /// connection. The next receive reports the reset.
    fn check_for_resets(&self, slots: &[u32]) -> io::Result<()> {
        let slot = |slot: &u32| self.slots.borrow().slots[*slot as usize].clone();
        let mut quiet = Vec::new();
        for owner in slots.iter().map(slot) {
            let Slot::Socket(ops) = owner else { continue };
            if !ops.is_quiet() {
                self.reset_checks.add(ops.slot());
            } else if ops.receiving() == RecvKind::Multishot {
                quiet.push(ops);
            }
        }
        let mut polled: Vec<PollFd<'_>> = quiet.iter().map(|ops| PollFd::new(ops.fd(), PollFlags::empty())).collect();
        poll(&mut polled, Some(&rustix::event::Timespec::default()))?;
        let is_reset = polled.iter().map(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR));
        for (ops, _) in quiet.iter().zip(is_reset).filter(|(_, is_reset)| *is_reset) {
            self.cancel_receive(ops);
        }
        Ok(())
    }

    fn enter(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut kernel = self.kernel.borrow_mut();
        let submission = kernel.submission();
        let (submitted, due) = (submission.len(), submission.taskrun() || submission.cq_overflow());
        drop(submission);
        let idle = kernel.completion().is_empty() && self.completions.borrow().is_empty();
        let blocks = timeout != Some(Duration::ZERO) && !due && idle;
        if submitted == 0 && !due && !blocks {
            return Ok(());
        }
        self.multi_bulk_turns.set(self.multi_bulk_turns.get().saturating_sub(1));
        let coalesces = self.coalesces.take() && blocks;
        let completions_min = if coalesces { COALESCED_MAX } else { u32::from(blocks) };
        let (submitted, submitter) = (submitted as u32, kernel.submitter());
        let timeout = timeout.filter(|_| blocks).map(Timespec::from);
        let entered = if coalesces || timeout.is_some() {
            let args = SubmitArgs::new().min_wait_usec(if coalesces { COALESCE_MICROS } else { 0 });
            let args = match &timeout {
                Some(timeout) => args.timespec(timeout),
                None => args,
            };
            let flags = (self.wait_flags | EnterFlags::EXT_ARG).bits();
            // SAFETY: `submitted` valid entries were pushed; the arguments live until the call returns.
            unsafe { submitter.enter(submitted, completions_min, flags, Some(&args)) }
        } else {
            // SAFETY: `submitted` valid entries were pushed; there are no arguments.
            unsafe { submitter.enter::<u64>(submitted, completions_min, self.wait_flags.bits(), None) }
        };
        match entered {
            Ok(_) => Ok(()),
            // A timeout, a signal, or completions that must be taken first.
            Err(error) if is_any(&error, &[Errno::TIME, Errno::INTR, Errno::BUSY, Errno::AGAIN]) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Dispatches all completions.
    fn dispatch_completions(&self) {
        self.collect(&mut self.kernel.borrow_mut());
        loop {
            let mut completions = self.completions.take();
            completions.drain(..).for_each(|completion| self.dispatch(completion));
            // A woken owner may have submitted so much that further completions were collected.
            let mut newer = self.completions.borrow_mut();
            if newer.is_empty() {
                // Keeps the allocation.
                *newer = completions;
                return;
            }
        }
    }

    /// Takes the completions from the kernel, to make room for further ones.
    fn collect(&self, kernel: &mut IoUring) {
        self.completions.borrow_mut().extend(kernel.completion().map(|entry| Completion {
            token: entry.user_data(),
            result: u32::try_from(entry.result()).map_err(|_| io::Error::from_raw_os_error(-entry.result())),
            flags: entry.flags(),
        }));
    }

    fn dispatch(&self, Completion { token, result, flags }: Completion) {
        match token {
            IGNORED => return,
            EVENTFD => {
                self.eventfd.drain();
                self.eventfd_is_polled.set(cqueue::more(flags));
                return;
            }
            _ => {}
        }
        let slot = (token >> OP_KIND_BITS) as u32;
        let owner = self.slots.borrow().slots[slot as usize].clone();
        match owner {
            Slot::Socket(ops) => self.dispatch_to_socket(&ops, token, result, flags),
            Slot::OneShot(one_shot) => {
                self.release(slot);
                one_shot.complete(result.map(drop));
            }
            Slot::Free => debug_assert!(false, "completion for a free slot"),
        }
    }

    fn dispatch_to_socket(&self, ops: &Rc<SocketOps>, token: u64, result: io::Result<u32>, flags: u32) {
        if token & OP_KIND_MASK == OpKind::Send as u64 {
            if result.is_err() {
                // The next receive reports the end of the connection, also after an out-of-memory error.
                let _ = rustix::net::shutdown(ops.fd(), rustix::net::Shutdown::Both);
            }
            if let Some(rest) = ops.finish_send(result) {
                // An error is recorded in `ops`.
                let _ = self.send(ops, rest);
            }
        } else {
            let received = result.as_ref().map_or(0, |received| *received as usize);
            let buffer = cqueue::buffer_select(flags).map(|id| self.buffer_ring.buffer(id, received));
            if cqueue::more(flags) && !cqueue::sock_nonempty(flags) && ops.needs_reset_check() {
                self.reset_checks.add(ops.slot());
            }
            if ops.finish_receive(result, buffer, cqueue::more(flags)) {
                self.cancel_receive(ops);
            }
        }
        if ops.is_detached() && ops.is_idle() {
            self.release(ops.slot());
        }
    }

    /// Assigns a slot to a socket.
    pub(super) fn add(&self, ops: &Rc<SocketOps>) {
        ops.set_slot(self.slots.borrow_mut().insert(Slot::Socket(Rc::clone(ops))));
    }

    /// Frees a slot without operations in flight.
    pub(super) fn release(&self, slot: u32) {
        let owner = self.slots.borrow_mut().release(slot);
        if let Slot::Socket(ops) = &owner
            && let Some(fixed_file) = ops.fixed_file()
        {
            ops.set_fixed_file(None);
            self.files.remove(&self.kernel.borrow().submitter(), fixed_file);
        }
        drop(owner);
    }

    /// Registers the descriptor of a long-lived connection, if the table has room.
    pub(super) fn register_fd(&self, ops: &SocketOps) {
        if ops.fixed_file().is_none() {
            ops.set_fixed_file(self.files.add(&self.kernel.borrow().submitter(), ops.as_fd()));
        }
    }

    /// Starts a receive into a buffer of the ring. Without `now`, the kernel polls the socket first.
    pub(super) fn receive(&self, ops: &SocketOps, now: bool) -> io::Result<()> {
        let receive =
            opcode::Recv::new(Fd(ops.fd().as_raw_fd()), std::ptr::null_mut(), self.buffer_ring.buffer_len() as u32);
        let mut entry = receive.buf_group(GROUP).build().flags(Flags::BUFFER_SELECT);
        if !now {
            poll_first(&mut entry);
        }
        // SAFETY: the entry names no memory but the buffers, which live as long as the ring.
        unsafe { self.push(&entry.user_data(token(ops.slot(), OpKind::Receive))) }?;
        ops.set_receiving(RecvKind::Single);
        Ok(())
    }

    /// Starts a multishot receive into buffers of the ring. It ends when it is cancelled or no buffer is left.
    pub(super) fn receive_multishot(&self, ops: &SocketOps) -> io::Result<()> {
        let mut entry = opcode::RecvMulti::new(Fd(ops.fd().as_raw_fd()), GROUP).build();
        poll_first(&mut entry);
        // SAFETY: the entry names no memory but the buffers, which live as long as the ring.
        unsafe { self.push(&entry.user_data(token(ops.slot(), OpKind::Receive))) }?;
        ops.set_receiving(RecvKind::Multishot);
        Ok(())
    }

    /// Receives waiting bytes into a large buffer.
    pub(super) fn receive_bulk(&self, ops: &SocketOps) -> io::Result<()> {
        let (start, len) = ops.start_bulk_receive(self.bulk_buffer());
        let receive = opcode::Recv::new(Fd(ops.fd().as_raw_fd()), start, len as u32).flags(MSG_DONTWAIT);
        // SAFETY: `ops` keeps `len` bytes there until the completion.
        let pushed = unsafe { self.push(&receive.build().user_data(token(ops.slot(), OpKind::Receive))) };
        pushed.inspect_err(|_| {
            ops.finish_receive(Err(Errno::CANCELED.into()), None, false);
        })
    }

    /// Starts a send; no other one may be in flight.
    pub(super) fn send(&self, ops: &SocketOps, chunk: Chunk) -> io::Result<()> {
        let (start, len) = ops.start_send(chunk);
        // The cast is lossless: a chunk is shorter than 4 GiB.
        let send = match ops.fixed_file() {
            Some(fixed_file) => opcode::Send::new(Fixed(fixed_file.index()), start, len as u32),
            None => opcode::Send::new(Fd(ops.fd().as_raw_fd()), start, len as u32),
        };
        let entry = send.flags(SEND_FLAGS).build().user_data(token(ops.slot(), OpKind::Send));
        // SAFETY: `ops` keeps the chunk until the completion, and the bytes of a chunk do not move with it.
        let pushed = unsafe { self.push(&entry) };
        pushed.inspect_err(|_| drop(ops.finish_send(Ok(0))))
    }

    /// Submits an operation in a slot of its own.
    pub(super) fn submit_one_shot(&self, one_shot: &Rc<OneShot>) -> io::Result<u32> {
        let slot = self.slots.borrow_mut().insert(Slot::OneShot(Rc::clone(one_shot)));
        let fd = Fd(one_shot.fd.as_fd().as_raw_fd());
        let entry = match &one_shot.kind {
            OneShotKind::AwaitConnection => opcode::PollAdd::new(fd, POLLIN | EPOLLEXCLUSIVE).build(),
            OneShotKind::AwaitPeerClosed => opcode::PollAdd::new(fd, u32::from(PollFlags::RDHUP.bits())).build(),
            OneShotKind::Connect(address) => opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build(),
        };
        // SAFETY: the slot keeps the address until the completion, behind a reference count, so that it does not move.
        let pushed = unsafe { self.push(&entry.user_data(token(slot, OpKind::OneShot))) };
        pushed.inspect_err(|_| self.release(slot))?;
        Ok(slot)
    }

    pub(super) fn cancel_receive(&self, ops: &SocketOps) {
        self.cancel(token(ops.slot(), OpKind::Receive));
    }

    pub(super) fn cancel_one_shot(&self, slot: u32) {
        self.cancel(token(slot, OpKind::OneShot));
    }

    fn cancel(&self, token: u64) {
        // SAFETY: the entry names no memory. If the kernel refuses it, the operation ends with the next event of the
        // peer.
        let _ = unsafe { self.push(&opcode::AsyncCancel::new(token).build().user_data(IGNORED)) };
    }

    /// # Safety
    /// The memory that the entry names must stay valid until its completion is seen.
    unsafe fn push(&self, entry: &Entry) -> io::Result<()> {
        loop {
            let mut kernel = self.kernel.borrow_mut();
            // SAFETY: guaranteed by the caller.
            if unsafe { kernel.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            match kernel.submit() {
                Ok(_) => {}
                Err(error) if is_any(&error, &[Errno::INTR]) => {}
                Err(error) if is_any(&error, &[Errno::BUSY]) => self.collect(&mut kernel),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Entries of the submission queue: usually enough for the operations of one turn.
const ENTRIES: u32 = 1024;

/// Large buffers that are kept for later bulk receives.
const BULK_BUFFERS_KEPT: usize = 8;

/// Peers count as sending in bulk at the same time if both do within this many turns.
const MULTI_BULK_TURNS: u8 = 64;
/// A coalescing wait ends after this many completions,
const COALESCED_MAX: u32 = 16;
/// or with the first one after this time.
const COALESCE_MICROS: u32 = 100;

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel uses the memory of operations in flight. All of them have been cancelled by now.
        for _ in 0..100 {
            if self.slots.borrow().is_empty() || self.turn(Some(Duration::from_millis(10))).is_err() {
                break;
            }
        }
        if !self.slots.borrow().is_empty() {
            std::mem::forget((self.slots.take(), Rc::clone(&self.buffer_ring)));
        }
    }
}

impl Slots {
    fn insert(&mut self, owner: Slot) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = owner;
                slot
            }
            None => {
                self.slots.push(owner);
                u32::try_from(self.slots.len() - 1).expect("fewer than 4 billion sockets")
            }
        }
    }

    fn release(&mut self, slot: u32) -> Slot {
        self.free.push(slot);
        std::mem::replace(&mut self.slots[slot as usize], Slot::Free)
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }
}

/// `IORING_RECVSEND_POLL_FIRST`: the socket is most likely empty, so the kernel skips the first attempt.
fn poll_first(entry: &mut Entry) {
    const POLL_FIRST: u16 = 1;
    /// Offset of the field `ioprio` in the kernel's `io_uring_sqe`.
    const IOPRIO_OFFSET: usize = 2;
    // SAFETY: an entry is an `io_uring_sqe` of 64 bytes. The field at this offset has two bytes, is aligned, and
    // accepts any value.
    unsafe { *std::ptr::from_mut(entry).cast::<u8>().add(IOPRIO_OFFSET).cast::<u16>() |= POLL_FIRST }
}

fn is_any(error: &io::Error, known: &[Errno]) -> bool {
    known.iter().any(|known| error.raw_os_error() == Some(known.raw_os_error()))
}

const POLLIN: u32 = 1;
/// `EPOLLEXCLUSIVE`: the kernel wakes one waiter per connection.
const EPOLLEXCLUSIVE: u32 = 1 << 28;
const MSG_DONTWAIT: i32 = RecvFlags::DONTWAIT.bits() as i32;
/// No signal, and `MSG_WAITALL`, which io_uring applies to sends: the kernel continues a short send.
const SEND_FLAGS: i32 = SendFlags::NOSIGNAL.bits() as i32 | 0x100;
