//! Login and logout. The delays after failed logins are those of the console: guesses here and there count together.

use std::{net::IpAddr, sync::Arc, time::Instant};

use hyper::{
    Response, StatusCode,
    body::Bytes,
    header::{self, HeaderValue},
};
use serde::Deserialize;
use serde_json::json;
use subtle::ConstantTimeEq as _;
use tidegate_config::UserSecret;
use tidegate_wire::auth::{md5_stored, scram::Verifier};

use super::{
    Body, WebConsole,
    guard::{COOKIE, Refusal},
    reply,
    sessions::Viewer,
};
use tidegate_proxy::plane::{FailedLoginRules, Gateway};

/// Limit of concurrent password checks; each takes milliseconds of a thread.
pub(super) const CHECKS_MAX: usize = 4;
/// Maximum length of a name or a password.
const TEXT_BYTES_MAX: usize = 1024;
/// Iterations of the comparison for unknown users.
const MOCK_ITERATIONS: u32 = 4096;

#[derive(Deserialize)]
struct Credentials {
    user: String,
    password: String,
}

impl WebConsole {
    /// Checks a password and begins a session.
    pub(super) async fn log_in(self: &Arc<Self>, body: &Bytes, peer: IpAddr) -> Result<Response<Body>, Refusal> {
        let Credentials { user, password } = serde_json::from_slice(body).map_err(|_| Refusal::Body)?;
        if user.len() > TEXT_BYTES_MAX || password.len() > TEXT_BYTES_MAX {
            return Err(Refusal::Body);
        }
        let gateway = &self.context.gateway;
        let rules = FailedLoginRules::of(&gateway.config.setup().config.auth);
        let failed_logins = &gateway.clients.failed_logins;
        let wait = failed_logins.begin(peer, rules, Instant::now()).ok_or(Refusal::Busy)?;
        tokio::time::sleep(wait).await;
        let _turn = self.checks.acquire().await.map_err(|_| Refusal::Busy)?;
        if !is_proven(gateway, &user, password).await {
            let delay = failed_logins.fail(Some(peer), &user, rules, Instant::now());
            tracing::warn!(user, %peer, "web console: login refused");
            tokio::time::sleep(delay).await;
            return Err(Refusal::Password);
        }
        let Some(viewer) = Viewer::of(&gateway.config.setup().config.admin, user) else {
            return Err(Refusal::Forbidden);
        };
        tracing::info!(user = viewer.user, %peer, may_change = viewer.may_change, "web console: login");
        let token = self.sessions.begin(&viewer.user).map_err(|error| Refusal::Failed(error.to_string()))?;
        let mut response = reply(StatusCode::OK, &self.describe(&viewer));
        self.set_cookie(&mut response, &token, "");
        Ok(response)
    }

    /// Ends a session.
    pub(super) fn log_out(&self, token: Option<&str>) -> Response<Body> {
        if let Some(token) = token {
            self.sessions.end(token);
        }
        let mut response = reply(StatusCode::OK, &json!({}));
        self.set_cookie(&mut response, "", "; Max-Age=0");
        response
    }

    fn set_cookie(&self, response: &mut Response<Body>, token: &str, more: &str) {
        let secure = if self.context.gateway.config.setup().web_tls.is_some() { "; Secure" } else { "" };
        let text = format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}{more}");
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().insert(header::SET_COOKIE, value);
        }
    }
}

/// Whether the password is that of the user in `[users]`. A failure takes about the same time for every user.
async fn is_proven(gateway: &Gateway, user: &str, password: String) -> bool {
    let setup = gateway.config.setup();
    let secret = setup.config.users.get(user).and_then(|user| user.secret.clone());
    let mock = gateway.clients.mock_verifier(user, MOCK_ITERATIONS);
    let name = user.to_owned();
    let check = move || {
        let is_proven = secret.is_some_and(|secret| matches(&secret, &name, &password));
        if !is_proven {
            std::hint::black_box(mock.matches(password.as_bytes()));
        }
        is_proven
    };
    gateway.pools.connector.resolver.offload("a password", check).await.unwrap_or(false)
}

/// Compares a password with a configured secret. An empty password never matches.
fn matches(secret: &UserSecret, user: &str, password: &str) -> bool {
    let is_equal = |stored: &str, given: &str| -> bool { stored.as_bytes().ct_eq(given.as_bytes()).into() };
    if password.is_empty() {
        return false;
    }
    match secret {
        UserSecret::Plain(stored) => is_equal(stored.reveal(), password),
        UserSecret::Md5(stored) => is_equal(stored.reveal(), &md5_stored(user.as_bytes(), password.as_bytes())),
        UserSecret::Scram(stored) => {
            stored.reveal().parse::<Verifier>().is_ok_and(|verifier| verifier.matches(password.as_bytes()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::Secret;

    #[test]
    fn password_is_compared_with_each_kind_of_secret() {
        let verifier = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
                        wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
        for (secret, password) in [
            (UserSecret::Plain(Secret::new("pencil")), "pencil"),
            (UserSecret::Md5(Secret::new(md5_stored(b"ann", b"pencil"))), "pencil"),
            (UserSecret::Scram(Secret::new(verifier)), "pencil"),
        ] {
            assert!(matches(&secret, "ann", password), "{secret:?}");
            assert!(!matches(&secret, "ann", "Pencil") && !matches(&secret, "ann", ""), "{secret:?}");
        }
        assert!(!matches(&UserSecret::Plain(Secret::default()), "ann", ""));
    }
}
