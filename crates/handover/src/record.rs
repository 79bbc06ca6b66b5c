//! The state of a session between two processes.

use std::{fmt, net::SocketAddr};

use prost::Message as _;
use tidegate_config::{Secret, UserSecret};
use tidegate_pg_client::secrets::LoginSecrets;
use tidegate_wire::{
    auth::scram::{SaltedKeys, ScramKeys},
    backend::RowDescription,
    frame::HEADER,
    frontend::Parse,
};

/// A record that no process of this version sends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Not an encoded record.
    #[error("the record cannot be decoded: {0}")]
    Encoding(#[from] prost::DecodeError),
    /// A field has a value that it cannot have.
    #[error("the record has an invalid field: {0}")]
    Field(&'static str),
}

/// A session between transactions: all that its next transaction depends on.
///
/// Addresses are texts, empty for a unix socket. Ages are nanoseconds at the time of the export.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct SessionRecord {
    /// Database of the startup packet.
    #[prost(string, tag = "1")]
    pub database: String,
    /// User of the startup packet.
    #[prost(string, tag = "2")]
    pub user: String,
    /// Address of the client.
    #[prost(string, tag = "3")]
    pub peer: String,
    /// Local address of the connection.
    #[prost(string, tag = "4")]
    pub local: String,
    /// Process id of a client on a unix socket; 0 if unknown.
    #[prost(uint32, tag = "5")]
    pub process: u32,
    /// Time of the login, microseconds since 1970.
    #[prost(uint64, tag = "6")]
    pub connected_at_us: u64,
    /// Process id of the cancel key.
    #[prost(uint32, tag = "7")]
    pub pid: u32,
    /// Secret of the cancel key.
    #[prost(bytes = "vec", tag = "8")]
    pub secret: Vec<u8>,
    /// Route of the login as in the configuration; empty without one.
    #[prost(string, tag = "9")]
    pub route: String,
    /// Parameters that the client has set.
    #[prost(message, repeated, tag = "10")]
    pub settings: Vec<ParameterRecord>,
    /// Parameters last reported to the client.
    #[prost(message, repeated, tag = "11")]
    pub reported: Vec<ParameterRecord>,
    /// Parameters of the login, if they differ from `settings`.
    #[prost(message, repeated, tag = "12")]
    pub startup: Vec<ParameterRecord>,
    /// Whether `settings` are the parameters of the login.
    #[prost(bool, tag = "13")]
    pub is_as_at_login: bool,
    /// Whether a server receives the role before all other parameters.
    #[prost(bool, tag = "14")]
    pub is_role_first: bool,
    /// Number of parameters and statements with an identity of their own so far.
    #[prost(uint64, tag = "15")]
    pub stamps: u64,
    /// Prepared statements.
    #[prost(message, repeated, tag = "16")]
    pub statements: Vec<StatementRecord>,
    /// Unnamed statement.
    #[prost(message, optional, tag = "17")]
    pub unnamed: Option<UnnamedRecord>,
    /// First bytes of an incomplete message.
    #[prost(bytes = "vec", tag = "18")]
    pub beginning: Vec<u8>,
    /// Further bytes to be discarded.
    #[prost(uint64, tag = "19")]
    pub discard_bytes: u64,
    /// Whether messages up to the next Sync are discarded.
    #[prost(bool, tag = "20")]
    pub is_skipping: bool,
    /// Received bytes behind `beginning`.
    #[prost(bytes = "vec", tag = "21")]
    pub unread: Vec<u8>,
    /// Secrets for logins to servers; see [`Self::set_login`].
    #[prost(message, optional, tag = "22")]
    pub login: Option<LoginRecord>,
    /// Reasons why the client is pinned to its server, as bits.
    #[prost(uint32, tag = "23")]
    pub pins: u32,
    /// The server that the client is pinned to. Its socket is sent with the session.
    #[prost(message, optional, tag = "24")]
    pub server: Option<ServerRecord>,
}

/// A server connection between two transactions of its client.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct ServerRecord {
    /// Configured host.
    #[prost(string, tag = "1")]
    pub host: String,
    /// Address of the server; empty for a unix socket.
    #[prost(string, tag = "2")]
    pub address: String,
    /// Local address; empty for a unix socket.
    #[prost(string, tag = "3")]
    pub local: String,
    /// Database of the login.
    #[prost(string, tag = "4")]
    pub dbname: String,
    /// User of the login.
    #[prost(string, tag = "5")]
    pub user: String,
    /// Process id of the backend.
    #[prost(uint32, tag = "6")]
    pub pid: u32,
    /// Key of cancel requests.
    #[prost(bytes = "vec", tag = "7")]
    pub cancel_key: Vec<u8>,
    /// Time of the login, microseconds since 1970.
    #[prost(uint64, tag = "8")]
    pub connected_at_us: u64,
    /// Age of the connection.
    #[prost(uint64, tag = "9")]
    pub age_ns: u64,
    /// Values that the server has reported.
    #[prost(message, repeated, tag = "10")]
    pub reported: Vec<ParameterRecord>,
    /// Reported values without settings of a client.
    #[prost(message, repeated, tag = "11")]
    pub defaults: Vec<ParameterRecord>,
    /// Settings of the client.
    #[prost(message, repeated, tag = "12")]
    pub set: Vec<ParameterRecord>,
    /// Settings of `connect_query`.
    #[prost(message, repeated, tag = "13")]
    pub base: Vec<ParameterRecord>,
    /// Prepared statements, least recently used first.
    #[prost(message, repeated, tag = "14")]
    pub statements: Vec<PreparedRecord>,
    /// Number of the client's unnamed statement, if the server has it.
    #[prost(uint64, optional, tag = "15")]
    pub unnamed: Option<u64>,
    /// Reset that the server needs before its next client.
    #[prost(uint32, tag = "16")]
    pub reset_need: u32,
    /// Received bytes that the client has yet to get.
    #[prost(bytes = "vec", tag = "17")]
    pub unread: Vec<u8>,
}

impl fmt::Debug for ServerRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerRecord").field("host", &self.host).field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// A statement that is prepared on a server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreparedRecord {
    /// Key of the statement.
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) digest: Vec<u8>,
    /// Name on the server.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) name: Vec<u8>,
    /// Whether it has to be prepared again.
    #[prost(bool, tag = "3")]
    pub(crate) is_stale: bool,
    /// Age of its analysis.
    #[prost(uint64, tag = "4")]
    pub(crate) age_ns: u64,
    /// Shape of its description; empty if the server has not described it.
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) shape: Vec<u8>,
}

impl fmt::Debug for SessionRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { database, user, peer, .. } = self;
        f.debug_struct("SessionRecord")
            .field("database", database)
            .field("user", user)
            .field("peer", peer)
            .finish_non_exhaustive()
    }
}

/// A run-time parameter.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ParameterRecord {
    /// Name.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// A string value.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(crate) text: Option<Vec<u8>>,
    /// The right-hand side of a SET statement.
    #[prost(string, optional, tag = "3")]
    pub(crate) sql: Option<String>,
    /// Number of the SET, if the value belongs to this client alone.
    #[prost(uint64, optional, tag = "4")]
    pub(crate) stamp: Option<u64>,
}

/// A prepared statement.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatementRecord {
    /// Name for the client.
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) name: Vec<u8>,
    /// Text.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) text: Vec<u8>,
    /// Parameter types of its Parse.
    #[prost(fixed32, repeated, tag = "3")]
    pub(crate) types: Vec<u32>,
    /// Age of the Parse.
    #[prost(uint64, tag = "4")]
    pub(crate) parsed_age_ns: u64,
    /// Age of the oldest usable analysis.
    #[prost(uint64, tag = "5")]
    pub(crate) oldest_age_ns: u64,
    /// The same after the next analysis.
    #[prost(uint64, tag = "6")]
    pub(crate) tolerated_age_ns: u64,
    /// Shape of the description that the client has; empty without one.
    #[prost(bytes = "vec", tag = "7")]
    pub(crate) shape: Vec<u8>,
    /// Parameter types of that description.
    #[prost(fixed32, repeated, tag = "8")]
    pub(crate) parameters: Vec<u32>,
}

/// The unnamed statement.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UnnamedRecord {
    /// Parse message.
    #[prost(bytes = "vec", tag = "1")]
    pub message: Vec<u8>,
    /// Number of the statement.
    #[prost(uint64, tag = "2")]
    pub stamp: u64,
    /// Shape of the description that the client has; empty without one.
    #[prost(bytes = "vec", tag = "3")]
    pub shape: Vec<u8>,
    /// RowDescription of a portal of the statement that the client has; empty for NoData.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub columns: Option<Vec<u8>>,
}

/// Secrets for logins to servers. A looked-up secret is kept in the form of `pg_authid`.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct LoginRecord {
    #[prost(string, optional, tag = "1")]
    looked_up: Option<String>,
    #[prost(string, optional, tag = "2")]
    external: Option<String>,
    #[prost(message, optional, tag = "3")]
    configured_keys: Option<KeysRecord>,
    #[prost(message, optional, tag = "4")]
    looked_up_keys: Option<KeysRecord>,
}

impl fmt::Debug for LoginRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginRecord(..)")
    }
}

/// Keys of SCRAM, and the verifier that they match.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
struct KeysRecord {
    #[prost(string, tag = "1")]
    verifier: String,
    #[prost(bytes = "vec", tag = "2")]
    client_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    server_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    salt: Vec<u8>,
    #[prost(uint32, tag = "5")]
    iterations: u32,
}

impl fmt::Debug for KeysRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeysRecord(..)")
    }
}

/// Longest secret of a cancel key in protocol 3.2.
const SECRET_BYTES_MAX: usize = 256;

impl SessionRecord {
    /// The bytes for the other process. They contain secrets: [`wipe`] them after use.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// Decodes and checks a record.
    ///
    /// # Errors
    /// If it is not a record that [`Self::encode`] makes.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record = <Self as prost::Message>::decode(bytes)?;
        record.check()?;
        Ok(record)
    }

    fn check(&self) -> Result<(), RecordError> {
        let is_address = |text: &str| text.is_empty() || text.parse::<SocketAddr>().is_ok();
        let is_shape = |shape: &[u8]| shape.is_empty() || shape.len() == 16;
        let has_value = |parameter: &ParameterRecord| parameter.text.is_some() != parameter.sql.is_some();
        let parameters = self.settings.iter().chain(&self.reported).chain(&self.startup);
        let server = self.server.iter();
        let of_server = server
            .clone()
            .flat_map(|server| server.reported.iter().chain(&server.defaults).chain(&server.set).chain(&server.base));
        let is_server = |server: &ServerRecord| {
            let is_prepared = |record: &PreparedRecord| record.digest.len() == 16 && is_shape(&record.shape);
            is_address(&server.address)
                && is_address(&server.local)
                && !server.cancel_key.is_empty()
                && server.cancel_key.len() <= SECRET_BYTES_MAX
                && server.statements.iter().all(is_prepared)
        };
        let is_statement = |statement: &StatementRecord| {
            let has_nul = |bytes: &[u8]| memchr::memchr(0, bytes).is_some();
            is_shape(&statement.shape)
                && !statement.name.is_empty()
                && !has_nul(&statement.name)
                && !has_nul(&statement.text)
        };
        let is_unnamed = |unnamed: &UnnamedRecord| {
            let body = unnamed.message.get(HEADER..).and_then(|body| Parse::decode(body).ok());
            let columns = unnamed.columns.as_deref().unwrap_or_default();
            let are_valid = columns.is_empty() || RowDescription::decode(columns).is_ok();
            is_shape(&unnamed.shape) && are_valid && body.is_some()
        };
        let checks = [
            (!self.database.is_empty() && !self.user.is_empty(), "database and user"),
            (is_address(&self.peer) && is_address(&self.local), "address"),
            (self.pid != 0 && (1..=SECRET_BYTES_MAX).contains(&self.secret.len()), "cancel key"),
            (parameters.chain(of_server).all(has_value), "parameter"),
            (self.statements.iter().all(is_statement), "prepared statement"),
            (self.unnamed.iter().all(is_unnamed), "unnamed statement"),
            (self.pins <= u32::from(u8::MAX) && server.into_iter().all(is_server), "server"),
        ];
        checks.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, field)| Err(RecordError::Field(field)))
    }

    /// Address of the client; `None` for a unix socket.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.peer.parse().ok()
    }

    /// Local address; `None` for a unix socket.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.local.parse().ok()
    }

    /// Stores secrets for logins to servers.
    pub fn set_login(&mut self, secrets: LoginSecrets) {
        if secrets.is_empty() {
            return;
        }
        let LoginSecrets { looked_up, external, configured_keys, looked_up_keys } = secrets;
        let keys = |(verifier, SaltedKeys { keys, salt, iterations }): (Secret, SaltedKeys)| KeysRecord {
            verifier: verifier.reveal().to_owned(),
            client_key: keys.client_key.to_vec(),
            server_key: keys.server_key.to_vec(),
            salt,
            iterations,
        };
        self.login = Some(LoginRecord {
            looked_up: looked_up.map(|secret| secret.secret().reveal().to_owned()),
            external: external.map(|password| password.reveal().to_owned()),
            configured_keys: configured_keys.map(keys),
            looked_up_keys: looked_up_keys.map(keys),
        });
    }

    /// Takes the secrets for logins to servers. Those that are damaged are left out: the next login of the user replaces them.
    pub fn take_login(&mut self) -> LoginSecrets {
        let Some(login) = self.login.take() else { return LoginSecrets::default() };
        let keys = |record: KeysRecord| {
            let client_key = record.client_key.try_into().ok()?;
            let server_key = record.server_key.try_into().ok()?;
            let keys = ScramKeys { client_key, server_key };
            Some((Secret::new(record.verifier), SaltedKeys { keys, salt: record.salt, iterations: record.iterations }))
        };
        LoginSecrets {
            looked_up: login.looked_up.and_then(|text| UserSecret::parse(&text).ok()),
            external: login.external.map(Secret::new),
            configured_keys: login.configured_keys.and_then(keys),
            looked_up_keys: login.looked_up_keys.and_then(keys),
        }
    }
}

/// Overwrites bytes that may contain secrets.
pub fn wipe(bytes: &mut Vec<u8>) {
    bytes.fill(0);
    // The compiler may remove writes that nothing reads.
    std::hint::black_box(bytes.as_slice());
    bytes.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SessionRecord {
        SessionRecord {
            database: "shop".to_owned(),
            user: "app".to_owned(),
            peer: "127.0.0.1:5000".to_owned(),
            pid: 5,
            secret: vec![1; 4],
            ..SessionRecord::default()
        }
    }

    #[test]
    fn record_survives_its_encoding() {
        let keys = SaltedKeys {
            keys: ScramKeys { client_key: [1; 32], server_key: [2; 32] },
            salt: vec![3; 16],
            iterations: 4096,
        };
        let secrets = LoginSecrets {
            looked_up: Some(UserSecret::Plain(Secret::new("hunter2"))),
            external: Some(Secret::new("hunter3")),
            configured_keys: None,
            looked_up_keys: Some((Secret::new("verifier"), keys)),
        };
        let mut sent = record();
        sent.set_login(secrets.clone());
        let mut received = SessionRecord::decode(&sent.encode()).unwrap();
        assert!(received == sent);
        assert_eq!(received.take_login(), secrets);
        let text = format!("{sent:?}{:?}", sent.login);
        assert!(text.contains("shop") && !text.contains("hunter"), "{text}");
    }

    #[test]
    fn damaged_records_are_refused() {
        let with = |change: fn(&mut SessionRecord)| {
            let mut changed = record();
            change(&mut changed);
            SessionRecord::decode(&changed.encode())
        };
        assert!(with(|_| ()).is_ok());
        let statement =
            || StatementRecord { name: b"s".to_vec(), text: b"select 1".to_vec(), ..StatementRecord::default() };
        for change in [
            (|record| record.user.clear()) as fn(&mut SessionRecord),
            |record| record.peer = "nowhere".to_owned(),
            |record| record.secret.clear(),
            |record| record.secret = vec![0; 257],
            |record| record.settings.push(ParameterRecord { name: "a".to_owned(), ..ParameterRecord::default() }),
            |record| record.unnamed = Some(UnnamedRecord { message: b"P\0\0".to_vec(), ..UnnamedRecord::default() }),
            |record| record.pins = 256,
            |record| record.server = Some(ServerRecord::default()),
            |record| record.server = Some(ServerRecord { cancel_key: vec![0; 257], ..ServerRecord::default() }),
            |record| {
                let statements = vec![PreparedRecord { digest: vec![0; 15], ..PreparedRecord::default() }];
                record.server = Some(ServerRecord { statements, cancel_key: vec![0; 4], ..ServerRecord::default() });
            },
        ] {
            assert!(with(change).is_err());
        }
        let mut changed = record();
        changed.statements = vec![StatementRecord { text: b"select\0".to_vec(), ..statement() }];
        assert!(SessionRecord::decode(&changed.encode()).is_err());
        changed.statements = vec![StatementRecord { shape: vec![1; 15], ..statement() }];
        assert!(SessionRecord::decode(&changed.encode()).is_err());
        let bytes = record().encode();
        (1..bytes.len()).for_each(|end| drop(SessionRecord::decode(&bytes[..end])));
    }
}
