//! Why the gateway closes or refuses a client connection, with the texts of Postgres and of PgBouncer.

use tidegate_config::Dialect;
use tidegate_wire::{
    backend::ErrorReply,
    sqlstate::{self, SqlState},
};

/// Why a client is disconnected or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The limit of clients is reached.
    Clients,
    /// The client limit of the database is reached.
    DatabaseClients,
    /// The client limit of the user is reached.
    UserClients,
    /// The client limit of the address is reached.
    AddressClients,
    /// The address has many failed logins, and the maximum number of its logins is delayed already.
    FailedLogins,
    /// The login timed out.
    Login,
    /// The client was idle for too long.
    ClientIdle,
    /// The query ran too long.
    Query,
    /// The client was idle in a transaction for too long.
    IdleInTransaction,
    /// The transaction was open for too long.
    Transaction,
    /// The gateway is suspending, and the client does not read its replies.
    Suspend,
    /// An operator killed the client.
    Killed,
    /// The gateway is shutting down.
    ShuttingDown,
    /// The server that the session holds is being replaced.
    Outdated,
    /// The database was removed from the configuration.
    Removed,
    /// The user is unknown to method `trust`.
    Stranger,
    /// The user was looked up for method `trust` and does not exist.
    NoSuchUser,
    /// No HBA rule matches the client.
    NoRule,
    /// An HBA rule rejects the client.
    Rejected,
    /// The user of the peer process does not match.
    Peer,
    /// TLS is required, and the client does not use it.
    TlsRequired,
    /// The startup packet has no user name.
    Nameless,
    /// The server connection was lost.
    ServerGone,
    /// A client certificate is required, and the client does not use TLS.
    NoTls,
    /// A client certificate is required, and the client sent none.
    NoCertificate,
    /// The client certificate does not match the user.
    Certificate,
    /// The client certificate matches an unknown user.
    NoUser,
    /// PAM refused the login.
    Pam,
    /// The LDAP server refused the login.
    Ldap,
}

impl Cause {
    /// SQLSTATE and message for a client.
    #[must_use]
    pub fn refusal(self, dialect: Dialect) -> ErrorReply {
        match dialect {
            // PgBouncer uses one SQLSTATE for all errors of its own.
            Dialect::Pgbouncer => ErrorReply::new(sqlstate::PROTOCOL_VIOLATION, self.pgbouncer()),
            Dialect::Postgres => {
                let (state, text) = self.postgres();
                let refusal = ErrorReply::new(state, text);
                match self.hint() {
                    Some(hint) => refusal.hint(hint),
                    None => refusal,
                }
            }
        }
    }

    const fn hint(self) -> Option<&'static str> {
        match self {
            Self::Clients => Some("Raise max_clients in [listen], and the limit of open files with it."),
            Self::AddressClients => Some("Raise max_clients_per_address in [listen]."),
            Self::FailedLogins => Some("Try again later. failed_login_delay of [auth] sets the pace."),
            Self::TlsRequired => Some("Connect with sslmode=require or stricter."),
            Self::ServerGone => Some("It is not known whether the last statement was carried out."),
            _ => None,
        }
    }

    /// The reason in the log.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::ClientIdle => "client_idle timeout",
            Self::Query => "query timeout",
            Self::IdleInTransaction => "idle_in_transaction timeout",
            Self::Transaction => "transaction timeout",
            Self::Killed => "killed by an operator",
            Self::ShuttingDown => "shutdown",
            Self::ServerGone => "server lost",
            other => other.pgbouncer(),
        }
    }

    /// The reason of a refused login, in the log and in metrics.
    #[must_use]
    pub const fn refusal_reason(self) -> &'static str {
        match self {
            Self::Clients => "max_clients",
            Self::DatabaseClients => "max_clients_per_database",
            Self::UserClients => "max_clients_per_user",
            Self::AddressClients => "max_clients_per_address",
            Self::FailedLogins => "too many failed logins",
            Self::TlsRequired => "TLS required",
            other => other.reason(),
        }
    }

    /// Additional detail that PgBouncer logs and does not send to the client.
    #[must_use]
    pub const fn detail(self) -> Option<&'static str> {
        match self {
            Self::NoTls => Some("TLS connection required"),
            Self::NoCertificate => Some("TLS client certificate required"),
            Self::Certificate => Some("TLS certificate name mismatch"),
            _ => None,
        }
    }

    const fn postgres(self) -> (SqlState, &'static str) {
        match self {
            Self::Clients => (sqlstate::TOO_MANY_CONNECTIONS, "sorry, too many clients already"),
            Self::DatabaseClients => (sqlstate::TOO_MANY_CONNECTIONS, "too many connections for this database"),
            Self::UserClients => (sqlstate::TOO_MANY_CONNECTIONS, "too many connections for this role"),
            Self::AddressClients => (sqlstate::TOO_MANY_CONNECTIONS, "too many connections from this address"),
            Self::FailedLogins => (sqlstate::TOO_MANY_CONNECTIONS, "too many failed logins from this address"),
            Self::Login => (sqlstate::PROTOCOL_VIOLATION, "the login took longer than timeouts.login"),
            Self::ClientIdle => (sqlstate::IDLE_SESSION_TIMEOUT, "terminating connection due to idle-session timeout"),
            Self::Query => (sqlstate::QUERY_CANCELED, "canceling statement due to query timeout"),
            Self::IdleInTransaction => (
                sqlstate::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
                "terminating connection due to idle-in-transaction timeout",
            ),
            Self::Transaction => (sqlstate::TRANSACTION_TIMEOUT, "terminating connection due to transaction timeout"),
            Self::Suspend => (sqlstate::ADMIN_SHUTDOWN, "the connection did not come to rest within timeouts.suspend"),
            Self::Killed => (sqlstate::ADMIN_SHUTDOWN, "the connection was ended by an operator"),
            Self::ShuttingDown => (sqlstate::ADMIN_SHUTDOWN, "the gateway is shutting down"),
            Self::Removed => (sqlstate::ADMIN_SHUTDOWN, "the database was taken out of the configuration"),
            Self::Outdated => (sqlstate::ADMIN_SHUTDOWN, "the connection to the server is replaced by another one"),
            Self::Stranger | Self::NoSuchUser => {
                (sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, "trust authentication failed: no such user")
            }
            Self::NoRule => (sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, "no rule of hba_file lets this client in"),
            Self::Rejected => (sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, "a rule of hba_file rejects this client"),
            Self::Peer => (sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, "peer authentication failed"),
            Self::TlsRequired => (sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, "this gateway requires TLS"),
            Self::Nameless => {
                (sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, "no PostgreSQL user name specified in startup packet")
            }
            Self::ServerGone => (sqlstate::CONNECTION_FAILURE, "the server closed the connection unexpectedly"),
            Self::NoTls | Self::NoCertificate => {
                (sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, "connection requires a valid client certificate")
            }
            Self::NoUser => {
                (sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, "certificate authentication failed: no such user")
            }
            Self::Pam => (sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, "PAM authentication failed"),
            Self::Ldap => (sqlstate::INVALID_AUTHORIZATION_SPECIFICATION, "LDAP authentication failed"),
            Self::Certificate => (
                sqlstate::INVALID_AUTHORIZATION_SPECIFICATION,
                "certificate authentication failed: the certificate is not this user's",
            ),
        }
    }

    const fn pgbouncer(self) -> &'static str {
        match self {
            Self::Clients => "no more connections allowed (max_client_conn)",
            Self::DatabaseClients => "client connections exceeded (max_db_client_connections)",
            Self::UserClients => "client connections exceeded (max_user_client_connections)",
            Self::AddressClients => "client connections exceeded (max_clients_per_address)",
            Self::FailedLogins => "too many failed logins from this address",
            Self::Login => "client_login_timeout",
            Self::ClientIdle => "client_idle_timeout",
            Self::Query => "query timeout",
            Self::IdleInTransaction => "idle transaction timeout",
            Self::Transaction => "transaction timeout",
            Self::Suspend => "suspend_timeout",
            Self::Killed => "admin forced disconnect",
            Self::ShuttingDown => "server shutting down",
            Self::Outdated => "database configuration changed",
            Self::Removed => "database removed",
            Self::Stranger => "\"trust\" authentication failed",
            Self::NoSuchUser => "no such user",
            Self::NoRule => "no authentication method is found",
            Self::Rejected => "login rejected",
            Self::Peer => "unix socket login rejected",
            Self::TlsRequired => "SSL required",
            Self::Nameless => "no username supplied",
            Self::ServerGone => "server conn crashed?",
            Self::NoTls | Self::NoCertificate | Self::Certificate | Self::NoUser => "certificate authentication failed",
            Self::Pam => "PAM authentication failed",
            Self::Ldap => "LDAP authentication failed",
        }
    }
}

/// Maps a disconnect reason to the text of PgBouncer's log.
#[must_use]
pub fn pgbouncer_reason(reason: &str) -> &str {
    match reason {
        "client sent Terminate" | "console closed" | "replication ended" => "client close request",
        "client closed the connection"
        | "connection lost"
        | "client left while waiting"
        | "client left during a query" => "client unexpected eof",
        "checkout timeout" => "query_wait_timeout",
        "client_idle timeout" => "client_idle_timeout",
        "idle_in_transaction timeout" => "idle transaction timeout",
        "killed by an operator" => "admin forced disconnect",
        "shutdown" => "server shutting down",
        "server lost" | "server ended the connection" => "server conn crashed?",
        "client broke the protocol" => "bad packet",
        "message too long" => "bad packet header",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_has_its_code_and_words() {
        let refusal = Cause::Query.refusal(Dialect::Pgbouncer);
        assert_eq!((refusal.sqlstate, &*refusal.message), (sqlstate::PROTOCOL_VIOLATION, "query timeout"));
        let refusal = Cause::Query.refusal(Dialect::Postgres);
        assert_eq!(refusal.sqlstate, sqlstate::QUERY_CANCELED);
        assert_eq!(pgbouncer_reason(Cause::ClientIdle.reason()), "client_idle_timeout");
        assert_eq!(pgbouncer_reason("server ended the connection"), "server conn crashed?");
    }
}
