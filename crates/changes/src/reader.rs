//! Reads the replication connection: connects, receives, answers the server on time, and connects again.
//!
//! One task owns the connection. It answers the server by its own timer, whatever the consumer does (CH-20, CH-22).

mod monitor;
mod notices;
mod session;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tidegate_wire::replication::Lsn;
use tokio::sync::{mpsc, watch};

use crate::{
    ack::{AckTracker, Acknowledge},
    assembler::Assembler,
    client::{ClientError, PgConnection, ReplicationMode, ServerReport},
    error::{AssembleError, ChangeStreamError, ErrorClass, OBJECT_IN_USE, classify},
    event::{ChangeEvent, PgTimestamp},
    options::ChangeOptions,
    position::StreamPosition,
    server_state::{StartCheck, check_start},
    slots,
    status::{ChangeStreamStatus, ConnectionState},
    wal_bound::{WalBound, WalFull},
};
pub(crate) use monitor::SlotMonitor;
use notices::NoticeLog;
use session::{ReplicationEnd, ReplicationSession};

pub(crate) type BatchSender = mpsc::Sender<Result<Vec<ChangeEvent>, ChangeStreamError>>;

/// Connections that may break at the same position by a malformed message before the stream ends.
const MALFORMED_MAX: u32 = 3;
/// The error of a start at a slot that another process has just left.
const IN_USE_BEFORE: &str = "another process read the slot until now: its position is read again";
/// A connection that lived this long counts as a success.
const STABLE_AFTER: Duration = Duration::from_secs(30);
/// The bounds of the time between status updates; times are added to clocks.
const STATUS_INTERVAL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(24 * 3600));

/// Why a reader has to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StopRequest {
    /// No request: the reader continues.
    #[default]
    None,
    /// The consumer has stopped the stream.
    Stop,
    /// The slot holds this many bytes of WAL, more than its bound.
    WalFull(u64),
}

impl StopRequest {
    const fn is_some(&self) -> bool {
        !matches!(self, Self::None)
    }
}

/// Everything that outlives a connection.
pub(crate) struct Reader {
    pub(crate) options: Arc<ChangeOptions>,
    pub(crate) assembler: Assembler,
    pub(crate) has_streaming: bool,
    pub(crate) tracker: Option<AckTracker>,
    pub(crate) acknowledge: Acknowledge,
    pub(crate) batches: BatchSender,
    pub(crate) stop: watch::Receiver<StopRequest>,
    pub(crate) status: Arc<watch::Sender<ChangeStreamStatus>>,
    /// The position to resume from, as far as it is known.
    pub(crate) resume: Option<StreamPosition>,
    /// Events that were assembled and not handed over.
    pub(crate) pending: Vec<ChangeEvent>,
    /// Position and number of malformed messages there.
    malformed: (Lsn, u32),
    /// Since when the slot is in use by another process.
    busy_since: Option<Instant>,
}

impl Reader {
    pub(crate) fn new(
        mut options: ChangeOptions,
        acknowledge: Acknowledge,
        batches: BatchSender,
        stop: watch::Receiver<StopRequest>,
        status: Arc<watch::Sender<ChangeStreamStatus>>,
    ) -> Self {
        let start = options.resume.as_ref().map_or(Lsn::ZERO, |resume| resume.lsn);
        let mut assembler = Assembler::new(start).with_relations(std::mem::take(&mut options.relations));
        let streaming = options.streaming.take();
        let has_streaming = streaming.is_some();
        if let Some(streaming) = streaming {
            assembler = assembler.with_spill(streaming.store, streaming.memory_max);
        }
        let resume = options.resume.clone();
        Self {
            options: Arc::new(options),
            assembler,
            has_streaming,
            tracker: None,
            acknowledge,
            batches,
            stop,
            status,
            resume,
            pending: Vec::new(),
            malformed: (Lsn::ZERO, 0),
            busy_since: None,
        }
    }

    /// Reads until the stream is stopped, the consumer is gone, or an error ends it, which is the last item of the stream.
    pub(crate) async fn run(mut self) {
        if let Err(error) = self.run_connections().await {
            tracing::error!(slot = self.options.slot, %error, "change stream ended");
            self.status.send_modify(|status| status.last_error = Some(error.to_string()));
            drop(self.batches.send(Err(error)).await);
        }
        self.status.send_modify(|status| status.connection = ConnectionState::Ended);
    }

    async fn run_connections(&mut self) -> Result<(), ChangeStreamError> {
        let mut failures: u32 = 0;
        loop {
            let started = Instant::now();
            let request = *self.stop.borrow();
            let outcome = match request {
                StopRequest::WalFull(held_bytes) => Err(self.on_wal_full(held_bytes).await),
                _ => self.run_connection().await,
            };
            self.assembler.disconnect();
            let error = match outcome {
                Ok(ReplicationEnd::Stopped) if matches!(*self.stop.borrow(), StopRequest::WalFull(_)) => continue,
                Ok(ReplicationEnd::Stopped) => return Ok(()),
                Err(error) => self.final_form(error),
            };
            if error.class() != ErrorClass::Retry {
                return self.hand_over().await.and(Err(error));
            }
            failures = if started.elapsed() > STABLE_AFTER { 1 } else { failures.saturating_add(1) };
            if self.options.attempts_max.is_some_and(|max| failures >= max) {
                return Err(ChangeStreamError::GaveUp { attempts: failures, last: Box::new(error) });
            }
            let delay = self.options.backoff.delay(failures, fastrand::f64());
            tracing::warn!(slot = self.options.slot, %error, ?delay, "replication connection lost");
            self.status.send_modify(|status| {
                status.connection = ConnectionState::Waiting;
                status.last_error = Some(error.to_string());
                status.is_slot_busy = error.is_slot_busy();
                status.reconnects_total += 1;
            });
            self.hand_over().await?;
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop == StopRequest::Stop) => return Ok(()),
                () = self.batches.closed() => return Ok(()),
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Hands over events of the connection that has ended: the assembler counts them as delivered.
    async fn hand_over(&mut self) -> Result<(), ChangeStreamError> {
        let pending = std::mem::take(&mut self.pending);
        if !pending.is_empty() {
            self.status.send_modify(|status| status.count(&pending));
            tokio::select! {
                _ = self.stop.wait_for(StopRequest::is_some) => {}
                _ = self.batches.send(Ok(pending)) => {}
            }
        }
        Ok(())
    }

    async fn run_connection(&mut self) -> Result<ReplicationEnd, ChangeStreamError> {
        self.status.send_modify(|status| status.connection = ConnectionState::Connecting);
        let mut stop = self.stop.clone();
        let start = tokio::select! {
            _ = stop.wait_for(StopRequest::is_some) => return Ok(ReplicationEnd::Stopped),
            started = self.start() => started?,
        };
        self.busy_since = None;
        ReplicationSession::new(self, start).run().await
    }

    /// Connects, checks server and slot, and begins to stream.
    async fn start(&mut self) -> Result<Started, ChangeStreamError> {
        let options = Arc::clone(&self.options);
        let mut notices = NoticeLog::default();
        let mut connection = PgConnection::connect(&options.connect, ReplicationMode::Database).await?;
        let server = slots::server_state(&mut connection).await?;
        if server.major < 14 {
            let text = format!("the server is version {}; use Postgres 14 or newer", server.major);
            return Err(ChangeStreamError::Refused(text));
        }
        let known = self.resume.as_ref().map(|resume| resume.identity.timeline);
        let history = match known {
            Some(known) if server.timeline > known => slots::timeline_history(&mut connection, server.timeline).await?,
            _ => Vec::new(),
        };
        let found = slots::list_slots(&mut connection, Some(&options.slot)).await?;
        let was_in_use = found.first().is_some_and(|slot| slot.active_pid.is_some());
        let position = check_start(&StartCheck {
            server: &server,
            slot: found.first(),
            slot_name: &options.slot,
            resume: self.resume.as_ref(),
            history: &history,
            allow_standby: options.allow_standby,
        })?;
        let identity = server.identity(&options.slot);
        self.resume = Some(StreamPosition { identity: identity.clone(), lsn: position });
        self.tracker.get_or_insert_with(|| AckTracker::new(options.idle_ack, position));
        let plugin = options.plugin(server.major, self.has_streaming);
        let command = tidegate_wire::replication::start_replication(&options.slot, position, &plugin.pairs());
        match connection.begin_copy(&command).await {
            // The last acknowledgement of the other reader may have moved the slot since it was listed.
            Ok(_) if was_in_use => return Err(ChangeStreamError::NotReady(IN_USE_BEFORE.to_owned())),
            Ok(started) => started.iter().try_for_each(|report| notices.check(report))?,
            Err(ClientError::Server(report)) if report.code == OBJECT_IN_USE => {
                return Err(self.slot_in_use(&mut connection, *report).await);
            }
            Err(error) => return Err(error.into()),
        }
        tracing::info!(slot = options.slot, %position, server = connection.address(), "change stream started");
        self.status.send_modify(|status| {
            status.connection = ConnectionState::Streaming;
            status.identity = Some(identity);
            status.slot = found.into_iter().next();
        });
        let server_limit = Duration::from_millis(server.wal_sender_timeout_ms) / 3;
        let server_limit = if server_limit.is_zero() { Duration::MAX } else { server_limit };
        let status_interval = options.status_interval.min(server_limit).clamp(STATUS_INTERVAL.0, STATUS_INTERVAL.1);
        Ok(Started { connection, status_interval, notices })
    }

    /// The slot is read by another process: usually the walsender of our last connection, until its timeout (CH-23).
    async fn slot_in_use(&mut self, connection: &mut PgConnection, report: ServerReport) -> ChangeStreamError {
        let since = *self.busy_since.get_or_insert_with(Instant::now);
        let sql = format!(
            "select s.active_pid, coalesce(extract(epoch from pg_catalog.now() - a.backend_start)::bigint, 0), \
             coalesce(a.client_addr::text, 'local'), coalesce(a.application_name, '') \
             from pg_catalog.pg_replication_slots s left join pg_catalog.pg_stat_activity a on a.pid = s.active_pid \
             where s.slot_name = {}",
            tidegate_wire::replication::quote_literal(&self.options.slot)
        );
        let row = connection.query(&sql).await.ok().and_then(|rows| rows.into_iter().next()).unwrap_or_default();
        let text = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
        let reader = format!("pid {}, connected for {} s from {} ({})", text(0), text(1), text(2), text(3));
        let lasts = since.elapsed() > self.options.slot_busy_max;
        let remedy = format!("the slot is read by {reader}: only one stream can read a slot; stop the other one");
        let class = if lasts { ErrorClass::Stop } else { ErrorClass::Retry };
        ChangeStreamError::Server { report: Box::new(report), remedy, class }
    }

    /// Ends the stream because of the WAL that its slot holds. A failure to drop the slot is tried again.
    async fn on_wal_full(&mut self, held_bytes: u64) -> ChangeStreamError {
        let slot = self.options.slot.clone();
        let Some(WalBound { bytes_max, full }) = self.options.wal_bound else { return ChangeStreamError::Ended };
        if full != WalFull::DropSlot {
            return ChangeStreamError::WalFull { slot, held_bytes, bytes_max };
        }
        let dropped = async {
            let mut connection = PgConnection::connect(&self.options.connect, ReplicationMode::Database).await?;
            slots::drop_slot(&mut connection, &slot, true).await
        };
        if let Err(error) = dropped.await {
            return error;
        }
        let after = self.resume.as_ref().map_or(Lsn::ZERO, |resume| resume.lsn);
        let reason = format!(
            "replication slot \"{slot}\" held {held_bytes} bytes of WAL, more than its bound of {bytes_max} bytes, and was \
             dropped, as configured; transactions that committed after {after} are not delivered"
        );
        let remedy = "create the slot again, and take a new snapshot of the tables".to_owned();
        crate::error::LostChanges { reason, remedy }.into()
    }

    /// Adds what to do to an error of the server, and ends the stream at the third malformed message at one position.
    fn final_form(&mut self, error: ChangeStreamError) -> ChangeStreamError {
        match error {
            ChangeStreamError::Client(ClientError::Server(report)) => {
                let (class, remedy) = classify(&report);
                ChangeStreamError::Server { report, remedy: remedy.to_owned(), class }
            }
            ChangeStreamError::Assemble(AssembleError::Gap(gap)) => ChangeStreamError::Gap(gap),
            ChangeStreamError::Assemble(AssembleError::Spill(error)) if self.has_streaming && is_full(&error) => {
                // The server spills to its own disk instead.
                self.has_streaming = false;
                let text = format!("{error}; the server keeps large transactions until they commit, from now on");
                ChangeStreamError::NotReady(text)
            }
            ChangeStreamError::Assemble(error) if !matches!(error, AssembleError::Spill(_)) => {
                let at = self.tracker.as_ref().map_or(Lsn::ZERO, AckTracker::received);
                self.malformed = if self.malformed.0 == at { (at, self.malformed.1 + 1) } else { (at, 1) };
                if self.malformed.1 < MALFORMED_MAX {
                    return ChangeStreamError::Assemble(error);
                }
                let text = format!("the server sent an unusable message {MALFORMED_MAX} times after {at}: {error}");
                ChangeStreamError::Refused(text)
            }
            other => other,
        }
    }
}

/// Whether there is no room, on the disk or within a bound.
fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::QuotaExceeded | std::io::ErrorKind::StorageFull)
}

struct Started {
    connection: PgConnection,
    status_interval: Duration,
    notices: NoticeLog,
}

fn now() -> PgTimestamp {
    PgTimestamp::from_system_time(SystemTime::now())
}
