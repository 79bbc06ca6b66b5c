//! Encoders of client messages.

use super::{
    BIND, Bind, CLOSE, COPY_DATA, COPY_DONE, COPY_FAIL, DESCRIBE, EXECUTE, FLUSH, FUNCTION_CALL, ObjectKind,
    ObjectName, PARSE, PASSWORD, QUERY, SYNC, TERMINATE,
};
use crate::cursor::Cursor;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::frame::{Frame, HEADER, put, put_list, put_text, put_value};

/// Appends a Query.
pub fn query(text: &[u8], out: &mut Vec<u8>) {
    put(QUERY, out, |out| put_text(text, out));
}

/// Appends a Parse. At most 65,535 types are sent.
pub fn parse(name: &[u8], query: &[u8], param_types: &[u32], out: &mut Vec<u8>) {
    put(PARSE, out, |out| {
        put_text(name, out);
        put_text(query, out);
        put_list(param_types, out, |oid, out| {
            out.extend_from_slice(&oid.to_be_bytes());
        });
    });
}

/// The fields of a Bind. At most 65,535 entries of each list are sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct BindMessage<'a> {
    /// Name of the portal, empty for the unnamed one.
    pub portal: &'a [u8],
    /// Name of the statement, empty for the unnamed one.
    pub statement: &'a [u8],
    /// Format codes of the values: none (all text), one for all, or one each. 0 is text, 1 binary.
    pub formats: &'a [u16],
    /// The values, `None` for NULL.
    pub values: &'a [Option<&'a [u8]>],
    /// Format codes of the result columns, by the same rule.
    pub result_formats: &'a [u16],
}

/// Appends a Bind.
pub fn bind(message: &BindMessage<'_>, out: &mut Vec<u8>) {
    let put_code = |code: u16, out: &mut Vec<u8>| out.extend_from_slice(&code.to_be_bytes());
    put(BIND, out, |out| {
        put_text(message.portal, out);
        put_text(message.statement, out);
        put_list(message.formats, out, put_code);
        put_list(message.values, out, put_value);
        put_list(message.result_formats, out, put_code);
    });
}

/// Appends a Describe.
pub fn describe(kind: ObjectKind, name: &[u8], out: &mut Vec<u8>) {
    put_object_name(DESCRIBE, kind, name, out);
}

/// Appends a Close.
pub fn close(kind: ObjectKind, name: &[u8], out: &mut Vec<u8>) {
    put_object_name(CLOSE, kind, name, out);
}

fn put_object_name(tag: u8, kind: ObjectKind, name: &[u8], out: &mut Vec<u8>) {
    put(tag, out, |out| {
        out.push(kind as u8);
        put_text(name, out);
    });
}

/// Appends an Execute; `max_rows` 0 is no limit.
pub fn execute(portal: &[u8], max_rows: i32, out: &mut Vec<u8>) {
    put(EXECUTE, out, |out| {
        put_text(portal, out);
        out.extend_from_slice(&max_rows.to_be_bytes());
    });
}

/// Appends a Sync.
pub fn sync(out: &mut Vec<u8>) {
    put(SYNC, out, |_| {});
}

/// Appends a Flush.
pub fn flush(out: &mut Vec<u8>) {
    put(FLUSH, out, |_| {});
}

/// Appends a FunctionCall of the function with this OID. Arguments and result are text, an argument of `None` is NULL.
pub fn function_call(function: u32, arguments: &[Option<&[u8]>], out: &mut Vec<u8>) {
    put(FUNCTION_CALL, out, |out| {
        out.extend_from_slice(&function.to_be_bytes());
        out.extend_from_slice(&[0, 0]);
        put_list(arguments, out, put_value);
        out.extend_from_slice(&[0, 0]);
    });
}

/// Appends a Terminate.
pub fn terminate(out: &mut Vec<u8>) {
    put(TERMINATE, out, |_| {});
}

/// Appends a PasswordMessage: the password, or the response to an md5 challenge.
pub fn password(text: &[u8], out: &mut Vec<u8>) {
    put(PASSWORD, out, |out| put_text(text, out));
}

/// Appends a SASLInitialResponse.
pub fn sasl_initial(mechanism: &[u8], data: Option<&[u8]>, out: &mut Vec<u8>) {
    put(PASSWORD, out, |out| {
        put_text(mechanism, out);
        put_value(data, out);
    });
}

/// Appends a SASLResponse.
pub fn sasl_response(data: &[u8], out: &mut Vec<u8>) {
    put(PASSWORD, out, |out| out.extend_from_slice(data));
}

/// Appends a CopyData.
pub fn copy_data(data: &[u8], out: &mut Vec<u8>) {
    put(COPY_DATA, out, |out| out.extend_from_slice(data));
}

/// Appends a CopyDone.
pub fn copy_done(out: &mut Vec<u8>) {
    put(COPY_DONE, out, |_| {});
}

/// Appends a CopyFail.
pub fn copy_fail(reason: &[u8], out: &mut Vec<u8>) {
    put(COPY_FAIL, out, |out| put_text(reason, out));
}

/// Appends `message` with another statement name. The message is a complete Parse, Bind, Describe or Close of a
/// statement.
///
/// All bytes except the name are copied unread.
///
/// # Errors
/// The message has another tag ([`DecodeErrorKind::Tag`]), names a portal ([`DecodeErrorKind::Value`]), or ends within
/// its names. Nothing is appended on an error.
pub fn rename_statement(message: &[u8], new_name: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let frame = Frame::decode(message)?;
    let (before, after) = split_at_name(frame).map_err(|error| in_message(&error))?;
    out.reserve(HEADER + before.len() + new_name.len() + 1 + after.len());
    put(frame.tag, out, |out| {
        out.extend_from_slice(before);
        put_text(new_name, out);
        out.extend_from_slice(after);
    });
    Ok(())
}

/// The parts of the body before and after the statement name.
fn split_at_name(frame: Frame<'_>) -> Result<(&[u8], &[u8]), DecodeError> {
    let body = frame.body();
    match frame.tag {
        PARSE => {
            let mut fields = Cursor::new(body);
            fields.text()?;
            Ok((&[], fields.rest()))
        }
        BIND => {
            let bind = Bind::decode(body)?;
            Ok((body.get(..=bind.portal.len()).unwrap_or_default(), bind.tail))
        }
        DESCRIBE | CLOSE => match ObjectName::decode(body)?.kind {
            ObjectKind::Statement => Ok((&body[..1], &[])),
            ObjectKind::Portal => {
                Err(DecodeError::new(0, DecodeErrorKind::Value { field: "object kind", value: b'P'.into() }))
            }
        },
        // The tag precedes the body, which starts at `HEADER`.
        other => Err(DecodeError::new(0, DecodeErrorKind::Tag(other))),
    }
}

fn in_message(error: &DecodeError) -> DecodeError {
    match error.kind {
        DecodeErrorKind::Tag(_) => *error,
        kind => DecodeError::new(error.offset + HEADER, kind),
    }
}
