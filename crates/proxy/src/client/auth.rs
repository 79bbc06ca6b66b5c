//! Password authentication of clients.

use std::{sync::Arc, time::Instant};
use tidegate_link::{Chunk, Link, PeerAddress};
use tidegate_wire::{
    auth::{
        md5_answer, md5_password, md5_stored,
        scram::{self, ChannelBinding, Nonce, SaltedKeys, ScramError, ScramServer, Verifier},
    },
    backend::{self, ErrorReply},
    frame::{HEADER, MessageHeader},
    frontend::{self, SaslInitial},
    sqlstate,
};

use super::handshake::{LoginError, random};
use tidegate_config::{AuthMethod, Dialect, Secret, UserSecret, hba::LdapConfig};
use tidegate_external_auth::{PasswordCheck, PasswordChecker};
use tidegate_pg_client::resolve::Resolver;

use crate::{
    error::Cause,
    plane::{Clients, Gateway},
};

/// A login in progress.
pub(super) struct Login<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) link: &'a mut Link,
    pub(super) user: &'a str,
    /// Client address.
    pub(super) peer: PeerAddress,
    /// Entry in `[databases]`; empty for the console.
    pub(super) entry: &'a str,
    pub(super) secret: Option<UserSecret>,
    /// Whether the secret was looked up on a server instead of configured.
    pub(super) is_looked_up: bool,
    /// The LDAP server that checks the password, for method `ldap`.
    pub(super) ldap: Option<Arc<LdapConfig>>,
    /// Hash of the server certificate for channel binding, if TLS is used and the hash is available.
    pub(super) end_point: Option<&'a [u8]>,
    /// Received bytes that were not parsed yet.
    pub(super) bytes: Vec<u8>,
    /// When the client's last reply arrived.
    pub(super) answered_at: Option<Instant>,
}

/// Maximum length of a client's reply: a password of 65,530 bytes, the longest that PgBouncer accepts. Tokens of cloud services
/// have some kilobytes.
const ANSWER_MAX: usize = 64 * 1024;

impl Login<'_> {
    /// Authenticates the client with `method`.
    ///
    /// # Errors
    /// [`LoginError::Denied`] with the text of Postgres if authentication fails.
    pub(super) async fn authenticate(&mut self, method: AuthMethod) -> Result<(), LoginError> {
        let uses_scram = match method {
            AuthMethod::Md5 => self.seems_to_have_verifier(),
            _ => method == AuthMethod::ScramSha256,
        };
        let proven = match method {
            AuthMethod::Trust | AuthMethod::Hba | AuthMethod::Cert => true,
            AuthMethod::Password => self.cleartext().await?,
            AuthMethod::Pam | AuthMethod::Ldap => return self.check_external(method).await,
            AuthMethod::Md5 if uses_scram => self.scram().await?,
            AuthMethod::Md5 => self.md5().await?,
            AuthMethod::ScramSha256 => self.scram().await?,
        };
        if proven { Ok(()) } else { Err(self.failed(uses_scram)) }
    }

    fn failed(&self, uses_scram: bool) -> LoginError {
        let is_pgbouncer = self.gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer;
        let kind = if uses_scram && is_pgbouncer { "SASL" } else { "password" };
        let message = format!("{kind} authentication failed for user \"{}\"", self.user);
        LoginError::Denied(ErrorReply::new(sqlstate::INVALID_PASSWORD, message))
    }

    /// Whether the user has a SCRAM verifier, or is unknown and must appear to have one.
    fn seems_to_have_verifier(&self) -> bool {
        match &self.secret {
            Some(secret) if self.has_password() => matches!(secret, UserSecret::Scram(_)),
            _ => self.gateway.mock_iterations(self.entry, self.user).is_some(),
        }
    }

    async fn cleartext(&mut self) -> Result<bool, LoginError> {
        let mut out = Vec::new();
        backend::authentication_cleartext(&mut out);
        let body = self.ask(out).await?;
        let given = frontend::password_text(&body)?.to_vec();
        let password = str::from_utf8(&given).ok().map(Secret::new);
        let (user, secret) = (self.user.to_owned(), self.secret.clone());
        let mock = self.mock_verifier();
        // Comparing with a verifier takes milliseconds.
        let proven = self.gateway.pools.connector.resolver.offload("a password", move || {
            let proven = match &secret {
                Some(UserSecret::Plain(password)) => constant_time_eq(password.reveal().as_bytes(), &given),
                Some(UserSecret::Md5(stored)) => {
                    constant_time_eq(md5_stored(user.as_bytes(), &given).as_bytes(), stored.reveal().as_bytes())
                }
                Some(UserSecret::Scram(text)) => {
                    return text.reveal().parse::<Verifier>().is_ok_and(|verifier| verifier.matches(&given));
                }
                None => false,
            };
            if !proven {
                // A failure takes the same time for every user, existing or not.
                std::hint::black_box(mock.matches(&given));
            }
            proven
        });
        let proven = proven.await.unwrap_or(false) && self.has_password();
        let is_hashed = !matches!(self.secret, Some(UserSecret::Plain(_)));
        if let Some(password) = password.filter(|_| proven && is_hashed) {
            // A verifier or a hash does not log in to every server; the password does.
            self.gateway.pools.connector.secrets.record_external_password(self.entry, self.user, password);
        }
        Ok(proven)
    }

    /// PAM or LDAP checks the password. An accepted password is also used to log in to servers.
    async fn check_external(&mut self, method: AuthMethod) -> Result<(), LoginError> {
        let mut out = Vec::new();
        backend::authentication_cleartext(&mut out);
        let body = self.ask(out).await?;
        let setup = self.gateway.config.setup();
        let cause = if method == AuthMethod::Ldap { Cause::Ldap } else { Cause::Pam };
        let refused = || LoginError::Denied(cause.refusal(setup.config.listen.dialect));
        let password = match std::str::from_utf8(frontend::password_text(&body)?) {
            Ok(text) if !text.is_empty() => Secret::new(text),
            _ => return Err(refused()),
        };
        let host = match self.peer {
            PeerAddress::Tcp(address) => address.ip().to_string(),
            PeerAddress::Unix => String::new(),
        };
        let checker = match &self.ldap {
            Some(ldap) => PasswordChecker::Directory(ldap.clone()),
            None => PasswordChecker::Pam { service: setup.config.auth.pam_service.clone(), host: host.clone() },
        };
        let (name, limit) = (checker.name(), setup.config.timeouts.login);
        let request = PasswordCheck { checker, user: self.user.to_owned(), password: password.clone(), limit };
        let resolver = &self.gateway.pools.connector.resolver;
        if let Err(reason) = check_password(&self.gateway.clients, resolver, request).await {
            tracing::info!(user = self.user, host, reason, "{name} does not let the user in");
            return Err(refused());
        }
        self.gateway.pools.connector.secrets.record_external_password(self.entry, self.user, password);
        Ok(())
    }

    /// An empty password is never accepted.
    fn has_password(&self) -> bool {
        self.secret.as_ref().is_some_and(|secret| !secret.secret().is_empty())
    }

    async fn md5(&mut self) -> Result<bool, LoginError> {
        let salt: [u8; 4] = random()?;
        let mut out = Vec::new();
        backend::authentication_md5(salt, &mut out);
        let body = self.ask(out).await?;
        let given = frontend::password_text(&body)?;
        let expected = match &self.secret {
            Some(UserSecret::Plain(password)) => {
                Some(md5_password(self.user.as_bytes(), password.reveal().as_bytes(), salt))
            }
            Some(UserSecret::Md5(stored)) => md5_answer(stored.reveal(), salt),
            _ => None,
        };
        Ok(self.has_password() && expected.is_some_and(|expected| constant_time_eq(expected.as_bytes(), given)))
    }

    async fn scram(&mut self) -> Result<bool, LoginError> {
        let stored = match &self.secret {
            Some(UserSecret::Scram(text)) => text.reveal().parse::<Verifier>().ok(),
            _ => None,
        };
        let mock = self.mock_verifier();
        let nonce: [u8; 18] = random()?;
        let mut out = Vec::new();
        backend::authentication_sasl(self.mechanisms(), &mut out);
        let body = self.ask(out).await?;
        let initial = SaslInitial::decode(&body)?;
        let (binding, first) = (self.binding(initial.mechanism)?, initial.data.unwrap_or_default());
        // Flag `y`: the client did not see the offer of channel binding; an attacker may have removed it.
        let downgraded = binding == ChannelBinding::Unused && first.starts_with(b"y");
        let shown = stored.clone().unwrap_or_else(|| mock.clone());
        let server = ScramServer::new(shown, Nonce::from_random(&nonce), binding);
        let (last, challenge) = server.challenge(first).map_err(|_| {
            if downgraded { binding_error("SCRAM channel binding negotiation error") } else { malformed() }
        })?;
        let mut out = Vec::new();
        backend::authentication_sasl_continue(&challenge, &mut out);
        let proof = self.ask(out).await?;
        // Derived after the proof, so that the challenge takes the same time with and without a cached verifier.
        let derived = match &self.secret {
            Some(UserSecret::Plain(password)) if self.has_password() => self.derive(password.reveal(), &mock).await,
            _ => None,
        };
        let real = stored.is_some() || derived.is_some();
        let last = match derived {
            Some(derived) => last.with_keys_of(derived),
            None => last,
        };
        let accepted = match last.finish(&proof) {
            Ok(accepted) => accepted,
            Err(ScramError::WrongProof) => return Ok(false),
            // The client saw another certificate: a man-in-the-middle attack.
            Err(ScramError::WrongBinding) => return Err(binding_error("SCRAM channel binding check failed")),
            Err(_) => return Err(malformed()),
        };
        let mut out = Vec::new();
        backend::authentication_sasl_final(&accepted.reply, &mut out);
        self.link.write(out);
        self.keep_keys(accepted.keys);
        Ok(real)
    }

    /// Offered SASL mechanisms, in order of preference.
    const fn mechanisms(&self) -> &'static [&'static str] {
        match self.end_point {
            Some(_) => &[scram::MECHANISM_PLUS, scram::MECHANISM],
            None => &[scram::MECHANISM],
        }
    }

    /// Channel binding of the mechanism that the client chose.
    fn binding(&self, mechanism: &[u8]) -> Result<ChannelBinding, LoginError> {
        match self.end_point {
            Some(hash) if mechanism == scram::MECHANISM_PLUS.as_bytes() => Ok(ChannelBinding::EndPoint(hash.to_vec())),
            Some(_) if mechanism == scram::MECHANISM.as_bytes() => Ok(ChannelBinding::Unused),
            None if mechanism == scram::MECHANISM.as_bytes() => Ok(ChannelBinding::None),
            _ => Err(LoginError::Refused(ErrorReply::protocol(
                "client selected an invalid SASL authentication mechanism",
            ))),
        }
    }

    /// The client's keys log in to servers with the same verifier.
    fn keep_keys(&self, keys: SaltedKeys) {
        if let Some(UserSecret::Scram(verifier)) = &self.secret {
            let entry = self.is_looked_up.then_some(self.entry);
            self.gateway.pools.connector.secrets.record_client_keys(entry, self.user, verifier, keys);
        }
    }

    /// A verifier that no password matches. The salt and iterations are those of the verifier derived from a plain password,
    /// or those that an unknown user appears to have.
    fn mock_verifier(&self) -> Verifier {
        let decoy = self.gateway.mock_iterations(self.entry, self.user);
        let general = self.gateway.config.setup().config.auth.scram_iterations;
        let iterations = if self.has_password() { general } else { decoy.unwrap_or(general) };
        self.gateway.clients.mock_verifier(self.user, iterations)
    }

    /// Derives and caches the verifier of a plain password on another thread, with the salt and iterations of `mock`.
    async fn derive(&self, password: &str, mock: &Verifier) -> Option<Verifier> {
        let (salt, iterations) = (mock.salt().to_vec(), mock.iterations());
        if let Some(verifier) = self.gateway.clients.known_verifier(self.user, password, iterations) {
            return Some(verifier);
        }
        let text = password.to_owned();
        let derive = move || Verifier::derive(text.as_bytes(), &salt, iterations);
        let verifier = self.gateway.pools.connector.resolver.offload("a verifier", derive).await?;
        self.gateway.clients.keep_verifier(self.user, password, verifier.clone());
        Some(verifier)
    }

    /// Sends a request and reads the PasswordMessage of the client.
    async fn ask(&mut self, request: Vec<u8>) -> Result<Vec<u8>, LoginError> {
        self.link.write(request);
        self.link.flush().await?;
        loop {
            if let Some(header) = MessageHeader::peek(&self.bytes)? {
                if header.tag != frontend::PASSWORD || header.total() > ANSWER_MAX {
                    return Err(LoginError::Refused(ErrorReply::protocol("expected a password message")));
                }
                if self.bytes.len() >= header.total() {
                    let body = self.bytes[HEADER..header.total()].to_vec();
                    self.bytes.drain(..header.total());
                    self.answered_at = Some(Instant::now());
                    return Ok(body);
                }
            }
            let chunk: Chunk = self.link.read().await?;
            if chunk.is_empty() {
                return Err(LoginError::Gone);
            }
            self.bytes.extend_from_slice(&chunk);
        }
    }
}

fn malformed() -> LoginError {
    LoginError::Refused(ErrorReply::protocol("malformed SCRAM message"))
}

fn binding_error(message: &'static str) -> LoginError {
    LoginError::Denied(ErrorReply::new(sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, message))
}

fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    use subtle::ConstantTimeEq;
    bool::from(a.ct_eq(b))
}

/// Runs a password check on a thread of the control plane. Waits until one of the permits is free; the caller limits the wait.
///
/// # Errors
/// Why the user was refused, for the log.
///
/// # Cancel safety
/// Safe: a started check runs to its end and keeps its permit until then.
async fn check_password(clients: &Clients, resolver: &Resolver, request: PasswordCheck) -> Result<(), String> {
    let Ok(permit) = clients.password_checks.clone().acquire_owned().await else {
        return Err("the gateway is stopping".to_owned());
    };
    let check = move || {
        let outcome = request.run();
        drop(permit);
        outcome
    };
    let outcome = resolver.offload("a check of a password", check).await;
    outcome.unwrap_or_else(|| Err("the password check was aborted".to_owned()))
}
