//! Check of `[databases.NAME]`: a URL or keys, and sizes of the pool.

use std::path::PathBuf;
use std::time::Duration;

use super::{Checker, SectionView};
use crate::{
    Config, Database, ServerTls, User, UserLookup, UserSecret,
    hosts::{HostSpec, RouteConfig},
    keys::{
        AdminConfig, ChannelBindingMode, DatabaseKeys, PoolConfig, PoolOverrides, RawDatabase, SslMode, SslNegotiation,
    },
    raw::RawValue,
    section::{ConfigSection, RawSection},
    url::{PORT, PgUrl, host_list},
};

/// Number of servers per database and user that is rarely useful; the default of Postgres is 100 connections in total.
const TYPICAL_SIZE_MAX: u32 = 200;

impl Checker<'_> {
    pub(super) fn database(&mut self, section: &SectionView<'_>, pool: &PoolConfig) -> Database {
        let (mut raw, mut overrides) = (RawDatabase::default(), PoolOverrides::default());
        self.fill(section, &mut [&mut raw, &mut overrides]);
        let hosts = match raw.url.take() {
            Some(url) => self.apply_url(section, url, &mut raw, &mut overrides),
            None => self.hosts(section, &raw),
        };
        self.route(section, &raw, &mut overrides);
        self.pool(section, &overrides.pool.over(pool));
        let (max_servers, max_clients) = (raw.max_servers, raw.max_clients);
        let keys = DatabaseKeys::from_raw(&raw);
        let password = self.parse_secret(|| section.locate(&["password", "url"]), &keys.password);
        self.contradictions(section, &keys);
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
            lookup: UserLookup { user: keys.lookup_user, query: keys.lookup_query, database: keys.lookup_database },
            overrides,
        }
    }

    fn hosts(&mut self, section: &SectionView<'_>, raw: &RawDatabase) -> Vec<HostSpec> {
        let listed = match &raw.hosts {
            Some(list) => {
                for key in ["host", "port"].into_iter().filter(|key| section.has(key)) {
                    let help = format!("leave out either hosts or `{key}`; in hosts, write \"10.0.0.1:5432\"");
                    self.error(section.locate(&[key]), "`{key}` and hosts exclude each other", help);
                }
                list.0.clone()
            }
            None => self.plain_hosts(section, raw),
        };
        let key = if raw.hosts.is_some() { "hosts" } else { "host" };
        for (at, spec) in listed.iter().enumerate() {
            if let Some((what, help)) = spec.likely_mistake() {
                self.warning(section.locate(&[key]), format!("no server can have this name: it is {what}"), help);
            }
            if listed[..at].iter().any(|before| (&before.host, before.srv) == (&spec.host, spec.srv)) {
                let help = "write the intended server, or leave it out; use `weight` in hosts for a larger share";
                self.warning(section.locate(&[key]), format!("`{spec}` is in the list twice, and counts once"), help);
            }
        }
        listed
    }

    /// The servers of `host` and `port`.
    fn plain_hosts(&mut self, section: &SectionView<'_>, raw: &RawDatabase) -> Vec<HostSpec> {
        let listed = match &raw.host {
            Some(hosts) => host_list(hosts, raw.port.unwrap_or(PORT)),
            // An invalid host or URL is already reported.
            None if section.has("host") || section.has("hosts") || section.has("url") => Ok(Vec::new()),
            None => {
                let help = "write host = \"127.0.0.1\" (or a folder with a socket), or a url";
                self.error(section.locate(&[]), format!("[{}] has no host", section.path), help);
                Ok(Vec::new())
            }
        };
        let listed = listed.unwrap_or_else(|error| {
            self.value_error(section.locate(&["host", "url"]), error);
            Vec::new()
        });
        listed.into_iter().map(HostSpec::from).collect()
    }

    /// Applies `target_session_attrs`, libpq's form of the route.
    fn route(&mut self, section: &SectionView<'_>, raw: &RawDatabase, overrides: &mut PoolOverrides) {
        if let Some(attrs) = raw.target_session_attrs {
            if section.has("route") {
                let help = "leave out one of them";
                self.error(section.locate(&["route"]), "route and target_session_attrs exclude each other", help);
            }
            overrides.route.route = Some(attrs.route());
        }
        self.probes(section, &overrides.route.over(&RouteConfig::default()));
    }

    /// The role of a server is known from probes only, so they cannot be disabled.
    pub(super) fn probes(&mut self, section: &SectionView<'_>, route: &RouteConfig) {
        for (key, time) in [("probe_interval", route.probe_interval), ("probe_timeout", route.probe_timeout)] {
            if time.is_zero() {
                let help = format!("write a time such as {key} = \"1s\"");
                self.error(section.locate(&[key]), format!("{key} cannot be off"), help);
            }
        }
    }

    /// Sets the keys for the parts of the URL; a part that is also set by a key is an error.
    fn apply_url(
        &mut self,
        section: &SectionView<'_>,
        url: PgUrl,
        raw: &mut RawDatabase,
        overrides: &mut PoolOverrides,
    ) -> Vec<HostSpec> {
        self.refuse_beside_url(section, "host");
        self.refuse_beside_url(section, "hosts");
        self.refuse_beside_url(section, "port");
        for (key, text) in url.keys() {
            self.refuse_beside_url(section, key);
            if let Some(Err(error)) = raw.set(key, &RawValue::Text(text)) {
                self.value_error(section.locate(&["url"]), error);
            }
        }
        let connect = url.connect_timeout.map(|secs| Duration::from_secs(u64::from(secs)));
        overrides.timeouts.connect = overrides.timeouts.connect.or(connect);
        let parameters = raw.startup_parameters.get_or_insert_default();
        parameters.0.splice(0..0, url.parameters);
        for ignored in &url.ignored {
            let reason = format!("the parameter `{ignored}` of the URL has no effect here");
            self.warning(section.locate(&["url"]), reason, "leave it out");
        }
        url.hosts.into_iter().map(HostSpec::from).collect()
    }

    fn refuse_beside_url(&mut self, section: &SectionView<'_>, key: &str) {
        if section.has(key) {
            let help = format!("leave out either the url or `{key}`");
            self.error(section.locate(&[key]), format!("`{key}` is already set by the url"), help);
        }
    }

    /// Reports keys of a database that exclude each other.
    fn contradictions(&mut self, section: &SectionView<'_>, keys: &DatabaseKeys) {
        if keys.channel_binding == ChannelBindingMode::Require && keys.sslmode == SslMode::Disable {
            let help = "write sslmode = \"require\" or a stricter one, or channel_binding = \"prefer\"";
            self.error(section.locate(&["channel_binding", "url"]), "channel binding needs TLS", help);
        }
        if AdminConfig::CONSOLE_DATABASES.iter().any(|name| section.path == format!("databases.{name}")) {
            let help = "use another name, and set dbname to the name on the server";
            self.error(section.locate(&[]), "this name is reserved for the admin console", help);
        }
        if keys.user.is_empty() && !keys.password.is_empty() {
            let help = "add user, or move the password to [users.NAME]";
            self.error(section.locate(&["password", "url"]), "a password needs user", help);
        }
        let weak = matches!(keys.sslmode, SslMode::Disable | SslMode::Allow | SslMode::Prefer);
        if keys.sslnegotiation == SslNegotiation::Direct && weak {
            let reason = format!("direct TLS is not possible with sslmode {}", keys.sslmode);
            let help = "write sslmode = \"require\" or a stricter one";
            self.error(section.locate(&["sslnegotiation", "url"]), reason, help);
        }
    }

    /// Warns of verifiers whose keys no client supplies: a login to the server needs the keys, not the verifier.
    pub(super) fn verifiers(&mut self, databases: &SectionView<'_>, config: &Config) {
        for entry in &databases.table.entries {
            let Some(database) = config.databases.get(&entry.key) else { continue };
            let (UserSecret::Scram(_), RawValue::Table(table)) = (&database.password, &entry.node.value) else {
                continue;
            };
            let same = |user: &User| user.secret.as_ref() == Some(&database.password);
            if config.users.get(&database.user).is_some_and(same) {
                continue;
            }
            let section = SectionView { path: databases.key(&entry.key), table, at: entry.key_at.clone() };
            let user = &database.user;
            let reason = format!(
                "[{}] a SCRAM verifier can be used for server logins only after a client has logged in with it as \"{user}\"",
                section.path
            );
            let help =
                format!("write the password, or give [users.{user}] the same verifier and let clients log in as it");
            self.warning(section.locate(&["password", "url"]), reason, help);
        }
    }

    pub(super) fn server_tls(&mut self, section: &SectionView<'_>, keys: &DatabaseKeys) -> ServerTls {
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
            let location = section.locate(&["sslcert", "sslkey", "url"]);
            self.error(location, "sslcert and sslkey are both needed", help);
        }
        self.file(section, "sslrootcert", &mut tls.root_cert);
        self.file(section, "sslcert", &mut tls.cert);
        self.file(section, "sslkey", &mut tls.key);
        tls
    }

    /// Reports contradicting sizes, and warns of large ones.
    pub(super) fn pool(&mut self, section: &SectionView<'_>, pool: &PoolConfig) {
        let written = |keys: [&str; 2]| keys.iter().any(|key| section.has(key));
        if pool.min_size > pool.size && written(["min_size", "size"]) {
            let reason = format!("min_size {} is larger than size {}", pool.min_size, pool.size);
            let help = format!("write at most {} for min_size, or a larger size", pool.size);
            self.error(section.locate(&["min_size", "size"]), reason, help);
        }
        let servers = pool.size.saturating_add(pool.reserve_size);
        if servers > TYPICAL_SIZE_MAX && written(["size", "reserve_size"]) {
            let reason = format!("up to {servers} servers per database and user");
            let help =
                "a few per core of the server are typical; check that max_connections of the server is large enough";
            self.warning(section.locate(&["size", "reserve_size"]), reason, help);
        }
    }
}
