//! `client_tls_*`, and the parts of `server_tls_*` that apply to all databases.

use super::*;
use crate::{
    CipherSuite, KeyGroup,
    pgbouncer::ciphers::{self, CipherSelection},
};

impl Mapper<'_> {
    pub(super) fn client_tls(&mut self) {
        self.server_suites = self.suites("server_tls");
        let mode = self.value_of("client_tls_sslmode");
        let strict = mode.text.starts_with("verify-");
        let word = match mode.text.as_str() {
            "disable" => return,
            "allow" | "prefer" => "allow",
            "require" | "verify-ca" | "verify-full" => "require",
            _ => {
                let kind = keys::find(GLOBAL, "client_tls_sslmode").map_or(IniValueKind::Text, |key| key.kind);
                self.read(kind, "client_tls_sslmode", &mode);
                return;
            }
        };
        if strict && file(&self.value_of("client_tls_ca_file")).is_none() {
            let reason = format!("client_tls_sslmode: `{}` needs client_tls_ca_file", mode.text);
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
            let given = self.value_of(name);
            if let Some(file) = file(&given) {
                self.put_text(&["listen"], key, file.display().to_string(), &given.at);
            }
        }
        if !strict && self.requests_client_certificates() {
            self.put_text(&["listen"], "tls_client_cert", "allow", &mode.at);
        }
        let suites = self.suites("client_tls");
        if !suites.is_empty() {
            let at = self.value_of("client_tls_ciphers").at;
            self.put(&["listen"], "tls_ciphers", names(suites.iter().map(|suite| suite.as_str()), &at), &at);
        }
        self.groups();
    }

    /// Whether clients are asked for a certificate.
    pub(super) fn requests_client_certificates(&self) -> bool {
        self.value_of("client_tls_sslmode").text != "disable" && file(&self.value_of("client_tls_ca_file")).is_some()
    }

    /// Cipher suites of one side from its protocols and lists; empty for all.
    fn suites(&mut self, side: &str) -> Vec<CipherSuite> {
        if self.value_of(&format!("{side}_sslmode")).text == "disable" {
            return Vec::new();
        }
        let protocols = format!("{side}_protocols");
        let given = self.value_of(&protocols);
        let versions = match ciphers::versions(&given.text) {
            Ok(versions) => versions,
            Err(reason) => {
                self.error(&given.at, &protocols, format!("{protocols}: {reason}"), "write secure");
                return Vec::new();
            }
        };
        if versions.raised {
            let reason = format!("{protocols}: `{}` names only versions before TLS 1.2; TLS 1.2 is used", given.text);
            self.warning(&given.at, &protocols, reason, "write secure");
        }
        let mut suites = Vec::new();
        if versions.tls13 {
            suites.extend(self.chosen(&format!("{side}13_ciphers"), ciphers::tls13));
        }
        if versions.tls12 {
            suites.extend(self.chosen(&format!("{side}_ciphers"), ciphers::tls12));
        }
        if suites.len() == CipherSuite::ALL.len() { Vec::new() } else { suites }
    }

    fn chosen(&mut self, name: &str, choose: fn(&str) -> CipherSelection) -> Vec<CipherSuite> {
        let given = self.value_of(name);
        let chosen = choose(&given.text);
        if chosen.suites.is_empty() {
            let all: Vec<_> = choose("").suites.iter().map(|suite| suite.as_str()).collect();
            let help = format!("write default, or some of {}", all.join(":"));
            self.error(&given.at, name, format!("{name}: no suite of the list is supported"), help);
        } else if !chosen.unknown.is_empty() {
            let reason =
                format!("{name}: {} is not supported; the others of the list are used", chosen.unknown.join(", "));
            self.warning(&given.at, name, reason, "it can be left out");
        }
        chosen.suites
    }

    /// Groups of the key exchange.
    fn groups(&mut self) {
        const NAME: &str = "client_tls_ecdhcurve";
        let given = self.value_of(NAME);
        if matches!(given.text.as_str(), "" | "auto") {
            return;
        }
        let words = given.text.split([':', ',']).map(str::trim).filter(|word| !word.is_empty());
        let found: Vec<KeyGroup> = words.filter_map(ciphers::group).collect();
        if found.is_empty() {
            let reason = format!("{NAME}: `{}` is not a supported curve", given.text);
            return self.error(&given.at, NAME, reason, "write auto, X25519, prime256v1 or secp384r1");
        }
        let list = names(found.iter().map(|group| group.as_str()), &given.at);
        self.put(&["listen"], "tls_groups", list, &given.at);
    }
}

/// A list of names.
pub(super) fn names<'n>(names: impl Iterator<Item = &'n str>, at: &SourceSpan) -> RawValue {
    RawValue::List(names.map(|name| SpannedValue { value: RawValue::Text(name.to_owned()), at: at.clone() }).collect())
}
