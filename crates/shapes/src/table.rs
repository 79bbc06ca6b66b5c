//! A table as shapes need it: columns, key, and the header `electric-schema`.

use serde::{Deserialize, Serialize};

use crate::identifier::TableName;
use crate::json::{push_number, push_string};

/// A collation, from `pg_collation` or `pg_database`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollationInfo {
    /// The name.
    pub name: String,
    /// The locale of character classes, such as `C` or `en_US.utf8`.
    pub locale: String,
    /// Whether texts are equal only if their bytes are.
    pub is_deterministic: bool,
}

/// A column, from `pg_attribute` and `pg_type`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnInfo {
    /// Name.
    pub name: String,
    /// OID of the type.
    pub type_oid: u32,
    /// Name of the type; of an array, the name of the element's type.
    pub type_name: String,
    /// OID of the type below all domains.
    pub base_type_oid: u32,
    /// Whether the type is an enum.
    pub is_enum: bool,
    /// The collation, if it is not the database's.
    pub collation: Option<CollationInfo>,
    /// `atttypmod`; -1 if there is none.
    pub modifier: i32,
    /// Declared array dimensions; 0 is no array.
    pub dims: u16,
    /// NOT NULL.
    pub is_not_null: bool,
    /// A generated column that is not in the stream: before Postgres 18.
    pub is_generated: bool,
    /// Position in the primary key, from 0.
    pub pk_index: Option<u16>,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableInfo {
    /// OID of the table.
    pub oid: u32,
    /// Schema and name.
    pub name: TableName,
    /// Columns in the order of `attnum`, without dropped ones.
    pub columns: Vec<ColumnInfo>,
    /// `pg_class.relkind`: `r` is a table, `p` a partitioned one.
    pub kind: char,
    /// `pg_class.relreplident`: `f` is FULL.
    pub replica_identity: char,
    /// OIDs of the partitions that have rows, in their order; the stream has their changes under these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<u32>,
    /// Whether it has stored generated columns that are in the stream: since Postgres 18.
    #[serde(default)]
    pub has_published_generated: bool,
}

impl TableInfo {
    /// Whether a shape of this table fits another description of it.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.name == other.name && self.columns == other.columns && self.partitions == other.partitions
    }

    /// Whether the rows are in partitions.
    #[must_use]
    pub const fn is_partitioned(&self) -> bool {
        self.kind == 'p'
    }

    /// The OIDs of the tables that have the rows.
    #[must_use]
    pub fn row_tables(&self) -> &[u32] {
        if self.is_partitioned() { &self.partitions } else { std::slice::from_ref(&self.oid) }
    }

    /// The table in `FROM`, `LOCK` and `ALTER TABLE`, without tables that inherit from it.
    #[must_use]
    pub fn only(&self) -> String {
        if self.is_partitioned() { self.name.quoted() } else { format!("ONLY {}", self.name.quoted()) }
    }

    /// The position of a column.
    #[must_use]
    pub fn position(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|info| info.name == column)
    }

    /// Columns of the primary key in its order; without one, all columns.
    #[must_use]
    pub fn key_columns(&self) -> Vec<usize> {
        let mut keyed: Vec<(u16, usize)> = Vec::new();
        for (position, column) in self.columns.iter().enumerate() {
            keyed.extend(column.pk_index.map(|index| (index, position)));
        }
        keyed.sort_unstable();
        if keyed.is_empty() { (0..self.columns.len()).collect() } else { keyed.into_iter().map(|(_, at)| at).collect() }
    }

    /// The header `electric-schema` for these columns.
    #[must_use]
    pub fn schema_header(&self, columns: &[usize]) -> String {
        let mut out = vec![b'{'];
        for (at, column) in columns.iter().filter_map(|position| self.columns.get(*position)).enumerate() {
            if at > 0 {
                out.push(b',');
            }
            push_string(&mut out, column.name.as_bytes());
            out.push(b':');
            column.push_schema(&mut out);
        }
        out.push(b'}');
        // A header is ASCII; JSON can escape what is not.
        ascii(&String::from_utf8_lossy(&out))
    }
}

fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut units = [0; 2];
    for character in text.chars() {
        match character {
            ' '..='~' => out.push(character),
            _ => character.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    out
}

impl ColumnInfo {
    fn push_schema(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"type\":");
        push_string(out, self.type_name.as_bytes());
        let mut number_if = |name: &str, value: Option<u64>| {
            if let Some(value) = value {
                out.extend_from_slice(format!(",\"{name}\":").as_bytes());
                push_number(out, value);
            }
        };
        number_if("dims", Some(self.dims.into()).filter(|dims| *dims > 0));
        let modifier = u64::try_from(self.modifier).ok().filter(|_| self.dims == 0);
        let above_header = modifier.and_then(|modifier| modifier.checked_sub(4));
        let mut fields = None;
        match self.type_name.as_str() {
            "varchar" => number_if("max_length", above_header),
            "bpchar" => number_if("length", above_header),
            "bit" | "varbit" => number_if("length", modifier),
            "numeric" => {
                number_if("precision", above_header.map(|packed| packed >> 16));
                number_if("scale", above_header.map(|packed| packed & 0xffff));
            }
            "time" | "timetz" | "timestamp" | "timestamptz" => {
                number_if("precision", modifier.filter(|digits| *digits > 0));
            }
            "interval" => {
                fields = modifier.and_then(|packed| interval_fields(packed >> 16));
                // 0xffff is no precision (`INTERVAL_FULL_PRECISION`).
                number_if("precision", modifier.map(|packed| packed & 0xffff).filter(|digits| *digits != 0xffff));
            }
            _ => number_if("type_mod", modifier),
        }
        number_if("pk_index", self.pk_index.map(u64::from));
        if let Some(fields) = fields {
            out.extend_from_slice(b",\"fields\":");
            push_string(out, fields.as_bytes());
        }
        if self.is_not_null {
            out.extend_from_slice(b",\"not_null\":true");
        }
        out.push(b'}');
    }
}

/// The fields of an interval (`INTERVAL_MASK` in `src/include/utils/timestamp.h`), such as `DAY TO SECOND`.
fn interval_fields(range: u64) -> Option<String> {
    const FIELDS: [(u64, &str); 6] = [
        (1 << 2, "YEAR"),
        (1 << 1, "MONTH"),
        (1 << 3, "DAY"),
        (1 << 10, "HOUR"),
        (1 << 11, "MINUTE"),
        (1 << 12, "SECOND"),
    ];
    const FULL_RANGE: u64 = 0x7fff;
    let named: Vec<&str> = FIELDS.iter().filter(|(mask, _)| range & mask != 0).map(|(_, name)| *name).collect();
    match named.as_slice() {
        _ if range == FULL_RANGE => None,
        [] => None,
        [one] => Some((*one).to_owned()),
        [first, .., last] => Some(format!("{first} TO {last}")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A column for tests.
    pub(crate) fn column(name: &str, type_name: &str, pk_index: Option<u16>) -> ColumnInfo {
        ColumnInfo {
            name: name.to_owned(),
            type_oid: 25,
            type_name: type_name.to_owned(),
            base_type_oid: 25,
            is_enum: false,
            collation: None,
            modifier: -1,
            dims: 0,
            is_not_null: pk_index.is_some(),
            is_generated: false,
            pk_index,
        }
    }

    /// A table for tests.
    pub(crate) fn table(schema: &str, name: &str, columns: Vec<ColumnInfo>) -> TableInfo {
        let name = TableName { schema: schema.to_owned(), table: name.to_owned() };
        TableInfo {
            oid: 16_384,
            name,
            columns,
            kind: 'r',
            replica_identity: 'f',
            partitions: Vec::new(),
            has_published_generated: false,
        }
    }

    #[test]
    fn schema_header_describes_types() {
        let modified = |type_name, modifier| ColumnInfo { modifier, ..column("c", type_name, None) };
        let cases = [
            (column("c", "int8", Some(0)), r#"{"type":"int8","pk_index":0,"not_null":true}"#),
            (column("c", "text", None), r#"{"type":"text"}"#),
            (ColumnInfo { dims: 2, ..column("c", "int4", None) }, r#"{"type":"int4","dims":2}"#),
            (modified("varchar", 14), r#"{"type":"varchar","max_length":10}"#),
            (modified("bpchar", 9), r#"{"type":"bpchar","length":5}"#),
            (modified("bit", 3), r#"{"type":"bit","length":3}"#),
            (modified("numeric", (10 << 16 | 2) + 4), r#"{"type":"numeric","precision":10,"scale":2}"#),
            (modified("timestamp", 3), r#"{"type":"timestamp","precision":3}"#),
            (modified("interval", 0x7fff << 16 | 4), r#"{"type":"interval","precision":4}"#),
            (modified("interval", 1 << 18 | 0xffff), r#"{"type":"interval","fields":"YEAR"}"#),
            (
                modified("interval", (1 << 19 | 1 << 26 | 1 << 27 | 1 << 28) | 3),
                r#"{"type":"interval","precision":3,"fields":"DAY TO SECOND"}"#,
            ),
            (modified("geometry", 7), r#"{"type":"geometry","type_mod":7}"#),
        ];
        for (column, expected) in cases {
            let table = table("public", "t", vec![column]);
            assert_eq!(table.schema_header(&[0]), format!("{{\"c\":{expected}}}"));
        }
    }

    #[test]
    fn schema_header_is_ascii() {
        let table = table("public", "t", vec![column("né\"😀", "text", None)]);
        let header = table.schema_header(&[0]);
        assert!(header.is_ascii(), "{header}");
        let read: serde_json::Value = serde_json::from_str(&header).unwrap();
        assert!(read.get("né\"😀").is_some());
    }

    #[test]
    fn key_is_the_primary_key_or_the_whole_row() {
        let keyed = table(
            "s",
            "t",
            vec![column("a", "text", Some(1)), column("b", "text", None), column("c", "text", Some(0))],
        );
        assert_eq!(keyed.key_columns(), [2, 0]);
        let keyless = table("s", "t", vec![column("a", "text", None), column("b", "text", None)]);
        assert_eq!(keyless.key_columns(), [0, 1]);
    }
}
