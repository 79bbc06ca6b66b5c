//! Reusable receive buffers of one thread.

use std::{cell::RefCell, rc::Rc};

/// The receive buffers of one thread: for epoll and for TLS, and large ones for bulk receives. Returned buffers are not
/// cleared, so no byte is written twice.
#[derive(Clone)]
pub(crate) struct BufferPool(Rc<PoolInner>);

struct PoolInner {
    free: RefCell<Vec<PooledBuffer>>,
    size: usize,
    keep: usize,
}

impl BufferPool {
    pub(crate) fn new(size: usize, keep: usize) -> Self {
        Self(Rc::new(PoolInner { free: RefCell::default(), size, keep }))
    }

    pub(crate) fn take(&self) -> PooledBuffer {
        let kept = self.0.free.borrow_mut().pop().and_then(|mut lent| lent.0.take());
        let mut buffer = kept.unwrap_or_else(|| Box::new(Buffer { bytes: vec![0; self.0.size], home: None }));
        buffer.home = Some(self.clone());
        PooledBuffer(Some(buffer))
    }
}

/// An initialised buffer of the pool with a constant length. The type is a single pointer, because every chunk has room
/// for one.
pub(crate) struct PooledBuffer(Option<Box<Buffer>>);

struct Buffer {
    bytes: Vec<u8>,
    /// The pool to return to; `None` while the buffer is in the pool.
    home: Option<BufferPool>,
}

impl PooledBuffer {
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |buffer| &buffer.bytes)
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        self.0.as_mut().map_or(&mut [], |buffer| &mut buffer.bytes)
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let Some(mut buffer) = self.0.take() else { return };
        let Some(home) = buffer.home.take() else { return };
        let mut free = home.0.free.borrow_mut();
        if free.len() < home.0.keep {
            free.push(Self(Some(buffer)));
        }
    }
}
