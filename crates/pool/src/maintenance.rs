//! Periodic work of one core: closes old connections, opens missing ones.

use std::{rc::Rc, sync::atomic::Ordering::Relaxed, time::Instant};

use crate::{
    CloseReason, Connection, Limits, connect_backoff::ConnectDemand, core_pool::CorePool, core_table::pool_time,
    pooled::PooledConnection,
};

impl<C: Connection> CorePool<C> {
    pub(crate) fn maintain(self: &Rc<Self>, now: Instant) {
        self.refresh(now);
        self.close_idle(&self.limits());
        self.serve(now);
        self.open_reserve();
        self.open_min();
    }

    fn close_idle(self: &Rc<Self>, limits: &Limits) {
        let (found, mut kept) = (self.idle.take(), Vec::new());
        for mut connection in found {
            match self.check_idle(&mut connection, limits) {
                Ok(()) => kept.push(connection),
                Err(reason) => self.report_closing(&connection, reason),
            }
        }
        let mut idle = self.idle.borrow_mut();
        // A connection that was released while others were closed is the most recently used.
        kept.append(&mut idle);
        *idle = kept;
        self.pool.core_table.publish_idle(self.core, idle.len());
    }

    /// Closes the idle connections that a [`Pool::reconnect`](crate::Pool::reconnect) has replaced, once per call of it. Does not
    /// wait for [`maintain`](Self::maintain): an operator who changed certificates expects the old connections to be gone.
    pub(crate) fn close_replaced(self: &Rc<Self>) {
        let generation = self.generation();
        if self.swept_generation.replace(generation) == generation {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        let replaced: Vec<_> = idle.extract_if(.., |connection| connection.record.generation != generation).collect();
        self.pool.core_table.publish_taken(self.core, idle.len());
        drop(idle);
        // After the borrow ends: closing runs the connection's code.
        for connection in replaced {
            self.report_closing(&connection, CloseReason::Replaced);
        }
    }

    fn check_idle(&self, connection: &mut PooledConnection<C>, limits: &Limits) -> Result<(), CloseReason> {
        self.check_usable(connection)?;
        let since = connection.record.released_at.unwrap_or(connection.record.opened_at);
        let idle_for = self.now().saturating_duration_since(since);
        let timed_out = limits.idle_timeout.is_some_and(|timeout| idle_for >= timeout);
        let (keep, reason) = match timed_out {
            true => (limits.min.min(limits.size), CloseReason::IdleTimeout),
            false => (limits.size, CloseReason::Surplus),
        };
        if connection.record.permit.release_above(keep) { Err(reason) } else { Ok(()) }
    }

    /// Closes the connection that has been idle for longest, if any is idle.
    pub(crate) fn evict_one(self: &Rc<Self>) {
        let mut idle = self.idle.borrow_mut();
        if idle.is_empty() {
            return;
        }
        let coldest = idle.remove(0);
        self.pool.core_table.publish_taken(self.core, idle.len());
        drop(idle);
        // After the borrow ends: closing runs the connection's code.
        self.report_closing(&coldest, CloseReason::Surplus);
    }

    /// Opens connections beyond `size` for clients that have waited longer than `reserve_after`.
    fn open_reserve(self: &Rc<Self>) {
        let limits = self.limits();
        if limits.reserve == 0 || !self.granting() {
            return;
        }
        let now = self.pool.pool_time(self.now());
        let Some(since) = now.checked_sub(pool_time(limits.reserve_after)) else {
            return;
        };
        let overdue = self.waiting_since(since, limits.reserve);
        let expected = self.status().incoming() + self.status().connecting.load(Relaxed);
        for _ in expected..overdue {
            if self.is_backing_off(self.pool.client_demand()) || !self.connect(limits.open_max()) {
                return;
            }
        }
    }

    /// Opens connections up to `min`, without demand.
    pub(crate) fn open_min(self: &Rc<Self>) {
        let limits = self.limits();
        while self.granting() && self.pool.open() < limits.min.min(limits.size) {
            if self.is_backing_off(ConnectDemand::Minimum) || !self.connect(limits.min.min(limits.size)) {
                return;
            }
        }
    }
}
