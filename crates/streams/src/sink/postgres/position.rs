//! The position that is stored with the records of a stream, so that each is applied exactly once.
//!
//! The position is read and written in the transaction of the records. If the outcome of a COMMIT is unknown, the next
//! attempt reads the position and applies what is missing.

use tidegate_changes::Lsn;
use tidegate_lanes::{Record, RecordFailure};
use tokio_postgres::{Client, Error as PgError, types::Type};

use crate::change::{COMMIT_LSN, PART, SEQ, header};

const TABLE_EXISTS: &str = "select to_regclass('tidegate_positions') is not null";
const CREATE_TABLE: &str = "create table if not exists tidegate_positions (stream text primary key, slot text not null, \
                            commit_lsn pg_lsn not null, seq bigint not null, part integer not null)";
const READ: &str = "select slot, commit_lsn::text, seq, part from tidegate_positions where stream = $1 for update";
const STORE: &str = "insert into tidegate_positions (stream, slot, commit_lsn, seq, part) values ($1, $2, $3, $4, $5) \
                     on conflict (stream) do update set slot = excluded.slot, commit_lsn = excluded.commit_lsn, \
                     seq = excluded.seq, part = excluded.part";

/// The place of a record in the order of commits: LSN of the commit, number of the change, number of the record.
pub(super) type Place = (Lsn, u64, i32);

/// The stream of a position, and the slot that its LSNs belong to.
pub(super) struct PositionOwner {
    pub(super) stream: String,
    pub(super) slot: String,
}

/// A position in the table.
pub(super) struct StoredPosition {
    slot: String,
    place: Place,
}

/// Creates the table if it is missing.
pub(super) async fn prepare(client: &Client) -> Result<(), PgError> {
    // CREATE TABLE IF NOT EXISTS needs the privilege to create, also if the table exists.
    let rows = client.query_typed(TABLE_EXISTS, &[]).await?;
    if rows.first().is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    client.batch_execute(CREATE_TABLE).await
}

impl PositionOwner {
    pub(super) async fn read(&self, client: &Client) -> Result<Option<StoredPosition>, PgError> {
        let rows = client.query_typed(READ, &[(&self.stream, Type::TEXT)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (lsn, seq, part): (&str, i64, i32) = (row.get(1), row.get(2), row.get(3));
        let place = (lsn.parse().unwrap_or(Lsn::ZERO), u64::try_from(seq).unwrap_or(0), part);
        Ok(Some(StoredPosition { slot: row.get(0), place }))
    }

    pub(super) async fn store(&self, client: &Client, (lsn, seq, part): Place) -> Result<(), PgError> {
        let row = [self.stream.clone(), self.slot.clone(), lsn.to_string(), seq.to_string(), part.to_string()];
        super::execute_one(client, STORE, &row.map(Some).to_vec()).await
    }
}

impl StoredPosition {
    /// The place, if it belongs to the slot: LSNs of two slots cannot be compared (CH-11).
    pub(super) fn of(self, owner: &PositionOwner) -> Result<Place, RecordFailure> {
        if self.slot == owner.slot {
            return Ok(self.place);
        }
        Err(RecordFailure::permanent(format!(
            "the position of stream {} in tidegate_positions belongs to {}, and not to {}: fill the tables again, then delete \
             the row, or give the stream another name",
            owner.stream, self.slot, owner.slot
        )))
    }
}

/// The place of a record, from its headers.
pub(super) fn place_of(record: &Record) -> Result<Place, RecordFailure> {
    let parse = || {
        let part = header(record, PART).map_or(Some(0), |part| part.parse().ok())?;
        Some((header(record, COMMIT_LSN)?.parse().ok()?, header(record, SEQ)?.parse().ok()?, part))
    };
    parse().ok_or_else(|| RecordFailure::permanent("the record has no position"))
}
