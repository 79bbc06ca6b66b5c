//! The brake on failed logins, and the limit of clients of one address.

use std::net::IpAddr;

use tidegate_link::PeerAddress;
use tidegate_supervise::Ctx;

use super::{Arriving, LoginError, admission::while_there, packet::Request};
use tidegate_config::AdminConfig;

use crate::{error::Cause, plane::FailedLoginRules};

/// Connections of an address that may be without a login in any case.
const ARRIVALS_MIN: u32 = 8;

impl Arriving {
    fn ip(&self) -> Option<IpAddr> {
        match self.peer {
            PeerAddress::Tcp(address) => Some(address.ip()),
            PeerAddress::Unix => None,
        }
    }

    fn rules(&self) -> FailedLoginRules {
        FailedLoginRules::of(&self.worker.gateway.config.setup().config.auth)
    }

    /// Waits for the client's turn, once, before anything that costs much is done for it: TLS, or a check of a password.
    pub(super) async fn await_turn(&mut self) -> Result<(), LoginError> {
        if std::mem::replace(&mut self.is_admitted, true) {
            return Ok(());
        }
        let Some(ip) = self.ip() else { return Ok(()) };
        let now = self.worker.reactor.now();
        let Some(wait) = self.worker.gateway.clients.failed_logins.begin(ip, self.rules(), now) else {
            return Err(self.cause(Cause::FailedLogins));
        };
        if wait.is_zero() {
            return Ok(());
        }
        self.worker.reactor.sleep(wait).await;
        Ok(())
    }

    /// Tells the client why it is not let in, late if it did not prove who it is, and gives the reason back for the log.
    pub(super) async fn turn_away(&mut self, error: LoginError, ctx: &Ctx) -> LoginError {
        if matches!(error, LoginError::Denied(_)) {
            // A stop does not wait for it.
            let _ = ctx.run_until_cancelled(self.delay_denial()).await;
        }
        self.refuse(error).await
    }

    /// Notes that the client did not prove who it is, and waits until it may be told. The time since its answer counts, so that
    /// nothing is learnt of how long the check took.
    async fn delay_denial(&mut self) {
        let worker = self.worker.clone();
        let now = worker.reactor.now();
        let user = self.asked.as_ref().map_or("", |(user, _)| user);
        let delay = worker.gateway.clients.failed_logins.fail(self.ip(), user, self.rules(), now);
        let until = self.answered_at.unwrap_or(now) + delay;
        let rest = until.saturating_duration_since(now);
        if !rest.is_zero() {
            let sleep = worker.reactor.sleep(rest);
            while_there(&mut self.link, &mut self.bytes, sleep).await;
        }
    }

    /// Counts the connection among those of its address that have not logged in yet, if clients of an address have a limit. There
    /// may be as many of them as clients, and some in any case: for cancel requests, and for the console.
    pub(super) fn count_arrival(&mut self) -> Result<(), LoginError> {
        let max = self.worker.gateway.config.setup().config.listen.max_clients_per_address;
        let (false, Some(ip)) = (max == 0, self.ip()) else { return Ok(()) };
        match self.worker.gateway.clients.admit_arrival(ip, max.max(ARRIVALS_MIN)) {
            Some(share) => {
                self.arrival = Some(share);
                Ok(())
            }
            None => Err(self.cause(Cause::AddressClients)),
        }
    }

    /// Counts the client among those of its address, if there is a limit for them.
    pub(super) fn count_address(&mut self, request: &Request) -> Result<(), LoginError> {
        let max = self.worker.gateway.config.setup().config.listen.max_clients_per_address;
        let to_console = AdminConfig::CONSOLE_DATABASES.contains(&request.database.as_str());
        let (false, Some(ip)) = (max == 0 || to_console, self.ip()) else { return Ok(()) };
        match self.worker.gateway.clients.admit_address(ip, max) {
            Some(share) => {
                self.address = Some(share);
                Ok(())
            }
            None => Err(self.cause(Cause::AddressClients)),
        }
    }
}
