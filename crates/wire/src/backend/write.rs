//! Encoders of server messages.

use super::{
    AUTHENTICATION, BACKEND_KEY_DATA, BIND_COMPLETE, CLOSE_COMPLETE, COMMAND_COMPLETE, DATA_ROW, EMPTY_QUERY_RESPONSE,
    NO_DATA, PARAMETER_DESCRIPTION, PARAMETER_STATUS, PARSE_COMPLETE, READY_FOR_QUERY, ROW_DESCRIPTION, TxStatus,
};
use crate::frame::{put, put_list, put_text, put_value};

fn put_authentication(code: u32, data: &[u8], out: &mut Vec<u8>) {
    put(AUTHENTICATION, out, |out| {
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(data);
    });
}

/// Appends AuthenticationOk.
pub fn authentication_ok(out: &mut Vec<u8>) {
    put_authentication(0, &[], out);
}

/// Appends AuthenticationCleartextPassword.
pub fn authentication_cleartext(out: &mut Vec<u8>) {
    put_authentication(3, &[], out);
}

/// Appends AuthenticationMD5Password.
pub fn authentication_md5(salt: [u8; 4], out: &mut Vec<u8>) {
    put_authentication(5, &salt, out);
}

/// Appends AuthenticationSASL with the offered mechanisms. An empty name is left out, because it ends the list.
pub fn authentication_sasl(mechanisms: &[&str], out: &mut Vec<u8>) {
    put(AUTHENTICATION, out, |out| {
        out.extend_from_slice(&10_u32.to_be_bytes());
        for name in mechanisms.iter().filter(|name| !name.is_empty() && !name.starts_with('\0')) {
            put_text(name.as_bytes(), out);
        }
        out.push(0);
    });
}

/// Appends AuthenticationSASLContinue.
pub fn authentication_sasl_continue(data: &[u8], out: &mut Vec<u8>) {
    put_authentication(11, data, out);
}

/// Appends AuthenticationSASLFinal.
pub fn authentication_sasl_final(data: &[u8], out: &mut Vec<u8>) {
    put_authentication(12, data, out);
}

/// Appends ParameterStatus.
pub fn parameter_status(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    put(PARAMETER_STATUS, out, |out| {
        put_text(name, out);
        put_text(value, out);
    });
}

/// Appends BackendKeyData. Keys have 4 to 256 bytes; 4 before protocol 3.2.
pub fn backend_key_data(pid: u32, key: &[u8], out: &mut Vec<u8>) {
    put(BACKEND_KEY_DATA, out, |out| {
        out.extend_from_slice(&pid.to_be_bytes());
        out.extend_from_slice(key);
    });
}

/// Appends ReadyForQuery.
pub fn ready_for_query(status: TxStatus, out: &mut Vec<u8>) {
    put(READY_FOR_QUERY, out, |out| out.push(status as u8));
}

/// Appends RowDescription in text format. A column is a name and a type OID.
pub fn row_description(columns: &[(&str, u32)], out: &mut Vec<u8>) {
    put(ROW_DESCRIPTION, out, |out| {
        put_list(columns, out, |(name, type_oid), out| {
            put_text(name.as_bytes(), out);
            // No table: OID 0 (4 bytes), attribute number 0 (2 bytes).
            out.extend_from_slice(&[0; 6]);
            out.extend_from_slice(&type_oid.to_be_bytes());
            // Variable size (-1), no type modifier (-1), text format (0).
            out.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);
        });
    });
}

/// Appends DataRow; `None` is NULL.
pub fn data_row(values: &[Option<&[u8]>], out: &mut Vec<u8>) {
    put(DATA_ROW, out, |out| put_list(values, out, put_value));
}

/// Appends CommandComplete.
pub fn command_complete(tag: &[u8], out: &mut Vec<u8>) {
    put(COMMAND_COMPLETE, out, |out| put_text(tag, out));
}

/// Appends ParseComplete.
pub fn parse_complete(out: &mut Vec<u8>) {
    put(PARSE_COMPLETE, out, |_| {});
}

/// Appends BindComplete.
pub fn bind_complete(out: &mut Vec<u8>) {
    put(BIND_COMPLETE, out, |_| {});
}

/// Appends CloseComplete.
pub fn close_complete(out: &mut Vec<u8>) {
    put(CLOSE_COMPLETE, out, |_| {});
}

/// Appends NoData.
pub fn no_data(out: &mut Vec<u8>) {
    put(NO_DATA, out, |_| {});
}

/// Appends EmptyQueryResponse.
pub fn empty_query(out: &mut Vec<u8>) {
    put(EMPTY_QUERY_RESPONSE, out, |_| {});
}

/// Appends ParameterDescription. At most 65,535 types are sent.
pub fn parameter_description(types: &[u32], out: &mut Vec<u8>) {
    put(PARAMETER_DESCRIPTION, out, |out| {
        put_list(types, out, |oid, out| {
            out.extend_from_slice(&oid.to_be_bytes());
        });
    });
}
