//! Bytes on their way from one socket to another.

use std::{cell::RefCell, fmt, ops::Deref, rc::Rc};

use crate::uring::Loan;

/// A run of bytes, in a buffer lent by the thread or in an allocation of its own.
///
/// Lent buffers are few and shared by all links of the thread: a chunk that waits for something calls [`Chunk::park`].
pub struct Chunk {
    store: Store,
    start: u32,
    end: u32,
}

enum Store {
    /// Lent by the kernel's buffer ring; goes back to it when dropped.
    Ring(Loan),
    /// Lent by the thread's shelf; goes back to it when dropped.
    Shelf(Lent),
    /// A large one of the thread, of which there are as many as are wanted; goes back when dropped.
    Bulk(Lent),
    Heap(Vec<u8>),
    Static(&'static [u8]),
}

impl Chunk {
    pub(crate) fn ring(buffer: Loan) -> Self {
        let end = len_u32(buffer.len());
        Self { store: Store::Ring(buffer), start: 0, end }
    }

    pub(crate) fn lent(buffer: Lent, len: usize) -> Self {
        Self { store: Store::Shelf(buffer), start: 0, end: len_u32(len) }
    }

    pub(crate) fn bulk(buffer: Lent, len: usize) -> Self {
        Self { store: Store::Bulk(buffer), start: 0, end: len_u32(len) }
    }

    /// The end of the stream, and nothing else.
    #[must_use]
    pub const fn empty() -> Self {
        Self { store: Store::Static(&[]), start: 0, end: 0 }
    }

    /// Drops the first `count` bytes.
    ///
    /// # Panics
    /// When `count` is beyond the end.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "advanced beyond the end of a chunk");
        self.start += len_u32(count);
    }

    /// Keeps the first `count` bytes.
    pub fn truncate(&mut self, count: usize) {
        if count < self.len() {
            self.end = self.start + len_u32(count);
        }
    }

    /// Gives a lent buffer back, by moving the bytes into an allocation of their own size.
    #[must_use]
    pub fn park(self) -> Self {
        match self.store {
            Store::Ring(_) | Store::Shelf(_) => self.to_vec().into(),
            Store::Bulk(_) | Store::Heap(_) | Store::Static(_) => self,
        }
    }

    /// The vector under a chunk that owns one and starts at its start, for appending.
    pub(crate) fn as_growing_vec(&mut self, room: usize) -> Option<&mut Vec<u8>> {
        match &mut self.store {
            Store::Heap(bytes) if bytes.len() == self.end as usize && bytes.len() + room <= GROW_LIMIT => Some(bytes),
            _ => None,
        }
    }

    pub(crate) fn refresh_end(&mut self) {
        if let Store::Heap(bytes) = &self.store {
            self.end = len_u32(bytes.len());
        }
    }
}

/// Small pieces are put together up to this size, so that they leave in one send.
const GROW_LIMIT: usize = 64 * 1024;

/// No chunk comes near 4 GiB: the largest message of the protocol has 1 GiB.
fn len_u32(len: usize) -> u32 {
    u32::try_from(len).expect("a chunk is shorter than 4 GiB")
}

impl Deref for Chunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let bytes: &[u8] = match &self.store {
            Store::Ring(buffer) => buffer,
            Store::Shelf(buffer) | Store::Bulk(buffer) => buffer.as_slice(),
            Store::Heap(bytes) => bytes,
            Store::Static(bytes) => bytes,
        };
        &bytes[self.start as usize..self.end as usize]
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Self {
        let end = len_u32(bytes.len());
        Self { store: Store::Heap(bytes), start: 0, end }
    }
}

impl From<&'static [u8]> for Chunk {
    fn from(bytes: &'static [u8]) -> Self {
        Self { store: Store::Static(bytes), start: 0, end: len_u32(bytes.len()) }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes)", self.len())
    }
}

/// The receive buffers of one thread: for the epoll mode and for TLS, and large ones for peers that send in bulk. Those that
/// come back are not cleared, so that nothing is written twice.
#[derive(Clone)]
pub(crate) struct Shelf(Rc<ShelfInner>);

struct ShelfInner {
    free: RefCell<Vec<Lent>>,
    size: usize,
    keep: usize,
}

impl Shelf {
    pub(crate) fn new(size: usize, keep: usize) -> Self {
        Self(Rc::new(ShelfInner { free: RefCell::default(), size, keep }))
    }

    pub(crate) fn take(&self) -> Lent {
        let kept = self.0.free.borrow_mut().pop().and_then(|mut lent| lent.0.take());
        let mut buffer = kept.unwrap_or_else(|| Box::new(Buffer { bytes: vec![0; self.0.size], home: None }));
        buffer.home = Some(self.clone());
        Lent(Some(buffer))
    }
}

/// A buffer of the shelf, all of it initialised; its length never changes. It is small itself, for every chunk has room for
/// one.
pub(crate) struct Lent(Option<Box<Buffer>>);

struct Buffer {
    bytes: Vec<u8>,
    /// Where it goes back to; none as long as it is there.
    home: Option<Shelf>,
}

impl Lent {
    fn as_slice(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |buffer| &buffer.bytes)
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        self.0.as_mut().map_or(&mut [], |buffer| &mut buffer.bytes)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(mut buffer) = self.0.take() else { return };
        let Some(home) = buffer.home.take() else { return };
        let mut free = home.0.free.borrow_mut();
        if free.len() < home.0.keep {
            free.push(Self(Some(buffer)));
        }
    }
}
