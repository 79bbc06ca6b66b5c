//! A streaming JSON writer.

use std::{
    fmt::{self, Write as _},
    io::Write as _,
};

use tracing::field::{Field, Visit};

/// An object that is being written.
pub(super) struct JsonObject<'a> {
    out: &'a mut Vec<u8>,
    /// No member was written yet.
    empty: bool,
    /// Keys that fields must not have.
    reserved_keys: &'static [&'static str],
    /// Records where each field begins, if set.
    offsets: Option<&'a mut Vec<(&'static str, usize)>>,
}

impl<'a> JsonObject<'a> {
    pub(super) fn begin(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, empty: true, reserved_keys: &[], offsets: None }
    }

    /// Writes members that continue an object elsewhere; `offsets` records where each field begins.
    pub(super) fn continuation(out: &'a mut Vec<u8>, offsets: &'a mut Vec<(&'static str, usize)>) -> Self {
        Self { out, empty: false, reserved_keys: &[], offsets: Some(offsets) }
    }

    /// Writes fields with these names as `field.NAME`, since an object has each key once.
    pub(super) fn with_reserved_keys(self, reserved_keys: &'static [&'static str]) -> Self {
        Self { reserved_keys, ..self }
    }

    pub(super) fn end(self) {
        self.out.push(b'}');
    }

    fn key(&mut self, key: &str) {
        if !std::mem::take(&mut self.empty) {
            self.out.push(b',');
        }
        quoted(self.out, |text| text.write_str(key));
        self.out.push(b':');
    }

    fn field(&mut self, field: &Field) {
        let name = field.name();
        if let Some(offsets) = &mut self.offsets {
            offsets.push((name, self.out.len()));
        }
        if !self.reserved_keys.contains(&name) {
            return self.key(name);
        }
        if !std::mem::take(&mut self.empty) {
            self.out.push(b',');
        }
        quoted(self.out, |text| write!(text, "field.{name}"));
        self.out.push(b':');
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        quoted(self.out, |text| text.write_str(value));
    }

    pub(super) fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        write!(self.out, "{value}").expect("writing to a vector cannot fail");
    }

    fn plain(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        self.field(field);
        self.out.write_fmt(value).expect("writing to a vector cannot fail");
    }

    /// Writes members that were written with [`continuation`](Self::continuation).
    pub(super) fn raw(&mut self, members: &[u8]) {
        self.out.extend_from_slice(members);
    }

    pub(super) fn array(&mut self, key: &str) -> JsonArray<'_> {
        self.key(key);
        self.out.push(b'[');
        JsonArray { out: self.out, empty: true }
    }
}

/// An array of objects that is being written.
pub(super) struct JsonArray<'a> {
    out: &'a mut Vec<u8>,
    empty: bool,
}

impl JsonArray<'_> {
    pub(super) fn element(&mut self) -> JsonObject<'_> {
        if !std::mem::take(&mut self.empty) {
            self.out.push(b',');
        }
        JsonObject::begin(self.out)
    }

    pub(super) fn end(self) {
        self.out.push(b']');
    }
}

impl Visit for JsonObject<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON cannot represent the others as numbers.
        if value.is_finite() {
            self.plain(field, format_args!("{value}"));
        } else {
            self.record_str(field, &value.to_string());
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field, format_args!("{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field, format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, format_args!("{value}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field);
        quoted(self.out, |text| text.write_str(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.field(field);
        quoted(self.out, |text| write!(text, "{value:?}"));
    }
}

/// Escapes the text written to it.
struct Escaped<'a>(&'a mut Vec<u8>);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' => self.0.extend([b'\\', byte]),
                b'\n' => self.0.extend(b"\\n"),
                0..0x20 => write!(self.0, "\\u{byte:04x}").expect("writing to a vector cannot fail"),
                _ => self.0.push(byte),
            }
        }
        Ok(())
    }
}

/// Writes a quoted string. If the Debug implementation fails, the part written so far stays.
fn quoted(out: &mut Vec<u8>, write: impl FnOnce(&mut Escaped<'_>) -> fmt::Result) {
    out.push(b'"');
    let _ = write(&mut Escaped(out));
    out.push(b'"');
}
