//! When the certificates of a configuration expire. Read with the files, at start and reload, so that a scrape reads no file.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use rustls::pki_types::{CertificateDer, pem::PemObject};
use tidegate_config::Config;

use crate::{certificate, pem};

/// The end of the validity of a certificate file.
#[derive(Clone, Debug)]
pub struct CertificateExpiry {
    /// The peers that see the certificate: `clients`, `metrics`, `web console`, `shapes` or `servers`.
    pub shown_to: &'static str,
    /// The file.
    pub file: PathBuf,
    /// End of the validity, since 1970; the earliest of the chain.
    pub until: Duration,
}

/// The expiries of all certificates that the gateway shows. Unreadable files are left out: they are errors of their own.
#[must_use]
pub fn expiries(config: &Config) -> Vec<CertificateExpiry> {
    let servers: BTreeSet<&Path> = config.databases.values().map(|database| database.tls.cert.as_path()).collect();
    let own = [
        ("clients", config.listen.tls_cert.as_path()),
        ("metrics", config.metrics.tls_cert.as_path()),
        ("web console", config.admin_http.tls_cert.as_path()),
        ("shapes", config.shapes.tls_cert.as_path()),
    ];
    let all = own.into_iter().chain(servers.into_iter().map(|file| ("servers", file)));
    let read = all.filter(|(_, file)| !file.as_os_str().is_empty()).filter_map(|(shown_to, file)| {
        Some(CertificateExpiry { shown_to, file: file.to_owned(), until: end_of_chain(file)? })
    });
    read.collect()
}

/// When the first certificate of the chain in a file expires, as a duration since 1970; `None` if the file has no certificate.
fn end_of_chain(cert: &Path) -> Option<Duration> {
    let text = pem::read(cert).ok()?;
    let chain = CertificateDer::pem_slice_iter(&text).filter_map(Result::ok);
    chain.filter_map(|certificate| certificate::validity(&certificate)).map(|validity| validity.until).min()
}
