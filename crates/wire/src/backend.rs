//! Server messages: tags, views of bodies, encoders.
//!
//! A view borrows the body of a message (the bytes after the header). Decoding checks the body to its end, so the
//! iterators cannot fail. An encoder appends a whole message to a `Vec`; a zero byte in a string ends the string.

mod error_reply;
mod report;
mod view;
mod write;

pub use crate::startup::{NegotiateProtocolVersion, negotiate_protocol_version};
pub use error_reply::ErrorReply;
pub use report::{ErrorFields, ErrorReport, Severity, error_response, notice_response};
pub use view::{
    Authentication, BackendKeyData, CommandComplete, DataRow, FieldDescription, Mechanisms, Notification,
    ParameterDescription, ParameterStatus, RowDescription, TxStatus, ready_for_query_status,
};
pub use write::{
    authentication_cleartext, authentication_md5, authentication_ok, authentication_sasl, authentication_sasl_continue,
    authentication_sasl_final, backend_key_data, bind_complete, close_complete, command_complete, data_row,
    empty_query, no_data, parameter_description, parameter_status, parse_complete, ready_for_query, row_description,
};

/// A step of the authentication exchange.
pub const AUTHENTICATION: u8 = b'R';
/// Process ID and secret key for cancel requests.
pub const BACKEND_KEY_DATA: u8 = b'K';
/// A Bind succeeded.
pub const BIND_COMPLETE: u8 = b'2';
/// A Close succeeded.
pub const CLOSE_COMPLETE: u8 = b'3';
/// A statement completed.
pub const COMMAND_COMPLETE: u8 = b'C';
/// COPY in both directions starts (replication).
pub const COPY_BOTH_RESPONSE: u8 = b'W';
/// A chunk of COPY data; clients send it too.
pub const COPY_DATA: u8 = b'd';
/// End of COPY data; clients send it too.
pub const COPY_DONE: u8 = b'c';
/// The server is ready for COPY data.
pub const COPY_IN_RESPONSE: u8 = b'G';
/// The server starts to send COPY data.
pub const COPY_OUT_RESPONSE: u8 = b'H';
/// A row.
pub const DATA_ROW: u8 = b'D';
/// The query string was empty.
pub const EMPTY_QUERY_RESPONSE: u8 = b'I';
/// An error.
pub const ERROR_RESPONSE: u8 = b'E';
/// The result of a FunctionCall.
pub const FUNCTION_CALL_RESPONSE: u8 = b'V';
/// The server supports another protocol version than the client requested.
pub const NEGOTIATE_PROTOCOL_VERSION: u8 = b'v';
/// The statement returns no rows.
pub const NO_DATA: u8 = b'n';
/// A warning or another notice.
pub const NOTICE_RESPONSE: u8 = b'N';
/// A NOTIFY from another session.
pub const NOTIFICATION_RESPONSE: u8 = b'A';
/// The types of a statement's parameters.
pub const PARAMETER_DESCRIPTION: u8 = b't';
/// A parameter and its new value.
pub const PARAMETER_STATUS: u8 = b'S';
/// A Parse succeeded.
pub const PARSE_COMPLETE: u8 = b'1';
/// An Execute reached its row limit; the portal has more rows.
pub const PORTAL_SUSPENDED: u8 = b's';
/// The server is ready for the next query.
pub const READY_FOR_QUERY: u8 = b'Z';
/// The columns of the rows that follow.
pub const ROW_DESCRIPTION: u8 = b'T';
