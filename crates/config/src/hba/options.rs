//! Method and options of a rule: `map=`, `clientcert=`, `clientname=`.

use super::{HbaAction, LdapConfig};
use crate::{AuthMethod, NO_LDAP, NO_LDAP_HELP, NO_PAM, NO_PAM_HELP};

/// Requirements for a client certificate, in addition to a trusted authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateCheck {
    /// The name that must match the user; `None` for any certificate.
    pub name: Option<CertificateName>,
    /// User name map for that name; without a map both must be equal.
    pub map: Option<String>,
}

impl CertificateCheck {
    /// Requires the common name of the user.
    pub(super) const fn of_user() -> Self {
        Self { name: Some(CertificateName::Common), map: None }
    }
}

/// A name in a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateName {
    /// Common name (CN).
    Common,
    /// Distinguished name (DN).
    Distinguished,
}

/// Value of `clientcert`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strictness {
    Authority,
    Name,
}

#[derive(Debug, Default)]
struct Options {
    map: Option<String>,
    strictness: Option<Strictness>,
    name: Option<CertificateName>,
}

/// The action of a rule with this method and these options; `tls` is whether the rule is for TLS only.
pub(super) fn verdict<'o>(
    method: &str,
    options: impl Iterator<Item = &'o str>,
    tls: bool,
) -> Result<HbaAction, String> {
    if method == "ldap" {
        if !cfg!(feature = "ldap") {
            return Err(format!("{NO_LDAP}; {NO_LDAP_HELP}"));
        }
        return LdapConfig::read(options).map(|ldap| HbaAction::Ldap(ldap.into()));
    }
    let options = read(options)?;
    // PgBouncer takes method `cert` in every rule; a client without a certificate is then rejected.
    let asks = options.strictness.is_some() || options.name.is_some();
    if asks && !tls {
        return Err("certificates need a hostssl rule".to_owned());
    }
    if options.map.is_some() && !matches!(method, "cert" | "peer") {
        return Err(format!("method {method} does not support map"));
    }
    let method = match method {
        "reject" => return Ok(HbaAction::Reject),
        "peer" => return Ok(HbaAction::Peer(options.map)),
        "cert" => return by_certificate(options),
        "trust" => AuthMethod::Trust,
        "password" | "plain" => AuthMethod::Password,
        "md5" => AuthMethod::Md5,
        "scram-sha-256" => AuthMethod::ScramSha256,
        "pam" if cfg!(feature = "pam") => AuthMethod::Pam,
        "pam" => return Err(format!("{NO_PAM}; {NO_PAM_HELP}")),
        other => {
            let known = "trust, reject, password, md5, scram-sha-256, cert, pam, ldap, peer";
            return Err(format!("method `{other}` is not supported; it can be {known}"));
        }
    };
    match options.strictness {
        None if options.name.is_some() => Err("clientname needs clientcert=verify-full".to_owned()),
        None => Ok(HbaAction::Method(method)),
        Some(Strictness::Authority) => Ok(HbaAction::Certified(method, CertificateCheck { name: None, map: None })),
        Some(Strictness::Name) => {
            let name = options.name.unwrap_or(CertificateName::Common);
            Ok(HbaAction::Certified(method, CertificateCheck { name: Some(name), map: None }))
        }
    }
}

fn by_certificate(options: Options) -> Result<HbaAction, String> {
    if options.strictness == Some(Strictness::Authority) {
        return Err("with method cert, clientcert must be verify-full".to_owned());
    }
    let name = options.name.unwrap_or(CertificateName::Common);
    Ok(HbaAction::Certified(AuthMethod::Cert, CertificateCheck { name: Some(name), map: options.map }))
}

fn read<'o>(words: impl Iterator<Item = &'o str>) -> Result<Options, String> {
    let mut options = Options::default();
    for word in words {
        match word.split_once('=') {
            Some(("map", name)) => options.map = Some(name.to_owned()),
            Some(("clientcert", "verify-ca")) => options.strictness = Some(Strictness::Authority),
            Some(("clientcert", "verify-full")) => options.strictness = Some(Strictness::Name),
            Some(("clientcert", other)) => {
                return Err(format!("clientcert cannot be `{other}`; it can be verify-ca or verify-full"));
            }
            Some(("clientname", "CN")) => options.name = Some(CertificateName::Common),
            Some(("clientname", "DN")) => options.name = Some(CertificateName::Distinguished),
            Some(("clientname", other)) => return Err(format!("clientname cannot be `{other}`; it can be CN or DN")),
            _ => {
                let known = "map=NAME, clientcert=verify-ca, clientcert=verify-full, clientname=CN and clientname=DN";
                let what = match word.split_once('=') {
                    Some((name, _)) => format!("unknown option `{name}`"),
                    None => "the text after the method is not an option".to_owned(),
                };
                return Err(format!("{what}; the options are {known}"));
            }
        }
    }
    Ok(options)
}
