//! Messages of the client: tags, views of bodies, encoders.
//!
//! A view borrows the body of a message (the bytes after the header). Names and texts are bytes, because nothing in
//! a message says which encoding they have. An encoder appends a whole message to a `Vec`; a zero byte in a string
//! ends it.

mod view;
mod write;

pub use view::{Bind, Execute, Kind, Parse, Query, SaslInitial, Target, Values, password_text};
pub use write::{
    BindMessage, bind, close, copy_data, copy_done, copy_fail, describe, execute, flush, function_call, parse,
    password, query, rename_statement, sasl_initial, sasl_response, sync, terminate,
};

/// Bind: values for a prepared statement make a portal.
pub const BIND: u8 = b'B';
/// Close a statement or portal.
pub const CLOSE: u8 = b'C';
/// A piece of COPY data; the server sends it too.
pub const COPY_DATA: u8 = b'd';
/// COPY data are complete; the server sends it too.
pub const COPY_DONE: u8 = b'c';
/// COPY is given up.
pub const COPY_FAIL: u8 = b'f';
/// Describe a statement or portal.
pub const DESCRIBE: u8 = b'D';
/// Run a portal.
pub const EXECUTE: u8 = b'E';
/// Send what has been answered so far.
pub const FLUSH: u8 = b'H';
/// Call a function directly (deprecated since long, and still there).
pub const FUNCTION_CALL: u8 = b'F';
/// Prepare a statement.
pub const PARSE: u8 = b'P';
/// Password, and all later answers of an authentication (SASL, GSSAPI).
pub const PASSWORD: u8 = b'p';
/// SQL as one text.
pub const QUERY: u8 = b'Q';
/// End of a pipeline: commit, and answer with ReadyForQuery.
pub const SYNC: u8 = b'S';
/// The client leaves.
pub const TERMINATE: u8 = b'X';
