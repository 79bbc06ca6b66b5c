//! Messages of a demo client: select one row by key, in three protocols.

use tidegate_wire::{
    frontend::{self, BindMessage},
    startup,
};

/// Number of rows in the table.
pub(super) const ROWS: u32 = 10_000;

const STATEMENT: &[u8] = b"get";
const SQL: &str = "SELECT balance FROM account WHERE id = $1";

/// Protocol of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryProtocol {
    /// Query with the value in its text.
    Simple,
    /// Parse, Bind, Execute and Sync for each query.
    Extended,
    /// Parse once per client; Bind, Execute and Sync for each query.
    Prepared,
}

impl QueryProtocol {
    pub(super) const ALL: [Self; 3] = [Self::Simple, Self::Extended, Self::Prepared];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Extended => "extended",
            Self::Prepared => "prepared",
        }
    }

    /// Appends the messages before the first query, if the protocol needs any.
    pub(super) fn prepare(self, out: &mut Vec<u8>) {
        if self == Self::Prepared {
            frontend::parse(STATEMENT, SQL.as_bytes(), &[], out);
            frontend::sync(out);
        }
    }

    /// Appends the query for the row `id`.
    pub(super) fn query(self, id: u32, out: &mut Vec<u8>) {
        let id = id.to_string();
        match self {
            Self::Simple => frontend::query(SQL.replace("$1", &id).as_bytes(), out),
            Self::Extended => {
                frontend::parse(b"", SQL.as_bytes(), &[], out);
                execute(b"", &id, out);
            }
            Self::Prepared => execute(STATEMENT, &id, out),
        }
    }
}

fn execute(statement: &[u8], id: &str, out: &mut Vec<u8>) {
    frontend::bind(&BindMessage { statement, values: &[Some(id.as_bytes())], ..BindMessage::default() }, out);
    frontend::execute(b"", 0, out);
    frontend::sync(out);
}

/// Appends the StartupMessage of `user` for the database of the same name.
pub(super) fn write_startup(user: &str, out: &mut Vec<u8>) {
    let user = user.as_bytes();
    startup::startup(0, &[(b"user", user), (b"database", user), (b"application_name", b"tidegate demo")], out);
}
