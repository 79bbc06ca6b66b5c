//! Replication slots: show, create, advance and drop.
//!
//! Every function needs a connection that was opened with [`ReplicationMode::Database`](crate::ReplicationMode::Database), which
//! also runs SQL.

use std::time::Duration;

use tidegate_wire::replication::{
    CreateSlot, Lsn, SlotSnapshot, check_slot_name, drop_slot as drop_command, quote_ident, quote_literal,
};

use crate::{
    client::{ClientError, PgConnection, QueryRow},
    error::ChangeStreamError,
    server_state::{ServerState, SlotState, TimelineSwitch, parse_timeline_history},
};

/// End of the WAL, on a primary and on a standby.
const WAL_END: &str = "(case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn() \
                       else pg_catalog.pg_current_wal_lsn() end)";

/// Reads identity, role and settings of the server.
///
/// # Errors
/// The connection broke, or the role may not use replication.
pub async fn server_state(connection: &mut PgConnection) -> Result<ServerState, ClientError> {
    let sql = format!(
        "select pg_catalog.pg_is_in_recovery(), {WAL_END}, \
         (select setting from pg_catalog.pg_settings where name = 'wal_sender_timeout')"
    );
    let rows = connection.query(&sql).await?;
    let [in_recovery, wal_end, timeout] = columns(rows)?;
    // After the role: a standby that is promoted in between counts as a standby. In the other order it would be a primary of
    // the timeline that it has left.
    let rows = connection.query("IDENTIFY_SYSTEM").await?;
    let [system_id, timeline, _, database] = columns(rows)?;
    Ok(ServerState {
        system_id: number(&system_id, "systemid")?,
        timeline: number(&timeline, "timeline")?,
        wal_end: number(&wal_end, "WAL position")?,
        database: database.unwrap_or_default(),
        in_recovery: in_recovery.as_deref() == Some("t"),
        major: connection.major_version()?,
        wal_sender_timeout_ms: number(&timeout, "wal_sender_timeout")?,
    })
}

/// Reads where the history of `timeline` left earlier timelines.
///
/// # Errors
/// The connection broke, or the server has no such history.
pub async fn timeline_history(
    connection: &mut PgConnection,
    timeline: u32,
) -> Result<Vec<TimelineSwitch>, ClientError> {
    if timeline <= 1 {
        return Ok(Vec::new());
    }
    let rows = connection.query(&format!("TIMELINE_HISTORY {timeline}")).await?;
    let [_, content] = columns(rows)?;
    Ok(parse_timeline_history(&content.unwrap_or_default()))
}

/// Lists the slots of the server, or the one with this name.
///
/// # Errors
/// The connection broke.
pub async fn list_slots(connection: &mut PgConnection, name: Option<&str>) -> Result<Vec<SlotState>, ClientError> {
    let major = connection.major_version()?;
    let column = |since: u32, name: &'static str| if major >= since { name } else { "null" };
    let invalid = match major {
        ..16 => "null",
        16 => "case when conflicting then 'conflicts with recovery' end",
        _ => "invalidation_reason",
    };
    let filter = name.map(|name| format!(" where slot_name = {}", quote_literal(name))).unwrap_or_default();
    let sql = format!(
        "select slot_name, plugin, database, active_pid, restart_lsn, confirmed_flush_lsn, wal_status, safe_wal_size, \
         {invalid}, {}, {}, {}, temporary, \
         pg_catalog.pg_wal_lsn_diff({WAL_END}, restart_lsn), pg_catalog.pg_wal_lsn_diff({WAL_END}, confirmed_flush_lsn) \
         from pg_catalog.pg_replication_slots{filter} order by slot_name",
        column(17, "failover"),
        column(17, "synced"),
        column(17, "inactive_since"),
    );
    let rows = connection.query(&sql).await?;
    rows.into_iter().map(slot_of_row).collect()
}

fn slot_of_row(row: QueryRow) -> Result<SlotState, ClientError> {
    let row: [Option<String>; 15] =
        row.try_into().map_err(|_| ClientError::Protocol("a row of slots has another number of columns".to_owned()))?;
    let [
        name,
        plugin,
        database,
        pid,
        restart,
        confirmed,
        status,
        safe,
        invalid,
        failover,
        synced,
        inactive,
        temporary,
        held,
        lag,
    ] = row;
    let lsn = |text: Option<String>| text.and_then(|text| text.parse::<Lsn>().ok());
    let flag = |text: Option<String>| text.map(|text| text == "t");
    // A position after the end of the replayed WAL gives a negative difference.
    let bytes = |text: Option<String>| text.and_then(|text| text.parse::<i128>().ok()).map(|bytes| bytes.max(0));
    let unsigned = |text| bytes(text).map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX));
    Ok(SlotState {
        name: name.unwrap_or_default(),
        plugin,
        database,
        active_pid: pid.and_then(|pid| pid.parse().ok()),
        restart_lsn: lsn(restart),
        confirmed_flush_lsn: lsn(confirmed),
        wal_status: status,
        safe_wal_size: safe.and_then(|safe| safe.parse().ok()),
        invalidation_reason: invalid,
        failover: flag(failover),
        synced: flag(synced),
        inactive_since: inactive,
        held_wal_bytes: unsigned(held),
        lag_bytes: unsigned(lag),
        temporary: temporary.as_deref() == Some("t"),
    })
}

/// A slot to create.
#[derive(Clone, Debug)]
pub struct NewSlot {
    /// Name of the slot: `[a-z0-9_]`, at most 63 bytes.
    pub name: String,
    /// Whether it is synchronised to standbys (Postgres 17; refused on older servers).
    pub failover: bool,
    /// Whether it is dropped with the connection.
    pub temporary: bool,
    /// Whether other sessions can import its snapshot, until the next command on the connection.
    pub export_snapshot: bool,
    /// Limit for older transactions to end, which the creation waits for.
    pub wait_max: Duration,
}

impl NewSlot {
    /// A permanent slot without failover and snapshot; waits 60 seconds for older transactions.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let wait_max = Duration::from_secs(60);
        Self { name: name.into(), failover: false, temporary: false, export_snapshot: false, wait_max }
    }
}

/// A slot that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Transactions that commit after this position are in the slot.
    pub consistent_point: Lsn,
    /// Name of the exported snapshot, which shows the state at `consistent_point`.
    pub snapshot: Option<String>,
}

/// Creates a slot for `pgoutput`. Waits for transactions that are older than the slot, up to `wait_max` for each; the server
/// drops what was begun if one does not end (CH-25, CH-26).
///
/// # Errors
/// [`ChangeStreamError::Refused`] with the process ids of the transactions that did not end, if the name is invalid, or if the
/// server is too old for `failover`; other errors of the server. A standby whose primary is idle needs
/// `pg_log_standby_snapshot()` there.
pub async fn create_slot(connection: &mut PgConnection, slot: &NewSlot) -> Result<CreatedSlot, ChangeStreamError> {
    check_slot_name(&slot.name).map_err(|error| ChangeStreamError::Refused(error.to_string()))?;
    let major = connection.major_version()?;
    if slot.failover && major < 17 {
        let text = format!("failover slots need Postgres 17; the server is version {major}: leave failover out");
        return Err(ChangeStreamError::Refused(text));
    }
    if connection.is_standby() && major < 16 {
        let text =
            format!("slots on a standby need Postgres 16; the server is version {major}: connect to the primary");
        return Err(ChangeStreamError::Refused(text));
    }
    let snapshot = if slot.export_snapshot { SlotSnapshot::Export } else { SlotSnapshot::Nothing };
    let create = CreateSlot { name: &slot.name, temporary: slot.temporary, snapshot, failover: slot.failover };
    let millis = slot.wait_max.as_millis().clamp(1, i32::MAX as u128);
    connection.query(&format!("set lock_timeout = {millis}")).await?;
    // The server reports its own timeout; ours is for a server that does not answer at all. A slot waits up to three times.
    let limit = match connection.is_standby() {
        true => slot.wait_max,
        false => slot.wait_max.saturating_mul(4).saturating_add(Duration::from_secs(30)),
    };
    let created = connection.query_within(&create.command(major), limit).await;
    let rows = match created {
        Ok(rows) => rows,
        Err(error) if error.code() == Some("55P03") => {
            let blocked = blocked(connection, slot).await;
            reset_lock_timeout(connection).await?;
            return Err(blocked);
        }
        Err(ClientError::Timeout { .. }) if connection.is_standby() => return Err(idle_primary(slot)),
        // The connection goes on after an error of the server only.
        Err(error @ ClientError::Server(_)) => {
            reset_lock_timeout(connection).await?;
            return Err(error.into());
        }
        Err(error) => return Err(error.into()),
    };
    let [_, consistent_point, snapshot, _] = columns(rows)?;
    // A further command would end the exported snapshot.
    if !slot.export_snapshot {
        reset_lock_timeout(connection).await?;
    }
    Ok(CreatedSlot { consistent_point: number(&consistent_point, "consistent_point")?, snapshot })
}

/// Ends the limit for locks that the creation of a slot has set.
async fn reset_lock_timeout(connection: &mut PgConnection) -> Result<(), ChangeStreamError> {
    connection.query("reset lock_timeout").await?;
    Ok(())
}

/// A slot on a standby begins at a record of running transactions, which an idle primary does not write (CH-27).
fn idle_primary(slot: &NewSlot) -> ChangeStreamError {
    ChangeStreamError::Refused(format!(
        "cannot create replication slot \"{}\" within {:?}: the standby waits for the primary's running transactions; \
         execute `select pg_log_standby_snapshot()` on the primary while the slot is created",
        slot.name, slot.wait_max
    ))
}

/// Quotes `schema.name`, whose schema has no dot.
#[must_use]
pub fn quoted_table(full_name: &str) -> String {
    match full_name.split_once('.') {
        Some((schema, name)) => format!("{}.{}", quote_ident(schema), quote_ident(name)),
        None => quote_ident(full_name),
    }
}

/// Creates a publication for these tables (`schema.name`), or for all tables.
///
/// # Errors
/// [`ChangeStreamError::Refused`] with the statement to run if the role lacks the privilege; other errors of the server.
pub async fn create_publication(
    connection: &mut PgConnection,
    name: &str,
    tables: &[String],
) -> Result<(), ChangeStreamError> {
    let listed: Vec<_> = tables.iter().map(|table| quoted_table(table)).collect();
    let scope = if tables.is_empty() { "ALL TABLES".to_owned() } else { format!("TABLE {}", listed.join(", ")) };
    let sql = format!("CREATE PUBLICATION {} FOR {scope}", quote_ident(name));
    match connection.query(&sql).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some("42501") => Err(ChangeStreamError::Refused(format!(
            "publication \"{name}\" does not exist, and the role may not create it ({error}); run as owner of the tables, or as \
             superuser for all tables: {sql}"
        ))),
        Err(error) => Err(error.into()),
    }
}

/// Names the transactions that the creation waited for.
async fn blocked(connection: &mut PgConnection, slot: &NewSlot) -> ChangeStreamError {
    let sql = "select pid, coalesce(extract(epoch from pg_catalog.now() - xact_start)::bigint, 0) \
               from pg_catalog.pg_stat_activity where backend_xid is not null and pid <> pg_catalog.pg_backend_pid() \
               order by xact_start limit 5";
    let rows = connection.query(sql).await.unwrap_or_default();
    let text = |row: &QueryRow| {
        let [pid, age] = [0, 1].map(|at| row.get(at).cloned().flatten().unwrap_or_default());
        format!("pid {pid} ({age} s)")
    };
    let found: Vec<String> = rows.iter().map(text).collect();
    let found = if found.is_empty() { "prepared transactions or others".to_owned() } else { found.join(", ") };
    ChangeStreamError::Refused(format!(
        "cannot create replication slot \"{}\" within {:?}: older transactions are open: {found}; end them, or wait longer",
        slot.name, slot.wait_max
    ))
}

/// Moves a slot forward to `lsn` without reading it. Returns the new position; the changes between are lost.
///
/// # Errors
/// The slot is active, or does not exist, or the position is behind its own.
pub async fn advance_slot(connection: &mut PgConnection, name: &str, lsn: Lsn) -> Result<Lsn, ClientError> {
    let name = quote_literal(name);
    let sql = format!("select end_lsn from pg_catalog.pg_replication_slot_advance({name}, '{lsn}')");
    let rows = connection.query(&sql).await?;
    let [end] = columns(rows)?;
    number(&end, "end_lsn")
}

/// Drops a slot. With `force` the process that reads it is terminated first (CH-74).
///
/// # Errors
/// [`ChangeStreamError::Refused`] if the slot is read by a process and `force` is not set; the slot does not exist.
pub async fn drop_slot(connection: &mut PgConnection, name: &str, force: bool) -> Result<(), ChangeStreamError> {
    check_slot_name(name).map_err(|error| ChangeStreamError::Refused(error.to_string()))?;
    let slots = list_slots(connection, Some(name)).await?;
    let Some(slot) = slots.first() else {
        return Err(ChangeStreamError::Refused(format!("replication slot \"{name}\" does not exist")));
    };
    if let Some(pid) = slot.active_pid {
        if !force {
            let text =
                format!("replication slot \"{name}\" is read by process {pid}; stop it first, or force the drop");
            return Err(ChangeStreamError::Refused(text));
        }
        connection.query(&format!("select pg_catalog.pg_terminate_backend({pid})")).await?;
    }
    connection.query(&drop_command(name, force)).await?;
    Ok(())
}

/// The columns of the first row.
fn columns<const N: usize>(rows: Vec<QueryRow>) -> Result<[Option<String>; N], ClientError> {
    let row = rows.into_iter().next().ok_or(ClientError::Protocol("the server returned no row".to_owned()))?;
    row.try_into().map_err(|_| ClientError::Protocol("a row has another number of columns".to_owned()))
}

fn number<T: std::str::FromStr>(text: &Option<String>, what: &str) -> Result<T, ClientError> {
    let text = text.as_deref().unwrap_or_default();
    text.parse().map_err(|_| ClientError::Protocol(format!("{what} is \"{text}\"")))
}
