//! TLS for clients: its files go together, and certificates of clients need authorities.

use super::{Checker, Section};
use crate::{
    Config,
    keys::{AuthMethod, ClientTls, Listen},
};

impl Checker<'_> {
    /// Says which files TLS needs, and which it does not.
    pub(super) fn listen_tls(&mut self, section: &Section<'_>, listen: &Listen) {
        for (key, file) in [("tls_cert", &listen.tls_cert), ("tls_key", &listen.tls_key)] {
            let missing = file.as_os_str().is_empty();
            if listen.tls != ClientTls::Off && missing {
                let help = format!("add {key} = \"/path/to/file.pem\", or write tls = \"off\"");
                self.error(section.place(&["tls"]), format!("TLS without {key}"), help);
            } else if listen.tls == ClientTls::Off && !missing {
                let help = "write tls = \"allow\" or tls = \"require\"";
                let reason = format!("{key} has no effect: tls is off");
                self.warning(section.place(&[key]), reason, help);
            }
        }
    }

    /// Says that authorities for clients have no effect, or are missing.
    pub(super) fn client_certificates(&mut self, section: &Section<'_>, listen: &Listen) {
        let named = !listen.tls_client_ca.as_os_str().is_empty();
        if named && listen.tls == ClientTls::Off {
            let help = "write tls = \"allow\" or tls = \"require\"";
            self.warning(section.place(&["tls_client_ca"]), "tls_client_ca has no effect: tls is off", help);
        } else if !named && section.has("tls_client_cert") {
            let help = "add tls_client_ca = \"/path/to/authorities.pem\"";
            let reason = "tls_client_cert has no effect without tls_client_ca";
            self.warning(section.place(&["tls_client_cert"]), reason, help);
        }
    }

    /// Whoever logs in by certificate must have been asked for one.
    pub(super) fn certificates(&mut self, auth: &Section<'_>, config: &Config) {
        if config.auth.method == AuthMethod::Cert && !config.listen.asks_for_certificates() {
            let help = "write tls = \"require\" and tls_client_ca = \"/path/to/authorities.pem\" in [listen]";
            self.error(auth.place(&["method"]), "method cert without authorities of certificates", help);
        }
    }
}
