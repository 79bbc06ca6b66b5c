//! Transactions that were routed recently, to find those that a snapshot should have and does not (SH-05).

use std::collections::VecDeque;

use crate::row_form::TransactionSnapshot;

/// A commit is decoded before it is visible for milliseconds, or as long as a synchronous standby takes.
const KEPT_MAX: usize = 1 << 16;

/// Numbers commits and keeps the last ones.
#[derive(Debug, Default)]
pub(super) struct RecentCommits {
    xids: VecDeque<u64>,
    next: u64,
}

impl RecentCommits {
    /// The number of the next commit.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn push(&mut self, xid: u64) {
        if self.xids.len() == KEPT_MAX {
            self.xids.pop_front();
        }
        self.xids.push_back(xid);
        self.next += 1;
    }

    /// Whether a commit before number `before` is not in the snapshot.
    pub(super) fn any_unseen(&self, before: u64, snapshot: &TransactionSnapshot) -> bool {
        let kept = self.xids.len() as u64;
        let first = self.next - kept;
        let count = usize::try_from(before.saturating_sub(first)).unwrap_or(usize::MAX);
        self.xids.iter().take(count).any(|xid| !snapshot.sees(*xid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SH-05.
    #[test]
    fn commit_that_the_snapshot_misses_is_found() {
        let mut recent = RecentCommits::default();
        [10, 12, 11].into_iter().for_each(|xid| recent.push(xid));
        let registered_at = recent.next();
        recent.push(13);
        let snapshot = |xmin, xmax, xip: &[u64]| TransactionSnapshot { xmin, xmax, xip: xip.to_vec() };
        assert!(!recent.any_unseen(registered_at, &snapshot(13, 13, &[])));
        assert!(recent.any_unseen(registered_at, &snapshot(12, 13, &[12])), "in progress for the snapshot");
        assert!(recent.any_unseen(registered_at, &snapshot(12, 12, &[])), "not yet assigned for the snapshot");
        assert!(!recent.any_unseen(registered_at, &snapshot(13, 14, &[13])), "routed after the registration");
    }

    #[test]
    fn number_of_kept_commits_is_bounded() {
        let mut recent = RecentCommits::default();
        (0..KEPT_MAX as u64 + 10).for_each(|xid| recent.push(xid));
        assert_eq!((recent.xids.len(), recent.next()), (KEPT_MAX, KEPT_MAX as u64 + 10));
        let snapshot = TransactionSnapshot { xmin: 11, xmax: 11, xip: Vec::new() };
        assert!(!recent.any_unseen(11, &snapshot), "forgotten");
        assert!(recent.any_unseen(12, &snapshot));
    }
}
