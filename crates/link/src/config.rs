//! Parameters of a reactor.

use std::num::NonZeroU16;

/// The kernel interface of a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IoMode {
    /// io_uring if the kernel allows it, otherwise epoll.
    #[default]
    Auto,
    /// io_uring; an error if the kernel forbids it.
    IoUring,
    /// epoll.
    Epoll,
}

/// Parameters of a [`Reactor`](crate::Reactor).
#[derive(Clone, Debug)]
pub struct ReactorConfig {
    /// The kernel interface.
    pub mode: IoMode,
    /// Number of receive buffers lent to links; a power of two.
    pub buffer_count: NonZeroU16,
    /// Size of a receive buffer, in bytes.
    pub buffer_len: usize,
    /// Size of a buffer for bulk receives, in bytes.
    pub bulk_buffer_len: usize,
}

impl Default for ReactorConfig {
    fn default() -> Self {
        Self {
            mode: IoMode::Auto,
            buffer_count: NonZeroU16::new(128).expect("128 is not zero"),
            buffer_len: 16 * 1024,
            bulk_buffer_len: 256 * 1024,
        }
    }
}
