//! Parts of a record: its key, its value, or a field inside its value.

use crate::{
    raw::RawValue,
    setting::{Setting, ValueError, list, nearest, text},
};

/// The key that orders records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OrderingKey {
    /// The key of the record; records of a file have none.
    #[default]
    Record,
    /// The value at a JSON pointer.
    Pointer(String),
}

impl Setting for OrderingKey {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        match text(value, "\"/customer/id\"")? {
            "" | "record" => Ok(Self::Record),
            pointer if pointer.starts_with('/') => Ok(Self::Pointer(pointer.to_owned())),
            other => Err(ValueError::new(format!("`{other}` is not a key"), POINTER)),
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
    "write `record` for the key of the record, or a JSON pointer, which starts with a slash: /customer/id";

/// A part of a record, as a parameter of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordField {
    /// The key.
    Key,
    /// The value.
    Value,
    /// The topic.
    Topic,
    /// The partition.
    Partition,
    /// The offset in the partition or file.
    Position,
    /// The timestamp, in milliseconds since 1970.
    Timestamp,
    /// The last header of a name.
    Header(String),
    /// Whether a column is in `unchanged`, the list of values that Postgres did not send.
    Unchanged(String),
    /// The value at a JSON pointer.
    Pointer(String),
}

const WORDS: [(&str, RecordField); 6] = [
    ("key", RecordField::Key),
    ("value", RecordField::Value),
    ("topic", RecordField::Topic),
    ("partition", RecordField::Partition),
    ("position", RecordField::Position),
    ("timestamp", RecordField::Timestamp),
];

impl Setting for RecordField {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        let written = text(value, "\"/customer/id\"")?;
        if let Some((_, field)) = WORDS.iter().find(|(word, _)| *word == written) {
            return Ok(field.clone());
        }
        if let Some(name) = written.strip_prefix("header:").filter(|name| !name.is_empty()) {
            return Ok(Self::Header(name.to_owned()));
        }
        if let Some(column) = written.strip_prefix("unchanged:").filter(|column| !column.is_empty()) {
            return Ok(Self::Unchanged(column.to_owned()));
        }
        if written.starts_with('/') {
            return Ok(Self::Pointer(written.to_owned()));
        }
        let near = nearest(written, WORDS.iter().map(|(word, _)| *word));
        let near = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
        let words: Vec<_> = WORDS.iter().map(|(word, _)| *word).collect();
        let help = format!(
            "{near}it can be {}, header:NAME, unchanged:COLUMN, or a JSON pointer such as /customer/id",
            words.join(", ")
        );
        Err(ValueError::new(format!("`{written}` is not a part of a record"), help))
    }

    fn show(&self) -> String {
        match self {
            Self::Header(name) => format!("header:{name}"),
            Self::Unchanged(column) => format!("unchanged:{column}"),
            Self::Pointer(pointer) => pointer.clone(),
            plain => WORDS.iter().find(|(_, field)| field == plain).map_or("", |(word, _)| word).to_owned(),
        }
    }
}

/// The name of a part of a record, as the configuration writes it.
#[must_use]
pub fn field_name(field: &RecordField) -> String {
    field.show()
}

/// Parts of a record, in the order of the parameters of a statement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordFields(pub Vec<RecordField>);

impl Setting for RecordFields {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        list(value, "[\"key\", \"/customer/id\"]", RecordField::read).map(Self)
    }

    fn show(&self) -> String {
        self.0.iter().map(RecordField::show).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(written: &str) -> Result<RecordField, ValueError> {
        RecordField::read(&RawValue::Text(written.to_owned()))
    }

    #[test]
    fn record_fields_are_parsed_and_shown() {
        let words = ["key", "value", "topic", "partition", "position", "timestamp"];
        for written in words.into_iter().chain(["header:trace", "unchanged:doc", "/a/b"]) {
            assert_eq!(field(written).map(|field| field.show()), Ok(written.to_owned()));
        }
        let error = field("valeu").expect_err("no such part");
        assert!(error.help.contains("did you mean `value`?"), "{error:?}");
        assert!(field("header:").is_err() && field("unchanged:").is_err() && field("").is_err());
    }

    #[test]
    fn an_ordering_key_is_the_record_key_or_a_pointer() {
        let key = |written: &str| OrderingKey::read(&RawValue::Text(written.to_owned()));
        assert_eq!(key("record"), Ok(OrderingKey::Record));
        assert_eq!(key("/id"), Ok(OrderingKey::Pointer("/id".to_owned())));
        assert!(key("id").expect_err("no pointer").help.contains("starts with a slash"));
    }
}
