//! Which part of a record is meant: its key, its value, or something inside of its value.

use crate::{
    raw::Value,
    setting::{Setting, Wrong, list, nearest, text},
};

/// What orders records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum KeyOf {
    /// Their own key; records of a file have none.
    #[default]
    Record,
    /// What stands at this JSON pointer in their value.
    Pointer(String),
}

impl Setting for KeyOf {
    fn read(value: &Value) -> Result<Self, Wrong> {
        match text(value, "\"/customer/id\"")? {
            "" | "record" => Ok(Self::Record),
            pointer if pointer.starts_with('/') => Ok(Self::Pointer(pointer.to_owned())),
            other => Err(Wrong::new(format!("`{other}` is no key"), POINTER)),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Record => "record".to_owned(),
            Self::Pointer(pointer) => pointer.clone(),
        }
    }
}

const POINTER: &str =
    "write `record` for the record's own key, or a JSON pointer, which begins with a slash: /customer/id";

/// A part of a record, as a parameter of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// Its key.
    Key,
    /// Its whole value.
    Value,
    /// The topic that it came by.
    Topic,
    /// The partition that it came by.
    Partition,
    /// Where it stands in its partition or file.
    Position,
    /// When it was produced: milliseconds since 1970.
    Timestamp,
    /// The last header of this name.
    Header(String),
    /// What stands at this JSON pointer in its value.
    Pointer(String),
}

const WORDS: [(&str, Field); 6] = [
    ("key", Field::Key),
    ("value", Field::Value),
    ("topic", Field::Topic),
    ("partition", Field::Partition),
    ("position", Field::Position),
    ("timestamp", Field::Timestamp),
];

impl Setting for Field {
    fn read(value: &Value) -> Result<Self, Wrong> {
        let written = text(value, "\"/customer/id\"")?;
        if let Some((_, field)) = WORDS.iter().find(|(word, _)| *word == written) {
            return Ok(field.clone());
        }
        if let Some(name) = written.strip_prefix("header:").filter(|name| !name.is_empty()) {
            return Ok(Self::Header(name.to_owned()));
        }
        if written.starts_with('/') {
            return Ok(Self::Pointer(written.to_owned()));
        }
        let near = nearest(written, WORDS.iter().map(|(word, _)| *word));
        let near = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
        let words: Vec<_> = WORDS.iter().map(|(word, _)| *word).collect();
        let help = format!("{near}it can be {}, header:NAME, or a JSON pointer such as /customer/id", words.join(", "));
        Err(Wrong::new(format!("`{written}` is no part of a record"), help))
    }

    fn show(&self) -> String {
        match self {
            Self::Header(name) => format!("header:{name}"),
            Self::Pointer(pointer) => pointer.clone(),
            plain => WORDS.iter().find(|(_, field)| field == plain).map_or("", |(word, _)| word).to_owned(),
        }
    }
}

/// Parts of a record, in the order of a statement's parameters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fields(pub Vec<Field>);

impl Setting for Fields {
    fn read(value: &Value) -> Result<Self, Wrong> {
        list(value, "[\"key\", \"/customer/id\"]", Field::read).map(Self)
    }

    fn show(&self) -> String {
        self.0.iter().map(Field::show).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(written: &str) -> Result<Field, Wrong> {
        Field::read(&Value::Text(written.to_owned()))
    }

    #[test]
    fn parts_of_a_record_are_read_and_shown() {
        for written in ["key", "value", "topic", "partition", "position", "timestamp", "header:trace", "/a/b"] {
            assert_eq!(field(written).map(|field| field.show()), Ok(written.to_owned()));
        }
        let wrong = field("valeu").expect_err("no such part");
        assert!(wrong.help.contains("did you mean `value`?"), "{wrong:?}");
        assert!(field("header:").is_err() && field("").is_err());
    }

    #[test]
    fn a_key_is_the_records_own_or_a_pointer() {
        let key = |written: &str| KeyOf::read(&Value::Text(written.to_owned()));
        assert_eq!(key("record"), Ok(KeyOf::Record));
        assert_eq!(key("/id"), Ok(KeyOf::Pointer("/id".to_owned())));
        assert!(key("id").expect_err("no pointer").help.contains("begins with a slash"));
    }
}
