//! What new clients are told of their settings: most clients of a pool ask for the same.

use std::{cell::RefCell, collections::VecDeque, rc::Rc, sync::Arc};

use crate::params::{ServerSettings, Settings};

/// The greetings given last on one thread.
#[derive(Default)]
pub struct Greetings {
    recent: RefCell<VecDeque<(Occasion, Greeting)>>,
}

/// To whom a greeting is given.
struct Occasion {
    /// What a server of the pool says of itself.
    welcome: Arc<ServerSettings>,
    /// What the client asks for.
    params: Vec<(String, Vec<u8>)>,
}

/// What a client has set when it has logged in, and the messages that tell it so.
#[derive(Clone)]
pub struct Greeting {
    /// What it has set.
    pub settings: Rc<Settings>,
    /// From AuthenticationOk to the last ParameterStatus.
    pub words: Rc<[u8]>,
}

/// So many are kept.
const KEPT: usize = 16;

impl Greetings {
    /// The greeting of a client that asks for `params`, made by `make` if it was not given lately.
    pub fn get_or_make(
        &self,
        welcome: &Arc<ServerSettings>,
        params: &[(String, Vec<u8>)],
        make: impl FnOnce() -> Greeting,
    ) -> Greeting {
        let mut recent = self.recent.borrow_mut();
        let known = recent.iter().find(|(to, _)| Arc::ptr_eq(&to.welcome, welcome) && to.params == params);
        if let Some((_, greeting)) = known {
            return greeting.clone();
        }
        let greeting = make();
        recent.truncate(KEPT - 1);
        recent.push_front((Occasion { welcome: welcome.clone(), params: params.to_vec() }, greeting.clone()));
        greeting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_made_once_for_those_who_ask_for_the_same() {
        let greetings = Greetings::default();
        let welcome = Arc::new(ServerSettings::default());
        let params = |name: &str| vec![("application_name".to_owned(), name.as_bytes().to_vec())];
        let get = |welcome: &Arc<ServerSettings>, name: &str| {
            let words = name.as_bytes().into();
            greetings.get_or_make(welcome, &params(name), || Greeting { settings: Rc::default(), words })
        };
        let first = get(&welcome, "a");
        assert!(Rc::ptr_eq(&first.words, &get(&welcome, "a").words));
        assert_eq!(&*get(&welcome, "b").words, b"b");
        let other_server = Arc::new(ServerSettings::default());
        assert!(!Rc::ptr_eq(&first.words, &get(&other_server, "a").words));
        for client in 0..KEPT {
            get(&welcome, &client.to_string());
        }
        assert_eq!(greetings.recent.borrow().len(), KEPT);
        assert!(!Rc::ptr_eq(&first.words, &get(&welcome, "a").words), "the oldest one has made room");
    }
}
