//! Every key of PgBouncer 1.26, and what becomes of it here. `docs/src/migration/pgbouncer.md` is tested against these tables.

use crate::setting;

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// Names, separated by commas.
    List,
    /// A file or a folder.
    Path,
    /// A folder of sockets, or `@` and a name for sockets without files.
    SocketDir,
    /// A whole number; -1 is as if it were not written.
    Number,
    /// 0 or 1.
    Flag,
    /// Seconds, with or without a fraction.
    Seconds,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// What becomes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It is honoured: it is this key of `tidegate.toml`, from the section on, or within it for databases and users.
    Is(&'static str),
    /// It is honoured in a way of its own, which this says.
    Does(&'static str),
    /// It is so in any case; this says how.
    Always(&'static str),
    /// It is accepted without effect, for this reason.
    Nothing(&'static str),
}

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// What holds if it is not written; `None` for nothing.
    pub default: Option<&'static str>,
    /// What becomes of it.
    pub effect: Effect,
}

use Effect::{Always, Does, Is, Nothing};
use Kind::{Flag, List, Number, Path, Seconds, SocketDir, Text, Word};

const fn key(name: &'static str, kind: Kind, default: &'static str, effect: Effect) -> Key {
    Key { name, kind, default: Some(default), effect }
}

/// A key without a default.
const fn bare(name: &'static str, kind: Kind, effect: Effect) -> Key {
    Key { name, kind, default: None, effect }
}

/// The sections of an ini file.
pub(super) const SECTIONS: &[&str] = &["pgbouncer", "databases", "users", "peers"];

const MODES: Kind = Word(&["session", "transaction", "statement"]);
const SSL_MODES: Kind = Word(&["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]);
pub(super) const AUTH_TYPES: &[&str] = &["any", "trust", "plain", "md5", "scram-sha-256", "hba", "cert", "pam", "ldap"];

const CLIENT_CIPHERS: Effect = Does("`listen.tls_ciphers`: the supported suites of the list; refused if none is left");
const SERVER_CIPHERS: Effect =
    Does("`sslciphers` of every database: the supported suites of the list; refused if none is left");
pub(super) const FACILITIES: &[&str] = &[
    "auth", "authpriv", "daemon", "user", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];
const DEFER: Effect = Nothing("a silent client takes a few kB until `client_login_timeout`, and no server");
const BUFFERS: Effect = Nothing("buffers are pooled per thread, in measured sizes");
const WINDOWS: Effect = Nothing("there is no Windows service");

/// `[pgbouncer]`.
pub const GLOBAL: &[Key] = &[
    key("admin_users", List, "", Is("admin.users")),
    key("application_name_add_host", Flag, "0", Is("listen.application_name_add_host")),
    bare("auth_dbname", Text, Is("auth.lookup_database")),
    bare("auth_file", Path, Does("its users become `[users]`; read again by a reload")),
    key("auth_hba_file", Path, "", Does("`auth.hba_file`, with `auth_type = hba`")),
    bare("auth_ident_file", Path, Does("`auth.ident_file`, with `auth_type = hba`")),
    bare("auth_ldap_options", Text, Is("auth.ldap_options")),
    bare("auth_query", Text, Is("auth.lookup_query")),
    key(
        "auth_type",
        Word(AUTH_TYPES),
        "md5",
        Does("`auth.method`; `any` admits every client; `pam` and `ldap` are build features"),
    ),
    bare("auth_user", Text, Is("auth.lookup_user")),
    key("autodb_idle_timeout", Seconds, "3600", Is("timeouts.auto_database")),
    key("cancel_wait_timeout", Seconds, "10", Is("timeouts.cancel")),
    key("client_idle_timeout", Seconds, "0", Is("timeouts.client_idle")),
    key("client_login_timeout", Seconds, "60", Is("timeouts.login")),
    bare("client_tls13_ciphers", Text, CLIENT_CIPHERS),
    key("client_tls_ca_file", Path, "", Does("`listen.tls_client_ca`, unless TLS is off")),
    key("client_tls_cert_file", Path, "", Does("`listen.tls_cert`, unless TLS is off")),
    key("client_tls_ciphers", Text, "default", CLIENT_CIPHERS),
    key("client_tls_dheparams", Text, "auto", Nothing("keys are exchanged over elliptic curves only")),
    key(
        "client_tls_ecdhcurve",
        Text,
        "auto",
        Does("`listen.tls_groups`: X25519, prime256v1 and secp384r1; refused if none is named"),
    ),
    key("client_tls_key_file", Path, "", Does("`listen.tls_key`, unless TLS is off")),
    key(
        "client_tls_protocols",
        Text,
        "secure",
        Does("TLS 1.2 and 1.3, or one of them by `listen.tls_ciphers`; refused if it allows neither"),
    ),
    key(
        "client_tls_sslmode",
        SSL_MODES,
        "disable",
        Does(
            "`listen.tls`: `off`, `allow` (also for `prefer`) or `require`; the stricter ones also require a certificate",
        ),
    ),
    bare("conffile", Text, Nothing("a reload reads the file of the command line, or the file named by `SET conffile`")),
    key("default_pool_size", Number, "20", Does("`pool.size`; 0 is the maximum")),
    key("disable_pqexec", Flag, "0", Does("`pool.simple_query`, inverted")),
    key("dns_max_ttl", Seconds, "15", Is("dns.cache_ttl")),
    key("dns_nxdomain_ttl", Seconds, "15", Is("dns.cache_failure_ttl")),
    key(
        "dns_zone_check_period",
        Seconds,
        "0",
        Does("`dns.check_period`: names are resolved again; zone serials are not queried"),
    ),
    key("idle_transaction_timeout", Seconds, "0", Is("timeouts.idle_in_transaction")),
    key("ignore_startup_parameters", List, "", Is("listen.ignore_startup_parameters")),
    key("job_name", Text, "pgbouncer", WINDOWS),
    key("listen_addr", List, "", Does("`listen.addresses`, with `listen_port`; names are resolved at the start")),
    key("listen_backlog", Number, "128", Is("listen.backlog")),
    key("listen_port", Number, "6432", Does("the port of `listen.addresses` and of the unix socket")),
    key("log_connections", Flag, "1", Is("log.connections")),
    key("log_disconnections", Flag, "1", Is("log.disconnections")),
    key("log_pooler_errors", Flag, "1", Is("log.refusals")),
    key("log_stats", Flag, "1", Is("log.stats")),
    key("logfile", Path, "", Is("log.file")),
    key("login_notify_message", Text, "", Is("listen.login_notice")),
    key("max_client_conn", Number, "100", Is("listen.max_clients")),
    key("max_db_client_connections", Number, "0", Is("pool.max_clients_per_database")),
    key("max_db_connections", Number, "0", Is("pool.max_per_database")),
    key(
        "max_packet_size",
        Number,
        "2147483647",
        Does("`pool.message_max`, for client messages other than CopyData and FunctionCall; at most 1 GiB"),
    ),
    key("max_prepared_statements", Number, "200", Is("pool.prepared_statements_per_server")),
    key("max_user_client_connections", Number, "0", Is("pool.max_clients_per_user")),
    key("max_user_connections", Number, "0", Is("pool.max_per_user")),
    key("min_pool_size", Number, "0", Does("`pool.min_size`, at most the size of the pool")),
    key("peer_id", Number, "0", Is("listen.peer_id")),
    key("pidfile", Path, "", Is("runtime.pid_file")),
    key("pkt_buf", Number, "4096", BUFFERS),
    key("pool_idle_timeout", Seconds, "0", Nothing("a pool without connections costs little and keeps its statistics")),
    key("pool_mode", MODES, "session", Is("pool.mode")),
    key("query_timeout", Seconds, "0", Is("timeouts.query")),
    key("query_wait_notify", Seconds, "5", Is("timeouts.checkout_notice")),
    key("query_wait_timeout", Seconds, "120", Is("timeouts.checkout")),
    key("reserve_pool_size", Number, "0", Is("pool.reserve_size")),
    key("reserve_pool_timeout", Seconds, "5", Does("`pool.reserve_after`; 0 never opens the reserve")),
    key("resolv_conf", Path, "", Is("dns.resolv_conf")),
    key("sbuf_loopcnt", Number, "5", BUFFERS),
    key("scram_iterations", Number, "4096", Is("auth.scram_iterations")),
    key("server_check_delay", Seconds, "30", Is("pool.server_check_after")),
    key("server_check_query", Text, "<empty>", Does("`pool.server_check`; `<empty>` is an empty statement")),
    key("server_connect_timeout", Seconds, "15", Is("timeouts.connect")),
    key("server_fast_close", Flag, "0", Is("pool.fast_close")),
    key("server_idle_timeout", Seconds, "600", Is("timeouts.server_idle")),
    key(
        "server_lifetime",
        Seconds,
        "3600",
        Does("`timeouts.server_lifetime`; 0 closes a connection after its first use"),
    ),
    key(
        "server_login_retry",
        Seconds,
        "15",
        Does("`timeouts.connect_retry`, without growth, also after a refused login"),
    ),
    key("server_reset_query", Text, "DISCARD ALL", Is("pool.server_reset")),
    key("server_reset_query_always", Flag, "0", Is("pool.server_reset_always")),
    key("server_round_robin", Flag, "0", Is("pool.oldest_first")),
    bare("server_tls13_ciphers", Text, SERVER_CIPHERS),
    key("server_tls_ca_file", Path, "", Does("`sslrootcert` of every database")),
    key("server_tls_cert_file", Path, "", Does("`sslcert` of every database")),
    key("server_tls_ciphers", Text, "default", SERVER_CIPHERS),
    key("server_tls_key_file", Path, "", Does("`sslkey` of every database")),
    key(
        "server_tls_protocols",
        Text,
        "secure",
        Does("TLS 1.2 and 1.3, or one of them by `sslciphers` of every database; refused if it allows neither"),
    ),
    key("server_tls_sslmode", SSL_MODES, "prefer", Does("`sslmode` of every database")),
    bare("service_name", Text, WINDOWS),
    key("so_reuseport", Flag, "0", Is("listen.reuse_port")),
    key("stats_period", Seconds, "60", Is("log.stats_period")),
    key("stats_users", List, "", Is("admin.stats_users")),
    key("suspend_timeout", Seconds, "10", Is("timeouts.suspend")),
    key("syslog", Flag, "0", Does("`log.syslog`: `/dev/log` with 1")),
    key("syslog_facility", Word(FACILITIES), "daemon", Is("log.syslog_facility")),
    key("syslog_ident", Text, "pgbouncer", Is("log.syslog_ident")),
    key("tcp_defer_accept", Number, "1", DEFER),
    key("tcp_keepalive", Flag, "1", Is("tcp.keepalive")),
    key("tcp_keepcnt", Number, "0", Is("tcp.keepalive_count")),
    key("tcp_keepidle", Number, "0", Does("`tcp.keepalive_idle`; 0 is 60 s")),
    key("tcp_keepintvl", Number, "0", Does("`tcp.keepalive_interval`; 0 is 15 s")),
    key("tcp_socket_buffer", Number, "0", Is("tcp.socket_buffer")),
    key("tcp_user_timeout", Number, "0", Does("`tcp.user_timeout`, in milliseconds")),
    key(
        "track_extra_parameters",
        List,
        "IntervalStyle",
        Always("all parameters that Postgres reports or a client sets are tracked"),
    ),
    key("transaction_timeout", Seconds, "0", Is("timeouts.transaction")),
    key("unix_socket_dir", SocketDir, "/tmp", Is("listen.unix_socket_dir")),
    key("unix_socket_group", Text, "", Is("listen.unix_socket_group")),
    key("unix_socket_mode", Text, "0777", Is("listen.unix_socket_mode")),
    bare("user", Text, Is("runtime.user")),
    key("verbose", Number, "0", Does("`log.level`: `info`, with 1 `debug`, with 2 `trace`")),
];

/// A line of `[databases]`.
pub const DATABASE: &[Key] = &[
    bare("application_name", Text, Does("in `startup_parameters`")),
    bare("auth_dbname", Text, Is("lookup_database")),
    bare("auth_query", Text, Is("lookup_query")),
    bare("auth_user", Text, Is("lookup_user")),
    bare("client_encoding", Text, Does("in `startup_parameters`")),
    bare("connect_query", Text, Is("connect_query")),
    bare("datestyle", Text, Does("in `startup_parameters`")),
    bare("dbname", Text, Is("dbname")),
    bare("host", Text, Does("`host`; by default `unix_socket_dir`; several hosts get `route = \"any\"`")),
    key(
        "load_balance_hosts",
        Word(&["disable", "round-robin"]),
        "round-robin",
        Does("`policy` for several hosts: `round_robin`, or with `disable` `pick_first`"),
    ),
    bare("max_db_client_connections", Number, Is("max_clients")),
    bare("max_db_connections", Number, Is("max_servers")),
    bare("min_pool_size", Number, Does("`min_size`, at most the size of the pool")),
    bare("password", Text, Is("password")),
    bare("pool_mode", MODES, Is("mode")),
    bare("pool_size", Number, Does("`size`; 0 is the maximum")),
    key("port", Number, "5432", Is("port")),
    bare("query_wait_timeout", Seconds, Is("checkout")),
    bare("reserve_pool", Number, Is("reserve_size")),
    bare("reserve_pool_size", Number, Is("reserve_size")),
    bare("server_lifetime", Seconds, Does("`server_lifetime`; 0 closes a connection after its first use")),
    bare("timezone", Text, Does("in `startup_parameters`")),
    bare("user", Text, Does("`user`, with `shared_pool`: all clients share one pool")),
];

/// A line of `[users]`.
pub const USER: &[Key] = &[
    bare("client_idle_timeout", Seconds, Is("client_idle")),
    bare("idle_transaction_timeout", Seconds, Is("idle_in_transaction")),
    bare("max_user_client_connections", Number, Is("max_clients")),
    bare("max_user_connections", Number, Is("max_servers")),
    bare("pool_mode", MODES, Is("mode")),
    bare("pool_size", Number, Does("`size`; 0 is the maximum")),
    bare("query_timeout", Seconds, Is("query")),
    bare("query_wait_timeout", Seconds, Is("checkout")),
    bare("reserve_pool_size", Number, Is("reserve_size")),
    bare("transaction_timeout", Seconds, Is("transaction")),
];

/// A line of `[peers]`.
pub const PEER: &[Key] = &[
    bare("host", Text, Is("host")),
    bare("pool_size", Number, Does("`size`; by default `default_pool_size`")),
    key("port", Number, "6432", Is("port")),
];

/// That name, if a key of some section has it.
pub(super) fn known(name: &str) -> Option<&'static str> {
    let all = [GLOBAL, DATABASE, USER, PEER].into_iter().flatten();
    all.map(|key| key.name).find(|known| *known == name)
}

/// The key of that name.
pub(super) fn find(keys: &'static [Key], name: &str) -> Option<&'static Key> {
    keys.iter().find(|key| key.name == name)
}

/// The nearest of the known names, or all of them.
pub(super) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str> + Clone, all: &str) -> String {
    match setting::nearest(name, known.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("{all} {}", known.collect::<Vec<_>>().join(", ")),
    }
}

/// A table of keys as the documentation has it.
#[must_use]
pub fn markdown(keys: &[Key]) -> String {
    let row = |key: &Key| {
        let default = match key.default {
            None | Some("") => String::new(),
            Some(default) => format!("`{default}`"),
        };
        format!("| `{}` | {default} | {} |\n", key.name, key.effect.told())
    };
    keys.iter().map(row).collect()
}

impl Effect {
    /// What becomes of the key, in a sentence.
    #[must_use]
    pub fn told(self) -> String {
        match self {
            Self::Is(path) => format!("`{path}`"),
            Self::Does(what) => what.to_owned(),
            Self::Always(how) => format!("always on: {how}"),
            Self::Nothing(reason) => format!("**no effect**: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCS: &str = include_str!("../../../../docs/src/migration/pgbouncer.md");

    #[test]
    fn the_documentation_has_every_key_and_what_becomes_of_it() {
        for keys in [GLOBAL, DATABASE, USER, PEER] {
            let table = markdown(keys);
            assert!(DOCS.contains(&table), "docs/src/migration/pgbouncer.md wants this table:\n{table}");
        }
        let rows = DOCS.lines().filter(|line| line.starts_with("| `") && line.matches(" | ").count() == 2).count();
        assert_eq!(rows, GLOBAL.len() + DATABASE.len() + USER.len() + PEER.len(), "no other keys are described");
    }

    #[test]
    fn keys_are_in_order_and_told_apart() {
        for keys in [GLOBAL, DATABASE, USER, PEER] {
            assert!(keys.is_sorted_by(|a, b| a.name < b.name));
        }
    }
}
