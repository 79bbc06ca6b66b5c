//! State of a server and of a slot, and whether a stream may start there.
//!
//! [`check_start`] is pure: every rule about lost changes is in it, and is tested without a server.

use tidegate_wire::replication::Lsn;

use crate::{
    error::{ChangeStreamError, LostChanges},
    position::{SlotIdentity, StreamPosition},
};

/// A replication slot, as `pg_replication_slots` shows it. Columns of newer versions are `None` on older servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotState {
    /// Name of the slot.
    pub name: String,
    /// The output plugin; `None` for a physical slot.
    pub plugin: Option<String>,
    /// The database; `None` for a physical slot.
    pub database: Option<String>,
    /// Process that reads the slot at present.
    pub active_pid: Option<u32>,
    /// The oldest WAL that the slot holds.
    pub restart_lsn: Option<Lsn>,
    /// Transactions whose commit starts before this position are not sent again.
    pub confirmed_flush_lsn: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Bytes that may be written before WAL of the slot is removed; `None` without `max_slot_wal_keep_size`.
    pub safe_wal_size: Option<i64>,
    /// Why the slot is invalid (17; on 16 `conflicting`).
    pub invalidation_reason: Option<String>,
    /// Whether the slot is synchronised to standbys (17).
    pub failover: Option<bool>,
    /// Whether the slot was synchronised from a primary (17).
    pub synced: Option<bool>,
    /// Since when the slot is not read (17).
    pub inactive_since: Option<String>,
    /// WAL that the slot holds, in bytes.
    pub held_wal_bytes: Option<u64>,
    /// WAL that the slot's reader has not confirmed, in bytes.
    pub lag_bytes: Option<u64>,
    /// Whether the slot is dropped with its session.
    pub temporary: bool,
}

/// A server, as `IDENTIFY_SYSTEM` and a few functions show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerState {
    /// The system identifier.
    pub system_id: u64,
    /// The current timeline.
    pub timeline: u32,
    /// End of the WAL: written on a primary, replayed on a standby.
    pub wal_end: Lsn,
    /// The database of the connection.
    pub database: String,
    /// Whether the server is a standby.
    pub in_recovery: bool,
    /// The major version.
    pub major: u32,
    /// `wal_sender_timeout` in milliseconds; 0 is none.
    pub wal_sender_timeout_ms: u64,
}

/// Where the history of a server left a timeline: one line of `TIMELINE_HISTORY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimelineSwitch {
    /// The timeline that was left.
    pub timeline: u32,
    /// The position at which it was left.
    pub at: Lsn,
}

/// Parses the content of a timeline history file; lines that are no entries are comments.
#[must_use]
pub fn parse_timeline_history(content: &str) -> Vec<TimelineSwitch> {
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let timeline = words.next()?.parse().ok()?;
        Some(TimelineSwitch { timeline, at: words.next()?.parse().ok()? })
    };
    content.lines().filter_map(entry).collect()
}

/// Facts before the start of a connection.
#[derive(Clone, Copy, Debug)]
pub struct StartCheck<'a> {
    /// The server.
    pub server: &'a ServerState,
    /// The slot; `None` if there is none with its name.
    pub slot: Option<&'a SlotState>,
    /// Name of the slot.
    pub slot_name: &'a str,
    /// The position to resume from; `None` for a consumer that resumes from the slot, on its first connection.
    pub resume: Option<&'a StreamPosition>,
    /// Where the server's history left earlier timelines.
    pub history: &'a [TimelineSwitch],
    /// Whether reading from a standby is allowed.
    pub allow_standby: bool,
}

/// Decides whether a stream may start, and from which position.
///
/// # Errors
/// [`ChangeStreamError::Gap`] if changes after the position cannot come any more, [`ChangeStreamError::Refused`] if the
/// server or the slot is the wrong one, [`ChangeStreamError::NotReady`] if a later attempt may succeed.
pub fn check_start(check: &StartCheck<'_>) -> Result<Lsn, ChangeStreamError> {
    if let Some(resume) = check.resume {
        check_identity(check, resume)?;
    }
    let slot = check_slot(check)?;
    let confirmed = slot.confirmed_flush_lsn.unwrap_or_default();
    let Some(resume) = check.resume else { return Ok(confirmed) };
    let position = resume.lsn;
    if confirmed > position {
        return Err(gap(
            format!(
                "slot \"{}\" is confirmed up to {confirmed}, and the last stored position is {position}: the slot was \
                 created again, or another consumer has read it",
                check.slot_name
            ),
            RESNAPSHOT,
        ));
    }
    if position > check.server.wal_end {
        let wal_end = check.server.wal_end;
        return Err(gap(
            format!(
                "the last stored position is {position}, and the WAL of the server ends at {wal_end}: the server has \
                 lost WAL that was read from it, by a failover or a restore"
            ),
            RESNAPSHOT,
        ));
    }
    Ok(position)
}

const RESNAPSHOT: &str = "take a new snapshot of the tables (with a new slot and state), or go on without these changes \
                          by starting from the slot";

fn gap(reason: String, remedy: &str) -> ChangeStreamError {
    ChangeStreamError::Gap(LostChanges { reason, remedy: remedy.to_owned() })
}

/// Compares the server with the server of the position.
fn check_identity(check: &StartCheck<'_>, resume: &StreamPosition) -> Result<(), ChangeStreamError> {
    let (server, known) = (check.server, &resume.identity);
    if server.system_id != known.system_id {
        return Err(gap(
            format!(
                "the position belongs to the cluster with system identifier {}, and this one has {}",
                known.system_id, server.system_id
            ),
            "connect to the former cluster, or take a new snapshot from this one",
        ));
    }
    if known.slot != check.slot_name || known.database != server.database {
        return Err(ChangeStreamError::Refused(format!(
            "the position belongs to slot \"{}\" of database \"{}\", not to slot \"{}\" of database \"{}\"; use its own \
             slot, or start without a position",
            known.slot, known.database, check.slot_name, server.database
        )));
    }
    if server.timeline < known.timeline {
        return Err(ChangeStreamError::NotReady(format!(
            "the server is on timeline {}, and the stream has read timeline {}: this is a former primary; connect to the \
             new one",
            server.timeline, known.timeline
        )));
    }
    if server.timeline > known.timeline {
        let left = check.history.iter().find(|switch| switch.timeline == known.timeline);
        let Some(left) = left else {
            return Err(gap(
                format!("timeline {} is not in the history of timeline {}", known.timeline, server.timeline),
                RESNAPSHOT,
            ));
        };
        if resume.lsn > left.at {
            return Err(gap(
                format!(
                    "the stream has read up to {} of timeline {}, and the promoted server left it at {}: it may lack \
                     transactions that were delivered",
                    resume.lsn, known.timeline, left.at
                ),
                &format!("{RESNAPSHOT}; synchronized_standby_slots keeps a stream behind its standbys"),
            ));
        }
    }
    Ok(())
}

fn check_slot<'a>(check: &StartCheck<'a>) -> Result<&'a SlotState, ChangeStreamError> {
    let name = check.slot_name;
    if check.server.in_recovery && !check.allow_standby {
        return Err(ChangeStreamError::NotReady(
            "the server is a standby; connect to the primary, or allow reading from a standby (Postgres 16)".to_owned(),
        ));
    }
    let Some(slot) = check.slot else {
        let missing = format!("replication slot \"{name}\" does not exist");
        return Err(match check.resume {
            Some(_) => gap(
                format!("{missing} any more: it was dropped, or not synchronised before a failover"),
                "create the slot with FAILOVER on Postgres 17 and newer, and take a new snapshot of the tables",
            ),
            None => ChangeStreamError::Refused(format!("{missing}; create it before the stream starts")),
        });
    };
    if slot.plugin.as_deref() != Some("pgoutput") {
        let found = slot.plugin.as_deref().unwrap_or("none, it is physical");
        return Err(ChangeStreamError::Refused(format!(
            "replication slot \"{name}\" needs the output plugin pgoutput, and has {found}; use another slot"
        )));
    }
    if slot.database.as_deref() != Some(check.server.database.as_str()) {
        let found = slot.database.as_deref().unwrap_or_default();
        return Err(ChangeStreamError::Refused(format!(
            "replication slot \"{name}\" belongs to database \"{found}\", not to \"{}\"",
            check.server.database
        )));
    }
    if let Some(reason) = invalidation(slot) {
        let lost_from = slot.confirmed_flush_lsn.unwrap_or_default();
        return Err(gap(
            format!("replication slot \"{name}\" is invalid ({reason}); changes after {lost_from} are lost"),
            "drop the slot, create it again, and take a new snapshot of the tables; raise max_slot_wal_keep_size or \
             idle_replication_slot_timeout if it was the reason",
        ));
    }
    if check.server.in_recovery && slot.synced == Some(true) {
        return Err(ChangeStreamError::NotReady(format!(
            "replication slot \"{name}\" is synchronised from the primary and cannot be read before a promotion"
        )));
    }
    Ok(slot)
}

/// Why a slot cannot be read any more.
#[must_use]
pub fn invalidation(slot: &SlotState) -> Option<&str> {
    let lost = slot.wal_status.as_deref().filter(|status| *status == "lost");
    slot.invalidation_reason.as_deref().or(lost)
}

impl ServerState {
    /// The identity of positions of a slot on this server.
    #[must_use]
    pub fn identity(&self, slot: &str) -> SlotIdentity {
        SlotIdentity {
            system_id: self.system_id,
            timeline: self.timeline,
            database: self.database.clone(),
            slot: slot.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorClass;

    fn server() -> ServerState {
        ServerState {
            system_id: 1,
            timeline: 1,
            wal_end: Lsn(1000),
            database: "shop".to_owned(),
            major: 18,
            ..ServerState::default()
        }
    }

    fn slot() -> SlotState {
        SlotState {
            name: "s".to_owned(),
            plugin: Some("pgoutput".to_owned()),
            database: Some("shop".to_owned()),
            confirmed_flush_lsn: Some(Lsn(500)),
            wal_status: Some("reserved".to_owned()),
            ..SlotState::default()
        }
    }

    fn position(lsn: u64) -> StreamPosition {
        StreamPosition { identity: server().identity("s"), lsn: Lsn(lsn) }
    }

    fn outcome(
        server: &ServerState,
        slot: Option<&SlotState>,
        resume: Option<&StreamPosition>,
    ) -> Result<u64, ErrorClass> {
        let history = [TimelineSwitch { timeline: 1, at: Lsn(700) }];
        let check = StartCheck { server, slot, slot_name: "s", resume, history: &history, allow_standby: false };
        check_start(&check).map(|lsn| lsn.0).map_err(|error| error.class())
    }

    /// CH-10, CH-12, CH-13, CH-14.
    #[test]
    fn position_is_compared_with_the_slot_and_the_wal() {
        let start = |lsn| outcome(&server(), Some(&slot()), Some(&position(lsn)));
        assert_eq!(start(500), Ok(500));
        // The slot went back after a crash of the server: our position is later, and right.
        assert_eq!(start(600), Ok(600));
        assert_eq!(start(499), Err(ErrorClass::Gap));
        assert_eq!(start(1001), Err(ErrorClass::Gap));
        assert_eq!(outcome(&server(), Some(&slot()), None), Ok(500));
    }

    /// CH-67.
    #[test]
    fn missing_slot_is_a_gap_unless_the_stream_is_new() {
        assert_eq!(outcome(&server(), None, Some(&position(500))), Err(ErrorClass::Gap));
        assert_eq!(outcome(&server(), None, None), Err(ErrorClass::Stop));
    }

    /// CH-11, CH-68, CH-69.
    #[test]
    fn other_server_or_timeline_is_noticed() {
        let other = ServerState { system_id: 2, ..server() };
        assert_eq!(outcome(&other, Some(&slot()), Some(&position(500))), Err(ErrorClass::Gap));
        let promoted = ServerState { timeline: 2, ..server() };
        assert_eq!(outcome(&promoted, Some(&slot()), Some(&position(700))), Ok(700));
        assert_eq!(outcome(&promoted, Some(&slot()), Some(&position(701))), Err(ErrorClass::Gap));
        let mut stored = position(600);
        stored.identity.timeline = 2;
        assert_eq!(outcome(&server(), Some(&slot()), Some(&stored)), Err(ErrorClass::Retry));
        stored.identity.slot = "other".to_owned();
        assert_eq!(outcome(&promoted, Some(&slot()), Some(&stored)), Err(ErrorClass::Stop));
        let standby = ServerState { in_recovery: true, ..server() };
        assert_eq!(outcome(&standby, Some(&slot()), Some(&position(500))), Err(ErrorClass::Retry));
    }

    /// CH-58, CH-64.
    #[test]
    fn unusable_slot_is_refused() {
        let cases = [
            (SlotState { plugin: Some("wal2json".to_owned()), ..slot() }, ErrorClass::Stop),
            (SlotState { plugin: None, database: None, ..slot() }, ErrorClass::Stop),
            (SlotState { database: Some("other".to_owned()), ..slot() }, ErrorClass::Stop),
            (SlotState { wal_status: Some("lost".to_owned()), ..slot() }, ErrorClass::Gap),
            (SlotState { invalidation_reason: Some("idle_timeout".to_owned()), ..slot() }, ErrorClass::Gap),
        ];
        for (slot, class) in cases {
            assert_eq!(outcome(&server(), Some(&slot), None), Err(class), "{slot:?}");
        }
    }

    #[test]
    fn timeline_history_is_parsed() {
        let content = "1\t0/5000060\tno recovery target specified\n\n# note\n2\t1/0\tbefore 2026\n";
        let expected =
            [TimelineSwitch { timeline: 1, at: Lsn(0x500_0060) }, TimelineSwitch { timeline: 2, at: Lsn(1 << 32) }];
        assert_eq!(parse_timeline_history(content), expected);
    }
}
