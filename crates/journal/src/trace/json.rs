//! JSON, written as it comes.

use std::{
    fmt::{self, Write as _},
    io::Write as _,
};

use tracing::field::{Field, Visit};

/// An object that is being written.
pub(super) struct Object<'a> {
    out: &'a mut Vec<u8>,
    /// Nothing is before the next key.
    empty: bool,
    /// Keys that no field may have.
    own: &'static [&'static str],
    /// Where fields begin, for who wants to find them again.
    begins: Option<&'a mut Vec<(&'static str, usize)>>,
}

impl<'a> Object<'a> {
    pub(super) fn begin(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, empty: true, own: &[], begins: None }
    }

    /// Members that are to stand behind others in an object elsewhere; `begins` says of each field where it begins.
    pub(super) fn behind(out: &'a mut Vec<u8>, begins: &'a mut Vec<(&'static str, usize)>) -> Self {
        Self { out, empty: false, own: &[], begins: Some(begins) }
    }

    /// The same; fields of these names are written as `field.NAME`, since an object has each key once.
    pub(super) fn owning(self, own: &'static [&'static str]) -> Self {
        Self { own, ..self }
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
        if let Some(begins) = &mut self.begins {
            begins.push((name, self.out.len()));
        }
        if !self.own.contains(&name) {
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
        write!(self.out, "{value}").expect("a vector takes what is written to it");
    }

    fn plain(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        self.field(field);
        self.out.write_fmt(value).expect("a vector takes what is written to it");
    }

    /// Members that were written [behind](Self::behind) others.
    pub(super) fn raw(&mut self, members: &[u8]) {
        self.out.extend_from_slice(members);
    }

    pub(super) fn array(&mut self, key: &str) -> Array<'_> {
        self.key(key);
        self.out.push(b'[');
        Array { out: self.out, empty: true }
    }
}

/// An array of objects that is being written.
pub(super) struct Array<'a> {
    out: &'a mut Vec<u8>,
    empty: bool,
}

impl Array<'_> {
    pub(super) fn element(&mut self) -> Object<'_> {
        if !std::mem::take(&mut self.empty) {
            self.out.push(b',');
        }
        Object::begin(self.out)
    }

    pub(super) fn end(self) {
        self.out.push(b']');
    }
}

impl Visit for Object<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no word for the others.
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

/// Escapes what is written to it.
struct Escaped<'a>(&'a mut Vec<u8>);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' => self.0.extend([b'\\', byte]),
                b'\n' => self.0.extend(b"\\n"),
                0..0x20 => write!(self.0, "\\u{byte:04x}").expect("a vector takes what is written to it"),
                _ => self.0.push(byte),
            }
        }
        Ok(())
    }
}

/// A value whose own form fails leaves what it wrote until then.
fn quoted(out: &mut Vec<u8>, write: impl FnOnce(&mut Escaped<'_>) -> fmt::Result) {
    out.push(b'"');
    let _ = write(&mut Escaped(out));
    out.push(b'"');
}
