//! All keys of PgBouncer 1.26 and their effects. `docs/src/migration/pgbouncer.md` is tested against these tables.

use crate::setting;

/// Type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IniValueKind {
    /// Any text.
    Text,
    /// Names, separated by commas.
    List,
    /// A file or a directory.
    Path,
    /// A directory of sockets, or `@name` for an abstract socket.
    SocketDir,
    /// A whole number; -1 is not set.
    Number,
    /// 0 or 1.
    Flag,
    /// Seconds, with an optional fraction.
    Seconds,
    /// A word of a list.
    Word(&'static [&'static str]),
}

/// Effect of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IniKeyEffect {
    /// Equivalent to a key of `tidegate.toml`, with its section, or without for databases and users.
    SameAs(&'static str),
    /// Converted in another way, which the text describes.
    Converted(&'static str),
    /// Always in force; the text describes how.
    AlwaysOn(&'static str),
    /// Accepted without effect, for this reason.
    Ignored(&'static str),
}

/// A key of PgBouncer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IniKey {
    /// Name.
    pub name: &'static str,
    /// Type of its value.
    pub kind: IniValueKind,
    /// Default; `None` if there is none.
    pub default: Option<&'static str>,
    /// Effect.
    pub effect: IniKeyEffect,
}

use IniKeyEffect::{AlwaysOn, Converted, Ignored, SameAs};
use IniValueKind::{Flag, List, Number, Path, Seconds, SocketDir, Text, Word};

const fn key(name: &'static str, kind: IniValueKind, default: &'static str, effect: IniKeyEffect) -> IniKey {
    IniKey { name, kind, default: Some(default), effect }
}

/// A key without a default.
const fn bare(name: &'static str, kind: IniValueKind, effect: IniKeyEffect) -> IniKey {
    IniKey { name, kind, default: None, effect }
}

/// Sections of an ini file.
pub(super) const SECTIONS: &[&str] = &["pgbouncer", "databases", "users", "peers"];

const MODES: IniValueKind = Word(&["session", "transaction", "statement"]);
const SSL_MODES: IniValueKind = Word(&["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]);
pub(super) const AUTH_TYPES: &[&str] = &["any", "trust", "plain", "md5", "scram-sha-256", "hba", "cert", "pam", "ldap"];

const CLIENT_CIPHERS: IniKeyEffect =
    Converted("`listen.tls_ciphers`: the supported suites of the list; refused if none is left");
const SERVER_CIPHERS: IniKeyEffect =
    Converted("`sslciphers` of every database: the supported suites of the list; refused if none is left");
pub(super) const FACILITIES: &[&str] = &[
    "auth", "authpriv", "daemon", "user", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];
const DEFER: IniKeyEffect = Ignored("a silent client takes a few kB until `client_login_timeout`, and no server");
const BUFFERS: IniKeyEffect = Ignored("buffers are pooled per thread, in measured sizes");
const WINDOWS: IniKeyEffect = Ignored("there is no Windows service");

/// Keys of `[pgbouncer]`.
pub const GLOBAL: &[IniKey] = &[
    key("admin_users", List, "", SameAs("admin.users")),
    key("application_name_add_host", Flag, "0", SameAs("listen.application_name_add_host")),
    bare("auth_dbname", Text, SameAs("auth.lookup_database")),
    bare("auth_file", Path, Converted("its users become `[users]`; read again by a reload")),
    key("auth_hba_file", Path, "", Converted("`auth.hba_file`, with `auth_type = hba`")),
    bare("auth_ident_file", Path, Converted("`auth.ident_file`, with `auth_type = hba`")),
    bare("auth_ldap_options", Text, SameAs("auth.ldap_options")),
    bare("auth_query", Text, SameAs("auth.lookup_query")),
    key(
        "auth_type",
        Word(AUTH_TYPES),
        "md5",
        Converted("`auth.method`; `any` admits every client; `pam` and `ldap` are build features"),
    ),
    bare("auth_user", Text, SameAs("auth.lookup_user")),
    key("autodb_idle_timeout", Seconds, "3600", SameAs("timeouts.auto_database")),
    key("cancel_wait_timeout", Seconds, "10", SameAs("timeouts.cancel")),
    key("client_idle_timeout", Seconds, "0", SameAs("timeouts.client_idle")),
    key("client_login_timeout", Seconds, "60", SameAs("timeouts.login")),
    bare("client_tls13_ciphers", Text, CLIENT_CIPHERS),
    key("client_tls_ca_file", Path, "", Converted("`listen.tls_client_ca`, unless TLS is off")),
    key("client_tls_cert_file", Path, "", Converted("`listen.tls_cert`, unless TLS is off")),
    key("client_tls_ciphers", Text, "default", CLIENT_CIPHERS),
    key("client_tls_dheparams", Text, "auto", Ignored("keys are exchanged over elliptic curves only")),
    key(
        "client_tls_ecdhcurve",
        Text,
        "auto",
        Converted("`listen.tls_groups`: X25519, prime256v1 and secp384r1; refused if none is named"),
    ),
    key("client_tls_key_file", Path, "", Converted("`listen.tls_key`, unless TLS is off")),
    key(
        "client_tls_protocols",
        Text,
        "secure",
        Converted(
            "TLS 1.2 and 1.3, or one of them by `listen.tls_ciphers`; older versions alone become TLS 1.2, \
             with a warning",
        ),
    ),
    key(
        "client_tls_sslmode",
        SSL_MODES,
        "disable",
        Converted(
            "`listen.tls`: `off`, `allow` (also for `prefer`) or `require`; the stricter ones also require a certificate",
        ),
    ),
    bare("conffile", Text, Ignored("a reload reads the file of the command line, or the file named by `SET conffile`")),
    key("default_pool_size", Number, "20", Converted("`pool.size`; 0 is the maximum")),
    key("disable_pqexec", Flag, "0", Converted("`pool.simple_query`, inverted")),
    key("dns_max_ttl", Seconds, "15", SameAs("dns.cache_ttl")),
    key("dns_nxdomain_ttl", Seconds, "15", SameAs("dns.cache_failure_ttl")),
    key(
        "dns_zone_check_period",
        Seconds,
        "0",
        Converted("`dns.check_period`: names are resolved again; zone serials are not queried"),
    ),
    key("idle_transaction_timeout", Seconds, "0", SameAs("timeouts.idle_in_transaction")),
    key("ignore_startup_parameters", List, "", SameAs("listen.ignore_startup_parameters")),
    key("job_name", Text, "pgbouncer", WINDOWS),
    key("listen_addr", List, "", Converted("`listen.addresses`, with `listen_port`; names are resolved at the start")),
    key("listen_backlog", Number, "128", SameAs("listen.backlog")),
    key("listen_port", Number, "6432", Converted("the port of `listen.addresses` and of the unix socket")),
    key("log_connections", Flag, "1", SameAs("log.connections")),
    key("log_disconnections", Flag, "1", SameAs("log.disconnections")),
    key("log_pooler_errors", Flag, "1", SameAs("log.refusals")),
    key("log_stats", Flag, "1", SameAs("log.stats")),
    key("logfile", Path, "", SameAs("log.file")),
    key("login_notify_message", Text, "", SameAs("listen.login_notice")),
    key("max_client_conn", Number, "100", SameAs("listen.max_clients")),
    key("max_db_client_connections", Number, "0", SameAs("pool.max_clients_per_database")),
    key("max_db_connections", Number, "0", SameAs("pool.max_per_database")),
    key(
        "max_packet_size",
        Number,
        "2147483647",
        Converted("`pool.message_max`, for client messages other than CopyData and FunctionCall; at most 1 GiB"),
    ),
    key("max_prepared_statements", Number, "200", SameAs("pool.prepared_statements_per_server")),
    key("max_user_client_connections", Number, "0", SameAs("pool.max_clients_per_user")),
    key("max_user_connections", Number, "0", SameAs("pool.max_per_user")),
    key("min_pool_size", Number, "0", Converted("`pool.min_size`, at most the size of the pool")),
    key("peer_id", Number, "0", SameAs("listen.peer_id")),
    key("pidfile", Path, "", SameAs("runtime.pid_file")),
    key("pkt_buf", Number, "4096", BUFFERS),
    key("pool_idle_timeout", Seconds, "0", Ignored("a pool without connections costs little and keeps its statistics")),
    key("pool_mode", MODES, "session", SameAs("pool.mode")),
    key("query_timeout", Seconds, "0", SameAs("timeouts.query")),
    key("query_wait_notify", Seconds, "5", SameAs("timeouts.checkout_notice")),
    key("query_wait_timeout", Seconds, "120", SameAs("timeouts.checkout")),
    key("reserve_pool_size", Number, "0", SameAs("pool.reserve_size")),
    key("reserve_pool_timeout", Seconds, "5", Converted("`pool.reserve_after`; 0 is `never`")),
    key("resolv_conf", Path, "", SameAs("dns.resolv_conf")),
    key("sbuf_loopcnt", Number, "5", BUFFERS),
    key("scram_iterations", Number, "4096", SameAs("auth.scram_iterations")),
    key("server_check_delay", Seconds, "30", SameAs("pool.server_check_after")),
    key("server_check_query", Text, "<empty>", Converted("`pool.server_check`; `<empty>` is an empty statement")),
    key("server_connect_timeout", Seconds, "15", SameAs("timeouts.connect")),
    key("server_fast_close", Flag, "0", SameAs("pool.fast_close")),
    key("server_idle_timeout", Seconds, "600", SameAs("timeouts.server_idle")),
    key("server_lifetime", Seconds, "3600", Converted("`timeouts.server_lifetime`; 0 is `single_use`")),
    key(
        "server_login_retry",
        Seconds,
        "15",
        Converted("`timeouts.connect_retry`, without growth, also after a refused login"),
    ),
    key("server_reset_query", Text, "DISCARD ALL", SameAs("pool.server_reset")),
    key("server_reset_query_always", Flag, "0", SameAs("pool.server_reset_always")),
    key("server_round_robin", Flag, "0", SameAs("pool.oldest_first")),
    bare("server_tls13_ciphers", Text, SERVER_CIPHERS),
    key("server_tls_ca_file", Path, "", Converted("`sslrootcert` of every database")),
    key("server_tls_cert_file", Path, "", Converted("`sslcert` of every database")),
    key("server_tls_ciphers", Text, "default", SERVER_CIPHERS),
    key("server_tls_key_file", Path, "", Converted("`sslkey` of every database")),
    key(
        "server_tls_protocols",
        Text,
        "secure",
        Converted(
            "TLS 1.2 and 1.3, or one of them by `sslciphers` of every database; older versions alone become TLS 1.2, \
             with a warning",
        ),
    ),
    key("server_tls_sslmode", SSL_MODES, "prefer", Converted("`sslmode` of every database")),
    bare("service_name", Text, WINDOWS),
    key("so_reuseport", Flag, "0", SameAs("listen.reuse_port")),
    key("stats_period", Seconds, "60", SameAs("log.stats_period")),
    key("stats_users", List, "", SameAs("admin.stats_users")),
    key("suspend_timeout", Seconds, "10", SameAs("timeouts.suspend")),
    key("syslog", Flag, "0", Converted("`log.syslog`: `/dev/log` with 1")),
    key("syslog_facility", Word(FACILITIES), "daemon", SameAs("log.syslog_facility")),
    key("syslog_ident", Text, "pgbouncer", SameAs("log.syslog_ident")),
    key("tcp_defer_accept", Number, "1", DEFER),
    key("tcp_keepalive", Flag, "1", SameAs("tcp.keepalive")),
    key("tcp_keepcnt", Number, "0", SameAs("tcp.keepalive_count")),
    key("tcp_keepidle", Number, "0", Converted("`tcp.keepalive_idle`; 0 is 60 s")),
    key("tcp_keepintvl", Number, "0", Converted("`tcp.keepalive_interval`; 0 is 15 s")),
    key("tcp_socket_buffer", Number, "0", SameAs("tcp.socket_buffer")),
    key("tcp_user_timeout", Number, "0", Converted("`tcp.user_timeout`, in milliseconds")),
    key(
        "track_extra_parameters",
        List,
        "IntervalStyle",
        AlwaysOn("all parameters that Postgres reports or a client sets are tracked"),
    ),
    key("transaction_timeout", Seconds, "0", SameAs("timeouts.transaction")),
    key("unix_socket_dir", SocketDir, "/tmp", SameAs("listen.unix_socket_dir")),
    key("unix_socket_group", Text, "", SameAs("listen.unix_socket_group")),
    key("unix_socket_mode", Text, "0777", SameAs("listen.unix_socket_mode")),
    bare("user", Text, SameAs("runtime.user")),
    key("verbose", Number, "0", Converted("`log.level`: `info`, with 1 `debug`, with 2 `trace`")),
];

/// Keys of a line of `[databases]`.
pub const DATABASE: &[IniKey] = &[
    bare("application_name", Text, Converted("in `startup_parameters`")),
    bare("auth_dbname", Text, SameAs("lookup_database")),
    bare("auth_query", Text, SameAs("lookup_query")),
    bare("auth_user", Text, SameAs("lookup_user")),
    bare("client_encoding", Text, Converted("in `startup_parameters`")),
    bare("connect_query", Text, SameAs("connect_query")),
    bare("datestyle", Text, Converted("in `startup_parameters`")),
    bare("dbname", Text, SameAs("dbname")),
    bare("host", Text, Converted("`host`; by default `unix_socket_dir`; several hosts get `route = \"any\"`")),
    key(
        "load_balance_hosts",
        Word(&["disable", "round-robin"]),
        "round-robin",
        Converted("`policy` for several hosts: `round_robin`, or with `disable` `pick_first`"),
    ),
    bare("max_db_client_connections", Number, SameAs("max_clients")),
    bare("max_db_connections", Number, SameAs("max_servers")),
    bare("min_pool_size", Number, Converted("`min_size`, at most the size of the pool")),
    bare("password", Text, SameAs("password")),
    bare("pool_mode", MODES, SameAs("mode")),
    bare("pool_size", Number, Converted("`size`; 0 is the maximum")),
    key("port", Number, "5432", SameAs("port")),
    bare("query_wait_timeout", Seconds, SameAs("checkout")),
    bare("reserve_pool", Number, SameAs("reserve_size")),
    bare("reserve_pool_size", Number, SameAs("reserve_size")),
    bare("server_lifetime", Seconds, Converted("`server_lifetime`; 0 is `single_use`")),
    bare("timezone", Text, Converted("in `startup_parameters`")),
    bare("user", Text, Converted("`user`, with `shared_pool`: all clients share one pool")),
];

/// Keys of a line of `[users]`.
pub const USER: &[IniKey] = &[
    bare("client_idle_timeout", Seconds, SameAs("client_idle")),
    bare("idle_transaction_timeout", Seconds, SameAs("idle_in_transaction")),
    bare("max_user_client_connections", Number, SameAs("max_clients")),
    bare("max_user_connections", Number, SameAs("max_servers")),
    bare("pool_mode", MODES, SameAs("mode")),
    bare("pool_size", Number, Converted("`size`; 0 is the maximum")),
    bare("query_timeout", Seconds, SameAs("query")),
    bare("query_wait_timeout", Seconds, SameAs("checkout")),
    bare("reserve_pool_size", Number, SameAs("reserve_size")),
    bare("transaction_timeout", Seconds, SameAs("transaction")),
];

/// Keys of a line of `[peers]`.
pub const PEER: &[IniKey] = &[
    bare("host", Text, SameAs("host")),
    bare("pool_size", Number, Converted("`size`; by default `default_pool_size`")),
    key("port", Number, "6432", SameAs("port")),
];

/// The static name, if a key of any section has it.
pub(super) fn known(name: &str) -> Option<&'static str> {
    let all = [GLOBAL, DATABASE, USER, PEER].into_iter().flatten();
    all.map(|key| key.name).find(|known| *known == name)
}

/// Finds a key by name.
pub(super) fn find(keys: &'static [IniKey], name: &str) -> Option<&'static IniKey> {
    keys.iter().find(|key| key.name == name)
}

/// Help with the most similar name, or with all names.
pub(super) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str> + Clone, all: &str) -> String {
    match setting::nearest(name, known.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("{all} {}", known.collect::<Vec<_>>().join(", ")),
    }
}

/// A table of keys as in the documentation.
#[must_use]
pub fn markdown(keys: &[IniKey]) -> String {
    let row = |key: &IniKey| {
        let default = match key.default {
            None | Some("") => String::new(),
            Some(default) => format!("`{default}`"),
        };
        format!("| `{}` | {default} | {} |\n", key.name, key.effect.describe())
    };
    keys.iter().map(row).collect()
}

impl IniKeyEffect {
    /// Description of the effect.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::SameAs(path) => format!("`{path}`"),
            Self::Converted(what) => what.to_owned(),
            Self::AlwaysOn(how) => format!("always on: {how}"),
            Self::Ignored(reason) => format!("**no effect**: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCS: &str = include_str!("../../../../docs/src/migration/pgbouncer.md");

    #[test]
    fn the_documentation_has_every_key_and_its_effect() {
        for keys in [GLOBAL, DATABASE, USER, PEER] {
            let table = markdown(keys);
            assert!(DOCS.contains(&table), "docs/src/migration/pgbouncer.md needs this table:\n{table}");
        }
        let (_, sections) = DOCS.split_once("## `[pgbouncer]`").expect("the section of the global keys");
        let rows = sections.lines().filter(|line| line.starts_with("| `") && line.matches(" | ").count() == 2).count();
        assert_eq!(rows, GLOBAL.len() + DATABASE.len() + USER.len() + PEER.len(), "no other keys are described");
    }

    #[test]
    fn keys_are_sorted_and_unique() {
        for keys in [GLOBAL, DATABASE, USER, PEER] {
            assert!(keys.is_sorted_by(|a, b| a.name < b.name));
        }
    }
}
