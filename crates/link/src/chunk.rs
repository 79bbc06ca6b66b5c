//! Bytes in transit from one socket to another.

use std::{fmt, ops::Deref};

use crate::{buffer_pool::PooledBuffer, uring::ProvidedBuffer};

/// A run of bytes, in a buffer lent by the thread or in an allocation of its own.
///
/// Lent buffers are few and shared by all links of the thread, so a chunk that is kept for longer calls
/// [`Chunk::park`].
pub struct Chunk {
    store: ChunkStore,
    start: u32,
    end: u32,
}

enum ChunkStore {
    /// Lent by the kernel's buffer ring; returned on drop.
    Provided(ProvidedBuffer),
    /// Lent by the thread's buffer pool; returned on drop.
    Pooled(PooledBuffer),
    /// A large buffer of the thread. Their number is not limited; returned on drop.
    Bulk(PooledBuffer),
    Heap(Vec<u8>),
    Static(&'static [u8]),
}

impl Chunk {
    pub(crate) fn provided(buffer: ProvidedBuffer) -> Self {
        let end = len_u32(buffer.len());
        Self { store: ChunkStore::Provided(buffer), start: 0, end }
    }

    pub(crate) fn pooled(buffer: PooledBuffer, len: usize) -> Self {
        Self { store: ChunkStore::Pooled(buffer), start: 0, end: len_u32(len) }
    }

    pub(crate) fn bulk(buffer: PooledBuffer, len: usize) -> Self {
        Self { store: ChunkStore::Bulk(buffer), start: 0, end: len_u32(len) }
    }

    /// The end of the stream.
    #[must_use]
    pub const fn empty() -> Self {
        Self { store: ChunkStore::Static(&[]), start: 0, end: 0 }
    }

    /// Drops the first `count` bytes.
    ///
    /// # Panics
    /// Panics if the chunk has fewer than `count` bytes.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "advance beyond the end of a chunk");
        self.start += len_u32(count);
    }

    /// Keeps the first `count` bytes.
    pub fn truncate(&mut self, count: usize) {
        if count < self.len() {
            self.end = self.start + len_u32(count);
        }
    }

    /// Copies the bytes of a lent buffer into an allocation of their own size, and returns the buffer.
    #[must_use]
    pub fn park(self) -> Self {
        match self.store {
            ChunkStore::Provided(_) | ChunkStore::Pooled(_) => self.to_vec().into(),
            ChunkStore::Bulk(_) | ChunkStore::Heap(_) | ChunkStore::Static(_) => self,
        }
    }

    /// The vector of a chunk that owns one and starts at its start, for appending.
    pub(crate) fn as_growing_vec(&mut self, room: usize) -> Option<&mut Vec<u8>> {
        match &mut self.store {
            ChunkStore::Heap(bytes) if bytes.len() == self.end as usize && bytes.len() + room <= MERGED_BYTES_MAX => {
                Some(bytes)
            }
            _ => None,
        }
    }

    pub(crate) fn refresh_end(&mut self) {
        if let ChunkStore::Heap(bytes) = &self.store {
            self.end = len_u32(bytes.len());
        }
    }
}

/// Small pieces are merged up to this size, to be sent with one system call.
const MERGED_BYTES_MAX: usize = 64 * 1024;

/// Chunks stay below 4 GiB, because the longest message of the protocol has 1 GiB.
fn len_u32(len: usize) -> u32 {
    u32::try_from(len).expect("a chunk is shorter than 4 GiB")
}

impl Deref for Chunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let bytes: &[u8] = match &self.store {
            ChunkStore::Provided(buffer) => buffer,
            ChunkStore::Pooled(buffer) | ChunkStore::Bulk(buffer) => buffer.as_slice(),
            ChunkStore::Heap(bytes) => bytes,
            ChunkStore::Static(bytes) => bytes,
        };
        &bytes[self.start as usize..self.end as usize]
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Self {
        let end = len_u32(bytes.len());
        Self { store: ChunkStore::Heap(bytes), start: 0, end }
    }
}

impl From<&'static [u8]> for Chunk {
    fn from(bytes: &'static [u8]) -> Self {
        Self { store: ChunkStore::Static(bytes), start: 0, end: len_u32(bytes.len()) }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes)", self.len())
    }
}
