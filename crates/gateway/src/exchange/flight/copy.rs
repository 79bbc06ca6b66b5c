//! COPY FROM STDIN among the replies that a server still owes.
//!
//! While a copy reads its data, the server ignores Sync and Flush. Once it has ended or failed, the server ignores CopyData,
//! CopyDone and CopyFail, and answers each Sync (`src/backend/commands/copyfromparse.c`, `src/backend/tcop/postgres.c`).

use super::{Asked, Flight, For, Owed};

impl Flight {
    /// A Sync in the middle of a copy: ignored, unless data before it is refused.
    pub(crate) fn sync_in_copy(&mut self) {
        if self.owed.iter().any(|owed| matches!(owed.asked, Asked::CopyData)) {
            self.push(Asked::Sync, For::Client);
        }
    }

    /// Copy data from the client.
    pub(crate) fn note_copy_data(&mut self) {
        let known = matches!(self.owed.back(), None | Some(Owed { asked: Asked::CopyData, .. }));
        if !known {
            self.enqueue(Owed { asked: Asked::CopyData, to: For::Client });
        }
    }

    /// A reply that no Sync gives: a Sync that stands before whoever asked for it was ignored in a copy.
    pub(crate) fn pass_ignored_syncs(&mut self) {
        while self.owed.len() > 1 && matches!(self.owed.front(), Some(Owed { asked: Asked::Sync, .. })) {
            self.take_out(0);
        }
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
        let ends = |owed: &Owed| matches!(owed.asked, Asked::Query(..) | Asked::FunctionCall | Asked::Sync);
        self.unsynced |= !self.owed.iter().any(ends);
    }

    /// The copy before `from` was heard to its end: what was sent in its course up to there was a part of it.
    pub(super) fn pass_copy(&mut self, from: usize) {
        let is_part = |owed: &&Owed| matches!(owed.asked, Asked::CopyData | Asked::Sync | Asked::CopyEnd);
        let mut course = self.owed.iter().skip(from).take_while(is_part);
        if let Some(end) = course.position(|owed| matches!(owed.asked, Asked::CopyEnd)) {
            (0..=end).for_each(|_| self.take_out(from));
        }
    }

    /// The server refuses a copy because the client said so: it has heard all that was sent in its course.
    pub(crate) fn copy_given_up(&mut self) {
        if std::mem::take(&mut self.copied) {
            self.pass_copy(1);
        }
    }

    /// There is no copy, or it has failed: of what was sent in its course, Syncs are answered and nothing else.
    pub(super) fn pass_strays(&mut self) {
        let is_stray = |owed: &Owed| matches!(owed.asked, Asked::CopyData | Asked::CopyEnd);
        if self.sum.copied == 0 {
            return;
        }
        let is_syncs_and_strays = |owed: &&Owed| is_stray(owed) || matches!(owed.asked, Asked::Sync);
        let end = self.owed.iter().take_while(is_syncs_and_strays).count();
        if !self.owed.iter().take(end).any(is_stray) {
            return;
        }
        let course: Vec<Owed> = self.owed.drain(..end).collect();
        for owed in course.into_iter().rev() {
            if is_stray(&owed) {
                self.forget(&owed);
            } else {
                self.owed.push_front(owed);
            }
        }
    }

    /// CopyInResponse: the server ignores Sync until the copy ends, so those already sent are not answered.
    pub(crate) fn begin_copy_in(&mut self) {
        self.progress += 1;
        if self.copied {
            // The second one of the same query: the first was heard to its end.
            self.pass_copy(1);
        }
        while matches!(self.owed.get(1).map(|owed| &owed.asked), Some(Asked::Sync)) {
            self.take_out(1);
            self.note_ignored_syncs();
        }
        self.copied = true;
        // The end of this copy may have been sent already.
        self.copy_in = !self.owed.iter().any(|owed| matches!(owed.asked, Asked::CopyEnd));
    }

    /// CopyDone or CopyFail from the client.
    pub(crate) fn end_copy_in(&mut self) {
        self.copy_in = false;
        if !self.owed.is_empty() {
            self.enqueue(Owed { asked: Asked::CopyEnd, to: For::Client });
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_wire::backend::TxStatus;

    use super::{super::Completes, *};

    fn push(flight: &mut Flight, asked: Asked) {
        assert!(!flight.push(asked, For::Client));
    }

    #[test]
    fn data_of_no_copy_costs_no_more_the_more_there_is() {
        let mut flight = Flight::new();
        push(&mut flight, Asked::Query(None, None));
        for _ in 0..200_000 {
            push(&mut flight, Asked::Sync);
            flight.note_copy_data();
        }
        assert!(flight.ready(TxStatus::Idle).is_some());
        assert_eq!((flight.len(), flight.sum.copied, flight.sum.ends), (200_000, 0, 200_000));
        assert!(flight.ready(TxStatus::Idle).is_some() && flight.len() == 199_999);
    }

    #[test]
    fn a_sync_during_copy_in_is_not_answered() {
        let mut flight = Flight::new();
        push(&mut flight, Asked::Execute(None, None));
        push(&mut flight, Asked::Sync);
        flight.begin_copy_in();
        assert!(flight.copy_in);
        flight.end_copy_in();
        push(&mut flight, Asked::Sync);
        flight.complete(Completes::Execute);
        flight.ready(TxStatus::Idle);
        assert!(flight.is_over());
    }

    #[test]
    fn a_copy_sent_whole_before_the_server_asked_is_understood() {
        let mut flight = Flight::new();
        push(&mut flight, Asked::Execute(None, None));
        push(&mut flight, Asked::Sync);
        flight.end_copy_in();
        push(&mut flight, Asked::Sync);
        flight.begin_copy_in();
        assert!(!flight.copy_in);
        assert!(flight.complete(Completes::Execute).is_some());
        flight.ready(TxStatus::Idle);
        assert!(flight.is_over());
    }

    #[test]
    fn a_sync_in_a_copy_that_the_client_gives_up_is_not_answered() {
        let mut flight = Flight::new();
        push(&mut flight, Asked::Query(None, None));
        flight.begin_copy_in();
        flight.note_copy_data();
        flight.sync_in_copy();
        flight.end_copy_in();
        push(&mut flight, Asked::Sync);
        flight.copy_given_up();
        assert!(flight.fail().is_empty());
        flight.ready(TxStatus::Idle);
        assert!(!flight.is_over());
        flight.ready(TxStatus::Idle);
        assert!(flight.is_over());
    }

    #[test]
    fn what_is_behind_a_copy_that_has_ignored_a_sync_waits_for_its_own() {
        let mut flight = Flight::new();
        push(&mut flight, Asked::Execute(None, None));
        push(&mut flight, Asked::Sync);
        flight.end_copy_in();
        push(&mut flight, Asked::Sync);
        push(&mut flight, Asked::Execute(None, None));
        flight.begin_copy_in();
        flight.copy_given_up();
        assert_eq!(flight.fail().len(), 1);
        flight.ready(TxStatus::Idle);
        assert!(flight.complete(Completes::Execute).is_some());
        assert!(flight.owes_nothing() && !flight.is_over());
    }

    #[test]
    fn a_sync_in_the_second_copy_of_a_query_is_not_answered() {
        let mut flight = Flight::new();
        push(&mut flight, Asked::Query(None, None));
        for _ in 0..2 {
            flight.begin_copy_in();
            assert!(flight.copy_in);
            flight.note_copy_data();
            flight.sync_in_copy();
            flight.end_copy_in();
        }
        assert!(flight.ready(TxStatus::Idle).is_some());
        assert!(flight.is_over());
    }

    #[test]
    fn a_sync_among_the_data_of_a_copy_does_not_end_its_flight() {
        let mut flight = Flight::new();
        push(&mut flight, Asked::Execute(None, None));
        flight.begin_copy_in();
        flight.note_copy_data();
        flight.sync_in_copy();
        flight.end_copy_in();
        assert!(flight.complete(Completes::Execute).is_some());
        assert!(flight.owes_nothing() && !flight.is_over());
        push(&mut flight, Asked::Sync);
        flight.ready(TxStatus::Idle);
        assert!(flight.is_over());
    }
}
