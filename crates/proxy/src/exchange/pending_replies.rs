//! Queue of the replies that a server still has to send, in order, and their recipients.
//!
//! Every message that the server answers adds an entry. The reply goes to the client, is discarded because the gateway
//! requested it, or is synthesized by the gateway when the entry reaches the front. An error removes all entries up to the
//! next Sync, as the server skips them, and the gateway undoes the state that it noted for them.
//!
//! Performs no I/O: the input is bytes, the output is decisions.

use std::{collections::VecDeque, rc::Rc};

use tidegate_wire::backend::TxStatus;

use super::unnamed::Unnamed;
use tidegate_session_state::statements::{AnalysisTime, ClientStatement, ClientStatements, NamedStatement, Statement};
use tidegate_sql::{StatementDigest, classify::SessionChange};

mod copy;

use copy::{CopyPhase, FailedCopy};

/// Handling of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Sent to the client, which made the request.
    Forward,
    /// Hidden from the client, as the gateway made the request.
    Discard,
    /// Written by the gateway in place of the server.
    Synthesize,
}

/// Pending reply that the fast path can recognise as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FastPath {
    /// Simple query that changes no setting.
    Query,
    /// Parse, Bind, Describe, Execute and Sync without names.
    Unnamed,
}

/// Request that the server answers.
#[derive(Debug)]
pub(crate) enum RequestKind {
    /// Setting change of the query, and the client state that the query drops.
    Query(Option<Box<SessionChange>>, Undo),
    FunctionCall,
    Sync,
    /// Parse, Bind, Describe, Execute and Sync of an unnamed statement without side effects, as a single entry and the only
    /// one. Any other request or reply expands it into five entries.
    FastPath,
    /// The statement, and the client's name for it, which is removed if the Parse fails.
    Parse(Option<Rc<Statement>>, Option<Box<[u8]>>),
    /// The client's previous unnamed statement, which is restored if the Parse is skipped.
    ParseUnnamed(Option<Box<Unnamed>>),
    /// The closed unnamed statement of the client, which is restored if the Close is skipped.
    CloseUnnamed(Option<Box<Unnamed>>),
    /// Parse under a name that the client already uses. The server refuses it, unless the previous Parse failed.
    ParseAgain(Box<Again>),
    Bind(Option<NamedStatement>),
    /// Bind that the server is made to refuse, as the statement's columns differ from those that the client has seen.
    BindChanged,
    /// The described statement, if the reply gives the shape of a statement that may be prepared again.
    Describe(Option<Box<Described>>),
    Execute(Option<Box<SessionChange>>, Undo),
    /// The client's closed statement, which is restored if the Close is skipped.
    Close(Option<Box<Named>>),
    /// Close that the gateway sends to evict a statement from the server.
    Evict(StatementDigest, Box<[u8]>),
    /// Run of CopyData messages. They have no reply of their own, but a later Sync is answered if the data was refused,
    /// and ignored as part of the copy otherwise.
    CopyData,
    /// CopyDone or CopyFail. No reply of its own, but separates earlier Syncs from later ones.
    CopyEnd,
}

/// Statement and the client's name for it.
pub(crate) type Named = (Box<[u8]>, ClientStatement);

/// Target of a Describe.
#[derive(Debug)]
pub(crate) enum Described {
    /// Named statement of the client, and the time when the server received it.
    Named(NamedStatement, AnalysisTime),
    /// Unnamed statement of the client, by stamp.
    Unnamed(u64),
    /// Portal of the client's unnamed statement, by the stamp of the statement.
    PortalOfUnnamed(u64),
}

/// Client state that a statement drops, restored if the statement fails or is skipped.
pub(crate) type Undo = Option<Box<Forgotten>>;

/// Contents of an [`Undo`].
#[derive(Debug, Default)]
pub(crate) struct Forgotten {
    pub(crate) unnamed: Option<Box<Unnamed>>,
    pub(crate) statements: Option<Box<ClientStatements>>,
}

impl Forgotten {
    fn weight(&self) -> Weight {
        let kept_bytes = self.unnamed.as_ref().map_or(0, |unnamed| unnamed.message.len());
        Weight { naming: usize::from(self.statements.is_some()), kept_bytes, ..Weight::default() }
    }
}

fn bytes_of(statement: &Statement) -> usize {
    statement.parse_message().len()
}

/// Second Parse of the same name.
#[derive(Debug)]
pub(crate) struct Again {
    pub(crate) name: Box<[u8]>,
    /// Current statement of the name, under whose server name the second text was sent.
    pub(crate) first: Rc<Statement>,
    /// Next statement of the name, if the server accepts the second text.
    pub(crate) second: Rc<Statement>,
}

/// Pending reply.
#[derive(Debug)]
pub(crate) struct ExpectedReply {
    pub(crate) asked: RequestKind,
    pub(crate) to: Disposition,
}

impl ExpectedReply {
    fn is_query(&self) -> bool {
        self.to == Disposition::Forward
            && matches!(
                self.asked,
                RequestKind::Query(..) | RequestKind::Execute(..) | RequestKind::FunctionCall | RequestKind::FastPath
            )
    }
}

/// Replies that a server still has to send. See the [module](self).
#[derive(Debug)]
pub(crate) struct PendingReplies {
    expected: VecDeque<ExpectedReply>,
    pub(crate) status: TxStatus,
    unsynced: Unsynced,
    skipped: Skipped,
    copy: CopyPhase,
    /// The query at the front has failed.
    query_failed: bool,
    /// A failed copy may have ignored Syncs.
    failed_copy: FailedCopy,
    /// Total weight of all entries.
    sum: Weight,
    /// Incremented by every reply that may resolve a held message.
    pub(crate) progress: u64,
    /// Number of entries that are queries of the client.
    queries: usize,
    /// A Sync follows the last entry that decides the unnamed statement.
    synced_behind_unnamed: bool,
}

/// Messages of the client that have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// None: the server processes all messages.
    Nothing,
    /// An error arrived before the next Sync was sent: the server skips everything up to that Sync.
    ByServer,
    /// The messages up to and including the next Sync are dropped: the server would have skipped them, and has answered a Sync
    /// of the gateway in place of the client's.
    ByGateway,
}

impl Skipped {
    /// The server resumes processing. Returns whether it was skipping messages.
    #[inline]
    fn resume(&mut self) -> bool {
        let was_skipping = *self == Self::ByServer;
        if was_skipping {
            *self = Self::Nothing;
        }
        was_skipping
    }
}

/// Messages sent since the last Sync or Query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unsynced {
    /// No message of the extended protocol.
    Nothing,
    /// Messages of which a Sync commits nothing: Parse, Bind, Describe and Close, or any message before an error.
    Prepared,
    /// An Execute, which a Sync may commit.
    Executed,
}

/// Weight of an entry. The totals avoid a scan of all entries, of which there may be many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weight {
    /// The entry decides the meaning of a statement name, or the set of statements on the server.
    naming: usize,
    /// The entry decides the unnamed statement.
    unnamed: usize,
    /// The server sends a ReadyForQuery for the entry.
    ends: usize,
    /// The entry is part of a copy.
    copied: usize,
    /// Bytes of statements kept until the reply arrives.
    kept_bytes: usize,
}

impl Weight {
    #[inline]
    fn add(&mut self, other: Self) {
        self.naming += other.naming;
        self.unnamed += other.unnamed;
        self.ends += other.ends;
        self.copied += other.copied;
        self.kept_bytes += other.kept_bytes;
    }

    #[inline]
    fn subtract(&mut self, other: Self) {
        self.naming -= other.naming;
        self.unnamed -= other.unnamed;
        self.ends -= other.ends;
        self.copied -= other.copied;
        self.kept_bytes -= other.kept_bytes;
    }
}

/// Statement that a message is about to use.
#[derive(Clone, Copy)]
pub(crate) struct Use<'a> {
    /// The client's name for the statement.
    pub(crate) name: &'a [u8],
    /// Current statement of the name, if any.
    pub(crate) digest: Option<StatementDigest>,
}

impl RequestKind {
    /// Returns whether the request decides the meaning of a name, or the set of statements on the server.
    fn names(&self) -> bool {
        self.weight().naming > 0
    }

    #[inline]
    fn weight(&self) -> Weight {
        let none = Weight::default();
        let of_undo = |undo: &Undo| undo.as_ref().map_or(none, |undo| undo.weight());
        match self {
            Self::FastPath | Self::Parse(None, _) | Self::Close(None) => none,
            Self::Bind(_) | Self::BindChanged | Self::Describe(_) => none,
            Self::Sync | Self::FunctionCall => Weight { ends: 1, ..none },
            Self::Query(_, undo) => Weight { ends: 1, ..of_undo(undo) },
            Self::Execute(_, undo) => of_undo(undo),
            Self::Parse(Some(statement), _) => Weight { naming: 1, kept_bytes: bytes_of(statement), ..none },
            Self::ParseAgain(again) => Weight { naming: 1, kept_bytes: bytes_of(&again.second), ..none },
            Self::Close(Some(named)) => Weight { naming: 1, kept_bytes: bytes_of(&named.1.statement), ..none },
            Self::Evict(..) => Weight { naming: 1, ..none },
            Self::ParseUnnamed(before) | Self::CloseUnnamed(before) => {
                let kept_bytes = before.as_ref().map_or(0, |unnamed| unnamed.message.len());
                Weight { unnamed: 1, kept_bytes, ..none }
            }
            Self::CopyData | Self::CopyEnd => Weight { copied: 1, ..none },
        }
    }

    /// Returns whether the request decides the result of `usage`.
    fn concerns(&self, usage: Use<'_>) -> bool {
        let is = |digest| usage.digest == Some(digest);
        match self {
            Self::Parse(Some(statement), name) => name.as_deref() == Some(usage.name) || is(statement.digest()),
            Self::ParseAgain(again) => *again.name == *usage.name || is(again.first.digest()),
            Self::Close(Some(named)) => *named.0 == *usage.name,
            Self::Evict(digest, _) => is(*digest),
            Self::Query(..) | Self::Execute(..) => self.names(),
            _ => false,
        }
    }
}

/// Reply type that completes an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completes {
    Parse,
    Bind,
    Describe,
    Execute,
    Close,
}

impl PendingReplies {
    pub(crate) fn new() -> Self {
        Self {
            // The common extended-protocol pipeline has five entries.
            expected: VecDeque::with_capacity(8),
            status: TxStatus::Idle,
            unsynced: Unsynced::Nothing,
            skipped: Skipped::Nothing,
            copy: CopyPhase::None,
            query_failed: false,
            failed_copy: FailedCopy::None,
            sum: Weight::default(),
            progress: 0,
            queries: 0,
            synced_behind_unnamed: false,
        }
    }

    fn enqueue(&mut self, expected: ExpectedReply) {
        let weight = expected.asked.weight();
        self.synced_behind_unnamed &= weight.unnamed == 0;
        self.synced_behind_unnamed |= matches!(expected.asked, RequestKind::Sync);
        self.sum.add(weight);
        self.queries += usize::from(expected.is_query());
        self.expected.push_back(expected);
    }

    #[inline]
    fn dequeue(&mut self) -> Option<ExpectedReply> {
        let expected = self.expected.pop_front()?;
        self.forget(&expected);
        Some(expected)
    }

    #[inline]
    fn forget(&mut self, expected: &ExpectedReply) {
        self.progress += 1;
        self.sum.subtract(expected.asked.weight());
        self.queries -= usize::from(expected.is_query());
    }

    /// Removes a part of a copy, or a Sync that was part of one.
    fn take_out(&mut self, at: usize) {
        if let Some(expected) = self.expected.remove(at) {
            self.forget(&expected);
        }
    }

    /// Number of client queries without a complete reply.
    #[inline]
    pub(crate) fn queries(&self) -> usize {
        self.queries
    }

    /// Returns whether an entry decides the meaning of a name.
    #[inline]
    pub(crate) fn is_naming(&self) -> bool {
        self.sum.naming > 0
    }

    /// Returns whether an earlier segment of the pipeline may still fail and so change the result of `usage`.
    pub(crate) fn is_undecided(&self, usage: Use<'_>) -> bool {
        self.earlier_any(|asked| asked.concerns(usage))
    }

    /// Returns whether an earlier segment of the pipeline may still fail and so change the meaning of any name.
    pub(crate) fn is_any_undecided(&self) -> bool {
        self.earlier_any(RequestKind::names)
    }

    /// Earlier messages of the current segment do not count, as an error there skips the message too. A client with a very
    /// long queue waits, because a full scan for each message would delay other clients.
    fn earlier_any(&self, mut is: impl FnMut(&RequestKind) -> bool) -> bool {
        const SCANNED_ENTRIES_MAX: usize = 4096;
        let mut earlier = false;
        if self.is_naming() && self.expected.len() > SCANNED_ENTRIES_MAX {
            return true;
        }
        self.is_naming()
            && self.expected.iter().rev().any(|expected| {
                earlier |= matches!(expected.asked, RequestKind::Sync);
                (earlier || matches!(expected.asked, RequestKind::Query(..))) && is(&expected.asked)
            })
    }

    /// Returns whether an earlier segment of the pipeline decides the unnamed statement, and the current one does not.
    pub(crate) fn is_unnamed_undecided(&self) -> bool {
        // The Sync may have been part of a copy and need no reply: a message then waits needlessly.
        self.sum.unnamed > 0 && self.synced_behind_unnamed
    }

    /// Returns whether an earlier segment of the pipeline is unanswered, so that the transaction may have failed.
    pub(crate) fn is_pipelined(&self) -> bool {
        self.sum.ends > 0
    }

    /// Stores `previous` as the statement that the next entry for the unnamed statement replaces. Returns `previous` as the
    /// error if there is no such entry.
    pub(crate) fn put_unnamed_back(&mut self, previous: Option<Box<Unnamed>>) -> Result<(), Option<Box<Unnamed>>> {
        let decides = |expected: &&mut ExpectedReply| {
            matches!(
                expected.asked,
                RequestKind::ParseUnnamed(_) | RequestKind::CloseUnnamed(_) | RequestKind::Query(..)
            )
        };
        let Some(expected) = self.expected.iter_mut().find(decides) else { return Err(previous) };
        self.sum.subtract(expected.asked.weight());
        match &mut expected.asked {
            RequestKind::ParseUnnamed(before) | RequestKind::CloseUnnamed(before) => *before = previous,
            RequestKind::Query(_, undo) if previous.is_some() => undo.get_or_insert_default().unnamed = previous,
            RequestKind::Query(_, Some(undo)) => undo.unnamed = None,
            _ => {}
        }
        self.sum.add(expected.asked.weight());
        Ok(())
    }

    /// Returns whether no reply is pending and no transaction is open, so that the server can be released.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.status == TxStatus::Idle && self.is_quiet()
    }

    /// Number of pending replies.
    pub(crate) fn len(&self) -> usize {
        self.expected.len()
    }

    /// Bytes of statements kept until their replies arrive.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.sum.kept_bytes
    }

    /// Returns whether nothing is pending; a transaction may be open.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.expected.is_empty() && self.unsynced == Unsynced::Nothing && !self.is_copy_in()
    }

    /// Kind of the messages sent since the last Sync or Query.
    pub(crate) fn unsynced(&self) -> Unsynced {
        self.unsynced
    }

    /// Messages of the client that have no effect.
    #[inline]
    pub(crate) fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Returns whether the server waits for copy data.
    #[inline]
    pub(crate) fn is_copy_in(&self) -> bool {
        self.copy == CopyPhase::Receiving
    }

    /// Returns whether no reply is due.
    #[inline]
    pub(crate) fn has_no_replies_due(&self) -> bool {
        self.expected.is_empty() && !self.is_copy_in()
    }

    pub(crate) fn first_behind_copy(&self) -> Option<&ExpectedReply> {
        self.expected.iter().find(|expected| {
            !matches!(expected.asked, RequestKind::Sync | RequestKind::CopyData | RequestKind::CopyEnd)
        })
    }

    pub(crate) fn front(&self) -> Option<&ExpectedReply> {
        self.expected.front()
    }

    /// Returns whether the server's next description is of a statement whose shape must be recorded.
    #[inline]
    pub(crate) fn is_describing(&self) -> bool {
        matches!(self.expected.front(), Some(ExpectedReply { asked: RequestKind::Describe(Some(_)), .. }))
    }

    /// Takes the undo state of the query at the front.
    pub(crate) fn take_undo(&mut self) -> Undo {
        match &mut self.expected.front_mut()?.asked {
            RequestKind::Query(_, undo) => {
                let undo = undo.take()?;
                self.sum.subtract(undo.weight());
                Some(undo)
            }
            _ => None,
        }
    }

    /// The pending reply, if it is the only one and the fast path may recognise it.
    #[inline]
    pub(crate) fn fast_path(&self) -> Option<FastPath> {
        if self.expected.len() != 1 || self.query_failed || self.copy != CopyPhase::None {
            return None;
        }
        match self.expected.front()? {
            ExpectedReply { asked: RequestKind::FastPath, .. } => Some(FastPath::Unnamed),
            ExpectedReply { asked: RequestKind::Query(None, None), to: Disposition::Forward } => Some(FastPath::Query),
            _ => None,
        }
    }

    /// Expands a fast-path entry into one entry per message. `unnamed` is the stamp of its statement, if that is tracked.
    #[inline]
    pub(crate) fn unfold(&mut self, unnamed: Option<u64>) {
        if matches!(self.expected.front(), Some(ExpectedReply { asked: RequestKind::FastPath, .. })) {
            self.unfold_fast_path(unnamed);
        }
    }

    #[cold]
    fn unfold_fast_path(&mut self, unnamed: Option<u64>) {
        self.dequeue();
        // No entry precedes it, so it is never skipped and needs no undo state.
        let parse = RequestKind::ParseUnnamed(None);
        for asked in [
            parse,
            RequestKind::Bind(None),
            RequestKind::Describe(unnamed.map(|stamp| Box::new(Described::PortalOfUnnamed(stamp)))),
            RequestKind::Execute(None, None),
            RequestKind::Sync,
        ] {
            self.push(asked, Disposition::Forward);
        }
    }

    /// Records a sent message. Returns whether a synthesized reply is due immediately.
    #[inline]
    pub(crate) fn push(&mut self, asked: RequestKind, to: Disposition) -> bool {
        match asked {
            RequestKind::Sync => {
                self.unsynced = Unsynced::Nothing;
                // The server resumes processing after a Sync.
                self.skipped.resume();
            }
            RequestKind::Query(..) | RequestKind::FunctionCall | RequestKind::FastPath => {
                self.unsynced = Unsynced::Nothing;
            }
            RequestKind::CopyData | RequestKind::CopyEnd => {}
            RequestKind::Execute(..) => self.unsynced = Unsynced::Executed,
            _ if to != Disposition::Synthesize => self.unsynced = self.unsynced.max(Unsynced::Prepared),
            _ => {}
        }
        if to == Disposition::Synthesize && self.expected.is_empty() {
            return true;
        }
        self.enqueue(ExpectedReply { asked, to });
        false
    }

    /// Takes the entry that a reply completes; `None` if the reply belongs to a simple query or to no request.
    #[inline]
    pub(crate) fn complete(&mut self, reply: Completes) -> Option<ExpectedReply> {
        let fits = match (&self.expected.front()?.asked, reply) {
            (RequestKind::Parse(..) | RequestKind::ParseUnnamed(_) | RequestKind::ParseAgain(_), Completes::Parse)
            | (RequestKind::Bind(_) | RequestKind::BindChanged, Completes::Bind)
            | (RequestKind::Describe(_), Completes::Describe)
            | (RequestKind::Execute(..), Completes::Execute)
            | (RequestKind::Close(_) | RequestKind::CloseUnnamed(_) | RequestKind::Evict(..), Completes::Close) => true,
            (RequestKind::Query(..), Completes::Execute) => {
                // The copy has succeeded, even if later statements of the same query fail.
                self.finish_copy();
                return None;
            }
            _ => return None,
        };
        debug_assert!(fits);
        let expected = self.dequeue();
        self.end_probe(expected.as_ref());
        if reply == Completes::Execute {
            let copied = self.copy != CopyPhase::None;
            self.end_copy(true);
            if copied {
                self.note_ignored_syncs();
            }
        } else {
            self.pass_strays();
        }
        expected
    }

    /// Takes the entry at the front, if the gateway synthesizes its reply.
    #[inline]
    pub(crate) fn next_answered(&mut self) -> Option<ExpectedReply> {
        if self.expected.front()?.to != Disposition::Synthesize {
            return None;
        }
        let expected = self.dequeue();
        self.pass_strays();
        expected
    }

    /// Handles ReadyForQuery. Returns the entry that it completes.
    #[inline]
    pub(crate) fn ready(&mut self, status: TxStatus) -> Option<ExpectedReply> {
        self.status = status;
        if self.skipped.resume() {
            // The Sync that ends the skipping was sent before the error arrived.
            self.unsynced = Unsynced::Nothing;
        }
        self.copy.end_data();
        let failed = std::mem::take(&mut self.query_failed);
        while let Some(expected) = self.dequeue() {
            if matches!(
                expected.asked,
                RequestKind::Query(..) | RequestKind::Sync | RequestKind::FunctionCall | RequestKind::FastPath
            ) {
                self.end_copy(matches!(expected.asked, RequestKind::Query(..)) && !failed);
                return Some(expected);
            }
        }
        None
    }

    /// Handles ErrorResponse. Returns the entries that the server skips, in order, starting with the failed one.
    pub(crate) fn fail(&mut self) -> Vec<ExpectedReply> {
        let skips_syncs = self.fail_copy();
        match self.expected.front().map(|expected| &expected.asked) {
            // A simple query and a function call end with their own ReadyForQuery; a Sync fails if its commit fails.
            None | Some(RequestKind::Query(..) | RequestKind::FunctionCall | RequestKind::Sync) => {
                self.query_failed = true;
                return Vec::new();
            }
            _ => {}
        }
        let end = self.expected.iter().position(|expected| matches!(expected.asked, RequestKind::Sync));
        if end.is_none() || skips_syncs {
            self.skipped = Skipped::ByServer;
            // The error has rolled back the executed messages.
            self.unsynced = Unsynced::Prepared;
        } else {
            self.skipped.resume();
        }
        (0..end.unwrap_or(self.expected.len())).map_while(|_| self.dequeue()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(pending_replies: &mut PendingReplies, asked: RequestKind) {
        assert!(!pending_replies.push(asked, Disposition::Forward));
    }

    fn pipeline(pending_replies: &mut PendingReplies) {
        push(pending_replies, RequestKind::Parse(None, None));
        push(pending_replies, RequestKind::Bind(None));
        push(pending_replies, RequestKind::Execute(None, None));
    }

    #[test]
    fn pipeline_is_over_when_every_sync_is_answered() {
        let mut pending_replies = PendingReplies::new();
        for _ in 0..2 {
            pipeline(&mut pending_replies);
            push(&mut pending_replies, RequestKind::Sync);
        }
        for round in 0..2 {
            for reply in [Completes::Parse, Completes::Bind, Completes::Execute] {
                assert!(pending_replies.complete(reply).is_some());
            }
            assert!(!pending_replies.is_over());
            pending_replies.ready(TxStatus::Idle);
            assert_eq!(pending_replies.is_over(), round == 1);
        }
    }

    #[test]
    fn flush_without_sync_keeps_the_server() {
        let mut pending_replies = PendingReplies::new();
        pipeline(&mut pending_replies);
        for reply in [Completes::Parse, Completes::Bind, Completes::Execute] {
            pending_replies.complete(reply);
        }
        assert!(pending_replies.has_no_replies_due() && !pending_replies.is_over());
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.ready(TxStatus::Idle);
        assert!(pending_replies.is_over());
    }

    #[test]
    fn error_skips_to_a_sync_that_is_sent_later() {
        let mut pending_replies = PendingReplies::new();
        pipeline(&mut pending_replies);
        assert!(pending_replies.complete(Completes::Parse).is_some());
        assert_eq!(pending_replies.fail().len(), 2);
        assert!(pending_replies.skipped() == Skipped::ByServer && !pending_replies.is_over());
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.ready(TxStatus::Idle);
        assert!(pending_replies.skipped() == Skipped::Nothing && pending_replies.is_over());
    }

    #[test]
    fn error_keeps_entries_behind_the_sync() {
        let mut pending_replies = PendingReplies::new();
        pipeline(&mut pending_replies);
        push(&mut pending_replies, RequestKind::Sync);
        push(&mut pending_replies, RequestKind::Query(None, None));
        assert_eq!(pending_replies.fail().len(), 3);
        assert_eq!(pending_replies.skipped(), Skipped::Nothing);
        pending_replies.ready(TxStatus::Idle);
        assert!(!pending_replies.is_over());
        pending_replies.ready(TxStatus::Idle);
        assert!(pending_replies.is_over());
    }

    fn parse(name: &str, text: &str) -> (Rc<Statement>, RequestKind) {
        let mut message = Vec::new();
        tidegate_wire::frontend::parse(name.as_bytes(), text.as_bytes(), &[], &mut message);
        let parse = tidegate_wire::frontend::Parse::decode(&message[5..]).unwrap();
        let statement =
            tidegate_session_state::statements::StatementCatalog::default().intern(&parse, &Rc::default(), [""; 3]);
        (statement.clone(), RequestKind::Parse(Some(statement), Some(name.as_bytes().into())))
    }

    #[test]
    fn name_is_undecided_while_earlier_parse_may_fail() {
        let mut pending_replies = PendingReplies::new();
        let (statement, asked) = parse("a", "select 1");
        let by_name = Use { name: b"a", digest: None };
        let by_text = Use { name: b"b", digest: Some(statement.digest()) };
        push(&mut pending_replies, RequestKind::Bind(None));
        push(&mut pending_replies, asked);
        assert!(!pending_replies.is_undecided(by_name), "an earlier error skips the whole segment");
        push(&mut pending_replies, RequestKind::Sync);
        assert!(pending_replies.is_undecided(by_name) && pending_replies.is_undecided(by_text));
        assert!(!pending_replies.is_undecided(Use { name: b"b", digest: None }));
        assert_eq!(pending_replies.fail().len(), 2);
        assert!(!pending_replies.is_undecided(by_name) && !pending_replies.is_naming());
    }

    #[test]
    fn sums_match_the_pending_entries() {
        let mut random = fastrand::Rng::with_seed(9);
        for _ in 0..2_000 {
            let mut pending_replies = PendingReplies::new();
            for _ in 0..40 {
                act(&mut pending_replies, &mut random);
                let mut sum = Weight::default();
                pending_replies.expected.iter().for_each(|expected| sum.add(expected.asked.weight()));
                assert_eq!(pending_replies.sum, sum);
                assert_eq!(
                    pending_replies.queries,
                    pending_replies.expected.iter().filter(|expected| expected.is_query()).count()
                );
            }
        }
    }

    fn act(pending_replies: &mut PendingReplies, random: &mut fastrand::Rng) {
        let unnamed = |text: &str| Some(Box::new(Unnamed::of(text.as_bytes())));
        match random.u32(..16) {
            0 => drop(pending_replies.push(RequestKind::ParseUnnamed(unnamed("select 1")), Disposition::Forward)),
            1 => drop(pending_replies.push(RequestKind::CloseUnnamed(None), Disposition::Forward)),
            2 => drop(pending_replies.push(RequestKind::Query(None, None), Disposition::Forward)),
            3 => drop(pending_replies.push(parse("a", "select 1").1, Disposition::Forward)),
            4 => drop(pending_replies.push(RequestKind::Execute(None, None), Disposition::Forward)),
            5 | 6 => drop(pending_replies.push(RequestKind::Sync, Disposition::Forward)),
            7 => pending_replies.note_copy_data(),
            8 => pending_replies.end_copy_in(),
            9 => pending_replies.finish_copy(),
            10 => pending_replies.begin_copy_in(),
            11 => drop(pending_replies.fail()),
            12 => drop(pending_replies.put_unnamed_back(unnamed("select 'longer'"))),
            13 => drop(pending_replies.take_undo()),
            14 => drop(pending_replies.ready(TxStatus::Idle)),
            _ => drop(pending_replies.complete(Completes::Execute)),
        }
    }

    /// A scan of all entries for each message made the work quadratic.
    #[test]
    fn long_pipeline_is_detected_in_constant_time() {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Execute(None, None));
        push(&mut pending_replies, RequestKind::Sync);
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.begin_copy_in();
        pending_replies.note_copy_data();
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.end_copy_in();
        assert!(pending_replies.is_pipelined());
        pending_replies.complete(Completes::Execute);
        assert!(!pending_replies.is_pipelined(), "the Sync was a part of the copy");
        push(&mut pending_replies, RequestKind::Sync);
        push(&mut pending_replies, RequestKind::Bind(None));
        pending_replies.pass_ignored_syncs();
        assert!(!pending_replies.is_pipelined());
        let many = 100_000;
        for _ in 0..many {
            push(&mut pending_replies, RequestKind::Bind(None));
            assert!(!pending_replies.is_pipelined());
        }
        push(&mut pending_replies, parse("a", "select 1").1);
        push(&mut pending_replies, RequestKind::Sync);
        assert!(pending_replies.is_pipelined());
        assert!(pending_replies.is_undecided(Use { name: b"b", digest: None }), "the scan limit is exceeded");
        assert_eq!(pending_replies.fail().len(), many + 2);
        assert!(pending_replies.is_pipelined(), "the Sync is pending");
        pending_replies.ready(TxStatus::Idle);
        assert!(!pending_replies.is_pipelined() && pending_replies.is_over());
    }

    #[test]
    fn synthesized_entry_waits_for_its_turn() {
        let mut pending_replies = PendingReplies::new();
        assert!(
            pending_replies.push(RequestKind::Close(None), Disposition::Synthesize),
            "no reply is pending before it"
        );
        push(&mut pending_replies, RequestKind::Bind(None));
        assert!(!pending_replies.push(RequestKind::Parse(None, None), Disposition::Synthesize));
        assert!(pending_replies.next_answered().is_none());
        pending_replies.complete(Completes::Bind);
        assert!(pending_replies.next_answered().is_some());
    }
}
