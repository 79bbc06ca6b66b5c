//! SQLSTATE error codes that a proxy reads or sends.

use std::fmt;

/// An SQLSTATE: five characters that identify an error.
///
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SqlState([u8; 5]);

impl SqlState {
    /// Parses a code; `None` unless `bytes` are five digits or capital letters.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let code: [u8; 5] = bytes.try_into().ok()?;
        let plain = code.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
        plain.then_some(Self(code))
    }

    /// The five characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or("XX000")
    }

    /// The class: the first two characters.
    #[must_use]
    pub fn class(&self) -> &str {
        self.as_str().get(..2).unwrap_or("XX")
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqlState({self})")
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => { $($(#[$doc])* pub const $name: SqlState = SqlState(*$code);)* };
}

codes! {
    /// Success.
    SUCCESSFUL_COMPLETION = b"00000";
    /// A warning without a code of its own.
    WARNING = b"01000";
    /// Connection error.
    CONNECTION_EXCEPTION = b"08000";
    /// The client cannot establish the connection.
    CLIENT_UNABLE_TO_CONNECT = b"08001";
    /// The connection does not exist.
    CONNECTION_DOES_NOT_EXIST = b"08003";
    /// The server rejected the connection.
    CONNECTION_REJECTED = b"08004";
    /// The connection failed.
    CONNECTION_FAILURE = b"08006";
    /// A message violates the protocol.
    PROTOCOL_VIOLATION = b"08P01";
    /// The feature is not supported; also a cached plan whose result type changed.
    FEATURE_NOT_SUPPORTED = b"0A000";
    /// The parameter cannot have this value.
    INVALID_PARAMETER_VALUE = b"22023";
    /// The bytes are not valid in the encoding.
    CHARACTER_NOT_IN_REPERTOIRE = b"22021";
    /// A transaction is already open.
    ACTIVE_SQL_TRANSACTION = b"25001";
    /// The transaction is read-only.
    READ_ONLY_SQL_TRANSACTION = b"25006";
    /// No transaction is open.
    NO_ACTIVE_SQL_TRANSACTION = b"25P01";
    /// The transaction failed: commands are ignored until its end.
    IN_FAILED_SQL_TRANSACTION = b"25P02";
    /// The session was idle in a transaction for longer than the timeout.
    IDLE_IN_TRANSACTION_SESSION_TIMEOUT = b"25P03";
    /// The transaction took longer than the timeout.
    TRANSACTION_TIMEOUT = b"25P04";
    /// The prepared statement does not exist.
    INVALID_SQL_STATEMENT_NAME = b"26000";
    /// The role may not log in this way.
    INVALID_AUTHORIZATION_SPECIFICATION = b"28000";
    /// The password is wrong.
    INVALID_PASSWORD = b"28P01";
    /// The portal or cursor does not exist.
    INVALID_CURSOR_NAME = b"34000";
    /// The database does not exist.
    INVALID_CATALOG_NAME = b"3D000";
    /// The transaction conflicts with a concurrent one.
    SERIALIZATION_FAILURE = b"40001";
    /// Deadlock.
    DEADLOCK_DETECTED = b"40P01";
    /// Syntax error or rule violation.
    SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION = b"42000";
    /// The role lacks the privilege.
    INSUFFICIENT_PRIVILEGE = b"42501";
    /// Syntax error.
    SYNTAX_ERROR = b"42601";
    /// The object does not exist.
    UNDEFINED_OBJECT = b"42704";
    /// The prepared statement already exists.
    DUPLICATE_PREPARED_STATEMENT = b"42P05";
    /// A resource is exhausted.
    INSUFFICIENT_RESOURCES = b"53000";
    /// Out of memory.
    OUT_OF_MEMORY = b"53200";
    /// Too many connections.
    TOO_MANY_CONNECTIONS = b"53300";
    /// A configured limit was reached.
    CONFIGURATION_LIMIT_EXCEEDED = b"53400";
    /// A limit of the program was exceeded.
    PROGRAM_LIMIT_EXCEEDED = b"54000";
    /// The state of the object does not allow this.
    OBJECT_NOT_IN_PREREQUISITE_STATE = b"55000";
    /// The parameter cannot be changed now.
    CANT_CHANGE_RUNTIME_PARAM = b"55P02";
    /// An operator intervened.
    OPERATOR_INTERVENTION = b"57000";
    /// The query was cancelled.
    QUERY_CANCELED = b"57014";
    /// An administrator terminated the connection.
    ADMIN_SHUTDOWN = b"57P01";
    /// The server terminated the connection after a crash.
    CRASH_SHUTDOWN = b"57P02";
    /// The server does not accept connections now.
    CANNOT_CONNECT_NOW = b"57P03";
    /// The database was dropped.
    DATABASE_DROPPED = b"57P04";
    /// The session was idle for longer than the timeout.
    IDLE_SESSION_TIMEOUT = b"57P05";
    /// The operating system reported an error.
    SYSTEM_ERROR = b"58000";
    /// The configuration file has an error.
    CONFIG_FILE_ERROR = b"F0000";
    /// Internal error.
    INTERNAL_ERROR = b"XX000";
}
