//! `tidegate container`: the entry point of the image. It finds its configuration in mounted files or in the environment, also in
//! the variables of PgBouncer's images and of Zalando's Postgres operator, so that an image can take the place of another.
//!
//! Files that are made from variables live in memory (`memfd_create(2)`): the root file system may be read-only, and passwords
//! reach no disk.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use tidegate_config::{Host, PgUrl, environment::declares_database, pgbouncer};

use super::{PgbouncerArgs, RunArgs};

/// A mounted configuration of Tidegate.
const TOML: &str = "/etc/tidegate/tidegate.toml";
/// Mounted files of PgBouncer: its packages and most images, and bitnami's image.
const INI: [&str; 2] = ["/etc/pgbouncer/pgbouncer.ini", "/bitnami/pgbouncer/conf/pgbouncer.ini"];
/// Users of edoburu's image and of Zalando's operator.
const USERLIST: &str = "/etc/pgbouncer/userlist.txt";

/// Variable with the addresses for clients.
const ADDRESSES: &str = "TIDEGATE_LISTEN_ADDRESSES";

/// The configuration of the container.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// A TOML file.
    Toml(PathBuf),
    /// A `pgbouncer.ini`.
    Ini(PathBuf),
    /// Variables `TIDEGATE_...`.
    Environment,
    /// A `pgbouncer.ini` made from variables of another image.
    Generated(Generated),
}

/// Files of PgBouncer, made from variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Generated {
    /// Lines of `[databases]`.
    databases: Vec<String>,
    /// Keys of `[pgbouncer]`.
    keys: Vec<(String, String)>,
    /// The file of users that stays where it is.
    user_file: Option<PathBuf>,
    /// Users and their passwords.
    users: Vec<(String, String)>,
    /// Whether clients get TLS with a certificate made at the start.
    self_signed: bool,
}

/// Variables and files of the container.
struct Surroundings<'s> {
    variable: &'s dyn Fn(&str) -> Option<String>,
    exists: &'s dyn Fn(&Path) -> bool,
    read: &'s dyn Fn(&Path) -> Option<String>,
    variables: &'s [(String, String)],
}

impl Surroundings<'_> {
    /// A variable that is not empty.
    fn get(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// A variable, or the first line of the file that the variable with `_FILE` names.
    fn secret(&self, name: &str) -> Option<String> {
        self.get(name).or_else(|| {
            let text = (self.read)(Path::new(&self.get(&format!("{name}_FILE"))?))?;
            text.lines().next().map(str::to_owned)
        })
    }

    fn or(&self, name: &str, default: &str) -> String {
        self.get(name).unwrap_or_else(|| default.to_owned())
    }
}

/// Chooses the configuration: mounted files first.
fn choose(from: &Surroundings<'_>) -> anyhow::Result<Source> {
    if (from.exists)(Path::new(TOML)) {
        return Ok(Source::Toml(TOML.into()));
    }
    if let Some(path) = INI.iter().find(|path| (from.exists)(Path::new(path))) {
        return Ok(Source::Ini((*path).into()));
    }
    if from.get("TIDEGATE_DATABASE").is_some() || declares_database(from.variables) {
        return Ok(Source::Environment);
    }
    if from.get("CONNECTION_POOLER_PORT").is_some() {
        return zalando(from).map(Source::Generated);
    }
    if from.get("POSTGRESQL_HOST").is_some() {
        return bitnami(from).map(Source::Generated);
    }
    if ["DATABASE_URL", "DATABASE_URLS", "DB_HOST"].iter().any(|name| from.get(name).is_some()) {
        return edoburu(from).map(Source::Generated);
    }
    bail!(
        "no configuration found: mount {TOML} or {}, or set TIDEGATE_DATABASE=postgres://user:password@host/database, \
         TIDEGATE_DATABASES_NAME__HOST, DATABASE_URL or DB_HOST (as for edoburu/pgbouncer), or POSTGRESQL_HOST (as for \
         bitnami/pgbouncer)",
        INI[0]
    )
}

/// Keys of `[pgbouncer]` that variables with this prefix set. `USER` is a variable of most shells and no key.
fn keys_of(from: &Surroundings<'_>, prefix: &str) -> Vec<(String, String)> {
    let settable = |name: &str| !matches!(name, "user" | "conffile" | "job_name" | "service_name" | "auth_file");
    let value = |name: &str| from.get(&format!("{prefix}{}", name.to_ascii_uppercase()));
    let keys = pgbouncer::GLOBAL.iter().map(|key| key.name).filter(|name| settable(name));
    keys.filter_map(|name| Some((name.to_owned(), value(name)?))).collect()
}

/// The variables of `edoburu/pgbouncer`: `DATABASE_URL`, or `DB_HOST` and its companions, and keys in capitals.
fn edoburu(from: &Surroundings<'_>) -> anyhow::Result<Generated> {
    let mut made = Generated { keys: keys_of(from, ""), ..Generated::default() };
    let urls = from.get("DATABASE_URLS").or_else(|| from.get("DATABASE_URL"));
    for url in urls.iter().flat_map(|urls| urls.split(',')).map(str::trim).filter(|url| !url.is_empty()) {
        let parsed = PgUrl::parse(url).map_err(|_| anyhow::anyhow!("DATABASE_URL is not a postgres:// URL"))?;
        let (hosts, ports): (Vec<_>, Vec<_>) = parsed.hosts.iter().map(host_and_port).unzip();
        let name = if parsed.dbname.is_empty() { "*" } else { &parsed.dbname };
        let user = if parsed.user.is_empty() { "postgres" } else { &parsed.user };
        made.databases.push(database(name, &hosts.join(","), &ports.join(","), &[("auth_user", user)]));
        made.add_user(user, parsed.password.reveal());
    }
    if urls.is_none() {
        let (host, port, user) = (from.or("DB_HOST", ""), from.or("DB_PORT", "5432"), from.or("DB_USER", "postgres"));
        made.databases.push(database(&from.or("DB_NAME", "*"), &host, &port, &[("auth_user", &user)]));
        made.add_user(&user, &from.secret("DB_PASSWORD").unwrap_or_default());
    }
    let lists = [("ADMIN_USERS", "ADMIN_PASSWORDS", "postgres"), ("STATS_USERS", "STATS_PASSWORDS", "")];
    for (users, passwords, default) in lists {
        let (users, passwords) = (from.or(users, default), from.or(passwords, ""));
        for (user, password) in users.split(',').zip(passwords.split(',')) {
            made.add_user(user.trim(), password);
        }
    }
    made.add_user("postgres", &from.or("ADMIN_PASSWORD", ""));
    made.defaults(&[
        ("listen_addr", &from.or("LISTEN_ADDR", "0.0.0.0")),
        ("listen_port", &from.or("LISTEN_PORT", "5432")),
        ("unix_socket_dir", ""),
        ("auth_type", "md5"),
        ("admin_users", "postgres"),
        ("ignore_startup_parameters", "extra_float_digits"),
    ]);
    made.use_file(from, &from.or("AUTH_FILE", USERLIST));
    Ok(made)
}

/// The variables of `bitnami/pgbouncer`: `POSTGRESQL_...` for the server, `PGBOUNCER_...` for keys.
fn bitnami(from: &Surroundings<'_>) -> anyhow::Result<Generated> {
    let mut made = Generated { keys: keys_of(from, "PGBOUNCER_"), ..Generated::default() };
    let (user, dbname) = (from.or("POSTGRESQL_USERNAME", "postgres"), from.or("POSTGRESQL_DATABASE", "postgres"));
    let name = from.or("PGBOUNCER_DATABASE", &dbname);
    let (host, port) = (from.or("POSTGRESQL_HOST", ""), from.or("POSTGRESQL_PORT", "5432"));
    let (login, password) = (
        from.get("PGBOUNCER_SET_DATABASE_USER").is_some_and(|set| is_yes(&set)),
        from.get("PGBOUNCER_SET_DATABASE_PASSWORD").is_some_and(|set| is_yes(&set)),
    );
    let secret = from.secret("POSTGRESQL_PASSWORD").unwrap_or_default();
    let mut options: Vec<(&str, &str)> = Vec::new();
    // `*` stands for any name, which is then also that of the database on the server.
    if name != "*" {
        options.push(("dbname", &dbname));
    }
    if login {
        options.push(("user", &user));
    }
    if password {
        options.push(("password", &secret));
    }
    let query = from.or("PGBOUNCER_CONNECT_QUERY", "");
    if !query.is_empty() {
        options.push(("connect_query", &query));
    }
    made.databases.push(database(&name, &host, &port, &options));
    for number in 0.. {
        let Some(line) = from.get(&format!("PGBOUNCER_DSN_{number}")) else { break };
        if line.contains('\n') {
            bail!("PGBOUNCER_DSN_{number} has more than one line; write name=host=... port=...");
        }
        made.databases.push(line);
    }
    made.add_user(&user, &secret);
    made.defaults(&[
        ("listen_addr", &from.or("PGBOUNCER_BIND_ADDRESS", "0.0.0.0")),
        ("listen_port", &from.or("PGBOUNCER_PORT", "6432")),
        ("unix_socket_dir", ""),
        ("auth_type", "scram-sha-256"),
        ("admin_users", &user),
        ("ignore_startup_parameters", "extra_float_digits"),
    ]);
    made.use_file(from, &from.or("PGBOUNCER_USERLIST_FILE", "/bitnami/pgbouncer/conf/userlist.txt"));
    Ok(made)
}

fn is_yes(word: &str) -> bool {
    matches!(word.to_ascii_lowercase().as_str(), "yes" | "true" | "1")
}

/// The variables that Zalando's operator sets: a look-up of users in its schema, TLS required, and a certificate made at the
/// start if none is mounted.
fn zalando(from: &Surroundings<'_>) -> anyhow::Result<Generated> {
    let needed = |name: &str| from.get(name).with_context(|| format!("{name} is not set; the operator sets it"));
    let (host, port, user) = (needed("PGHOST")?, from.or("PGPORT", "5432"), needed("PGUSER")?);
    let schema = from.or("PGSCHEMA", "pooler");
    let mut made = Generated::default();
    made.databases.push(database("*", &host, &port, &[("auth_user", &user)]));
    made.add_user(&user, &from.secret("PGPASSWORD").unwrap_or_default());
    let pooler = |name: &str| from.get(&format!("CONNECTION_POOLER_{name}"));
    let sizes = [
        ("pool_mode", pooler("MODE")),
        ("default_pool_size", pooler("DEFAULT_SIZE")),
        ("reserve_pool_size", pooler("RESERVE_SIZE")),
        ("max_client_conn", pooler("MAX_CLIENT_CONN")),
        ("max_db_connections", pooler("MAX_DB_CONN")),
        ("client_tls_cert_file", pooler("CLIENT_TLS_CRT")),
        ("client_tls_key_file", pooler("CLIENT_TLS_KEY")),
        ("client_tls_ca_file", pooler("CLIENT_CA_FILE")),
        ("stats_users", from.get("INFRASTRUCTURE_ROLES")),
    ];
    made.keys.extend(sizes.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    made.self_signed = pooler("CLIENT_TLS_CRT").is_none();
    made.defaults(&[
        ("listen_addr", "*"),
        ("listen_port", &pooler("PORT").unwrap_or_else(|| "5432".to_owned())),
        ("unix_socket_dir", ""),
        ("auth_type", "md5"),
        ("auth_dbname", "postgres"),
        ("auth_query", &format!("SELECT * FROM {schema}.user_lookup($1)")),
        ("admin_users", &user),
        ("server_tls_sslmode", "require"),
        ("client_tls_sslmode", "require"),
        ("max_prepared_statements", "200"),
        ("idle_transaction_timeout", "600"),
        ("server_login_retry", "5"),
        ("ignore_startup_parameters", "extra_float_digits,options"),
    ]);
    made.use_file(from, USERLIST);
    Ok(made)
}

/// The host and the port of a server, as in a line of `[databases]`.
fn host_and_port(host: &Host) -> (String, String) {
    match host {
        Host::Unix { dir, port } => (dir.display().to_string(), port.to_string()),
        Host::Tcp { name, port } => (name.clone(), port.to_string()),
    }
}

/// A line of `[databases]`.
fn database(name: &str, host: &str, port: &str, options: &[(&str, &str)]) -> String {
    let name = if name == "*" { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) };
    let quoted = |value: &str| format!("'{}'", value.replace('\'', "''"));
    let mut line = format!("{name} = host={} port={}", quoted(host), quoted(port));
    for (key, value) in options {
        // Writing to a string does not fail.
        let _ = write!(line, " {key}={}", quoted(value));
    }
    line
}

impl Generated {
    /// Adds a user with a password; the first password of a user counts.
    fn add_user(&mut self, user: &str, password: &str) {
        let is_new = self.users.iter().all(|(known, _)| known != user);
        // A line of the file cannot hold a line end, and a password with one is a mistake.
        let password = password.lines().next().unwrap_or_default();
        if !user.is_empty() && !user.contains('\n') && !password.is_empty() && is_new {
            self.users.push((user.to_owned(), password.to_owned()));
        }
    }

    /// Sets keys that no variable has set.
    fn defaults(&mut self, defaults: &[(&str, &str)]) {
        for (name, value) in defaults {
            if self.keys.iter().all(|(known, _)| known != name) {
                self.keys.push(((*name).to_owned(), (*value).to_owned()));
            }
        }
    }

    /// Uses a mounted file of users: as it is if it has all users of the variables, so that a reload reads it again, otherwise
    /// together with them.
    fn use_file(&mut self, from: &Surroundings<'_>, path: &str) {
        let Some(text) = (from.read)(Path::new(path)) else { return };
        let quoted = |user: &str| format!("\"{}\"", user.replace('"', "\"\""));
        self.users.retain(|(user, _)| !text.lines().any(|line| line.trim_start().starts_with(&quoted(user))));
        self.user_file = Some(path.into());
    }

    /// The text of the file of users.
    fn user_list(&self, mounted: &str) -> String {
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let users = self.users.iter().map(|(user, password)| format!("{} {}\n", quoted(user), quoted(password)));
        let separator = if mounted.is_empty() || mounted.ends_with('\n') { "" } else { "\n" };
        format!("{mounted}{separator}{}", users.collect::<String>())
    }

    /// The text of the ini file, with further keys.
    fn ini(&self, further: &[(&str, String)]) -> anyhow::Result<String> {
        let mut text = String::from("[databases]\n");
        for line in &self.databases {
            if line.contains(['\n', '\r']) {
                bail!("a variable for [databases] has more than one line; write it in one");
            }
            text.push_str(line);
            text.push('\n');
        }
        text.push_str("[pgbouncer]\n");
        let further = further.iter().map(|(name, value)| (*name, value.as_str()));
        for (name, value) in self.keys.iter().map(|(name, value)| (name.as_str(), value.as_str())).chain(further) {
            if value.contains(['\n', '\r']) {
                bail!("the variable for `{name}` has more than one line; write it in one");
            }
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name} = {value}");
        }
        Ok(text)
    }
}

/// Files in memory. They exist as long as this value.
#[derive(Debug, Default)]
pub struct MemoryFiles(Vec<File>);

impl MemoryFiles {
    /// Makes a file, and returns its path for this process.
    fn add(&mut self, name: &str, text: &str) -> anyhow::Result<String> {
        let made = memfd_create(name, MemfdFlags::CLOEXEC).with_context(|| format!("cannot make {name} in memory"))?;
        let mut file = File::from(made);
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        self.0.push(file);
        Ok(path)
    }
}

/// The arguments with which the container runs, and the files in memory that they name.
///
/// # Errors
/// If there is no configuration, or a variable cannot be used.
pub fn arguments() -> anyhow::Result<(RunArgs, MemoryFiles)> {
    let mut variables = super::environment_variables();
    let surroundings = Surroundings {
        variable: &super::environment,
        exists: &|path| path.exists(),
        read: &|path| fs::read_to_string(path).ok(),
        variables: &variables,
    };
    let mut files = MemoryFiles::default();
    let mut run = match choose(&surroundings)? {
        Source::Toml(file) => RunArgs { config: Some(file), ..RunArgs::default() },
        Source::Ini(file) => PgbouncerArgs { file, ..PgbouncerArgs::default() }.into(),
        Source::Environment => {
            // The default, loopback, cannot be reached from outside of a container.
            if variables.iter().all(|(name, _)| name != ADDRESSES) {
                variables.push((ADDRESSES.to_owned(), format!("*:{}", tidegate_config::DEFAULT_PORT)));
            }
            RunArgs::default()
        }
        Source::Generated(made) => {
            let mut further = Vec::new();
            let mounted = made.user_file.as_deref();
            match mounted {
                Some(file) if made.users.is_empty() => further.push(("auth_file", file.display().to_string())),
                _ => {
                    let mounted = mounted.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
                    further.push(("auth_file", files.add("userlist.txt", &made.user_list(&mounted))?));
                }
            }
            if made.self_signed {
                let certificate = rcgen::generate_simple_self_signed(vec!["tidegate".to_owned()])
                    .context("cannot make a certificate; mount one and set CONNECTION_POOLER_CLIENT_TLS_CRT")?;
                further.push(("client_tls_cert_file", files.add("server.crt", &certificate.cert.pem())?));
                further
                    .push(("client_tls_key_file", files.add("server.key", &certificate.signing_key.serialize_pem())?));
            }
            let file = files.add("pgbouncer.ini", &made.ini(&further)?)?.into();
            PgbouncerArgs { file, ..PgbouncerArgs::default() }.into()
        }
    };
    run.take_environment(&super::environment, &variables);
    Ok((run, files))
}

#[cfg(test)]
mod tests;
