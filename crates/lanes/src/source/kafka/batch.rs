//! Takes messages from a partition's queue in batches.
//!
//! This is the only unsafe code of this crate. The safe API of rdkafka delivers one message at a time, and for each
//! message reads a clock and allocates an event; batches cost considerably less. A batch is an array of pointers to
//! messages that librdkafka owns until each is destroyed. A [`KafkaMessage`] borrows one of them.

use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rdkafka::bindings as sys;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{IsError, KafkaError};

use super::context::KafkaContext;
use crate::record::Header;

/// The queue of a partition, and the messages taken from it.
pub(super) struct BatchQueue {
    queue: NonNull<sys::rd_kafka_queue_t>,
    /// Messages from `next` on are not processed; all are destroyed before the next batch.
    taken: Vec<NonNull<sys::rd_kafka_message_t>>,
    next: usize,
    // Dropped after the queue, which belongs to the client.
    _client: Arc<BaseConsumer<KafkaContext>>,
}

/// An item of the queue.
pub(super) enum QueueItem<'a> {
    Message(KafkaMessage<'a>),
    /// The end of the partition: all offsets below this one have been delivered or are gaps. (A client that takes batches
    /// counts the end as a message, so its own position is one too high.)
    End(i64),
    Error(KafkaError),
}

/// A message, borrowed until the next call.
pub(super) struct KafkaMessage<'a> {
    raw: NonNull<sys::rd_kafka_message_t>,
    _queue: PhantomData<&'a mut BatchQueue>,
}

// SAFETY: librdkafka's queues and messages are not bound to a thread, and `&mut self` prevents concurrent use.
unsafe impl Send for BatchQueue {}

impl BatchQueue {
    /// `None` if the client does not know the partition.
    pub(super) fn new(client: &Arc<BaseConsumer<KafkaContext>>, topic: &str, partition: i32) -> Option<Self> {
        let topic = CString::new(topic).ok()?;
        // SAFETY: `client` outlives the call, as does the topic name.
        let queue =
            unsafe { sys::rd_kafka_queue_get_partition(client.client().native_ptr(), topic.as_ptr(), partition) };
        let queue = NonNull::new(queue)?;
        Some(Self { queue, taken: Vec::new(), next: 0, _client: Arc::clone(client) })
    }

    /// The next item. If no message is left, takes up to `count_max` from the queue; `None` if it is empty.
    pub(super) fn next(&mut self, count_max: usize) -> Option<QueueItem<'_>> {
        if self.next == self.taken.len() {
            self.refill(count_max);
        }
        let raw = *self.taken.get(self.next)?;
        self.next += 1;
        let message = KafkaMessage { raw, _queue: PhantomData };
        Some(match message.raw().err {
            error if !error.is_error() => QueueItem::Message(message),
            sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__PARTITION_EOF => QueueItem::End(message.offset()),
            error => QueueItem::Error(KafkaError::MessageConsumption(error.into())),
        })
    }

    fn refill(&mut self, count_max: usize) {
        self.release();
        self.taken.reserve(count_max);
        // SAFETY: the queue is owned. The vector has room for `count_max` pointers, `NonNull<T>` has the layout of a
        // pointer, and librdkafka writes the number of non-null pointers that it returns.
        unsafe {
            let list = self.taken.as_mut_ptr().cast();
            let count = sys::rd_kafka_consume_batch_queue(self.queue.as_ptr(), 0, list, count_max);
            self.taken.set_len(usize::try_from(count).unwrap_or(0));
        }
    }

    fn release(&mut self) {
        self.next = 0;
        for raw in self.taken.drain(..) {
            // SAFETY: the message came from the queue, is destroyed once, and no `KafkaMessage` borrows it.
            unsafe { sys::rd_kafka_message_destroy(raw.as_ptr()) };
        }
    }
}

impl Drop for BatchQueue {
    fn drop(&mut self) {
        self.release();
        // SAFETY: the queue is owned and not used any more; its client is dropped later.
        unsafe { sys::rd_kafka_queue_destroy(self.queue.as_ptr()) };
    }
}

impl KafkaMessage<'_> {
    fn raw(&self) -> &sys::rd_kafka_message_t {
        // SAFETY: the message is not destroyed while it is borrowed, and librdkafka does not modify it.
        unsafe { self.raw.as_ref() }
    }

    pub(super) fn offset(&self) -> i64 {
        self.raw().offset
    }

    pub(super) fn key(&self) -> Option<&[u8]> {
        let raw = self.raw();
        // SAFETY: key and payload belong to the message.
        unsafe { bytes(raw.key, raw.key_len) }
    }

    pub(super) fn payload(&self) -> Option<&[u8]> {
        let raw = self.raw();
        // SAFETY: as in `key`.
        unsafe { bytes(raw.payload, raw.len) }
    }

    /// Milliseconds since 1970, if the message has a timestamp.
    pub(super) fn timestamp_ms(&self) -> Option<i64> {
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is borrowed.
        let at = unsafe { sys::rd_kafka_message_timestamp(self.raw.as_ptr(), &raw mut kind) };
        (at >= 0 && kind != sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE).then_some(at)
    }

    /// The headers; `None` if a name is not UTF-8.
    pub(super) fn headers(&self) -> Option<Vec<Header>> {
        let mut list = ptr::null_mut();
        // SAFETY: the message is borrowed and owns the list of headers.
        let error = unsafe { sys::rd_kafka_message_headers(self.raw.as_ptr(), &raw mut list) };
        let mut headers = Vec::new();
        if error.is_error() || list.is_null() {
            return Some(headers);
        }
        loop {
            let (mut name, mut value, mut len) = (ptr::null(), ptr::null(), 0);
            // SAFETY: an index beyond the last header returns an error; name and value belong to the list, and names end
            // with a NUL.
            let header = unsafe {
                let at = headers.len();
                let error = sys::rd_kafka_header_get_all(list, at, &raw mut name, &raw mut value, &raw mut len);
                if error.is_error() {
                    return Some(headers);
                }
                let value = bytes(value, len).map(Into::into);
                Header { name: CStr::from_ptr(name).to_str().ok()?.into(), value }
            };
            headers.push(header);
        }
    }
}

/// # Safety
/// A non-null `start` must be valid for `len` bytes for `'a`.
unsafe fn bytes<'a>(start: *const std::ffi::c_void, len: usize) -> Option<&'a [u8]> {
    // SAFETY: guaranteed by the caller.
    (!start.is_null()).then(|| unsafe { slice::from_raw_parts(start.cast(), len) })
}
