//! The ring of one thread: operations go to the kernel, completions come back to whoever began them.
//!
//! All unsafe code of the crate is here and in `buffers`. The kernel reads and writes memory of an operation until its
//! completion is seen. So all of that memory belongs to a port or a `Once` in a slot of the ring, which stays until then,
//! whatever happens to the socket.

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
    buffers::{Buffers, GROUP},
    files::Files,
    once::{Deed, Once},
    port::{Port, Receiving},
    spoken::Spoken,
};
use crate::{
    alarm::Alarm,
    chunk::{Chunk, Lent, Shelf},
    reactor::Settings,
};

/// The io_uring of one thread, with its ring of buffers.
pub(crate) struct Ring {
    kernel: RefCell<IoUring>,
    slots: RefCell<Slots>,
    /// Completions that were taken from the kernel and not passed on yet.
    arrived: RefCell<Vec<Arrival>>,
    alarm: Arc<Alarm>,
    alarm_is_watched: Cell<bool>,
    buffers: Rc<Buffers>,
    files: Files,
    spoken: Spoken,
    /// Large ones, for peers that send in bulk.
    rooms: Shelf,
    wait_flags: EnterFlags,
    /// The kernel can wait for several completions, but not for long.
    can_gather: bool,
    /// The next wait is for several of them.
    gathers: Cell<bool>,
    streamer: Cell<u32>,
    /// For so many turns more, several peers count as sending a great deal at a time.
    mingled: Cell<u8>,
    turns: Cell<u64>,
}

/// Owners of what operations under way use.
#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Clone)]
enum Slot {
    Free,
    Port(Rc<Port>),
    Once(Rc<Once>),
}

struct Arrival {
    token: u64,
    result: io::Result<u32>,
    flags: u32,
}

/// What an operation is for: the slot above, and which one of its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Receive = 0,
    Send = 1,
    Once = 2,
}

const KIND_BITS: u32 = 2;
const KIND_MASK: u64 = 3;

/// Tokens of no slot.
const ALARM: u64 = u64::MAX;
const NOBODY: u64 = u64::MAX - 1;

fn token(slot: u32, kind: Kind) -> u64 {
    u64::from(slot) << KIND_BITS | kind as u64
}

impl Ring {
    /// # Errors
    /// When the kernel forbids io_uring or lacks an operation.
    pub(crate) fn new(settings: &Settings) -> io::Result<Self> {
        Self::with_entries(settings, ENTRIES)
    }

    /// With room for so many operations between two turns before the kernel has to be entered.
    pub(super) fn with_entries(settings: &Settings, entries: u32) -> io::Result<Self> {
        let kernel = IoUring::builder()
            .setup_cqsize(4 * entries)
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .dontfork()
            .build(entries)?;
        let buffers = Buffers::register(&kernel.submitter(), settings.buffers, settings.buffer_len)?;
        let files = Files::register(&kernel.submitter());
        let can_gather = kernel.params().is_feature_min_timeout();
        let mut wait_flags = EnterFlags::GETEVENTS;
        if kernel.params().is_feature_no_iowait() {
            // A thread that waits for clients does not wait for a disk.
            wait_flags |= EnterFlags::NO_IOWAIT;
        }
        let ring = Self {
            kernel: RefCell::new(kernel),
            slots: RefCell::default(),
            arrived: RefCell::default(),
            alarm: Alarm::new()?,
            alarm_is_watched: Cell::new(false),
            buffers,
            files,
            spoken: Spoken::default(),
            rooms: Shelf::new(settings.bulk_len, ROOMS_KEPT),
            wait_flags,
            can_gather,
            gathers: Cell::new(false),
            streamer: Cell::new(u32::MAX),
            mingled: Cell::new(0),
            turns: Cell::new(0),
        };
        // The first turn reports what `build` does not: a ring that may be made but not entered.
        ring.turn(Some(Duration::ZERO))?;
        Ok(ring)
    }

    /// A large buffer.
    pub(super) fn room(&self) -> Lent {
        self.rooms.take()
    }

    /// A peer is in the middle of a great deal. If another was a moment ago, the next wait lets what they send gather: one
    /// alone would be delayed, and nobody be served better.
    pub(super) fn gather(&self, port: &Port) {
        if self.streamer.replace(port.slot()) != port.slot() {
            self.mingled.set(MINGLED_TURNS);
        }
        self.gathers.set(self.can_gather && self.mingled.get() > 0);
    }

    /// Bytes of a buffer of the ring.
    pub(super) fn buffer_len(&self) -> usize {
        self.buffers.buffer_len()
    }

    /// Nobody has a slot.
    #[cfg(test)]
    pub(super) fn is_vacant(&self) -> bool {
        self.slots.borrow().is_empty()
    }

    pub(crate) fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// Hands over what was begun, waits for completions unless the alarm has rung, and passes them on.
    pub(crate) fn turn(&self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.alarm_is_watched.replace(true) {
            let watch = opcode::PollAdd::new(Fd(self.alarm.fd().as_raw_fd()), POLLIN).multi(true).build();
            // SAFETY: it names no memory.
            unsafe { self.push(&watch.user_data(ALARM)) }?;
        }
        let timeout = if self.alarm.is_rung() { Some(Duration::ZERO) } else { self.spoken.within(timeout) };
        let entered = self.enter(timeout);
        self.turns.set(self.turns.get() + 1);
        self.alarm.rise();
        entered?;
        self.pass_on();
        if let Some(slots) = self.spoken.take_due() {
            self.look_who_left(&slots)?;
        }
        Ok(())
    }

    /// How often it has looked for what has happened.
    pub(super) fn turns(&self) -> u64 {
        self.turns.get()
    }

    /// Ends the streams of those who have said something, have been silent since, and are gone: the next receive tells.
    fn look_who_left(&self, slots: &[u32]) -> io::Result<()> {
        let slot = |slot: &u32| self.slots.borrow().slots[*slot as usize].clone();
        let mut silent = Vec::new();
        for owner in slots.iter().map(slot) {
            let Slot::Port(port) = owner else { continue };
            if !port.falls_silent() {
                self.spoken.add(port.slot());
            } else if port.receiving() == Receiving::Stream {
                silent.push(port);
            }
        }
        let mut looks: Vec<PollFd<'_>> = silent.iter().map(|port| PollFd::new(port.fd(), PollFlags::empty())).collect();
        poll(&mut looks, Some(&rustix::event::Timespec::default()))?;
        let gone = looks.iter().map(|look| look.revents().intersects(PollFlags::HUP | PollFlags::ERR));
        for (port, _) in silent.iter().zip(gone).filter(|(_, is_gone)| *is_gone) {
            self.cancel_receive(port);
        }
        Ok(())
    }

    fn enter(&self, timeout: Option<Duration>) -> io::Result<()> {
        let mut kernel = self.kernel.borrow_mut();
        let submission = kernel.submission();
        let (begun, due) = (submission.len(), submission.taskrun() || submission.cq_overflow());
        drop(submission);
        let idle = kernel.completion().is_empty() && self.arrived.borrow().is_empty();
        let waits = timeout != Some(Duration::ZERO) && !due && idle;
        if begun == 0 && !due && !waits {
            return Ok(());
        }
        self.mingled.set(self.mingled.get().saturating_sub(1));
        let gathers = self.gathers.take() && waits;
        let want = if gathers { GATHERED_MAX } else { u32::from(waits) };
        let (begun, submitter) = (begun as u32, kernel.submitter());
        let timeout = timeout.filter(|_| waits).map(Timespec::from);
        let entered = if gathers || timeout.is_some() {
            let args = SubmitArgs::new().min_wait_usec(if gathers { GATHER_MICROS } else { 0 });
            let args = match &timeout {
                Some(timeout) => args.timespec(timeout),
                None => args,
            };
            let flags = (self.wait_flags | EnterFlags::EXT_ARG).bits();
            // SAFETY: so many entries were pushed, each of them valid; the arguments live until the call returns.
            unsafe { submitter.enter(begun, want, flags, Some(&args)) }
        } else {
            // SAFETY: so many entries were pushed, each of them valid; there are no arguments.
            unsafe { submitter.enter::<u64>(begun, want, self.wait_flags.bits(), None) }
        };
        match entered {
            Ok(_) => Ok(()),
            // Nothing came in time, a signal did, or completions have to be taken first.
            Err(error) if is_any(&error, &[Errno::TIME, Errno::INTR, Errno::BUSY, Errno::AGAIN]) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Tells those who wait for the completions that have arrived.
    fn pass_on(&self) {
        self.collect(&mut self.kernel.borrow_mut());
        loop {
            let mut arrived = self.arrived.take();
            arrived.drain(..).for_each(|arrival| self.dispatch(arrival));
            // Whoever was told may have begun so much that more had to be collected.
            let mut since = self.arrived.borrow_mut();
            if since.is_empty() {
                // For its memory.
                *since = arrived;
                return;
            }
        }
    }

    /// Takes completions from the kernel, which then has room for others.
    fn collect(&self, kernel: &mut IoUring) {
        self.arrived.borrow_mut().extend(kernel.completion().map(|entry| Arrival {
            token: entry.user_data(),
            result: u32::try_from(entry.result()).map_err(|_| io::Error::from_raw_os_error(-entry.result())),
            flags: entry.flags(),
        }));
    }

    fn dispatch(&self, Arrival { token, result, flags }: Arrival) {
        match token {
            NOBODY => return,
            ALARM => {
                self.alarm.hush();
                self.alarm_is_watched.set(cqueue::more(flags));
                return;
            }
            _ => {}
        }
        let slot = (token >> KIND_BITS) as u32;
        let owner = self.slots.borrow().slots[slot as usize].clone();
        match owner {
            Slot::Port(port) => self.dispatch_to_port(&port, token, result, flags),
            Slot::Once(once) => {
                self.vacate(slot);
                once.complete(result.map(drop));
            }
            Slot::Free => debug_assert!(false, "a completion for nobody"),
        }
    }

    fn dispatch_to_port(&self, port: &Rc<Port>, token: u64, result: io::Result<u32>, flags: u32) {
        if token & KIND_MASK == Kind::Send as u64 {
            if result.is_err() {
                // Whoever reads from it learns that it has ended, also if it was for want of memory.
                let _ = rustix::net::shutdown(port.fd(), rustix::net::Shutdown::Both);
            }
            if let Some(rest) = port.sent(result) {
                // What cannot be begun is noted with the port.
                let _ = self.send(port, rest);
            }
        } else {
            let received = result.as_ref().map_or(0, |received| *received as usize);
            let loan = cqueue::buffer_select(flags).map(|id| self.buffers.loan(id, received));
            if cqueue::more(flags) && !cqueue::sock_nonempty(flags) && port.speaks() {
                self.spoken.add(port.slot());
            }
            if port.received(result, loan, cqueue::more(flags)) {
                self.cancel_receive(port);
            }
        }
        if port.is_abandoned() && port.is_at_rest() {
            self.vacate(port.slot());
        }
    }

    /// Gives a port its slot.
    pub(super) fn adopt(&self, port: &Rc<Port>) {
        port.settle(self.slots.borrow_mut().occupy(Slot::Port(Rc::clone(port))));
    }

    /// Takes a slot back on which nothing is under way.
    pub(super) fn vacate(&self, slot: u32) {
        let owner = self.slots.borrow_mut().vacate(slot);
        if let Slot::Port(port) = &owner
            && let Some(number) = port.number()
        {
            port.set_number(None);
            self.files.remove(&self.kernel.borrow().submitter(), number);
        }
        drop(owner);
    }

    /// A connection that stays: the kernel gets a number for it, if there is one left.
    pub(super) fn acquaint(&self, port: &Port) {
        if port.number().is_none() {
            port.set_number(self.files.add(&self.kernel.borrow().submitter(), port.as_fd()));
        }
    }

    /// Begins a receive into a buffer of the ring. With `now` it looks at once; else it waits first.
    pub(super) fn receive(&self, port: &Port, now: bool) -> io::Result<()> {
        let receive =
            opcode::Recv::new(Fd(port.fd().as_raw_fd()), std::ptr::null_mut(), self.buffers.buffer_len() as u32);
        let mut entry = receive.buf_group(GROUP).build().flags(Flags::BUFFER_SELECT);
        if !now {
            wait_first(&mut entry);
        }
        // SAFETY: it names no memory but the buffers, which live as long as the ring.
        unsafe { self.push(&entry.user_data(token(port.slot(), Kind::Receive))) }?;
        port.lend(Receiving::Once);
        Ok(())
    }

    /// Begins to receive into one buffer of the ring after the other, whenever something arrives, until it is cancelled or
    /// there is no buffer left.
    pub(super) fn stream(&self, port: &Port) -> io::Result<()> {
        let mut entry = opcode::RecvMulti::new(Fd(port.fd().as_raw_fd()), GROUP).build();
        wait_first(&mut entry);
        // SAFETY: it names no memory but the buffers, which live as long as the ring.
        unsafe { self.push(&entry.user_data(token(port.slot(), Kind::Receive))) }?;
        port.lend(Receiving::Stream);
        Ok(())
    }

    /// Begins to receive what is there already into memory of its own.
    pub(super) fn receive_bulk(&self, port: &Port) -> io::Result<()> {
        let (start, len) = port.make_room(self.room());
        let receive = opcode::Recv::new(Fd(port.fd().as_raw_fd()), start, len as u32).flags(DONT_WAIT);
        // SAFETY: the port keeps so many bytes there until the completion.
        let pushed = unsafe { self.push(&receive.build().user_data(token(port.slot(), Kind::Receive))) };
        pushed.inspect_err(|_| {
            port.received(Err(Errno::CANCELED.into()), None, false);
        })
    }

    /// Begins to send; nothing else is being sent.
    pub(super) fn send(&self, port: &Port, chunk: Chunk) -> io::Result<()> {
        let (start, len) = port.load(chunk);
        // A chunk is shorter than 4 GiB.
        let send = match port.number() {
            Some(number) => opcode::Send::new(Fixed(number.place()), start, len as u32),
            None => opcode::Send::new(Fd(port.fd().as_raw_fd()), start, len as u32),
        };
        let entry = send.flags(SEND_FLAGS).build().user_data(token(port.slot(), Kind::Send));
        // SAFETY: the port keeps the chunk until the completion, and the bytes of a chunk do not move with it.
        let pushed = unsafe { self.push(&entry) };
        pushed.inspect_err(|_| drop(port.sent(Ok(0))))
    }

    /// Begins it, in a slot of its own.
    pub(super) fn begin_once(&self, once: &Rc<Once>) -> io::Result<u32> {
        let slot = self.slots.borrow_mut().occupy(Slot::Once(Rc::clone(once)));
        let fd = Fd(once.fd.as_fd().as_raw_fd());
        let entry = match &once.deed {
            Deed::AwaitArrival => opcode::PollAdd::new(fd, POLLIN | EXCLUSIVELY).build(),
            Deed::AwaitLeaving => opcode::PollAdd::new(fd, u32::from(PollFlags::RDHUP.bits())).build(),
            Deed::Connect(address) => opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build(),
        };
        // SAFETY: the slot keeps the address until the completion, behind a reference count, so that it does not move.
        let pushed = unsafe { self.push(&entry.user_data(token(slot, Kind::Once))) };
        pushed.inspect_err(|_| self.vacate(slot))?;
        Ok(slot)
    }

    pub(super) fn cancel_receive(&self, port: &Port) {
        self.cancel(token(port.slot(), Kind::Receive));
    }

    pub(super) fn cancel_once(&self, slot: u32) {
        self.cancel(token(slot, Kind::Once));
    }

    fn cancel(&self, token: u64) {
        // SAFETY: it names no memory. Where the kernel refuses, the peer ends the operation by what it does next.
        let _ = unsafe { self.push(&opcode::AsyncCancel::new(token).build().user_data(NOBODY)) };
    }

    /// # Safety
    /// The memory that the entry names must stay until its completion is seen.
    unsafe fn push(&self, entry: &Entry) -> io::Result<()> {
        loop {
            let mut kernel = self.kernel.borrow_mut();
            // SAFETY: the caller's promise.
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

/// Of a ring: what is begun between two turns fits in most often.
const ENTRIES: u32 = 1024;

/// So many large buffers stay for the next who sends in bulk.
const ROOMS_KEPT: usize = 8;

/// Peers that send a great deal within so many turns do so at a time.
const MINGLED_TURNS: u8 = 64;
/// A wait that gathers ends with so many completions,
const GATHERED_MAX: u32 = 16;
/// or with the first one after so long.
const GATHER_MICROS: u32 = 100;

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel uses memory of what is still under way. All of it has been cancelled by now.
        for _ in 0..100 {
            if self.slots.borrow().is_empty() || self.turn(Some(Duration::from_millis(10))).is_err() {
                break;
            }
        }
        if !self.slots.borrow().is_empty() {
            std::mem::forget((self.slots.take(), Rc::clone(&self.buffers)));
        }
    }
}

impl Slots {
    fn occupy(&mut self, owner: Slot) -> u32 {
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

    fn vacate(&mut self, slot: u32) -> Slot {
        self.free.push(slot);
        std::mem::replace(&mut self.slots[slot as usize], Slot::Free)
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }
}

/// `IORING_RECVSEND_POLL_FIRST`: nothing has come by the time we listen, so that looking is in vain.
fn wait_first(entry: &mut Entry) {
    const POLL_FIRST: u16 = 1;
    /// Of the field `ioprio` in the kernel's `io_uring_sqe`.
    const PLACE: usize = 2;
    // SAFETY: an entry is an `io_uring_sqe` of 64 bytes, whose field at this place has two bytes, is aligned and takes any
    // value.
    unsafe { *std::ptr::from_mut(entry).cast::<u8>().add(PLACE).cast::<u16>() |= POLL_FIRST }
}

fn is_any(error: &io::Error, known: &[Errno]) -> bool {
    known.iter().any(|known| error.raw_os_error() == Some(known.raw_os_error()))
}

const POLLIN: u32 = 1;
/// `EPOLLEXCLUSIVE`: of all who wait for the same, one is told.
const EXCLUSIVELY: u32 = 1 << 28;
const DONT_WAIT: i32 = RecvFlags::DONTWAIT.bits() as i32;
/// No signal, and `MSG_WAITALL`, which io_uring honours for sends: a short send is continued by the kernel.
const SEND_FLAGS: i32 = SendFlags::NOSIGNAL.bits() as i32 | 0x100;
