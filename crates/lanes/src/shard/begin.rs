//! What a key begins when it has its turn: its first record, or the first few of them.

use std::mem;

use super::flights::Kind;
use super::keys::State;
use super::{Records, Shard, Start};
use crate::moment::Moment;
use crate::slab::NONE;

impl Shard {
    /// Begins the first record of a key, or its burial.
    pub(super) fn begin(&mut self, key: u32, now: Moment) -> Start {
        let head = self.keys.get(key).head;
        let verdict = self.verdicts.get(&head).map(|verdict| verdict.failure.clone());
        let kind = if verdict.is_some() { Kind::Bury } else { Kind::Run };
        let records = self.take_records(key, head, kind);
        let item = &mut self.items[head];
        let waited = now.since(item.arrived.into());
        if kind == Kind::Run {
            item.attempts = item.attempts.saturating_add(1);
            self.tally.wait.note(waited);
        }
        let attempt = u32::from(item.attempts);
        let ticket = self.flights.begin(head, key, kind, now);
        if !self.leavers.is_empty() && self.is_leaving(&self.items[head].record) {
            self.flights.get(ticket).into_iter().for_each(|flight| flight.is_leaving = true);
        }
        let key = self.keys.get(key);
        (key.state, key.flight) = (State::Running, ticket.flight);
        Start { ticket, records, attempt, bury: verdict }
    }

    /// Takes the first record of the key off its queue, or the first few.
    fn take_records(&mut self, key: u32, head: u32, kind: Kind) -> Records {
        let is_fresh = kind == Kind::Run && self.items[head].attempts == 0;
        let more = if is_fresh { self.policy.batch_max.min(1 + self.left_of_quota(key)) } else { 1 };
        let mut last = head;
        let mut count = 1;
        while count < more as u32 && self.belongs(head, self.items[last].next) {
            last = self.items[last].next;
            count += 1;
        }
        let rest = mem::replace(&mut self.items[last].next, NONE);
        let key = self.keys.get(key);
        key.head = rest;
        key.len -= count;
        if self.policy.quota.is_some() {
            // The first one is counted.
            key.started += count as u16 - 1;
        }
        if rest == NONE {
            key.tail = NONE;
        }
        if self.policy.batch_max == 1 || kind == Kind::Bury {
            return Records::One(self.items[head].record.clone());
        }
        Records::Many(self.chain(head).into_iter().map(|item| self.items[item].record.clone()).collect())
    }

    /// May it run in one batch with `head`?
    fn belongs(&self, head: u32, other: u32) -> bool {
        other != NONE && (self.leavers.is_empty() || self.is_reached(other)) && {
            let (head, other) = (&self.items[head], &self.items[other]);
            other.attempts == 0 && other.record.damage().is_none() && other.record.epoch() == head.record.epoch()
        }
    }

    pub(super) fn chain(&self, head: u32) -> Vec<u32> {
        let next = |item: &u32| Some(self.items[*item].next).filter(|next| *next != NONE);
        std::iter::successors(Some(head), next).collect()
    }
}
