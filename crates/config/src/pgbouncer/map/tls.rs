//! `client_tls_*` and what of `server_tls_*` holds for all databases.

use super::*;
use crate::{
    CipherSuite, KeyGroup,
    pgbouncer::ciphers::{self, Chosen},
};

impl Mapper<'_> {
    pub(super) fn client_tls(&mut self) {
        self.server_suites = self.suites("server_tls");
        let mode = self.given("client_tls_sslmode");
        let strict = mode.text.starts_with("verify-");
        let word = match mode.text.as_str() {
            "disable" => return,
            "allow" | "prefer" => "allow",
            "require" | "verify-ca" | "verify-full" => "require",
            _ => {
                let kind = keys::find(GLOBAL, "client_tls_sslmode").map_or(Kind::Text, |key| key.kind);
                self.read(kind, "client_tls_sslmode", &mode);
                return;
            }
        };
        if strict && file(&self.given("client_tls_ca_file")).is_none() {
            let reason = format!("client_tls_sslmode: `{}` needs the authorities of clients", mode.text);
            let help = "write client_tls_ca_file = /path/to/authorities.pem, or client_tls_sslmode = require";
            return self.error(&mode.at, "client_tls_sslmode", reason, help);
        }
        self.put_text(&["listen"], "tls", word, &mode.at);
        let files = [
            ("client_tls_cert_file", "tls_cert"),
            ("client_tls_key_file", "tls_key"),
            ("client_tls_ca_file", "tls_client_ca"),
        ];
        for (name, key) in files {
            let given = self.given(name);
            if let Some(file) = file(&given) {
                self.put_text(&["listen"], key, file.display().to_string(), &given.at);
            }
        }
        if !strict && self.asks_for_certificates() {
            self.put_text(&["listen"], "tls_client_cert", "allow", &mode.at);
        }
        let suites = self.suites("client_tls");
        if !suites.is_empty() {
            let at = self.given("client_tls_ciphers").at;
            self.put(&["listen"], "tls_ciphers", names(suites.iter().map(|suite| suite.as_str()), &at), &at);
        }
        self.groups();
    }

    /// Whether clients are asked for a certificate.
    pub(super) fn asks_for_certificates(&self) -> bool {
        self.given("client_tls_sslmode").text != "disable" && file(&self.given("client_tls_ca_file")).is_some()
    }

    /// The cipher suites of one side by its protocols and lists; nothing for all.
    fn suites(&mut self, side: &str) -> Vec<CipherSuite> {
        if self.given(&format!("{side}_sslmode")).text == "disable" {
            return Vec::new();
        }
        let protocols = format!("{side}_protocols");
        let given = self.given(&protocols);
        let versions = match ciphers::versions(&given.text) {
            Ok(versions) => versions,
            Err(reason) => {
                self.error(&given.at, &protocols, format!("{protocols}: {reason}"), "write secure");
                return Vec::new();
            }
        };
        let mut suites = Vec::new();
        if versions.tls13 {
            suites.extend(self.chosen(&format!("{side}13_ciphers"), ciphers::tls13));
        }
        if versions.tls12 {
            suites.extend(self.chosen(&format!("{side}_ciphers"), ciphers::tls12));
        }
        if suites.len() == CipherSuite::ALL.len() { Vec::new() } else { suites }
    }

    fn chosen(&mut self, name: &str, choose: fn(&str) -> Chosen) -> Vec<CipherSuite> {
        let given = self.given(name);
        let chosen = choose(&given.text);
        if chosen.suites.is_empty() {
            let all: Vec<_> = choose("").suites.iter().map(|suite| suite.as_str()).collect();
            let help = format!("write default, or some of {}", all.join(":"));
            self.error(&given.at, name, format!("{name}: it leaves no cipher suite that there is here"), help);
        } else if !chosen.unknown.is_empty() {
            let reason = format!("{name}: there is no {} here; the others of the list hold", chosen.unknown.join(", "));
            self.warning(&given.at, name, reason, "it may be left out");
        }
        chosen.suites
    }

    /// The curves of the key exchange.
    fn groups(&mut self) {
        const NAME: &str = "client_tls_ecdhcurve";
        let given = self.given(NAME);
        if matches!(given.text.as_str(), "" | "auto") {
            return;
        }
        let words = given.text.split([':', ',']).map(str::trim).filter(|word| !word.is_empty());
        let found: Vec<KeyGroup> = words.filter_map(ciphers::group).collect();
        if found.is_empty() {
            let reason = format!("{NAME}: `{}` is no curve that there is here", given.text);
            return self.error(&given.at, NAME, reason, "write auto, X25519, prime256v1 or secp384r1");
        }
        let list = names(found.iter().map(|group| group.as_str()), &given.at);
        self.put(&["listen"], "tls_groups", list, &given.at);
    }
}

/// A list of names.
pub(super) fn names<'n>(names: impl Iterator<Item = &'n str>, at: &Span) -> Value {
    Value::List(names.map(|name| Node { value: Value::Text(name.to_owned()), at: at.clone() }).collect())
}
