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
    /// A Sync of the gateway is pending, which the server answers in any case.
    Probed,
    /// The server has answered the Sync of the gateway, and one of the client's.
    Resumed,
}

impl PendingReplies {
    /// Returns whether the meaning of a message depends on whether an earlier copy has ignored its Syncs. The message waits
    /// until the copy succeeds or fails. A copy whose end was not sent does not count, as its end would wait as well.
    #[must_use]
    pub fn is_copy_undecided(&self) -> bool {
        const SCANNED_ENTRIES_MAX: usize = 4096;
        match self.failed_copy {
            FailedCopy::None => {}
            FailedCopy::Uncertain | FailedCopy::Probed | FailedCopy::Resumed => return true,
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

    /// Expects the reply to a Sync of the gateway, if the server may be skipping messages and the client continues without a
    /// Sync. Returns whether the gateway must send it.
    ///
    /// The first reply counts as the one to this Sync, since it may be the only one: the server answers the last Syncs, an
    /// unknown number of them, all with the same transaction status.
    pub fn begin_probe(&mut self) -> bool {
        let begins = self.failed_copy == FailedCopy::Uncertain && self.skipped == Skipped::ByServer;
        if begins {
            self.failed_copy = FailedCopy::Probed;
            self.push(RequestKind::Sync, Disposition::Discard);
            self.expected.rotate_right(1);
        }
        begins
    }

    /// Handles the reply to a Sync during a probe.
    #[inline]
    pub(super) fn note_answered_sync(&mut self, answered: &ExpectedReply) {
        if self.failed_copy == FailedCopy::Probed && answered.to == Disposition::Forward {
            self.failed_copy = FailedCopy::Resumed;
        }
    }

    /// Ends the probe when the reply behind the Syncs arrives.
    #[inline]
    pub(super) fn end_probe(&mut self, completed: Option<&ExpectedReply>) {
        if self.failed_copy != FailedCopy::None && completed.is_some_and(|expected| expected.to == Disposition::Discard)
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
    pub fn pass_ignored_syncs(&mut self) {
        while self.expected.len() > 1
            && matches!(self.expected.front(), Some(ExpectedReply { asked: RequestKind::Sync, .. }))
        {
            if self.failed_copy == FailedCopy::Probed {
                // The server has answered the gateway's Sync alone: it would skip the client's next messages.
                self.skipped = Skipped::ByGateway;
                self.unsynced = Unsynced::Prepared;
            }
            self.take_out(0);
        }
    }

    /// Ends the dropping at the client's Sync, which the server receives.
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

    /// A copy that has failed, and the gateway's messages that find out which of the Syncs the server answers.
    fn probed_copy(messages: &[RequestKind]) -> PendingReplies {
        let mut pending_replies = PendingReplies::new();
        push(&mut pending_replies, RequestKind::Execute(None, None));
        for message in messages {
            match message {
                RequestKind::CopyData => pending_replies.note_copy_data(),
                RequestKind::CopyEnd => pending_replies.end_copy_in(),
                _ => push(&mut pending_replies, RequestKind::Sync),
            }
        }
        pending_replies.begin_copy_in();
        assert_eq!(pending_replies.fail().len(), 1);
        assert!(pending_replies.is_copy_undecided() && pending_replies.begin_probe());
        pending_replies.push(RequestKind::Close(None), Disposition::Discard);
        pending_replies.push(RequestKind::Sync, Disposition::Discard);
        pending_replies
    }

    /// Passes the replies of the server: `answered` to Syncs, and those behind them. Returns how many the client gets.
    fn pass_replies(pending_replies: &mut PendingReplies, answered: usize) -> usize {
        let replies: Vec<_> = (0..answered).filter_map(|_| pending_replies.ready(TxStatus::Idle)).collect();
        assert_eq!(replies.len(), answered);
        assert!(pending_replies.is_copy_undecided());
        pending_replies.pass_ignored_syncs();
        assert!(pending_replies.complete(ReplyKind::Close).is_some());
        assert!(!pending_replies.is_copy_undecided());
        pending_replies.ready(TxStatus::Idle);
        replies.iter().filter(|reply| reply.to == Disposition::Forward).count()
    }

    /// The copy fails before it reads anything, or reads up to each of its messages.
    #[test]
    fn every_outcome_of_a_failed_copy_is_found() {
        use RequestKind::{CopyData, CopyEnd, Sync};
        let outcomes: [(&[RequestKind], &[usize]); 3] = [
            (&[Sync, CopyData, CopyEnd], &[1, 0]),
            (&[Sync, Sync, CopyData, CopyEnd], &[2, 0]),
            (&[Sync, CopyData, Sync, CopyData, Sync, CopyData, CopyEnd], &[3, 2, 1, 0]),
        ];
        for (messages, answered) in outcomes {
            for answered in answered {
                let mut pending_replies = probed_copy(messages);
                // The server answers the gateway's Sync in any case.
                assert_eq!(pass_replies(&mut pending_replies, answered + 1), *answered, "{messages:?}");
                let skips = *answered == 0;
                assert_eq!(pending_replies.skipped() == Skipped::ByGateway, skips, "{messages:?}, {answered}");
                assert_eq!(pending_replies.is_over(), !skips, "{messages:?}, {answered}");
            }
        }
    }

    #[test]
    fn sync_behind_dropped_messages_is_answered() {
        let mut pending_replies = probed_copy(&[RequestKind::Sync, RequestKind::CopyData]);
        assert_eq!(pass_replies(&mut pending_replies, 1), 0);
        pending_replies.end_drops();
        push(&mut pending_replies, RequestKind::Sync);
        assert!(!pending_replies.is_over());
        assert!(pending_replies.ready(TxStatus::Idle).is_some_and(|reply| reply.to == Disposition::Forward));
        assert!(pending_replies.is_over());
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
