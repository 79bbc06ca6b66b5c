use bytes::Bytes;
use tidegate_changes::{Assembler, Lsn};
use tidegate_wire::replication::{
    ServerMessage, StatusUpdate,
    pgoutput::{OldTuple, PgoutputMessage, encode},
};

use crate::written;

/// Messages of logical replication: an accepted message is encoded to the same bytes, and the assembler accepts or
/// refuses every sequence of messages. The input is a sequence of messages, each after a byte with its length.
pub fn pgoutput(data: &[u8]) {
    let _ = (ServerMessage::decode(data), StatusUpdate::decode(data));
    for in_stream in [false, true] {
        decode(data, in_stream);
    }
    let (mut assembler, mut events, mut rest) = (Assembler::new(Lsn::ZERO), Vec::new(), data);
    while let Some((len, after)) = rest.split_first() {
        let (message, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        decode(message, false);
        if assembler.push(Bytes::copy_from_slice(message), &mut events).is_err() {
            assembler.disconnect();
        }
        while assembler.is_replaying() {
            if assembler.replay(16, &mut events).is_err() {
                assembler.disconnect();
            }
        }
    }
    assert!(events.len() <= data.len() * 4);
}

fn decode(data: &[u8], in_stream: bool) {
    let decoded = match PgoutputMessage::decode(data, in_stream) {
        Ok(decoded) => decoded,
        Err(error) => return assert!(error.offset <= data.len()),
    };
    assert_eq!(written(|out| encode::message(decoded, out)), data);
    match decoded.message {
        PgoutputMessage::Insert { new, .. } => assert_eq!(new.iter().count(), new.len()),
        PgoutputMessage::Update { old, new, .. } => {
            assert_eq!(new.iter().count(), new.len());
            assert!(old.map(OldTuple::tuple).is_none_or(|old| old.iter().count() == old.len()));
        }
        PgoutputMessage::Relation(relation) => {
            assert_eq!(relation.columns().count(), usize::from(relation.column_count()));
        }
        _ => {}
    }
}
