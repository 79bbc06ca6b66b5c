//! Changes of settings that wait for their transaction to end.
//!
//! A SET is undone with its transaction, or with the savepoint that came before it. So savepoints are followed from the
//! first SET of a transaction on: one that nobody has noted is older than all that was set.
//!
//! Pure: statements in, decisions out.

use tidegate_sql::classify::SessionChange;

/// What a transaction has set so far.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    entries: Vec<Entry>,
    /// What a transaction before it has kept, in the same chain of them.
    kept: Vec<SessionChange>,
    /// An error has come since which nothing was undone yet.
    failed: bool,
    /// Nobody knows what is left of it: savepoints came among other statements, or too many of them.
    unclear: bool,
}

#[derive(Debug)]
enum Entry {
    Change(SessionChange),
    /// So many of that name, one within the other, and nothing set between them.
    Savepoint(String, u32),
}

impl Entry {
    /// How many changes it may come to.
    fn weight(&self) -> usize {
        match self {
            Self::Change(SessionChange::Sets(sets)) => sets.len(),
            _ => 1,
        }
    }
}

/// What has become of what a transaction has set.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// Nothing was set.
    Nothing,
    /// It holds, in this order.
    Kept(Vec<SessionChange>),
    /// It was undone.
    Undone,
    /// The server alone knows.
    Unclear,
}

/// More is not kept of one transaction, or of a chain of them: each change that holds costs a copy of all settings.
const ENTRIES_MAX: usize = 1024;

impl PendingChanges {
    /// Nothing waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.kept.is_empty()
    }

    /// A statement of the transaction has succeeded.
    pub(super) fn note(&mut self, change: SessionChange) {
        match change {
            SessionChange::Deallocate(_) | SessionChange::DeallocateAll => {}
            SessionChange::Savepoint(name) => self.begin(name),
            SessionChange::Release(name) => self.release(&name),
            SessionChange::RollbackTo(name) => self.roll_back_to(&name),
            SessionChange::Savepoints => {
                self.failed = false;
                self.unclear = !self.entries.is_empty();
            }
            // One among several statements is heard of with each of them.
            change if matches!(self.entries.last(), Some(Entry::Change(last)) if *last == change) => {}
            change => self.push(Entry::Change(change)),
        }
    }

    fn push(&mut self, entry: Entry) {
        if self.entries.iter().map(Entry::weight).sum::<usize>() < ENTRIES_MAX {
            self.entries.push(entry);
        } else {
            self.unclear = true;
        }
    }

    fn begin(&mut self, name: String) {
        match self.entries.last_mut() {
            None => {}
            Some(Entry::Savepoint(last, depth)) if *last == name => *depth = depth.saturating_add(1),
            Some(_) => self.push(Entry::Savepoint(name, 1)),
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().rposition(|entry| matches!(entry, Entry::Savepoint(known, _) if known == name))
    }

    /// What was set since the savepoint belongs to what is around it.
    fn release(&mut self, name: &str) {
        let kept = self.position(name).map(|at| {
            let Entry::Savepoint(_, depth) = &mut self.entries[at] else { return at };
            *depth -= 1;
            if *depth > 0 { at + 1 } else { at }
        });
        let mut at = 0;
        self.entries.retain(|entry| {
            at += 1;
            at <= kept.unwrap_or(0) || matches!(entry, Entry::Change(_))
        });
    }

    fn roll_back_to(&mut self, name: &str) {
        self.failed = false;
        if !self.unclear {
            self.entries.truncate(self.position(name).map_or(0, |at| at + 1));
        }
    }

    /// All of it is undone. Whether there was anything.
    pub(super) fn roll_back(&mut self) -> bool {
        let undone = !self.entries.is_empty();
        *self = Self { kept: std::mem::take(&mut self.kept), ..Self::default() };
        undone
    }

    /// A statement has failed: the transaction is to be rolled back, at least to a savepoint.
    pub(super) fn fail(&mut self) {
        self.failed = true;
    }

    /// A COMMIT, behind which another transaction may follow without a break. A RESET waits for the end of them all: from there
    /// on its client has the settings of its login again, and what the server says before that is of its own.
    pub(super) fn commit(&mut self) -> Settled {
        match self.settle() {
            Settled::Kept(changes) if self.kept.len() + changes.len() > 2 * ENTRIES_MAX => Settled::Unclear,
            Settled::Kept(changes) if !self.kept.is_empty() || changes.iter().any(SessionChange::is_reset) => {
                changes.into_iter().for_each(|change| self.keep(change));
                Settled::Nothing
            }
            settled => settled,
        }
    }

    /// Only the last change of a parameter counts.
    fn keep(&mut self, change: SessionChange) {
        match change.parameter() {
            Some(name) => self.kept.retain(|before| before.parameter() != Some(name)),
            None => self.kept.clear(),
        }
        self.kept.push(change);
    }

    /// What COMMITs have kept that waits for the end of a chain.
    pub(super) fn take_kept(&mut self) -> Vec<SessionChange> {
        std::mem::take(&mut self.kept)
    }

    /// The transaction has ended otherwise than by a ROLLBACK.
    pub(super) fn settle(&mut self) -> Settled {
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
            Entry::Change(SessionChange::Sets(sets)) => sets,
            Entry::Change(change) => vec![change],
            Entry::Savepoint(..) => Vec::new(),
        };
        Settled::Kept(entries.into_iter().flat_map(changes).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of `a`, `b` ... set one after another between these statements.
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
    fn what_a_savepoint_keeps_is_kept() {
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
    fn several_sets_come_out_one_by_one_and_once() {
        let set = |name: &str| SessionChange::Set { name: name.to_owned(), value: None };
        let mut pending = PendingChanges::default();
        for _ in 0..3 {
            pending.note(SessionChange::Sets(vec![set("a"), set("b")]));
        }
        pending.note(set("a"));
        assert_eq!(pending.settle(), Settled::Kept(vec![set("a"), set("b"), set("a")]));
    }

    #[test]
    fn what_is_kept_behind_a_reset_waits_for_the_end_of_the_chain() {
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
    fn a_transaction_without_end_is_not_followed_for_ever() {
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
    fn a_chain_without_end_is_not_followed_for_ever() {
        let mut pending = PendingChanges::default();
        let mut chain = (0..ENTRIES_MAX * 4).map(|number| {
            pending.note(SessionChange::Reset(number.to_string()));
            pending.commit()
        });
        assert!(chain.any(|settled| settled == Settled::Unclear));
    }
}
