//! Setting changes that wait for their transaction to end.
//!
//! A SET is rolled back with its transaction, or with an earlier savepoint. Savepoints are tracked from the first SET of a
//! transaction on: an untracked savepoint is older than every SET.
//!
//! Performs no I/O: the input is statements, the output is decisions.

use tidegate_sql::classify::SessionChange;

/// Setting changes of a transaction so far.
#[derive(Debug, Default)]
pub struct PendingChanges {
    entries: Vec<PendingChange>,
    /// Changes that earlier transactions of the same chain committed.
    kept: Vec<SessionChange>,
    /// An error occurred that no rollback has handled yet.
    failed: bool,
    /// The remaining changes are unknown: savepoints came among other statements, or there were too many entries.
    unclear: bool,
}

#[derive(Debug)]
enum PendingChange {
    Change(SessionChange),
    /// Number of nested savepoints of this name without a change between them.
    Savepoint(String, u32),
}

impl PendingChange {
    /// Maximum number of changes in the entry.
    fn weight(&self) -> usize {
        match self {
            Self::Change(SessionChange::Sets(sets)) => sets.len(),
            _ => 1,
        }
    }
}

/// Result of a transaction for its setting changes.
#[derive(Debug, PartialEq, Eq)]
pub enum Settled {
    /// The transaction made no changes.
    Nothing,
    /// The changes are in effect, in this order.
    Kept(Vec<SessionChange>),
    /// The changes were rolled back.
    Undone,
    /// The result is known to the server only.
    Unclear,
}

/// Maximum number of entries per transaction or chain, as each change in effect costs a copy of all settings.
const ENTRIES_MAX: usize = 1024;

impl PendingChanges {
    /// Returns whether no change is pending.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.kept.is_empty()
    }

    /// Records a statement that succeeded.
    pub fn note(&mut self, change: SessionChange) {
        match change {
            SessionChange::Deallocate(_) | SessionChange::DeallocateAll => {}
            SessionChange::Savepoint(name) => self.begin(name),
            SessionChange::Release(name) => self.release(&name),
            SessionChange::RollbackTo(name) => self.roll_back_to(&name),
            SessionChange::Savepoints => {
                self.failed = false;
                self.unclear = !self.entries.is_empty();
            }
            // A multi-statement query repeats its change with each CommandComplete.
            change if matches!(self.entries.last(), Some(PendingChange::Change(last)) if *last == change) => {}
            change => self.push(PendingChange::Change(change)),
        }
    }

    fn push(&mut self, entry: PendingChange) {
        if self.entries.iter().map(PendingChange::weight).sum::<usize>() < ENTRIES_MAX {
            self.entries.push(entry);
        } else {
            self.unclear = true;
        }
    }

    fn begin(&mut self, name: String) {
        match self.entries.last_mut() {
            None => {}
            Some(PendingChange::Savepoint(last, depth)) if *last == name => *depth = depth.saturating_add(1),
            Some(_) => self.push(PendingChange::Savepoint(name, 1)),
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().rposition(|entry| matches!(entry, PendingChange::Savepoint(known, _) if known == name))
    }

    /// Merges the changes since the savepoint into the enclosing level.
    fn release(&mut self, name: &str) {
        let kept = self.position(name).map(|at| {
            let PendingChange::Savepoint(_, depth) = &mut self.entries[at] else { return at };
            *depth -= 1;
            if *depth > 0 { at + 1 } else { at }
        });
        let mut at = 0;
        self.entries.retain(|entry| {
            at += 1;
            at <= kept.unwrap_or(0) || matches!(entry, PendingChange::Change(_))
        });
    }

    fn roll_back_to(&mut self, name: &str) {
        self.failed = false;
        if !self.unclear {
            self.entries.truncate(self.position(name).map_or(0, |at| at + 1));
        }
    }

    /// Rolls back all changes. Returns whether there were any.
    pub fn roll_back(&mut self) -> bool {
        let undone = !self.entries.is_empty();
        *self = Self { kept: std::mem::take(&mut self.kept), ..Self::default() };
        undone
    }

    /// Records a failed statement: the transaction must be rolled back, at least to a savepoint.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Handles a COMMIT that another transaction may follow without a ReadyForQuery between. A RESET waits for the end of the
    /// chain: from there on the client has its login settings again, and earlier reports are the server's own values.
    pub fn commit(&mut self) -> Settled {
        match self.settle() {
            Settled::Kept(changes) if self.kept.len() + changes.len() > 2 * ENTRIES_MAX => Settled::Unclear,
            Settled::Kept(changes) if !self.kept.is_empty() || changes.iter().any(SessionChange::is_reset) => {
                changes.into_iter().for_each(|change| self.keep(change));
                Settled::Nothing
            }
            settled => settled,
        }
    }

    /// Keeps only the last change of each parameter.
    fn keep(&mut self, change: SessionChange) {
        match change.parameter() {
            Some(name) => self.kept.retain(|before| before.parameter() != Some(name)),
            None => self.kept.clear(),
        }
        self.kept.push(change);
    }

    /// Takes the committed changes that wait for the end of the chain.
    pub fn take_kept(&mut self) -> Vec<SessionChange> {
        std::mem::take(&mut self.kept)
    }

    /// Ends the transaction in any way but ROLLBACK.
    pub fn settle(&mut self) -> Settled {
        let (entries, failed, unclear) = (std::mem::take(&mut self.entries), self.failed, self.unclear);
        (self.failed, self.unclear) = (false, false);
        if entries.is_empty() {
            return Settled::Nothing;
        }
        if failed {
            return Settled::Undone;
        }
        if unclear {
            return Settled::Unclear;
        }
        let changes = |entry| match entry {
            PendingChange::Change(SessionChange::Sets(sets)) => sets,
            PendingChange::Change(change) => vec![change],
            PendingChange::Savepoint(..) => Vec::new(),
        };
        Settled::Kept(entries.into_iter().flat_map(changes).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Remaining settings of `a`, `b` ... set one after another between these statements.
    fn left(script: &str) -> String {
        let mut pending = PendingChanges::default();
        for word in script.split(' ') {
            let name = || word[1..].to_owned();
            match word.as_bytes()[0] {
                b'+' => pending.note(SessionChange::Savepoint(name())),
                b'-' => pending.note(SessionChange::Release(name())),
                b'<' => pending.note(SessionChange::RollbackTo(name())),
                b'?' => pending.note(SessionChange::Savepoints),
                b'!' => pending.fail(),
                b'0' => drop(pending.roll_back()),
                _ => pending.note(SessionChange::Reset(word.to_owned())),
            }
        }
        match pending.settle() {
            Settled::Kept(changes) => {
                let name = |change: &SessionChange| {
                    if let SessionChange::Reset(name) = change { name.clone() } else { String::new() }
                };
                changes.iter().map(name).collect::<Vec<_>>().join(" ")
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn rollback_to_savepoint_keeps_earlier_changes() {
        for (script, expected) in [
            ("a b", "a b"),
            ("a 0 b", "b"),
            ("a +s b <s c", "a c"),
            ("+s a <s b", "b"),
            ("a +s b ! <s", "a"),
            ("a +s b -s", "a b"),
            ("a +s b +s c -s <s", "a"),
            ("a +s b +t c -s <s d", "d"),
            ("a +s +s b -s c <s d", "a d"),
            ("a +s +s -s -s b <s c", "c"),
            ("a +s +s b <s -s c <s d", "a d"),
            ("+o a +i b -o c <i d", "d"),
            ("a +s b <s c <s d", "a d"),
            ("a +S b <s c", "c"),
            ("+s a 0", "Nothing"),
            ("a !", "Undone"),
            ("a ? b", "Unclear"),
            ("? a", "a"),
            ("a ? b <s", "Unclear"),
            ("a ? 0 b", "b"),
        ] {
            assert_eq!(left(script), expected, "{script}");
        }
    }

    #[test]
    fn multi_set_is_flattened_and_deduplicated() {
        let set = |name: &str| SessionChange::Set { name: name.to_owned(), value: None };
        let mut pending = PendingChanges::default();
        for _ in 0..3 {
            pending.note(SessionChange::Sets(vec![set("a"), set("b")]));
        }
        pending.note(set("a"));
        assert_eq!(pending.settle(), Settled::Kept(vec![set("a"), set("b"), set("a")]));
    }

    #[test]
    fn changes_after_reset_wait_for_end_of_chain() {
        let set = |name: &str| SessionChange::Set { name: name.to_owned(), value: None };
        let mut pending = PendingChanges::default();
        pending.note(set("a"));
        assert_eq!(pending.commit(), Settled::Kept(vec![set("a")]), "there is no RESET");
        for _ in 0..3 {
            for change in [SessionChange::Reset("a".to_owned()), set("b"), set("a")] {
                pending.note(change);
            }
            assert_eq!(pending.commit(), Settled::Nothing);
        }
        pending.note(SessionChange::Reset("c".to_owned()));
        assert!(pending.roll_back() && !pending.is_empty() && pending.settle() == Settled::Nothing);
        assert_eq!(pending.take_kept(), [set("b"), set("a")]);
        assert!(pending.is_empty());
    }

    #[test]
    fn entries_of_a_transaction_are_bounded() {
        let mut pending = PendingChanges::default();
        for number in 0..2 * ENTRIES_MAX {
            pending.note(SessionChange::Savepoint("s".to_owned()));
            pending.note(SessionChange::Reset(number.to_string()));
        }
        assert!(pending.entries.len() <= ENTRIES_MAX);
        assert_eq!(pending.settle(), Settled::Unclear);
        pending.note(SessionChange::Reset("a".to_owned()));
        for _ in 0..2 * ENTRIES_MAX {
            pending.note(SessionChange::Savepoint("s".to_owned()));
        }
        assert_eq!(pending.settle(), Settled::Kept(vec![SessionChange::Reset("a".to_owned())]));
        let sets = |number: usize| (0..64).map(move |of| SessionChange::Reset(format!("{number}.{of}"))).collect();
        (0..ENTRIES_MAX).for_each(|number| pending.note(SessionChange::Sets(sets(number))));
        assert_eq!(pending.settle(), Settled::Unclear);
    }

    #[test]
    fn changes_of_a_chain_are_bounded() {
        let mut pending = PendingChanges::default();
        let mut chain = (0..ENTRIES_MAX * 4).map(|number| {
            pending.note(SessionChange::Reset(number.to_string()));
            pending.commit()
        });
        assert!(chain.any(|settled| settled == Settled::Unclear));
    }
}
