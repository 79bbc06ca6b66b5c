//! Requests that a server answers, and the state that is undone if one of them fails or is skipped.

use std::rc::Rc;

use tidegate_session_state::{
    statements::{AnalysisTime, ClientStatement, ClientStatements, NamedStatement, Statement},
    unnamed::UnnamedStatement,
};
use tidegate_sql::{StatementDigest, classify::SessionChange};

/// Handling of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Sent to the client, which made the request.
    Forward,
    /// Hidden from the client, as the gateway made the request.
    Discard,
    /// Written by the gateway in place of the server.
    Synthesize,
}

/// Pending reply that the fast path can recognise as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPath {
    /// Simple query that changes no setting.
    Query,
    /// Parse, Bind, Describe, Execute and Sync without names.
    Unnamed,
}

/// Request that the server answers.
#[derive(Debug)]
pub enum RequestKind {
    /// Setting change of the query, and the client state that the query drops.
    Query(Option<Box<SessionChange>>, Undo),
    /// FunctionCall.
    FunctionCall,
    /// Sync.
    Sync,
    /// Parse, Bind, Describe, Execute and Sync of an unnamed statement without side effects, as a single entry and the only
    /// one. Any other request or reply expands it into five entries.
    FastPath,
    /// The statement, and the client's name for it, which is removed if the Parse fails.
    Parse(Option<Rc<Statement>>, Option<Box<[u8]>>),
    /// The client's previous unnamed statement, which is restored if the Parse is skipped.
    ParseUnnamed(Option<Box<UnnamedStatement>>),
    /// The closed unnamed statement of the client, which is restored if the Close is skipped.
    CloseUnnamed(Option<Box<UnnamedStatement>>),
    /// Parse under a name that the client already uses. The server refuses it, unless the previous Parse failed.
    ParseAgain(Box<RepeatedParse>),
    /// The client's named statement, if the portal is bound to one.
    Bind(Option<NamedStatement>),
    /// Bind that the server is made to refuse, as the statement's columns differ from those that the client has seen.
    BindChanged,
    /// The described statement, if the reply gives the shape of a statement that may be prepared again.
    Describe(Option<Box<Described>>),
    /// Setting change of the portal, and the client state that it drops.
    Execute(Option<Box<SessionChange>>, Undo),
    /// The client's closed statement, which is restored if the Close is skipped.
    Close(Option<Box<ClosedStatement>>),
    /// Close that the gateway sends to evict a statement from the server.
    Evict(StatementDigest, Box<[u8]>),
    /// Run of CopyData messages. They have no reply of their own, but a later Sync is answered if the data was refused,
    /// and ignored as part of the copy otherwise.
    CopyData,
    /// CopyDone or CopyFail. No reply of its own, but separates earlier Syncs from later ones.
    CopyEnd,
}

/// Statement and the client's name for it.
pub type ClosedStatement = (Box<[u8]>, ClientStatement);

/// Target of a Describe.
#[derive(Debug)]
pub enum Described {
    /// Named statement of the client, and the time when the server received it.
    Named(NamedStatement, AnalysisTime),
    /// Unnamed statement of the client, by stamp.
    Unnamed(u64),
    /// Portal of the client's unnamed statement, by the stamp of the statement.
    PortalOfUnnamed(u64),
}

/// Client state that a statement drops, restored if the statement fails or is skipped.
pub type Undo = Option<Box<DroppedState>>;

/// Contents of an [`Undo`].
#[derive(Debug, Default)]
pub struct DroppedState {
    /// The unnamed statement.
    pub unnamed: Option<Box<UnnamedStatement>>,
    /// Named statements.
    pub statements: Option<Box<ClientStatements>>,
}

impl DroppedState {
    pub(crate) fn weight(&self) -> Weight {
        let kept_bytes = self.unnamed.as_ref().map_or(0, |unnamed| unnamed.message.len());
        Weight { naming: usize::from(self.statements.is_some()), kept_bytes, ..Weight::default() }
    }
}

fn bytes_of(statement: &Statement) -> usize {
    statement.parse_message().len()
}

/// Second Parse of the same name.
#[derive(Debug)]
pub struct RepeatedParse {
    /// The client's name.
    pub name: Box<[u8]>,
    /// Current statement of the name, under whose server name the second text was sent.
    pub first: Rc<Statement>,
    /// Next statement of the name, if the server accepts the second text.
    pub second: Rc<Statement>,
}

/// Pending reply.
#[derive(Debug)]
pub struct ExpectedReply {
    /// The request.
    pub asked: RequestKind,
    /// Handling of the reply.
    pub to: Disposition,
}

impl ExpectedReply {
    /// Returns whether the entry is a query of the client.
    #[inline]
    pub(crate) fn is_query(&self) -> bool {
        self.to == Disposition::Forward
            && matches!(
                self.asked,
                RequestKind::Query(..) | RequestKind::Execute(..) | RequestKind::FunctionCall | RequestKind::FastPath
            )
    }
}

/// Statement that a message is about to use.
#[derive(Clone, Copy, Debug)]
pub struct StatementUse<'a> {
    /// The client's name for the statement.
    pub name: &'a [u8],
    /// Current statement of the name, if any.
    pub digest: Option<StatementDigest>,
}

/// Reply type that completes an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// ParseComplete.
    Parse,
    /// BindComplete.
    Bind,
    /// RowDescription or NoData.
    Describe,
    /// CommandComplete, EmptyQueryResponse or PortalSuspended.
    Execute,
    /// CloseComplete.
    Close,
}

/// Weight of an entry. The totals avoid a scan of all entries, of which there may be many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    /// The entry decides the meaning of a statement name, or the set of statements on the server.
    pub(crate) naming: usize,
    /// The entry decides the unnamed statement.
    pub(crate) unnamed: usize,
    /// The server sends a ReadyForQuery for the entry.
    pub(crate) ends: usize,
    /// The entry is part of a copy.
    pub(crate) copied: usize,
    /// Bytes of statements kept until the reply arrives.
    pub(crate) kept_bytes: usize,
}

impl Weight {
    #[inline]
    pub(crate) fn add(&mut self, other: Self) {
        self.naming += other.naming;
        self.unnamed += other.unnamed;
        self.ends += other.ends;
        self.copied += other.copied;
        self.kept_bytes += other.kept_bytes;
    }

    #[inline]
    pub(crate) fn subtract(&mut self, other: Self) {
        self.naming -= other.naming;
        self.unnamed -= other.unnamed;
        self.ends -= other.ends;
        self.copied -= other.copied;
        self.kept_bytes -= other.kept_bytes;
    }
}

impl RequestKind {
    /// Returns whether the request decides the meaning of a name, or the set of statements on the server.
    pub(crate) fn names(&self) -> bool {
        self.weight().naming > 0
    }

    #[inline]
    pub(crate) fn weight(&self) -> Weight {
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
    pub(crate) fn concerns(&self, usage: StatementUse<'_>) -> bool {
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
