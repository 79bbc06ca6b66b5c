//! Authentication of a client: by an HBA rule, its peer process, or a configured or looked-up secret.

use tidegate_link::PeerAddress;

use super::{Arriving, LoginError, packet::Request};
use tidegate_config::{
    AdminConfig, AuthMethod, UserLookup, UserSecret,
    hba::{self, CertificateCheck, CertificateName, HbaAction, HbaClient},
};
use tidegate_tls as tls;

use crate::{
    client::{auth::Login, lookup},
    error::Cause,
    plane::Setup,
};

impl Arriving {
    /// As in PgBouncer, the gateway's OS user logs in to the console without a password, under the console's own name.
    pub(super) fn is_own_process(&self, request: &Request) -> bool {
        let to_console = AdminConfig::CONSOLE_DATABASES.contains(&request.database.as_str());
        let own = self.process.is_some_and(|process| process.uid == rustix::process::geteuid());
        to_console && own && AdminConfig::CONSOLE_DATABASES.contains(&request.user.as_str())
    }

    pub(super) async fn authenticate(&mut self, setup: &Setup, request: &Request) -> Result<(), LoginError> {
        let mut ldap = None;
        let (method, certificate) = match self.hba_action(setup, request)? {
            HbaAction::Method(method) => (method, None),
            HbaAction::Ldap(options) => {
                ldap = Some(options);
                (AuthMethod::Ldap, None)
            }
            HbaAction::Certified(method, certificate) => (method, Some(certificate)),
            HbaAction::Peer(map) => return Box::pin(self.check_peer(setup, request, map.as_deref())).await,
            HbaAction::Reject => return Err(self.denied(Cause::Rejected)),
        };
        if let Some(required) = &certificate {
            self.check_certificate(setup, request, required)?;
        }
        let Found { known, secret, is_looked_up, is_missing } = match method {
            // These services have their own users.
            AuthMethod::Pam | AuthMethod::Ldap => Found { known: true, ..Found::default() },
            _ => self.secret(setup, request, method).await?,
        };
        if !known && !setup.config.auth.strangers {
            match method {
                AuthMethod::Trust if is_missing => return Err(self.denied(Cause::NoSuchUser)),
                AuthMethod::Trust => return Err(self.denied(Cause::Stranger)),
                AuthMethod::Cert => return Err(self.certificate_refused(Cause::NoUser)),
                _ => {}
            }
        }
        if method.needs_no_challenge() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.bytes);
        let (gateway, end_point) = (self.worker.gateway.clone(), self.end_point.clone());
        let (link, user, end_point) = (&mut self.link, request.user.as_str(), end_point.as_deref());
        let entry = setup.config.database(&request.database).map_or("", |(entry, _)| entry);
        let (gateway, peer) = (&gateway, self.peer);
        let answered_at = None;
        let mut login =
            Login { gateway, link, user, peer, entry, secret, is_looked_up, ldap, end_point, bytes, answered_at };
        let outcome = Box::pin(login.authenticate(method)).await;
        let (answered_at, bytes) = (login.answered_at, std::mem::take(&mut login.bytes));
        self.answered_at = answered_at;
        self.bytes = bytes;
        outcome
    }

    /// The HBA action for the client.
    fn hba_action(&self, setup: &Setup, request: &Request) -> Result<HbaAction, LoginError> {
        if let Some(ldap) = &setup.ldap {
            return Ok(HbaAction::Ldap(ldap.clone()));
        }
        let Some(rules) = &setup.hba else { return Ok(HbaAction::of(setup.config.auth.method)) };
        let ip = match self.peer {
            PeerAddress::Tcp(address) => Some(address.ip()),
            PeerAddress::Unix => None,
        };
        let physical = request.replication.as_deref().is_some_and(|mode| !mode.eq_ignore_ascii_case(b"database"));
        // The console has two database names; HBA rules use one of them.
        let is_console = AdminConfig::CONSOLE_DATABASES.contains(&request.database.as_str());
        let database = if is_console { AdminConfig::name(setup.config.listen.dialect) } else { &request.database };
        let user = request.user.as_str();
        let client = HbaClient { ip, tls: self.link.is_tls(), replication: physical, database, user };
        rules.action_for(&client).cloned().ok_or_else(|| self.denied(Cause::NoRule))
    }

    /// Checks the client certificate against the rule. TLS has already verified its authority.
    fn check_certificate(
        &self,
        setup: &Setup,
        request: &Request,
        required: &CertificateCheck,
    ) -> Result<(), LoginError> {
        let Some(info) = self.link.tls_info() else { return Err(self.certificate_refused(Cause::NoTls)) };
        let Some(shown) = info.peer_certificates.first() else {
            return Err(self.certificate_refused(Cause::NoCertificate));
        };
        let Some(kind) = required.name else { return Ok(()) };
        let name = tls::subject(shown).and_then(|subject| match kind {
            CertificateName::Common => subject.common_name,
            CertificateName::Distinguished => Some(subject.distinguished_name),
        });
        let may = |name: &String| match &setup.hba {
            Some(rules) => rules.user_map_allows(required.map.as_deref(), name, &request.user),
            None => *name == request.user,
        };
        if name.as_ref().is_some_and(may) {
            return Ok(());
        }
        let (peer, user) = (&self.peer, &request.user);
        tracing::info!(%peer, ?user, certificate = ?name, "the certificate is not this user's");
        Err(self.certificate_refused(Cause::Certificate))
    }

    /// Whether the peer process belongs to the user, and the user is known, as for `trust`.
    async fn check_peer(&self, setup: &Setup, request: &Request, map: Option<&str>) -> Result<(), LoginError> {
        let Some(uid) = self.process.map(|process| process.uid.as_raw()) else { return Err(self.denied(Cause::Peer)) };
        // Reading the user database may block.
        let resolver = &self.worker.gateway.pools.connector.resolver;
        let name = resolver.offload("a system user", move || hba::user_name_of_uid(uid)).await.flatten();
        let may =
            |name: &String| setup.hba.as_ref().is_some_and(|rules| rules.user_map_allows(map, name, &request.user));
        let may = name.as_ref().is_some_and(may);
        let known = may && (setup.config.auth.strangers || self.secret(setup, request, AuthMethod::Trust).await?.known);
        if known { Ok(()) } else { Err(self.denied(Cause::Peer)) }
    }

    /// Whether the user is known, and its secret: configured or looked up on a server.
    async fn secret(&self, setup: &Setup, request: &Request, method: AuthMethod) -> Result<Found, LoginError> {
        let declared = setup.config.declared_user(&request.user);
        let secret = declared.and_then(|user| user.secret.clone());
        // If every user is admitted, a lookup only provides the server password, which the lookup user already has.
        let is_let_in = method.needs_no_challenge() && setup.config.auth.strangers;
        let is_needed = |lookup: &UserLookup| secret.is_none() && !(is_let_in && lookup.user == request.user);
        let lookup = setup.config.lookup(&request.database).filter(is_needed);
        let configured = Found { known: declared.is_some(), secret, ..Found::default() };
        let Some(lookup) = lookup else { return Ok(configured) };
        match Box::pin(lookup::look_up(&self.worker, &lookup, &request.database, &request.user)).await? {
            lookup::Known::Missing => Ok(Found { is_missing: true, ..configured }),
            lookup::Known::User(secret) => {
                if let Some((entry, _)) = setup.config.database(&request.database) {
                    self.worker.gateway.pools.connector.secrets.record_lookup(entry, &request.user, secret.as_ref());
                }
                Ok(Found { known: true, secret, is_looked_up: true, is_missing: false })
            }
        }
    }
}

/// Result of the search for a user.
#[derive(Default)]
struct Found {
    /// The user is configured or exists on the server.
    known: bool,
    secret: Option<UserSecret>,
    /// The user was looked up on a server instead of configured.
    is_looked_up: bool,
    /// The user was looked up and does not exist.
    is_missing: bool,
}
