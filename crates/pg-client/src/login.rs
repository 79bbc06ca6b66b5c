//! Logs in to Postgres on a new connection.

use tidegate_config::{ChannelBindingMode, UserSecret};
use tidegate_link::{Chunk, Link};
use tidegate_tls as tls;
use tidegate_wire::{
    auth::{
        AuthRequest, ClientAuth, md5_answer, md5_password,
        scram::{ChannelBinding as ScramBinding, Nonce, ScramClient, ScramClientFinal, ScramError, ScramSecret},
    },
    backend::{self, Authentication, BackendKeyData, ErrorFields, ParameterStatus},
    frame::{HEADER, MessageHeader},
    frontend, startup,
};

use crate::connect::{ConnectError, ConnectTarget, Connector};

/// Result of a login.
pub(super) struct LoginResult {
    pub(super) pid: u32,
    pub(super) cancel_key: Box<[u8]>,
    pub(super) parameters: Vec<(String, Box<[u8]>)>,
    pub(super) rest: Option<Chunk>,
}

/// The requested minor protocol version; older servers negotiate it down.
const MINOR: u16 = 2;

/// Logs in, and reads up to the first ReadyForQuery.
pub(super) async fn login(
    connector: &Connector,
    link: &mut Link,
    target: &ConnectTarget<'_>,
) -> Result<LoginResult, ConnectError> {
    let mut exchange = LoginExchange { connector, link, target, bytes: Vec::new() };
    exchange.send_startup();
    exchange.authenticate().await?;
    exchange.read_until_ready().await
}

struct LoginExchange<'a> {
    connector: &'a Connector,
    link: &'a mut Link,
    target: &'a ConnectTarget<'a>,
    /// Received bytes that are not processed yet.
    bytes: Vec<u8>,
}

impl LoginExchange<'_> {
    fn send_startup(&mut self) {
        let plan = self.target.plan;
        let mut params: Vec<(&[u8], &[u8])> =
            vec![(b"user", plan.user.as_bytes()), (b"database", plan.dbname.as_bytes())];
        params.extend(plan.startup_parameters.0.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        params.extend(self.target.extra);
        let mut out = Vec::new();
        startup::startup(MINOR, &params, &mut out);
        self.link.write(out);
    }

    fn label(&self) -> String {
        self.target.label()
    }

    fn invalid(&self, what: impl std::fmt::Display) -> ConnectError {
        ConnectError::Protocol(self.label(), format!("{what}"))
    }

    /// Sends queued messages and receives the next message. Skips notices.
    async fn next(&mut self) -> Result<(u8, Vec<u8>), ConnectError> {
        self.link.flush().await.map_err(|error| ConnectError::Broken(self.label(), error))?;
        loop {
            if let Some(header) = MessageHeader::peek(&self.bytes).map_err(|error| self.invalid(error))? {
                if header.total() > LOGIN_MESSAGE_MAX {
                    return Err(self.invalid("a message during login is too long"));
                }
                if self.bytes.len() >= header.total() {
                    let body = self.bytes[HEADER..header.total()].to_vec();
                    self.bytes.drain(..header.total());
                    match header.tag {
                        backend::NOTICE_RESPONSE => continue,
                        backend::ERROR_RESPONSE => return Err(self.refused(body)),
                        tag => return Ok((tag, body)),
                    }
                }
            }
            let chunk = self.link.read().await.map_err(|error| ConnectError::Broken(self.label(), error))?;
            if chunk.is_empty() {
                return Err(ConnectError::Broken(self.label(), std::io::ErrorKind::UnexpectedEof.into()));
            }
            self.bytes.extend_from_slice(&chunk);
        }
    }

    fn refused(&self, body: Vec<u8>) -> ConnectError {
        match ErrorFields::decode(&body) {
            Ok(_) => ConnectError::Refused(body.into()),
            Err(error) => self.invalid(error),
        }
    }

    async fn authenticate(&mut self) -> Result<(), ConnectError> {
        let mut auth = ClientAuth::new(self.target.plan.tls.binding == ChannelBindingMode::Require);
        loop {
            let (tag, body) = self.next().await?;
            match tag {
                backend::AUTHENTICATION => {}
                backend::NEGOTIATE_PROTOCOL_VERSION => continue,
                other => {
                    return Err(self.invalid(format_args!("message '{}' during authentication", char::from(other))));
                }
            }
            let message = Authentication::decode(&body).map_err(|error| self.invalid(error))?;
            match auth.next(&message, || self.end_point()).map_err(|refusal| ConnectError::Secret(refusal.text()))? {
                AuthRequest::Scram(binding) => self.scram(binding).await?,
                AuthRequest::Done => return Ok(()),
                AuthRequest::Cleartext => self.send_cleartext()?,
                AuthRequest::Md5 { salt } => self.send_md5(salt)?,
            }
        }
    }

    /// The hash of the server's certificate, for channel binding.
    fn end_point(&self) -> Option<Vec<u8>> {
        if self.target.plan.tls.binding == ChannelBindingMode::Disable {
            return None;
        }
        tls::end_point(self.link.tls_info()?.peer_certificates.first()?)
    }

    fn send_password(&mut self, text: &[u8]) {
        let mut out = Vec::new();
        frontend::password(text, &mut out);
        self.link.write(out);
    }

    fn send_cleartext(&mut self) -> Result<(), ConnectError> {
        let Some(UserSecret::Plain(password)) = &self.target.plan.secret else {
            return Err(ConnectError::Secret(
                "the server requests a clear-text password, and none is configured for this user",
            ));
        };
        let password = password.reveal().as_bytes().to_vec();
        self.send_password(&password);
        Ok(())
    }

    fn send_md5(&mut self, salt: [u8; 4]) -> Result<(), ConnectError> {
        let user = self.target.plan.user.as_bytes();
        let answer = match &self.target.plan.secret {
            Some(UserSecret::Plain(password)) => Some(md5_password(user, password.reveal().as_bytes(), salt)),
            Some(UserSecret::Md5(stored)) => md5_answer(stored.reveal(), salt),
            _ => None,
        };
        let Some(answer) = answer else {
            return Err(ConnectError::Secret(
                "the server requests an md5 password, and neither a password nor its md5 hash is configured for this user",
            ));
        };
        self.send_password(answer.as_bytes());
        Ok(())
    }

    /// Returns the secret to try first. Cached keys are equivalent to the password and save their derivation.
    fn scram_secret(&self) -> Result<ScramSecret, ConnectError> {
        let plan = self.target.plan;
        if let Some(UserSecret::Plain(password)) = &plan.secret {
            let cached = self.connector.secrets.derived(&plan.user, self.target.host, password);
            return Ok(
                cached.map_or_else(|| ScramSecret::Password(password.reveal().as_bytes().to_vec()), ScramSecret::Keys)
            );
        }
        let keys = match &plan.secret {
            Some(UserSecret::Scram(verifier)) => self.connector.secrets.keys(plan, verifier),
            _ => None,
        };
        keys.map(ScramSecret::Keys).ok_or(ConnectError::Secret(
            "wrong password type: the server requests SCRAM-SHA-256, and no password is configured for this user; \
             configure it, or the server's verifier together with auth method scram-sha-256",
        ))
    }

    async fn scram(&mut self, binding: ScramBinding) -> Result<(), ConnectError> {
        let mut random = [0; 18];
        getrandom::fill(&mut random).map_err(|_| ConnectError::Secret("the system provides no random numbers"))?;
        let secret = self.scram_secret()?;
        let nonce = Nonce::from_random(&random);
        let client = ScramClient::new(secret, nonce.clone(), binding.clone());
        let mut out = Vec::new();
        frontend::sasl_initial(binding.mechanism().as_bytes(), Some(&client.first()), &mut out);
        self.link.write(out);
        let challenge = self.sasl_reply().await?;
        let (last, proof) = self.respond(client, (nonce, binding), challenge).await?;
        let mut out = Vec::new();
        frontend::sasl_response(&proof, &mut out);
        self.link.write(out);
        let signature = self.sasl_reply().await?;
        let keys = last.verify(&signature).map_err(|error| self.scram_error(&error))?;
        if let Some(UserSecret::Plain(password)) = &self.target.plan.secret {
            self.connector.secrets.record_derived(&self.target.plan.user, self.target.host, password, keys);
        }
        Ok(())
    }

    /// Responds to the challenge on another thread, because deriving keys takes milliseconds.
    async fn respond(
        &mut self,
        client: ScramClient,
        (nonce, binding): (Nonce, ScramBinding),
        challenge: Vec<u8>,
    ) -> Result<(ScramClientFinal, Vec<u8>), ConnectError> {
        let password = match &self.target.plan.secret {
            Some(UserSecret::Plain(password)) => Some(password.reveal().as_bytes().to_vec()),
            _ => None,
        };
        let respond = move || match (client.respond(&challenge), password) {
            // The password on the server has changed since the keys were derived.
            (Err(ScramError::StaleKeys), Some(password)) => {
                ScramClient::new(ScramSecret::Password(password), nonce, binding).respond(&challenge)
            }
            (outcome, _) => outcome,
        };
        let outcome = self.connector.resolver.offload("the password of a server", respond).await;
        match outcome {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(self.scram_error(&error)),
            None => Err(ConnectError::Closed("the gateway is stopping")),
        }
    }

    fn scram_error(&self, error: &ScramError) -> ConnectError {
        match error {
            ScramError::StaleKeys => ConnectError::Secret(
                "the verifier on the server differs from that of the gateway; the password was changed",
            ),
            _ => self.invalid(error),
        }
    }

    async fn sasl_reply(&mut self) -> Result<Vec<u8>, ConnectError> {
        match self.next().await? {
            (backend::AUTHENTICATION, body) => {
                match Authentication::decode(&body).map_err(|error| self.invalid(error))? {
                    Authentication::SaslContinue(data) | Authentication::SaslFinal(data) => Ok(data.to_vec()),
                    _ => Err(self.invalid("unexpected authentication message during SASL")),
                }
            }
            (tag, _) => Err(self.invalid(format_args!("message '{}' during SASL", char::from(tag)))),
        }
    }

    /// Reads the server's parameters and key up to the first ReadyForQuery.
    async fn read_until_ready(&mut self) -> Result<LoginResult, ConnectError> {
        let mut login = LoginResult { pid: 0, cancel_key: Box::default(), parameters: Vec::new(), rest: None };
        loop {
            let (tag, body) = self.next().await?;
            match tag {
                backend::PARAMETER_STATUS => {
                    let status = ParameterStatus::decode(&body).map_err(|error| self.invalid(error))?;
                    let name = str::from_utf8(status.name).map_err(|error| self.invalid(error))?;
                    login.parameters.push((name.to_owned(), status.value.into()));
                }
                backend::BACKEND_KEY_DATA => {
                    let key = BackendKeyData::decode(&body).map_err(|error| self.invalid(error))?;
                    login.pid = key.pid;
                    login.cancel_key = key.key.into();
                }
                backend::READY_FOR_QUERY => {
                    let rest = std::mem::take(&mut self.bytes);
                    login.rest = (!rest.is_empty()).then(|| rest.into());
                    return Ok(login);
                }
                backend::NEGOTIATE_PROTOCOL_VERSION => {}
                other => return Err(self.invalid(format_args!("message '{}' after login", char::from(other)))),
            }
        }
    }
}

/// Limit of a message during login; the longest is an error.
const LOGIN_MESSAGE_MAX: usize = 64 * 1024;
