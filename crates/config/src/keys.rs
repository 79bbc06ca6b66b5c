//! All keys of all sections except `[route]` and `[[streams]]`.
//!
//! A duration of zero means off, unless the key documents another meaning; an empty path or text means none.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::cipher_suite::{CipherSuite, KeyGroup};
use super::hosts::{HostList, RawRoute, RouteConfig, SessionAttrs};
use super::journal_rule::JournalRules;
use super::raw::{RawEntry, RawValue};
use super::secret::{MASK, Secret};
use super::section::{ConfigKey, KeyScope, RawSection, section};
use super::setting::{FileMode, Setting, ValueClass, ValueError, list, text, words};
use super::stream::Properties;
use super::time_limit::{ReserveDelay, ServerLifetime};
use super::url::{Host, PgUrl};

words! {
    /// TLS on client connections.
    pub enum ClientTls {
        /// SSLRequest is answered with `N`.
        Off = "off",
        /// TLS is used if the client requests it.
        Allow = "allow",
        /// A client without TLS is refused.
        Require = "require",
    }

    /// Whether clients need a certificate, if `tls_client_ca` is set.
    pub enum ClientCertificate {
        /// A certificate is requested, but optional.
        Allow = "allow",
        /// A certificate is required.
        Require = "require",
    }

    /// Authentication method.
    pub enum AuthMethod {
        /// No authentication.
        Trust = "trust",
        /// Clear-text password.
        Password = "password",
        /// MD5 challenge; SCRAM for a user with a SCRAM verifier.
        Md5 = "md5",
        /// SCRAM-SHA-256.
        ScramSha256 = "scram-sha-256",
        /// Certificate whose common name is the user name.
        Cert = "cert",
        /// Clear-text password that PAM verifies; needs the feature `pam`.
        Pam = "pam",
        /// Clear-text password that an LDAP server verifies; needs the feature `ldap`.
        Ldap = "ldap",
        /// The first matching rule of `hba_file` decides.
        Hba = "hba",
    }

    /// Wording of the gateway's own errors and log lines.
    pub enum Dialect {
        /// Postgres' wording, where it has one.
        Postgres = "postgres",
        /// PgBouncer's wording, so that existing alerts keep working.
        Pgbouncer = "pgbouncer",
    }

    /// How long a client keeps its server connection.
    pub enum PoolMode {
        /// The whole session.
        Session = "session",
        /// A transaction.
        Transaction = "transaction",
        /// A statement; transaction blocks are refused.
        Statement = "statement",
    }

    /// libpq's `sslmode`, for connections to servers.
    pub enum SslMode {
        /// No TLS.
        Disable = "disable",
        /// TLS only if the server requires it.
        Allow = "allow",
        /// TLS if the server supports it.
        Prefer = "prefer",
        /// TLS without verification of the certificate.
        Require = "require",
        /// TLS with a certificate of a trusted authority.
        VerifyCa = "verify-ca",
        /// TLS with a certificate of a trusted authority for the host name.
        VerifyFull = "verify-full",
    }

    /// How TLS to a server starts.
    pub enum SslNegotiation {
        /// SSLRequest in clear text, which every server supports.
        Postgres = "postgres",
        /// Immediately (Postgres 17 and newer), which saves a round trip.
        Direct = "direct",
    }

    /// libpq's `channel_binding`, for connections to servers.
    pub enum ChannelBindingMode {
        /// SCRAM without channel binding.
        Disable = "disable",
        /// Channel binding if the server supports it.
        Prefer = "prefer",
        /// Channel binding or no login; other methods are refused.
        Require = "require",
    }

    /// Format of log lines.
    pub enum LogFormat {
        /// Text, with colour if standard error is a terminal.
        Auto = "auto",
        /// Text without colour.
        Text = "text",
        /// JSON object per line.
        Json = "json",
        /// Line prefixes as in PgBouncer, for programs that parse its log.
        Pgbouncer = "pgbouncer",
    }

    /// Least severe level that is logged.
    pub enum LogLevel {
        /// Errors that need attention now.
        Error = "error",
        /// Problems that need attention later.
        Warn = "warn",
        /// Start, stop, reload and connections.
        Info = "info",
        /// Details for debugging.
        Debug = "debug",
        /// Every protocol message; slow.
        Trace = "trace",
    }

    /// Syslog facility.
    pub enum SyslogFacility {
        /// Security messages.
        Auth = "auth",
        /// Private security messages.
        Authpriv = "authpriv",
        /// System daemons.
        Daemon = "daemon",
        /// User-level messages.
        User = "user",
        /// Local use.
        Local0 = "local0",
        /// Local use.
        Local1 = "local1",
        /// Local use.
        Local2 = "local2",
        /// Local use.
        Local3 = "local3",
        /// Local use.
        Local4 = "local4",
        /// Local use.
        Local5 = "local5",
        /// Local use.
        Local6 = "local6",
        /// Local use.
        Local7 = "local7",
    }

    /// Unit of a record of the query log.
    pub enum RecordUnit {
        /// A query.
        Query = "query",
        /// A transaction with all its queries.
        Transaction = "transaction",
    }

    /// Format of records on disk.
    pub enum JournalFormat {
        /// Frames with length, time and checksum, which detect any damage.
        Framed = "framed",
        /// JSON object per line, for other programs.
        Json = "json",
    }

    /// Recorded form of a statement.
    pub enum StatementForm {
        /// Text as the client sent it, and fingerprint.
        Text = "text",
        /// Text with literals replaced, and fingerprint.
        Normalised = "normalised",
        /// Fingerprint only.
        Fingerprint = "fingerprint",
        /// No statement text and no fingerprint.
        Off = "off",
    }

    /// Recorded form of bound parameters.
    pub enum ParameterForm {
        /// No parameters.
        Off = "off",
        /// Values.
        On = "on",
        /// Number of parameters, and which are NULL.
        Redacted = "redacted",
    }

    /// Behaviour when the memory for records is full.
    pub enum JournalOverload {
        /// The new record is dropped.
        DropNewest = "drop_newest",
        /// The oldest unwritten records are dropped.
        DropOldest = "drop_oldest",
        /// Keeps one in `sample_one_in` records from half full on.
        Sample = "sample",
    }

    /// When records are written to disk.
    pub enum JournalAck {
        /// When a batch is full or `linger` has passed.
        Accepted = "accepted",
        /// Immediately, to the page cache: records survive the process.
        Written = "written",
        /// Immediately and synced: records survive a power failure.
        Durable = "durable",
    }

    /// Compression of finished segments.
    pub enum JournalCompression {
        /// No compression.
        Off = "off",
        /// zstd, on a separate thread.
        Zstd = "zstd",
    }

    /// I/O backend of the data plane.
    pub enum IoBackend {
        /// io_uring if the kernel allows it, otherwise epoll.
        Auto = "auto",
        /// io_uring; without it the start fails.
        IoUring = "io_uring",
        /// epoll.
        Epoll = "epoll",
    }
}

/// Maximum length in bytes of a message in Postgres.
pub const MESSAGE_MAX: u32 = 1 << 30;

section! {
    /// `[listen]`: addresses, sockets and TLS for clients.
    pub struct ListenConfig, raw RawListen {
        /// TCP addresses, `IP:port` each; `*:6432` is every interface, IPv6 included, `[]` none.
        addresses: Vec<SocketAddr> = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 6432))] => Restart Process;
        /// Directory of the Unix socket `.s.PGSQL.<port>`; empty for none. `@name` is an abstract socket, which every local
        /// user can reach.
        unix_socket_dir: PathBuf = PathBuf::new() => Restart Process;
        /// Port in the name of the socket file; 0 for the port of the first address (6432 without one).
        unix_socket_port: u16 = 0 => Restart Process;
        /// Permissions of the socket file, in octal.
        unix_socket_mode: FileMode = FileMode(0o777) => Restart Process;
        /// Group of the socket file, by name or number; empty for the group of the process.
        unix_socket_group: String = String::new() => Restart Process;
        /// Connections that the kernel queues before they are accepted.
        backlog: u32 = 4096, in 1..=1_000_000 => Restart Process;
        /// TLS for clients: `off`, `allow` or `require`; all but `off` need `tls_cert` and `tls_key`.
        tls: ClientTls = ClientTls::Off => Live Process;
        /// PEM file with the certificate and its chain.
        tls_cert: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with the private key of the certificate.
        tls_key: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with certificate authorities; if set, clients are asked for a certificate that one of them has signed.
        tls_client_ca: PathBuf = PathBuf::new() => Live Process;
        /// `require` or `allow`: whether a client may connect without a certificate when `tls_client_ca` is set.
        tls_client_cert: ClientCertificate = ClientCertificate::Require => Live Process;
        /// Cipher suites of TLS 1.2 and 1.3 by their OpenSSL names; a version without a suite is disabled. `[]` for all.
        tls_ciphers: Vec<CipherSuite> = Vec::new() => Live Process;
        /// Key exchange groups: `X25519`, `prime256v1`, `secp384r1`; `[]` for all.
        tls_groups: Vec<KeyGroup> = Vec::new() => Live Process;
        /// Maximum number of client connections; further ones are refused with SQLSTATE 53300. Each takes a file descriptor.
        max_clients: u32 = 10_000, in 1..=10_000_000 => Live Process;
        /// Maximum number of client connections from one IPv4 address or one IPv6 /64 network; further ones are refused with
        /// SQLSTATE 53300. 0 is no limit. The limit ignores console and Unix socket clients, and allows as many more that are
        /// logging in.
        max_clients_per_address: u32 = 0, in 0..=10_000_000 => Live Process;
        /// Whether other processes may listen on the same addresses (`SO_REUSEPORT`); the kernel distributes clients among
        /// them.
        reuse_port: bool = false => Restart Process;
        /// Number of this gateway among those behind the same address, as in `[peers.ID]`; 0 for none.
        peer_id: u16 = 0, in 0..=PEER_MAX => Restart Process;
        /// `postgres` or `pgbouncer`: the wording of the gateway's own errors and log lines.
        dialect: Dialect = Dialect::Postgres => Live Process;
        /// Startup parameters of clients that are dropped; `options` stands for every parameter inside `options`.
        ignore_startup_parameters: Vec<String> = Vec::new() => Live Process;
        /// Whether the client address is appended to the application name at login.
        application_name_add_host: bool = false => Live Process;
        /// Notice that clients receive after login; empty for none.
        login_notice: String = String::new() => Live Process;
    }
}

section! {
    /// `[auth]`: authentication of clients.
    pub struct AuthConfig, raw RawAuth {
        /// `trust`, `password` (clear text), `md5`, `scram-sha-256`, `cert`, `pam`, `ldap` or `hba`.
        method: AuthMethod = AuthMethod::ScramSha256 => Live Process;
        /// Whether `trust`, `cert` and `peer` admit users that `[users]` does not declare.
        strangers: bool = true => Live Process;
        /// Iterations of verifiers that are derived from clear-text passwords. More iterations slow down attackers and the
        /// first login of each user.
        scram_iterations: u32 = 4096, in 1..=1_000_000 => Live Process;
        /// Secret from which the SCRAM salts of users without a verifier, unknown users included, are derived. Processes
        /// behind one address need the same value. If empty, `/etc/machine-id` is used, or a random value per start.
        salt_secret: Secret = Secret::default() => Restart Process;
        /// Delay of the reply to a failed login. After ten failures of an address or a user it doubles with each further
        /// failure; the count halves every minute. Logins from such an address start one at a time, one per delay. 0
        /// disables.
        failed_login_delay: Duration = Duration::from_millis(100) => Live Process;
        /// Maximum delay. A login that would have to wait longer before it starts is refused.
        failed_login_delay_max: Duration = Duration::from_secs(5) => Live Process;
        /// Whether SCRAM-SHA-256-PLUS is offered to clients over TLS. It fails if a proxy in front of the gateway terminates
        /// TLS.
        channel_binding: bool = true => Live Process;
        /// Rules in the form of `pg_hba.conf`, for method `hba`; a reload reads the file again.
        hba_file: PathBuf = PathBuf::new() => Live Process;
        /// User name maps in the form of `pg_ident.conf`, for `map=` in the rules.
        ident_file: PathBuf = PathBuf::new() => Live Process;
        /// PAM service name for method `pam`; its rules are in `/etc/pam.d/SERVICE`.
        pam_service: String = "tidegate".to_owned() => Live Process;
        /// Options of method `ldap`, as in `pg_hba.conf`, such as `ldapurl="ldap://..."`.
        ldap_options: Secret = Secret::default() => Live Process;
        /// User that looks up passwords on the server for users that `[users]` does not declare or declares without a
        /// password; empty for no look-up.
        lookup_user: String = String::new() => Live Process;
        /// Query of the look-up: `$1` is the user name, the row holds name and password.
        lookup_query: String = DEFAULT_QUERY.to_owned() => Live Process;
        /// Database of the look-up; empty for the database that the client asks for.
        lookup_database: String = String::new() => Live Process;
    }
}

section! {
    /// `[pool]`: number of server connections, and their assignment to clients.
    pub struct PoolConfig, raw RawPool {
        /// `session`, `transaction` or `statement`: how long a client keeps its server connection.
        mode: PoolMode = PoolMode::Transaction => Live Pool;
        /// Maximum number of server connections per database and user. Each is a Postgres process.
        size: u32 = 20, in 1..=100_000 => Live Pool;
        /// Server connections that stay open without use. With `shared_pool` they are opened before the first client
        /// connects.
        min_size: u32 = 0, in 0..=100_000 => Live Pool;
        /// Additional server connections once a client has waited for `reserve_after`.
        reserve_size: u32 = 0, in 0..=100_000 => Live Pool;
        /// Wait of a client after which the reserve is opened; 0 opens it immediately, `never` keeps it closed.
        reserve_after: ReserveDelay = ReserveDelay::Wait(Duration::from_secs(5)) => Live Pool;
        /// Maximum number of concurrent logins to the server.
        connects_in_flight: u32 = 4, in 1..=1000 => Live Pool;
        /// Maximum number of prepared statements on each server connection, evicted least recently used; each takes memory in
        /// Postgres. With 0 they are not tracked, and named statements work in session mode only.
        prepared_statements_per_server: u32 = 500, in 0..=1_000_000 => Live Pool;
        /// Maximum age, at a client's Parse, of another client's analysis that may be shared. A schema change through the
        /// gateway takes effect immediately, any other within this time. The server that receives the Parse always analyses
        /// again. With 0 every server analyses again for every client.
        prepared_statement_max_age: Duration = Duration::from_secs(1) => Live Pool;
        /// Whether LISTEN, WITH HOLD cursors, session advisory locks, temporary tables and SQL PREPARE pin the client to its
        /// server; false refuses them with SQLSTATE 0A000 and a hint.
        pin: bool = true => Live Pool;
        /// Whether clients wait up to `timeouts.checkout` for a server that is unreachable; otherwise they get an error
        /// immediately. A login that the server refuses is always an error. With several servers `failover_wait` applies.
        wait_for_server: bool = false => Live Pool;
        /// Whether clients may use the simple query protocol, in which one message can hold several statements.
        simple_query: bool = true => Live Pool;
        /// Maximum length in bytes of a client message other than CopyData and FunctionCall; a longer one ends the
        /// connection.
        message_max: u32 = MESSAGE_MAX, in 64..=MESSAGE_MAX => Live Pool;
        /// SQL that resets a server connection when a client of session mode leaves, or, after `DISCARD ALL`, when a pinned
        /// client leaves; empty for none.
        server_reset: String = "DISCARD ALL".to_owned() => Live Pool;
        /// Whether `server_reset` also runs after every transaction and statement.
        server_reset_always: bool = false => Live Pool;
        /// SQL that checks a server connection before its next client if it was idle for `server_check_after`; empty for
        /// none. A connection that fails is closed, and the client gets another.
        server_check: String = String::new() => Live Pool;
        /// Idle time after which `server_check` runs; 0 checks before every use but the first.
        server_check_after: Duration = Duration::from_secs(30) => Live Pool;
        /// Whether the server connection that was idle longest is used first; otherwise the most recently used one is.
        oldest_first: bool = false => Live Pool;
        /// Whether a client of session mode is disconnected, outside of a transaction, when its server connection is to be
        /// replaced; otherwise it keeps the connection until it leaves.
        fast_close: bool = false => Live Pool;
        /// Maximum number of server connections of all pools of a database; 0 is no limit. Idle connections are closed to
        /// make room.
        max_per_database: u32 = 0, in 0..=10_000_000 => Live Process;
        /// Maximum number of server connections of all pools of a user; 0 is no limit. Idle connections are closed to make
        /// room.
        max_per_user: u32 = 0, in 0..=10_000_000 => Live Process;
        /// Maximum number of clients of a database; 0 is no limit.
        max_clients_per_database: u32 = 0, in 0..=10_000_000 => Live Process;
        /// Maximum number of clients of a user; 0 is no limit.
        max_clients_per_user: u32 = 0, in 0..=10_000_000 => Live Process;
    }
}

section! {
    /// `[timeouts]`: time limits.
    pub struct TimeoutConfig, raw RawTimeouts {
        /// Maximum wait for a server connection; then the client gets an error.
        checkout: Duration = Duration::from_secs(120) => Live Pool;
        /// Wait for a server connection after which the client receives a notice; 0 for none.
        checkout_notice: Duration = Duration::ZERO => Live Pool;
        /// Connecting and logging in to a server.
        connect: Duration = Duration::from_secs(15) => Live Pool;
        /// Pause after a failed connect; doubles up to `connect_retry_max`, with jitter. There is no pause with 0 and after a
        /// refused login.
        connect_retry: Duration = Duration::from_secs(1) => Live Pool;
        /// Maximum pause between connects, or `connect_retry` if that is longer.
        connect_retry_max: Duration = Duration::from_secs(15) => Live Pool;
        /// Login of a client, from accept to the first ReadyForQuery.
        login: Duration = Duration::from_secs(60) => Live Process;
        /// Idle time after which a server connection is closed, down to `min_size`.
        server_idle: Duration = Duration::from_secs(600) => Live Pool;
        /// Age at which a server connection is closed when it becomes idle, with 10 % of jitter. With `single_use` it is closed
        /// after the first client that has used it.
        server_lifetime: ServerLifetime = ServerLifetime::Age(Duration::from_secs(3600)) => Live Pool;
        /// Idle time outside of a transaction after which a client is disconnected.
        client_idle: Duration = Duration::ZERO => Live Pool;
        /// Maximum duration of a query; then it is cancelled and its client disconnected. Executions up to one Sync count as
        /// one query.
        query: Duration = Duration::ZERO => Live Pool;
        /// Maximum duration of a transaction; then its client is disconnected.
        transaction: Duration = Duration::ZERO => Live Pool;
        /// Idle time inside a transaction after which a client is disconnected.
        idle_in_transaction: Duration = Duration::ZERO => Live Pool;
        /// Time after which a database that only `*` names and that has neither clients nor servers is removed with its
        /// statistics; 0 never.
        auto_database: Duration = Duration::from_secs(3600) => Live Process;
        /// How long clients may stay after SIGTERM, `shutdown_delay` included; 0 is no limit. The default ends before
        /// Kubernetes kills the process (30 s).
        shutdown: Duration = Duration::from_secs(25) => Live Process;
        /// How long new clients are still accepted after SIGTERM, while `/ready` answers 503, so that load balancers take the
        /// gateway out first.
        shutdown_delay: Duration = Duration::ZERO => Live Process;
        /// How long clients that cannot move may stay with a process that was replaced by `--take-over`; 0 is no limit. Then they
        /// get SQLSTATE 57P01.
        take_over: Duration = Duration::ZERO => Live Process;
        /// How long SUSPEND waits until all sent data is received; clients and servers that do not receive it are
        /// disconnected. 0 is no limit.
        suspend: Duration = Duration::from_secs(10) => Live Process;
        /// Delivering a cancel request to a server.
        cancel: Duration = Duration::from_secs(10) => Live Process;
    }
}

section! {
    /// `[databases.NAME]`: one upstream; clients use NAME, and `*` is any other name. All keys of `[pool]` and `[route]`
    /// and most of `[timeouts]` may be set here too.
    pub struct DatabaseKeys, raw RawDatabase {
        /// `postgres://user:password@host:port/dbname?sslmode=...` instead of the keys below.
        url: PgUrl = PgUrl::default() => Live Process;
        /// Host name, address, or directory of a Unix socket; several are separated by commas.
        host: String = String::new() => Live Process;
        /// List of servers instead of `host`: strings such as `"10.0.0.1:5432"`, `"/run/postgresql"` or
        /// `"srv:_postgresql._tcp.db.example"`, or tables with `host`, `port`, `weight` and `zone`.
        hosts: HostList = HostList::default() => Live Process;
        /// Port of every host.
        port: u16 = 5432, in 1..=65535 => Live Process;
        /// Database name on the server; empty for the name that the client uses.
        dbname: String = String::new() => Live Process;
        /// User of all logins to the server; empty for the name of the client.
        user: String = String::new() => Live Process;
        /// Password of `user`, or `md5...` or `SCRAM-SHA-256$...` as Postgres stores it.
        password: Secret = Secret::default() => Live Process;
        /// `disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`, as in libpq.
        sslmode: SslMode = SslMode::Prefer => Live Process;
        /// PEM file with trusted authorities; empty, or `system`, for those of the machine.
        sslrootcert: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with the client certificate for the server.
        sslcert: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with the private key of `sslcert`.
        sslkey: PathBuf = PathBuf::new() => Live Process;
        /// `postgres` sends SSLRequest first; `direct` starts TLS immediately (Postgres 17, sslmode `require` or stricter).
        sslnegotiation: SslNegotiation = SslNegotiation::Postgres => Live Process;
        /// Cipher suites of TLS 1.2 and 1.3 by their OpenSSL names; a version without a suite is disabled. `[]` for all.
        sslciphers: Vec<CipherSuite> = Vec::new() => Live Process;
        /// `disable`, `prefer` or `require`, as in libpq: whether SCRAM logins are bound to the server certificate.
        channel_binding: ChannelBindingMode = ChannelBindingMode::Prefer => Live Process;
        /// Table of parameters that are sent at login to a server, such as `{ search_path = "app" }`.
        startup_parameters: StartupParameters = StartupParameters::default() => Live Process;
        /// Whether all clients share one pool, which needs `user`; otherwise each client user has its own pool.
        shared_pool: bool = false => Live Process;
        /// SQL that every new server connection runs before its first client.
        connect_query: Secret = Secret::default() => Live Process;
        /// `pool.max_per_database` for this database.
        max_servers: u32 = 0, in 0..=10_000_000 => Live Process;
        /// `pool.max_clients_per_database` for this database.
        max_clients: u32 = 0, in 0..=10_000_000 => Live Process;
        /// `auth.lookup_user` for clients of this database.
        lookup_user: String = String::new() => Live Process;
        /// `auth.lookup_query` for clients of this database.
        lookup_query: String = String::new() => Live Process;
        /// `auth.lookup_database` for clients of this database.
        lookup_database: String = String::new() => Live Process;
        /// libpq's form of `route`: `any`, `read-write`, `read-only`, `primary`, `standby` or `prefer-standby`. With one host
        /// it also enables the choice among its addresses.
        target_session_attrs: SessionAttrs = SessionAttrs::Primary => Live Process;
    }
}

section! {
    /// `[users.NAME]`: users that may log in, and settings of users; a table with settings only admits no client. All keys of
    /// `[pool]` and `[route]` and most of `[timeouts]` may be set here too, and take precedence over those of the database.
    pub struct UserKeys, raw RawUser {
        /// The password, or `md5...` or `SCRAM-SHA-256$...` as Postgres stores it.
        password: Secret = Secret::default() => Live Process;
        /// File whose first line is the password, instead of `password`.
        password_file: PathBuf = PathBuf::new() => Live Process;
        /// `pool.max_per_user` for this user.
        max_servers: u32 = 0, in 0..=10_000_000 => Live Process;
        /// `pool.max_clients_per_user` for this user.
        max_clients: u32 = 0, in 0..=10_000_000 => Live Process;
    }
}

/// Maximum number of a peer.
pub(crate) const PEER_MAX: u16 = 16_383;

section! {
    /// `[peers.ID]`: another gateway behind the same address; ID is its `listen.peer_id`. Cancel requests for its clients
    /// are forwarded to it.
    pub struct PeerKeys, raw RawPeer {
        /// Host name or address on which only this peer listens, or the directory of its Unix socket.
        host: String = String::new() => Live Process;
        /// Port.
        port: u16 = 6432, in 1..=65535 => Live Process;
        /// Maximum number of concurrent cancel requests to this peer; more wait.
        size: u32 = 20, in 1..=100_000 => Live Process;
    }
}

impl PeerKeys {
    /// Address of the peer.
    #[must_use]
    pub fn host(&self) -> Host {
        Host::new(&self.host, self.port)
    }
}

section! {
    /// `[admin]`: users of the console, which is the database `tidegate` (or `pgbouncer`).
    pub struct AdminConfig, raw RawAdmin {
        /// Users that may run every console command.
        users: Vec<String> = vec!["postgres".to_owned()] => Live Process;
        /// Users that may run `SHOW` only.
        stats_users: Vec<String> = Vec::new() => Live Process;
        /// Whether `SET` may change keys that name files (`log.file`, `auth.hba_file`, `listen.tls_key`) and, as `conffile`,
        /// the file that `RELOAD` reads. Always true with a `pgbouncer.ini`.
        set_files: bool = false => Restart Process;
    }
}

section! {
    /// `[admin.http]`: the web console, for the users of `[admin]` that have a password in `[users]`.
    pub struct AdminHttpConfig, raw RawAdminHttp {
        /// Addresses that serve the web console; `[]` for none.
        addresses: Vec<SocketAddr> = Vec::new() => Restart Process;
        /// Host names by which browsers may address the web console, apart from `localhost` and IP addresses.
        hosts: Vec<String> = Vec::new() => Live Process;
        /// PEM file with the certificate and its chain, for HTTPS; empty for HTTP.
        tls_cert: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with the private key of the certificate.
        tls_key: PathBuf = PathBuf::new() => Live Process;
        /// Idle time after which a login ends.
        session_idle: Duration = Duration::from_secs(1800) => Live Process;
    }
}

section! {
    /// `[log]`: content, destination and format of the log.
    pub struct LogConfig, raw RawLog {
        /// `auto` (text, with colour on a terminal), `text`, `json`, or `pgbouncer` (line prefixes as in PgBouncer).
        format: LogFormat = LogFormat::Auto => Restart Process;
        /// `error`, `warn`, `info`, `debug` or `trace`; `debug` events of libraries appear at `trace`.
        level: LogLevel = LogLevel::Info => Live Process;
        /// Whether each client login is logged.
        connections: bool = true => Live Process;
        /// Whether each client disconnect is logged.
        disconnections: bool = true => Live Process;
        /// Whether each error that the gateway itself returns to a client is logged.
        refusals: bool = true => Live Process;
        /// File to which lines are appended, reopened by SIGHUP and `RELOAD`; empty for none.
        file: PathBuf = PathBuf::new() => Live Process;
        /// Whether lines go to standard error.
        stderr: bool = true => Restart Process;
        /// Socket of a syslog daemon, usually `/dev/log`, that also receives the lines; empty for none. Lines are lost if the
        /// socket is full.
        syslog: PathBuf = PathBuf::new() => Live Process;
        /// Process name in syslog lines.
        syslog_ident: String = "tidegate".to_owned() => Live Process;
        /// Syslog facility: `daemon`, `user`, `auth`, `authpriv`, or `local0` to `local7`.
        syslog_facility: SyslogFacility = SyslogFacility::Daemon => Live Process;
        /// Whether statistics are logged every `stats_period`.
        stats: bool = false => Live Process;
        /// Period of the statistics lines and of the averages in the console.
        stats_period: Duration = Duration::from_secs(60) => Live Process;
    }
}

section! {
    /// `[tcp]`: detection of dead peers; for connections opened after a reload.
    pub struct TcpConfig, raw RawTcp {
        /// Whether TCP keepalive is enabled.
        keepalive: bool = true => Live Process;
        /// Idle time before the first probe (`TCP_KEEPIDLE`).
        keepalive_idle: Duration = Duration::from_secs(60) => Live Process;
        /// Time between probes (`TCP_KEEPINTVL`).
        keepalive_interval: Duration = Duration::from_secs(15) => Live Process;
        /// Unanswered probes after which the connection is closed (`TCP_KEEPCNT`); 0 for the system default.
        keepalive_count: u32 = 0, in 0..=127 => Live Process;
        /// How long sent data may stay unacknowledged (`TCP_USER_TIMEOUT`); 0 for the system default.
        user_timeout: Duration = Duration::ZERO => Live Process;
        /// Kernel buffer of a connection in each direction, in bytes; 0 for the system default.
        socket_buffer: u32 = 0, in 0..=1_073_741_824 => Live Process;
    }
}

section! {
    /// `[dns]`: resolution of server names.
    pub struct DnsConfig, raw RawDns {
        /// Name servers, `IP:port` each, queried after `/etc/hosts`; `[]` for the system resolver.
        servers: NameServers = NameServers::default() => Restart Process;
        /// File in the form of `/etc/resolv.conf` with the name servers to query; read again when it changes.
        resolv_conf: PathBuf = PathBuf::new() => Restart Process;
        /// Minimum time before a name with a choice of servers is resolved again.
        ttl_min: Duration = Duration::from_secs(5) => Restart Process;
        /// Maximum time for which an answer is used, and maximum pause after failed look-ups.
        ttl_max: Duration = Duration::from_secs(300) => Restart Process;
        /// How long the look-up of a database with one host is cached; 0 resolves at each connect. If a later look-up returns
        /// other addresses, connections to the former ones are replaced.
        cache_ttl: Duration = Duration::ZERO => Live Process;
        /// How long a failed look-up is cached.
        cache_failure_ttl: Duration = Duration::ZERO => Live Process;
        /// How long an address stays in use although answers omit it, for a name whose answers rotate; 0 disables.
        rotation_grace: Duration = Duration::from_secs(300) => Live Process;
        /// Period of look-ups while no connection needs one; 0 disables.
        check_period: Duration = Duration::ZERO => Live Process;
    }
}

section! {
    /// `[metrics]`: metrics for Prometheus and health checks, over HTTP.
    pub struct MetricsConfig, raw RawMetrics {
        /// Addresses that serve `GET /metrics`, `/live` and `/ready`; `[]` for none.
        addresses: Vec<SocketAddr> = Vec::new() => Restart Process;
        /// PEM file with the certificate and its chain, for HTTPS; empty for HTTP.
        tls_cert: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with the private key of the certificate.
        tls_key: PathBuf = PathBuf::new() => Live Process;
        /// Bearer token that `GET /metrics` requires; empty for none. `/live` and `/ready` need no token.
        token: Secret = Secret::default() => Live Process;
    }
}

section! {
    /// `[shapes]`: live queries of one database over HTTP.
    pub struct ShapesConfig, raw RawShapes {
        /// Database, as a `postgres://` URL; empty for none.
        database: Secret = Secret::default() => Restart Process;
        /// Login for snapshots and questions about tables, as `gateway://USER@DATABASE`: they use the pool of that database.
        /// Empty for at most 16 connections of their own.
        pool: Secret = Secret::default() => Restart Process;
        /// Addresses that answer `GET /v1/shape`.
        addresses: Vec<SocketAddr> = vec![SocketAddr::from(([127, 0, 0, 1], 3000))] => Restart Process;
        /// PEM file with the certificate and its chain, for HTTPS with HTTP/2; empty for HTTP.
        tls_cert: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with the private key of the certificate.
        tls_key: PathBuf = PathBuf::new() => Live Process;
        /// Directory of the logs, created if missing. One server at a time owns it.
        storage: PathBuf = PathBuf::from("tidegate-shapes") => Restart Process;
        /// End of the names of the publication and the replication slot, `tidegate_shapes_NAME`.
        name: String = "default".to_owned() => Restart Process;
        /// Whether tables are added to the publication, and get `REPLICA IDENTITY FULL`, on the first request.
        manage_publication: bool = true => Restart Process;
        /// Query parameter `secret` that every request needs; empty for none.
        secret: Secret = Secret::default() => Restart Process;
        /// Whether clients may delete shapes.
        allow_deletion: bool = false => Restart Process;
        /// Size in bytes of a chunk of an answer.
        chunk_bytes: u32 = 10 << 20, in 1_000..=268_435_456 => Restart Process;
        /// Size in bytes of the logs on disk, above which the least recently read shapes are removed.
        storage_bytes_max: u64 = 10 << 30, in 1_048_576..=9_223_372_036_854_775_807 => Restart Process;
        /// Number of shapes above which the least recently read ones are removed.
        shapes_max: u32 = 1_000_000, in 1..=100_000_000 => Restart Process;
        /// Concurrent requests with a known handle, which wait for changes; further ones get status 503.
        requests_max: u32 = 10_000, in 1..=10_000_000 => Restart Process;
        /// Requests per second and address of a client, above which requests get status 429; 0 for no limit. Behind a proxy,
        /// all clients have its address.
        request_rate_max: u32 = 0, in 0..=1_000_000 => Restart Process;
        /// Concurrent connections per address of the server. At the limit, a new connection displaces an idle one.
        connections_max: u32 = 20_000, in 1..=1_000_000 => Restart Process;
    }
}

section! {
    /// `[journal]`: the query log: which client ran which query, when, for how long and with what result. Clients never
    /// wait for it.
    pub struct QueryLogConfig, raw RawJournal {
        /// Directory of the query log, created if missing; empty disables it. One gateway at a time owns it.
        folder: PathBuf = PathBuf::new() => Restart Process;
        /// `framed` (with checksums; read by `tidegate journal`) or `json` (one JSON object per line).
        format: JournalFormat = JournalFormat::Framed => Restart Process;
        /// `query` or `transaction`: what one record describes.
        per: RecordUnit = RecordUnit::Query => Live Process;
        /// `text`, `normalised` (literals as `?`), `fingerprint` or `off`. Literals in `text` may be personal data.
        statement: StatementForm = StatementForm::Text => Live Process;
        /// Maximum length in bytes of a recorded statement and of its parameters.
        statement_bytes: u32 = 16_384, in 64..=65_536 => Live Process;
        /// `off`, `on`, or `redacted` (their number, and which are NULL). A rule may override it.
        parameters: ParameterForm = ParameterForm::Off => Live Process;
        /// Whether logins, refused logins and disconnects are recorded.
        connections: bool = true => Live Process;
        /// Tables that select which queries are recorded; the first match decides, and queries without a match are recorded.
        rules: JournalRules = JournalRules::default() => Live Process;
        /// Memory in bytes for records that are not yet written; `queries_overload` applies beyond it.
        queue_bytes: u32 = 8 << 20, in 4_194_304..=2_147_483_648 => Restart Process;
        /// `drop_newest`, `drop_oldest` or `sample`: what happens to queries when the disk is too slow. Losses are counted.
        queries_overload: JournalOverload = JournalOverload::DropNewest => Restart Process;
        /// The same for logins, refused logins and disconnects.
        connections_overload: JournalOverload = JournalOverload::DropNewest => Restart Process;
        /// `sample` keeps one in this many records.
        sample_one_in: u32 = 10, in 1..=1_000_000 => Restart Process;
        /// `accepted` (written within `linger`), `written` (immediately) or `durable` (immediately and synced; costs writes).
        ack: JournalAck = JournalAck::Accepted => Restart Process;
        /// Maximum time that an accepted record stays in memory while the disk keeps up; shorter times cost more writes.
        linger: Duration = Duration::from_millis(100) => Restart Process;
        /// Number of files that are written in parallel; `json` has one.
        stripes: u16 = 1, in 1..=16 => Restart Process;
        /// Size in bytes at which a new file is started; a start of the gateway continues the newest file.
        segment_bytes: u32 = 64 << 20, in 4_194_304..=4_294_967_295 => Restart Process;
        /// Age at which the next record starts a new file; 0 is no limit.
        segment_age: Duration = Duration::ZERO => Restart Process;
        /// Total size in bytes above which the oldest file is removed; 0 keeps all.
        retain_bytes: u64 = 0, in 0..=9_223_372_036_854_775_807 => Restart Process;
        /// Age above which a file is removed; 0 keeps all.
        retain_age: Duration = Duration::ZERO => Restart Process;
        /// Number of files above which the oldest is removed; 0 keeps all.
        retain_segments: u32 = 0, in 0..=1_000_000 => Restart Process;
        /// `off` or `zstd`: whether a separate thread compresses finished files.
        compress: JournalCompression = JournalCompression::Off => Restart Process;
        /// How long a stopping gateway waits for the disk.
        close_timeout: Duration = Duration::from_secs(5) => Live Process;
    }
}

section! {
    /// `[traces]`: spans of queries for an OpenTelemetry collector, made from the records of the query log.
    pub struct TracesConfig, raw RawTraces {
        /// URL of the collector, to which `/v1/traces` is appended (OTLP over HTTP); empty for no traces.
        endpoint: String = String::new() => Restart Process;
        /// Table of HTTP headers, such as those with a key of the collector.
        headers: Properties = Properties::default() => Restart Process;
        /// File with certificate authorities for an https endpoint; empty for those of the system.
        ca_file: PathBuf = PathBuf::new() => Restart Process;
        /// The attribute `service.name`.
        service_name: String = "tidegate".to_owned() => Restart Process;
        /// Share of queries without a trace of the client that are sampled, as one in this many; 0 for none, 1 for all.
        sample_one_in: u32 = 100 => Restart Process;
        /// Whether every query with an error is sampled.
        sample_errors: bool = true => Restart Process;
        /// Every query that takes at least this long, its wait included, is sampled; 0 is no limit.
        sample_slow: Duration = Duration::ZERO => Restart Process;
        /// Memory in bytes for spans that are not yet sent; beyond it, spans are dropped and counted.
        queue_bytes: u32 = 8 << 20, in 65_536..=1_073_741_824 => Restart Process;
        /// Spans of a request.
        batch_spans: u32 = 512, in 1..=100_000 => Restart Process;
        /// Longest time that a span waits for others.
        interval: Duration = Duration::from_secs(1) => Restart Process;
        /// Limit of a request.
        timeout: Duration = Duration::from_secs(10) => Restart Process;
        /// How long a batch is tried again while the collector does not accept it.
        retry_timeout: Duration = Duration::from_secs(60) => Restart Process;
    }
}

impl TracesConfig {
    /// Whether spans are made.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.endpoint.is_empty()
    }
}

section! {
    /// `[runtime]`: threads and I/O.
    pub struct RuntimeConfig, raw RawRuntime {
        /// Threads of the data plane; 0 for half the cores: a few busy threads cost less per query than many idle ones.
        workers: u16 = 0, in 0..=1024 => Restart Process;
        /// `auto` (io_uring if the kernel allows it, else epoll), `io_uring` or `epoll`.
        io: IoBackend = IoBackend::Auto => Restart Process;
        /// File with the process ID while the process runs; empty for none.
        pid_file: PathBuf = PathBuf::new() => Restart Process;
        /// System user to switch to before listening if the process is started as root; empty keeps the user.
        user: String = String::new() => Restart Process;
    }
}

/// PgBouncer's look-up: roles that may log in, and no password after `VALID UNTIL`.
pub(crate) const DEFAULT_QUERY: &str = "SELECT rolname, CASE WHEN rolvaliduntil OPERATOR(pg_catalog.<) pg_catalog.now() \
    THEN NULL ELSE rolpassword END FROM pg_catalog.pg_authid WHERE rolname OPERATOR(pg_catalog.=) $1 AND rolcanlogin";

/// Addresses of name servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NameServers(pub Vec<SocketAddr>);

impl Setting for NameServers {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        const EXAMPLE: &str = "[\"10.0.0.2:53\"]";
        let servers = list(value, EXAMPLE, |value| {
            let text = text(value, "\"10.0.0.2:53\"")?;
            text.parse().map_err(|_| {
                ValueError::new(format!("`{text}` is not the address of a name server"), format!("write {EXAMPLE}"))
            })
        })?;
        Ok(Self(servers))
    }

    fn show(&self) -> String {
        self.0.show()
    }
}

/// Startup parameters of a server login, in file order.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct StartupParameters(pub Vec<(String, String)>);

impl std::fmt::Debug for StartupParameters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.show())
    }
}

/// Parameters that the login sets itself.
const NO_PARAMETERS: &[&str] = &["user", "database", "replication"];

impl Setting for StartupParameters {
    const CLASS: ValueClass = ValueClass::Secret;

    fn read(value: &RawValue) -> Result<Self, ValueError> {
        let RawValue::Table(table) = value else {
            return Err(ValueError::new(
                format!("expected a table, found {}", value.kind()),
                "write names and texts in braces: { search_path = \"app\" }",
            ));
        };
        table.entries.iter().map(parameter).collect::<Result<_, _>>().map(Self)
    }

    /// The names only: a value may be a secret (`options = "-c app.token=..."`).
    fn show(&self) -> String {
        self.0.iter().map(|(name, _)| format!("{name}={MASK}")).collect::<Vec<_>>().join(", ")
    }
}

fn parameter(entry: &RawEntry) -> Result<(String, String), ValueError> {
    let name = entry.key.as_str();
    if name.is_empty() || name.contains('\0') || NO_PARAMETERS.contains(&name) {
        let error = ValueError::new(format!("`{name}` cannot be a startup parameter"), "leave it out");
        return Err(ValueError { at: Some(entry.key_at.clone()), ..error });
    }
    let value = match &entry.node.value {
        RawValue::Integer(number) => number.to_string(),
        RawValue::Boolean(value) => value.to_string(),
        other => String::read(other).map_err(|error| ValueError { at: Some(entry.node.at.clone()), ..error })?,
    };
    Ok((name.to_owned(), value))
}

/// Keys of `[pool]`, `[timeouts]` and `[route]` that are set for one database or user.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct PoolOverrides {
    pub(crate) pool: RawPool,
    pub(crate) timeouts: RawTimeouts,
    pub(crate) route: RawRoute,
}

impl RawSection for PoolOverrides {
    fn keys(&self) -> Vec<&'static ConfigKey> {
        let all = PoolConfig::KEYS.iter().chain(TimeoutConfig::KEYS).chain(RouteConfig::KEYS);
        all.filter(|key| key.scope == KeyScope::Pool).collect()
    }

    fn set(&mut self, key: &str, value: &RawValue) -> Option<Result<(), ValueError>> {
        self.keys().iter().find(|known| known.name == key)?;
        self.pool.set(key, value).or_else(|| self.timeouts.set(key, value)).or_else(|| self.route.set(key, value))
    }
}
