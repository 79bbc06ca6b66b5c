//! Protocol Buffers' wire format, for the few types that spans need: written straight into the batch, without a message in
//! between (`cargo bench -p tidegate-query-log --bench spans`).

/// Appends a varint.
pub(super) fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Number of bytes of a varint.
pub(super) fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends the key of a length-delimited field, and a length.
pub(super) fn begin(field: u32, len: usize, out: &mut Vec<u8>) {
    varint(u64::from(field) << 3 | 2, out);
    varint(len as u64, out);
}

/// Number of bytes of a length-delimited field.
pub(super) fn field_len(field: u32, len: usize) -> usize {
    varint_len(u64::from(field) << 3) + varint_len(len as u64) + len
}

/// Appends a field of bytes or text.
pub(super) fn bytes(field: u32, value: &[u8], out: &mut Vec<u8>) {
    begin(field, value.len(), out);
    out.extend_from_slice(value);
}

/// Appends an integer field.
pub(super) fn integer(field: u32, value: u64, out: &mut Vec<u8>) {
    varint(u64::from(field) << 3, out);
    varint(value, out);
}

/// Appends a `fixed64` field.
pub(super) fn fixed64(field: u32, value: u64, out: &mut Vec<u8>) {
    varint(u64::from(field) << 3 | 1, out);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a `fixed32` field.
pub(super) fn fixed32(field: u32, value: u32, out: &mut Vec<u8>) {
    varint(u64::from(field) << 3 | 5, out);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a `KeyValue` with a text.
pub(super) fn text_attribute(field: u32, key: &str, value: &str, out: &mut Vec<u8>) {
    let any = field_len(1, value.len());
    begin(field, field_len(1, key.len()) + field_len(2, any), out);
    bytes(1, key.as_bytes(), out);
    begin(2, any, out);
    bytes(1, value.as_bytes(), out);
}

/// Appends a `KeyValue` with an integer.
pub(super) fn integer_attribute(field: u32, key: &str, value: u64, out: &mut Vec<u8>) {
    let any = 1 + varint_len(value);
    begin(field, field_len(1, key.len()) + field_len(2, any), out);
    bytes(1, key.as_bytes(), out);
    begin(2, any, out);
    integer(3, value, out);
}
