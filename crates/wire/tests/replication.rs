//! Messages of logical replication: every message survives encoding, and damaged ones are refused.

use proptest::prelude::*;
use tidegate_wire::{
    DecodeErrorKind,
    replication::{
        Lsn, ServerMessage, StatusUpdate, keepalive,
        pgoutput::{
            ColumnValue, LogicalMessage, OldTuple, PgoutputMessage, PreparedMessage, PreparedStep, RelationField,
            ReplicaIdentity, TaggedMessage,
            encode::{self, OldColumns, RelationFields},
        },
        xlog_data,
    },
};

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

const COLUMNS: [ColumnValue<'static>; 4] =
    [ColumnValue::Null, ColumnValue::Unchanged, ColumnValue::Text(b"text"), ColumnValue::Binary(&[0, 255])];

/// An example of each message that may carry a transaction id.
fn changes(xid: Option<u32>) -> Vec<Vec<u8>> {
    let columns = [
        RelationField { is_key: true, name: b"id", type_oid: 20, type_modifier: -1 },
        RelationField { is_key: false, name: "ö".as_bytes(), type_oid: 1043, type_modifier: 14 },
    ];
    let relation =
        RelationFields { oid: 1, schema: b"", name: b"t", identity: ReplicaIdentity::Index, columns: &columns };
    let logical = LogicalMessage { transactional: true, lsn: Lsn(7), prefix: b"p", content: b"\0c" };
    let kind = PgoutputMessage::Type { oid: 2, schema: b"public", name: b"mood" };
    vec![
        written(|out| encode::relation(xid, &relation, out)),
        written(|out| encode::insert(xid, 1, &COLUMNS, out)),
        written(|out| encode::update(xid, 1, None, &COLUMNS, out)),
        written(|out| encode::update(xid, 1, Some(OldColumns::Key(&COLUMNS[..1])), &COLUMNS, out)),
        written(|out| encode::update(xid, 1, Some(OldColumns::Full(&COLUMNS)), &COLUMNS, out)),
        written(|out| encode::delete(xid, 1, OldColumns::Key(&COLUMNS), out)),
        written(|out| encode::delete(xid, 1, OldColumns::Full(&[]), out)),
        written(|out| encode::truncate(xid, &[1, 2], true, true, out)),
        written(|out| encode::logical(xid, logical, out)),
        written(|out| encode::message(TaggedMessage { xid, message: kind }, out)),
    ]
}

/// An example of each other message.
fn transaction_messages() -> Vec<Vec<u8>> {
    let prepared = |step| {
        let (lsn, end_lsn, time, xid, gid) = (Lsn(1), Lsn(2), 3, 4, b"gid".as_slice());
        PgoutputMessage::Prepared(PreparedMessage { step, lsn, end_lsn, time, xid, gid })
    };
    let messages = [
        PgoutputMessage::Begin { commit_lsn: Lsn(1), commit_time: -2, xid: 3 },
        PgoutputMessage::Commit { commit_lsn: Lsn(1), end_lsn: Lsn(2), commit_time: 3 },
        PgoutputMessage::Origin { commit_lsn: Lsn(1), name: b"node" },
        PgoutputMessage::StreamStart { xid: 1, first: true },
        PgoutputMessage::StreamStop,
        PgoutputMessage::StreamCommit { xid: 1, commit_lsn: Lsn(2), end_lsn: Lsn(3), commit_time: 4 },
        PgoutputMessage::StreamAbort { xid: 1, subxid: 2, aborted_at: None },
        PgoutputMessage::StreamAbort { xid: 1, subxid: 2, aborted_at: Some((Lsn(3), 4)) },
        prepared(PreparedStep::BeginPrepare),
        prepared(PreparedStep::Prepare),
        prepared(PreparedStep::CommitPrepared),
        prepared(PreparedStep::StreamPrepare),
        PgoutputMessage::RollbackPrepared {
            prepare_end_lsn: Lsn(1),
            rollback_end_lsn: Lsn(2),
            prepare_time: 3,
            rollback_time: 4,
            xid: 5,
            gid: b"gid",
        },
    ];
    messages.map(|message| written(|out| encode::message(TaggedMessage { xid: None, message }, out))).to_vec()
}

#[test]
fn every_message_survives_encoding() {
    for xid in [None, Some(9)] {
        for bytes in changes(xid) {
            let decoded = PgoutputMessage::decode(&bytes, xid.is_some()).unwrap();
            assert_eq!(decoded.xid, xid);
            assert_eq!(written(|out| encode::message(decoded, out)), bytes);
        }
    }
    for bytes in transaction_messages() {
        for in_stream in [false, true] {
            let decoded = PgoutputMessage::decode(&bytes, in_stream).unwrap();
            assert_eq!(written(|out| encode::message(decoded, out)), bytes);
        }
    }
}

/// CH-43: a key tuple has all columns.
#[test]
fn columns_of_old_and_new_rows_are_read() {
    let bytes = written(|out| encode::update(None, 1, Some(OldColumns::Key(&COLUMNS[..2])), &COLUMNS, out));
    let PgoutputMessage::Update { relation: 1, old: Some(OldTuple::Key(old)), new } =
        PgoutputMessage::decode(&bytes, false).unwrap().message
    else {
        panic!("not an update");
    };
    assert_eq!(old.iter().collect::<Vec<_>>(), COLUMNS[..2]);
    assert_eq!(new.iter().collect::<Vec<_>>(), COLUMNS);
    assert_eq!((new.get(2), new.get(4)), (Some(ColumnValue::Text(b"text")), None));
}

#[test]
fn truncated_and_trailing_bytes_are_refused() {
    for bytes in changes(None).into_iter().chain(transaction_messages()) {
        for end in 0..bytes.len() {
            // Stream Abort has two lengths.
            if bytes[0] == b'A' && end == 9 {
                continue;
            }
            assert!(
                PgoutputMessage::decode(&bytes[..end], false).is_err(),
                "{:?} at {end}",
                bytes.escape_ascii().to_string()
            );
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(PgoutputMessage::decode(&longer, false).is_err(), "{}", bytes.escape_ascii());
    }
}

#[test]
fn unknown_kinds_and_flags_are_refused() {
    let cases: [&[u8]; 9] = [
        b"Z",
        b"C\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03",
        b"S\0\0\0\x01\x02",
        b"I\0\0\0\x01K\0\0",
        b"I\0\0\0\x01N\0\x01x",
        b"D\0\0\0\x01N\0\0",
        b"T\0\0\0\0\x04",
        b"R\0\0\0\x01s\0t\0x\0\0",
        b"M\x02\0\0\0\0\0\0\0\x01p\0\0\0\0\0",
    ];
    for bytes in cases {
        let error = PgoutputMessage::decode(bytes, false).unwrap_err();
        assert!(matches!(error.kind, DecodeErrorKind::Tag(_) | DecodeErrorKind::Value { .. }), "{error}");
    }
}

/// No allocation follows a declared length.
#[test]
fn false_counts_and_lengths_are_refused() {
    for bytes in [
        b"I\0\0\0\x01N\xff\xffn".as_slice(),
        b"I\0\0\0\x01N\0\x01t\xff\xff\xff\xffx",
        b"T\xff\xff\xff\xff\0",
        b"M\x01\0\0\0\0\0\0\0\x01p\0\xff\xff\xff\xff",
        b"R\0\0\0\x01s\0t\0d\xff\xff\x01",
    ] {
        let error = PgoutputMessage::decode(bytes, false).unwrap_err();
        assert!(matches!(error.kind, DecodeErrorKind::Truncated | DecodeErrorKind::Unterminated), "{error}");
    }
}

#[test]
fn copy_payloads_survive_encoding() {
    let payload = written(|out| xlog_data(Lsn(1), Lsn(2), 3, b"B", out));
    let expected = ServerMessage::XLogData { start: Lsn(1), end: Lsn(2), time: 3, data: b"B" };
    assert_eq!(ServerMessage::decode(&payload), Ok(expected));
    let payload = written(|out| keepalive(Lsn(4), 5, true, out));
    let expected = ServerMessage::Keepalive { end: Lsn(4), time: 5, reply_requested: true };
    assert_eq!(ServerMessage::decode(&payload), Ok(expected));
    assert!(ServerMessage::decode(&[payload.as_slice(), &[0]].concat()).is_err());
    assert!(ServerMessage::decode(b"x").is_err());
    let update = StatusUpdate { write: Lsn(3), flush: Lsn(2), apply: Lsn(1), time: 4, reply_requested: true };
    let payload = written(|out| update.encode(out));
    assert_eq!(StatusUpdate::decode(&payload), Ok(update));
}

proptest! {
    #[test]
    fn accepted_bytes_encode_to_themselves(bytes in prop::collection::vec(any::<u8>(), 0..64), in_stream: bool) {
        if let Ok(decoded) = PgoutputMessage::decode(&bytes, in_stream) {
            prop_assert_eq!(written(|out| encode::message(decoded, out)), bytes);
        }
    }

    #[test]
    fn rows_of_any_values_survive(
        values in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..9)), 0..20),
    ) {
        let columns: Vec<_> = values.iter().map(|value| value.as_deref().map_or(ColumnValue::Null, ColumnValue::Text)).collect();
        let bytes = written(|out| encode::insert(None, 1, &columns, out));
        let decoded = PgoutputMessage::decode(&bytes, false).unwrap().message;
        let PgoutputMessage::Insert { new, .. } = decoded else { panic!("not an insert") };
        prop_assert_eq!(new.iter().collect::<Vec<_>>(), columns);
    }
}
