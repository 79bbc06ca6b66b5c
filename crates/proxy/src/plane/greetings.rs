//! What servers have made of the parameters with which clients logged in: most clients of a pool come with the same.

use std::{collections::VecDeque, rc::Rc};

use tidegate_session_state::params::Settings;

/// The answers of a pool's servers to the parameters of logins, newest first.
#[derive(Debug, Default)]
pub(super) struct Answers {
    recent: VecDeque<(Settings, Announced)>,
}

/// The answer of a server to the parameters of a login.
#[derive(Clone, Debug)]
pub struct Announced {
    /// The resulting settings, as the server spells them.
    pub settings: Settings,
    /// All that the server reports under them.
    pub reported: Settings,
}

/// What a client has set when it has logged in, and the messages that tell it so.
pub struct Greeting {
    /// What it has set.
    pub settings: Rc<Settings>,
    /// The parameters that the login reports.
    pub told: Rc<Settings>,
    /// From AuthenticationOk to the last ParameterStatus.
    pub words: Vec<u8>,
}

/// Answers kept for a pool.
const KEPT: usize = 32;

impl Answers {
    /// The answer of a server to `asked`, if it is known.
    #[must_use]
    pub(super) fn get(&self, asked: &Settings) -> Option<Announced> {
        let known = self.recent.iter().find(|(known, _)| known == asked);
        known.map(|(_, announced)| announced.clone())
    }

    /// Keeps what a server has answered.
    pub(super) fn put(&mut self, asked: Settings, announced: Announced) {
        self.recent.retain(|(known, _)| *known != asked);
        self.recent.truncate(KEPT - 1);
        self.recent.push_front((asked, announced));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_session_state::params::Value;

    #[test]
    fn newest_answers_are_kept() {
        let mut answers = Answers::default();
        let asked = |zone: &str| {
            let mut settings = Settings::default();
            settings.set("TimeZone", Value::text(zone.as_bytes()));
            settings
        };
        let announced = |zone: &str| Announced { settings: asked(zone), reported: Settings::default() };
        answers.put(asked("utc"), announced("utc"));
        answers.put(asked("utc"), announced("UTC"));
        assert_eq!(answers.get(&asked("utc")).unwrap().settings, asked("UTC"));
        assert!(answers.get(&asked("gmt")).is_none());
        for client in 0..KEPT {
            answers.put(asked(&client.to_string()), announced("UTC"));
        }
        assert_eq!(answers.recent.len(), KEPT);
        assert!(answers.get(&asked("utc")).is_none(), "the oldest one has made room");
    }
}
