//! Caches for logins: responses of servers to startup parameters, and composed greetings. Most clients of a pool use the same
//! parameters.

use std::{cell::RefCell, collections::VecDeque, rc::Rc, sync::Arc};

use crate::params::{ServerSettings, Settings};

/// Responses of a pool's servers to startup parameters, newest first.
#[derive(Debug, Default)]
pub struct Answers {
    recent: VecDeque<(Settings, ReportedParams)>,
}

/// Response of a server to startup parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedParams {
    /// The resulting parameters, in the server's spelling.
    pub settings: Settings,
    /// All parameters that the server reports under them.
    pub reported: Settings,
}

/// Parameters of a client after its login, and the messages that report them.
#[derive(Clone)]
pub struct Greeting {
    /// Parameters of the client.
    pub settings: Rc<Settings>,
    /// Parameters reported by the login.
    pub reported: Rc<Settings>,
    /// Messages from AuthenticationOk to the last ParameterStatus.
    pub words: Rc<[u8]>,
}

/// Greetings of recent logins on one thread, newest first. `R` is the route of a login.
pub struct Greetings<R> {
    recent: RefCell<VecDeque<(GreetingKey<R>, Greeting)>>,
}

impl<R> Default for Greetings<R> {
    fn default() -> Self {
        Self { recent: RefCell::default() }
    }
}

/// Everything that a greeting depends on.
struct GreetingKey<R> {
    /// The report of the servers. The pool replaces it on every change of a value or of a cached response.
    server_params: Arc<ServerSettings>,
    /// Startup parameters.
    params: Vec<(String, Vec<u8>)>,
    /// The route, which decides `in_hot_standby` where several servers can be chosen.
    route: Option<R>,
}

/// Number of cached responses per pool and greetings per thread.
const KEPT: usize = 32;

impl<R: Copy + PartialEq> Greetings<R> {
    /// The greeting of an earlier login with the same parameters.
    #[must_use]
    pub fn get(
        &self,
        server_params: &Arc<ServerSettings>,
        params: &[(String, Vec<u8>)],
        route: Option<R>,
    ) -> Option<Greeting> {
        let is_same = |key: &GreetingKey<R>| {
            Arc::ptr_eq(&key.server_params, server_params) && key.route == route && key.params == params
        };
        let recent = self.recent.borrow();
        recent.iter().find(|(key, _)| is_same(key)).map(|(_, greeting)| greeting.clone())
    }

    /// Caches the greeting of a login.
    pub fn put(
        &self,
        server_params: Arc<ServerSettings>,
        params: Vec<(String, Vec<u8>)>,
        route: Option<R>,
        greeting: Greeting,
    ) {
        let mut recent = self.recent.borrow_mut();
        recent.truncate(KEPT - 1);
        recent.push_front((GreetingKey { server_params, params, route }, greeting));
    }
}

impl Answers {
    /// The cached response to `asked`.
    #[must_use]
    pub fn get(&self, asked: &Settings) -> Option<ReportedParams> {
        let known = self.recent.iter().find(|(known, _)| known == asked);
        known.map(|(_, announced)| announced.clone())
    }

    /// Caches a response. Returns whether it replaces a different response to the same parameters.
    pub fn put(&mut self, asked: Settings, announced: ReportedParams) -> bool {
        let before = self.recent.iter().position(|(known, _)| *known == asked);
        let before = before.and_then(|at| self.recent.remove(at));
        let is_new = before.is_some_and(|(_, before)| before != announced);
        self.recent.truncate(KEPT - 1);
        self.recent.push_front((asked, announced));
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::ParameterValue;

    #[test]
    fn newest_answers_are_kept() {
        let mut answers = Answers::default();
        let asked = |zone: &str| {
            let mut settings = Settings::default();
            settings.set("TimeZone", ParameterValue::text(zone.as_bytes()));
            settings
        };
        let announced = |zone: &str| ReportedParams { settings: asked(zone), reported: Settings::default() };
        assert!(!answers.put(asked("utc"), announced("utc")));
        assert!(answers.put(asked("utc"), announced("UTC")), "it replaces another answer");
        assert!(!answers.put(asked("utc"), announced("UTC")));
        assert_eq!(answers.get(&asked("utc")).unwrap().settings, asked("UTC"));
        assert!(answers.get(&asked("gmt")).is_none());
        for client in 0..KEPT {
            answers.put(asked(&client.to_string()), announced("UTC"));
        }
        assert_eq!(answers.recent.len(), KEPT);
        assert!(answers.get(&asked("utc")).is_none(), "the oldest one has made room");
    }

    #[test]
    fn greeting_is_kept_for_the_same_login() {
        let greetings = Greetings::default();
        let server_params = Arc::new(ServerSettings::default());
        let params = |name: &str| vec![("application_name".to_owned(), name.as_bytes().to_vec())];
        let greeting =
            |name: &str| Greeting { settings: Rc::default(), reported: Rc::default(), words: name.as_bytes().into() };
        greetings.put(server_params.clone(), params("a"), None, greeting("a"));
        let words = |server_params, name: &str, route| {
            greetings.get(server_params, &params(name), route).map(|greeting| greeting.words.to_vec())
        };
        assert_eq!(words(&server_params, "a", None).as_deref(), Some(&b"a"[..]));
        assert!(words(&server_params, "b", None).is_none());
        assert!(words(&server_params, "a", Some("any")).is_none());
        let other = Arc::default();
        assert!(words(&other, "a", None).is_none(), "the servers report other values since");
        for client in 0..KEPT {
            greetings.put(server_params.clone(), params(&client.to_string()), None, greeting("b"));
        }
        assert_eq!(greetings.recent.borrow().len(), KEPT);
        assert!(words(&server_params, "a", None).is_none(), "the oldest one has made room");
    }
}
