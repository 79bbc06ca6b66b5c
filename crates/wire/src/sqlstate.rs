//! The error codes that a gateway reads or sends.

use std::fmt;

/// Five characters that say what went wrong, for programs to act on.
///
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SqlState([u8; 5]);

impl SqlState {
    /// The code in `bytes`, `None` unless it is five digits or capital letters.
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

    /// The first two characters, which group the codes.
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
    /// Nothing went wrong.
    SUCCESSFUL_COMPLETION = b"00000";
    /// A warning without a code of its own.
    WARNING = b"01000";
    /// A connection could not be made or kept.
    CONNECTION_EXCEPTION = b"08000";
    /// The client could not establish the connection.
    CLIENT_UNABLE_TO_CONNECT = b"08001";
    /// There is no such connection.
    CONNECTION_DOES_NOT_EXIST = b"08003";
    /// The server refused the connection.
    CONNECTION_REJECTED = b"08004";
    /// The connection broke.
    CONNECTION_FAILURE = b"08006";
    /// The peer broke the protocol.
    PROTOCOL_VIOLATION = b"08P01";
    /// The feature is not supported; also a cached plan whose result type changed.
    FEATURE_NOT_SUPPORTED = b"0A000";
    /// A value that a parameter cannot have.
    INVALID_PARAMETER_VALUE = b"22023";
    /// Bytes that are no text of the encoding.
    CHARACTER_NOT_IN_REPERTOIRE = b"22021";
    /// The transaction is open already.
    ACTIVE_SQL_TRANSACTION = b"25001";
    /// Writing in a transaction that may only read.
    READ_ONLY_SQL_TRANSACTION = b"25006";
    /// No transaction is open.
    NO_ACTIVE_SQL_TRANSACTION = b"25P01";
    /// The transaction has failed and takes nothing but its end.
    IN_FAILED_SQL_TRANSACTION = b"25P02";
    /// The session was idle in a transaction for too long.
    IDLE_IN_TRANSACTION_SESSION_TIMEOUT = b"25P03";
    /// The transaction took too long.
    TRANSACTION_TIMEOUT = b"25P04";
    /// There is no such prepared statement.
    INVALID_SQL_STATEMENT_NAME = b"26000";
    /// The role may not connect like this.
    INVALID_AUTHORIZATION_SPECIFICATION = b"28000";
    /// The password is wrong.
    INVALID_PASSWORD = b"28P01";
    /// There is no such portal or cursor.
    INVALID_CURSOR_NAME = b"34000";
    /// There is no such database.
    INVALID_CATALOG_NAME = b"3D000";
    /// A transaction lost against a concurrent one.
    SERIALIZATION_FAILURE = b"40001";
    /// Two transactions waited for each other.
    DEADLOCK_DETECTED = b"40P01";
    /// Syntax error or rule violation.
    SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION = b"42000";
    /// The role may not do this.
    INSUFFICIENT_PRIVILEGE = b"42501";
    /// The text is not SQL.
    SYNTAX_ERROR = b"42601";
    /// A name that is defined nowhere.
    UNDEFINED_OBJECT = b"42704";
    /// The prepared statement exists already.
    DUPLICATE_PREPARED_STATEMENT = b"42P05";
    /// A resource ran out.
    INSUFFICIENT_RESOURCES = b"53000";
    /// Memory ran out.
    OUT_OF_MEMORY = b"53200";
    /// Too many connections.
    TOO_MANY_CONNECTIONS = b"53300";
    /// A configured limit was reached.
    CONFIGURATION_LIMIT_EXCEEDED = b"53400";
    /// A limit of the program was reached.
    PROGRAM_LIMIT_EXCEEDED = b"54000";
    /// The object is not in a state for this.
    OBJECT_NOT_IN_PREREQUISITE_STATE = b"55000";
    /// The parameter cannot be changed now.
    CANT_CHANGE_RUNTIME_PARAM = b"55P02";
    /// An operator stepped in.
    OPERATOR_INTERVENTION = b"57000";
    /// The query was cancelled.
    QUERY_CANCELED = b"57014";
    /// An administrator ended the connection.
    ADMIN_SHUTDOWN = b"57P01";
    /// The server ended the connection after a crash.
    CRASH_SHUTDOWN = b"57P02";
    /// The server takes no connections now.
    CANNOT_CONNECT_NOW = b"57P03";
    /// The database was dropped.
    DATABASE_DROPPED = b"57P04";
    /// The session was idle for too long.
    IDLE_SESSION_TIMEOUT = b"57P05";
    /// The system below failed.
    SYSTEM_ERROR = b"58000";
    /// The configuration file is wrong.
    CONFIG_FILE_ERROR = b"F0000";
    /// A defect of the program.
    INTERNAL_ERROR = b"XX000";
}
