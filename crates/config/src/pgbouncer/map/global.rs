//! `[pgbouncer]`: most keys are one of ours; the others are put together here.

use std::net::{IpAddr, TcpListener, ToSocketAddrs};

use super::*;

impl Mapper<'_> {
    /// Every key is known, those with the same meaning are put down, those without effect are named.
    pub(super) fn global_keys(&mut self, lines: &[Line]) {
        for line in lines.iter().filter(|line| line.section == "pgbouncer") {
            match keys::find(GLOBAL, &line.key) {
                Some(key) => self.without_effect(key, &line.key_at),
                None => self.unknown(&line.key_at, &line.key, GLOBAL, "pgbouncer"),
            }
        }
        for key in GLOBAL {
            let Effect::Is(path) = key.effect else { continue };
            if key.default.is_none() && self.ini.global(key.name).is_none() {
                continue;
            }
            let given = self.given(key.name);
            let (section, name) = path.split_once('.').unwrap_or((path, ""));
            if let Some(value) = self.read(key.kind, key.name, &given) {
                self.put(&[section], name, value, &given.at);
            }
        }
        self.put_text(&["listen"], "dialect", "pgbouncer", &(0..0));
        self.put_text(&["log"], "format", "pgbouncer", &(0..0));
        // PgBouncer's administrators may set logfile, auth_hba_file and the like.
        self.put(&["admin"], "set_files", Value::Boolean(true), &(0..0));
        self.put(&["pool"], "wait_for_server", Value::Boolean(true), &(0..0));
    }

    pub(super) fn listen(&mut self) {
        let (addresses, port) = (self.given("listen_addr"), self.given("listen_port"));
        let Some(number) = port.text.parse::<u16>().ok().filter(|port| *port > 0) else {
            let reason = format!("listen_port: `{}` is not a port", port.text);
            return self.error(&port.at, "listen_port", reason, "write a number from 1 to 65535");
        };
        let mut list = Vec::new();
        for name in addresses.text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match addresses_of(name) {
                Ok(found) => list.extend(found.into_iter().map(|ip| text_node((ip, number), &addresses.at))),
                Err(reason) => {
                    let help = "write IP addresses, or * for all of this machine";
                    self.error(&addresses.at, "listen_addr", format!("listen_addr: {name}: {reason}"), help);
                }
            }
        }
        list.dedup_by(|a, b| a.value == b.value);
        self.put(&["listen"], "addresses", Value::List(list), &addresses.at);
        self.put(&["listen"], "unix_socket_port", Value::Integer(number.into()), &port.at);
        self.socket_access();
    }

    /// Whoever has narrowed the access to a socket without a file has not.
    fn socket_access(&mut self) {
        if !self.given("unix_socket_dir").text.starts_with('@') {
            return;
        }
        for name in ["unix_socket_mode", "unix_socket_group"] {
            if let Some(at) = self.ini.global(name).map(|line| line.key_at.clone()) {
                let reason =
                    format!("`{name}` has no effect: everybody on this machine can reach a socket without a file");
                self.warning(&at, name, reason, "leave it out, or name a folder in unix_socket_dir");
            }
        }
    }

    pub(super) fn auth(&mut self) {
        let kind = self.given("auth_type");
        let Some(Value::Text(word)) = self.read(Kind::Word(keys::AUTH_TYPES), "auth_type", &kind) else { return };
        let method = match word.as_str() {
            "any" | "trust" => "trust",
            "plain" => "password",
            "cert" if !self.asks_for_certificates() => {
                let reason = "auth_type: `cert` needs certificates of clients";
                let help = "write client_tls_sslmode = verify-full and client_tls_ca_file = /path/to/authorities.pem";
                return self.error(&kind.at, "auth_type", reason, help);
            }
            other => other,
        };
        self.put_text(&["auth"], "method", method, &kind.at);
        self.put(&["auth"], "strangers", Value::Boolean(word == "any"), &kind.at);
        if word == "hba" || word == "pam" {
            // The name that PgBouncer goes by.
            self.put_text(&["auth"], "pam_service", "pgbouncer", &kind.at);
        }
        if word == "hba" {
            for (name, key) in [("auth_hba_file", "hba_file"), ("auth_ident_file", "ident_file")] {
                let given = self.given(name);
                if let Some(file) = file(&given) {
                    self.put_text(&["auth"], key, file.display().to_string(), &given.at);
                }
            }
        }
    }

    /// How many connections; the smallest number is capped at the largest.
    pub(super) fn sizes(&mut self) {
        let sizes = self.given("default_pool_size");
        let size = self.number_of("default_pool_size", size).unwrap_or(20);
        self.put(&["pool"], "size", Value::Integer(size), &sizes.at);
        let least = self.given("min_pool_size");
        let min = self.number_of("min_pool_size", |text| number(text).map(Some)).unwrap_or(0).min(size);
        self.put(&["pool"], "min_size", Value::Integer(min), &least.at);
        let after = self.given("reserve_pool_timeout");
        if let Some(Value::Text(time)) = self.read(Kind::Seconds, "reserve_pool_timeout", &after) {
            let time = if time == "0" { RESERVE_NEVER.to_owned() } else { time };
            self.put_text(&["pool"], "reserve_after", time, &after.at);
        }
        let forbidden = self.given("disable_pqexec");
        if let Some(Value::Boolean(forbidden_value)) = self.read(Kind::Flag, "disable_pqexec", &forbidden) {
            self.put(&["pool"], "simple_query", Value::Boolean(!forbidden_value), &forbidden.at);
        }
        let life = self.given("server_lifetime");
        match lifetime(&life.text) {
            Ok(Some(value)) => self.put(&["timeouts"], "server_lifetime", value, &life.at),
            Ok(None) => {}
            Err((reason, help)) => self.error(&life.at, "server_lifetime", format!("server_lifetime: {reason}"), help),
        }
    }

    /// However often a login fails, the pause is the same.
    pub(super) fn login_retry(&mut self) {
        let given = self.given("server_login_retry");
        if let Some(time) = self.read(Kind::Seconds, "server_login_retry", &given) {
            self.put(&["timeouts"], "connect_retry", time, &given.at);
            // No longer than that, since 0 is no time at all.
            self.put_text(&["timeouts"], "connect_retry_max", "0", &given.at);
        }
    }

    /// When names are looked up again.
    pub(super) fn dns(&mut self) {
        let given = self.given("dns_zone_check_period");
        if let Some(value) = self.read(Kind::Seconds, "dns_zone_check_period", &given) {
            self.put(&["dns"], "check_period", value, &given.at);
        }
    }

    /// What an idle server is asked; `<empty>` stands for a statement of nothing, nothing for none.
    pub(super) fn server_check(&mut self) {
        let given = self.given("server_check_query");
        let sql = if given.text == "<empty>" { ";" } else { given.text.as_str() };
        self.put_text(&["pool"], "server_check", sql, &given.at);
    }

    fn number_of(&mut self, name: &str, read: impl Fn(&str) -> Result<Option<i64>, Wrong>) -> Option<i64> {
        let given = self.given(name);
        match read(&given.text) {
            Ok(number) => number,
            Err((reason, help)) => {
                self.error(&given.at, name, format!("{name}: {reason}"), help);
                None
            }
        }
    }

    /// Times of keep-alive, of which 0 is our own.
    pub(super) fn tcp(&mut self) {
        let keys = [
            ("tcp_keepidle", "keepalive_idle", "s"),
            ("tcp_keepintvl", "keepalive_interval", "s"),
            ("tcp_user_timeout", "user_timeout", "ms"),
        ];
        for (name, key, unit) in keys {
            let given = self.given(name);
            let number = self.number_of(name, |text| number(text).map(|number| (number > 0).then_some(number)));
            if let Some(number) = number {
                self.put_text(&["tcp"], key, format!("{number}{unit}"), &given.at);
            }
        }
    }

    /// Whether the system's log gets the lines.
    pub(super) fn syslog(&mut self) {
        let given = self.given("syslog");
        if let Some(Value::Boolean(true)) = self.read(Kind::Flag, "syslog", &given) {
            self.put_text(&["log"], "syslog", "/dev/log", &given.at);
        }
    }

    /// The longest message of a client. PgBouncer counts to 2 GiB, Postgres takes half of that.
    pub(super) fn message_max(&mut self) {
        let given = self.given("max_packet_size");
        if let Some(bytes) = self.number_of("max_packet_size", |text| number(text).map(Some)) {
            self.put(&["pool"], "message_max", Value::Integer(bytes.min(MESSAGE_MAX.into())), &given.at);
        }
    }

    pub(super) fn log_level(&mut self) {
        let given = self.given("verbose");
        let level = match self.number_of("verbose", |text| number(text).map(Some)) {
            None | Some(..=0) => return,
            Some(1) => "debug",
            Some(_) => "trace",
        };
        self.put_text(&["log"], "level", level, &given.at);
    }
}

fn text_node(address: (IpAddr, u16), at: &Span) -> Node {
    Node { value: Value::Text(std::net::SocketAddr::from(address).to_string()), at: at.clone() }
}

/// The addresses of this machine that a name of `listen_addr` means.
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
    if found.is_empty() { Err("it is no address of this machine".to_owned()) } else { Ok(found) }
}

/// A machine may have names for addresses of a family that it does not have.
fn can_be_bound(ip: IpAddr) -> bool {
    TcpListener::bind((ip, 0)).is_ok()
}
