//! The queue of expected replies.

use std::collections::VecDeque;

use tidegate_session_state::unnamed::UnnamedStatement;
use tidegate_wire::backend::TxStatus;

use crate::request::{
    Described, Disposition, ExpectedReply, FastPath, ReplyKind, RequestKind, StatementUse, Undo, Weight,
};

mod copy;

use copy::{CopyPhase, FailedCopy};

/// Replies that a server still has to send. See the [crate].
#[derive(Debug)]
pub struct PendingReplies {
    expected: VecDeque<ExpectedReply>,
    /// Transaction status of the last ReadyForQuery.
    pub status: TxStatus,
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
    pub progress: u64,
    /// Number of entries that are queries of the client.
    queries: usize,
    /// A Sync follows the last entry that decides the unnamed statement.
    synced_behind_unnamed: bool,
}

/// Messages of the client that have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// None: the server processes all messages.
    Nothing,
    /// An error arrived before the next Sync was sent: the server skips everything up to that Sync.
    ByServer,
    /// The messages up to the next Sync are dropped: the server would have skipped them, but a Sync of the gateway has
    /// ended that.
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
pub enum Unsynced {
    /// No message of the extended protocol.
    Nothing,
    /// Messages of which a Sync commits nothing: Parse, Bind, Describe and Close, or any message before an error.
    Prepared,
    /// An Execute, which a Sync may commit.
    Executed,
}

impl Default for PendingReplies {
    #[inline]
    fn default() -> Self {
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
}

impl PendingReplies {
    /// The state of an idle server without requests.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
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
    #[must_use]
    pub fn queries(&self) -> usize {
        self.queries
    }

    /// Returns whether an entry decides the meaning of a name.
    #[inline]
    #[must_use]
    pub fn is_naming(&self) -> bool {
        self.sum.naming > 0
    }

    /// Returns whether an earlier segment of the pipeline may still fail and so change the result of `usage`.
    #[must_use]
    pub fn is_undecided(&self, usage: StatementUse<'_>) -> bool {
        self.earlier_any(|asked| asked.concerns(usage))
    }

    /// Returns whether an earlier segment of the pipeline may still fail and so change the meaning of any name.
    #[must_use]
    pub fn is_any_undecided(&self) -> bool {
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
    #[must_use]
    pub fn is_unnamed_undecided(&self) -> bool {
        // The Sync may have been part of a copy and need no reply: a message then waits needlessly.
        self.sum.unnamed > 0 && self.synced_behind_unnamed
    }

    /// Returns whether an earlier segment of the pipeline is unanswered, so that the transaction may have failed.
    #[inline]
    #[must_use]
    pub fn is_pipelined(&self) -> bool {
        self.sum.ends > 0
    }

    /// Stores `previous` as the statement that the next entry for the unnamed statement replaces.
    ///
    /// # Errors
    /// `previous`, if no pending entry replaces the unnamed statement.
    pub fn put_unnamed_back(
        &mut self,
        previous: Option<Box<UnnamedStatement>>,
    ) -> Result<(), Option<Box<UnnamedStatement>>> {
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
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.status == TxStatus::Idle && self.is_quiet()
    }

    /// Number of pending replies.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.expected.len()
    }

    /// Returns whether no reply is pending.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    /// Bytes of statements kept until their replies arrive.
    #[inline]
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.sum.kept_bytes
    }

    /// Returns whether nothing is pending; a transaction may be open.
    #[inline]
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.expected.is_empty() && self.unsynced == Unsynced::Nothing && !self.is_copy_in()
    }

    /// Kind of the messages sent since the last Sync or Query.
    #[inline]
    #[must_use]
    pub fn unsynced(&self) -> Unsynced {
        self.unsynced
    }

    /// Messages of the client that have no effect.
    #[inline]
    #[must_use]
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Returns whether the server waits for copy data.
    #[inline]
    #[must_use]
    pub fn is_copy_in(&self) -> bool {
        self.copy == CopyPhase::Receiving
    }

    /// Returns whether no reply is due.
    #[inline]
    #[must_use]
    pub fn has_no_replies_due(&self) -> bool {
        self.expected.is_empty() && !self.is_copy_in()
    }

    /// The first entry that is neither a Sync nor a part of a copy.
    #[must_use]
    pub fn first_behind_copy(&self) -> Option<&ExpectedReply> {
        self.expected.iter().find(|expected| {
            !matches!(expected.asked, RequestKind::Sync | RequestKind::CopyData | RequestKind::CopyEnd)
        })
    }

    /// The entry of the next reply.
    #[inline]
    #[must_use]
    pub fn front(&self) -> Option<&ExpectedReply> {
        self.expected.front()
    }

    /// Returns whether the server's next description is of a statement whose shape must be recorded.
    #[inline]
    #[must_use]
    pub fn is_describing(&self) -> bool {
        matches!(self.expected.front(), Some(ExpectedReply { asked: RequestKind::Describe(Some(_)), .. }))
    }

    /// Takes the undo state of the query at the front.
    pub fn take_undo(&mut self) -> Undo {
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
    #[must_use]
    pub fn fast_path(&self) -> Option<FastPath> {
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
    pub fn unfold(&mut self, unnamed: Option<u64>) {
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
    pub fn push(&mut self, asked: RequestKind, to: Disposition) -> bool {
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
    pub fn complete(&mut self, reply: ReplyKind) -> Option<ExpectedReply> {
        let fits = match (&self.expected.front()?.asked, reply) {
            (RequestKind::Parse(..) | RequestKind::ParseUnnamed(_) | RequestKind::ParseAgain(_), ReplyKind::Parse)
            | (RequestKind::Bind(_) | RequestKind::BindChanged, ReplyKind::Bind)
            | (RequestKind::Describe(_), ReplyKind::Describe)
            | (RequestKind::Execute(..), ReplyKind::Execute)
            | (RequestKind::Close(_) | RequestKind::CloseUnnamed(_) | RequestKind::Evict(..), ReplyKind::Close) => true,
            (RequestKind::Query(..), ReplyKind::Execute) => {
                // The copy has succeeded, even if later statements of the same query fail.
                self.finish_copy();
                return None;
            }
            _ => return None,
        };
        debug_assert!(fits);
        let expected = self.dequeue();
        self.end_probe(expected.as_ref());
        if reply == ReplyKind::Execute {
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
    pub fn next_answered(&mut self) -> Option<ExpectedReply> {
        if self.expected.front()?.to != Disposition::Synthesize {
            return None;
        }
        let expected = self.dequeue();
        self.pass_strays();
        expected
    }

    /// Handles ReadyForQuery. Returns the entry that it completes.
    #[inline]
    pub fn ready(&mut self, status: TxStatus) -> Option<ExpectedReply> {
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
                self.note_answered_sync(&expected);
                self.end_copy(matches!(expected.asked, RequestKind::Query(..)) && !failed);
                return Some(expected);
            }
        }
        None
    }

    /// Handles ErrorResponse. Returns the entries that the server skips, in order, starting with the failed one.
    pub fn fail(&mut self) -> Vec<ExpectedReply> {
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
    use std::rc::Rc;

    use tidegate_session_state::statements::{Statement, StatementCatalog};
    use tidegate_sql::classify::StatementEffects;

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
            for reply in [ReplyKind::Parse, ReplyKind::Bind, ReplyKind::Execute] {
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
        for reply in [ReplyKind::Parse, ReplyKind::Bind, ReplyKind::Execute] {
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
        assert!(pending_replies.complete(ReplyKind::Parse).is_some());
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
        let statement = StatementCatalog::default().intern(&parse, &Rc::default(), [""; 3]);
        (statement.clone(), RequestKind::Parse(Some(statement), Some(name.as_bytes().into())))
    }

    #[test]
    fn name_is_undecided_while_earlier_parse_may_fail() {
        let mut pending_replies = PendingReplies::new();
        let (statement, asked) = parse("a", "select 1");
        let by_name = StatementUse { name: b"a", digest: None };
        let by_text = StatementUse { name: b"b", digest: Some(statement.digest()) };
        push(&mut pending_replies, RequestKind::Bind(None));
        push(&mut pending_replies, asked);
        assert!(!pending_replies.is_undecided(by_name), "an earlier error skips the whole segment");
        push(&mut pending_replies, RequestKind::Sync);
        assert!(pending_replies.is_undecided(by_name) && pending_replies.is_undecided(by_text));
        assert!(!pending_replies.is_undecided(StatementUse { name: b"b", digest: None }));
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
        let unnamed =
            |text: &str| Some(Box::new(UnnamedStatement::new(text.as_bytes(), StatementEffects::default(), 1)));
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
            _ => drop(pending_replies.complete(ReplyKind::Execute)),
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
        pending_replies.complete(ReplyKind::Execute);
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
        assert!(pending_replies.is_undecided(StatementUse { name: b"b", digest: None }), "the scan limit is exceeded");
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
        pending_replies.complete(ReplyKind::Bind);
        assert!(pending_replies.next_answered().is_some());
    }
}
