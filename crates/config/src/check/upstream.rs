//! `[databases.NAME]`: a URL or its keys, and how many connections.

use std::path::PathBuf;
use std::time::Duration;

use super::{Checker, Section};
use crate::{
    Config, Database, Lookup, ServerTls, User, UserSecret,
    hosts::{HostSpec, RouteSettings},
    keys::{Admin, ChannelBinding, DatabaseKeys, Overrides, PoolSettings, RawDatabase, SslMode, SslNegotiation},
    raw::Value,
    section::{Keys, Settings},
    url::{PORT, PgUrl, host_list},
};

/// More servers than this per database and user is seldom what Postgres can stand (its own default is 100 in all).
const TYPICAL_SIZE_MAX: u32 = 200;

impl Checker<'_> {
    pub(super) fn database(&mut self, section: &Section<'_>, pool: &PoolSettings) -> Database {
        let (mut raw, mut overrides) = (RawDatabase::default(), Overrides::default());
        self.fill(section, &mut [&mut raw, &mut overrides]);
        let hosts = match raw.url.take() {
            Some(url) => self.spread_url(section, url, &mut raw, &mut overrides),
            None => self.hosts(section, &raw),
        };
        self.route(section, &raw, &mut overrides);
        self.pool(section, &overrides.pool.over(pool));
        let (max_servers, max_clients) = (raw.max_servers, raw.max_clients);
        let keys = DatabaseKeys::from_raw(&raw);
        let password = self.parse_secret(|| section.place(&["password", "url"]), &keys.password);
        self.upstream(section, &keys);
        Database {
            hosts,
            tls: self.server_tls(section, &keys),
            dbname: keys.dbname,
            user: keys.user,
            password,
            startup_parameters: keys.startup_parameters,
            shared_pool: keys.shared_pool,
            connect_query: keys.connect_query,
            max_servers,
            max_clients,
            lookup: Lookup { user: keys.lookup_user, query: keys.lookup_query, database: keys.lookup_database },
            overrides,
        }
    }

    fn hosts(&mut self, section: &Section<'_>, raw: &RawDatabase) -> Vec<HostSpec> {
        let listed = match &raw.hosts {
            Some(list) => {
                for key in ["host", "port"].into_iter().filter(|key| section.has(key)) {
                    let help =
                        format!("leave out either hosts or `{key}`; a port stands behind its host: \"10.0.0.1:5432\"");
                    self.error(section.place(&[key]), "hosts says where the servers are already", help);
                }
                list.0.clone()
            }
            None => self.plain_hosts(section, raw),
        };
        let key = if raw.hosts.is_some() { "hosts" } else { "host" };
        for (at, spec) in listed.iter().enumerate() {
            if let Some((what, help)) = spec.mistaken_for() {
                self.warning(section.place(&[key]), format!("no server can have this name: it is {what}"), help);
            }
            if listed[..at].iter().any(|before| (&before.host, before.srv) == (&spec.host, spec.srv)) {
                let help =
                    "write the one that was meant, or leave it out; `weight` in hosts gives a server a larger share";
                self.warning(section.place(&[key]), format!("`{spec}` is in the list twice, and counts once"), help);
            }
        }
        listed
    }

    /// The servers by `host` and `port`.
    fn plain_hosts(&mut self, section: &Section<'_>, raw: &RawDatabase) -> Vec<HostSpec> {
        let listed = match &raw.host {
            Some(hosts) => host_list(hosts, raw.port.unwrap_or(PORT)),
            // A host or URL that could not be read was told already.
            None if section.has("host") || section.has("hosts") || section.has("url") => Ok(Vec::new()),
            None => {
                let help = "write host = \"127.0.0.1\" (or a folder with a socket), or a url";
                self.error(section.place(&[]), format!("[{}] has no host", section.path), help);
                Ok(Vec::new())
            }
        };
        let listed = listed.unwrap_or_else(|wrong| {
            self.wrong(section.place(&["host", "url"]), wrong);
            Vec::new()
        });
        listed.into_iter().map(HostSpec::from).collect()
    }

    /// The route in libpq's words is as good as in ours.
    fn route(&mut self, section: &Section<'_>, raw: &RawDatabase, overrides: &mut Overrides) {
        if let Some(attrs) = raw.target_session_attrs {
            if section.has("route") {
                let help = "leave out one of them";
                self.error(section.place(&["route"]), "the route is given twice, also by target_session_attrs", help);
            }
            overrides.route.route = Some(attrs.route());
        }
        self.probes(section, &overrides.route.over(&RouteSettings::default()));
    }

    /// Servers that are never asked would never be known.
    pub(super) fn probes(&mut self, section: &Section<'_>, route: &RouteSettings) {
        for (key, time) in [("probe_interval", route.probe_interval), ("probe_timeout", route.probe_timeout)] {
            if time.is_zero() {
                let help = format!("write a time such as {key} = \"1s\"");
                self.error(section.place(&[key]), format!("{key} cannot be off"), help);
            }
        }
    }

    /// Writes the parts of the URL into the keys that they stand for; what is said twice is an error.
    fn spread_url(
        &mut self,
        section: &Section<'_>,
        url: PgUrl,
        raw: &mut RawDatabase,
        overrides: &mut Overrides,
    ) -> Vec<HostSpec> {
        self.not_beside_url(section, "host");
        self.not_beside_url(section, "hosts");
        self.not_beside_url(section, "port");
        for (key, text) in url.keys() {
            self.not_beside_url(section, key);
            if let Some(Err(wrong)) = raw.set(key, &Value::Text(text)) {
                self.wrong(section.place(&["url"]), wrong);
            }
        }
        let connect = url.connect_timeout.map(|secs| Duration::from_secs(u64::from(secs)));
        overrides.timeouts.connect = overrides.timeouts.connect.or(connect);
        let parameters = raw.startup_parameters.get_or_insert_default();
        parameters.0.splice(0..0, url.parameters);
        for ignored in &url.ignored {
            let reason = format!("the parameter `{ignored}` of the URL has no effect here");
            self.warning(section.place(&["url"]), reason, "leave it out");
        }
        url.hosts.into_iter().map(HostSpec::from).collect()
    }

    fn not_beside_url(&mut self, section: &Section<'_>, key: &str) {
        if section.has(key) {
            let help = format!("leave out either the url or `{key}`");
            self.error(section.place(&[key]), format!("the url says `{key}` already"), help);
        }
    }

    /// What cannot go together in the keys of one upstream.
    fn upstream(&mut self, section: &Section<'_>, keys: &DatabaseKeys) {
        if keys.channel_binding == ChannelBinding::Require && keys.sslmode == SslMode::Disable {
            let help = "write sslmode = \"require\" or a stricter one, or channel_binding = \"prefer\"";
            self.error(section.place(&["channel_binding", "url"]), "channel binding without TLS", help);
        }
        if Admin::DATABASES.iter().any(|name| section.path == format!("databases.{name}")) {
            let help = "name it otherwise, and say the server's name with dbname";
            self.error(section.place(&[]), "this name is the admin console's", help);
        }
        if keys.user.is_empty() && !keys.password.is_empty() {
            let help = "add user, or move the password to [users.NAME]";
            self.error(section.place(&["password", "url"]), "a password without its user", help);
        }
        let weak = matches!(keys.sslmode, SslMode::Disable | SslMode::Allow | SslMode::Prefer);
        if keys.sslnegotiation == SslNegotiation::Direct && weak {
            let reason = format!("direct TLS cannot go with sslmode {}", keys.sslmode);
            let help = "write sslmode = \"require\" or a stricter one";
            self.error(section.place(&["sslnegotiation", "url"]), reason, help);
        }
    }

    /// Warns of verifiers that no client can have the keys of: a server is logged in to with those, not with the verifier.
    pub(super) fn verifiers(&mut self, databases: &Section<'_>, config: &Config) {
        for entry in &databases.table.entries {
            let Some(database) = config.databases.get(&entry.key) else { continue };
            let (UserSecret::Scram(_), Value::Table(table)) = (&database.password, &entry.node.value) else { continue };
            let same = |user: &User| user.secret.as_ref() == Some(&database.password);
            if config.users.get(&database.user).is_some_and(same) {
                continue;
            }
            let section = Section { path: databases.key(&entry.key), table, at: entry.key_at.clone() };
            let user = &database.user;
            let reason = format!(
                "[{}] a SCRAM verifier opens servers only after a client has logged in with it as \"{user}\"",
                section.path
            );
            let help =
                format!("write the password, or give [users.{user}] the same verifier and let clients log in as it");
            self.warning(section.place(&["password", "url"]), reason, help);
        }
    }

    pub(super) fn server_tls(&mut self, section: &Section<'_>, keys: &DatabaseKeys) -> ServerTls {
        let system = keys.sslrootcert.as_os_str() == "system";
        let mut tls = ServerTls {
            mode: keys.sslmode,
            root_cert: if system { PathBuf::new() } else { keys.sslrootcert.clone() },
            cert: keys.sslcert.clone(),
            key: keys.sslkey.clone(),
            negotiation: keys.sslnegotiation,
            ciphers: keys.sslciphers.clone(),
            binding: keys.channel_binding,
        };
        if tls.cert.as_os_str().is_empty() != tls.key.as_os_str().is_empty() {
            let help = "write both sslcert and sslkey, or neither";
            let place = section.place(&["sslcert", "sslkey", "url"]);
            self.error(place, "a certificate and its key go together", help);
        }
        self.file(section, "sslrootcert", &mut tls.root_cert);
        self.file(section, "sslcert", &mut tls.cert);
        self.file(section, "sslkey", &mut tls.key);
        tls
    }

    /// Sizes that contradict each other, or that Postgres will hardly stand.
    pub(super) fn pool(&mut self, section: &Section<'_>, pool: &PoolSettings) {
        let written = |keys: [&str; 2]| keys.iter().any(|key| section.has(key));
        if pool.min_size > pool.size && written(["min_size", "size"]) {
            let reason = format!("min_size {} is larger than size {}", pool.min_size, pool.size);
            let help = format!("write at most {} for min_size, or a larger size", pool.size);
            self.error(section.place(&["min_size", "size"]), reason, help);
        }
        let servers = pool.size.saturating_add(pool.reserve_size);
        if servers > TYPICAL_SIZE_MAX && written(["size", "reserve_size"]) {
            let reason = format!("up to {servers} servers per database and user");
            let help = "a few per core of the server is typical; see that its max_connections allows so many";
            self.warning(section.place(&["size", "reserve_size"]), reason, help);
        }
    }
}
