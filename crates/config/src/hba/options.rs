//! The method of a rule and what stands behind it: `map=`, `clientcert=`, `clientname=`.

use super::{Ldap, Verdict};
use crate::{AuthMethod, NO_LDAP, NO_LDAP_HELP, NO_PAM, NO_PAM_HELP};

/// What the certificate of a client has to say, besides being of a known authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Which of its names has to be the user's; none if any certificate will do.
    pub name: Option<CertificateName>,
    /// The map that says whose name may come as which user; without it, they are the same.
    pub map: Option<String>,
}

impl Certificate {
    /// One whose common name is the user's.
    pub(super) const fn of_user() -> Self {
        Self { name: Some(CertificateName::Common), map: None }
    }
}

/// A name in a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateName {
    /// Its common name (CN).
    Common,
    /// Its whole name (DN).
    Distinguished,
}

/// How strictly a certificate is looked at.
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

/// What a rule with this method and these options says; `tls` is whether it is for TLS alone.
pub(super) fn verdict<'o>(method: &str, options: impl Iterator<Item = &'o str>, tls: bool) -> Result<Verdict, String> {
    if method == "ldap" {
        if !cfg!(feature = "ldap") {
            return Err(format!("{NO_LDAP}; {NO_LDAP_HELP}"));
        }
        return Ldap::read(options).map(|ldap| Verdict::Ldap(ldap.into()));
    }
    let options = read(options)?;
    let asks = method == "cert" || options.strictness.is_some() || options.name.is_some();
    if asks && !tls {
        return Err("certificates are for hostssl rules only".to_owned());
    }
    if options.map.is_some() && !matches!(method, "cert" | "peer") {
        return Err(format!("the method {method} takes no map"));
    }
    let method = match method {
        "reject" => return Ok(Verdict::Reject),
        "peer" => return Ok(Verdict::Peer(options.map)),
        "cert" => return by_certificate(options),
        "trust" => AuthMethod::Trust,
        "password" | "plain" => AuthMethod::Password,
        "md5" => AuthMethod::Md5,
        "scram-sha-256" => AuthMethod::ScramSha256,
        "pam" if cfg!(feature = "pam") => AuthMethod::Pam,
        "pam" => return Err(format!("{NO_PAM}; {NO_PAM_HELP}")),
        other => {
            let known = "trust, reject, password, md5, scram-sha-256, cert, pam, ldap, peer";
            return Err(format!("the method `{other}` is not supported; it can be {known}"));
        }
    };
    match options.strictness {
        None if options.name.is_some() => Err("clientname needs clientcert=verify-full".to_owned()),
        None => Ok(Verdict::Method(method)),
        Some(Strictness::Authority) => Ok(Verdict::Certified(method, Certificate { name: None, map: None })),
        Some(Strictness::Name) => {
            let name = options.name.unwrap_or(CertificateName::Common);
            Ok(Verdict::Certified(method, Certificate { name: Some(name), map: None }))
        }
    }
}

fn by_certificate(options: Options) -> Result<Verdict, String> {
    if options.strictness == Some(Strictness::Authority) {
        return Err("with the method cert, clientcert can only be verify-full".to_owned());
    }
    let name = options.name.unwrap_or(CertificateName::Common);
    Ok(Verdict::Certified(AuthMethod::Cert, Certificate { name: Some(name), map: options.map }))
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
                    Some((name, _)) => format!("the option `{name}` is not known"),
                    None => "a word behind the method is no option".to_owned(),
                };
                return Err(format!("{what}; {known} are"));
            }
        }
    }
    Ok(options)
}
