//! Receive buffers that the kernel chooses from: a ring of their addresses, shared with it.
//!
//! The memory of a buffer belongs to the kernel while its address is in the ring, and to its [`Loan`] from the completion
//! that names it until the loan is dropped. Nobody else touches it.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    cell::Cell,
    fmt, io,
    num::NonZeroU16,
    ops::Deref,
    ptr::NonNull,
    rc::Rc,
    sync::atomic::{AtomicU16, Ordering},
};

use io_uring::{Submitter, types::BufRingEntry};

/// The buffers of one thread.
pub(super) struct Buffers {
    entries: Block,
    bytes: Block,
    count: u16,
    len: usize,
    /// Where the next entry goes: what was last told to the kernel.
    tail: Cell<u16>,
}

/// The number of the only group of buffers.
pub(super) const GROUP: u16 = 0;

impl Buffers {
    /// `count` buffers of `len` bytes, registered with a ring of the kernel.
    ///
    /// # Errors
    /// When the kernel has no such rings, or `count` is no power of two.
    pub(super) fn register(submitter: &Submitter<'_>, count: NonZeroU16, len: usize) -> io::Result<Rc<Self>> {
        let count = count.get();
        let entries = Block::new(usize::from(count) * size_of::<BufRingEntry>());
        let buffers = Self { entries, bytes: Block::new(usize::from(count) * len), count, len, tail: Cell::new(0) };
        // SAFETY: the block is page-aligned, has room for `count` entries, and lives until the ring is gone (see
        // `Ring::drop`).
        unsafe { submitter.register_buf_ring_with_flags(buffers.entries.0.as_ptr() as u64, count, GROUP, 0) }?;
        (0..count).for_each(|id| buffers.give_back(id));
        Ok(Rc::new(buffers))
    }

    /// The buffer that a completion names, with the bytes received into it.
    ///
    /// # Panics
    /// When it names none of this ring, or more bytes than one has: the kernel does neither.
    pub(super) fn loan(self: &Rc<Self>, id: u16, received: usize) -> Loan {
        assert!(id < self.count && received <= self.len, "a receive into a buffer that there is not");
        Loan { home: Rc::clone(self), id, received: received as u32 }
    }

    fn start_of(&self, id: u16) -> *mut u8 {
        // SAFETY: `id` is below `count`, so that the offset lies within the block.
        unsafe { self.bytes.0.as_ptr().add(usize::from(id) * self.len) }
    }

    fn give_back(&self, id: u16) {
        let tail = self.tail.get();
        let entries: *mut BufRingEntry = self.entries.0.as_ptr().cast();
        // SAFETY: the place lies within the block; at most `count` buffers are in the ring, so the kernel does not read
        // this place until the tail has passed it. The field that is the tail of the ring is not touched here.
        unsafe {
            let entry = &mut *entries.add(usize::from(tail & (self.count - 1)));
            entry.set_addr(self.start_of(id) as u64);
            entry.set_len(self.len as u32);
            entry.set_bid(id);
        }
        self.tail.set(tail.wrapping_add(1));
        // SAFETY: the tail lies within the first entry, is aligned, and is otherwise only read, by the kernel.
        let shared = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entries).cast_mut()) };
        shared.store(self.tail.get(), Ordering::Release);
    }

    /// Bytes of each.
    pub(super) fn buffer_len(&self) -> usize {
        self.len
    }
}

/// Received bytes in a buffer of the ring, to which it goes back when dropped.
pub(crate) struct Loan {
    home: Rc<Buffers>,
    id: u16,
    received: u32,
}

impl Deref for Loan {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer is this loan's alone (see the module), lies within the block, and all of the block is
        // initialised.
        unsafe { std::slice::from_raw_parts(self.home.start_of(self.id), self.received as usize) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.home.give_back(self.id);
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({} bytes)", self.received)
    }
}

/// Zeroed memory that begins at a page.
struct Block(NonNull<u8>, Layout);

impl Block {
    fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), 4096).expect("a few MiB");
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        Self(NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and dropped once.
        unsafe { dealloc(self.0.as_ptr(), self.1) }
    }
}
