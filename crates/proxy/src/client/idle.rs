//! Handles messages of a client without a server, up to the first message that needs one.
//!
//! A Sync or a Close outside a transaction is answered here. A Parse followed only by its Sync is answered here if servers of
//! the pool have parsed the statement for another client. After a refused pipeline (the client cancelled its wait), all
//! messages up to the Sync are discarded, as a server does.
//!
//! Pure: bytes in, bytes out.

use tidegate_handover::SessionRecord;
use tidegate_link::Chunk;
use tidegate_session_state::statements::ClientStatements;
use tidegate_wire::{
    DecodeError,
    backend::{self, TxStatus},
    frame::{HEADER, MessageHeader},
    frontend::{self, ObjectKind, ObjectName, Parse},
};

/// Position of an idle client in its message stream.
#[derive(Debug, Default)]
pub(super) struct Idle {
    /// First bytes of an incomplete message.
    beginning: Vec<u8>,
    /// Bytes of copy data, or of a function call, that are still to be discarded.
    discard_bytes: usize,
    /// Discards all messages up to the next Sync.
    skipping: bool,
    /// Number of Sync messages that were answered since [`Idle::take_synced`].
    synced: u64,
}

/// Statements that clients can prepare without a server.
pub(super) trait KnownStatements {
    /// Adds the statement of this Parse message to the client's statements. Returns false if a server is needed.
    fn take(&self, parse: &Parse<'_>, statements: &mut Option<Box<ClientStatements>>) -> bool;
}

/// Result of processing bytes of an idle client.
#[derive(Debug)]
pub(super) enum IdleAction {
    /// The first message of these bytes needs a server.
    Request(Chunk),
    /// No message needs a server.
    Nothing,
    /// The client sent Terminate.
    Terminate,
    /// The message type is not valid here.
    Unknown(u8),
}

impl Idle {
    /// Continues where the record of another process ends.
    pub(super) fn restore(record: &SessionRecord) -> Self {
        let SessionRecord { beginning, discard_bytes, is_skipping, .. } = record;
        let discard_bytes = usize::try_from(*discard_bytes).unwrap_or(usize::MAX);
        Self { beginning: beginning.clone(), discard_bytes, skipping: *is_skipping, synced: 0 }
    }

    /// Writes the position into a record.
    pub(super) fn export(&self, record: &mut SessionRecord) {
        record.beginning.clone_from(&self.beginning);
        record.discard_bytes = self.discard_bytes as u64;
        record.is_skipping = self.skipping;
    }

    /// Stores the first bytes of an incomplete message that the exchange has read.
    pub(super) fn put_back(&mut self, beginning: Option<Chunk>) {
        if let Some(beginning) = beginning {
            self.beginning = beginning.to_vec();
        }
    }

    /// Returns how many Sync messages were answered since the last call.
    pub(super) fn take_synced(&mut self) -> u64 {
        std::mem::take(&mut self.synced)
    }

    /// Whether the next byte of the client begins a message that is to be processed.
    pub(super) fn is_between_messages(&self) -> bool {
        self.beginning.is_empty() && self.discard_bytes == 0 && !self.skipping
    }

    /// Length of the incomplete message, if there is one.
    pub(super) fn awaited_bytes(&self) -> Option<usize> {
        let header = MessageHeader::peek(&self.beginning).ok().flatten();
        header.map(|header| header.total())
    }

    /// Processes a chunk. Replies are appended to `out`.
    pub(super) fn on_message(
        &mut self,
        chunk: Chunk,
        statements: &mut Option<Box<ClientStatements>>,
        known: &impl KnownStatements,
        out: &mut Vec<u8>,
    ) -> Result<IdleAction, DecodeError> {
        if self.needs_more_than(chunk.len()) {
            // A long message is appended in place; parsing or copying its parts would cost quadratic time.
            self.beginning.extend_from_slice(&chunk);
            return Ok(IdleAction::Nothing);
        }
        let mut chunk = if self.beginning.is_empty() {
            chunk
        } else {
            let mut whole = std::mem::take(&mut self.beginning);
            whole.extend_from_slice(&chunk);
            whole.into()
        };
        loop {
            let passed = self.discard_bytes.min(chunk.len());
            self.discard_bytes -= passed;
            chunk.advance(passed);
            let Some(header) = MessageHeader::peek(&chunk)? else { return Ok(self.keep(&chunk)) };
            if header.tag == frontend::COPY_DATA {
                self.discard_bytes = header.total();
                continue;
            }
            if chunk.len() < header.total() && header.tag != frontend::FUNCTION_CALL {
                return Ok(self.keep(&chunk));
            }
            if header.tag == frontend::FUNCTION_CALL && self.skipping {
                self.discard_bytes = header.total();
                continue;
            }
            let body = &chunk[HEADER..header.total().min(chunk.len())];
            match header.tag {
                frontend::TERMINATE => return Ok(IdleAction::Terminate),
                frontend::SYNC => {
                    self.skipping = false;
                    self.synced += 1;
                    backend::ready_for_query(TxStatus::Idle, out);
                }
                frontend::FLUSH | frontend::COPY_DONE | frontend::COPY_FAIL => {}
                _ if self.skipping => {}
                frontend::CLOSE if close(body, statements.as_mut())? => backend::close_complete(out),
                // Further messages need a server, and a separate reply would cost a write.
                frontend::PARSE
                    if chunk[header.total()..].starts_with(SYNC) && known.take(&Parse::decode(body)?, statements) =>
                {
                    backend::parse_complete(out);
                }
                frontend::QUERY
                | frontend::PARSE
                | frontend::BIND
                | frontend::DESCRIBE
                | frontend::EXECUTE
                | frontend::CLOSE
                | frontend::FUNCTION_CALL => return Ok(IdleAction::Request(chunk)),
                tag => return Ok(IdleAction::Unknown(tag)),
            }
            chunk.advance(header.total());
        }
    }

    /// Whether the incomplete message needs more than `more` further bytes.
    fn needs_more_than(&self, more: usize) -> bool {
        let header = MessageHeader::peek(&self.beginning).ok().flatten();
        header.is_some_and(|header| {
            let is_passed_in_parts = [frontend::COPY_DATA, frontend::FUNCTION_CALL].contains(&header.tag);
            !is_passed_in_parts && self.beginning.len() + more < header.total()
        })
    }

    fn keep(&mut self, rest: &[u8]) -> IdleAction {
        self.beginning = rest.to_vec();
        IdleAction::Nothing
    }

    /// Refuses the pipeline at the front of `request` with `error`, as a server does: messages up to its Sync are discarded.
    /// Returns the bytes behind it.
    pub(super) fn refuse(&mut self, mut request: Chunk, error: &[u8], out: &mut Vec<u8>) -> Result<Chunk, DecodeError> {
        out.extend_from_slice(error);
        let Some(header) = MessageHeader::peek(&request)? else { return Ok(request) };
        if matches!(header.tag, frontend::QUERY | frontend::FUNCTION_CALL) {
            backend::ready_for_query(TxStatus::Idle, out);
            let here = header.total().min(request.len());
            self.discard_bytes = header.total() - here;
            request.advance(here);
        } else {
            self.skipping = true;
        }
        Ok(request)
    }
}

/// A complete Sync message.
const SYNC: &[u8] = &[frontend::SYNC, 0, 0, 0, 4];

/// Closes a named statement of the client. Returns whether no server is needed.
fn close(body: &[u8], statements: Option<&mut Box<ClientStatements>>) -> Result<bool, DecodeError> {
    let target = ObjectName::decode(body)?;
    if target.kind != ObjectKind::Statement || target.name.is_empty() {
        return Ok(false);
    }
    let Some(statements) = statements else { return Ok(false) };
    statements.remove(target.name);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoneKnown;

    impl KnownStatements for NoneKnown {
        fn take(&self, _: &Parse<'_>, _: &mut Option<Box<ClientStatements>>) -> bool {
            false
        }
    }

    struct AllKnown;

    impl KnownStatements for AllKnown {
        fn take(&self, _: &Parse<'_>, _: &mut Option<Box<ClientStatements>>) -> bool {
            true
        }
    }

    fn on_message(idle: &mut Idle, bytes: &[u8]) -> (IdleAction, Vec<u8>) {
        on_message_with(idle, bytes, &NoneKnown)
    }

    fn on_message_with(idle: &mut Idle, bytes: &[u8], known: &impl KnownStatements) -> (IdleAction, Vec<u8>) {
        let mut out = Vec::new();
        let action = idle.on_message(bytes.to_vec().into(), &mut None, known, &mut out).unwrap();
        (action, out)
    }

    fn message(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn sync_is_answered_without_a_server() {
        let (action, out) = on_message(&mut Idle::default(), &message(frontend::sync));
        assert!(matches!(action, IdleAction::Nothing));
        assert_eq!(out, b"Z\0\0\0\x05I");
    }

    #[test]
    fn parse_of_known_statement_needs_no_server() {
        let parse = message(|out| frontend::parse(b"s", b"select 1", &[], out));
        let alone = [&parse[..], SYNC].concat();
        let (action, out) = on_message_with(&mut Idle::default(), &alone, &AllKnown);
        assert!(matches!(action, IdleAction::Nothing));
        assert_eq!(out, b"1\0\0\0\x04Z\0\0\0\x05I");
        let describe = message(|out| frontend::describe(ObjectKind::Statement, b"s", out));
        for (bytes, is_known) in [(alone, false), ([&parse[..], &describe, SYNC].concat(), true)] {
            let (action, out) = match is_known {
                true => on_message_with(&mut Idle::default(), &bytes, &AllKnown),
                false => on_message(&mut Idle::default(), &bytes),
            };
            assert!(matches!(action, IdleAction::Request(chunk) if chunk.len() == bytes.len()));
            assert!(out.is_empty());
        }
    }

    #[test]
    fn split_message_needs_a_server_once_complete() {
        let query = message(|out| frontend::query(b"select 1", out));
        let mut idle = Idle::default();
        for at in 0..query.len() - 1 {
            assert!(matches!(on_message(&mut idle, &query[at..=at]).0, IdleAction::Nothing));
        }
        match on_message(&mut idle, &query[query.len() - 1..]).0 {
            IdleAction::Request(chunk) => assert_eq!(&*chunk, &query[..]),
            other => panic!("{other:?}"),
        }
        assert!(idle.beginning.is_empty());
    }

    #[test]
    fn long_message_is_not_copied_per_chunk() {
        let text = vec![b'x'; 1 << 20];
        let query = message(|out| frontend::query(&text, out));
        let (last, pieces) = query.split_last().unwrap();
        let mut idle = Idle::default();
        let mut sizes = std::collections::BTreeSet::new();
        for piece in pieces.chunks(1024) {
            assert!(matches!(on_message(&mut idle, piece).0, IdleAction::Nothing));
            sizes.insert(idle.beginning.capacity());
        }
        assert!(sizes.len() < 32, "each allocation is a copy of all that is there: {sizes:?}");
        assert!(matches!(on_message(&mut idle, &[*last]).0, IdleAction::Request(chunk) if *chunk == query[..]));
    }

    #[test]
    fn remaining_copy_data_is_discarded() {
        let mut bytes = message(|out| frontend::copy_data(&[7; 100], out));
        bytes.extend(message(frontend::copy_done));
        bytes.extend(message(frontend::sync));
        let mut idle = Idle::default();
        let (_, early) = on_message(&mut idle, &bytes[..50]);
        assert!(early.is_empty());
        assert_eq!(on_message(&mut idle, &bytes[50..]).1, b"Z\0\0\0\x05I");
    }

    #[test]
    fn refused_pipeline_discards_split_function_call() {
        let mut call = vec![frontend::FUNCTION_CALL];
        call.extend(104_u32.to_be_bytes());
        call.extend([7; 100]);
        call.extend(message(frontend::sync));
        let mut idle = Idle { skipping: true, ..Idle::default() };
        assert!(matches!(on_message(&mut idle, &call[..50]).0, IdleAction::Nothing));
        assert_eq!(on_message(&mut idle, &call[50..]).1, b"Z\0\0\0\x05I");
    }

    #[test]
    fn refused_pipeline_is_discarded_up_to_its_sync() {
        let mut bytes = message(|out| frontend::parse(b"", b"select 1", &[], out));
        bytes.extend(message(|out| frontend::execute(b"", 0, out)));
        bytes.extend(message(frontend::sync));
        bytes.extend(message(|out| frontend::query(b"select 2", out)));
        let (mut idle, mut out) = (Idle::default(), Vec::new());
        let rest = idle.refuse(bytes.into(), b"E", &mut out).unwrap();
        let action = idle.on_message(rest, &mut None, &NoneKnown, &mut out).unwrap();
        assert_eq!(out, b"EZ\0\0\0\x05I");
        assert!(matches!(action, IdleAction::Request(chunk) if chunk[0] == b'Q'));
    }
}
