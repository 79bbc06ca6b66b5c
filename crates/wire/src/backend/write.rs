//! Server messages, appended to a buffer.

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

/// Appends: the client is in.
pub fn authentication_ok(out: &mut Vec<u8>) {
    put_authentication(0, &[], out);
}

/// Appends: send the password in clear text.
pub fn authentication_cleartext(out: &mut Vec<u8>) {
    put_authentication(3, &[], out);
}

/// Appends: send the password hashed with md5 and this salt.
pub fn authentication_md5(salt: [u8; 4], out: &mut Vec<u8>) {
    put_authentication(5, &salt, out);
}

/// Appends: choose one of these SASL mechanisms.
pub fn authentication_sasl(mechanisms: &[&str], out: &mut Vec<u8>) {
    put(AUTHENTICATION, out, |out| {
        out.extend_from_slice(&10_u32.to_be_bytes());
        for name in mechanisms {
            put_text(name.as_bytes(), out);
        }
        out.push(0);
    });
}

/// Appends: the next message of the SASL exchange.
pub fn authentication_sasl_continue(data: &[u8], out: &mut Vec<u8>) {
    put_authentication(11, data, out);
}

/// Appends: the last message of the SASL exchange.
pub fn authentication_sasl_final(data: &[u8], out: &mut Vec<u8>) {
    put_authentication(12, data, out);
}

/// Appends: a setting has this value from here on.
pub fn parameter_status(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    put(PARAMETER_STATUS, out, |out| {
        put_text(name, out);
        put_text(value, out);
    });
}

/// Appends: this pid and key cancel a query of this session. Keys have 4 to 256 bytes, 4 before protocol 3.2.
pub fn backend_key_data(pid: u32, key: &[u8], out: &mut Vec<u8>) {
    put(BACKEND_KEY_DATA, out, |out| {
        out.extend_from_slice(&pid.to_be_bytes());
        out.extend_from_slice(key);
    });
}

/// Appends: the next query may come.
pub fn ready_for_query(status: TxStatus, out: &mut Vec<u8>) {
    put(READY_FOR_QUERY, out, |out| out.push(status as u8));
}

/// Appends: rows of these columns follow, as text. A column is a name and the OID of its type.
pub fn row_description(columns: &[(&str, u32)], out: &mut Vec<u8>) {
    put(ROW_DESCRIPTION, out, |out| {
        put_list(columns, out, |(name, type_oid), out| {
            put_text(name.as_bytes(), out);
            // Of no table (4 + 2 bytes of zero).
            out.extend_from_slice(&[0; 6]);
            out.extend_from_slice(&type_oid.to_be_bytes());
            // Of any size (-1), without modifier (-1), as text (0).
            out.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);
        });
    });
}

/// Appends a row; `None` is NULL.
pub fn data_row(values: &[Option<&[u8]>], out: &mut Vec<u8>) {
    put(DATA_ROW, out, |out| put_list(values, out, put_value));
}

/// Appends: a statement is done.
pub fn command_complete(tag: &[u8], out: &mut Vec<u8>) {
    put(COMMAND_COMPLETE, out, |out| put_text(tag, out));
}

/// Appends: a Parse succeeded.
pub fn parse_complete(out: &mut Vec<u8>) {
    put(PARSE_COMPLETE, out, |_| {});
}

/// Appends: a Bind succeeded.
pub fn bind_complete(out: &mut Vec<u8>) {
    put(BIND_COMPLETE, out, |_| {});
}

/// Appends: a Close succeeded.
pub fn close_complete(out: &mut Vec<u8>) {
    put(CLOSE_COMPLETE, out, |_| {});
}

/// Appends: the statement returns no rows.
pub fn no_data(out: &mut Vec<u8>) {
    put(NO_DATA, out, |_| {});
}

/// Appends: the query was empty.
pub fn empty_query(out: &mut Vec<u8>) {
    put(EMPTY_QUERY_RESPONSE, out, |_| {});
}

/// Appends: the parameters of a statement have these types.
pub fn parameter_description(types: &[u32], out: &mut Vec<u8>) {
    put(PARAMETER_DESCRIPTION, out, |out| {
        put_list(types, out, |oid, out| {
            out.extend_from_slice(&oid.to_be_bytes());
        });
    });
}
