//! Commands of operators: PAUSE, SUSPEND, RESUME, and changes of the phase.

use tidegate_config::Dialect;

use super::{Gateway, Phase};

impl Gateway {
    /// PAUSE: leases no further server connection of a database (or of any), and closes idle ones. Leased connections stay
    /// until released.
    pub fn pause(&self, database: Option<&str>) {
        match database {
            Some(name) => drop(self.lifecycle.orders().paused.insert(name.to_owned())),
            None => drop(self.change_phase(|phase| if phase.goes_on() { Phase::Paused } else { phase })),
        }
        self.follow_orders();
    }

    /// SUSPEND: as [`Gateway::pause`], but closes nothing, and stops reading from clients that hold a server connection.
    pub fn suspend(&self) {
        self.change_phase(|phase| if phase.goes_on() { Phase::Suspended } else { phase });
        self.follow_orders();
    }

    /// RESUME: undoes [`Gateway::pause`] and [`Gateway::suspend`]. Without a name it resumes every database.
    pub fn resume(&self, database: Option<&str>) {
        match database {
            Some(name) => drop(self.lifecycle.orders().paused.remove(name)),
            None => {
                self.change_phase(|phase| if phase.holds_all() { Phase::Active } else { phase });
                let mut orders = self.lifecycle.orders();
                orders.paused.clear();
                orders.all_held = false;
            }
        }
        self.follow_orders();
    }

    /// Undoes a pause of all databases, but not of single ones. Returns whether there was one.
    pub fn lift(&self) -> bool {
        let mut held = false;
        self.change_phase(|phase| {
            held = phase.holds_all();
            if held { Phase::Active } else { phase }
        });
        if held {
            self.follow_orders();
        }
        held
    }

    /// Leases no further server connection until the end of the process, and ends the waits of clients.
    pub fn drain(&self) {
        if !self.lifecycle.set_draining() {
            self.follow_orders();
            self.threads.wake_clients();
        }
    }

    /// Number of server connections in use, except those of replication clients, which end with the process: a stream does not
    /// end by itself, and is continued from its confirmed position.
    #[must_use]
    pub fn servers_in_use(&self) -> usize {
        let counts = self.pools.all().into_iter().map(|shared| shared.pool.counts());
        counts.map(|counts| counts.active + counts.cleaning).sum()
    }

    /// Changes the phase, given the current one. Returns the new phase.
    pub fn change_phase(&self, next: impl FnOnce(Phase) -> Phase) -> Phase {
        let mut phase = self.lifecycle.lock_phase();
        let (before, now) = (*phase, next(*phase));
        if before.holds_all() && !now.goes_on() {
            self.lifecycle.orders().all_held = true;
        }
        *phase = now;
        drop(phase);
        self.lifecycle.phase_changed.notify_one();
        if before != now && (before == Phase::Suspended || now == Phase::Suspended) {
            self.threads.follow_phase();
        }
        // Before the reply to the operator: no idle client gets a server after it. Streams are clients, and end first.
        let config = &self.config.setup().config;
        let is_pgbouncer = config.listen.dialect == Dialect::Pgbouncer;
        if now == Phase::WaitingForTransactions && is_pgbouncer && config.streams.is_empty() {
            self.drain();
        }
        now
    }

    /// Whether the process ends immediately in place of PgBouncer, which closes the connections without an error. A shutdown that
    /// has waited for all servers sends an error to the clients that are left.
    pub(crate) fn exits_like_pgbouncer(&self) -> bool {
        let has_waited = || self.lifecycle.is_draining() && self.servers_in_use() == 0;
        let is_pgbouncer = self.config.setup().config.listen.dialect == Dialect::Pgbouncer;
        self.lifecycle.phase() == Phase::Stopping && is_pgbouncer && !has_waited()
    }

    /// Pools created later check the orders themselves, under the lock of the pools.
    fn follow_orders(&self) {
        for shared in self.pools.all() {
            match (self.lifecycle.is_paused(&shared.key.database), shared.pool.is_paused()) {
                (true, false) => {
                    shared.pool.pause();
                    if self.lifecycle.phase() != Phase::Suspended {
                        shared.close_for_pause();
                    }
                }
                (false, true) => shared.pool.resume(),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use tidegate_config::Config;
    use tidegate_pg_client::resolve::Resolver;

    use crate::plane::{PoolKey, Setup, Workers};

    fn with_gateway(test: impl AsyncFnOnce(Arc<Gateway>)) {
        let control = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let config = Config::from_url("postgres://db.example/shop").unwrap();
        let resolver = Resolver::new(control.handle().clone());
        let gateway = Gateway::new(Setup::new(config).unwrap(), Arc::new(Workers::new(1)), resolver).unwrap();
        control.block_on(test(Arc::new(gateway)));
    }

    #[test]
    fn a_pause_holds_for_pools_made_before_and_after() {
        with_gateway(async |gateway| {
            let before = gateway.pool("shop", "a").unwrap();
            gateway.pause(Some("shop"));
            let after = gateway.pool("shop", "b").unwrap();
            assert!(before.pool.is_paused() && after.pool.is_paused());
            assert_eq!(gateway.lifecycle.phase(), Phase::Active);
            gateway.resume(Some("shop"));
            assert!(!before.pool.is_paused() && !after.pool.is_paused());
        });
    }

    #[test]
    fn resuming_everything_ends_every_pause() {
        with_gateway(async |gateway| {
            let shared = gateway.pool("shop", "a").unwrap();
            gateway.pause(Some("shop"));
            gateway.pause(None);
            assert_eq!(gateway.lifecycle.phase(), Phase::Paused);
            gateway.resume(None);
            assert_eq!(gateway.lifecycle.phase(), Phase::Active);
            assert!(!shared.pool.is_paused() && !gateway.lifecycle.is_paused("shop"));
        });
    }

    #[test]
    fn resuming_does_not_call_a_shutdown_off() {
        with_gateway(async |gateway| {
            gateway.change_phase(|_| Phase::WaitingForClients);
            gateway.resume(None);
            assert_eq!(gateway.lifecycle.phase(), Phase::WaitingForClients);
        });
    }

    #[test]
    fn a_shutdown_does_not_end_a_pause_by_halves() {
        with_gateway(async |gateway| {
            let before = gateway.pool("shop", "a").unwrap();
            gateway.pause(None);
            gateway.change_phase(|_| Phase::WaitingForClients);
            let after = gateway.pool("shop", "b").unwrap();
            assert!(before.pool.is_paused() && after.pool.is_paused() && gateway.lifecycle.is_paused("shop"));
            gateway.resume(None);
            assert!(!before.pool.is_paused() && !after.pool.is_paused() && !gateway.lifecycle.is_paused("shop"));
            assert_eq!(gateway.lifecycle.phase(), Phase::WaitingForClients);
        });
    }

    #[test]
    fn late_pause_does_not_cancel_a_shutdown() {
        with_gateway(async |gateway| {
            gateway.change_phase(|_| Phase::WaitingForClients);
            gateway.pause(None);
            gateway.suspend();
            assert_eq!(gateway.lifecycle.phase(), Phase::WaitingForClients);
        });
    }

    #[test]
    fn pool_created_during_reload_gets_new_settings() {
        let setup = |url: &str| Setup::new(Config::from_url(url).unwrap()).unwrap();
        with_gateway(async |gateway| {
            // A login has read the configuration; the reload comes before it creates its pool.
            let old = gateway.config.setup();
            gateway.replace_setup(setup("postgres://other.example/shop"));
            let pool = gateway.pool_of(PoolKey::new("shop", "a"), &old).unwrap();
            assert_eq!(pool.plan().hosts, gateway.config.setup().config.pool_for("shop", "a").unwrap().hosts);
            let old = gateway.config.setup();
            gateway.replace_setup(setup("postgres://other.example/books"));
            assert!(gateway.pool_of(PoolKey::new("shop", "b"), &old).is_none(), "there is no such database any more");
            assert!(gateway.pools.all().is_empty());
        });
    }

    #[test]
    fn a_disabled_database_has_no_pool_for_newcomers() {
        with_gateway(async |gateway| {
            gateway.lifecycle.disable("shop");
            assert!(gateway.pool("shop", "a").is_none());
            gateway.lifecycle.enable("shop");
            assert!(gateway.pool("shop", "a").is_some());
        });
    }

    #[test]
    fn reload_returns_its_outcome() {
        with_gateway(async |gateway| {
            let mut requests = gateway.config.take_reloads().unwrap();
            assert!(gateway.config.take_reloads().is_none());
            let answer = async { requests.recv().await.unwrap().send(Err("no such file".to_owned())) };
            let (outcome, _) = tokio::join!(gateway.config.reload(), answer);
            assert_eq!(outcome, Err("no such file".to_owned()));
            drop(requests);
            assert!(gateway.config.reload().await.is_err(), "the reload queue is closed");
        });
    }
}
