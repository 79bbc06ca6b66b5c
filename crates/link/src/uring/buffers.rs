//! Provided buffers: a ring of receive buffers, shared with the kernel, which chooses one per receive.
//!
//! The memory of a buffer belongs to the kernel while its address is in the ring, and to its [`ProvidedBuffer`] from the
//! completion that names it until the buffer is dropped. There is no other access.

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
pub(super) struct BufferRing {
    entries: Block,
    bytes: Block,
    count: u16,
    len: usize,
    /// The position of the next entry, as last published to the kernel.
    tail: Cell<u16>,
}

/// ID of the only buffer group.
pub(super) const GROUP: u16 = 0;

impl BufferRing {
    /// Registers `count` buffers of `len` bytes with the kernel.
    ///
    /// # Errors
    /// The kernel does not support buffer rings, or `count` is not a power of two.
    pub(super) fn register(submitter: &Submitter<'_>, count: NonZeroU16, len: usize) -> io::Result<Rc<Self>> {
        let count = count.get();
        let entries = Block::new(usize::from(count) * size_of::<BufRingEntry>());
        let buffers = Self { entries, bytes: Block::new(usize::from(count) * len), count, len, tail: Cell::new(0) };
        // SAFETY: the block is page-aligned, has room for `count` entries, and lives until the ring is gone (see
        // `Ring::drop`).
        unsafe { submitter.register_buf_ring_with_flags(buffers.entries.0.as_ptr() as u64, count, GROUP, 0) }?;
        (0..count).for_each(|id| buffers.recycle(id));
        Ok(Rc::new(buffers))
    }

    /// The buffer that a completion names, with its received bytes.
    ///
    /// # Panics
    /// Panics if the kernel names a buffer that does not exist, or more bytes than a buffer has.
    pub(super) fn buffer(self: &Rc<Self>, id: u16, received: usize) -> ProvidedBuffer {
        assert!(id < self.count && received <= self.len, "the kernel named a buffer that does not exist");
        ProvidedBuffer { ring: Rc::clone(self), id, received: received as u32 }
    }

    fn start_of(&self, id: u16) -> *mut u8 {
        // SAFETY: `id` is below `count`, so the offset lies within the block.
        unsafe { self.bytes.0.as_ptr().add(usize::from(id) * self.len) }
    }

    fn recycle(&self, id: u16) {
        let tail = self.tail.get();
        let entries: *mut BufRingEntry = self.entries.0.as_ptr().cast();
        // SAFETY: the entry lies within the block. At most `count` buffers are in the ring, so the kernel does not read
        // this entry until the tail has passed it. The field that holds the tail of the ring is not accessed here.
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

    /// Size of a buffer, in bytes.
    pub(super) fn buffer_len(&self) -> usize {
        self.len
    }
}

/// Received bytes in a buffer of the ring; dropping it returns the buffer.
pub(crate) struct ProvidedBuffer {
    ring: Rc<BufferRing>,
    id: u16,
    received: u32,
}

impl Deref for ProvidedBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer belongs to this value alone (see the module), lies within the block, and the whole block is
        // initialised.
        unsafe { std::slice::from_raw_parts(self.ring.start_of(self.id), self.received as usize) }
    }
}

impl Drop for ProvidedBuffer {
    fn drop(&mut self) {
        self.ring.recycle(self.id);
    }
}

impl fmt::Debug for ProvidedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProvidedBuffer({} bytes)", self.received)
    }
}

/// Zeroed, page-aligned memory.
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
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.0.as_ptr(), self.1) }
    }
}
