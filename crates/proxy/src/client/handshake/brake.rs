//! The delay after failed logins, and the limit of clients per address.

use std::net::IpAddr;

use tidegate_link::PeerAddress;
use tidegate_supervise::Ctx;

use super::{Arriving, LoginError, admission::while_there, packet::Request};
use tidegate_config::AdminConfig;

use crate::{error::Cause, plane::FailedLoginRules};

/// Minimum number of connections per address before login.
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

    /// Waits for the failed-login delay of the address, once, before expensive work: TLS, or a password check.
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

    /// Sends the refusal to the client, delayed after an authentication failure, and returns the error for the log.
    pub(super) async fn turn_away(&mut self, error: LoginError, ctx: &Ctx) -> LoginError {
        if matches!(error, LoginError::Denied(_)) {
            // Shutdown skips the delay.
            let _ = ctx.run_until_cancelled(self.delay_denial()).await;
        }
        self.refuse(error).await
    }

    /// Records the failed login and waits for its delay. The delay counts from the client's last message, so that it hides
    /// the duration of the check.
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

    /// Counts the connection among those of its address before login, if clients per address are limited. The limit is that
    /// of clients, but at least `ARRIVALS_MIN`, for cancel requests and the console.
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

    /// Counts the client in the limit of its address, if there is one.
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
