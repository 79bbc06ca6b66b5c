//! Password of a URL from `PGPASSWORD` or libpq's password file.
//!
//! A command line is visible to every user of the machine (`ps`); the environment and the file are not. The rules are
//! those of the PostgreSQL documentation ("The Password File").

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::secret::Secret;
use super::url::{Host, PgUrl};

/// Reads an environment variable.
pub type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Maximum size of a password file.
const BYTES_MAX: u64 = 1 << 20;

/// The URL with a password, if it has a user without one and a password is found.
pub fn with_password(url: &str, env: Env<'_>) -> String {
    with_password_or(url, env, |_| None)
}

/// As [`with_password`], with a last source of the password of a user.
#[must_use]
pub fn with_password_or(url: &str, env: Env<'_>, last: impl FnOnce(&str) -> Option<Secret>) -> String {
    let Ok(parsed) = PgUrl::parse(&without_names(url)) else { return url.to_owned() };
    if parsed.user.is_empty() || !parsed.password.is_empty() {
        return url.to_owned();
    }
    match find(&parsed, env).or_else(|| last(&parsed.user)) {
        Some(password) => {
            let encoded: String = password.reveal().bytes().map(|byte| format!("%{byte:02X}")).collect();
            format!("{url}{}password={encoded}", if url.contains('?') { '&' } else { '?' })
        }
        None => url.to_owned(),
    }
}

/// The URL without the publication and the slot of a stream's source, which libpq does not know.
fn without_names(url: &str) -> String {
    let Some((head, query)) = url.split_once('?') else { return url.to_owned() };
    let is_name = |pair: &&str| pair.starts_with("publication=") || pair.starts_with("slot=");
    let others: Vec<_> = query.split('&').filter(|pair| !is_name(pair)).collect();
    if others.is_empty() { head.to_owned() } else { format!("{head}?{}", others.join("&")) }
}

fn find(url: &PgUrl, env: Env<'_>) -> Option<Secret> {
    if let Some(password) = env("PGPASSWORD").filter(|password| !password.is_empty()) {
        return Some(Secret::new(password));
    }
    let named = env("PGPASSFILE").filter(|file| !file.is_empty()).map(PathBuf::from);
    let file = named.or_else(|| Some(PathBuf::from(env("HOME")?).join(".pgpass")))?;
    let metadata = file.metadata().ok()?;
    // libpq also ignores a file that others may read.
    if !metadata.is_file() || metadata.mode() & 0o077 != 0 || metadata.len() > BYTES_MAX {
        return None;
    }
    let text = fs::read_to_string(file).ok()?;
    url.hosts.iter().find_map(|host| text.lines().find_map(|line| password_in(line, host, url)))
}

/// The password of a line, if its other fields match.
fn password_in(line: &str, host: &Host, url: &PgUrl) -> Option<Secret> {
    if line.starts_with('#') {
        return None;
    }
    let fields = fields(line);
    let [name, port, database, user, password] = &fields[..] else { return None };
    let (host, host_port) = match host {
        Host::Tcp { name, port } => (name.clone(), port),
        Host::Unix { dir, port } => (dir.display().to_string(), port),
    };
    let dbname = if url.dbname.is_empty() { &url.user } else { &url.dbname };
    let fits = |field: &str, value: &str| field == "*" || field == value;
    let all =
        fits(name, &host) && fits(port, &host_port.to_string()) && fits(database, dbname) && fits(user, &url.user);
    (all && !password.is_empty()).then(|| Secret::new(password))
}

/// The five fields of a line; `\:` and `\\` stand for `:` and `\`, and the last field is the rest.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        let last = fields.len() - 1;
        match c {
            '\\' => fields[last].extend(rest.next()),
            ':' if fields.len() < 5 => fields.push(String::new()),
            c => fields[last].push(c),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn password(url: &str, env: Env<'_>) -> String {
        PgUrl::parse(&with_password(url, env)).expect("a URL").password.reveal().to_owned()
    }

    #[test]
    fn other_sources_come_last() {
        let last = |user: &str| (user == "app").then(|| Secret::new("last".to_owned()));
        let none = |_: &str| None;
        let given = |name: &str| (name == "PGPASSWORD").then(|| "first".to_owned());
        let password = |env: Env<'_>, url: &str| {
            PgUrl::parse(&with_password_or(url, env, last)).expect("a URL").password.reveal().to_owned()
        };
        assert_eq!(password(&none, "postgres://app@db/shop"), "last");
        assert_eq!(password(&given, "postgres://app@db/shop"), "first");
        assert_eq!(password(&none, "postgres://app:own@db/shop"), "own");
        assert_eq!(password(&none, "postgres://other@db/shop"), "");
    }

    #[test]
    fn the_environment_has_the_password_of_a_user() {
        let env = |name: &str| (name == "PGPASSWORD").then(|| "p@ss wörd".to_owned());
        assert_eq!(password("postgres://app@db/shop", &env), "p@ss wörd");
        assert_eq!(password("postgres://app@db/shop?sslmode=require", &env), "p@ss wörd");
        assert_eq!(password("postgres://app:own@db/shop", &env), "own");
        assert_eq!(password("postgres://db/shop", &env), "", "there is no user");
        assert_eq!(with_password("no URL", &env), "no URL");
    }

    #[test]
    fn the_password_file_is_read_as_libpq_reads_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("pgpass");
        let text =
            "# db:5432:shop:app:comment\nother:*:*:*:1\ndb:5433:*:app:2\n*:*:shop:a\\:b:3\\\\\\:\n*:*:*:app:4:5\n";
        fs::write(&file, text).expect("a file");
        let path = file.display().to_string();
        let env = move |name: &str| (name == "PGPASSFILE").then(|| path.clone());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("one's own file");
        assert_eq!(password("postgres://app@db/shop", &env), "", "others may read it");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("one's own file");
        for (url, expected) in [
            ("postgres://app@db/shop", "4:5"),
            ("postgres://app@db:5433/shop", "2"),
            ("postgres://x@other/shop", "1"),
            ("postgres://a%3Ab@db/shop", "3\\:"),
            ("postgres://y@db/shop", ""),
        ] {
            assert_eq!(password(url, &env), expected, "{url}");
        }
    }
}
