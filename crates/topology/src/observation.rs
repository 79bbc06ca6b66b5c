//! What a server says of itself when it is asked.

use std::mem;

use tidegate_wire::backend::DataRow;

macro_rules! question {
    () => {
        "SELECT pg_catalog.pg_is_in_recovery(), \
         CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
         ELSE pg_catalog.pg_current_wal_lsn() END, \
         CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL \
         ELSE pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) END"
    };
}

/// The question. It needs no privilege, and is the same for every version of Postgres from 14 on. The first eight digits
/// of a WAL file's name are its timeline; `pg_control_checkpoint` tells the one before for a while after a promotion.
/// Servers that replicate from each other have the identifier of one `initdb`; each start has a time of its own.
pub(super) const QUESTION: &str = concat!(
    question!(),
    ", (SELECT system_identifier FROM pg_catalog.pg_control_system()), \
     (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8"
);

/// The same of servers that have not all of these functions, or do not let everybody call them.
pub(super) const BRIEF_QUESTION: &str = question!();

/// Which server it is, whatever the address it was reached at. Zeroes are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Of the `initdb` that it and all that replicate from it come from.
    pub system: i64,
    /// When it was started, in microseconds: of two addresses with all the same, both are one server's.
    pub started: i64,
}

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// It replays the WAL of another: it is a replica.
    pub in_recovery: bool,
    /// Where its own WAL ends, or how far it has replayed.
    pub lsn: u64,
    /// Of a primary; grows by one with each promotion.
    pub timeline: u32,
    /// Which server it is.
    pub origin: Origin,
}

impl Observation {
    /// Reads the row; `None` if it is not what was asked for.
    pub(super) fn read(row: &[u8]) -> Option<Self> {
        let mut values = DataRow::decode(row).ok()?.map(|value| value.and_then(|bytes| str::from_utf8(bytes).ok()));
        let in_recovery = values.next()?? == "t";
        // A replica that has replayed nothing yet has no position.
        let lsn = values.next()?.map_or(Some(0), lsn)?;
        let timeline = values.next()?.map_or(Some(0), |digits| u32::from_str_radix(digits, 16).ok())?;
        // Not asked of every server.
        let mut number = || -> i64 { values.next().flatten().and_then(|digits| digits.parse().ok()).unwrap_or(0) };
        let origin = Origin { system: number(), started: number() };
        Some(Self { in_recovery, lsn, timeline, origin })
    }
}

/// `16/B374D848`: the high and the low half of 64 bits.
fn lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let half = |digits: &str| u32::from_str_radix(digits, 16).ok();
    Some(u64::from(half(high)?) << 32 | u64::from(half(low)?))
}

/// How one attempt to ask went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// It answered.
    Answer(Observation),
    /// It was not heard of in time.
    Silent,
    /// It is there and lets nobody in: it starts, stops or recovers (57P03).
    Closed(String),
    /// It is there, but would not tell: the login or the question was refused.
    Mute(String),
    /// It cannot be reached.
    Down(String),
    /// Nobody asked it: what is missing for that is missing here.
    Unasked(String),
}

impl Report {
    /// Whether both say the same of the server, wherever its WAL is.
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
    fn a_primary_and_a_replica_are_told_apart() {
        let values = ["f", "16/B374D848", "0000000A", "7412345678901234567", "1763790000123456"];
        let primary = Observation::read(&row(&values.map(Some)));
        let origin = Origin { system: 7_412_345_678_901_234_567, started: 1_763_790_000_123_456 };
        assert_eq!(primary, Some(Observation { in_recovery: false, lsn: 0x16_B374_D848, timeline: 10, origin }));
        let origin = Origin { system: 7, started: 0 };
        let replica = Observation::read(&row(&[Some("t"), Some("0/28"), None, Some("7"), None]));
        assert_eq!(replica, Some(Observation { in_recovery: true, lsn: 0x28, timeline: 0, origin }));
        let origin = Origin::default();
        let fresh = Observation::read(&row(&[Some("t"), None, None]));
        assert_eq!(fresh, Some(Observation { in_recovery: true, lsn: 0, timeline: 0, origin }));
    }

    #[test]
    fn a_wal_that_grows_is_no_news_and_a_promotion_is() {
        let at =
            |lsn, in_recovery| Report::Answer(Observation { in_recovery, lsn, timeline: 1, origin: Origin::default() });
        assert!(at(1, true).agrees_with(&at(2, true)));
        assert!(!at(1, true).agrees_with(&at(1, false)));
        assert!(Report::Down("refused".to_owned()).agrees_with(&Report::Down("reset".to_owned())));
        assert!(!Report::Silent.agrees_with(&at(1, true)));
    }

    #[test]
    fn what_is_no_answer_is_none() {
        for values in [&[][..], &[Some("t")], &[None, Some("0/1"), None], &[Some("f"), Some("x"), Some("1")]] {
            assert_eq!(Observation::read(&row(values)), None, "{values:?}");
        }
        assert_eq!(Observation::read(b"\0"), None);
    }
}
