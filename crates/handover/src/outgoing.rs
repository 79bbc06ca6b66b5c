//! The side of the old process.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    os::fd::AsFd as _,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    net::UnixStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::JoinSet,
};

use crate::{
    frame::{FrameReader, HandoverFrame, RECORD_BYTES_MAX, send_frame, session_frame},
    incoming::SessionSockets,
    record::wipe,
};

/// Sessions between the two processes at a time.
pub const SESSIONS_IN_FLIGHT: usize = 64;

/// Bytes of all records between the two processes, at least one record.
const BYTES_IN_FLIGHT_MAX: usize = 2 * RECORD_BYTES_MAX;

/// Limit for an acknowledgement. The client waits meanwhile.
const ACKNOWLEDGE_LIMIT: Duration = Duration::from_secs(10);
/// Interval of checks for late acknowledgements.
const TURN: Duration = Duration::from_millis(50);

/// The outcome for a session.
#[derive(Debug, PartialEq, Eq)]
pub enum MoveOutcome {
    /// The session belongs to the new process.
    Moved,
    /// The session stays, for this reason; another attempt would have the same result.
    Refused(String),
    /// The session stays for now: too much is on the way, or the new process does not answer.
    NotSent,
}

/// Permission for one session to be on the way.
#[derive(Debug)]
pub struct MovePermit {
    _permit: OwnedSemaphorePermit,
}

/// A session on its way. Dropping it leaves the session with the old process.
#[derive(Debug)]
pub struct OutgoingSession {
    sockets: SessionSockets,
    record: Vec<u8>,
    outcome: oneshot::Sender<MoveOutcome>,
    sent_at: Instant,
    _bytes: BytesInFlight,
    _permit: MovePermit,
}

/// Counts the bytes of a record while it is on the way.
#[derive(Debug)]
struct BytesInFlight(Arc<AtomicUsize>, usize);

impl Drop for BytesInFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Drop for OutgoingSession {
    fn drop(&mut self) {
        wipe(&mut self.record);
    }
}

/// Where sessions of all threads leave the process.
#[derive(Clone, Debug)]
pub struct Departures {
    queue: mpsc::Sender<OutgoingSession>,
    permits: Arc<Semaphore>,
    bytes: Arc<AtomicUsize>,
}

/// Sends the sessions of [`Departures`].
#[derive(Debug)]
pub struct OutgoingSessions {
    queue: mpsc::Receiver<OutgoingSession>,
}

impl Departures {
    /// An empty queue.
    #[must_use]
    pub fn new() -> (Self, OutgoingSessions) {
        let (send, receive) = mpsc::channel(SESSIONS_IN_FLIGHT);
        let permits = Arc::new(Semaphore::new(SESSIONS_IN_FLIGHT));
        (Self { queue: send, permits, bytes: Arc::default() }, OutgoingSessions { queue: receive })
    }

    /// Permission to leave; `None` while many sessions are on the way, and once the other process is gone.
    #[must_use]
    pub fn try_permit(&self) -> Option<MovePermit> {
        if self.queue.is_closed() {
            return None;
        }
        self.permits.clone().try_acquire_owned().ok().map(|permit| MovePermit { _permit: permit })
    }

    /// Sends a session and waits for its acknowledgement. `sockets` are second descriptors, from which nothing may be read
    /// meanwhile.
    ///
    /// # Cancel safety
    /// The session may have moved if the caller stops waiting.
    pub async fn depart(&self, permit: MovePermit, sockets: SessionSockets, mut record: Vec<u8>) -> MoveOutcome {
        let len = record.len();
        if len > RECORD_BYTES_MAX {
            wipe(&mut record);
            return MoveOutcome::Refused(format!("its state has {len} bytes, {RECORD_BYTES_MAX} at most"));
        }
        let before = self.bytes.fetch_add(len, Ordering::Relaxed);
        let bytes = BytesInFlight(self.bytes.clone(), len);
        let (outcome, acknowledged) = oneshot::channel();
        let departure =
            OutgoingSession { sockets, record, outcome, sent_at: Instant::now(), _bytes: bytes, _permit: permit };
        if before > 0 && before + len > BYTES_IN_FLIGHT_MAX {
            return MoveOutcome::NotSent;
        }
        if self.queue.send(departure).await.is_err() {
            return MoveOutcome::NotSent;
        }
        acknowledged.await.unwrap_or(MoveOutcome::NotSent)
    }
}

/// Sessions without an acknowledgement, by number.
type Pending = Mutex<BTreeMap<u64, OutgoingSession>>;

fn lock(pending: &Pending) -> MutexGuard<'_, BTreeMap<u64, OutgoingSession>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OutgoingSessions {
    /// Sends sessions until the new process is gone or does not acknowledge in time, and returns why. All sessions without an
    /// acknowledgement stay then.
    ///
    /// `streams_ended` is reported to the other process. `cancel` processes a cancel request. `on_settled` runs when there is an
    /// outcome for a session, and `on_turn` 20 times per second.
    ///
    /// # Cancel safety
    /// Not safe: an acknowledgement may be lost. Stop it by a closed `stream` of the other side.
    pub async fn run<C: Future<Output = ()> + Send + 'static>(
        mut self,
        stream: &UnixStream,
        streams_ended: impl Future<Output = ()>,
        cancel: impl Fn(u32, Vec<u8>) -> C,
        on_settled: impl Fn(),
        on_turn: impl Fn(),
    ) -> io::Error {
        let (pending, mut reader) = (Pending::default(), FrameReader::default());
        let (processed, mut answers) = mpsc::channel(SESSIONS_IN_FLIGHT);
        let (requests, mut requested) = mpsc::channel(SESSIONS_IN_FLIGHT);
        let ended = tokio::select! {
            error = send_all(&mut self.queue, &mut answers, streams_ended, stream, &pending) => error,
            error = receive_all(&mut reader, stream, &pending, &requests, &on_settled) => error,
            error = watch(&pending, on_turn) => error,
            () = process_cancels(&mut requested, &processed, cancel) => io::Error::other("no cancel requests"),
        };
        self.queue.close();
        // Later acknowledgements fail in the other process; acknowledgements that are in the socket count.
        let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Both);
        while let Ok(Some((frame, _))) = reader.next(stream).await {
            settle(&pending, frame);
        }
        ended
    }
}

/// Sends sessions and replies to cancel requests.
async fn send_all(
    queue: &mut mpsc::Receiver<OutgoingSession>,
    answers: &mut mpsc::Receiver<u64>,
    streams_ended: impl Future<Output = ()>,
    stream: &UnixStream,
    pending: &Pending,
) -> io::Error {
    let (mut number, mut has_streams) = (0, true);
    let mut streams_ended = pin!(streams_ended);
    loop {
        let sent = tokio::select! {
            biased;
            () = &mut streams_ended, if has_streams => {
                has_streams = false;
                send_frame(stream, &HandoverFrame::StreamsEnded.encode(), None).await
            }
            Some(answered) = answers.recv() => send_frame(stream, &HandoverFrame::Cancelled(answered).encode(), None).await,
            Some(mut departure) = queue.recv() => {
                number += 1;
                let mut bytes = session_frame(number, &departure.record);
                wipe(&mut departure.record);
                departure.sent_at = Instant::now();
                let sockets = departure.sockets.try_clone();
                // Before it is sent: the acknowledgement may arrive immediately.
                lock(pending).insert(number, departure);
                let sent = match sockets {
                    Ok(sockets) => send_session(stream, number, &bytes, &sockets).await,
                    Err(error) => Err(error),
                };
                wipe(&mut bytes);
                sent
            }
            else => Err(io::Error::other("the process is stopping")),
        };
        if let Err(error) = sent {
            return error;
        }
    }
}

/// Sends a session behind the socket of its server, if it has one.
async fn send_session(stream: &UnixStream, number: u64, session: &[u8], sockets: &SessionSockets) -> io::Result<()> {
    if let Some(server) = &sockets.server {
        send_frame(stream, &HandoverFrame::Server(number).encode(), Some(server.as_fd())).await?;
    }
    send_frame(stream, session, Some(sockets.client.as_fd())).await
}

async fn receive_all(
    reader: &mut FrameReader,
    stream: &UnixStream,
    pending: &Pending,
    requests: &mpsc::Sender<(u64, u32, Vec<u8>)>,
    on_settled: &impl Fn(),
) -> io::Error {
    loop {
        match reader.next(stream).await {
            Ok(Some((HandoverFrame::Cancel { number, pid, key }, _))) => {
                // Too many at a time are not processed, as a lost request is not.
                let _ = requests.try_send((number, pid, key));
            }
            Ok(Some((frame, _))) => {
                settle(pending, frame);
                on_settled();
            }
            Ok(None) => return io::ErrorKind::UnexpectedEof.into(),
            Err(error) => return error,
        }
    }
}

/// Reports the outcome of a session to its task.
fn settle(pending: &Pending, frame: HandoverFrame) {
    let (number, outcome) = match frame {
        HandoverFrame::Accepted(number) => (number, MoveOutcome::Moved),
        HandoverFrame::Refused { number, reason } => (number, MoveOutcome::Refused(reason)),
        HandoverFrame::Session { .. }
        | HandoverFrame::Server(_)
        | HandoverFrame::Cancel { .. }
        | HandoverFrame::Cancelled(_)
        | HandoverFrame::StreamsEnded => {
            return;
        }
    };
    if let Some(departure) = lock(pending).remove(&number) {
        departure.settle(outcome);
    }
}

impl OutgoingSession {
    fn settle(mut self, outcome: MoveOutcome) {
        // Replaced, because the type has a destructor.
        let (unused, _) = oneshot::channel();
        let task = std::mem::replace(&mut self.outcome, unused);
        drop(self);
        // The task may have been aborted.
        let _ = task.send(outcome);
    }
}

/// Ends when an acknowledgement is late.
async fn watch(pending: &Pending, on_turn: impl Fn()) -> io::Error {
    loop {
        tokio::time::sleep(TURN).await;
        on_turn();
        let oldest = lock(pending).values().next().map(|departure| departure.sent_at.elapsed());
        if oldest.is_some_and(|waited| waited > ACKNOWLEDGE_LIMIT) {
            return io::ErrorKind::TimedOut.into();
        }
    }
}

/// Processes cancel requests; each has a deadline of its own.
async fn process_cancels<C: Future<Output = ()> + Send + 'static>(
    requested: &mut mpsc::Receiver<(u64, u32, Vec<u8>)>,
    processed: &mpsc::Sender<u64>,
    cancel: impl Fn(u32, Vec<u8>) -> C,
) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            Some((number, pid, key)) = requested.recv(), if running.len() < SESSIONS_IN_FLIGHT => {
                let work = cancel(pid, key);
                let processed = processed.clone();
                running.spawn(async move {
                    work.await;
                    let _ = processed.send(number).await;
                });
            }
            Some(_) = running.join_next() => {}
            else => return,
        }
    }
}
