//! Whose records they are: a session, or somebody who did not get as far as one.

use std::{
    cell::{Cell, Ref, RefCell},
    rc::Rc,
    time::Instant,
};

use rustc_hash::FxHashMap;

use super::Recorder;
use crate::entry::{Draft, Kind, Who, write_who};
use tidegate_session_state::params::Settings;

/// Somebody who comes in.
#[derive(Clone, Debug, Default)]
pub struct Stranger {
    /// Where from.
    pub client: String,
    /// As whom.
    pub user: String,
    /// To which database.
    pub database: String,
    /// What it calls itself (`application_name`), where no settings say so.
    pub application: Box<[u8]>,
}

/// A session, as the journal sees it.
pub struct Witness {
    pub(super) recorder: Rc<Recorder>,
    pub(super) stranger: Stranger,
    session: u64,
    since: Instant,
    /// What all its records begin with.
    who: RefCell<Vec<u8>>,
    /// The settings that the application's name was taken from.
    settings: RefCell<Option<Rc<Settings>>>,
    /// Transactions that have ended.
    pub(super) transactions: Cell<u64>,
    /// Texts of prepared statements that only the server keeps, as in session mode.
    pub(super) prepared: RefCell<Texts>,
}

/// Texts by the client's names for them.
type Texts = FxHashMap<Box<[u8]>, Rc<[u8]>>;

/// Names beyond that are not kept: their executions have no text in the journal.
const PREPARED_MAX: usize = 1000;

impl Witness {
    /// A client has logged in.
    #[must_use]
    pub fn new(
        recorder: &Rc<Recorder>,
        stranger: Stranger,
        session: u64,
        settings: Option<&Rc<Settings>>,
        now: Instant,
    ) -> Rc<Self> {
        let witness = Rc::new(Self {
            recorder: recorder.clone(),
            stranger,
            session,
            since: now,
            who: RefCell::default(),
            settings: RefCell::default(),
            transactions: Cell::new(0),
            prepared: RefCell::default(),
        });
        witness.introduce(settings);
        recorder.connection(Draft { kind: Some(Kind::Login), who: &witness.who(), ..Draft::default() }, now);
        witness
    }

    /// The client is gone.
    pub fn leave(&self, reason: &str, now: Instant) {
        let lasted = u64::try_from((now - self.since).as_micros()).unwrap_or(u64::MAX);
        let who = self.who();
        let draft = Draft {
            kind: Some(Kind::Disconnect),
            who: &who,
            total_us: Some(lasted),
            reason: reason.as_bytes(),
            ..Draft::default()
        };
        self.recorder.connection(draft, now);
    }

    /// What all its records begin with, for now.
    pub(super) fn who(&self) -> Ref<'_, Vec<u8>> {
        self.who.borrow()
    }

    /// Takes the application's name from the settings, if they have changed.
    pub(super) fn note_settings(&self, settings: &Rc<Settings>) {
        let is_known = self.settings.borrow().as_ref().is_some_and(|known| Rc::ptr_eq(known, settings));
        if !is_known {
            self.introduce(Some(settings));
        }
    }

    fn introduce(&self, settings: Option<&Rc<Settings>>) {
        let Stranger { client, user, database, application } = &self.stranger;
        let application = settings.and_then(|settings| settings.text("application_name")).unwrap_or(application);
        let who = Who {
            client: client.as_bytes(),
            user: user.as_bytes(),
            database: database.as_bytes(),
            application,
            session: Some(self.session),
        };
        let mut out = self.who.borrow_mut();
        out.clear();
        write_who(&who, &mut out);
        *self.settings.borrow_mut() = settings.cloned();
    }

    pub(super) fn keep_prepared(&self, name: &[u8], text: &[u8]) {
        let mut prepared = self.prepared.borrow_mut();
        if prepared.len() < PREPARED_MAX || prepared.contains_key(name) {
            prepared.insert(name.into(), text.into());
        }
    }

    pub(super) fn forget_prepared(&self, name: &[u8]) {
        self.prepared.borrow_mut().remove(name);
    }
}
