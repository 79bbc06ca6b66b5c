//! What is done about once a second: old connections go, missing ones are opened.

use std::{rc::Rc, sync::atomic::Ordering::Relaxed, time::Instant};

use crate::{Connection, Limits, board::Stamp, held::Held, local::Inner};

impl<C: Connection> Inner<C> {
    pub(crate) fn sweep(self: &Rc<Self>, now: Instant) {
        self.observe(now);
        self.retire_idle(&self.limits());
        self.serve(now);
        self.open_reserve();
        self.open_min();
    }

    fn retire_idle(self: &Rc<Self>, limits: &Limits) {
        let mut kept = self.idle.take();
        kept.retain_mut(|held| self.stays_idle(held, limits));
        let mut idle = self.idle.borrow_mut();
        // A connection that was put down while others were closed is the warmest.
        kept.append(&mut idle);
        *idle = kept;
        self.pool.board.publish_idle(self.core, idle.len());
    }

    fn stays_idle(&self, held: &mut Held<C>, limits: &Limits) -> bool {
        if !self.is_current(held) || !held.conn.is_usable() {
            return false;
        }
        let since = held.record.released.unwrap_or(held.record.born);
        let idle = self.now().saturating_duration_since(since);
        let too_long = limits.idle_timeout.is_some_and(|timeout| idle >= timeout);
        let keep = if too_long { limits.min.min(limits.size) } else { limits.size };
        !held.record.permit.shed(keep)
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
        drop(coldest);
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
            if self.is_backing_off() || !self.connect(limits.size + limits.reserve) {
                return;
            }
        }
    }

    /// Connections nobody has asked for yet.
    pub(crate) fn open_min(self: &Rc<Self>) {
        let limits = self.limits();
        while self.granting() && self.pool.permits.open() < limits.min.min(limits.size) {
            if self.is_backing_off() || !self.connect(limits.min.min(limits.size)) {
                return;
            }
        }
    }
}
