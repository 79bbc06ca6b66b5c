//! Logs in: startup, authentication, up to the first ReadyForQuery.

use tidegate_config::ChannelBindingMode;
use tidegate_wire::{
    auth::{
        AuthRequest, ClientAuth, md5_password,
        scram::{ChannelBinding, Nonce, ScramClient, ScramSecret},
    },
    backend::{self, Authentication, BackendKeyData},
    frontend, startup,
};

use super::{ClientError, ConnectOptions, PgConnection, ReplicationMode, ServerFrame, ServerReport};

pub(super) async fn log_in(
    connection: &mut PgConnection,
    options: &ConnectOptions,
    replication: ReplicationMode,
    end_point: Option<Vec<u8>>,
) -> Result<(), ClientError> {
    let parameters = options.startup_parameters(replication);
    let pairs: Vec<_> = parameters.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
    let mut out = Vec::new();
    startup::startup(0, &pairs, &mut out);
    connection.write(&out).await?;
    Login { connection, options, end_point }.authenticate().await
}

struct Login<'a> {
    connection: &'a mut PgConnection,
    options: &'a ConnectOptions,
    end_point: Option<Vec<u8>>,
}

impl Login<'_> {
    async fn authenticate(mut self) -> Result<(), ClientError> {
        let mode = self.options.tls.binding;
        let mut auth = ClientAuth::new(mode == ChannelBindingMode::Require);
        loop {
            let body = self.authentication().await?;
            let message = Authentication::decode(&body).map_err(ClientError::protocol)?;
            let end_point = || self.end_point.take().filter(|_| mode != ChannelBindingMode::Disable);
            match auth.next(&message, end_point).map_err(|refusal| ClientError::Login(refusal.to_string()))? {
                AuthRequest::Scram(binding) => self.scram(binding).await?,
                AuthRequest::Done => break,
                AuthRequest::Cleartext => {
                    let password = self.password("a clear-text password")?.to_owned();
                    self.send_password(password.as_bytes()).await?;
                }
                AuthRequest::Md5 { salt } => {
                    let password = self.password("an md5 password")?;
                    let answer = md5_password(self.options.user.as_bytes(), password.as_bytes(), salt);
                    self.send_password(answer.as_bytes()).await?;
                }
            }
        }
        self.until_ready().await
    }

    async fn frame(&mut self) -> Result<ServerFrame, ClientError> {
        loop {
            let frame = self.connection.read_frame().await?;
            match frame.tag {
                backend::ERROR_RESPONSE => {
                    return Err(ClientError::Server(Box::new(ServerReport::decode(&frame.body)?)));
                }
                backend::NOTICE_RESPONSE | backend::NEGOTIATE_PROTOCOL_VERSION => {}
                _ => return Ok(frame),
            }
        }
    }

    async fn authentication(&mut self) -> Result<bytes::Bytes, ClientError> {
        let frame = self.frame().await?;
        if frame.tag == backend::AUTHENTICATION {
            return Ok(frame.body);
        }
        let text = format!("message '{}' during authentication", char::from(frame.tag).escape_default());
        Err(ClientError::Protocol(text))
    }

    fn password(&self, what: &str) -> Result<&str, ClientError> {
        let password = self.options.password.reveal();
        if password.is_empty() {
            let user = &self.options.user;
            return Err(ClientError::Login(format!("the server asks for {what} of user {user}, and none is given")));
        }
        Ok(password)
    }

    async fn send_password(&mut self, text: &[u8]) -> Result<(), ClientError> {
        let mut out = Vec::new();
        frontend::password(text, &mut out);
        self.connection.write(&out).await
    }

    async fn scram(&mut self, binding: ChannelBinding) -> Result<(), ClientError> {
        let mut random = [0; 18];
        getrandom::fill(&mut random)
            .map_err(|_| ClientError::Login("the system provides no random numbers".to_owned()))?;
        let secret = ScramSecret::Password(self.password("SCRAM-SHA-256 authentication")?.as_bytes().to_vec());
        let mechanism = binding.mechanism();
        let client = ScramClient::new(secret, Nonce::from_random(&random), binding);
        let mut out = Vec::new();
        frontend::sasl_initial(mechanism.as_bytes(), Some(&client.first()), &mut out);
        self.connection.write(&out).await?;
        let challenge = self.sasl().await?;
        // Deriving keys takes milliseconds.
        let derive = tokio::task::spawn_blocking(move || client.respond(&challenge)).await;
        let (last, proof) = derive
            .map_err(|_| ClientError::Login("the runtime is stopping".to_owned()))?
            .map_err(|error| ClientError::Login(error.to_string()))?;
        let mut out = Vec::new();
        frontend::sasl_response(&proof, &mut out);
        self.connection.write(&out).await?;
        let signature = self.sasl().await?;
        last.verify(&signature).map_err(|error| ClientError::Login(error.to_string()))?;
        Ok(())
    }

    async fn sasl(&mut self) -> Result<Vec<u8>, ClientError> {
        let body = self.authentication().await?;
        match Authentication::decode(&body).map_err(ClientError::protocol)? {
            Authentication::SaslContinue(data) | Authentication::SaslFinal(data) => Ok(data.to_vec()),
            _ => Err(ClientError::Protocol("unexpected authentication message during SASL".to_owned())),
        }
    }

    async fn until_ready(mut self) -> Result<(), ClientError> {
        loop {
            let frame = self.frame().await?;
            match frame.tag {
                backend::BACKEND_KEY_DATA => {
                    self.connection.pid = BackendKeyData::decode(&frame.body).map_err(ClientError::protocol)?.pid;
                }
                backend::READY_FOR_QUERY => return Ok(()),
                // `next_frame` has recorded it.
                backend::PARAMETER_STATUS => {}
                other => {
                    let text = format!("message '{}' after the login", char::from(other).escape_default());
                    return Err(ClientError::Protocol(text));
                }
            }
        }
    }
}
