//! Messages of a demo client: select one row by key.

use tidegate_wire::{
    frontend::{self, BindMessage},
    startup,
};

/// Number of rows in the table.
pub(super) const ROWS: u32 = 10_000;

const STATEMENT: &[u8] = b"get";
const SQL: &str = "SELECT balance FROM account WHERE id = $1";

/// The workload of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    /// A single connection and prepared statement for all transactions.
    Kept,
    /// A connection for each transaction: log in, query, leave.
    Connects,
}

impl Workload {
    pub(super) const ALL: [Self; 2] = [Self::Kept, Self::Connects];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept connections",
            Self::Connects => "connect each time",
        }
    }

    /// Appends the messages before the first query, if there are any.
    pub(super) fn prepare(self, out: &mut Vec<u8>) {
        if self == Self::Kept {
            frontend::parse(STATEMENT, SQL.as_bytes(), &[], out);
            frontend::sync(out);
        }
    }

    /// Appends the query for the row `id`.
    pub(super) fn query(self, id: u32, out: &mut Vec<u8>) {
        let id = id.to_string();
        match self {
            Self::Connects => frontend::query(SQL.replace("$1", &id).as_bytes(), out),
            Self::Kept => {
                let bind =
                    BindMessage { statement: STATEMENT, values: &[Some(id.as_bytes())], ..BindMessage::default() };
                frontend::bind(&bind, out);
                frontend::execute(b"", 0, out);
                frontend::sync(out);
            }
        }
    }
}

/// Appends the StartupMessage of `user` for the database of the same name.
pub(super) fn write_startup(user: &str, out: &mut Vec<u8>) {
    let user = user.as_bytes();
    startup::startup(0, &[(b"user", user), (b"database", user), (b"application_name", b"tidegate demo")], out);
}
