//! What the gateway sends on its own account around a COPY FROM STDIN, and what ends a pipeline out of turn.

use tidegate_wire::frontend::{self, ObjectKind};

use crate::server::Health;

use super::{
    Exchange,
    pending_replies::{Disposition, RequestKind, Unsynced},
};

impl Exchange<'_> {
    /// A Query or a FunctionCall is sent. Behind an Execute without a Sync it runs in the implicit transaction block of the
    /// pipeline (`start_xact_command` in `src/backend/tcop/postgres.c`), which nothing ends properly then: the requests that
    /// follow get internal errors. Behind Parse, Bind, Describe and Close alone there is no such block.
    pub(super) fn note_end_of_pipeline(&mut self) {
        if self.pending_replies.unsynced() == Unsynced::Executed {
            self.server.degrade(Health::Tainted);
        }
    }

    /// What decides on the messages that are held may itself wait for messages that are held.
    pub(super) fn hurry_copy(&mut self) {
        let mut out = Vec::new();
        if self.pending_replies.begin_probe() {
            frontend::sync(&mut out);
            self.pending_replies.push(RequestKind::Sync, Disposition::Discard);
            self.server.link().write(out);
            return self.count_syncs();
        }
        // The server keeps the end of the copy back until it gets a Sync or a Flush.
        frontend::flush(&mut out);
        self.server.link().write(out);
    }

    /// Asks for a reply that no Sync gives, so that it is known which Syncs before it a failed copy has ignored. To close a
    /// portal that does not exist changes nothing, in a failed transaction as well.
    pub(super) fn count_syncs(&mut self) {
        let mut out = Vec::new();
        frontend::close(ObjectKind::Portal, PORTAL_UNKNOWN, &mut out);
        self.pending_replies.push(RequestKind::Close(None), Disposition::Discard);
        frontend::sync(&mut out);
        self.pending_replies.push(RequestKind::Sync, Disposition::Discard);
        self.server.link().write(out);
    }
}

/// Messages that a server accepts in the middle of a copy.
pub(super) fn is_of_copy(tag: u8) -> bool {
    matches!(tag, frontend::COPY_DATA | frontend::COPY_DONE | frontend::COPY_FAIL | frontend::SYNC | frontend::FLUSH)
}

/// A portal that no server knows.
const PORTAL_UNKNOWN: &[u8] = b"tidegate_unknown";
