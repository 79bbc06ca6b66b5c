//! A replication connection, from CopyBoth to its end.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use tidegate_wire::{
    backend,
    frame::{HEADER, MessageHeader},
    replication::{Lsn, ServerMessage, StatusUpdate},
};
use tokio::{
    sync::mpsc::Permit,
    time::{Instant, sleep_until, timeout},
};

use super::{NoticeLog, Reader, Started, StopRequest, now};
use crate::{
    client::{ClientError, PgConnection, ServerReport},
    error::{AssembleError, ChangeStreamError},
    event::ChangeEvent,
};

/// Why a session ended without an error.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplicationEnd {
    /// The stream was stopped, or its consumer is gone.
    Stopped,
}

/// An acknowledgement is sent after this delay at the latest, and the server gets no more than one status in it.
const ACK_DELAY: Duration = Duration::from_millis(20);
/// Bytes of a streamed transaction that are delivered as one batch.
const REPLAY_BYTES: usize = 256 * 1024;
/// Limit for the server to answer the last status.
const STOP_MAX: Duration = Duration::from_secs(2);
/// A connection without any message for this long is broken: the server answers each status.
const SILENCE_MIN: Duration = Duration::from_secs(60);

pub(super) struct ReplicationSession<'a> {
    reader: &'a mut Reader,
    connection: PgConnection,
    /// Received messages, and the offset of the first unhandled one.
    messages: (Bytes, usize),
    status_interval: Duration,
    next_status: Instant,
    last_status: Instant,
    last_received: Instant,
    /// The flush position of the last status.
    sent_flush: Lsn,
    /// The newest position of a keepalive that became an event.
    progress: Lsn,
    notices: NoticeLog,
}

enum Wake<'a> {
    Stop,
    Status,
    Acknowledged,
    Permit(Option<Permit<'a, Result<Vec<ChangeEvent>, ChangeStreamError>>>),
    Received(Result<(), ClientError>),
}

impl<'a> ReplicationSession<'a> {
    pub(super) fn new(reader: &'a mut Reader, start: Started) -> Self {
        let Started { connection, status_interval, notices } = start;
        let started = Instant::now();
        Self {
            reader,
            connection,
            messages: (Bytes::new(), 0),
            status_interval,
            next_status: started,
            last_status: started,
            last_received: started,
            sent_flush: Lsn::ZERO,
            progress: Lsn::ZERO,
            notices,
        }
    }

    pub(super) async fn run(mut self) -> Result<ReplicationEnd, ChangeStreamError> {
        let batches = self.reader.batches.clone();
        let mut stop = self.reader.stop.clone();
        loop {
            self.fill()?;
            self.schedule_status();
            let has_batch = !self.reader.pending.is_empty();
            // The timer comes first, so that a busy stream does not delay it; acknowledgements come last, because they are
            // looked up on every turn.
            let wake = tokio::select! {
                biased;
                _ = stop.wait_for(StopRequest::is_some) => Wake::Stop,
                () = sleep_until(self.next_status) => Wake::Status,
                permit = batches.reserve(), if has_batch => Wake::Permit(permit.ok()),
                () = batches.closed(), if !has_batch => Wake::Permit(None),
                received = self.connection.receive(), if !has_batch => Wake::Received(received),
                () = self.reader.acknowledge.changed() => Wake::Acknowledged,
            };
            match wake {
                Wake::Stop | Wake::Permit(None) => return self.stop().await,
                Wake::Status => self.status(true).await?,
                Wake::Acknowledged => {}
                Wake::Permit(Some(permit)) => {
                    let batch = std::mem::take(&mut self.reader.pending);
                    self.publish(&batch);
                    permit.send(Ok(batch));
                    // The server may have sent messages that were not read meanwhile.
                    self.last_received = Instant::now();
                }
                Wake::Received(received) => {
                    received?;
                    self.last_received = Instant::now();
                }
            }
        }
    }

    /// Handles received messages until there are events, or no whole message is left.
    fn fill(&mut self) -> Result<(), ChangeStreamError> {
        if !self.reader.pending.is_empty() {
            return Ok(());
        }
        loop {
            if self.reader.assembler.is_replaying() {
                let (assembler, pending) = (&mut self.reader.assembler, &mut self.reader.pending);
                let replayed = assembler.replay(REPLAY_BYTES, pending);
                self.track(0);
                replayed.map_err(ChangeStreamError::Assemble)?;
                if !self.reader.pending.is_empty() {
                    return Ok(());
                }
                continue;
            }
            let Some((tag, body)) = self.next_message()? else { return Ok(()) };
            let before = self.reader.pending.len();
            let handled = self.message(tag, body);
            self.track(before);
            handled?;
        }
    }

    /// The tag of the next whole message, and the place of its body.
    fn next_message(&mut self) -> Result<Option<(u8, Range<usize>)>, ChangeStreamError> {
        if self.messages.0.len() == self.messages.1 {
            self.messages = (self.connection.take_messages()?, 0);
        }
        let (received, at) = &mut self.messages;
        let Some(header) = received.get(*at..).and_then(|left| MessageHeader::peek(left).ok().flatten()) else {
            return Ok(None);
        };
        let body = *at + HEADER..*at + header.total();
        *at = body.end;
        Ok(Some((header.tag, body)))
    }

    /// Counts new events before they are handed over, so that later positions wait for their acknowledgement.
    fn track(&mut self, from: usize) {
        if let Some(tracker) = &mut self.reader.tracker {
            for event in self.reader.pending.get(from..).unwrap_or_default() {
                tracker.on_event(event);
            }
        }
    }

    fn message(&mut self, tag: u8, place: Range<usize>) -> Result<(), ChangeStreamError> {
        let body = self.messages.0.get(place.clone()).unwrap_or_default();
        match tag {
            backend::COPY_DATA => self.copy_data(place),
            backend::NOTICE_RESPONSE => self.notices.check(&ServerReport::decode(body)?),
            backend::ERROR_RESPONSE => {
                let report = ServerReport::decode(body)?;
                Err(ClientError::Server(Box::new(report)).into())
            }
            backend::COPY_DONE => Err(ChangeStreamError::NotReady("the server ended the stream".to_owned())),
            _ => Ok(()),
        }
    }

    fn copy_data(&mut self, place: Range<usize>) -> Result<(), ChangeStreamError> {
        let payload = self.messages.0.get(place.clone()).unwrap_or_default();
        let message = ServerMessage::decode(payload).map_err(|error| malformed(error, payload))?;
        let Some(tracker) = &mut self.reader.tracker else { return Ok(()) };
        match message {
            ServerMessage::XLogData { start, data, .. } => {
                tracker.on_received(start);
                let frame = self.messages.0.slice(place.end - data.len()..place.end);
                let (assembler, pending) = (&mut self.reader.assembler, &mut self.reader.pending);
                assembler.push(frame, pending).map_err(|error| with_bytes(error, data))
            }
            ServerMessage::Keepalive { end, reply_requested, .. } => {
                tracker.on_received(end);
                if reply_requested {
                    self.next_status = self.next_status.min(self.last_status + ACK_DELAY);
                }
                // The server answers each status: equal positions would fill the channel of a consumer that does not read, and
                // nothing is received while it is full.
                if end > self.progress && !self.reader.assembler.is_in_transaction() {
                    self.progress = end;
                    match self.reader.pending.last_mut() {
                        Some(ChangeEvent::Progress(last)) => *last = end.max(*last),
                        _ => self.reader.pending.push(ChangeEvent::Progress(end)),
                    }
                }
                Ok(())
            }
        }
    }

    /// Reads acknowledgements, and brings the next status forward if the flush position has moved.
    fn schedule_status(&mut self) {
        if self.flush() > self.sent_flush {
            self.next_status = self.next_status.min(self.last_status + ACK_DELAY);
        }
    }

    fn flush(&mut self) -> Lsn {
        let in_transaction = self.reader.assembler.is_in_transaction();
        let acknowledged = self.reader.acknowledge.acknowledged();
        let Some(tracker) = &mut self.reader.tracker else { return Lsn::ZERO };
        tracker.on_acknowledged(acknowledged);
        let flush = tracker.flush(in_transaction);
        if let Some(resume) = &mut self.reader.resume {
            resume.lsn = flush;
        }
        flush
    }

    async fn status(&mut self, reply_requested: bool) -> Result<(), ChangeStreamError> {
        // While a batch waits for the consumer nothing is read, so silence means nothing.
        let is_reading = self.reader.pending.is_empty();
        let silence_max = SILENCE_MIN.max(self.status_interval * 3);
        if is_reading && self.last_received.elapsed() > silence_max {
            let (address, limit) = (self.connection.address().to_owned(), silence_max);
            return Err(ClientError::Timeout { address, limit }.into());
        }
        self.send_status(reply_requested).await
    }

    async fn send_status(&mut self, reply_requested: bool) -> Result<(), ChangeStreamError> {
        let flush = self.flush();
        let write = self.reader.tracker.as_ref().map_or(flush, |tracker| tracker.received()).max(flush);
        let mut payload = Vec::with_capacity(34);
        StatusUpdate { write, flush, apply: flush, time: now().0, reply_requested }.encode(&mut payload);
        self.connection.copy_data(&payload).await?;
        self.sent_flush = flush;
        self.last_status = Instant::now();
        self.next_status = self.last_status + self.status_interval;
        self.publish(&[]);
        Ok(())
    }

    fn publish(&self, batch: &[ChangeEvent]) {
        let reader = &self.reader;
        reader.status.send_modify(|status| {
            status.count(batch);
            status.open_tx_bytes = reader.assembler.open_bytes() as u64;
            status.spilled_bytes_total = reader.assembler.spilled_bytes_total();
            if let Some(tracker) = &reader.tracker {
                status.received_lsn = tracker.received();
                status.durable_lsn = tracker.durable();
                status.flushed_lsn = tracker.flushed();
            }
        });
    }

    /// Sends the last status, waits until the server has read it, and ends CopyBoth (CH-16).
    ///
    /// Events that the consumer has not taken are dropped; they are not acknowledged, and come again.
    async fn stop(mut self) -> Result<ReplicationEnd, ChangeStreamError> {
        self.reader.pending.clear();
        let ended = timeout(STOP_MAX, async {
            self.send_status(true).await?;
            loop {
                let frame = self.connection.read_frame().await?;
                let is_answer = frame.tag == backend::COPY_DATA
                    && matches!(ServerMessage::decode(&frame.body), Ok(ServerMessage::Keepalive { .. }));
                if is_answer || frame.tag == backend::ERROR_RESPONSE {
                    break;
                }
            }
            self.connection.end_copy().await?;
            Ok::<_, ChangeStreamError>(())
        });
        match ended.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last status may not have reached the server"),
            Err(_) => tracing::warn!("the server did not answer the last status"),
        }
        Ok(ReplicationEnd::Stopped)
    }
}

fn malformed(error: tidegate_wire::DecodeError, payload: &[u8]) -> ChangeStreamError {
    with_bytes(error.into(), payload)
}

/// Logs the first bytes of a message that cannot be used; they may hold values of a row, so no error repeats them.
fn with_bytes(error: AssembleError, data: &[u8]) -> ChangeStreamError {
    if matches!(error, AssembleError::Decode(_)) {
        let start: String = data.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
        tracing::debug!(len = data.len(), start, "unusable message");
    }
    ChangeStreamError::Assemble(error)
}
