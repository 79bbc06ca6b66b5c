//! `[databases]`, and parsing that all lines of pairs share.

use super::*;
use crate::pgbouncer::connstr::{ConnStrPair, pairs};

/// Startup parameters that have keys of their own.
const PARAMETERS: &[&str] = &["application_name", "client_encoding", "datestyle", "timezone"];

impl Mapper<'_> {
    /// Pairs of a line with known keys, with positions in the whole text; unknown keys are reported.
    pub(super) fn known_pairs(&mut self, line: &IniLine, known: &'static [IniKey]) -> Vec<(&'static IniKey, IniValue)> {
        let found = match pairs(&line.value) {
            Ok(found) => found,
            Err(reason) => {
                let nowhere = line.value_at.start..line.value_at.start;
                let help = "write key=value pairs, a value with spaces in single quotes";
                self.error(&nowhere, &line.key, format!("{}: {reason}", line.key), help);
                return Vec::new();
            }
        };
        let start = line.value_at.start;
        let moved = |span: &SourceSpan| span.start + start..span.end + start;
        let mut all = Vec::new();
        for ConnStrPair { key, key_at, value, value_at } in found {
            let (key_at, at) = (moved(&key_at), moved(&value_at));
            match keys::find(known, &key) {
                Some(key) => {
                    self.without_effect(key, &key_at);
                    all.push((key, IniValue { text: value, at }));
                }
                None => self.unknown(&key_at, &key, known, line.section),
            }
        }
        all
    }

    pub(super) fn databases(&mut self, lines: &[IniLine]) {
        for line in lines.iter().filter(|line| line.section == "databases") {
            let pairs = self.known_pairs(line, keys::DATABASE);
            let path = ["databases", line.key.as_str()];
            let find = |name: &str| pairs.iter().rev().find(|(key, _)| key.name == name).map(|(_, given)| given);
            // As in PgBouncer, the login to the server survives a second line that does not set it.
            let login: &[_] = if find("user").is_some() { &[] } else { &["user", "password", "shared_pool"] };
            self.reset_table(&path, &line.key_at, login);
            for (key, given) in &pairs {
                self.put_key(&path, key, given);
            }
            self.host(&path, find("host"), &line.key_at);
            self.choice(&path, find("host"), find("load_balance_hosts"));
            self.pool_sizes(&path, find("pool_size"), find("min_pool_size"));
            self.life(&path, find("server_lifetime"));
            self.parameters(&path, &pairs);
            self.server_tls(&path);
            if let Some(given) = find("user") {
                self.put_text(&path, "user", given.text.clone(), &given.at);
                self.put(&path, "shared_pool", RawValue::Boolean(true), &given.at);
            }
            if let (Some(given), None) = (find("password"), find("user")) {
                let nowhere = given.at.start..given.at.start;
                let reason = format!("[databases] {}: a password without user has no effect", line.key);
                self.warning(&nowhere, "password", reason, "add user=, or put the password into auth_file");
                self.table(&path, &line.key_at).entries.retain(|entry| entry.key != "password");
            }
        }
    }

    fn host(&mut self, path: &[&str], host: Option<&IniValue>, at: &SourceSpan) {
        let local = self.value_of("unix_socket_dir").text;
        let local = if local.is_empty() { "/tmp".to_owned() } else { super::socket_dir(&local) };
        let (text, at) = host.map_or((local, at), |given| (given.text.clone(), &given.at));
        self.put_text(path, "host", text, at);
    }

    /// PgBouncer treats several hosts as equal, and uses them in turn or in order.
    fn choice(&mut self, path: &[&str], hosts: Option<&IniValue>, balance: Option<&IniValue>) {
        let kind = keys::find(keys::DATABASE, "load_balance_hosts").map_or(IniValueKind::Text, |key| key.kind);
        let word = balance.and_then(|given| self.read(kind, "load_balance_hosts", given));
        let Some(hosts) = hosts.filter(|hosts| hosts.text.contains(',')) else { return };
        self.put_text(path, "route", "any", &hosts.at);
        if let (Some(RawValue::Text(word)), Some(given)) = (word, balance) {
            let policy = if word == "disable" { "pick_first" } else { "round_robin" };
            self.put_text(path, "policy", policy, &given.at);
        }
    }

    /// Sizes of a pool; the minimum is at most the maximum.
    pub(super) fn pool_sizes(&mut self, path: &[&str], own: Option<&IniValue>, least: Option<&IniValue>) {
        let general = size(&self.value_of("default_pool_size").text).ok().flatten().unwrap_or(20);
        let mut read = |name: &str, given: Option<&IniValue>, read: fn(&str) -> Result<Option<i64>, IniValueError>| {
            let given = given?;
            match read(&given.text) {
                Ok(number) => number.map(|number| (number, given.at.clone())),
                Err((reason, help)) => {
                    self.error(&given.at, name, format!("{name}: {reason}"), help);
                    None
                }
            }
        };
        let own = read("pool_size", own, size);
        let least = read("min_pool_size", least, |text| number(text).map(|number| (number >= 0).then_some(number)));
        let most = own.as_ref().map_or(general, |(size, _)| *size);
        if let Some((size, at)) = own {
            self.put(path, "size", RawValue::Integer(size), &at);
            // The general minimum may be larger than this pool.
            let general = number(&self.value_of("min_pool_size").text).unwrap_or(0);
            if least.is_none() && path[0] == "databases" && general > size {
                self.put(path, "min_size", RawValue::Integer(size), &at);
            }
        }
        if let Some((min, at)) = least {
            self.put(path, "min_size", RawValue::Integer(min.min(most)), &at);
        }
    }

    fn life(&mut self, path: &[&str], given: Option<&IniValue>) {
        let Some(given) = given else { return };
        match lifetime(&given.text) {
            Ok(Some(value)) => self.put(path, "server_lifetime", value, &given.at),
            Ok(None) => {}
            Err((reason, help)) => {
                self.error(&given.at, "server_lifetime", format!("server_lifetime: {reason}"), help);
            }
        }
    }

    fn parameters(&mut self, path: &[&str], pairs: &[(&'static IniKey, IniValue)]) {
        let mut table = RawTable::default();
        for (key, given) in pairs.iter().filter(|(key, _)| PARAMETERS.contains(&key.name)) {
            table.push_text(key.name, &given.text, given.at.clone());
        }
        if let Some(first) = table.entries.first().map(|entry| entry.key_at.clone()) {
            self.put(path, "startup_parameters", RawValue::Table(table), &first);
        }
    }

    fn server_tls(&mut self, path: &[&str]) {
        let mode = self.value_of("server_tls_sslmode");
        let kind = keys::find(GLOBAL, "server_tls_sslmode").map_or(IniValueKind::Text, |key| key.kind);
        let Ok(Some(value)) = super::value(kind, &mode.text, &mode.at) else {
            // Reports the error also without a database, and only once with several.
            if self.diagnostics.iter().all(|diagnostic| diagnostic.key != "server_tls_sslmode") {
                self.read(kind, "server_tls_sslmode", &mode);
            }
            return;
        };
        self.put(path, "sslmode", value, &mode.at);
        let files = [
            ("server_tls_ca_file", "sslrootcert"),
            ("server_tls_cert_file", "sslcert"),
            ("server_tls_key_file", "sslkey"),
        ];
        for (name, key) in files {
            let given = self.value_of(name);
            // PgBouncer does not check the certificate of the server without a verifying mode.
            let is_used = mode.text != "disable" && (key != "sslrootcert" || mode.text.starts_with("verify-"));
            if let Some(file) = file(&given).filter(|_| is_used) {
                self.put_text(path, key, file.display().to_string(), &given.at);
            }
        }
        if !self.server_suites.is_empty() {
            let at = self.value_of("server_tls_ciphers").at;
            let list = super::tls::names(self.server_suites.iter().map(|suite| suite.as_str()), &at);
            self.put(path, "sslciphers", list, &at);
        }
    }
}
