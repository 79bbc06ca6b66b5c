//! What a client sends while it has no server, up to the first message that needs one.
//!
//! A few messages need none: a Sync or a Close outside of any transaction is answered here, and so is a Parse with nothing
//! but its Sync, of a statement that servers of the pool have taken from another client. After a flight was refused (its
//! client cancelled while it waited), everything up to its Sync is passed over, as a server would.
//!
//! Pure: bytes in, bytes out.

use tidegate_link::Chunk;
use tidegate_session_state::statements::ClientStatements;
use tidegate_wire::{
    DecodeError,
    backend::{self, TxStatus},
    frame::{HEADER, MessageHeader},
    frontend::{self, ObjectKind, ObjectName, Parse},
};

/// Where an idle client is in its stream of messages.
#[derive(Debug, Default)]
pub(super) struct Idle {
    /// The beginning of a message that has not arrived whole.
    beginning: Vec<u8>,
    /// Bytes of copy data, or of a function call, that are still to be passed over.
    passing_over: usize,
    /// Everything up to the next Sync is passed over.
    skipping: bool,
}

/// What clients may prepare without a server.
pub(super) trait BufferPool {
    /// Has the client know the statement of this Parse message. False if that needs a server.
    fn take(&self, parse: &Parse<'_>, statements: &mut Option<Box<ClientStatements>>) -> bool;
}

/// What an idle client's bytes amount to.
#[derive(Debug)]
pub(super) enum IdleAction {
    /// These bytes begin with a message that needs a server.
    Request(Chunk),
    /// Nothing that needs a server.
    Nothing,
    /// The client says farewell.
    Farewell,
    /// A message of a kind that has no place here.
    Unknown(u8),
}

impl Idle {
    /// Bytes of an unfinished message that another room has found.
    pub(super) fn put_back(&mut self, beginning: Option<Chunk>) {
        if let Some(beginning) = beginning {
            self.beginning = beginning.to_vec();
        }
    }

    /// How long the message is that has not arrived whole, if there is one.
    pub(super) fn awaited_bytes(&self) -> Option<usize> {
        let header = MessageHeader::peek(&self.beginning).ok().flatten();
        header.map(|header| header.total())
    }

    /// Takes a chunk. Replies are appended to `out`.
    pub(super) fn on_message(
        &mut self,
        chunk: Chunk,
        statements: &mut Option<Box<ClientStatements>>,
        buffers: &impl BufferPool,
        out: &mut Vec<u8>,
    ) -> Result<IdleAction, DecodeError> {
        if self.wants_more_than(chunk.len()) {
            // What is there of a long message grows in its place: nothing of it is looked at, or copied, before it is whole.
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
            let passed = self.passing_over.min(chunk.len());
            self.passing_over -= passed;
            chunk.advance(passed);
            let Some(header) = MessageHeader::peek(&chunk)? else { return Ok(self.keep(&chunk)) };
            if header.tag == frontend::COPY_DATA {
                self.passing_over = header.total();
                continue;
            }
            if chunk.len() < header.total() && header.tag != frontend::FUNCTION_CALL {
                return Ok(self.keep(&chunk));
            }
            if header.tag == frontend::FUNCTION_CALL && self.skipping {
                self.passing_over = header.total();
                continue;
            }
            let body = &chunk[HEADER..header.total().min(chunk.len())];
            match header.tag {
                frontend::TERMINATE => return Ok(IdleAction::Farewell),
                frontend::SYNC => {
                    self.skipping = false;
                    backend::ready_for_query(TxStatus::Idle, out);
                }
                frontend::FLUSH | frontend::COPY_DONE | frontend::COPY_FAIL => {}
                _ if self.skipping => {}
                frontend::CLOSE if close(body, statements.as_mut())? => backend::close_complete(out),
                // With more behind it there is need of a server, and the answer would cost a write of its own.
                frontend::PARSE
                    if chunk[header.total()..].starts_with(SYNC) && buffers.take(&Parse::decode(body)?, statements) =>
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

    /// Whether the message that has begun is not whole with so many bytes more.
    fn wants_more_than(&self, more: usize) -> bool {
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

    /// Refuses the flight at the front of `request` with `error`, as a server would: everything up to its Sync is
    /// passed over. Returns what is behind it.
    pub(super) fn refuse(&mut self, mut request: Chunk, error: &[u8], out: &mut Vec<u8>) -> Result<Chunk, DecodeError> {
        out.extend_from_slice(error);
        let Some(header) = MessageHeader::peek(&request)? else { return Ok(request) };
        if matches!(header.tag, frontend::QUERY | frontend::FUNCTION_CALL) {
            backend::ready_for_query(TxStatus::Idle, out);
            let here = header.total().min(request.len());
            self.passing_over = header.total() - here;
            request.advance(here);
        } else {
            self.skipping = true;
        }
        Ok(request)
    }
}

/// A whole Sync message.
const SYNC: &[u8] = &[frontend::SYNC, 0, 0, 0, 4];

/// Closes a named statement of the client. Whether that needs no server.
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

    struct Empty;

    impl BufferPool for Empty {
        fn take(&self, _: &Parse<'_>, _: &mut Option<Box<ClientStatements>>) -> bool {
            false
        }
    }

    struct QuotaExceeded;

    impl BufferPool for QuotaExceeded {
        fn take(&self, _: &Parse<'_>, _: &mut Option<Box<ClientStatements>>) -> bool {
            true
        }
    }

    fn on_message(idle: &mut Idle, bytes: &[u8]) -> (IdleAction, Vec<u8>) {
        on_message_with(idle, bytes, &Empty)
    }

    fn on_message_with(idle: &mut Idle, bytes: &[u8], buffers: &impl BufferPool) -> (IdleAction, Vec<u8>) {
        let mut out = Vec::new();
        let heard = idle.on_message(bytes.to_vec().into(), &mut None, buffers, &mut out).unwrap();
        (heard, out)
    }

    fn message(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn a_sync_is_answered_without_a_server() {
        let (heard, out) = on_message(&mut Idle::default(), &message(frontend::sync));
        assert!(matches!(heard, IdleAction::Nothing));
        assert_eq!(out, b"Z\0\0\0\x05I");
    }

    #[test]
    fn what_is_prepared_and_not_used_yet_needs_no_server() {
        let parse = message(|out| frontend::parse(b"s", b"select 1", &[], out));
        let alone = [&parse[..], SYNC].concat();
        let (heard, out) = on_message_with(&mut Idle::default(), &alone, &QuotaExceeded);
        assert!(matches!(heard, IdleAction::Nothing));
        assert_eq!(out, b"1\0\0\0\x04Z\0\0\0\x05I");
        let describe = message(|out| frontend::describe(ObjectKind::Statement, b"s", out));
        for (bytes, shelf_is_full) in [(alone, false), ([&parse[..], &describe, SYNC].concat(), true)] {
            let (heard, out) = match shelf_is_full {
                true => on_message_with(&mut Idle::default(), &bytes, &QuotaExceeded),
                false => on_message(&mut Idle::default(), &bytes),
            };
            assert!(matches!(heard, IdleAction::Request(chunk) if chunk.len() == bytes.len()));
            assert!(out.is_empty());
        }
    }

    #[test]
    fn a_message_in_pieces_asks_for_a_server_when_it_is_whole() {
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
    fn a_long_message_is_not_copied_anew_with_each_of_its_pieces() {
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
    fn leftovers_of_a_failed_copy_are_passed_over() {
        let mut bytes = message(|out| frontend::copy_data(&[7; 100], out));
        bytes.extend(message(frontend::copy_done));
        bytes.extend(message(frontend::sync));
        let mut idle = Idle::default();
        let (_, early) = on_message(&mut idle, &bytes[..50]);
        assert!(early.is_empty());
        assert_eq!(on_message(&mut idle, &bytes[50..]).1, b"Z\0\0\0\x05I");
    }

    #[test]
    fn a_function_call_in_pieces_is_passed_over_in_a_refused_flight() {
        let mut call = vec![frontend::FUNCTION_CALL];
        call.extend(104_u32.to_be_bytes());
        call.extend([7; 100]);
        call.extend(message(frontend::sync));
        let mut idle = Idle { skipping: true, ..Idle::default() };
        assert!(matches!(on_message(&mut idle, &call[..50]).0, IdleAction::Nothing));
        assert_eq!(on_message(&mut idle, &call[50..]).1, b"Z\0\0\0\x05I");
    }

    #[test]
    fn a_refused_flight_is_passed_over_up_to_its_sync() {
        let mut bytes = message(|out| frontend::parse(b"", b"select 1", &[], out));
        bytes.extend(message(|out| frontend::execute(b"", 0, out)));
        bytes.extend(message(frontend::sync));
        bytes.extend(message(|out| frontend::query(b"select 2", out)));
        let (mut idle, mut out) = (Idle::default(), Vec::new());
        let rest = idle.refuse(bytes.into(), b"E", &mut out).unwrap();
        let heard = idle.on_message(rest, &mut None, &Empty, &mut out).unwrap();
        assert_eq!(out, b"EZ\0\0\0\x05I");
        assert!(matches!(heard, IdleAction::Request(chunk) if chunk[0] == b'Q'));
    }
}
