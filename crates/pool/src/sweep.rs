//! What is done about once a second: old connections go, missing ones are opened.

use std::{rc::Rc, sync::atomic::Ordering::Relaxed, time::Instant};

use crate::{Connection, Limits, Retirement, backoff::Seeker, board::Stamp, held::Held, local::Inner};

impl<C: Connection> Inner<C> {
    pub(crate) fn sweep(self: &Rc<Self>, now: Instant) {
        self.observe(now);
        self.retire_idle(&self.limits());
        self.serve(now);
        self.open_reserve();
        self.open_min();
    }

    fn retire_idle(self: &Rc<Self>, limits: &Limits) {
        let (found, mut kept) = (self.idle.take(), Vec::new());
        for mut held in found {
            match self.stays_idle(&mut held, limits) {
                Ok(()) => kept.push(held),
                Err(why) => self.retire(&held, why),
            }
        }
        let mut idle = self.idle.borrow_mut();
        // A connection that was put down while others were closed is the warmest.
        kept.append(&mut idle);
        *idle = kept;
        self.pool.board.publish_idle(self.core, idle.len());
    }

    fn stays_idle(&self, held: &mut Held<C>, limits: &Limits) -> Result<(), Retirement> {
        self.usable(held)?;
        let since = held.record.released.unwrap_or(held.record.born);
        let idle = self.now().saturating_duration_since(since);
        let too_long = limits.idle_timeout.is_some_and(|timeout| idle >= timeout);
        let (keep, why) = match too_long {
            true => (limits.min.min(limits.size), Retirement::Idle),
            false => (limits.size, Retirement::Surplus),
        };
        if held.record.permit.shed(keep) { Err(why) } else { Ok(()) }
    }

    /// Closes the connection that was put down first, if any is idle still.
    pub(crate) fn evict_one(self: &Rc<Self>) {
        let mut idle = self.idle.borrow_mut();
        if idle.is_empty() {
            return;
        }
        let coldest = idle.remove(0);
        self.pool.board.publish_taken(self.core, idle.len());
        drop(idle);
        // Outside of the borrow: closing runs the connection's own code.
        self.retire(&coldest, Retirement::Surplus);
    }

    /// Connections beyond `size` for clients who have waited longer than `reserve_after`.
    fn open_reserve(self: &Rc<Self>) {
        let limits = self.limits();
        if limits.reserve == 0 || !self.granting() {
            return;
        }
        let now = self.pool.stamp(self.now());
        let Some(since) = now.checked_sub(limits.reserve_after.as_nanos() as Stamp) else {
            return;
        };
        let overdue = self.waiting_since(since, limits.reserve);
        let coming = self.line().coming() + self.line().connecting.load(Relaxed);
        for _ in coming..overdue {
            if self.is_backing_off(self.pool.client()) || !self.connect(limits.size + limits.reserve) {
                return;
            }
        }
    }

    /// Connections nobody has asked for yet.
    pub(crate) fn open_min(self: &Rc<Self>) {
        let limits = self.limits();
        while self.granting() && self.pool.permits.open() < limits.min.min(limits.size) {
            if self.is_backing_off(Seeker::Nobody) || !self.connect(limits.min.min(limits.size)) {
                return;
            }
        }
    }
}
