//! Positions of a stream, and the server and slot that they belong to.

use serde::{Deserialize, Serialize};
use tidegate_wire::replication::Lsn;

/// The server, timeline and slot that a position belongs to.
///
/// LSNs of two servers, timelines or slots cannot be compared (CH-11).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotIdentity {
    /// The system identifier of the cluster, from `initdb`.
    pub system_id: u64,
    /// The timeline; a promotion starts a new one.
    pub timeline: u32,
    /// The database of the slot.
    pub database: String,
    /// The name of the slot.
    pub slot: String,
}

/// A position to resume from: every transaction whose commit record starts before `lsn` is stored durably.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamPosition {
    /// Server and slot of the position.
    #[serde(flatten)]
    pub identity: SlotIdentity,
    /// End of the last stored transaction, or the position of a later [`Progress`](crate::ChangeEvent::Progress).
    #[serde(with = "lsn_text")]
    pub lsn: Lsn,
}

/// LSNs as text, so that stored positions can be compared with `pg_replication_slots`.
pub(crate) mod lsn_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use tidegate_wire::replication::Lsn;

    pub(crate) fn serialize<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(lsn)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Lsn, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
