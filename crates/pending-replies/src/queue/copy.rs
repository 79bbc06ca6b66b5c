//! COPY FROM STDIN in the queue of pending replies.
//!
//! While a copy reads its data, the server ignores Sync and Flush. Once it has ended or failed, the server ignores CopyData,
//! CopyDone and CopyFail, and answers each Sync (`src/backend/commands/copyfromparse.c`, `src/backend/tcop/postgres.c`).

use super::{PendingReplies, Skipped, Unsynced};
use crate::request::{Disposition, ExpectedReply, RequestKind};

/// Copy that the entry at the front has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyPhase {
    /// The entry has begun no copy, or its copy has ended.
    None,
    /// The server waits for copy data.
    Receiving,
    /// The client has sent the end of the data.
    DataEnded,
}

impl CopyPhase {
    /// No more data follows.
    #[inline]
    pub(super) fn end_data(&mut self) {
        if *self == Self::Receiving {
            *self = Self::DataEnded;
        }
    }

    /// The copy has ended. Returns whether there was one.
    #[inline]
    fn end(&mut self) -> bool {
        std::mem::replace(self, Self::None) != Self::None
    }
}

/// State of the Syncs sent before a copy failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailedCopy {
    /// There is no such copy, or its Syncs are resolved.
    None,
    /// The number of Syncs that the server answers is unknown.
    Uncertain,
    /// A Sync of the gateway is pending, which shows whether the server answers the Sync before it.
    Probed,
}

impl PendingReplies {
    /// Returns whether the meaning of a message depends on whether an earlier copy has ignored its Syncs. The message waits
    /// until the copy succeeds or fails. A copy whose end was not sent does not count, as its end would wait as well.
    #[must_use]
    pub fn is_copy_undecided(&self) -> bool {
        const SCANNED_ENTRIES_MAX: usize = 4096;
        match self.failed_copy {
            FailedCopy::None => {}
            FailedCopy::Uncertain => return self.skipped != Skipped::ByServer || self.may_probe(),
            FailedCopy::Probed => return true,
        }
        if self.sum.copied == 0 || self.expected.len() > SCANNED_ENTRIES_MAX {
            return false;
        }
        let is_sync = |expected: &ExpectedReply| matches!(expected.asked, RequestKind::Sync);
        let mut behind_sync = self.expected.iter().skip_while(|expected| !is_sync(expected));
        behind_sync.any(|expected| matches!(expected.asked, RequestKind::CopyEnd))
    }

    /// Called after the first ReadyForQuery behind a failed copy. Returns whether a reply of another kind is required to find
    /// the answered Syncs.
    #[inline]
    pub fn take_uncertain_syncs(&mut self) -> bool {
        let is_uncertain = self.failed_copy == FailedCopy::Uncertain;
        if is_uncertain {
            self.failed_copy = FailedCopy::None;
        }
        is_uncertain && !self.expected.is_empty()
    }

    /// Returns whether a Sync of the gateway can show that the server skips the client's next messages: one of two replies is
    /// then missing.
    fn may_probe(&self) -> bool {
        self.expected.iter().filter(|expected| matches!(expected.asked, RequestKind::Sync)).count() == 1
    }

    /// Returns whether the gateway must send a Sync: the server may be skipping messages, and the client continues without a
    /// Sync.
    pub fn begin_probe(&mut self) -> bool {
        let begins = self.failed_copy == FailedCopy::Uncertain && self.skipped == Skipped::ByServer && self.may_probe();
        if begins {
            self.failed_copy = FailedCopy::Probed;
        }
        begins
    }

    /// Ends the probe when the reply behind the Syncs arrives.
    #[inline]
    pub(super) fn end_probe(&mut self, completed: Option<&ExpectedReply>) {
        if self.failed_copy == FailedCopy::Probed
            && completed.is_some_and(|expected| expected.to == Disposition::Discard)
        {
            self.failed_copy = FailedCopy::None;
        }
    }

    /// Handles an error of the query or Execute at the front. Returns whether the server may skip all messages sent so far.
    ///
    /// The copy has read its data up to some message, and has ignored the Syncs before that. A copy that failed before it
    /// read any data (a trigger, COPY FREEZE) leaves all Syncs to be answered. The error does not distinguish the two cases.
    pub(super) fn fail_copy(&mut self) -> bool {
        if !self.copy.end() {
            return false;
        }
        let (mut has_sync, mut may_be_ignored, mut ends_in_sync, mut parts) = (false, false, false, 0);
        for expected in self.expected.iter().skip(1).take_while(|expected| is_part_of_copy(expected)) {
            ends_in_sync = matches!(expected.asked, RequestKind::Sync);
            has_sync |= ends_in_sync;
            may_be_ignored |= has_sync && !ends_in_sync;
            parts += 1;
        }
        let is_all = self.expected.len() == parts + 1;
        if !may_be_ignored || !is_all {
            return false;
        }
        self.failed_copy = FailedCopy::Uncertain;
        !ends_in_sync
    }

    /// Records CopyData from the client.
    #[inline]
    pub fn note_copy_data(&mut self) {
        let known = matches!(self.expected.back(), None | Some(ExpectedReply { asked: RequestKind::CopyData, .. }));
        if !known {
            self.enqueue(ExpectedReply { asked: RequestKind::CopyData, to: Disposition::Forward });
        }
    }

    /// Handles a reply that no Sync gives: Syncs before the request of that reply were ignored in a copy.
    #[inline]
    pub fn pass_ignored_syncs(&mut self) {
        while self.expected.len() > 1
            && matches!(self.expected.front(), Some(ExpectedReply { asked: RequestKind::Sync, .. }))
        {
            if self.failed_copy == FailedCopy::Probed && self.expected[0].to == Disposition::Discard {
                // A single reply has arrived for two Syncs: the server ignored the client's Sync and skipped the
                // messages behind it.
                self.skipped = Skipped::ByGateway;
                self.unsynced = Unsynced::Prepared;
            }
            self.take_out(0);
        }
    }

    /// Ends the dropping at the client's Sync, whose reply was that to the gateway's Sync.
    pub fn end_drops(&mut self) {
        self.skipped = Skipped::Nothing;
        self.unsynced = Unsynced::Nothing;
    }

    /// Ends the copy of the completed entry. After a successful copy, the messages sent during it were part of it.
    #[inline]
    pub(super) fn end_copy(&mut self, well: bool) {
        if self.copy.end() && well {
            self.pass_copy(0);
        }
        self.pass_strays();
    }

    /// Handles Syncs that a copy may have ignored. Without a later ReadyForQuery, earlier messages still wait for a Sync.
    pub(super) fn note_ignored_syncs(&mut self) {
        let ends = |expected: &ExpectedReply| {
            matches!(expected.asked, RequestKind::Query(..) | RequestKind::FunctionCall | RequestKind::Sync)
        };
        if !self.expected.iter().any(ends) {
            self.unsynced = Unsynced::Executed;
        }
    }

    /// Removes the messages of a copy that has read its data to the end; its messages begin at `from`.
    pub(super) fn pass_copy(&mut self, from: usize) {
        let mut course = self.expected.iter().skip(from).take_while(|expected| is_part_of_copy(expected));
        if let Some(end) = course.position(|expected| matches!(expected.asked, RequestKind::CopyEnd)) {
            (0..=end).for_each(|_| self.take_out(from));
        }
    }

    /// Handles the end of data, or a CopyFail, for the copy of the query or Execute at the front.
    #[inline]
    pub fn finish_copy(&mut self) {
        if self.copy.end() {
            self.pass_copy(1);
        }
    }

    /// Handles the absence or failure of a copy: of the messages sent during it, the server answers only Syncs.
    #[inline]
    pub(super) fn pass_strays(&mut self) {
        if self.sum.copied > 0 {
            self.remove_strays();
        }
    }

    #[cold]
    fn remove_strays(&mut self) {
        let is_stray =
            |expected: &ExpectedReply| matches!(expected.asked, RequestKind::CopyData | RequestKind::CopyEnd);
        let is_syncs_and_strays =
            |expected: &&ExpectedReply| is_stray(expected) || matches!(expected.asked, RequestKind::Sync);
        let end = self.expected.iter().take_while(is_syncs_and_strays).count();
        if !self.expected.iter().take(end).any(is_stray) {
            return;
        }
        let course: Vec<ExpectedReply> = self.expected.drain(..end).collect();
        for expected in course.into_iter().rev() {
            if is_stray(&expected) {
                self.forget(&expected);
            } else {
                self.expected.push_front(expected);
            }
        }
    }

    /// Handles CopyInResponse. The server ignores Sync from its first read of data, unless the copy fails before that.
    pub fn begin_copy_in(&mut self) {
        self.progress += 1;
        // The previous copy of the same query has succeeded.
        self.finish_copy();
        // The client may have sent the end of this copy already.
        let has_end = self.expected.iter().any(|expected| matches!(expected.asked, RequestKind::CopyEnd));
        self.copy = if has_end { CopyPhase::DataEnded } else { CopyPhase::Receiving };
    }

    /// Records CopyDone or CopyFail from the client.
    pub fn end_copy_in(&mut self) {
        self.copy.end_data();
        if !self.expected.is_empty() {
            self.enqueue(ExpectedReply { asked: RequestKind::CopyEnd, to: Disposition::Forward });
        }
    }
}

fn is_part_of_copy(expected: &ExpectedReply) -> bool {
    matches!(expected.asked, RequestKind::CopyData | RequestKind::Sync | RequestKind::CopyEnd)
}

#[cfg(test)]
mod tests {
    use tidegate_wire::backend::TxStatus;

    use super::*;
    use crate::request::ReplyKind;

    fn push(pending_replies: &mut PendingReplies, asked: RequestKind) {
        assert!(!pending_replies.push(asked, Disposition::Forward));
    }

    #[test]
    fn stray_copy_data_is_removed_in_linear_time() {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Query(None, None));
        for _ in 0..200_000 {
            push(&mut pending_replies, RequestKind::Sync);
            pending_replies.note_copy_data();
        }
        assert!(pending_replies.ready(TxStatus::Idle).is_some());
        assert_eq!(
            (pending_replies.len(), pending_replies.sum.copied, pending_replies.sum.ends),
            (200_000, 0, 200_000)
        );
        assert!(pending_replies.ready(TxStatus::Idle).is_some() && pending_replies.len() == 199_999);
    }

    #[test]
    fn sync_during_copy_in_is_not_answered() {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Execute(None, None));
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.begin_copy_in();
        assert!(pending_replies.is_copy_in());
        pending_replies.end_copy_in();
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.complete(ReplyKind::Execute);
        pending_replies.ready(TxStatus::Idle);
        assert!(pending_replies.is_over());
    }

    #[test]
    fn copy_sent_before_copy_in_response_is_tracked() {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Execute(None, None));
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.end_copy_in();
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.begin_copy_in();
        assert!(!pending_replies.is_copy_in());
        assert!(pending_replies.complete(ReplyKind::Execute).is_some());
        pending_replies.ready(TxStatus::Idle);
        assert!(pending_replies.is_over());
    }

    #[test]
    fn sync_before_copy_fail_is_not_answered() {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Query(None, None));
        pending_replies.begin_copy_in();
        pending_replies.note_copy_data();
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.end_copy_in();
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.finish_copy();
        assert!(pending_replies.fail().is_empty());
        pending_replies.ready(TxStatus::Idle);
        assert!(!pending_replies.is_over());
        pending_replies.ready(TxStatus::Idle);
        assert!(pending_replies.is_over());
    }

    #[test]
    fn execute_after_ignored_sync_needs_its_own_sync() {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Execute(None, None));
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.end_copy_in();
        push(&mut pending_replies, RequestKind::Sync);
        push(&mut pending_replies, RequestKind::Execute(None, None));
        pending_replies.begin_copy_in();
        pending_replies.finish_copy();
        assert_eq!(pending_replies.fail().len(), 1);
        pending_replies.ready(TxStatus::Idle);
        assert!(pending_replies.complete(ReplyKind::Execute).is_some());
        assert!(pending_replies.has_no_replies_due() && !pending_replies.is_over());
    }

    #[test]
    fn sync_in_second_copy_of_query_is_not_answered() {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Query(None, None));
        for _ in 0..2 {
            pending_replies.begin_copy_in();
            assert!(pending_replies.is_copy_in());
            pending_replies.note_copy_data();
            push(&mut pending_replies, RequestKind::Sync);
            pending_replies.end_copy_in();
        }
        assert!(pending_replies.ready(TxStatus::Idle).is_some());
        assert!(pending_replies.is_over());
    }

    #[test]
    fn sync_among_copy_data_does_not_end_the_pipeline() {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Execute(None, None));
        pending_replies.begin_copy_in();
        pending_replies.note_copy_data();
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.end_copy_in();
        assert!(pending_replies.complete(ReplyKind::Execute).is_some());
        assert!(pending_replies.has_no_replies_due() && !pending_replies.is_over());
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.ready(TxStatus::Idle);
        assert!(pending_replies.is_over());
    }
}
