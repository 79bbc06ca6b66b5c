//! Logins of the web console: random tokens in memory, which end with the process.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use subtle::ConstantTimeEq as _;
use tidegate_config::AdminConfig;
use tidegate_proxy::plane::lock;

/// Limit of logins at a time; beyond it, the least recently used one ends.
const SESSIONS_MAX: usize = 64;
/// Maximum age of a login.
const AGE_MAX: Duration = Duration::from_secs(12 * 3600);
/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// A user of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Viewer {
    pub(super) user: String,
    /// Whether the user is one of `admin.users`; users of `admin.stats_users` only look.
    pub(super) may_change: bool,
}

impl Viewer {
    /// The rights of a user; `None` if the configuration does not name the user.
    pub(super) fn of(admin: &AdminConfig, user: String) -> Option<Self> {
        let may_change = admin.users.contains(&user);
        (may_change || admin.stats_users.contains(&user)).then_some(Self { user, may_change })
    }
}

struct Session {
    token: String,
    user: String,
    began: Instant,
    used: Instant,
}

/// All logins.
#[derive(Default)]
pub(super) struct Sessions(Mutex<Vec<Session>>);

impl Sessions {
    /// Begins a session; returns its token.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(super) fn begin(&self, user: &str) -> std::io::Result<String> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes)?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let now = Instant::now();
        let mut sessions = lock(&self.0);
        if sessions.len() >= SESSIONS_MAX {
            let oldest = sessions.iter().enumerate().min_by_key(|(_, session)| session.used).map(|(at, _)| at);
            if let Some(oldest) = oldest {
                sessions.swap_remove(oldest);
            }
        }
        sessions.push(Session { token: token.clone(), user: user.to_owned(), began: now, used: now });
        Ok(token)
    }

    /// The user of a token, if the session has not ended.
    pub(super) fn find(&self, token: &str, idle_max: Duration) -> Option<String> {
        self.find_at(token, idle_max, Instant::now())
    }

    fn find_at(&self, token: &str, idle_max: Duration, now: Instant) -> Option<String> {
        let mut sessions = lock(&self.0);
        let lives = |session: &Session| {
            now.saturating_duration_since(session.used) < idle_max
                && now.saturating_duration_since(session.began) < AGE_MAX
        };
        sessions.retain(lives);
        let session = sessions.iter_mut().find(|session| is_token(session, token))?;
        session.used = now;
        Some(session.user.clone())
    }

    /// Ends a session.
    pub(super) fn end(&self, token: &str) {
        lock(&self.0).retain(|session| !is_token(session, token));
    }
}

/// Compares in constant time.
fn is_token(session: &Session, token: &str) -> bool {
    session.token.as_bytes().ct_eq(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    #[test]
    fn session_ends_by_logout_idleness_and_age() {
        let sessions = Sessions::default();
        let token = sessions.begin("ann").expect("random numbers");
        let start = Instant::now();
        assert_eq!(sessions.find_at(&token, IDLE, start + IDLE / 2).as_deref(), Some("ann"));
        assert_eq!(sessions.find_at(&token, IDLE, start + IDLE).as_deref(), Some("ann"), "its use counts");
        assert!(sessions.find_at("x", IDLE, start).is_none() && sessions.find_at("", IDLE, start).is_none());
        assert!(sessions.find_at(&token, IDLE, start + IDLE * 3).is_none());
        let token = sessions.begin("ann").expect("random numbers");
        assert!(sessions.find_at(&token, AGE_MAX * 2, start + AGE_MAX + IDLE).is_none());
        let token = sessions.begin("ann").expect("random numbers");
        sessions.end(&token);
        assert!(sessions.find(&token, IDLE).is_none());
    }

    #[test]
    fn number_of_sessions_is_bounded() {
        let sessions = Sessions::default();
        let tokens: Vec<_> = (0..SESSIONS_MAX + 1).map(|_| sessions.begin("ann").expect("random numbers")).collect();
        let living = tokens.iter().filter(|token| sessions.find(token, IDLE).is_some()).count();
        assert_eq!(living, SESSIONS_MAX);
        assert!(sessions.find(&tokens[SESSIONS_MAX], IDLE).is_some(), "the newest one lives");
    }

    #[test]
    fn rights_follow_the_configuration() {
        let admin = AdminConfig {
            users: vec!["ann".to_owned()],
            stats_users: vec!["bob".to_owned()],
            ..AdminConfig::default()
        };
        let rights = |user: &str| Viewer::of(&admin, user.to_owned()).map(|viewer| viewer.may_change);
        assert_eq!((rights("ann"), rights("bob"), rights("eve")), (Some(true), Some(false), None));
    }
}
