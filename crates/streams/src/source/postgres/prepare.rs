//! Before the start: checks of the server, what `create` asks for, and what follows when changes are lost.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use tidegate_changes::{
    ChangeStreamError, ConnectOptions, ErrorClass, LostChanges, PgConnection, ReplicationMode, SlotIdentity,
    SnapshotState, invalidation,
    preflight::{FindingLevel, PreflightFacts, PreflightFinding, PreflightOptions, findings, read_facts},
    slots::{self, NewSlot, create_publication, create_slot, drop_slot},
    spool::{Spool, SpoolError},
};
use tidegate_config::stream::{ChangesLostAction, SnapshotMode, StreamKeys};
use tidegate_supervise::Backoff;

use super::{ChangeSourceError, store::CopyStore, store::folder};
use crate::{error::StreamError, plan::StreamPlan};

/// Facts that are known before the server is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartFacts {
    /// The stream has stored no position yet, so that a missing slot is no loss.
    pub(super) is_first: bool,
    /// Whether a missing publication is created.
    pub(super) creates: bool,
    /// Whether a missing slot is created now.
    pub(super) creates_slot: bool,
    /// Whether tables are read.
    pub(super) copies: bool,
    /// Whether the slot is read.
    pub(super) streams: bool,
}

/// A checked server.
pub(super) struct CheckedServer {
    pub(super) identity: SlotIdentity,
    pub(super) has_slot: bool,
}

/// Whether an error means that changes are lost.
pub(crate) fn is_gap(error: &StreamError) -> bool {
    gap_of(error).is_some()
}

/// Delays while the server cannot be reached.
fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(200), Duration::from_secs(30))
}

/// Waits before the next attempt at a server that cannot be used.
pub(crate) async fn wait_for_server(keys: &StreamKeys, error: &ChangeStreamError, failures: u32) {
    let delay = backoff().delay(failures, fastrand::f64());
    tracing::warn!(stream = keys.name, %error, ?delay, "the server cannot be used yet");
    tokio::time::sleep(delay).await;
}

/// Checks the server, and creates what is missing if that is configured.
pub(super) async fn prepare(
    connect: &ConnectOptions,
    keys: &StreamKeys,
    start: StartFacts,
) -> Result<CheckedServer, ChangeStreamError> {
    let options = PreflightOptions {
        slot: keys.slot.clone(),
        publications: vec![keys.publication.clone()],
        tables: keys.tables.clone(),
        snapshot: start.copies,
        creates: start.creates,
    };
    let mut connection = match PgConnection::connect(connect, ReplicationMode::Database).await {
        Ok(connection) => connection,
        // The role may not use replication: an ordinary connection reports all that is missing.
        Err(error) if error.code() == Some("42501") => {
            let mut connection = PgConnection::connect(connect, ReplicationMode::Off).await?;
            let facts = read_facts(&mut connection, &options).await?;
            report(keys, &findings(&facts, &options), start)?;
            return Err(explained(error));
        }
        Err(error) => return Err(explained(error)),
    };
    let server = slots::server_state(&mut connection).await.map_err(explained)?;
    if server.in_recovery {
        let text = "the server is a standby; connect to the primary".to_owned();
        return Err(ChangeStreamError::NotReady(text));
    }
    let facts = read_facts(&mut connection, &options).await.map_err(explained)?;
    let prepared = CheckedServer { identity: server.identity(&keys.slot), has_slot: facts.slot.is_some() };
    if start.streams {
        refuse_lost_slot(&facts, keys, start.is_first)?;
    }
    let found = findings(&facts, &options);
    report(keys, &found, start)?;
    if facts.publications.is_empty() && start.creates {
        create_publication(&mut connection, &keys.publication, &keys.tables).await?;
        tracing::info!(stream = keys.name, publication = keys.publication, "publication created");
    }
    if !prepared.has_slot && start.creates_slot {
        let slot = NewSlot { failover: keys.failover, ..NewSlot::new(&keys.slot) };
        let created = create_slot(&mut connection, &slot).await?;
        tracing::info!(stream = keys.name, slot = keys.slot, from = %created.consistent_point, "replication slot created");
    }
    connection.close().await;
    Ok(prepared)
}

/// Adds the remedy to an error of the server.
fn explained(error: tidegate_changes::ClientError) -> ChangeStreamError {
    match error {
        tidegate_changes::ClientError::Server(report) => {
            let (class, remedy) = tidegate_changes::classify(&report);
            ChangeStreamError::Server { report, remedy: remedy.to_owned(), class }
        }
        other => other.into(),
    }
}

/// Returns a slot that cannot deliver what it should as a gap.
fn refuse_lost_slot(facts: &PreflightFacts, keys: &StreamKeys, is_first: bool) -> Result<(), ChangeStreamError> {
    let name = &keys.slot;
    let gap = |reason: String| {
        let remedy = format!(
            "fill the sink again: changes_lost = \"resnapshot\" copies the tables again, changes_lost = \"skip\" goes on without \
             these changes; by hand: SELECT pg_drop_replication_slot('{name}') if it exists, and remove the state of the stream"
        );
        Err(ChangeStreamError::Gap(LostChanges { reason, remedy }))
    };
    match &facts.slot {
        None if !is_first => gap(format!(
            "replication slot \"{name}\" does not exist any more: it was dropped, or not synchronised before a failover"
        )),
        Some(slot) => match invalidation(slot) {
            Some(reason) => {
                let from = slot.confirmed_flush_lsn.unwrap_or_default();
                gap(format!("replication slot \"{name}\" is invalid ({reason}); changes after {from} are lost"))
            }
            None => Ok(()),
        },
        None => Ok(()),
    }
}

/// Logs findings; returns those that prevent the start.
fn report(keys: &StreamKeys, found: &[PreflightFinding], start: StartFacts) -> Result<(), ChangeStreamError> {
    // A copy alone needs no slot of its own.
    let concerns_slot = |finding: &PreflightFinding| finding.problem.starts_with("replication slot \"");
    let is_relevant = |finding: &&PreflightFinding| start.streams || !concerns_slot(finding);
    let mut errors = Vec::new();
    for PreflightFinding { level, problem, remedy } in found.iter().filter(is_relevant) {
        match level {
            FindingLevel::Error => errors.push(format!("{problem}; run: {remedy}")),
            FindingLevel::Warning => tracing::warn!(stream = keys.name, problem, remedy, "check of the server"),
            FindingLevel::Note => tracing::info!(stream = keys.name, problem, remedy, "check of the server"),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(ChangeStreamError::Refused(errors.join("; and "))) }
}

/// The action of the next run after a loss of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum GapRecovery {
    /// None were lost.
    #[default]
    None,
    /// The tables are copied again, from a new slot.
    Resnapshot,
    /// The stream goes on at the slot.
    Skip,
}

/// The lost changes of an error.
fn gap_of(error: &StreamError) -> Option<String> {
    let stream_error = match error {
        StreamError::Changes(error) => error,
        StreamError::Run(tidegate_lanes::RunError::Source(error)) => {
            match error.downcast_ref::<ChangeSourceError>()? {
                ChangeSourceError::Stream(error) => error,
                _ => return None,
            }
        }
        _ => return None,
    };
    (stream_error.class() == ErrorClass::Gap).then(|| stream_error.to_string())
}

/// Prepares the next run after an error, if changes were lost and the configuration declares how to go on.
///
/// # Errors
/// The slot or the state cannot be replaced.
pub(crate) async fn recover(
    plan: &StreamPlan,
    connect: &ConnectOptions,
    error: &StreamError,
) -> Result<GapRecovery, StreamError> {
    let keys = &plan.stream.keys;
    let Some(gap) = gap_of(error) else { return Ok(GapRecovery::None) };
    match keys.changes_lost {
        ChangesLostAction::Stop => Ok(GapRecovery::None),
        ChangesLostAction::Resnapshot => {
            tracing::error!(stream = keys.name, gap, "changes are lost; the tables are copied again");
            let store = CopyStore::of(plan)?;
            let repeats = next_repeat(&store).await?;
            replace_slot(connect, keys, true).await.map_err(StreamError::Changes)?;
            // The state is stored before the spool is removed: after a crash, the next start replaces rows of the earlier copy.
            store.restart_sink(repeats).await?;
            clear(keys, &store, SnapshotState { tables: Vec::new(), repeats }).await?;
            Ok(GapRecovery::Resnapshot)
        }
        ChangesLostAction::Skip => {
            tracing::error!(stream = keys.name, gap, "changes are lost; the stream goes on without them");
            replace_slot(connect, keys, false).await.map_err(StreamError::Changes)?;
            Ok(GapRecovery::Skip)
        }
    }
}

/// The number of the new copy. A copy that is lost before its end would begin for ever.
async fn next_repeat(store: &CopyStore) -> Result<u32, StreamError> {
    let state = store.load().await.ok().flatten().unwrap_or_default();
    if state.repeats > 0 && !state.is_done() {
        return Err(StreamError::Copy(
            "the slot was lost again before the new copy of the tables had ended: raise max_slot_wal_keep_size, then start the \
             stream again with a new state"
                .to_owned(),
        ));
    }
    Ok(state.repeats + 1)
}

/// Drops the slot if it is invalid, or in any case.
async fn replace_slot(connect: &ConnectOptions, keys: &StreamKeys, always: bool) -> Result<(), ChangeStreamError> {
    let mut connection = PgConnection::connect(connect, ReplicationMode::Database).await?;
    let found = slots::list_slots(&mut connection, Some(&keys.slot)).await?.into_iter().next();
    if found.is_some_and(|slot| always || invalidation(&slot).is_some()) {
        drop_slot(&mut connection, &keys.slot, false).await?;
        tracing::warn!(stream = keys.name, slot = keys.slot, "replication slot dropped");
    }
    connection.close().await;
    Ok(())
}

/// Stores the state of a copy that begins again, if its place is the folder, and removes the spool. Refused if another process
/// owns the folder.
pub(super) async fn clear(keys: &StreamKeys, store: &CopyStore, state: SnapshotState) -> Result<(), StreamError> {
    let Some(folder) = folder(keys) else { return Ok(()) };
    let state = (!store.is_sink()).then_some(state);
    let config = super::spool_config(keys, &folder);
    let cleared = tokio::task::spawn_blocking(move || {
        let spool = match Spool::open(config) {
            Ok(spool) => Some(spool),
            Err(SpoolError::Damaged(_)) => None,
            Err(error) => return Err(error),
        };
        let io = |source| SpoolError::Io { folder: folder.clone(), source };
        state.iter().try_for_each(|state| state.store(&folder)).map_err(io)?;
        drop(spool);
        remove_entries(&folder, state.is_some()).map_err(io)
    });
    let cleared = cleared.await.map_err(|_| StreamError::Changes(ChangeStreamError::Ended))?;
    cleared.map_err(|error| StreamError::Changes(error.into()))
}

/// Empties the folder of a stream, but for the state of its copy.
fn remove_entries(folder: &Path, keeps_state: bool) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if keeps_state && entry.file_name() == SnapshotState::FILE {
            continue;
        }
        if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
    }
    Ok(())
}

/// Whether a missing slot and publication may be created.
pub(super) fn may_create(keys: &StreamKeys, recovery: GapRecovery) -> bool {
    keys.create || recovery != GapRecovery::None
}

/// Whether tables that the store does not know are copied.
pub(super) fn copies_new(keys: &StreamKeys, recovery: GapRecovery) -> bool {
    keys.snapshot != SnapshotMode::None || recovery == GapRecovery::Resnapshot
}
