//! COPY FROM STDIN among the replies that a server still owes.
//!
//! While a copy reads its data, the server ignores Sync and Flush. Once it has ended or failed, the server ignores CopyData,
//! CopyDone and CopyFail, and answers each Sync (`src/backend/commands/copyfromparse.c`, `src/backend/tcop/postgres.c`).

use super::{Disposition, ExpectedReply, PendingReplies, RequestKind, Unsynced};

/// The state of the Syncs that came before a copy has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailedCopy {
    /// There is no such copy, or all is known.
    None,
    /// How many of them are answered is not known.
    Uncertain,
    /// A Sync of the gateway is under way that tells whether the one before it is answered.
    Probed,
}

impl PendingReplies {
    /// Whether a message means one thing if an earlier copy has ignored its Syncs, and another if it has not: the message waits
    /// until the copy has succeeded or failed. A copy whose end was not sent is not waited for, as it would wait as well.
    pub(crate) fn is_copy_undecided(&self) -> bool {
        const LOOKED_THROUGH_MAX: usize = 4096;
        match self.failed_copy {
            FailedCopy::None => {}
            FailedCopy::Uncertain => return !self.skipping || self.may_probe(),
            FailedCopy::Probed => return true,
        }
        if self.sum.copied == 0 || self.expected.len() > LOOKED_THROUGH_MAX {
            return false;
        }
        let is_sync = |expected: &ExpectedReply| matches!(expected.asked, RequestKind::Sync);
        let mut behind_sync = self.expected.iter().skip_while(|expected| !is_sync(expected));
        behind_sync.any(|expected| matches!(expected.asked, RequestKind::CopyEnd))
    }

    /// After the first ReadyForQuery behind a failed copy: whether only a reply of another kind tells which Syncs are answered.
    pub(crate) fn take_uncertain_syncs(&mut self) -> bool {
        let is_uncertain = self.failed_copy == FailedCopy::Uncertain;
        if is_uncertain {
            self.failed_copy = FailedCopy::None;
        }
        is_uncertain && !self.expected.is_empty()
    }

    /// Whether a Sync of the gateway tells if the server skips what the client sends next: one of two replies is missing then.
    fn may_probe(&self) -> bool {
        self.expected.iter().filter(|expected| matches!(expected.asked, RequestKind::Sync)).count() == 1
    }

    /// The server may be skipping messages or not, and the client goes on without a Sync: whether the gateway is to send one.
    pub(crate) fn begin_probe(&mut self) -> bool {
        let begins = self.failed_copy == FailedCopy::Uncertain && self.skipping && self.may_probe();
        if begins {
            self.failed_copy = FailedCopy::Probed;
        }
        begins
    }

    /// The reply behind the Syncs has come.
    #[inline]
    pub(super) fn end_probe(&mut self, completed: Option<&ExpectedReply>) {
        if self.failed_copy == FailedCopy::Probed
            && completed.is_some_and(|expected| expected.to == Disposition::Discard)
        {
            self.failed_copy = FailedCopy::None;
        }
    }

    /// The query or the Execute at the front has failed. Returns whether the server may skip all messages that were sent so far.
    ///
    /// The copy has read its data up to some message, and ignored the Syncs before that. If it has failed before it read any
    /// (a trigger, COPY FREEZE), all Syncs are answered. The error does not say which of the two has happened.
    pub(super) fn fail_copy(&mut self) -> bool {
        self.copy_in = false;
        if !std::mem::take(&mut self.copied) {
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

    /// Copy data from the client.
    pub(crate) fn note_copy_data(&mut self) {
        let known = matches!(self.expected.back(), None | Some(ExpectedReply { asked: RequestKind::CopyData, .. }));
        if !known {
            self.enqueue(ExpectedReply { asked: RequestKind::CopyData, to: Disposition::Forward });
        }
    }

    /// A reply that no Sync gives: a Sync that stands before whoever asked for it was ignored in a copy.
    pub(crate) fn pass_ignored_syncs(&mut self) {
        while self.expected.len() > 1
            && matches!(self.expected.front(), Some(ExpectedReply { asked: RequestKind::Sync, .. }))
        {
            if self.failed_copy == FailedCopy::Probed && self.expected[0].to == Disposition::Discard {
                // One reply has come for two Syncs: the client's was ignored, and the server has skipped what was behind it.
                self.drops = true;
                self.unsynced = Unsynced::Prepared;
            }
            self.take_out(0);
        }
    }

    /// The client's Sync to which the gateway has given the answer to its own.
    pub(crate) fn end_drops(&mut self) {
        self.drops = false;
        self.unsynced = Unsynced::Nothing;
    }

    /// What was at the front is done. If it was a copy that went well, what was sent in its course was a part of it.
    pub(super) fn end_copy(&mut self, well: bool) {
        self.copy_in = false;
        if std::mem::take(&mut self.copied) && well {
            self.pass_copy(0);
        }
        self.pass_strays();
    }

    /// A copy may have ignored Syncs. If nothing behind it has a ReadyForQuery, the messages before still wait for a Sync.
    pub(super) fn note_ignored_syncs(&mut self) {
        let ends = |expected: &ExpectedReply| {
            matches!(expected.asked, RequestKind::Query(..) | RequestKind::FunctionCall | RequestKind::Sync)
        };
        if !self.expected.iter().any(ends) {
            self.unsynced = Unsynced::Executed;
        }
    }

    /// The copy before `from` was heard to its end: what was sent in its course up to there was a part of it.
    pub(super) fn pass_copy(&mut self, from: usize) {
        let mut course = self.expected.iter().skip(from).take_while(|expected| is_part_of_copy(expected));
        if let Some(end) = course.position(|expected| matches!(expected.asked, RequestKind::CopyEnd)) {
            (0..=end).for_each(|_| self.take_out(from));
        }
    }

    /// The copy of the query or the Execute at the front has read its data to the end, or to a CopyFail.
    pub(crate) fn finish_copy(&mut self) {
        if std::mem::take(&mut self.copied) {
            self.pass_copy(1);
        }
    }

    /// There is no copy, or it has failed: of what was sent in its course, Syncs are answered and nothing else.
    pub(super) fn pass_strays(&mut self) {
        let is_stray =
            |expected: &ExpectedReply| matches!(expected.asked, RequestKind::CopyData | RequestKind::CopyEnd);
        if self.sum.copied == 0 {
            return;
        }
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

    /// CopyInResponse. The server ignores Sync from the moment it reads data, unless the copy fails before that.
    pub(crate) fn begin_copy_in(&mut self) {
        self.progress += 1;
        // The first copy of the same query has succeeded.
        self.finish_copy();
        self.copied = true;
        // The end of this copy may have been sent already.
        self.copy_in = !self.expected.iter().any(|expected| matches!(expected.asked, RequestKind::CopyEnd));
    }

    /// CopyDone or CopyFail from the client.
    pub(crate) fn end_copy_in(&mut self) {
        self.copy_in = false;
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

    use super::{super::Completes, *};

    fn push(pending_replies: &mut PendingReplies, asked: RequestKind) {
        assert!(!pending_replies.push(asked, Disposition::Forward));
    }

    #[test]
    fn data_of_no_copy_costs_no_more_the_more_there_is() {
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
    fn a_sync_during_copy_in_is_not_answered() {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Execute(None, None));
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.begin_copy_in();
        assert!(pending_replies.copy_in);
        pending_replies.end_copy_in();
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.complete(Completes::Execute);
        pending_replies.ready(TxStatus::Idle);
        assert!(pending_replies.is_over());
    }

    #[test]
    fn a_copy_sent_whole_before_the_server_asked_is_understood() {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Execute(None, None));
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.end_copy_in();
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.begin_copy_in();
        assert!(!pending_replies.copy_in);
        assert!(pending_replies.complete(Completes::Execute).is_some());
        pending_replies.ready(TxStatus::Idle);
        assert!(pending_replies.is_over());
    }

    #[test]
    fn a_sync_in_a_copy_that_the_client_gives_up_is_not_answered() {
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
    fn what_is_behind_a_copy_that_has_ignored_a_sync_waits_for_its_own() {
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
        assert!(pending_replies.complete(Completes::Execute).is_some());
        assert!(pending_replies.has_no_replies_due() && !pending_replies.is_over());
    }

    #[test]
    fn a_sync_in_the_second_copy_of_a_query_is_not_answered() {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Query(None, None));
        for _ in 0..2 {
            pending_replies.begin_copy_in();
            assert!(pending_replies.copy_in);
            pending_replies.note_copy_data();
            push(&mut pending_replies, RequestKind::Sync);
            pending_replies.end_copy_in();
        }
        assert!(pending_replies.ready(TxStatus::Idle).is_some());
        assert!(pending_replies.is_over());
    }

    #[test]
    fn a_sync_among_the_data_of_a_copy_does_not_end_its_flight() {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Execute(None, None));
        pending_replies.begin_copy_in();
        pending_replies.note_copy_data();
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.end_copy_in();
        assert!(pending_replies.complete(Completes::Execute).is_some());
        assert!(pending_replies.has_no_replies_due() && !pending_replies.is_over());
        push(&mut pending_replies, RequestKind::Sync);
        pending_replies.ready(TxStatus::Idle);
        assert!(pending_replies.is_over());
    }
}
