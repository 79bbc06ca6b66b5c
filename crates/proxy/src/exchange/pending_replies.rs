//! The replies that a server still owes, in order, and who gets them.
//!
//! Every message that makes the server answer leaves an entry. An entry may belong to the client, to the gateway (its
//! reply is swallowed), or be answered already (the gateway gives the reply itself when its turn comes). An error takes
//! back everything up to the next Sync, as the server does, and what the gateway had noted on account of it.
//!
//! Pure: bytes in, decisions out.

use std::{collections::VecDeque, rc::Rc};

use tidegate_wire::backend::TxStatus;

use super::{fast_path::FastPath, forward::Unnamed};
use tidegate_session_state::statements::{AnalysisTime, ClientStatement, ClientStatements, NamedStatement, Statement};
use tidegate_sql::{StatementDigest, classify::SessionChange};

mod copy;

use copy::FailedCopy;

/// Who gets a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// The client asked.
    Forward,
    /// The gateway asked; the client must not see it.
    Discard,
    /// The gateway answers in the server's place.
    Synthesize,
}

/// What the server was asked.
#[derive(Debug)]
pub(crate) enum RequestKind {
    /// What it changes in the settings, and what it makes the client forget.
    Query(Option<Box<SessionChange>>, Undo),
    FunctionCall,
    Sync,
    /// Parse, Bind, Describe, Execute and Sync without names, of a statement that leaves nothing behind: as one entry, which
    /// is the only one. It becomes five as soon as anything else is sent, or any reply is not the usual one.
    FastPath,
    /// The statement, and the client's name for it, which is taken back if the Parse fails.
    Parse(Option<Rc<Statement>>, Option<Box<[u8]>>),
    /// The client's unnamed statement before this one, which is put back if the Parse is skipped.
    ParseUnnamed(Option<Box<Unnamed>>),
    /// The client's unnamed statement that the Close is for, which is put back if the Close is skipped.
    CloseUnnamed(Option<Box<Unnamed>>),
    /// A Parse under a name that the client has already: it fails, unless the one before it did.
    ParseAgain(Box<Again>),
    Bind(Option<NamedStatement>),
    /// A Bind that the server is made to refuse: the statement gives other columns than the client knows of.
    BindChanged,
    /// The statement described, if the reply tells the shape of a statement that may be prepared again.
    Describe(Option<Box<Described>>),
    Execute(Option<Box<SessionChange>>, Undo),
    /// The client's statement that the Close is for, which is put back if the Close is skipped.
    Close(Option<Box<Named>>),
    /// The gateway closes a statement on the server to make room.
    Evict(StatementDigest, Box<[u8]>),
    /// CopyData, once for any number of them: no reply of its own, but a Sync behind it is answered if the data was
    /// refused, and ignored as a part of the copy if not.
    CopyData,
    /// CopyDone or CopyFail: no reply of its own, but it parts the Syncs before it from those behind.
    CopyEnd,
}

/// A statement and the client's name for it.
pub(crate) type Named = (Box<[u8]>, ClientStatement);

/// The statement that a Describe is for.
#[derive(Debug)]
pub(crate) enum Described {
    /// A named statement of the client, and when the server was sent it.
    Named(NamedStatement, AnalysisTime),
    /// The client's unnamed statement, by its stamp.
    Unnamed(u64),
}

/// What a client forgets on account of a statement, to be put back if the statement fails or is skipped.
pub(crate) type Undo = Option<Box<Forgotten>>;

/// See [`Undo`].
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

/// A name that is prepared a second time.
#[derive(Debug)]
pub(crate) struct Again {
    pub(crate) name: Box<[u8]>,
    /// What the name stands for, under whose server name the second text was sent.
    pub(crate) first: Rc<Statement>,
    /// What it will stand for, should the server take the second text.
    pub(crate) second: Rc<Statement>,
}

/// One owed reply.
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

/// The replies that a server still owes. See the [module](self).
#[derive(Debug)]
pub(crate) struct PendingReplies {
    expected: VecDeque<ExpectedReply>,
    pub(crate) status: TxStatus,
    unsynced: Unsynced,
    /// An error came before its Sync was sent: the server skips everything up to it.
    pub(crate) skipping: bool,
    /// The server waits for copy data.
    pub(crate) copy_in: bool,
    /// What is at the front has begun a copy.
    copied: bool,
    /// The query at the front has failed.
    query_failed: bool,
    /// A copy has failed that may have ignored Syncs.
    failed_copy: FailedCopy,
    /// What the client sends up to its next Sync, and that Sync, is not for the server: it would have skipped it, and has
    /// answered a Sync of the gateway in its place.
    pub(crate) drops: bool,
    /// The weight of all that is owed.
    sum: Weight,
    /// Changes with every answer that may decide something.
    pub(crate) progress: u64,
    /// How many of what is owed are queries of the client.
    queries: usize,
    /// A Sync was sent behind the last of what decides what the unnamed statement is.
    synced_behind_unnamed: bool,
}

/// Messages sent since the last Sync or Query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unsynced {
    /// No message of the extended protocol.
    Nothing,
    /// Messages of which a Sync commits nothing: Parse, Bind, Describe and Close, or any before an error.
    Prepared,
    /// An Execute, which a Sync may commit.
    Executed,
}

/// What an entry counts for. Its sums say at once what a look at all that is owed would, which may be a lot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weight {
    /// It decides what a statement's name means, or what the server knows.
    naming: usize,
    /// It decides what the unnamed statement is.
    unnamed: usize,
    /// The server gives it a ReadyForQuery.
    ends: usize,
    /// It is a part of a copy.
    copied: usize,
    /// Statements that are kept until it is answered.
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

/// What is to be known of a statement before a message that uses it may be sent.
#[derive(Clone, Copy)]
pub(crate) struct Use<'a> {
    /// The client's name for it.
    pub(crate) name: &'a [u8],
    /// What the name stands for, if anything.
    pub(crate) digest: Option<StatementDigest>,
}

impl RequestKind {
    /// Decides what a name means, or what the server knows.
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

    /// Decides what `usage` will find.
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

/// A reply that completes an entry.
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
            // A flight of the extended protocol has five.
            expected: VecDeque::with_capacity(8),
            status: TxStatus::Idle,
            unsynced: Unsynced::Nothing,
            skipping: false,
            copy_in: false,
            copied: false,
            query_failed: false,
            failed_copy: FailedCopy::None,
            drops: false,
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

    /// Takes a part of a copy out, or a Sync that was one.
    fn take_out(&mut self, at: usize) {
        if let Some(expected) = self.expected.remove(at) {
            self.forget(&expected);
        }
    }

    /// How many queries of the client are owed a reply.
    #[inline]
    pub(crate) fn queries(&self) -> usize {
        self.queries
    }

    /// Something is owed that decides what a name means.
    #[inline]
    pub(crate) fn is_naming(&self) -> bool {
        self.sum.naming > 0
    }

    /// An earlier flight of the same pipeline may still fail and so change what `usage` finds.
    pub(crate) fn is_undecided(&self, usage: Use<'_>) -> bool {
        self.earlier_any(|asked| asked.concerns(usage))
    }

    /// An earlier flight of the same pipeline may still fail and so change what some name stands for.
    pub(crate) fn is_any_undecided(&self) -> bool {
        self.earlier_any(RequestKind::names)
    }

    /// What comes before a message in its own flight does not count: an error there skips the message too.
    /// So much may be owed that looking through all of it for each message would hold up other clients: whoever is that far
    /// ahead waits.
    fn earlier_any(&self, mut is: impl FnMut(&RequestKind) -> bool) -> bool {
        const LOOKED_THROUGH_MAX: usize = 4096;
        let mut earlier = false;
        if self.is_naming() && self.expected.len() > LOOKED_THROUGH_MAX {
            return true;
        }
        self.is_naming()
            && self.expected.iter().rev().any(|expected| {
                earlier |= matches!(expected.asked, RequestKind::Sync);
                (earlier || matches!(expected.asked, RequestKind::Query(..))) && is(&expected.asked)
            })
    }

    /// An earlier flight of the same pipeline decides what the unnamed statement is, and this one has not.
    pub(crate) fn is_unnamed_undecided(&self) -> bool {
        // The Sync may have been part of a copy and be owed no more: then a message waits that need not.
        self.sum.unnamed > 0 && self.synced_behind_unnamed
    }

    /// A flight that was sent before is not yet answered, so that this one may find the transaction failed.
    pub(crate) fn is_pipelined(&self) -> bool {
        self.sum.ends > 0
    }

    /// What takes the place of the client's unnamed statement next keeps `previous` as the one before it; `previous`
    /// comes back if nothing does.
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

    /// Nothing is owed and no transaction is open: the server may go to another client.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.status == TxStatus::Idle && self.is_quiet()
    }

    /// How many replies are owed.
    pub(crate) fn len(&self) -> usize {
        self.expected.len()
    }

    /// Bytes of statements that are kept until they are answered.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.sum.kept_bytes
    }

    /// Nothing is owed, though a transaction may be open.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.expected.is_empty() && self.unsynced == Unsynced::Nothing && !self.copy_in
    }

    /// Messages sent since the last Sync or Query.
    pub(crate) fn unsynced(&self) -> Unsynced {
        self.unsynced
    }

    /// Nobody waits for a reply.
    #[inline]
    pub(crate) fn has_no_replies_due(&self) -> bool {
        self.expected.is_empty() && !self.copy_in
    }

    pub(crate) fn first_behind_copy(&self) -> Option<&ExpectedReply> {
        self.expected.iter().find(|expected| {
            !matches!(expected.asked, RequestKind::Sync | RequestKind::CopyData | RequestKind::CopyEnd)
        })
    }

    pub(crate) fn front(&self) -> Option<&ExpectedReply> {
        self.expected.front()
    }

    /// The server is about to describe a statement whose shape has to be known.
    #[inline]
    pub(crate) fn is_describing(&self) -> bool {
        matches!(self.expected.front(), Some(ExpectedReply { asked: RequestKind::Describe(Some(_)), .. }))
    }

    /// What the query at the front makes the client forget: its turn has come to be undone.
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

    /// What is owed, if that is one thing of which the usual reply may come.
    #[inline]
    pub(crate) fn fast_path(&self) -> Option<FastPath> {
        if self.expected.len() != 1 || self.query_failed || self.copied || self.copy_in {
            return None;
        }
        match self.expected.front()? {
            ExpectedReply { asked: RequestKind::FastPath, .. } => Some(FastPath::Unnamed),
            ExpectedReply { asked: RequestKind::Query(None, None), to: Disposition::Forward } => Some(FastPath::Query),
            _ => None,
        }
    }

    /// Puts the messages of the usual flight in the place of its one entry.
    #[inline]
    pub(crate) fn unfold(&mut self) {
        if matches!(self.expected.front(), Some(ExpectedReply { asked: RequestKind::FastPath, .. })) {
            self.unfold_fast_path();
        }
    }

    #[cold]
    fn unfold_fast_path(&mut self) {
        self.dequeue();
        // Nothing before it may fail, so it is never skipped, and nothing has to be put back.
        let parse = RequestKind::ParseUnnamed(None);
        for asked in [
            parse,
            RequestKind::Bind(None),
            RequestKind::Describe(None),
            RequestKind::Execute(None, None),
            RequestKind::Sync,
        ] {
            self.push(asked, Disposition::Forward);
        }
    }

    /// Notes what was sent. Returns whether an answered entry is due at once.
    #[inline]
    pub(crate) fn push(&mut self, asked: RequestKind, to: Disposition) -> bool {
        match asked {
            RequestKind::Sync => {
                self.unsynced = Unsynced::Nothing;
                // What comes behind it is heard again.
                self.skipping = false;
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

    /// Takes the entry that a reply completes; `None` if the reply belongs to a simple query or to nothing.
    #[inline]
    pub(crate) fn complete(&mut self, reply: Completes) -> Option<ExpectedReply> {
        let fits = match (&self.expected.front()?.asked, reply) {
            (RequestKind::Parse(..) | RequestKind::ParseUnnamed(_) | RequestKind::ParseAgain(_), Completes::Parse)
            | (RequestKind::Bind(_) | RequestKind::BindChanged, Completes::Bind)
            | (RequestKind::Describe(_), Completes::Describe)
            | (RequestKind::Execute(..), Completes::Execute)
            | (RequestKind::Close(_) | RequestKind::CloseUnnamed(_) | RequestKind::Evict(..), Completes::Close) => true,
            (RequestKind::Query(..), Completes::Execute) => {
                // The copy has succeeded, whatever becomes of the statements behind it in the same query.
                self.finish_copy();
                return None;
            }
            _ => return None,
        };
        debug_assert!(fits);
        let expected = self.dequeue();
        self.end_probe(expected.as_ref());
        if reply == Completes::Execute {
            let copied = self.copied;
            self.end_copy(true);
            if copied {
                self.note_ignored_syncs();
            }
        } else {
            self.pass_strays();
        }
        expected
    }

    /// The next entry, if the gateway answers it and its turn has come.
    #[inline]
    pub(crate) fn next_answered(&mut self) -> Option<ExpectedReply> {
        if self.expected.front()?.to != Disposition::Synthesize {
            return None;
        }
        let expected = self.dequeue();
        self.pass_strays();
        expected
    }

    /// ReadyForQuery. Returns the entry it completes.
    #[inline]
    pub(crate) fn ready(&mut self, status: TxStatus) -> Option<ExpectedReply> {
        self.status = status;
        if std::mem::take(&mut self.skipping) {
            // The Sync that ends the skipping was sent before the error came.
            self.unsynced = Unsynced::Nothing;
        }
        self.copy_in = false;
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

    /// ErrorResponse. Returns what the server will now skip, in order, beginning with what failed.
    pub(crate) fn fail(&mut self) -> Vec<ExpectedReply> {
        let skips_syncs = self.fail_copy();
        match self.expected.front().map(|expected| &expected.asked) {
            // A simple query or a function call ends with its own ReadyForQuery; a Sync fails when its commit does.
            None | Some(RequestKind::Query(..) | RequestKind::FunctionCall | RequestKind::Sync) => {
                self.query_failed = true;
                return Vec::new();
            }
            _ => {}
        }
        let end = self.expected.iter().position(|expected| matches!(expected.asked, RequestKind::Sync));
        self.skipping = end.is_none() || skips_syncs;
        if self.skipping {
            // The error has undone what was executed.
            self.unsynced = Unsynced::Prepared;
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
    fn a_flight_is_over_when_every_sync_is_answered() {
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
    fn an_error_skips_to_the_sync_even_if_that_comes_later() {
        let mut pending_replies = PendingReplies::new();
        pipeline(&mut pending_replies);
        assert!(pending_replies.complete(Completes::Parse).is_some());
        assert_eq!(pending_replies.fail().len(), 2);
        assert!(pending_replies.skipping && !pending_replies.is_over());
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.ready(TxStatus::Idle);
        assert!(!pending_replies.skipping && pending_replies.is_over());
    }

    #[test]
    fn an_error_leaves_what_is_behind_the_sync() {
        let mut pending_replies = PendingReplies::new();
        pipeline(&mut pending_replies);
        push(&mut pending_replies, RequestKind::Sync);
        push(&mut pending_replies, RequestKind::Query(None, None));
        assert_eq!(pending_replies.fail().len(), 3);
        assert!(!pending_replies.skipping);
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
    fn a_name_is_undecided_while_an_earlier_flight_that_prepares_it_may_fail() {
        let mut pending_replies = PendingReplies::new();
        let (statement, asked) = parse("a", "select 1");
        let by_name = Use { name: b"a", digest: None };
        let by_text = Use { name: b"b", digest: Some(statement.digest()) };
        push(&mut pending_replies, RequestKind::Bind(None));
        push(&mut pending_replies, asked);
        assert!(!pending_replies.is_undecided(by_name), "an error before it skips whatever is in the same flight");
        push(&mut pending_replies, RequestKind::Sync);
        assert!(pending_replies.is_undecided(by_name) && pending_replies.is_undecided(by_text));
        assert!(!pending_replies.is_undecided(Use { name: b"b", digest: None }));
        assert_eq!(pending_replies.fail().len(), 2);
        assert!(!pending_replies.is_undecided(by_name) && !pending_replies.is_naming());
    }

    #[test]
    fn the_sums_are_those_of_what_is_owed() {
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

    /// Looking through all that is owed for each message made the work grow with its square.
    #[test]
    fn a_long_pipeline_is_told_from_several_without_a_look_at_each_message() {
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
        assert!(pending_replies.is_undecided(Use { name: b"b", digest: None }), "it is not looked for");
        assert_eq!(pending_replies.fail().len(), many + 2);
        assert!(pending_replies.is_pipelined(), "the Sync is owed");
        pending_replies.ready(TxStatus::Idle);
        assert!(!pending_replies.is_pipelined() && pending_replies.is_over());
    }

    #[test]
    fn an_answered_entry_waits_for_its_turn() {
        let mut pending_replies = PendingReplies::new();
        assert!(pending_replies.push(RequestKind::Close(None), Disposition::Synthesize), "nothing is owed before it");
        push(&mut pending_replies, RequestKind::Bind(None));
        assert!(!pending_replies.push(RequestKind::Parse(None, None), Disposition::Synthesize));
        assert!(pending_replies.next_answered().is_none());
        pending_replies.complete(Completes::Bind);
        assert!(pending_replies.next_answered().is_some());
    }
}
