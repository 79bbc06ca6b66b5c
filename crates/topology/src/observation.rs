//! The probe query and its answers.

use std::mem;

use tidegate_wire::backend::DataRow;

macro_rules! probe_query {
    () => {
        "SELECT pg_catalog.pg_is_in_recovery(), \
         CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
         ELSE pg_catalog.pg_current_wal_lsn() END, \
         CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL \
         ELSE pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) END"
    };
}

/// The probe query. It needs no privilege and works with every version of Postgres from 14 on. The first eight digits of a WAL
/// file name are the timeline; `pg_control_checkpoint` returns the old timeline for a while after a promotion. Servers that
/// replicate from each other have the same system identifier, and each start has its own time.
pub(super) const PROBE_QUERY: &str = concat!(
    probe_query!(),
    ", (SELECT system_identifier FROM pg_catalog.pg_control_system()), \
     (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8"
);

/// The query for servers that lack some of these functions, or restrict them.
pub(super) const SHORT_PROBE_QUERY: &str = probe_query!();

/// Identifies a server independently of its address. Zero means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerOrigin {
    /// System identifier, created by `initdb` and shared by all servers that replicate from each other.
    pub system: i64,
    /// Start time of the server in microseconds. Two addresses with equal values belong to one server.
    pub started: i64,
}

/// Answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Whether the server replays WAL: it is a replica.
    pub in_recovery: bool,
    /// End of the own WAL, or the replay position.
    pub lsn: u64,
    /// Timeline of a primary; each promotion increases it.
    pub timeline: u32,
    /// Identity of the server.
    pub origin: ServerOrigin,
}

impl Observation {
    /// Decodes the row; `None` if it is malformed.
    pub(super) fn decode(row: &[u8]) -> Option<Self> {
        let mut values = DataRow::decode(row).ok()?.map(|value| value.and_then(|bytes| str::from_utf8(bytes).ok()));
        let in_recovery = values.next()?? == "t";
        // A replica that has not replayed anything has no position.
        let lsn = values.next()?.map_or(Some(0), lsn)?;
        let timeline = values.next()?.map_or(Some(0), |digits| u32::from_str_radix(digits, 16).ok())?;
        // Missing in the short query.
        let mut number = || -> i64 { values.next().flatten().and_then(|digits| digits.parse().ok()).unwrap_or(0) };
        let origin = ServerOrigin { system: number(), started: number() };
        Some(Self { in_recovery, lsn, timeline, origin })
    }
}

/// Parses `16/B374D848`: the high and the low half of 64 bits.
fn lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let half = |digits: &str| u32::from_str_radix(digits, 16).ok();
    Some(u64::from(half(high)?) << 32 | u64::from(half(low)?))
}

/// Result of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeReport {
    /// The server answered.
    Answer(Observation),
    /// No answer in time.
    Silent,
    /// The server rejects connections: it starts, stops or recovers (57P03).
    Closed(String),
    /// The server rejected the login or the query.
    Refused(String),
    /// The server cannot be reached.
    Down(String),
    /// The probe could not be sent because of a local fault.
    NotSent(String),
}

impl ProbeReport {
    /// Whether two reports agree about the server, ignoring its WAL position.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Answer(one), Self::Answer(other)) => Observation { lsn: other.lsn, ..*one } == *other,
            _ => mem::discriminant(self) == mem::discriminant(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[Option<&str>]) -> Vec<u8> {
        let mut body = (values.len() as u16).to_be_bytes().to_vec();
        for value in values {
            body.extend(value.map_or(-1, |text| text.len() as i32).to_be_bytes());
            body.extend(value.unwrap_or_default().bytes());
        }
        body
    }

    #[test]
    fn rows_of_primary_and_replica_are_decoded() {
        let values = ["f", "16/B374D848", "0000000A", "7412345678901234567", "1763790000123456"];
        let primary = Observation::decode(&row(&values.map(Some)));
        let origin = ServerOrigin { system: 7_412_345_678_901_234_567, started: 1_763_790_000_123_456 };
        assert_eq!(primary, Some(Observation { in_recovery: false, lsn: 0x16_B374_D848, timeline: 10, origin }));
        let origin = ServerOrigin { system: 7, started: 0 };
        let replica = Observation::decode(&row(&[Some("t"), Some("0/28"), None, Some("7"), None]));
        assert_eq!(replica, Some(Observation { in_recovery: true, lsn: 0x28, timeline: 0, origin }));
        let origin = ServerOrigin::default();
        let fresh = Observation::decode(&row(&[Some("t"), None, None]));
        assert_eq!(fresh, Some(Observation { in_recovery: true, lsn: 0, timeline: 0, origin }));
    }

    #[test]
    fn reports_agree_unless_the_role_changes() {
        let at = |lsn, in_recovery| {
            ProbeReport::Answer(Observation { in_recovery, lsn, timeline: 1, origin: ServerOrigin::default() })
        };
        assert!(at(1, true).agrees_with(&at(2, true)));
        assert!(!at(1, true).agrees_with(&at(1, false)));
        assert!(ProbeReport::Down("refused".to_owned()).agrees_with(&ProbeReport::Down("reset".to_owned())));
        assert!(!ProbeReport::Silent.agrees_with(&at(1, true)));
    }

    #[test]
    fn malformed_rows_are_rejected() {
        for values in [&[][..], &[Some("t")], &[None, Some("0/1"), None], &[Some("f"), Some("x"), Some("1")]] {
            assert_eq!(Observation::decode(&row(values)), None, "{values:?}");
        }
        assert_eq!(Observation::decode(b"\0"), None);
    }
}
