//! Identity of a client, for the records of its session or of its refused login.

use crate::record::{SessionFields, write_session_fields};

/// Identity of a client.
#[derive(Clone, Debug, Default)]
pub struct PeerInfo {
    /// Address of the client.
    pub client: String,
    /// User of the login.
    pub user: String,
    /// Database of the login.
    pub database: String,
    /// `application_name` of the startup message, if the session has no settings.
    pub application: Box<[u8]>,
}

impl PeerInfo {
    /// Appends the fields of a record. `application` is the current application name.
    pub(super) fn write_fields(&self, application: &[u8], session: Option<u64>, out: &mut Vec<u8>) {
        let fields = SessionFields {
            client: self.client.as_bytes(),
            user: self.user.as_bytes(),
            database: self.database.as_bytes(),
            application,
            session,
        };
        write_session_fields(&fields, out);
    }
}
