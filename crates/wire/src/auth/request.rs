//! The next message of a client during a login.

use std::fmt;

use super::scram::{self, ChannelBinding};
use crate::backend::Authentication;

/// The request of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthRequest {
    /// The password in clear text.
    Cleartext,
    /// The password hashed with md5.
    Md5 {
        /// Salt of this challenge.
        salt: [u8; 4],
    },
    /// A SCRAM-SHA-256 exchange.
    Scram(ChannelBinding),
    /// The end of the login, which succeeded.
    Done,
}

/// Why a client ends the login.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthRefusal {
    /// Channel binding is required and was not used.
    Unbound,
    /// SASL without SCRAM-SHA-256.
    NoMechanism,
    /// Kerberos, GSSAPI or SSPI, or a message out of order.
    Unsupported,
}

impl AuthRefusal {
    /// The reason and the remedy.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Unbound => {
                "channel_binding is \"require\", and the server does not support it; \
                 enable scram-sha-256 and TLS on the server"
            }
            Self::NoMechanism => "the server offers no supported SASL mechanism",
            Self::Unsupported => {
                "the server asks for an authentication method that is not supported (use scram-sha-256 or md5)"
            }
        }
    }
}

impl fmt::Display for AuthRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for AuthRefusal {}

/// The choices of a client during one login.
#[derive(Debug)]
pub struct ClientAuth {
    requires_binding: bool,
    is_bound: bool,
}

impl ClientAuth {
    /// A login that may require channel binding.
    #[must_use]
    pub const fn new(requires_binding: bool) -> Self {
        Self { requires_binding, is_bound: false }
    }

    /// The answer to a message of the server. `end_point` returns the hash of the server's certificate; none without
    /// TLS, and if channel binding is disabled.
    ///
    /// # Errors
    /// The request cannot be met. A machine-in-the-middle would request a weaker method, too.
    pub fn next(
        &mut self,
        message: &Authentication<'_>,
        end_point: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Result<AuthRequest, AuthRefusal> {
        match message {
            Authentication::Sasl { mechanisms } => {
                let offers = |name| mechanisms.offer(name);
                let binding = self.binding(offers(scram::MECHANISM_PLUS), offers(scram::MECHANISM), end_point())?;
                self.is_bound = matches!(binding, ChannelBinding::EndPoint(_));
                Ok(AuthRequest::Scram(binding))
            }
            _ if self.requires_binding && !self.is_bound => Err(AuthRefusal::Unbound),
            Authentication::Ok => Ok(AuthRequest::Done),
            Authentication::Cleartext => Ok(AuthRequest::Cleartext),
            Authentication::Md5 { salt } => Ok(AuthRequest::Md5 { salt: *salt }),
            _ => Err(AuthRefusal::Unsupported),
        }
    }

    /// Chooses channel binding from what the server offers. As in libpq, the client states that it supports binding if the server
    /// does not offer it; a server that did offer it then rejects the login.
    fn binding(&self, plus: bool, plain: bool, end_point: Option<Vec<u8>>) -> Result<ChannelBinding, AuthRefusal> {
        match end_point {
            Some(hash) if plus => Ok(ChannelBinding::EndPoint(hash)),
            _ if self.requires_binding => Err(AuthRefusal::Unbound),
            _ if !plain => Err(AuthRefusal::NoMechanism),
            Some(_) => Ok(ChannelBinding::Unused),
            None => Ok(ChannelBinding::None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sasl(names: &[&str]) -> Vec<u8> {
        let mut body = vec![0, 0, 0, 10];
        names.iter().for_each(|name| body.extend_from_slice(&[name.as_bytes(), b"\0"].concat()));
        body.push(0);
        body
    }

    fn request(auth: &mut ClientAuth, body: &[u8], end_point: Option<Vec<u8>>) -> Result<AuthRequest, AuthRefusal> {
        auth.next(&Authentication::decode(body).unwrap(), || end_point)
    }

    #[test]
    fn binding_follows_the_offer() {
        let (both, plain, none) =
            (sasl(&["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]), sasl(&["SCRAM-SHA-256"]), sasl(&["X"]));
        let hash = || Some(vec![7]);
        for (required, end_point, offer, expected) in [
            (false, hash(), &both, Ok(ChannelBinding::EndPoint(vec![7]))),
            (true, hash(), &both, Ok(ChannelBinding::EndPoint(vec![7]))),
            (false, hash(), &plain, Ok(ChannelBinding::Unused)),
            (true, hash(), &plain, Err(AuthRefusal::Unbound)),
            (false, None, &both, Ok(ChannelBinding::None)),
            (true, None, &both, Err(AuthRefusal::Unbound)),
            (false, None, &none, Err(AuthRefusal::NoMechanism)),
        ] {
            let answer = request(&mut ClientAuth::new(required), offer, end_point);
            assert_eq!(answer, expected.map(AuthRequest::Scram));
        }
    }

    #[test]
    fn required_binding_refuses_weaker_methods() {
        for weaker in [&[0, 0, 0, 0][..], &[0, 0, 0, 3], &[0, 0, 0, 5, 1, 2, 3, 4]] {
            assert_eq!(request(&mut ClientAuth::new(true), weaker, Some(vec![7])), Err(AuthRefusal::Unbound));
            assert!(request(&mut ClientAuth::new(false), weaker, None).is_ok());
        }
        let mut bound = ClientAuth::new(true);
        request(&mut bound, &sasl(&["SCRAM-SHA-256-PLUS"]), Some(vec![7])).unwrap();
        assert_eq!(request(&mut bound, &[0, 0, 0, 0], None), Ok(AuthRequest::Done));
    }
}
