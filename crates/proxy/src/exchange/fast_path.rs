//! Fast path for the most common transaction: all requests in one chunk, and all replies in another.
//!
//! Requests and replies are recognised as a whole, in one pass over the headers, before any state changes. Requests are
//! Parse, Bind, Describe, Execute and Sync of an unnamed statement and portal; replies answer these or a simple query and
//! have no other effects. Any other chunk takes the general path, message by message, with the same result.

use tidegate_link::Chunk;
use tidegate_wire::{
    backend::{self, TxStatus},
    frame::{Frames, HEADER, MessageHeader},
    frontend::{self, Bind, Parse},
};

use super::Exchange;
use tidegate_config::PoolMode;
use tidegate_pending_replies::{Disposition, FastPath, RequestKind};
use tidegate_session_state::unnamed::{PortalStatement, UnnamedStatement};
use tidegate_sql::classify::{StatementEffects, classify};

/// Describe of the unnamed portal.
const DESCRIBE: &[u8] = b"D\0\0\0\x06P\0";
/// Execute of the unnamed portal, without the row limit.
const EXECUTE: &[u8] = b"E\0\0\0\x09\0";
const SYNC: &[u8] = b"S\0\0\0\x04";
const PARSE_AND_BIND_COMPLETE: &[u8] = b"1\0\0\0\x042\0\0\0\x04";
const NO_DATA: &[u8] = b"n\0\0\0\x04";
/// ReadyForQuery, without the status.
const READY: &[u8] = b"Z\0\0\0\x05";

/// Splits `bytes` after its first message, if that message is complete and has this tag.
fn message(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let header = MessageHeader::peek(bytes).ok()??;
    if header.tag != tag { None } else { bytes.split_at_checked(header.total()) }
}

/// Returns the Parse message if the chunk is exactly the fast-path request.
fn parse_of(request: &[u8]) -> Option<&[u8]> {
    let (parse, rest) = message(frontend::PARSE, request)?;
    if parse.get(HEADER) != Some(&0) {
        return None;
    }
    let (bind, rest) = message(frontend::BIND, rest)?;
    if !bind.get(HEADER..)?.starts_with(&[0, 0]) {
        return None;
    }
    let rest = rest.strip_prefix(DESCRIBE)?.strip_prefix(EXECUTE)?;
    (rest.get(size_of::<u32>()..)? == SYNC).then_some(parse)
}

/// Reply on the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reply<'a> {
    /// Transaction status after the reply.
    status: TxStatus,
    /// Body of the last CommandComplete.
    tag: &'a [u8],
    /// Number of CommandComplete messages.
    commands: usize,
    /// Body of RowDescription for [`FastPath::Unnamed`]; empty for NoData.
    columns: &'a [u8],
}

fn reply_to(asked: FastPath, reply: &[u8]) -> Option<Reply<'_>> {
    // A chunk that ends within rows is not scanned twice.
    if !reply.split_last()?.1.ends_with(READY) {
        return None;
    }
    let mut commands = 0;
    let (columns, mut rest): (&[u8], _) = match asked {
        FastPath::Query => (&[], reply),
        FastPath::Unnamed => {
            let rest = reply.strip_prefix(PARSE_AND_BIND_COMPLETE)?;
            match rest.strip_prefix(NO_DATA) {
                Some(rest) => (&[], rest),
                None => {
                    let (described, rest) = message(backend::ROW_DESCRIPTION, rest)?;
                    (&described[HEADER..], rest)
                }
            }
        }
    };
    loop {
        let header = MessageHeader::peek(rest).ok()??;
        let (message, behind) = rest.split_at_checked(header.total())?;
        match (header.tag, asked) {
            (backend::DATA_ROW, _) | (backend::ROW_DESCRIPTION, FastPath::Query) => {}
            // The general path handles DISCARD ALL, DEALLOCATE ALL, ROLLBACK and changes of the catalogue.
            (backend::COMMAND_COMPLETE, _) if is_noted(&message[HEADER..]) => return None,
            (backend::COMMAND_COMPLETE, _) => {
                commands += 1;
                if asked == FastPath::Unnamed || behind.first() == Some(&backend::READY_FOR_QUERY) {
                    return Some(Reply { status: ready(behind)?, tag: &message[HEADER..], commands, columns });
                }
            }
            _ => return None,
        }
        rest = behind;
    }
}

/// Returns whether this command tag changes tracked state, by its first bytes. SELECT, INSERT, UPDATE, BEGIN and COMMIT do
/// not.
fn is_noted(tag: &[u8]) -> bool {
    matches!(tag, [b'A' | b'D' | b'G' | b'R', ..] | [b'C', b'A' | b'R', ..] | [b'I', b'M', ..])
}

fn ready(bytes: &[u8]) -> Option<TxStatus> {
    let (message, []) = message(backend::READY_FOR_QUERY, bytes)? else { return None };
    let status = backend::ready_for_query_status(&message[HEADER..]).ok()?;
    (status != TxStatus::Failed).then_some(status)
}

impl Exchange<'_> {
    /// Records the fast-path request, if `chunk` is one and can be sent unchanged.
    pub(super) fn forward_fast_path(&mut self, chunk: &Chunk) -> bool {
        let may = self.scanner.is_between_messages()
            && self.pending_replies.is_quiet()
            && self.pending_replies.status != TxStatus::Failed
            && chunk.len() <= self.plan.pool.message_max as usize;
        let Some(parse) = parse_of(chunk).filter(|_| may) else { return false };
        let known = self.front.unnamed.as_ref().is_some_and(|unnamed| unnamed.is(parse));
        let is_plain = || Parse::decode(&parse[HEADER..]).is_ok_and(|parse| classify(parse.query).is_plain());
        if !known && !is_plain() {
            return false;
        }
        if self.keeps_state_apart() {
            self.prepare_unnamed(parse, known);
        }
        self.front.unnamed_change = None;
        self.front.portal_changes.bind(b"", None);
        self.front.last_bound.set(b"", PortalStatement::Untracked);
        for counter in [&self.stats.client_parse_count, &self.stats.server_parse_count, &self.stats.bind_count] {
            counter.add(self.counts_statements());
        }
        self.stats.query_count.add(1);
        self.record_fast_path(chunk);
        self.pending_replies.push(RequestKind::FastPath, Disposition::Forward);
        true
    }

    /// Records the messages in the query log as the general path would.
    fn record_fast_path(&mut self, request: &[u8]) {
        let Some(tracker) = &mut self.query_tracker else { return };
        tracker.add_bytes_in(request.len() - SYNC.len());
        for frame in Frames::new(request).flatten() {
            match frame.tag {
                frontend::PARSE => {
                    if let Ok(parse) = Parse::decode(frame.body()) {
                        tracker.on_parse(&parse, false);
                    }
                }
                frontend::BIND => {
                    if let Ok(bind) = Bind::decode(frame.body()) {
                        tracker.on_bind(&bind, None, None);
                    }
                }
                frontend::EXECUTE => tracker.on_execute(b""),
                _ => {}
            }
        }
        tracker.add_bytes_in(SYNC.len());
    }

    /// Makes `message` the client's unnamed statement. With `known`, the message equals that of the current statement.
    fn prepare_unnamed(&mut self, message: &[u8], known: bool) {
        let stamp = self.front.next_stamp();
        match &mut self.front.unnamed {
            Some(unnamed) if known => unnamed.renew(stamp),
            unnamed => *unnamed = Some(Box::new(UnnamedStatement::new(message, StatementEffects::default(), stamp))),
        }
        self.server.unnamed = Some((self.front.id, stamp));
    }

    /// Records the fast-path reply, if `chunk` is one and can be sent unchanged.
    pub(super) fn reply_fast_path(&mut self, chunk: &Chunk) -> bool {
        let is_settled = !self.has_pending_changes() && !self.has_reports();
        let may = self.settings_pending == 0 && is_settled && self.server.scanner.is_between_messages();
        let Some(fast_path) = self.pending_replies.fast_path().filter(|_| may) else { return false };
        let Some(Reply { status, tag, commands, columns }) = reply_to(fast_path, chunk) else { return false };
        if status != TxStatus::Idle && self.plan.pool.mode == PoolMode::Statement {
            return false;
        }
        if let Some(tracker) = &mut self.query_tracker {
            if commands > 1 {
                return false;
            }
            tracker.advance_to(chunk.len());
            tracker.on_command_complete(tag);
            tracker.on_ready_for_query(status, 0);
        }
        if fast_path == FastPath::Unnamed
            && let Some(unnamed) = &mut self.front.unnamed
        {
            unnamed.columns.set(columns);
        }
        self.pending_replies.ready(status);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<Vec<u8>> {
        let mut parse = Vec::new();
        frontend::parse(b"", b"select $1::int", &[23], &mut parse);
        let mut bind = Vec::new();
        frontend::bind(&frontend::BindMessage::default(), &mut bind);
        vec![parse, bind, DESCRIBE.to_vec(), [EXECUTE, &[0, 0, 0, 7]].concat(), SYNC.to_vec()]
    }

    #[test]
    fn request_is_recognised_only_as_a_whole() {
        let fast_path = requests();
        assert_eq!(parse_of(&fast_path.concat()), Some(&fast_path[0][..]));
        for len in 0..fast_path.concat().len() {
            assert_eq!(parse_of(&fast_path.concat()[..len]), None, "cut at {len}");
        }
        for at in 0..fast_path.len() {
            let mut lacks = fast_path.clone();
            lacks.remove(at);
            assert_eq!(parse_of(&lacks.concat()), None, "without {at}");
            let mut twice = fast_path.clone();
            twice.insert(at, fast_path[at].clone());
            assert_eq!(parse_of(&twice.concat()), None, "{at} twice");
        }
        let others: [(usize, &[u8]); 4] = [
            (0, b"P\0\0\0\x09a\0x\0\0\0"),
            (1, b"B\0\0\0\x0c\0a\0\0\0\0\0\0"),
            (2, b"D\0\0\0\x06S\0"),
            (3, b"E\0\0\0\x0aa\0\0\0\0\0"),
        ];
        for (at, other) in others {
            let mut named = fast_path.clone();
            named[at] = other.to_vec();
            assert_eq!(parse_of(&named.concat()), None, "{at} named");
        }
    }

    fn complete(tag: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        backend::command_complete(tag, &mut out);
        out
    }

    fn ready_for_query(status: TxStatus) -> Vec<u8> {
        let mut out = Vec::new();
        backend::ready_for_query(status, &mut out);
        out
    }

    const COLUMNS: &[u8] = b"T\0\0\0\x06\0\0";
    const ROW: &[u8] = b"D\0\0\0\x06\0\0";

    fn status_after(reply: &[u8], to: FastPath) -> Option<TxStatus> {
        reply_to(to, reply).map(|reply| reply.status)
    }

    #[test]
    fn reply_is_recognised_only_as_a_whole() {
        let (done, idle) = (complete(b"SELECT 2"), ready_for_query(TxStatus::Idle));
        let simple = [COLUMNS, ROW, ROW, &done, &idle].concat();
        let unnamed = [PARSE_AND_BIND_COMPLETE, &simple].concat();
        let nothing = [PARSE_AND_BIND_COMPLETE, NO_DATA, &done, &ready_for_query(TxStatus::InTransaction)].concat();
        assert_eq!(status_after(&simple, FastPath::Query), Some(TxStatus::Idle));
        assert_eq!(status_after(&unnamed, FastPath::Unnamed), Some(TxStatus::Idle));
        assert_eq!(status_after(&nothing, FastPath::Unnamed), Some(TxStatus::InTransaction));
        let (first, last) = (complete(b"INSERT 0 1"), b"SELECT 2\0");
        let several = [COLUMNS, ROW, &done, &first, COLUMNS, &done, &idle].concat();
        let reply = Reply { status: TxStatus::Idle, tag: last, commands: 3, columns: b"" };
        assert_eq!(reply_to(FastPath::Query, &several), Some(reply));
        for (reply, to) in [(&simple, FastPath::Query), (&unnamed, FastPath::Unnamed), (&nothing, FastPath::Unnamed)] {
            for len in 0..reply.len() {
                assert_eq!(status_after(&reply[..len], to), None, "cut at {len}");
            }
            assert_eq!(status_after(&[reply, b"A".as_slice()].concat(), to), None);
            assert_eq!(status_after(&[NO_DATA, reply].concat(), to), None);
        }
        assert_eq!(status_after(&simple, FastPath::Unnamed), None);
        assert_eq!(status_after(&unnamed, FastPath::Query), None);
        assert_eq!(status_after(&idle, FastPath::Query), None, "after a failed query");
    }

    #[test]
    fn tracked_replies_take_the_general_path() {
        let idle = ready_for_query(TxStatus::Idle);
        for tag in [&b"DISCARD ALL"[..], b"DEALLOCATE ALL", b"ROLLBACK", b"DELETE 1"] {
            assert_eq!(status_after(&[&complete(tag)[..], &idle].concat(), FastPath::Query), None);
        }
        for strange in [b"N", b"A", b"S", b"E", b"G", b"H", b"I", b"s"] {
            let message = [strange.as_slice(), &[0, 0, 0, 4]].concat();
            let reply = [COLUMNS, &message, &complete(b"SELECT 0"), &idle].concat();
            assert_eq!(status_after(&reply, FastPath::Query), None);
        }
        let failed = ready_for_query(TxStatus::Failed);
        assert_eq!(status_after(&[&complete(b"SELECT 1")[..], &failed].concat(), FastPath::Query), None);
    }
}
