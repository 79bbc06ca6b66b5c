//! Messages of a partition's queue, many at a time.
//!
//! The only unsafe code of this crate. The client library gives one message at a time to safe code, and for each asks a
//! clock, and makes and frees an event; its batches cost a good part less. What a batch gives are pointers to messages
//! that the client keeps until they are given back, one by one; a [`Message`] lends what one of them holds.

use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rdkafka::bindings as sys;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{IsError, KafkaError};

use super::ear::Ear;
use crate::record::Header;

/// The queue of a partition, and what was taken out of it and not looked at.
pub(super) struct BatchQueue {
    queue: NonNull<sys::rd_kafka_queue_t>,
    /// Ours until they are given back, from `next` on.
    taken: Vec<NonNull<sys::rd_kafka_message_t>>,
    next: usize,
    // After the queue, which is the client's.
    _client: Arc<BaseConsumer<Ear>>,
}

/// What a queue holds.
pub(super) enum Next<'a> {
    Message(Message<'a>),
    /// The end of the partition: everything below this offset, markers and gaps too, came before. (A client that takes
    /// batches counts an end as a message, so the position that it tells is beyond it.)
    End(i64),
    Error(KafkaError),
}

/// A message, lent until the next one is asked for.
pub(super) struct Message<'a> {
    raw: NonNull<sys::rd_kafka_message_t>,
    _queue: PhantomData<&'a mut BatchQueue>,
}

// SAFETY: the library's queues and messages belong to no thread; a value is used by one thread at a time.
unsafe impl Send for BatchQueue {}

impl BatchQueue {
    /// `None` if the client does not know the partition.
    pub(super) fn new(client: &Arc<BaseConsumer<Ear>>, topic: &str, partition: i32) -> Option<Self> {
        let topic = CString::new(topic).ok()?;
        // SAFETY: the client lives as long as `client`, and the name of the topic until the call returns.
        let queue =
            unsafe { sys::rd_kafka_queue_get_partition(client.client().native_ptr(), topic.as_ptr(), partition) };
        let queue = NonNull::new(queue)?;
        Some(Self { queue, taken: Vec::new(), next: 0, _client: Arc::clone(client) })
    }

    /// What comes next. If nothing was left, up to `most` are taken out of the queue; `None` if that is empty.
    pub(super) fn next(&mut self, most: usize) -> Option<Next<'_>> {
        if self.next == self.taken.len() {
            self.refill(most);
        }
        let raw = *self.taken.get(self.next)?;
        self.next += 1;
        let message = Message { raw, _queue: PhantomData };
        Some(match message.raw().err {
            error if !error.is_error() => Next::Message(message),
            sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__PARTITION_EOF => Next::End(message.offset()),
            error => Next::Error(KafkaError::MessageConsumption(error.into())),
        })
    }

    fn refill(&mut self, most: usize) {
        self.give_back();
        self.taken.reserve(most);
        // SAFETY: the queue is ours. The list has room for `most` pointers, and a pointer that may not be null is as large
        // as one that may; the library writes as many as it says, none of them null.
        unsafe {
            let list = self.taken.as_mut_ptr().cast();
            let count = sys::rd_kafka_consume_batch_queue(self.queue.as_ptr(), 0, list, most);
            self.taken.set_len(usize::try_from(count).unwrap_or(0));
        }
    }

    fn give_back(&mut self) {
        self.next = 0;
        for raw in self.taken.drain(..) {
            // SAFETY: it was taken out of the queue, is given back once, and nobody was lent it (see `Message`).
            unsafe { sys::rd_kafka_message_destroy(raw.as_ptr()) };
        }
    }
}

impl Drop for BatchQueue {
    fn drop(&mut self) {
        self.give_back();
        // SAFETY: it is ours, and not used any more; its client is dropped after it.
        unsafe { sys::rd_kafka_queue_destroy(self.queue.as_ptr()) };
    }
}

impl Message<'_> {
    fn raw(&self) -> &sys::rd_kafka_message_t {
        // SAFETY: it is not given back while it is lent, and the library does not change what it has handed out.
        unsafe { self.raw.as_ref() }
    }

    pub(super) fn offset(&self) -> i64 {
        self.raw().offset
    }

    pub(super) fn key(&self) -> Option<&[u8]> {
        let raw = self.raw();
        // SAFETY: key and payload are the message's.
        unsafe { bytes(raw.key, raw.key_len) }
    }

    pub(super) fn payload(&self) -> Option<&[u8]> {
        let raw = self.raw();
        // SAFETY: as above.
        unsafe { bytes(raw.payload, raw.len) }
    }

    /// Milliseconds since 1970, if the broker knows.
    pub(super) fn timestamp_ms(&self) -> Option<i64> {
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is lent.
        let at = unsafe { sys::rd_kafka_message_timestamp(self.raw.as_ptr(), &raw mut kind) };
        (at >= 0 && kind != sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE).then_some(at)
    }

    /// Its headers; `None` if a name is not UTF-8.
    pub(super) fn headers(&self) -> Option<Vec<Header>> {
        let mut list = ptr::null_mut();
        // SAFETY: the message is lent, and the list of headers is the message's.
        let error = unsafe { sys::rd_kafka_message_headers(self.raw.as_ptr(), &raw mut list) };
        let mut headers = Vec::new();
        if error.is_error() || list.is_null() {
            return Some(headers);
        }
        loop {
            let (mut name, mut value, mut len) = (ptr::null(), ptr::null(), 0);
            // SAFETY: beyond the last one it says so; name and value are the list's, a name ends with a zero.
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
/// What is not null lives as long as `'a`.
unsafe fn bytes<'a>(start: *const std::ffi::c_void, len: usize) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    (!start.is_null()).then(|| unsafe { slice::from_raw_parts(start.cast(), len) })
}
