//! Messages that the gateway itself sends around a COPY FROM STDIN, and messages that end a pipeline irregularly.

use tidegate_wire::frontend::{self, ObjectKind};

use crate::server::Health;

use super::Exchange;
use tidegate_pending_replies::{Disposition, RequestKind, Unsynced};

impl Exchange<'_> {
    /// Handles a Query or FunctionCall. Behind an Execute without a Sync it runs in the implicit transaction block of the
    /// pipeline (`start_xact_command` in `src/backend/tcop/postgres.c`), which is then not ended properly: later requests get
    /// internal errors. Behind Parse, Bind, Describe and Close alone there is no such block.
    pub(super) fn check_pipeline_end(&mut self) {
        if self.pending_replies.unsynced() == Unsynced::Executed {
            self.server.degrade(Health::Tainted);
        }
    }

    /// Sends a Sync or Flush that resolves the copy, as the messages that would resolve it may be held too.
    pub(super) fn resolve_copy(&mut self) {
        let mut out = Vec::new();
        if self.pending_replies.begin_probe() {
            frontend::sync(&mut out);
            self.server.link().write(out);
            return self.count_syncs();
        }
        // The server buffers the end of the copy until it gets a Sync or a Flush.
        frontend::flush(&mut out);
        self.server.link().write(out);
    }

    /// Requests a reply that no Sync gives, which shows which earlier Syncs a failed copy has ignored. A Close of an unknown
    /// portal changes nothing, in a failed transaction as well.
    pub(super) fn count_syncs(&mut self) {
        let mut out = Vec::new();
        frontend::close(ObjectKind::Portal, PORTAL_UNKNOWN, &mut out);
        self.pending_replies.push(RequestKind::Close(None), Disposition::Discard);
        frontend::sync(&mut out);
        self.pending_replies.push(RequestKind::Sync, Disposition::Discard);
        self.server.link().write(out);
    }
}

/// Returns whether a server accepts the message during a copy.
pub(super) fn is_of_copy(tag: u8) -> bool {
    matches!(tag, frontend::COPY_DATA | frontend::COPY_DONE | frontend::COPY_FAIL | frontend::SYNC | frontend::FLUSH)
}

/// Portal name that no server has.
const PORTAL_UNKNOWN: &[u8] = b"tidegate_unknown";
