//! Every key of every section.
//!
//! A time of zero is [`Duration::ZERO`] and means off, unless the key says otherwise; an empty path or text means none.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::hosts::{HostList, RawRoute, RouteSettings, SessionAttrs};
use super::raw::{Entry, Value};
use super::rule::Rules;
use super::secret::{MASK, Secret};
use super::section::{Key, Keys, Scope, section};
use super::setting::{FileMode, Holds, Setting, Wrong, list, text, words};
use super::suite::{CipherSuite, KeyGroup};
use super::url::{Host, PgUrl};

words! {
    /// Whether clients may, must, or cannot use TLS.
    pub enum ClientTls {
        /// A client that asks is told no.
        Off = "off",
        /// A client that asks gets TLS; others stay in clear text.
        Allow = "allow",
        /// A client without TLS is refused.
        Require = "require",
    }

    /// Whether a client may come without a certificate, where authorities for them are named.
    pub enum ClientCertificate {
        /// It is asked for one, and comes without if it has none.
        Allow = "allow",
        /// Without one there is no TLS.
        Require = "require",
    }

    /// How clients prove who they are.
    pub enum AuthMethod {
        /// They do not: any name is believed.
        Trust = "trust",
        /// The password in clear text.
        Password = "password",
        /// The md5 challenge; a user with a SCRAM verifier is asked for SCRAM instead.
        Md5 = "md5",
        /// SCRAM-SHA-256.
        ScramSha256 = "scram-sha-256",
        /// A certificate whose common name is the user's.
        Cert = "cert",
        /// The password in clear text, which the system's PAM checks; for builds with the feature `pam`.
        Pam = "pam",
        /// The password in clear text, which a directory checks; for builds with the feature `ldap`.
        Ldap = "ldap",
        /// The first line of `hba_file` that fits decides.
        Hba = "hba",
    }

    /// Whose words the gateway's own errors and log lines use.
    pub enum Dialect {
        /// Those of Postgres, where it has any.
        Postgres = "postgres",
        /// Those of PgBouncer, so that alerts made for it keep working.
        Pgbouncer = "pgbouncer",
    }

    /// How long a client keeps its server connection.
    pub enum Mode {
        /// From its first query until it leaves.
        Session = "session",
        /// For a transaction.
        Transaction = "transaction",
        /// For a statement; transaction blocks are refused.
        Statement = "statement",
    }

    /// libpq's `sslmode`, towards servers.
    pub enum SslMode {
        /// Never TLS.
        Disable = "disable",
        /// TLS only if the server insists.
        Allow = "allow",
        /// TLS if the server has it.
        Prefer = "prefer",
        /// TLS; the certificate is not looked at.
        Require = "require",
        /// TLS with a certificate of a trusted authority.
        VerifyCa = "verify-ca",
        /// TLS with a certificate of a trusted authority for that very host name.
        VerifyFull = "verify-full",
    }

    /// How TLS to a server begins.
    pub enum SslNegotiation {
        /// With a request in clear text, which every server understands.
        Postgres = "postgres",
        /// At once (Postgres 17 and newer): a round trip less.
        Direct = "direct",
    }

    /// libpq's `channel_binding`, towards servers.
    pub enum ChannelBinding {
        /// SCRAM logins are not bound to the server's certificate.
        Disable = "disable",
        /// They are if the server can do it.
        Prefer = "prefer",
        /// They are, or there is no login; other methods are refused.
        Require = "require",
    }

    /// The form of log lines.
    pub enum LogFormat {
        /// Text, with colour if standard error is a terminal.
        Auto = "auto",
        /// Text without colour.
        Text = "text",
        /// A JSON object per line.
        Json = "json",
        /// Text as PgBouncer writes it, for programs that read its lines.
        Pgbouncer = "pgbouncer",
    }

    /// The least important event that is logged.
    pub enum LogLevel {
        /// What somebody must look at.
        Error = "error",
        /// What somebody should look at.
        Warn = "warn",
        /// What happened: start, stop, reload, connections.
        Info = "info",
        /// Why it happened.
        Debug = "debug",
        /// Every message; slow.
        Trace = "trace",
    }

    /// Under which heading a syslog daemon files lines.
    pub enum SyslogFacility {
        /// Security, for all to read.
        Auth = "auth",
        /// Security, for few to read.
        Authpriv = "authpriv",
        /// Services of the system.
        Daemon = "daemon",
        /// What users run.
        User = "user",
        /// Of local meaning.
        Local0 = "local0",
        /// Of local meaning.
        Local1 = "local1",
        /// Of local meaning.
        Local2 = "local2",
        /// Of local meaning.
        Local3 = "local3",
        /// Of local meaning.
        Local4 = "local4",
        /// Of local meaning.
        Local5 = "local5",
        /// Of local meaning.
        Local6 = "local6",
        /// Of local meaning.
        Local7 = "local7",
    }

    /// What one record of the query journal tells of.
    pub enum Per {
        /// One query.
        Query = "query",
        /// One transaction with all its queries.
        Transaction = "transaction",
    }

    /// How records stand on the disk.
    pub enum JournalFormat {
        /// In frames with length, time and checksum: every kind of damage is found.
        Framed = "framed",
        /// A JSON object per line, for other programs.
        Json = "json",
    }

    /// What of a statement is written down.
    pub enum StatementForm {
        /// Its text as the client sent it, and its fingerprint.
        Text = "text",
        /// Its text with literals replaced, and its fingerprint.
        Normalised = "normalised",
        /// Its fingerprint only.
        Fingerprint = "fingerprint",
        /// Nothing.
        Off = "off",
    }

    /// What of bound parameters is written down.
    pub enum ParameterForm {
        /// Nothing.
        Off = "off",
        /// Their values.
        On = "on",
        /// How many there are, and which are NULL.
        Redacted = "redacted",
    }

    /// What happens to a record when the journal's memory is full, or filling.
    pub enum Overflow {
        /// It is lost.
        DropNewest = "drop_newest",
        /// Older records that are not yet written are lost.
        DropOldest = "drop_oldest",
        /// From half full on, one in `sample_one_in` is kept.
        Sample = "sample",
    }

    /// How soon records are on the disk.
    pub enum JournalAck {
        /// When a batch is full, or after 20 ms.
        Accepted = "accepted",
        /// At once, in the system's cache: they survive the process.
        Written = "written",
        /// At once, and synced: they survive a loss of power.
        Durable = "durable",
    }

    /// Whether segments that are full are compressed.
    pub enum Compress {
        /// They stay as they are.
        Off = "off",
        /// With zstd, by a thread of its own.
        Zstd = "zstd",
    }

    /// How the data plane talks to the kernel.
    pub enum Io {
        /// io_uring where the kernel allows it, else epoll.
        Auto = "auto",
        /// io_uring, or no start.
        IoUring = "io_uring",
        /// epoll.
        Epoll = "epoll",
    }
}

/// The largest message that Postgres takes, in bytes.
pub const MESSAGE_MAX: u32 = 1 << 30;

section! {
    /// `[listen]`: where clients come in.
    pub struct Listen, raw RawListen {
        /// TCP addresses, `IP:port` each; `*:6432` is every interface, `[]` none.
        addresses: Vec<SocketAddr> = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 6432))] => Restart Process;
        /// Folder of the unix socket, whose file is `.s.PGSQL.<port>`; empty for none. `@name` is for a socket without a file
        /// (abstract), which everybody on this machine can reach.
        unix_socket_dir: PathBuf = PathBuf::new() => Restart Process;
        /// Port in the name of the socket's file; 0 for the port of the first address (6432 without one).
        unix_socket_port: u16 = 0 => Restart Process;
        /// Permissions of the socket's file, in octal.
        unix_socket_mode: FileMode = FileMode(0o777) => Restart Process;
        /// Group of the socket's file, by name or number; empty for that of the process.
        unix_socket_group: String = String::new() => Restart Process;
        /// Connections the kernel holds until they are accepted; more are refused or must try again.
        backlog: u32 = 4096, in 1..=1_000_000 => Restart Process;
        /// TLS for clients: `off`, `allow`, `require`; needs `tls_cert` and `tls_key` unless off.
        tls: ClientTls = ClientTls::Off => Live Process;
        /// PEM file with the certificate and its chain.
        tls_cert: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with the certificate's key.
        tls_key: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with authorities; with it, clients are asked for a certificate of one of them.
        tls_client_ca: PathBuf = PathBuf::new() => Live Process;
        /// `require` or `allow`: whether a client may come without a certificate, if there is `tls_client_ca`.
        tls_client_cert: ClientCertificate = ClientCertificate::Require => Live Process;
        /// Cipher suites by OpenSSL's names, of TLS 1.2 and 1.3; a version without any is not spoken. `[]` for all.
        tls_ciphers: Vec<CipherSuite> = Vec::new() => Live Process;
        /// Groups for the key exchange: `X25519`, `prime256v1`, `secp384r1`; `[]` for all.
        tls_groups: Vec<KeyGroup> = Vec::new() => Live Process;
        /// Clients at a time, of all addresses; more are refused with SQLSTATE 53300. Each costs a file descriptor.
        max_clients: u32 = 10_000, in 1..=10_000_000 => Live Process;
        /// Clients at a time from one IP address, or from one IPv6 network of 64 bits; more are refused with SQLSTATE 53300. 0 is
        /// without limit. Clients of the admin console and of the unix socket do not count, and as many more may be logging in.
        max_clients_per_address: u32 = 0, in 0..=10_000_000 => Live Process;
        /// Whether other processes may listen on the same addresses; the kernel then spreads clients over them.
        reuse_port: bool = false => Restart Process;
        /// Number of this gateway among those behind the same address, which `[peers.ID]` names; 0 for none.
        peer_id: u16 = 0, in 0..=PEER_MAX => Restart Process;
        /// `postgres` or `pgbouncer`: whose words the gateway's own errors and log lines use.
        dialect: Dialect = Dialect::Postgres => Live Process;
        /// Parameters of a client's login that are dropped; `options` stands for all that come in `options`.
        ignore_startup_parameters: Vec<String> = Vec::new() => Live Process;
        /// Whether the client's address is appended to the application name that it logs in with.
        application_name_add_host: bool = false => Live Process;
        /// What clients are told by a notice when they have logged in; empty for nothing.
        login_notice: String = String::new() => Live Process;
    }
}

section! {
    /// `[auth]`: how clients prove who they are.
    pub struct Auth, raw RawAuth {
        /// `trust`, `password` (clear text), `md5`, `scram-sha-256`, `cert`, `pam`, `ldap` or `hba`; holds for logins from
        /// the reload on.
        method: AuthMethod = AuthMethod::ScramSha256 => Live Process;
        /// Whether `trust`, `cert` and `peer` let in users that `[users]` does not have.
        strangers: bool = true => Live Process;
        /// Iterations of verifiers that are made of clear-text passwords: more cost attackers, and a user's first login.
        scram_iterations: u32 = 4096, in 1..=1_000_000 => Live Process;
        /// Secret from which the SCRAM salts of users without a verifier are derived, those that do not exist among them; the
        /// same for all processes that clients take for one. Empty for one derived from this machine's `/etc/machine-id`, or
        /// random at each start if it has none.
        salt_secret: Secret = Secret::default() => Restart Process;
        /// Delay of the answer to a failed login. After ten failures of an address or of a user it doubles with each further
        /// one; their count halves every minute. From such an address logins begin one after the other, so far apart. 0 is off.
        failed_login_delay: Duration = Duration::from_millis(100) => Live Process;
        /// The longest such delay. A login that would have to wait for longer before it begins is refused.
        failed_login_delay_max: Duration = Duration::from_secs(5) => Live Process;
        /// Whether clients over TLS are offered SCRAM-SHA-256-PLUS, which fails if a proxy before the gateway ends their TLS.
        channel_binding: bool = true => Live Process;
        /// File of rules as in `pg_hba.conf`, for method `hba`; read again by a reload.
        hba_file: PathBuf = PathBuf::new() => Live Process;
        /// File of user name maps as in `pg_ident.conf`, for `map=` in the rules.
        ident_file: PathBuf = PathBuf::new() => Live Process;
        /// Service by which PAM knows the gateway, for method `pam`: its rules are those of `/etc/pam.d/SERVICE`.
        pam_service: String = "tidegate".to_owned() => Live Process;
        /// The directory, for method `ldap`: options as PostgreSQL has them in `pg_hba.conf`, `ldapurl="ldap://..."` for one.
        ldap_options: Secret = Secret::default() => Live Process;
        /// User that looks up on the server who `[users]` does not have, or has without a password; empty for no look-up.
        lookup_user: String = String::new() => Live Process;
        /// The look-up: `$1` is the user's name, the row has name and password.
        lookup_query: String = DEFAULT_QUERY.to_owned() => Live Process;
        /// Database of the look-up; empty for the one that the client asks for.
        lookup_database: String = String::new() => Live Process;
    }
}

section! {
    /// `[pool]`: how many server connections there are, and who gets one for how long.
    pub struct PoolSettings, raw RawPool {
        /// `session`, `transaction` or `statement`: how long a client keeps its server.
        mode: Mode = Mode::Transaction => Live Pool;
        /// Server connections per database and user. Each costs Postgres a process.
        size: u32 = 20, in 1..=100_000 => Live Pool;
        /// Server connections that are kept open although nobody uses them; before a client comes, too, if all share a pool
        /// (`shared_pool`).
        min_size: u32 = 0, in 0..=100_000 => Live Pool;
        /// Further server connections once a client has waited for `reserve_after`.
        reserve_size: u32 = 0, in 0..=100_000 => Live Pool;
        /// Wait of a client that opens the reserve; 0 opens it at once.
        reserve_after: Duration = Duration::from_secs(5) => Live Pool;
        /// Logins to the server under way at a time.
        connects_in_flight: u32 = 4, in 1..=1000 => Live Pool;
        /// Prepared statements kept on each server, the least used leaving first; each costs memory in Postgres.
        /// 0 does not track them: named statements then work in session mode only.
        prepared_statements_per_server: u32 = 500, in 0..=1_000_000 => Live Pool;
        /// How long before a client's Parse a server may have parsed the same text for another client to serve this one. A
        /// change of the schema that was made through the gateway is seen at once, one made elsewhere within this time. The
        /// server that the Parse reaches always parses again. 0 has each server parse again for each client.
        prepared_statement_max_age: Duration = Duration::from_secs(1) => Live Pool;
        /// Whether LISTEN, WITH HOLD cursors, session advisory locks, temporary tables and SQL PREPARE keep the
        /// client on its server; false refuses them with SQLSTATE 0A000 and a hint.
        pin: bool = true => Live Pool;
        /// Whether clients wait for a server that cannot be reached, as long as `timeouts.checkout` says; else they are told
        /// at once. A login that the server refuses is told in any case, and where there are several servers
        /// `failover_wait` holds.
        wait_for_server: bool = false => Live Pool;
        /// Whether clients may use the simple protocol, in which a text can hold several statements.
        simple_query: bool = true => Live Pool;
        /// The longest message in bytes that a client may send, CopyData and FunctionCall aside; a longer one ends its
        /// connection.
        message_max: u32 = MESSAGE_MAX, in 64..=MESSAGE_MAX => Live Pool;
        /// SQL that a server runs when a client of session mode leaves, or a pinned one, behind `DISCARD ALL`; empty for none.
        server_reset: String = "DISCARD ALL".to_owned() => Live Pool;
        /// Whether it runs after every transaction and statement too.
        server_reset_always: bool = false => Live Pool;
        /// SQL that a server runs before a client gets it, if it was free for `server_check_after`; empty for none. One that
        /// fails is closed, and the client gets another.
        server_check: String = String::new() => Live Pool;
        /// See `server_check`; 0 checks whatever was used before.
        server_check_after: Duration = Duration::from_secs(30) => Live Pool;
        /// Whether the server that was free for longest is used first, so that all are used in turn; else the one that was
        /// used last is.
        oldest_first: bool = false => Live Pool;
        /// Whether a client of session mode is disconnected, outside of a transaction, as soon as its server is to be replaced;
        /// else it keeps the server until it leaves.
        fast_close: bool = false => Live Pool;
        /// Server connections of all pools of a database together; 0 is without limit. Idle ones make room for others.
        max_per_database: u32 = 0, in 0..=10_000_000 => Live Process;
        /// Server connections of all pools of a user together; 0 is without limit. Idle ones make room for others.
        max_per_user: u32 = 0, in 0..=10_000_000 => Live Process;
        /// Clients of a database; 0 is without limit.
        max_clients_per_database: u32 = 0, in 0..=10_000_000 => Live Process;
        /// Clients of a user; 0 is without limit.
        max_clients_per_user: u32 = 0, in 0..=10_000_000 => Live Process;
    }
}

section! {
    /// `[timeouts]`: how long anything may take.
    pub struct Timeouts, raw RawTimeouts {
        /// Waiting for a server; then the client gets an error.
        checkout: Duration = Duration::from_secs(120) => Live Pool;
        /// Wait for a server after which the client is told so by a notice; 0 for none.
        checkout_notice: Duration = Duration::ZERO => Live Pool;
        /// Connecting and logging in to a server.
        connect: Duration = Duration::from_secs(15) => Live Pool;
        /// Pause after a failed connect; doubles up to `connect_retry_max`, with jitter. 0 tries again at once, as is done
        /// after a refused login.
        connect_retry: Duration = Duration::from_secs(1) => Live Pool;
        /// The longest pause between connects, however often they fail; `connect_retry` if that is longer.
        connect_retry_max: Duration = Duration::from_secs(15) => Live Pool;
        /// Login of a client, from accept to the first ReadyForQuery.
        login: Duration = Duration::from_secs(60) => Live Process;
        /// A server connection without use is closed after that, down to `min_size`.
        server_idle: Duration = Duration::from_secs(600) => Live Pool;
        /// Age at which a server connection is closed once it is free, 10 % of jitter included.
        server_lifetime: Duration = Duration::from_secs(3600) => Live Pool;
        /// A client that asks nothing for that long, outside of a transaction, is disconnected.
        client_idle: Duration = Duration::ZERO => Live Pool;
        /// A query that runs longer is cancelled, and its client disconnected. Executions up to one Sync count as one: a
        /// server answers them together.
        query: Duration = Duration::ZERO => Live Pool;
        /// A transaction that is open longer is ended with its client.
        transaction: Duration = Duration::ZERO => Live Pool;
        /// A client that asks nothing for that long inside of a transaction is disconnected.
        idle_in_transaction: Duration = Duration::ZERO => Live Pool;
        /// A database that only `*` names is forgotten with its figures after that, without clients and servers; 0 never.
        auto_database: Duration = Duration::from_secs(3600) => Live Process;
        /// How long clients may stay after SIGTERM; 0 is without limit.
        shutdown: Duration = Duration::ZERO => Live Process;
        /// How long SUSPEND waits until everybody has taken what was sent to them; 0 is without limit. Who does not is
        /// disconnected.
        suspend: Duration = Duration::from_secs(10) => Live Process;
        /// Delivering a cancel request to a server.
        cancel: Duration = Duration::from_secs(10) => Live Process;
    }
}

section! {
    /// `[databases.NAME]`: one upstream; NAME is what clients say, `*` any other name. All keys of `[pool]` and
    /// `[route]` and most of `[timeouts]` may stand beside these.
    pub struct DatabaseKeys, raw RawDatabase {
        /// `postgres://user:password@host:port/dbname?sslmode=...` instead of the keys below.
        url: PgUrl = PgUrl::default() => Live Process;
        /// Host name, address, or folder of a unix socket; several are separated by commas. See `route`.
        host: String = String::new() => Live Process;
        /// List of servers instead of `host`: texts, or tables with `host`, `port`, `weight` and `zone`.
        hosts: HostList = HostList::default() => Live Process;
        /// Port, for every host.
        port: u16 = 5432, in 1..=65535 => Live Process;
        /// Name of the database on the server; empty for the name that the client says.
        dbname: String = String::new() => Live Process;
        /// User that logs in to the server whoever the client is; empty for the client's own name.
        user: String = String::new() => Live Process;
        /// Password of `user`, or `md5...`, or `SCRAM-SHA-256$...` as Postgres stores it.
        password: Secret = Secret::default() => Live Process;
        /// `disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`, as in libpq.
        sslmode: SslMode = SslMode::Prefer => Live Process;
        /// PEM file with trusted authorities; empty, or `system`, for those of the machine.
        sslrootcert: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with the certificate shown to the server.
        sslcert: PathBuf = PathBuf::new() => Live Process;
        /// PEM file with that certificate's key.
        sslkey: PathBuf = PathBuf::new() => Live Process;
        /// `postgres` asks before TLS begins; `direct` begins at once (Postgres 17, sslmode `require` or stricter).
        sslnegotiation: SslNegotiation = SslNegotiation::Postgres => Live Process;
        /// Cipher suites by OpenSSL's names, of TLS 1.2 and 1.3; a version without any is not spoken. `[]` for all.
        sslciphers: Vec<CipherSuite> = Vec::new() => Live Process;
        /// `disable`, `prefer` or `require`, as in libpq: whether SCRAM logins are bound to the server's certificate.
        channel_binding: ChannelBinding = ChannelBinding::Prefer => Live Process;
        /// Table of parameters sent when logging in to a server, such as `{ search_path = "app" }`.
        startup_parameters: Parameters = Parameters::default() => Live Process;
        /// Whether all clients share one pool, if there is a `user`; otherwise each of their users has one.
        shared_pool: bool = false => Live Process;
        /// SQL that every new connection runs before its first client gets it.
        connect_query: Secret = Secret::default() => Live Process;
        /// `pool.max_per_database` for this one.
        max_servers: u32 = 0, in 0..=10_000_000 => Live Process;
        /// `pool.max_clients_per_database` for this one.
        max_clients: u32 = 0, in 0..=10_000_000 => Live Process;
        /// `auth.lookup_user` for clients of this one.
        lookup_user: String = String::new() => Live Process;
        /// `auth.lookup_query` for clients of this one.
        lookup_query: String = String::new() => Live Process;
        /// `auth.lookup_database` for clients of this one.
        lookup_database: String = String::new() => Live Process;
        /// libpq's words for `route`: `any`, `read-write`, `read-only`, `primary`, `standby` or `prefer-standby`.
        target_session_attrs: SessionAttrs = SessionAttrs::Primary => Live Process;
    }
}

section! {
    /// `[users.NAME]`: who may log in, and settings of users; a table with settings alone lets nobody in. All keys of `[pool]`
    /// and `[route]` and most of `[timeouts]` may stand beside these, and go before those of the database.
    pub struct UserKeys, raw RawUser {
        /// The password, or `md5...`, or `SCRAM-SHA-256$...` as Postgres stores it.
        password: Secret = Secret::default() => Live Process;
        /// File whose first line is the password, instead of `password`.
        password_file: PathBuf = PathBuf::new() => Live Process;
        /// `pool.max_per_user` for this one.
        max_servers: u32 = 0, in 0..=10_000_000 => Live Process;
        /// `pool.max_clients_per_user` for this one.
        max_clients: u32 = 0, in 0..=10_000_000 => Live Process;
    }
}

/// The largest number of a peer.
pub(crate) const PEER_MAX: u16 = 16_383;

section! {
    /// `[peers.ID]`: another gateway behind the same address; ID is its `listen.peer_id`. Cancel requests for its clients
    /// are passed on to it.
    pub struct PeerKeys, raw RawPeer {
        /// Host name or address where only that one listens, or the folder of its unix socket.
        host: String = String::new() => Live Process;
        /// Port.
        port: u16 = 6432, in 1..=65535 => Live Process;
        /// Cancel requests that are on their way to it at a time; more wait.
        size: u32 = 20, in 1..=100_000 => Live Process;
    }
}

impl PeerKeys {
    /// Where it is.
    #[must_use]
    pub fn host(&self) -> Host {
        Host::new(&self.host, self.port)
    }
}

section! {
    /// `[admin]`: who may use the console, which is the database `tidegate` (or `pgbouncer`).
    pub struct Admin, raw RawAdmin {
        /// Users that may use every command of the console.
        users: Vec<String> = vec!["postgres".to_owned()] => Live Process;
        /// Users that may use `SHOW` only.
        stats_users: Vec<String> = Vec::new() => Live Process;
        /// Whether `SET` in the console may change keys that name files (`log.file`, `auth.hba_file`, `listen.tls_key`) and, by
        /// `conffile`, which file `RELOAD` reads. It is true with a `pgbouncer.ini`.
        set_files: bool = false => Restart Process;
    }
}

section! {
    /// `[log]`: what is logged, where, and how.
    pub struct Log, raw RawLog {
        /// `auto` (text, colour on a terminal), `text`, `json`, or `pgbouncer`: lines that begin as those of PgBouncer.
        format: LogFormat = LogFormat::Auto => Restart Process;
        /// `error`, `warn`, `info`, `debug` or `trace`; what libraries say at `debug` is logged at `trace` only.
        level: LogLevel = LogLevel::Info => Live Process;
        /// Whether a line tells of each client that comes.
        connections: bool = true => Live Process;
        /// The same for each that goes.
        disconnections: bool = true => Live Process;
        /// Whether a line tells of each error that the gateway itself has for a client.
        refusals: bool = true => Live Process;
        /// File that lines are appended to, opened again by SIGHUP and `RELOAD`; empty for none.
        file: PathBuf = PathBuf::new() => Live Process;
        /// Whether lines go to standard error.
        stderr: bool = true => Restart Process;
        /// Socket of a syslog daemon, `/dev/log` as a rule, that lines go to as well; empty for none. What it has no room for
        /// is lost.
        syslog: PathBuf = PathBuf::new() => Live Process;
        /// Name of the process in those lines.
        syslog_ident: String = "tidegate".to_owned() => Live Process;
        /// Their facility: `daemon`, `user`, `auth`, `authpriv`, or `local0` to `local7`.
        syslog_facility: SyslogFacility = SyslogFacility::Daemon => Live Process;
        /// Whether a line tells of what was done, each `stats_period`.
        stats: bool = false => Live Process;
        /// Period of those lines, and of the averages that the console shows.
        stats_period: Duration = Duration::from_secs(60) => Live Process;
    }
}

section! {
    /// `[tcp]`: when a peer that says nothing is held for gone; for connections from the reload on.
    pub struct Tcp, raw RawTcp {
        /// Whether the kernel asks a silent peer for a sign of life.
        keepalive: bool = true => Live Process;
        /// Silence after which it asks.
        keepalive_idle: Duration = Duration::from_secs(60) => Live Process;
        /// Pause between its questions.
        keepalive_interval: Duration = Duration::from_secs(15) => Live Process;
        /// Questions without an answer after which the peer is gone; 0 for the system's number.
        keepalive_count: u32 = 0, in 0..=127 => Live Process;
        /// How long sent data may stay unconfirmed; 0 for the system's rules.
        user_timeout: Duration = Duration::ZERO => Live Process;
        /// Bytes that the kernel keeps for a connection in each direction; 0 for the system's rules.
        socket_buffer: u32 = 0, in 0..=1_073_741_824 => Live Process;
    }
}

section! {
    /// `[dns]`: who is asked for the addresses of servers, and how often.
    pub struct Dns, raw RawDns {
        /// Name servers, `IP:port` each, that are asked after `/etc/hosts`; `[]` for the system's own resolver.
        servers: NameServers = NameServers::default() => Restart Process;
        /// File in the form of `/etc/resolv.conf`, whose name servers are asked instead; read again when it changes.
        resolv_conf: PathBuf = PathBuf::new() => Restart Process;
        /// How long an answer is used at least, before a name with a choice of servers is looked up again.
        ttl_min: Duration = Duration::from_secs(5) => Restart Process;
        /// How long an answer is used at most, whatever it says itself. Also the longest pause after failed look-ups.
        ttl_max: Duration = Duration::from_secs(300) => Restart Process;
        /// How long a look-up for a connection holds; 0 looks up at each connect. If it then gives other addresses,
        /// connections to those that are gone are replaced.
        cache_ttl: Duration = Duration::ZERO => Live Process;
        /// How long such a look-up holds that has found nothing.
        cache_failure_ttl: Duration = Duration::ZERO => Live Process;
        /// How long an address stays although answers leave it out, of a name whose answers take turns; 0 is not at all.
        rotation_grace: Duration = Duration::from_secs(300) => Live Process;
        /// Period in which names are looked up again although nothing is connected; 0 is off.
        check_period: Duration = Duration::ZERO => Live Process;
    }
}

section! {
    /// `[metrics]`: figures for Prometheus.
    pub struct Metrics, raw RawMetrics {
        /// Addresses that answer `GET /metrics`; `[]` for none.
        addresses: Vec<SocketAddr> = Vec::new() => Restart Process;
    }
}

section! {
    /// `[journal]`: who ran what, when, for how long and with what result, written to a folder. Clients never wait for it.
    pub struct Journal, raw RawJournal {
        /// Folder of the journal, made if it is missing; empty for no journal. One gateway at a time owns it.
        folder: PathBuf = PathBuf::new() => Restart Process;
        /// `framed` (checksums; read it with `tidegate journal`) or `json` (a JSON object per line).
        format: JournalFormat = JournalFormat::Framed => Restart Process;
        /// `query` or `transaction`: what one record tells of.
        per: Per = Per::Query => Live Process;
        /// `text`, `normalised` (literals as `?`), `fingerprint` or `off`. A text may hold personal data in its literals.
        statement: StatementForm = StatementForm::Text => Live Process;
        /// Bytes of a statement, and of its parameters, that are written down at most.
        statement_bytes: u32 = 16_384, in 64..=65_536 => Live Process;
        /// `off`, `on`, or `redacted` (how many there are, and which are NULL). A rule may say otherwise.
        parameters: ParameterForm = ParameterForm::Off => Live Process;
        /// Whether logins, refused logins and disconnects are written down.
        connections: bool = true => Live Process;
        /// Tables that say which queries are written down; the first that matches decides, and without a match they are.
        rules: Rules = Rules::default() => Live Process;
        /// Memory for records that are not yet written, in bytes; what exceeds it is answered as `queries_overload` says.
        queue_bytes: u32 = 8 << 20, in 4_194_304..=2_147_483_648 => Restart Process;
        /// `drop_newest`, `drop_oldest` or `sample`, for queries when the disk does not keep up; losses are counted.
        queries_overload: Overflow = Overflow::DropNewest => Restart Process;
        /// The same for logins, refused logins and disconnects.
        connections_overload: Overflow = Overflow::DropNewest => Restart Process;
        /// Of how many records `sample` keeps one.
        sample_one_in: u32 = 10, in 1..=1_000_000 => Restart Process;
        /// `accepted` (written within `linger`), `written` (at once) or `durable` (at once and synced; costs writes).
        ack: JournalAck = JournalAck::Accepted => Restart Process;
        /// How long an accepted record lies in memory at most while the disk keeps up; the shorter, the more writes.
        linger: Duration = Duration::from_millis(100) => Restart Process;
        /// Files that are written side by side, for more than one thread can write; `json` has one.
        stripes: u16 = 1, in 1..=16 => Restart Process;
        /// Size at which a file is ended and the next begun, in bytes.
        segment_bytes: u32 = 64 << 20, in 4_194_304..=4_294_967_295 => Restart Process;
        /// Age at which a file is ended with the next record; 0 for no such limit.
        segment_age: Duration = Duration::ZERO => Restart Process;
        /// Bytes of all files above which the oldest is removed; 0 keeps all.
        retain_bytes: u64 = 0, in 0..=9_223_372_036_854_775_807 => Restart Process;
        /// Age above which a file is removed; 0 keeps all.
        retain_age: Duration = Duration::ZERO => Restart Process;
        /// Number of files above which the oldest is removed; 0 keeps all.
        retain_segments: u32 = 0, in 0..=1_000_000 => Restart Process;
        /// `off` or `zstd`: whether ended files are compressed, by a thread of its own.
        compress: Compress = Compress::Off => Restart Process;
        /// How long a stopping gateway waits for the disk.
        close_timeout: Duration = Duration::from_secs(5) => Live Process;
    }
}

section! {
    /// `[runtime]`: threads and I/O.
    pub struct Runtime, raw RawRuntime {
        /// Threads of the data plane; 0 for half the cores: few busy threads cost less per query than many idle ones.
        workers: u16 = 0, in 0..=1024 => Restart Process;
        /// `auto`, `io_uring` or `epoll`.
        io: Io = Io::Auto => Restart Process;
        /// File that holds the process's number while it runs; empty for none.
        pid_file: PathBuf = PathBuf::new() => Restart Process;
        /// User of the machine that the process becomes before it listens, if it was started as root; empty to stay.
        user: String = String::new() => Restart Process;
    }
}

/// PgBouncer's look-up: whoever may log in, and no password after its end of validity.
pub(crate) const DEFAULT_QUERY: &str = "SELECT rolname, CASE WHEN rolvaliduntil OPERATOR(pg_catalog.<) pg_catalog.now() \
    THEN NULL ELSE rolpassword END FROM pg_catalog.pg_authid WHERE rolname OPERATOR(pg_catalog.=) $1 AND rolcanlogin";

/// Addresses of name servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NameServers(pub Vec<SocketAddr>);

impl Setting for NameServers {
    fn read(value: &Value) -> Result<Self, Wrong> {
        const EXAMPLE: &str = "[\"10.0.0.2:53\"]";
        let servers = list(value, EXAMPLE, |value| {
            let text = text(value, "\"10.0.0.2:53\"")?;
            text.parse().map_err(|_| {
                Wrong::new(format!("`{text}` is not the address of a name server"), format!("write {EXAMPLE}"))
            })
        })?;
        Ok(Self(servers))
    }

    fn show(&self) -> String {
        self.0.show()
    }
}

/// Parameters of a server login, by name, in the order of the text.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Parameters(pub Vec<(String, String)>);

impl std::fmt::Debug for Parameters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.show())
    }
}

/// What the login itself says; a parameter of that name would contradict it.
const NO_PARAMETERS: &[&str] = &["user", "database", "replication"];

impl Setting for Parameters {
    const HOLDS: Holds = Holds::Secret;

    fn read(value: &Value) -> Result<Self, Wrong> {
        let Value::Table(table) = value else {
            return Err(Wrong::new(
                format!("expected a table, found {}", value.kind()),
                "write names and texts in braces: { search_path = \"app\" }",
            ));
        };
        table.entries.iter().map(parameter).collect::<Result<_, _>>().map(Self)
    }

    /// The names alone: a value may be a secret (`options = "-c app.token=..."`).
    fn show(&self) -> String {
        self.0.iter().map(|(name, _)| format!("{name}={MASK}")).collect::<Vec<_>>().join(", ")
    }
}

fn parameter(entry: &Entry) -> Result<(String, String), Wrong> {
    let name = entry.key.as_str();
    if name.is_empty() || name.contains('\0') || NO_PARAMETERS.contains(&name) {
        let wrong = Wrong::new(format!("`{name}` cannot be a startup parameter"), "leave it out");
        return Err(Wrong { at: Some(entry.key_at.clone()), ..wrong });
    }
    let value = match &entry.node.value {
        Value::Integer(number) => number.to_string(),
        Value::Boolean(value) => value.to_string(),
        other => String::read(other).map_err(|wrong| Wrong { at: Some(entry.node.at.clone()), ..wrong })?,
    };
    Ok((name.to_owned(), value))
}

/// The keys of `[pool]`, `[timeouts]` and `[route]` that were written for one database or user.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Overrides {
    pub(crate) pool: RawPool,
    pub(crate) timeouts: RawTimeouts,
    pub(crate) route: RawRoute,
}

impl Keys for Overrides {
    fn keys(&self) -> Vec<&'static Key> {
        let all = PoolSettings::KEYS.iter().chain(Timeouts::KEYS).chain(RouteSettings::KEYS);
        all.filter(|key| key.scope == Scope::Pool).collect()
    }

    fn set(&mut self, key: &str, value: &Value) -> Option<Result<(), Wrong>> {
        self.keys().iter().find(|known| known.name == key)?;
        self.pool.set(key, value).or_else(|| self.timeouts.set(key, value)).or_else(|| self.route.set(key, value))
    }
}
