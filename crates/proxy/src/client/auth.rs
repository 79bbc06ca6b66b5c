//! How a client proves who it is.

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

use super::{
    external_auth::{self, Judge, Question},
    handshake::{LoginError, random},
};
use tidegate_config::{AuthMethod, Secret, UserSecret, hba::LdapConfig};

use crate::{error::Cause, plane::Gateway};

/// One login.
pub(super) struct Login<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) link: &'a mut Link,
    pub(super) user: &'a str,
    /// Where the client comes from.
    pub(super) peer: PeerAddress,
    /// The entry of `[databases]` that it is for; none for the console.
    pub(super) entry: &'a str,
    pub(super) secret: Option<UserSecret>,
    /// It was looked up on a server, and is not configured.
    pub(super) is_looked_up: bool,
    /// Who judges the password, for method `ldap`.
    pub(super) ldap: Option<Arc<LdapConfig>>,
    /// The hash that a login can be bound to, if there is TLS and a hash of its certificate.
    pub(super) end_point: Option<&'a [u8]>,
    /// Received and not yet looked at.
    pub(super) bytes: Vec<u8>,
    /// When the client's last answer was there.
    pub(super) answered_at: Option<Instant>,
}

/// The longest answer of a client.
const ANSWER_MAX: usize = 16 * 1024;

impl Login<'_> {
    /// Asks the client for proof by `method`.
    ///
    /// # Errors
    /// [`LoginError::Refused`] with the words of Postgres if the proof fails.
    pub(super) async fn authenticate(&mut self, method: AuthMethod) -> Result<(), LoginError> {
        let proven = match method {
            AuthMethod::Trust | AuthMethod::Hba | AuthMethod::Cert => true,
            AuthMethod::Password => self.cleartext().await?,
            AuthMethod::Pam | AuthMethod::Ldap => return self.vouched(method).await,
            AuthMethod::Md5 if self.seems_to_have_verifier() => self.scram().await?,
            AuthMethod::Md5 => self.md5().await?,
            AuthMethod::ScramSha256 => self.scram().await?,
        };
        if proven { Ok(()) } else { Err(self.failed()) }
    }

    fn failed(&self) -> LoginError {
        let message = format!("password authentication failed for user \"{}\"", self.user);
        LoginError::Denied(ErrorReply::new(sqlstate::INVALID_PASSWORD, message))
    }

    /// Whether the user has a verifier, or is nobody who would seem to have one.
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
        let (user, secret) = (self.user.to_owned(), self.secret.clone());
        let mock = self.mock_verifier();
        // A verifier takes milliseconds to compare with.
        let proven = self.gateway.pools.connector.resolver.offload("a password", move || {
            let proven = match &secret {
                Some(UserSecret::Plain(password)) => same(password.reveal().as_bytes(), &given),
                Some(UserSecret::Md5(stored)) => {
                    same(md5_stored(user.as_bytes(), &given).as_bytes(), stored.reveal().as_bytes())
                }
                Some(UserSecret::Scram(text)) => {
                    return text.reveal().parse::<Verifier>().is_ok_and(|verifier| verifier.matches(&given));
                }
                None => false,
            };
            if !proven {
                // A failure takes as long whatever the user has, if anything.
                std::hint::black_box(mock.matches(&given));
            }
            proven
        });
        Ok(proven.await.unwrap_or(false) && self.has_password())
    }

    /// The password is for PAM or for a directory to judge. One that is right opens servers too, as the client's own would.
    async fn vouched(&mut self, method: AuthMethod) -> Result<(), LoginError> {
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
        let judge = match &self.ldap {
            Some(ldap) => Judge::Directory(ldap.clone()),
            None => Judge::Pam { service: setup.config.auth.pam_service.clone(), host: host.clone() },
        };
        let (name, limit) = (judge.name(), setup.config.timeouts.login);
        let question = Question { judge, user: self.user.to_owned(), password: password.clone(), limit };
        if let Err(reason) = external_auth::ask(self.gateway, question).await {
            tracing::info!(user = self.user, host, reason, "{name} does not let the user in");
            return Err(refused());
        }
        self.gateway.pools.connector.secrets.record_external_password(self.entry, self.user, password);
        Ok(())
    }

    /// An empty password lets nobody in.
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
        Ok(self.has_password() && expected.is_some_and(|expected| same(expected.as_bytes(), given)))
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
        // It says that it was not offered what it was: somebody in the middle may have taken the offer away.
        let was_cheated = binding == ChannelBinding::Unused && first.starts_with(b"y");
        let shown = stored.clone().unwrap_or_else(|| mock.clone());
        let server = ScramServer::new(shown, Nonce::from_random(&nonce), binding);
        let (last, challenge) = server
            .challenge(first)
            .map_err(|_| if was_cheated { unbound("SCRAM channel binding negotiation error") } else { malformed() })?;
        let mut out = Vec::new();
        backend::authentication_sasl_continue(&challenge, &mut out);
        let proof = self.ask(out).await?;
        // After the proof: that of a user whose verifier is yet to be derived comes no later than any other challenge.
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
            // Somebody in the middle shows a certificate of its own.
            Err(ScramError::WrongBinding) => return Err(unbound("SCRAM channel binding check failed")),
            Err(_) => return Err(malformed()),
        };
        let mut out = Vec::new();
        backend::authentication_sasl_final(&accepted.reply, &mut out);
        self.link.write(out);
        self.keep_keys(accepted.keys);
        Ok(real)
    }

    /// What the client is offered, the best first.
    const fn mechanisms(&self) -> &'static [&'static str] {
        match self.end_point {
            Some(_) => &[scram::MECHANISM_PLUS, scram::MECHANISM],
            None => &[scram::MECHANISM],
        }
    }

    /// How the login is bound by the mechanism that the client has chosen.
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

    /// The client's keys open servers that have the same verifier.
    fn keep_keys(&self, keys: SaltedKeys) {
        if let Some(UserSecret::Scram(verifier)) = &self.secret {
            let entry = self.is_looked_up.then_some(self.entry);
            self.gateway.pools.connector.secrets.record_client_keys(entry, self.user, verifier, keys);
        }
    }

    /// A verifier that no password fits, of a user without one: with the salt and iterations of the verifier that is derived
    /// of the password if there is one, else with those that a user would seem to have.
    fn mock_verifier(&self) -> Verifier {
        let decoy = self.gateway.mock_iterations(self.entry, self.user);
        let general = self.gateway.config.setup().config.auth.scram_iterations;
        let iterations = if self.has_password() { general } else { decoy.unwrap_or(general) };
        self.gateway.clients.mock_verifier(self.user, iterations)
    }

    /// Makes a verifier of a configured password, once, on another thread; its salt and iterations are those of `mock`.
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

    /// Sends a question, and reads the client's answer, which is a password message.
    async fn ask(&mut self, question: Vec<u8>) -> Result<Vec<u8>, LoginError> {
        self.link.write(question);
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

fn unbound(message: &'static str) -> LoginError {
    LoginError::Denied(ErrorReply::new(sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, message))
}

/// Compares in constant time.
fn same(a: &[u8], b: &[u8]) -> bool {
    use subtle::ConstantTimeEq;
    bool::from(a.ct_eq(b))
}
