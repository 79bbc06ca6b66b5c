//! What most exchanges are: a single query, kept without a book.
//!
//! An item holds all of it. Whatever does not fit, such as a second query before the first is over, makes the ledger open a
//! book and move what is here into it, so what is written down is the same.

use std::time::Instant;

use super::item::{Item, Said};

/// How far a lone query has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// There is none, or it is written down.
    Vacant,
    /// The unnamed statement is prepared, and not bound yet.
    Parsed,
    /// The unnamed portal is bound, and not executed yet.
    Bound,
    /// It is under way.
    Asked,
    /// It is over, and not written down yet, as the Sync may fail.
    Over,
}

/// The only query under way, or the last one.
#[derive(Debug)]
pub(super) struct Lone {
    pub(super) item: Box<Item>,
    step: Step,
    /// Its text is the unnamed statement's.
    says_parsed: bool,
    /// It is what the unnamed portal is bound to.
    says_portal: bool,
    /// It was bound.
    was_bound: bool,
}

impl Lone {
    /// There is none yet, but a place for it.
    pub(super) fn new(item: Box<Item>) -> Self {
        Self { item, step: Step::Vacant, says_parsed: false, says_portal: false, was_bound: false }
    }

    /// Whether a simple query may be the next one. It leaves no unnamed statement and no unnamed portal behind.
    pub(super) fn takes_query(&self) -> bool {
        self.step == Step::Vacant
    }

    /// Whether a Parse without a name may begin the next one: not if a portal would lose its text.
    pub(super) fn takes_parse(&self) -> bool {
        self.step == Step::Vacant && !self.says_portal
    }

    /// Whether a Bind may: not if the unnamed statement would lose its text to another.
    pub(super) fn takes_bind(&self, is_named: bool) -> bool {
        self.step == Step::Vacant && !(self.says_parsed && is_named)
    }

    pub(super) fn is_parsed(&self) -> bool {
        self.step == Step::Parsed
    }

    pub(super) fn is_bound(&self) -> bool {
        self.step == Step::Bound
    }

    pub(super) fn step(&self) -> Step {
        self.step
    }

    pub(super) fn says_parsed(&self) -> bool {
        self.says_parsed
    }

    pub(super) fn says_portal(&self) -> bool {
        self.says_portal
    }

    pub(super) fn was_bound(&self) -> bool {
        self.was_bound
    }

    /// The transaction is over, and its portal with it; one that is bound already is the next transaction's.
    pub(super) fn end_transaction(&mut self) {
        self.says_portal &= self.step != Step::Vacant;
    }

    /// The next one begins: space for what it says.
    pub(super) fn begin(&mut self, now: Instant) -> &mut Said {
        (self.says_parsed, self.says_portal, self.was_bound) = (false, false, false);
        self.item.fall_silent();
        self.item.reset(now);
        self.item.say()
    }

    /// What it says, to be completed.
    pub(super) fn said(&mut self) -> &mut Said {
        self.item.own_said()
    }

    pub(super) fn note_parse(&mut self) {
        (self.step, self.says_parsed) = (Step::Parsed, true);
    }

    pub(super) fn note_bind(&mut self) {
        (self.step, self.says_portal, self.was_bound) = (Step::Bound, true, true);
    }

    pub(super) fn ask(&mut self, now: Instant) -> &mut Item {
        self.step = Step::Asked;
        self.item.begin(now);
        &mut self.item
    }

    pub(super) fn under_way(&mut self) -> Option<&mut Box<Item>> {
        (self.step == Step::Asked).then_some(&mut self.item)
    }

    /// It is over, if it was under way.
    #[inline]
    pub(super) fn end(&mut self) -> Option<&mut Item> {
        if self.step != Step::Asked {
            return None;
        }
        self.step = Step::Over;
        Some(&mut self.item)
    }

    pub(super) fn over(&mut self) -> Option<&mut Item> {
        (self.step == Step::Over).then_some(&mut self.item)
    }

    /// It is to be written down, if it is over. What it said stays, as a portal does.
    pub(super) fn write_down(&mut self) -> Option<&mut Item> {
        if self.step != Step::Over {
            return None;
        }
        self.step = Step::Vacant;
        Some(&mut self.item)
    }

    pub(super) fn into_item(self) -> Box<Item> {
        self.item
    }
}

#[cfg(test)]
mod tests;
