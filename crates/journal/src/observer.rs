//! A second reader of records, in memory.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{
    chunk::FrameChunk,
    frame::{self, FrameKind},
};

/// Gets every record once, on the thread that writes it and before the write. A slow observer delays the writer, never a producer
/// that uses [`offer`](crate::Producer::offer). A panic is caught and ignored: the observer misses that record, and the
/// journal has it.
pub trait RecordObserver: Send + Sync {
    /// A record is about to be written.
    fn on_record(&self, payload: &[u8]);
}

/// Passes the records of staged chunks to an observer.
pub(crate) fn observe(observer: &dyn RecordObserver, chunks: &[FrameChunk]) {
    for chunk in chunks {
        let mut at = 0;
        while at < chunk.bytes().len() {
            let staged = frame::staged_frame_at(chunk.bytes(), at);
            if staged.kind == FrameKind::Record {
                // A panic of the observer must not end the writer thread.
                let _ = catch_unwind(AssertUnwindSafe(|| observer.on_record(staged.payload)));
            }
            at += staged.bytes();
        }
    }
}
