//! The replies that a Postgres server still owes on a pooled connection: their order, and who gets each of them.
//!
//! **Problem.** A pooler adds requests of its own between those of a client: a Parse that this server lacks, a Describe, a
//! probe. The replies of both arrive on one connection, in the order of the requests, and most of them do not name their
//! request. An error makes the server skip everything up to the next Sync; a COPY makes it ignore Syncs. A pooler that loses
//! count sends a reply to the wrong client.
//!
//! **Contract.** [`PendingReplies`] has one entry for each request that the server answers. [`push`](PendingReplies::push) is
//! called for each message when it is sent, and [`complete`](PendingReplies::complete), [`ready`](PendingReplies::ready),
//! [`fail`](PendingReplies::fail) and the functions for COPY for each reply when it arrives. Each returns the completed or
//! skipped entries, with their [`Disposition`] and with the state to undo. The server can serve another client when
//! [`is_over`](PendingReplies::is_over) returns true. PgBouncer has the same structure in `outstanding_requests`, with the
//! actions forward, skip and fake.
//!
//! **Cost.** A message or a reply takes constant time; the question whether an earlier request decides a name scans at most
//! 4,096 entries. Functions that run for every message are `#[inline]`, as the release profile has no link-time optimisation.
//! The crate does no I/O, reads no clock and does not block: its input is the messages, its output is decisions.
//!
//! ```
//! use tidegate_pending_replies::{ReplyKind, Disposition, PendingReplies, RequestKind};
//! use tidegate_wire::backend::TxStatus;
//!
//! let mut replies = PendingReplies::new();
//! // The server lacks the statement of the client's Bind, so the gateway sends a Parse first.
//! replies.push(RequestKind::Parse(None, None), Disposition::Discard);
//! for request in [RequestKind::Bind(None), RequestKind::Execute(None, None), RequestKind::Sync] {
//!     replies.push(request, Disposition::Forward);
//! }
//!
//! // ParseComplete is discarded, BindComplete is forwarded.
//! let parse = replies.complete(ReplyKind::Parse).ok_or("unexpected reply")?;
//! let bind = replies.complete(ReplyKind::Bind).ok_or("unexpected reply")?;
//! assert_eq!((parse.to, bind.to), (Disposition::Discard, Disposition::Forward));
//!
//! // The Execute fails: the server skips up to the Sync, which it still has to answer.
//! assert_eq!(replies.fail().len(), 1);
//! assert!(!replies.is_over());
//! replies.ready(TxStatus::Idle);
//! assert!(replies.is_over());
//! # Ok::<(), &str>(())
//! ```

mod queue;
mod request;

pub use queue::{PendingReplies, Skipped, Unsynced};
pub use request::{
    ClosedStatement, Described, Disposition, DroppedState, ExpectedReply, FastPath, RepeatedParse, ReplyKind,
    RequestKind, StatementUse, Undo,
};
