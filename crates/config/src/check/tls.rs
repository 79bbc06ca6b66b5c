//! Check of TLS for clients: certificate and key belong together, and client certificates need authorities.

use std::path::Path;

use super::{Checker, SectionView};
use crate::{
    Config,
    keys::{AuthMethod, ClientTls, ListenConfig},
};

impl Checker<'_> {
    /// Reports missing files, and files without effect.
    pub(super) fn listen_tls(&mut self, section: &SectionView<'_>, listen: &ListenConfig) {
        let is_off = listen.tls == ClientTls::Off && !self.is_invalid(section, "tls");
        for (key, file) in [("tls_cert", &listen.tls_cert), ("tls_key", &listen.tls_key)] {
            let missing = file.as_os_str().is_empty();
            if listen.tls != ClientTls::Off && missing {
                let help = format!("add {key} = \"/path/to/file.pem\", or write tls = \"off\"");
                self.error(section.locate(&["tls"]), format!("TLS needs {key}"), help);
            } else if is_off && !missing {
                let help = "write tls = \"allow\" or tls = \"require\"";
                let reason = format!("{key} has no effect: tls is off");
                self.warning(section.locate(&[key]), reason, help);
            }
        }
    }

    /// HTTPS needs a certificate and its key.
    pub(super) fn certificate_pair(&mut self, section: &SectionView<'_>, cert: &Path, key: &Path) {
        let (has_cert, has_key) = (!cert.as_os_str().is_empty(), !key.as_os_str().is_empty());
        if has_cert != has_key {
            let (there, missing) = if has_cert { ("tls_cert", "tls_key") } else { ("tls_key", "tls_cert") };
            let help = format!("add {missing} = \"/path/to/file.pem\", or leave out {there}");
            self.error(section.locate(&[there]), format!("HTTPS needs {missing}"), help);
        }
    }

    /// Warns of authorities without effect, and of missing ones.
    pub(super) fn client_certificates(&mut self, section: &SectionView<'_>, listen: &ListenConfig) {
        let named = !listen.tls_client_ca.as_os_str().is_empty();
        if named && listen.tls == ClientTls::Off && !self.is_invalid(section, "tls") {
            let help = "write tls = \"allow\" or tls = \"require\"";
            self.warning(section.locate(&["tls_client_ca"]), "tls_client_ca has no effect: tls is off", help);
        } else if !named && section.has("tls_client_cert") {
            let help = "add tls_client_ca = \"/path/to/authorities.pem\"";
            let reason = "tls_client_cert has no effect without tls_client_ca";
            self.warning(section.locate(&["tls_client_cert"]), reason, help);
        }
    }

    /// Method `cert` needs a request for client certificates.
    pub(super) fn certificates(&mut self, auth: &SectionView<'_>, config: &Config) {
        if config.auth.method == AuthMethod::Cert && !config.listen.requests_client_certificates() {
            let help = "write tls = \"require\" and tls_client_ca = \"/path/to/authorities.pem\" in [listen]";
            self.error(auth.locate(&["method"]), "method cert needs tls_client_ca", help);
        }
    }
}
