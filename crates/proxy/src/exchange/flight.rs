//! The replies that a server still owes, in order, and who gets them.
//!
//! Every message that makes the server answer leaves an entry. An entry may belong to the client, to the gateway (its
//! reply is swallowed), or be answered already (the gateway gives the reply itself when its turn comes). An error takes
//! back everything up to the next Sync, as the server does, and what the gateway had noted on account of it.
//!
//! Pure: bytes in, decisions out.

use std::{collections::VecDeque, rc::Rc};

use tidegate_wire::backend::TxStatus;

use super::{forward::Unnamed, usual::Usual};
use tidegate_session_state::statements::{ClientStatements, Known, Moment, Prepared, Statement};
use tidegate_sql::{StatementDigest, classify::Change};

mod copy;

use copy::FailedCopy;

/// Who gets a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// The client asked.
    Client,
    /// The gateway asked; the client must not see it.
    Gateway,
    /// The gateway answers in the server's place.
    Answered,
}

/// What the server was asked.
#[derive(Debug)]
pub(crate) enum Asked {
    /// What it changes in the settings, and what it makes the client forget.
    Query(Option<Box<Change>>, Undo),
    FunctionCall,
    Sync,
    /// Parse, Bind, Describe, Execute and Sync without names, of a statement that leaves nothing behind: as one entry, which
    /// is the only one. It becomes five as soon as anything else is sent, or any reply is not the usual one.
    Usual,
    /// The statement, and the client's name for it, which is taken back if the Parse fails.
    Parse(Option<Rc<Statement>>, Option<Box<[u8]>>),
    /// The client's unnamed statement before this one, which is put back if the Parse is skipped.
    ParseUnnamed(Option<Box<Unnamed>>),
    /// The client's unnamed statement that the Close is for, which is put back if the Close is skipped.
    CloseUnnamed(Option<Box<Unnamed>>),
    /// A Parse under a name that the client has already: it fails, unless the one before it did.
    ParseAgain(Box<Again>),
    Bind(Option<Known>),
    /// A Bind that the server is made to refuse: the statement gives other columns than the client knows of.
    BindChanged,
    /// The statement described, if the reply tells the shape of a statement that may be prepared again.
    Describe(Option<Box<Described>>),
    Execute(Option<Box<Change>>, Undo),
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
pub(crate) type Named = (Box<[u8]>, Prepared);

/// The statement that a Describe is for.
#[derive(Debug)]
pub(crate) enum Described {
    /// A named statement of the client, and when the server was sent it.
    Named(Known, Moment),
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
pub(crate) struct Owed {
    pub(crate) asked: Asked,
    pub(crate) to: For,
}

impl Owed {
    fn is_query(&self) -> bool {
        self.to == For::Client
            && matches!(self.asked, Asked::Query(..) | Asked::Execute(..) | Asked::FunctionCall | Asked::Usual)
    }
}

/// The replies that a server still owes. See the [module](self).
#[derive(Debug)]
pub(crate) struct Flight {
    owed: VecDeque<Owed>,
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

impl Asked {
    /// Decides what a name means, or what the server knows.
    fn names(&self) -> bool {
        self.weight().naming > 0
    }

    #[inline]
    fn weight(&self) -> Weight {
        let none = Weight::default();
        let of_undo = |undo: &Undo| undo.as_ref().map_or(none, |undo| undo.weight());
        match self {
            Self::Usual | Self::Parse(None, _) | Self::Close(None) => none,
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

impl Flight {
    pub(crate) fn new() -> Self {
        Self {
            // A flight of the extended protocol has five.
            owed: VecDeque::with_capacity(8),
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

    fn enqueue(&mut self, owed: Owed) {
        let weight = owed.asked.weight();
        self.synced_behind_unnamed &= weight.unnamed == 0;
        self.synced_behind_unnamed |= matches!(owed.asked, Asked::Sync);
        self.sum.add(weight);
        self.queries += usize::from(owed.is_query());
        self.owed.push_back(owed);
    }

    #[inline]
    fn dequeue(&mut self) -> Option<Owed> {
        let owed = self.owed.pop_front()?;
        self.forget(&owed);
        Some(owed)
    }

    #[inline]
    fn forget(&mut self, owed: &Owed) {
        self.progress += 1;
        self.sum.subtract(owed.asked.weight());
        self.queries -= usize::from(owed.is_query());
    }

    /// Takes a part of a copy out, or a Sync that was one.
    fn take_out(&mut self, at: usize) {
        if let Some(owed) = self.owed.remove(at) {
            self.forget(&owed);
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
        self.earlier_any(Asked::names)
    }

    /// What comes before a message in its own flight does not count: an error there skips the message too.
    /// So much may be owed that looking through all of it for each message would hold up other clients: whoever is that far
    /// ahead waits.
    fn earlier_any(&self, mut is: impl FnMut(&Asked) -> bool) -> bool {
        const LOOKED_THROUGH_MAX: usize = 4096;
        let mut earlier = false;
        if self.is_naming() && self.owed.len() > LOOKED_THROUGH_MAX {
            return true;
        }
        self.is_naming()
            && self.owed.iter().rev().any(|owed| {
                earlier |= matches!(owed.asked, Asked::Sync);
                (earlier || matches!(owed.asked, Asked::Query(..))) && is(&owed.asked)
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
        let decides =
            |owed: &&mut Owed| matches!(owed.asked, Asked::ParseUnnamed(_) | Asked::CloseUnnamed(_) | Asked::Query(..));
        let Some(owed) = self.owed.iter_mut().find(decides) else { return Err(previous) };
        self.sum.subtract(owed.asked.weight());
        match &mut owed.asked {
            Asked::ParseUnnamed(before) | Asked::CloseUnnamed(before) => *before = previous,
            Asked::Query(_, undo) if previous.is_some() => undo.get_or_insert_default().unnamed = previous,
            Asked::Query(_, Some(undo)) => undo.unnamed = None,
            _ => {}
        }
        self.sum.add(owed.asked.weight());
        Ok(())
    }

    /// Nothing is owed and no transaction is open: the server may go to another client.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.status == TxStatus::Idle && self.is_quiet()
    }

    /// How many replies are owed.
    pub(crate) fn len(&self) -> usize {
        self.owed.len()
    }

    /// Bytes of statements that are kept until they are answered.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.sum.kept_bytes
    }

    /// Nothing is owed, though a transaction may be open.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.owed.is_empty() && self.unsynced == Unsynced::Nothing && !self.copy_in
    }

    /// Messages sent since the last Sync or Query.
    pub(crate) fn unsynced(&self) -> Unsynced {
        self.unsynced
    }

    /// Nobody waits for a reply.
    #[inline]
    pub(crate) fn owes_nothing(&self) -> bool {
        self.owed.is_empty() && !self.copy_in
    }

    pub(crate) fn first_behind_copy(&self) -> Option<&Owed> {
        self.owed.iter().find(|owed| !matches!(owed.asked, Asked::Sync | Asked::CopyData | Asked::CopyEnd))
    }

    pub(crate) fn front(&self) -> Option<&Owed> {
        self.owed.front()
    }

    /// The server is about to describe a statement whose shape has to be known.
    #[inline]
    pub(crate) fn is_describing(&self) -> bool {
        matches!(self.owed.front(), Some(Owed { asked: Asked::Describe(Some(_)), .. }))
    }

    /// What the query at the front makes the client forget: its turn has come to be undone.
    pub(crate) fn take_undo(&mut self) -> Undo {
        match &mut self.owed.front_mut()?.asked {
            Asked::Query(_, undo) => {
                let undo = undo.take()?;
                self.sum.subtract(undo.weight());
                Some(undo)
            }
            _ => None,
        }
    }

    /// What is owed, if that is one thing of which the usual reply may come.
    #[inline]
    pub(crate) fn usual(&self) -> Option<Usual> {
        if self.owed.len() != 1 || self.query_failed || self.copied || self.copy_in {
            return None;
        }
        match self.owed.front()? {
            Owed { asked: Asked::Usual, .. } => Some(Usual::Unnamed),
            Owed { asked: Asked::Query(None, None), to: For::Client } => Some(Usual::Query),
            _ => None,
        }
    }

    /// Puts the messages of the usual flight in the place of its one entry.
    #[inline]
    pub(crate) fn unfold(&mut self) {
        if matches!(self.owed.front(), Some(Owed { asked: Asked::Usual, .. })) {
            self.unfold_usual();
        }
    }

    #[cold]
    fn unfold_usual(&mut self) {
        self.dequeue();
        // Nothing before it may fail, so it is never skipped, and nothing has to be put back.
        let parse = Asked::ParseUnnamed(None);
        for asked in [parse, Asked::Bind(None), Asked::Describe(None), Asked::Execute(None, None), Asked::Sync] {
            self.push(asked, For::Client);
        }
    }

    /// Notes what was sent. Returns whether an answered entry is due at once.
    #[inline]
    pub(crate) fn push(&mut self, asked: Asked, to: For) -> bool {
        match asked {
            Asked::Sync => {
                self.unsynced = Unsynced::Nothing;
                // What comes behind it is heard again.
                self.skipping = false;
            }
            Asked::Query(..) | Asked::FunctionCall | Asked::Usual => self.unsynced = Unsynced::Nothing,
            Asked::CopyData | Asked::CopyEnd => {}
            Asked::Execute(..) => self.unsynced = Unsynced::Executed,
            _ if to != For::Answered => self.unsynced = self.unsynced.max(Unsynced::Prepared),
            _ => {}
        }
        if to == For::Answered && self.owed.is_empty() {
            return true;
        }
        self.enqueue(Owed { asked, to });
        false
    }

    /// Takes the entry that a reply completes; `None` if the reply belongs to a simple query or to nothing.
    #[inline]
    pub(crate) fn complete(&mut self, reply: Completes) -> Option<Owed> {
        let fits = match (&self.owed.front()?.asked, reply) {
            (Asked::Parse(..) | Asked::ParseUnnamed(_) | Asked::ParseAgain(_), Completes::Parse)
            | (Asked::Bind(_) | Asked::BindChanged, Completes::Bind)
            | (Asked::Describe(_), Completes::Describe)
            | (Asked::Execute(..), Completes::Execute)
            | (Asked::Close(_) | Asked::CloseUnnamed(_) | Asked::Evict(..), Completes::Close) => true,
            (Asked::Query(..), Completes::Execute) => {
                // The copy has succeeded, whatever becomes of the statements behind it in the same query.
                self.finish_copy();
                return None;
            }
            _ => return None,
        };
        debug_assert!(fits);
        let owed = self.dequeue();
        self.end_probe(owed.as_ref());
        if reply == Completes::Execute {
            let copied = self.copied;
            self.end_copy(true);
            if copied {
                self.note_ignored_syncs();
            }
        } else {
            self.pass_strays();
        }
        owed
    }

    /// The next entry, if the gateway answers it and its turn has come.
    #[inline]
    pub(crate) fn next_answered(&mut self) -> Option<Owed> {
        if self.owed.front()?.to != For::Answered {
            return None;
        }
        let owed = self.dequeue();
        self.pass_strays();
        owed
    }

    /// ReadyForQuery. Returns the entry it completes.
    #[inline]
    pub(crate) fn ready(&mut self, status: TxStatus) -> Option<Owed> {
        self.status = status;
        if std::mem::take(&mut self.skipping) {
            // The Sync that ends the skipping was sent before the error came.
            self.unsynced = Unsynced::Nothing;
        }
        self.copy_in = false;
        let failed = std::mem::take(&mut self.query_failed);
        while let Some(owed) = self.dequeue() {
            if matches!(owed.asked, Asked::Query(..) | Asked::Sync | Asked::FunctionCall | Asked::Usual) {
                self.end_copy(matches!(owed.asked, Asked::Query(..)) && !failed);
                return Some(owed);
            }
        }
        None
    }

    /// ErrorResponse. Returns what the server will now skip, in order, beginning with what failed.
    pub(crate) fn fail(&mut self) -> Vec<Owed> {
        let skips_syncs = self.fail_copy();
        match self.owed.front().map(|owed| &owed.asked) {
            // A simple query or a function call ends with its own ReadyForQuery; a Sync fails when its commit does.
            None | Some(Asked::Query(..) | Asked::FunctionCall | Asked::Sync) => {
                self.query_failed = true;
                return Vec::new();
            }
            _ => {}
        }
        let end = self.owed.iter().position(|owed| matches!(owed.asked, Asked::Sync));
        self.skipping = end.is_none() || skips_syncs;
        if self.skipping {
            // The error has undone what was executed.
            self.unsynced = Unsynced::Prepared;
        }
        (0..end.unwrap_or(self.owed.len())).map_while(|_| self.dequeue()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(flight: &mut Flight, asked: Asked) {
        assert!(!flight.push(asked, For::Client));
    }

    fn pipeline(flight: &mut Flight) {
        push(flight, Asked::Parse(None, None));
        push(flight, Asked::Bind(None));
        push(flight, Asked::Execute(None, None));
    }

    #[test]
    fn a_flight_is_over_when_every_sync_is_answered() {
        let mut flight = Flight::new();
        for _ in 0..2 {
            pipeline(&mut flight);
            push(&mut flight, Asked::Sync);
        }
        for round in 0..2 {
            for reply in [Completes::Parse, Completes::Bind, Completes::Execute] {
                assert!(flight.complete(reply).is_some());
            }
            assert!(!flight.is_over());
            flight.ready(TxStatus::Idle);
            assert_eq!(flight.is_over(), round == 1);
        }
    }

    #[test]
    fn flush_without_sync_keeps_the_server() {
        let mut flight = Flight::new();
        pipeline(&mut flight);
        for reply in [Completes::Parse, Completes::Bind, Completes::Execute] {
            flight.complete(reply);
        }
        assert!(flight.owes_nothing() && !flight.is_over());
        push(&mut flight, Asked::Sync);
        flight.ready(TxStatus::Idle);
        assert!(flight.is_over());
    }

    #[test]
    fn an_error_skips_to_the_sync_even_if_that_comes_later() {
        let mut flight = Flight::new();
        pipeline(&mut flight);
        assert!(flight.complete(Completes::Parse).is_some());
        assert_eq!(flight.fail().len(), 2);
        assert!(flight.skipping && !flight.is_over());
        push(&mut flight, Asked::Sync);
        flight.ready(TxStatus::Idle);
        assert!(!flight.skipping && flight.is_over());
    }

    #[test]
    fn an_error_leaves_what_is_behind_the_sync() {
        let mut flight = Flight::new();
        pipeline(&mut flight);
        push(&mut flight, Asked::Sync);
        push(&mut flight, Asked::Query(None, None));
        assert_eq!(flight.fail().len(), 3);
        assert!(!flight.skipping);
        flight.ready(TxStatus::Idle);
        assert!(!flight.is_over());
        flight.ready(TxStatus::Idle);
        assert!(flight.is_over());
    }

    fn parse(name: &str, text: &str) -> (Rc<Statement>, Asked) {
        let mut message = Vec::new();
        tidegate_wire::frontend::parse(name.as_bytes(), text.as_bytes(), &[], &mut message);
        let parse = tidegate_wire::frontend::Parse::decode(&message[5..]).unwrap();
        let statement = tidegate_session_state::statements::Catalog::default().intern(&parse, &Rc::default(), [""; 3]);
        (statement.clone(), Asked::Parse(Some(statement), Some(name.as_bytes().into())))
    }

    #[test]
    fn a_name_is_undecided_while_an_earlier_flight_that_prepares_it_may_fail() {
        let mut flight = Flight::new();
        let (statement, asked) = parse("a", "select 1");
        let by_name = Use { name: b"a", digest: None };
        let by_text = Use { name: b"b", digest: Some(statement.digest()) };
        push(&mut flight, Asked::Bind(None));
        push(&mut flight, asked);
        assert!(!flight.is_undecided(by_name), "an error before it skips whatever is in the same flight");
        push(&mut flight, Asked::Sync);
        assert!(flight.is_undecided(by_name) && flight.is_undecided(by_text));
        assert!(!flight.is_undecided(Use { name: b"b", digest: None }));
        assert_eq!(flight.fail().len(), 2);
        assert!(!flight.is_undecided(by_name) && !flight.is_naming());
    }

    #[test]
    fn the_sums_are_those_of_what_is_owed() {
        let mut random = fastrand::Rng::with_seed(9);
        for _ in 0..2_000 {
            let mut flight = Flight::new();
            for _ in 0..40 {
                act(&mut flight, &mut random);
                let mut sum = Weight::default();
                flight.owed.iter().for_each(|owed| sum.add(owed.asked.weight()));
                assert_eq!(flight.sum, sum);
                assert_eq!(flight.queries, flight.owed.iter().filter(|owed| owed.is_query()).count());
            }
        }
    }

    fn act(flight: &mut Flight, random: &mut fastrand::Rng) {
        let unnamed = |text: &str| Some(Box::new(Unnamed::of(text.as_bytes())));
        match random.u32(..16) {
            0 => drop(flight.push(Asked::ParseUnnamed(unnamed("select 1")), For::Client)),
            1 => drop(flight.push(Asked::CloseUnnamed(None), For::Client)),
            2 => drop(flight.push(Asked::Query(None, None), For::Client)),
            3 => drop(flight.push(parse("a", "select 1").1, For::Client)),
            4 => drop(flight.push(Asked::Execute(None, None), For::Client)),
            5 | 6 => drop(flight.push(Asked::Sync, For::Client)),
            7 => flight.note_copy_data(),
            8 => flight.end_copy_in(),
            9 => flight.finish_copy(),
            10 => flight.begin_copy_in(),
            11 => drop(flight.fail()),
            12 => drop(flight.put_unnamed_back(unnamed("select 'longer'"))),
            13 => drop(flight.take_undo()),
            14 => drop(flight.ready(TxStatus::Idle)),
            _ => drop(flight.complete(Completes::Execute)),
        }
    }

    /// Looking through all that is owed for each message made the work grow with its square.
    #[test]
    fn a_long_pipeline_is_told_from_several_without_a_look_at_each_message() {
        let mut flight = Flight::new();
        push(&mut flight, Asked::Execute(None, None));
        push(&mut flight, Asked::Sync);
        push(&mut flight, Asked::Sync);
        flight.begin_copy_in();
        flight.note_copy_data();
        push(&mut flight, Asked::Sync);
        flight.end_copy_in();
        assert!(flight.is_pipelined());
        flight.complete(Completes::Execute);
        assert!(!flight.is_pipelined(), "the Sync was a part of the copy");
        push(&mut flight, Asked::Sync);
        push(&mut flight, Asked::Bind(None));
        flight.pass_ignored_syncs();
        assert!(!flight.is_pipelined());
        let many = 100_000;
        for _ in 0..many {
            push(&mut flight, Asked::Bind(None));
            assert!(!flight.is_pipelined());
        }
        push(&mut flight, parse("a", "select 1").1);
        push(&mut flight, Asked::Sync);
        assert!(flight.is_pipelined());
        assert!(flight.is_undecided(Use { name: b"b", digest: None }), "it is not looked for");
        assert_eq!(flight.fail().len(), many + 2);
        assert!(flight.is_pipelined(), "the Sync is owed");
        flight.ready(TxStatus::Idle);
        assert!(!flight.is_pipelined() && flight.is_over());
    }

    #[test]
    fn an_answered_entry_waits_for_its_turn() {
        let mut flight = Flight::new();
        assert!(flight.push(Asked::Close(None), For::Answered), "nothing is owed before it");
        push(&mut flight, Asked::Bind(None));
        assert!(!flight.push(Asked::Parse(None, None), For::Answered));
        assert!(flight.next_answered().is_none());
        flight.complete(Completes::Bind);
        assert!(flight.next_answered().is_some());
    }
}
