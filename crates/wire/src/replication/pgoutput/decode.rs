//! Decodes messages.

use super::{
    LogicalMessage, OldTuple, PgoutputMessage, PreparedMessage, PreparedStep, RelationField, RelationMessage,
    ReplicaIdentity, TaggedMessage, TruncateMessage, TupleData,
};
use crate::cursor::Cursor;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::replication::Lsn;

impl<'a> PgoutputMessage<'a> {
    /// Decodes a message. `in_stream` states whether the message stands between Stream Start and Stream Stop.
    ///
    /// # Errors
    /// The message has an unknown tag or flag, is truncated, or bytes follow its fields.
    pub fn decode(data: &'a [u8], in_stream: bool) -> Result<TaggedMessage<'a>, DecodeError> {
        let mut fields = Cursor::new(data);
        let tag = fields.u8()?;
        let has_xid = in_stream && matches!(tag, b'R' | b'Y' | b'I' | b'U' | b'D' | b'T' | b'M');
        let xid = if has_xid { Some(fields.u32()?) } else { None };
        let message = match tag {
            b'I' => Self::Insert { relation: fields.u32()?, new: new_tuple(&mut fields)? },
            b'U' => update(&mut fields)?,
            b'D' => Self::Delete { relation: fields.u32()?, old: deleted(&mut fields)? },
            b'R' => Self::Relation(RelationMessage::read(&mut fields)?),
            b'Y' => Self::Type { oid: fields.u32()?, schema: fields.text()?, name: fields.text()? },
            b'T' => Self::Truncate(TruncateMessage::read(&mut fields)?),
            b'M' => Self::Logical(LogicalMessage::read(&mut fields)?),
            _ => transaction_message(tag, &mut fields)?,
        };
        fields.end()?;
        Ok(TaggedMessage { xid, message })
    }
}

fn transaction_message<'a>(tag: u8, fields: &mut Cursor<'a>) -> Result<PgoutputMessage<'a>, DecodeError> {
    Ok(match tag {
        b'B' => PgoutputMessage::Begin { commit_lsn: lsn(fields)?, commit_time: fields.i64()?, xid: fields.u32()? },
        b'C' => {
            no_flags(fields)?;
            PgoutputMessage::Commit { commit_lsn: lsn(fields)?, end_lsn: lsn(fields)?, commit_time: fields.i64()? }
        }
        b'O' => PgoutputMessage::Origin { commit_lsn: lsn(fields)?, name: fields.text()? },
        b'S' => PgoutputMessage::StreamStart { xid: fields.u32()?, first: fields.flag("first segment")? },
        b'E' => PgoutputMessage::StreamStop,
        b'c' => {
            let xid = fields.u32()?;
            no_flags(fields)?;
            PgoutputMessage::StreamCommit {
                xid,
                commit_lsn: lsn(fields)?,
                end_lsn: lsn(fields)?,
                commit_time: fields.i64()?,
            }
        }
        b'A' => {
            let (xid, subxid) = (fields.u32()?, fields.u32()?);
            let aborted_at = if fields.rest().is_empty() { None } else { Some((lsn(fields)?, fields.i64()?)) };
            PgoutputMessage::StreamAbort { xid, subxid, aborted_at }
        }
        b'b' => PgoutputMessage::Prepared(prepared(PreparedStep::BeginPrepare, fields)?),
        b'P' => PgoutputMessage::Prepared(prepared(PreparedStep::Prepare, fields)?),
        b'K' => PgoutputMessage::Prepared(prepared(PreparedStep::CommitPrepared, fields)?),
        b'p' => PgoutputMessage::Prepared(prepared(PreparedStep::StreamPrepare, fields)?),
        b'r' => {
            no_flags(fields)?;
            PgoutputMessage::RollbackPrepared {
                prepare_end_lsn: lsn(fields)?,
                rollback_end_lsn: lsn(fields)?,
                prepare_time: fields.i64()?,
                rollback_time: fields.i64()?,
                xid: fields.u32()?,
                gid: fields.text()?,
            }
        }
        other => return Err(DecodeError::new(0, DecodeErrorKind::Tag(other))),
    })
}

fn lsn(fields: &mut Cursor<'_>) -> Result<Lsn, DecodeError> {
    fields.u64().map(Lsn)
}

/// Reads a byte of flags of which none is defined.
fn no_flags(fields: &mut Cursor<'_>) -> Result<(), DecodeError> {
    let before = *fields;
    match fields.u8()? {
        0 => Ok(()),
        other => Err(before.error(DecodeErrorKind::Value { field: "flags", value: other.into() })),
    }
}

fn tuple_tag(fields: &mut Cursor<'_>, allowed: &[u8]) -> Result<u8, DecodeError> {
    let before = *fields;
    let tag = fields.u8()?;
    if allowed.contains(&tag) {
        return Ok(tag);
    }
    Err(before.error(DecodeErrorKind::Value { field: "kind of a tuple", value: tag.into() }))
}

fn new_tuple<'a>(fields: &mut Cursor<'a>) -> Result<TupleData<'a>, DecodeError> {
    tuple_tag(fields, b"N")?;
    TupleData::read(fields)
}

fn old_tuple<'a>(tag: u8, fields: &mut Cursor<'a>) -> Result<OldTuple<'a>, DecodeError> {
    let tuple = TupleData::read(fields)?;
    Ok(if tag == b'K' { OldTuple::Key(tuple) } else { OldTuple::Full(tuple) })
}

fn deleted<'a>(fields: &mut Cursor<'a>) -> Result<OldTuple<'a>, DecodeError> {
    let tag = tuple_tag(fields, b"KO")?;
    old_tuple(tag, fields)
}

fn update<'a>(fields: &mut Cursor<'a>) -> Result<PgoutputMessage<'a>, DecodeError> {
    let relation = fields.u32()?;
    match tuple_tag(fields, b"KON")? {
        b'N' => Ok(PgoutputMessage::Update { relation, old: None, new: TupleData::read(fields)? }),
        tag => Ok(PgoutputMessage::Update { relation, old: Some(old_tuple(tag, fields)?), new: new_tuple(fields)? }),
    }
}

fn prepared<'a>(step: PreparedStep, fields: &mut Cursor<'a>) -> Result<PreparedMessage<'a>, DecodeError> {
    if step != PreparedStep::BeginPrepare {
        no_flags(fields)?;
    }
    Ok(PreparedMessage {
        step,
        lsn: lsn(fields)?,
        end_lsn: lsn(fields)?,
        time: fields.i64()?,
        xid: fields.u32()?,
        gid: fields.text()?,
    })
}

impl<'a> RelationMessage<'a> {
    fn read(fields: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let (oid, schema, name) = (fields.u32()?, fields.text()?, fields.text()?);
        let before = *fields;
        let byte = fields.u8()?;
        let unknown = DecodeErrorKind::Value { field: "replica identity", value: byte.into() };
        let identity = ReplicaIdentity::from_byte(byte).ok_or(before.error(unknown))?;
        let count = fields.u16()?;
        let start = fields.rest();
        for _ in 0..count {
            RelationField::read(fields)?;
        }
        let columns = start.get(..start.len() - fields.rest().len()).unwrap_or_default();
        Ok(Self { oid, schema, name, identity, count, columns })
    }
}

impl<'a> RelationField<'a> {
    pub(super) fn read(fields: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            is_key: fields.flag("flags of a column")?,
            name: fields.text()?,
            type_oid: fields.u32()?,
            type_modifier: fields.i32()?,
        })
    }
}

impl<'a> TruncateMessage<'a> {
    fn read(fields: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let count = fields.u32()?;
        let before = *fields;
        let flags = fields.u8()?;
        if flags > 3 {
            return Err(before.error(DecodeErrorKind::Value { field: "flags of TRUNCATE", value: flags.into() }));
        }
        let len = usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(4);
        Ok(Self { cascade: flags & 1 != 0, restart_identity: flags & 2 != 0, oids: fields.take(len)? })
    }
}

impl<'a> LogicalMessage<'a> {
    fn read(fields: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let transactional = fields.flag("flags of a message")?;
        let (lsn, prefix) = (lsn(fields)?, fields.text()?);
        let len = fields.u32()?;
        let content = fields.take(usize::try_from(len).unwrap_or(usize::MAX))?;
        Ok(Self { transactional, lsn, prefix, content })
    }
}
