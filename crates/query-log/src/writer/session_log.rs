//! The records of one session: login, disconnect, and the fields that all its records share.

use std::{
    cell::{Cell, Ref, RefCell},
    rc::Rc,
    time::Instant,
};

use rustc_hash::FxHashMap;

use super::{peer::PeerInfo, recorder::Recorder};
use crate::record::{RecordDraft, RecordKind};
use tidegate_session_state::params::Settings;
use tidegate_sql::trace_parent::TraceParent;

/// The query log of one session.
pub struct SessionLog {
    pub(super) recorder: Rc<Recorder>,
    pub(super) peer: PeerInfo,
    session: u64,
    connected_at: Instant,
    /// The encoded fields that all records of the session share.
    session_fields: RefCell<Vec<u8>>,
    /// The settings from which the application name was taken.
    settings: RefCell<Option<Rc<Settings>>>,
    /// Number of completed transactions.
    pub(super) transactions: Cell<u64>,
    /// Waits of exchanges without a query, such as a Parse and a Sync. The next query has them.
    pub(super) unrecorded_wait_us: Cell<u64>,
    /// Texts of prepared statements that only the server stores, as in session mode.
    pub(super) prepared: RefCell<PreparedTexts>,
    /// Name of the statement that was prepared last with a parent in its comment, and that parent.
    last_parent: RefCell<Option<(Box<[u8]>, TraceParent)>>,
}

/// Statement texts by the name of the client.
type PreparedTexts = FxHashMap<Box<[u8]>, Rc<[u8]>>;

/// Maximum number of names; executions of further ones are recorded without a text.
const PREPARED_MAX: usize = 1000;

impl SessionLog {
    /// Records a login.
    #[must_use]
    pub fn new(
        recorder: &Rc<Recorder>,
        peer: PeerInfo,
        session: u64,
        settings: Option<&Rc<Settings>>,
        now: Instant,
    ) -> Rc<Self> {
        let session_log = Rc::new(Self {
            recorder: recorder.clone(),
            peer,
            session,
            connected_at: now,
            session_fields: RefCell::default(),
            settings: RefCell::default(),
            transactions: Cell::new(0),
            unrecorded_wait_us: Cell::new(0),
            prepared: RefCell::default(),
            last_parent: RefCell::default(),
        });
        session_log.update_session_fields(settings);
        recorder.connection(
            RecordDraft {
                kind: Some(RecordKind::Login),
                session_fields: &session_log.session_fields(),
                ..RecordDraft::default()
            },
            now,
        );
        session_log
    }

    /// Records a disconnect.
    pub fn log_disconnect(&self, reason: &str, now: Instant) {
        let lasted = u64::try_from((now - self.connected_at).as_micros()).unwrap_or(u64::MAX);
        let session_fields = self.session_fields();
        let draft = RecordDraft {
            kind: Some(RecordKind::Disconnect),
            session_fields: &session_fields,
            total_us: Some(lasted),
            reason: reason.as_bytes(),
            ..RecordDraft::default()
        };
        self.recorder.connection(draft, now);
    }

    /// The encoded fields that all records of the session share.
    pub(super) fn session_fields(&self) -> Ref<'_, Vec<u8>> {
        self.session_fields.borrow()
    }

    /// Updates the application name if the settings have changed.
    pub(super) fn sync_settings(&self, settings: &Rc<Settings>) {
        let is_known = self.settings.borrow().as_ref().is_some_and(|known| Rc::ptr_eq(known, settings));
        if !is_known {
            self.update_session_fields(Some(settings));
        }
    }

    fn update_session_fields(&self, settings: Option<&Rc<Settings>>) {
        let application = settings.and_then(|settings| settings.text("application_name"));
        let mut out = self.session_fields.borrow_mut();
        out.clear();
        self.peer.write_fields(application.unwrap_or(&self.peer.application), Some(self.session), &mut out);
        *self.settings.borrow_mut() = settings.cloned();
    }

    pub(super) fn remember_prepared(&self, name: &[u8], text: &[u8]) {
        let mut prepared = self.prepared.borrow_mut();
        if prepared.len() < PREPARED_MAX || prepared.contains_key(name) {
            prepared.insert(name.into(), text.into());
        }
    }

    /// A named statement was prepared, with a parent in its comment or without.
    pub(super) fn note_parent(&self, name: &[u8], parent: Option<TraceParent>) {
        let last = &mut *self.last_parent.borrow_mut();
        match parent {
            Some(parent) => *last = Some((name.into(), parent)),
            None if last.as_ref().is_some_and(|(known, _)| **known == *name) => *last = None,
            None => {}
        }
    }

    /// The parent of executions of a named statement, if it was the last one with a parent.
    pub(super) fn parent_of(&self, name: &[u8]) -> Option<TraceParent> {
        self.last_parent.borrow().as_ref().filter(|(known, _)| **known == *name).map(|(_, parent)| *parent)
    }

    pub(super) fn forget_prepared(&self, name: &[u8]) {
        self.prepared.borrow_mut().remove(name);
    }
}
