//! `[pgbouncer]`: keys with an equivalent, and keys that need a conversion.

use std::net::{IpAddr, ToSocketAddrs};

use super::*;
use crate::{AdminConfig, ReserveDelay, setting::can_be_bound};

impl Mapper<'_> {
    /// Sets keys with an equivalent, and reports unknown keys and keys without effect.
    pub(super) fn global_keys(&mut self, lines: &[IniLine]) {
        for line in lines.iter().filter(|line| line.section == "pgbouncer") {
            match keys::find(GLOBAL, &line.key) {
                Some(key) => self.without_effect(key, &line.key_at),
                None => self.unknown(&line.key_at, &line.key, GLOBAL, "pgbouncer"),
            }
        }
        for key in GLOBAL {
            let IniKeyEffect::SameAs(path) = key.effect else { continue };
            if key.default.is_none() && self.ini.global(key.name).is_none() {
                continue;
            }
            let given = self.value_of(key.name);
            let (section, name) = path.split_once('.').unwrap_or((path, ""));
            if let Some(value) = self.read(key.kind, key.name, &given) {
                self.put(&[section], name, value, &given.at);
            }
        }
        self.put_text(&["listen"], "dialect", "pgbouncer", &(0..0));
        self.put_text(&["log"], "format", "pgbouncer", &(0..0));
        // PgBouncer's administrators may set logfile, auth_hba_file and other file names.
        self.put(&["admin"], "set_files", RawValue::Boolean(true), &(0..0));
        self.put(&["pool"], "wait_for_server", RawValue::Boolean(true), &(0..0));
    }

    pub(super) fn listen(&mut self) {
        let (addresses, port) = (self.value_of("listen_addr"), self.value_of("listen_port"));
        let Some(number) = port.text.parse::<u16>().ok().filter(|port| *port > 0) else {
            let reason = format!("listen_port: `{}` is not a port", port.text);
            return self.error(&port.at, "listen_port", reason, "write a number from 1 to 65535");
        };
        let mut list = Vec::new();
        for name in addresses.text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match addresses_of(name) {
                Ok(found) => list.extend(found.into_iter().map(|ip| text_node((ip, number), &addresses.at))),
                Err(reason) => {
                    let help = "write IP addresses, or * for all addresses of this machine";
                    self.error(&addresses.at, "listen_addr", format!("listen_addr: {name}: {reason}"), help);
                }
            }
        }
        list.dedup_by(|a, b| a.value == b.value);
        self.put(&["listen"], "addresses", RawValue::List(list), &addresses.at);
        self.put(&["listen"], "unix_socket_port", RawValue::Integer(number.into()), &port.at);
        self.socket_access();
    }

    /// Warns that permissions have no effect on an abstract socket.
    fn socket_access(&mut self) {
        if !self.value_of("unix_socket_dir").text.starts_with('@') {
            return;
        }
        for name in ["unix_socket_mode", "unix_socket_group"] {
            if let Some(at) = self.ini.global(name).map(|line| line.key_at.clone()) {
                let reason = format!("`{name}` has no effect: every user of this machine can reach an abstract socket");
                self.warning(&at, name, reason, "leave it out, or name a folder in unix_socket_dir");
            }
        }
    }

    /// The console has no users to look up.
    fn lookup_database(&mut self) {
        let given = self.value_of("auth_dbname");
        if given.text == AdminConfig::DISPLAY_NAME {
            let reason = format!("cannot use the reserved \"{}\" database as an auth_dbname", given.text);
            self.error(&given.at, "auth_dbname", reason, "name the database with the users");
        }
    }

    pub(super) fn auth(&mut self) {
        self.lookup_database();
        let kind = self.value_of("auth_type");
        let Some(RawValue::Text(word)) = self.read(IniValueKind::Word(keys::AUTH_TYPES), "auth_type", &kind) else {
            return;
        };
        let method = match word.as_str() {
            "any" | "trust" => "trust",
            "plain" => "password",
            "cert" if !self.requests_client_certificates() => {
                let reason = "auth_type: `cert` needs client certificates";
                let help = "write client_tls_sslmode = verify-full and client_tls_ca_file = /path/to/authorities.pem";
                return self.error(&kind.at, "auth_type", reason, help);
            }
            other => other,
        };
        self.put_text(&["auth"], "method", method, &kind.at);
        self.put(&["auth"], "strangers", RawValue::Boolean(word == "any"), &kind.at);
        if word == "hba" || word == "pam" {
            // PgBouncer's PAM service name.
            self.put_text(&["auth"], "pam_service", "pgbouncer", &kind.at);
        }
        if word == "hba" {
            for (name, key) in [("auth_hba_file", "hba_file"), ("auth_ident_file", "ident_file")] {
                let given = self.value_of(name);
                if let Some(file) = file(&given) {
                    self.put_text(&["auth"], key, file.display().to_string(), &given.at);
                }
            }
        }
    }

    /// Sizes of pools; the minimum is at most the maximum.
    pub(super) fn sizes(&mut self) {
        let sizes = self.value_of("default_pool_size");
        let size = self.number_of("default_pool_size", size).unwrap_or(20);
        self.put(&["pool"], "size", RawValue::Integer(size), &sizes.at);
        let least = self.value_of("min_pool_size");
        let min = self.number_of("min_pool_size", |text| number(text).map(Some)).unwrap_or(0).min(size);
        self.put(&["pool"], "min_size", RawValue::Integer(min), &least.at);
        let after = self.value_of("reserve_pool_timeout");
        if let Some(RawValue::Text(time)) = self.read(IniValueKind::Seconds, "reserve_pool_timeout", &after) {
            let time = if time == "0" { ReserveDelay::NEVER.to_owned() } else { time };
            self.put_text(&["pool"], "reserve_after", time, &after.at);
        }
        let forbidden = self.value_of("disable_pqexec");
        if let Some(RawValue::Boolean(forbidden_value)) = self.read(IniValueKind::Flag, "disable_pqexec", &forbidden) {
            self.put(&["pool"], "simple_query", RawValue::Boolean(!forbidden_value), &forbidden.at);
        }
        let life = self.value_of("server_lifetime");
        match lifetime(&life.text) {
            Ok(Some(value)) => self.put(&["timeouts"], "server_lifetime", value, &life.at),
            Ok(None) => {}
            Err((reason, help)) => self.error(&life.at, "server_lifetime", format!("server_lifetime: {reason}"), help),
        }
    }

    /// PgBouncer waits without a limit after SIGTERM.
    pub(super) fn shutdown(&mut self) {
        self.put_text(&["timeouts"], "shutdown", "0", &(0..0));
    }

    /// The pause after a failed login does not grow.
    pub(super) fn login_retry(&mut self) {
        let given = self.value_of("server_login_retry");
        if let Some(time) = self.read(IniValueKind::Seconds, "server_login_retry", &given) {
            self.put(&["timeouts"], "connect_retry", time, &given.at);
            // A maximum below `connect_retry` disables growth.
            self.put_text(&["timeouts"], "connect_retry_max", "0", &given.at);
        }
    }

    /// Period of look-ups.
    pub(super) fn dns(&mut self) {
        let given = self.value_of("dns_zone_check_period");
        if let Some(value) = self.read(IniValueKind::Seconds, "dns_zone_check_period", &given) {
            self.put(&["dns"], "check_period", value, &given.at);
        }
    }

    /// Check of idle servers; `<empty>` is an empty statement, and an empty value is none.
    pub(super) fn server_check(&mut self) {
        let given = self.value_of("server_check_query");
        let sql = if given.text == "<empty>" { ";" } else { given.text.as_str() };
        self.put_text(&["pool"], "server_check", sql, &given.at);
    }

    fn number_of(&mut self, name: &str, read: impl Fn(&str) -> Result<Option<i64>, IniValueError>) -> Option<i64> {
        let given = self.value_of(name);
        match read(&given.text) {
            Ok(number) => number,
            Err((reason, help)) => {
                self.error(&given.at, name, format!("{name}: {reason}"), help);
                None
            }
        }
    }

    /// TCP keepalive; 0 is the default of this gateway.
    pub(super) fn tcp(&mut self) {
        let keys = [
            ("tcp_keepidle", "keepalive_idle", "s"),
            ("tcp_keepintvl", "keepalive_interval", "s"),
            ("tcp_user_timeout", "user_timeout", "ms"),
        ];
        for (name, key, unit) in keys {
            let given = self.value_of(name);
            let number = self.number_of(name, |text| number(text).map(|number| (number > 0).then_some(number)));
            if let Some(number) = number {
                self.put_text(&["tcp"], key, format!("{number}{unit}"), &given.at);
            }
        }
    }

    /// Logging to syslog.
    pub(super) fn syslog(&mut self) {
        let given = self.value_of("syslog");
        if let Some(RawValue::Boolean(true)) = self.read(IniValueKind::Flag, "syslog", &given) {
            self.put_text(&["log"], "syslog", "/dev/log", &given.at);
        }
    }

    /// Maximum length of a client message. PgBouncer allows 2 GiB, Postgres 1 GiB.
    pub(super) fn message_max(&mut self) {
        let given = self.value_of("max_packet_size");
        if let Some(bytes) = self.number_of("max_packet_size", |text| number(text).map(Some)) {
            self.put(&["pool"], "message_max", RawValue::Integer(bytes.min(MESSAGE_MAX.into())), &given.at);
        }
    }

    pub(super) fn log_level(&mut self) {
        let given = self.value_of("verbose");
        let level = match self.number_of("verbose", |text| number(text).map(Some)) {
            None | Some(..=0) => return,
            Some(1) => "debug",
            Some(_) => "trace",
        };
        self.put_text(&["log"], "level", level, &given.at);
    }
}

fn text_node(address: (IpAddr, u16), at: &SourceSpan) -> SpannedValue {
    SpannedValue { value: RawValue::Text(std::net::SocketAddr::from(address).to_string()), at: at.clone() }
}

/// Addresses of this machine for a name of `listen_addr`, which may resolve to a family that the machine does not support.
fn addresses_of(name: &str) -> Result<Vec<IpAddr>, String> {
    if name == "*" {
        let all: [IpAddr; 2] = [std::net::Ipv4Addr::UNSPECIFIED.into(), std::net::Ipv6Addr::UNSPECIFIED.into()];
        return Ok(all.into_iter().filter(|ip| can_be_bound(*ip)).collect());
    }
    if let Ok(ip) = name.parse() {
        return Ok(vec![ip]);
    }
    let found = (name, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    let mut found: Vec<_> = found.map(|address| address.ip()).filter(|ip| can_be_bound(*ip)).collect();
    found.dedup();
    if found.is_empty() { Err("it is not an address of this machine".to_owned()) } else { Ok(found) }
}
