//! Warnings about exposed secrets: files that others may read or change, and clear text on a network.
//!
//! They need the whole configuration, including the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::diagnostic::{Diagnostic, DiagnosticSeverity};
use super::raw::SourceText;
use super::stream::StreamSink;
use super::{AuthMethod, ClientTls, Config, Host, SslMode};
use crate::hba;

/// Access that other users must not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileSensitivity {
    /// The file contains a secret: others must neither read nor change it.
    Secret,
    /// The file decides who is admitted: others must not change it.
    Rules,
}

/// Permission bits of the group and of others.
const GROUP_READS: u32 = 0o040;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_READ: u32 = 0o004;
const OTHERS_WRITE: u32 = 0o002;

impl Config {
    /// Warnings about what the configuration exposes; `file` is the configuration file.
    #[must_use]
    pub fn exposure_warnings(&self, file: Option<&Path>) -> Vec<Diagnostic> {
        let name = file.map_or("--database".to_owned(), |file| file.display().to_string());
        let mut warnings = ExposureWarnings { source: SourceText::new(name, ""), found: Vec::new() };
        self.exposed_files(file, &mut warnings);
        self.clear_text_logins(&mut warnings);
        self.open_metrics(&mut warnings);
        self.open_shapes(&mut warnings);
        self.clear_text_web_console(&mut warnings);
        self.clear_text_servers(&mut warnings);
        warnings.found
    }

    /// Warnings about files that the process cannot read again, after it has changed to `runtime.user`; none without such a user.
    /// `file` is the configuration file.
    #[must_use]
    pub fn unreadable_files(&self, file: Option<&Path>) -> Vec<Diagnostic> {
        let name = file.map_or("--database".to_owned(), |file| file.display().to_string());
        let mut warnings = ExposureWarnings { source: SourceText::new(name, ""), found: Vec::new() };
        let user = &self.runtime.user;
        if user.is_empty() {
            return warnings.found;
        }
        let secrets_and_rules = self.files(file).into_iter().map(|(path, key, _)| (path, key));
        let files: BTreeMap<&Path, &'static str> = self.certificates().into_iter().chain(secrets_and_rules).collect();
        for (path, key) in files.into_iter().filter(|(path, _)| !path.as_os_str().is_empty()) {
            if File::open(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
                let path = path.display();
                let reason = format!("the user `{user}` cannot read {path} again: a reload will fail");
                warnings.warn(key, reason, format!("chmod 640 {path}, and chgrp it to a group of `{user}`"));
            }
        }
        warnings.found
    }

    /// The configuration file and the files that it names.
    fn files<'a>(&'a self, file: Option<&'a Path>) -> Vec<(&'a Path, &'static str, FileSensitivity)> {
        let secrets = self.secret_files.iter().map(|file| (file.as_path(), "", FileSensitivity::Secret));
        let mut files: Vec<(&Path, &'static str, FileSensitivity)> = secrets.collect();
        files.extend(
            file.filter(|file| !self.secret_files.contains(*file)).map(|file| (file, "", FileSensitivity::Rules)),
        );
        files.push((&self.listen.tls_key, "listen.tls_key", FileSensitivity::Secret));
        files.push((&self.metrics.tls_key, "metrics.tls_key", FileSensitivity::Secret));
        files.push((&self.admin_http.tls_key, "admin.http.tls_key", FileSensitivity::Secret));
        files.push((&self.auth.hba_file, "auth.hba_file", FileSensitivity::Rules));
        files.push((&self.auth.ident_file, "auth.ident_file", FileSensitivity::Rules));
        files.push((&self.journal.folder, "journal.folder", FileSensitivity::Secret));
        let keys: BTreeSet<_> = self.databases.values().map(|database| database.tls.key.as_path()).collect();
        files.extend(keys.into_iter().map(|key| (key, "databases.NAME.sslkey", FileSensitivity::Secret)));
        files
    }

    /// The files of certificates and authorities.
    fn certificates(&self) -> Vec<(&Path, &'static str)> {
        let mut files: Vec<(&Path, &'static str)> = vec![
            (&self.listen.tls_cert, "listen.tls_cert"),
            (&self.listen.tls_client_ca, "listen.tls_client_ca"),
            (&self.metrics.tls_cert, "metrics.tls_cert"),
            (&self.admin_http.tls_cert, "admin.http.tls_cert"),
        ];
        for database in self.databases.values() {
            files.push((&database.tls.root_cert, "databases.NAME.sslrootcert"));
            files.push((&database.tls.cert, "databases.NAME.sslcert"));
        }
        files
    }

    fn exposed_files(&self, file: Option<&Path>, warnings: &mut ExposureWarnings) {
        for (path, key, sensitivity) in self.files(file).into_iter().filter(|(path, ..)| !path.as_os_str().is_empty()) {
            if let Some((reason, help)) = too_open(path, sensitivity) {
                warnings.warn(key, reason, help);
            }
        }
    }

    fn clear_text_logins(&self, warnings: &mut ExposureWarnings) {
        let Some(address) = self.listen.addresses.iter().find(|address| is_remote(address)) else { return };
        if self.listen.tls == ClientTls::Require {
            return;
        }
        let help = match self.listen.dialect {
            super::Dialect::Pgbouncer => "write client_tls_sslmode = require, or another auth_type",
            super::Dialect::Postgres => "write tls = \"require\" in [listen], or method = \"scram-sha-256\" in [auth]",
        };
        let method = self.auth.method;
        if matches!(method, AuthMethod::Password | AuthMethod::Pam | AuthMethod::Ldap) {
            let reason =
                format!("method {method} on {address} without TLS: passwords are sent in clear text over the network");
            warnings.warn("auth.method", reason, help.to_owned());
        }
        let rules = || hba::HbaRules::load(&self.auth.hba_file, &self.auth.ident_file).ok();
        if method == AuthMethod::Hba
            && let Some(line) = rules().and_then(|rules| rules.clear_text_line())
        {
            let file = self.auth.hba_file.display();
            let reason = format!("the rule at {file}:{line} allows clear-text passwords on the network");
            warnings.warn("auth.hba_file", reason, "write hostssl in place of host, or scram-sha-256".to_owned());
        }
    }

    fn open_metrics(&self, warnings: &mut ExposureWarnings) {
        let Some(address) = self.metrics.addresses.iter().find(|address| is_remote(address)) else { return };
        let is_open = self.metrics.token.reveal().is_empty();
        if is_open {
            let reason = format!("the metrics at {address} can be read by every host that reaches the address");
            let help = format!(
                "write token in [metrics], or listen on 127.0.0.1:{} or on an address that a firewall protects",
                address.port()
            );
            warnings.warn("metrics.addresses", reason, help);
        } else if self.metrics.tls_cert.as_os_str().is_empty() {
            let reason = format!("the token of the metrics at {address} is sent in clear text over the network");
            warnings.warn("metrics.token", reason, "write tls_cert and tls_key in [metrics]".to_owned());
        }
    }

    fn open_shapes(&self, warnings: &mut ExposureWarnings) {
        let shapes = &self.shapes;
        if shapes.database.reveal().is_empty() {
            return;
        }
        let Some(address) = shapes.addresses.iter().find(|address| is_remote(address)) else { return };
        if shapes.secret.reveal().is_empty() {
            let reason = format!("the tables of the database can be read by every host that reaches {address}");
            let help = "write secret in [shapes], and let a proxy that checks users add it".to_owned();
            warnings.warn("shapes.addresses", reason, help);
        } else if shapes.tls_cert.as_os_str().is_empty() {
            let reason = format!("the secret of the shapes at {address} is sent in clear text over the network");
            warnings.warn("shapes.secret", reason, "write tls_cert and tls_key in [shapes]".to_owned());
        }
    }

    fn clear_text_web_console(&self, warnings: &mut ExposureWarnings) {
        let remote = self.admin_http.addresses.iter().find(|address| is_remote(address));
        if let Some(address) = remote.filter(|_| self.admin_http.tls_cert.as_os_str().is_empty()) {
            let reason = format!("passwords for the web console at {address} are sent in clear text over the network");
            let help = "write tls_cert and tls_key in [admin.http], or listen on 127.0.0.1 behind a proxy".to_owned();
            warnings.warn("admin.http.addresses", reason, help);
        }
    }

    fn clear_text_servers(&self, warnings: &mut ExposureWarnings) {
        let is_weak = |mode: SslMode| matches!(mode, SslMode::Disable | SslMode::Allow | SslMode::Prefer);
        let servers =
            self.databases.iter().filter(|(_, database)| is_weak(database.tls.mode)).flat_map(|(name, database)| {
                let hosts = database.hosts.iter().map(|spec| &spec.host);
                hosts.map(move |host| (format!("databases.{name}"), host, database.tls.mode))
            });
        let streams = self.streams.iter().filter(|stream| is_weak(stream.tls.mode)).flat_map(|stream| {
            let hosts = if let StreamSink::Postgres(url) = &stream.keys.to { &url.hosts[..] } else { &[] };
            hosts.iter().map(move |host| (format!("streams.{}", stream.keys.name), host, stream.tls.mode))
        });
        let mut remote = servers.chain(streams).filter(|(_, host, _)| is_remote_host(host));
        let Some((owner, host, mode)) = remote.next() else { return };
        let others = remote.count();
        let others = if others > 0 { format!(" (and {others} more)") } else { String::new() };
        let reason = format!(
            "{owner}: with sslmode {mode}, data between this machine and {host} can be read and changed on the network{others}"
        );
        let (key, help) = match self.listen.dialect {
            super::Dialect::Pgbouncer => ("server_tls_sslmode", "write server_tls_sslmode = verify-full"),
            super::Dialect::Postgres => ("databases.NAME.sslmode", "write sslmode = \"verify-full\""),
        };
        warnings.warn(key, reason, format!("{help}, or at least require"));
    }
}

struct ExposureWarnings {
    source: SourceText,
    found: Vec<Diagnostic>,
}

impl ExposureWarnings {
    fn warn(&mut self, key: &str, reason: String, help: String) {
        let diagnostic = Diagnostic::new(&self.source, &(0..0), DiagnosticSeverity::Warning, key);
        self.found.push(diagnostic.with_reason(reason).with_help(help));
    }
}

/// Reason and help if others have too much access. As in Postgres, the group may read a key of root.
fn too_open(path: &Path, sensitivity: FileSensitivity) -> Option<(String, String)> {
    let metadata = path.metadata().ok().filter(|metadata| metadata.is_file() || metadata.is_dir())?;
    let (mode, is_of_root) = (metadata.mode(), metadata.uid() == 0);
    let reading = if is_of_root { OTHERS_READ } else { OTHERS_READ | GROUP_READS };
    let reads = mode & reading != 0 && sensitivity == FileSensitivity::Secret;
    let writes = mode & (OTHERS_WRITE | GROUP_WRITES) != 0;
    let what = match (reads, writes) {
        (false, false) => return None,
        (true, false) => "read",
        (_, true) => "change",
    };
    let harmful = if sensitivity == FileSensitivity::Secret { OTHERS_READ | OTHERS_WRITE } else { OTHERS_WRITE };
    let class = if mode & harmful != 0 { "every user of this machine" } else { "its group" };
    let permissions = match (sensitivity, metadata.is_dir(), is_of_root) {
        (FileSensitivity::Secret, true, _) => "700",
        (FileSensitivity::Secret, false, true) => "640",
        (FileSensitivity::Secret, false, false) => "600",
        (FileSensitivity::Rules, ..) => "go-w",
    };
    let path = path.display();
    Some((format!("{class} can {what} {path}"), format!("chmod {permissions} {path}")))
}

fn is_remote(address: &SocketAddr) -> bool {
    !address.ip().is_loopback()
}

fn is_remote_host(host: &Host) -> bool {
    match host {
        Host::Unix { .. } => false,
        Host::Tcp { name, .. } => match name.parse::<IpAddr>() {
            Ok(ip) => !ip.is_loopback(),
            Err(_) => name != "localhost" && !name.ends_with(".localhost"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::toml;
    use super::*;

    fn reasons(config: &Config, file: Option<&Path>) -> Vec<String> {
        let found = config.exposure_warnings(file);
        found.into_iter().map(|diagnostic| format!("{}; {}", diagnostic.reason, diagnostic.help)).collect()
    }

    fn reasons_of(text: &str) -> Vec<String> {
        reasons(&toml::parse(text, "tidegate.toml").expect("a configuration"), None)
    }

    #[test]
    fn local_connections_are_not_warned_of() {
        for text in [
            "[databases.a]\nhost = \"127.0.0.1\"\n",
            "[databases.a]\nhost = \"localhost\"\n[metrics]\naddresses = [\"[::1]:1\"]\n",
            "[databases.a]\nhost = \"/run/pg\"\n[auth]\nmethod = \"password\"\n",
            "[databases.a]\nhost = \"db\"\nsslmode = \"verify-full\"\n[listen]\naddresses = [\"*:1\"]\n",
        ] {
            assert_eq!(reasons_of(text), [] as [String; 0], "{text}");
        }
    }

    #[test]
    fn clear_text_on_a_network_is_warned_of() {
        let local = "[databases.a]\nhost = \"127.0.0.1\"\n";
        for (text, reason) in [
            (
                "[auth]\nmethod = \"password\"\n[listen]\naddresses = [\"0.0.0.0:6432\"]\n",
                "method password on 0.0.0.0:6432",
            ),
            ("[metrics]\naddresses = [\"0.0.0.0:9127\"]\n", "metrics at 0.0.0.0:9127"),
            ("[databases.b]\nhost = \"10.0.0.7\"\n", "databases.b: with sslmode prefer"),
            (
                "[databases.b]\nhost = \"db\"\nsslmode = \"disable\"\n[databases.c]\nhost = \"db\"\n",
                "db:5432 can be read and changed on the network (and 1 more)",
            ),
        ] {
            let reasons = reasons_of(&format!("{local}{text}"));
            assert!(reasons.len() == 1 && reasons[0].contains(reason), "{text}: {reasons:?}");
        }
    }

    #[test]
    fn exposed_files_are_warned_of() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tidegate.toml");
        let secret = "[databases.a]\nhost = \"127.0.0.1\"\n[users.app]\npassword = \"x\"\n";
        let plain = "[databases.a]\nhost = \"127.0.0.1\"\n[auth]\nmethod = \"trust\"\n";
        for (text, mode, expected) in [
            (secret, 0o600, None),
            (secret, 0o604, Some("every user of this machine can read")),
            (secret, 0o660, Some("its group can change")),
            (plain, 0o644, None),
            (plain, 0o646, Some("every user of this machine can change")),
        ] {
            std::fs::write(&file, text).expect("a file");
            set_permissions(&file, Permissions::from_mode(mode)).expect("one's own file");
            let reasons = reasons(&toml::load(&file).expect("a configuration"), Some(&file));
            match expected {
                None => assert_eq!(reasons, [] as [String; 0], "{mode:o}"),
                Some(expected) => {
                    assert!(reasons[0].contains(expected) && reasons[0].contains("chmod"), "{mode:o}: {reasons:?}");
                }
            }
        }
    }
}
