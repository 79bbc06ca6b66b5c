//! Client messages: tags, views of bodies, encoders.
//!
//! A view borrows the body of a message (the bytes after the header). Names and texts are bytes, because a message does
//! not declare its encoding. An encoder appends a whole message to a `Vec`; a zero byte in a string ends the string.

mod view;
mod write;

pub use view::{Bind, BindValues, Execute, ObjectKind, ObjectName, Parse, Query, SaslInitial, password_text};
pub use write::{
    BindMessage, bind, close, copy_data, copy_done, copy_fail, describe, execute, flush, function_call, parse,
    password, query, rename_statement, sasl_initial, sasl_response, sync, terminate,
};

/// Bind values to a prepared statement, as a portal.
pub const BIND: u8 = b'B';
/// Close a prepared statement or portal.
pub const CLOSE: u8 = b'C';
/// A chunk of COPY data; servers send it too.
pub const COPY_DATA: u8 = b'd';
/// End of COPY data; servers send it too.
pub const COPY_DONE: u8 = b'c';
/// COPY failed.
pub const COPY_FAIL: u8 = b'f';
/// Describe a prepared statement or portal.
pub const DESCRIBE: u8 = b'D';
/// Execute a portal.
pub const EXECUTE: u8 = b'E';
/// Send the pending output.
pub const FLUSH: u8 = b'H';
/// Call a function (deprecated, and still supported).
pub const FUNCTION_CALL: u8 = b'F';
/// Prepare a statement.
pub const PARSE: u8 = b'P';
/// A password, and every later response of an authentication exchange (SASL, GSSAPI).
pub const PASSWORD: u8 = b'p';
/// A simple query.
pub const QUERY: u8 = b'Q';
/// End of a pipeline: commit, and respond with ReadyForQuery.
pub const SYNC: u8 = b'S';
/// Close the connection.
pub const TERMINATE: u8 = b'X';
