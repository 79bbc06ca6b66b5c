//! The identity of a shape.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::parameters::{LogMode, Replica};
use crate::row_form::RowForm;
use crate::table::TableInfo;

/// A checked definition. Equal definitions are one shape.
#[derive(Debug, Clone)]
pub struct ShapeDefinition {
    /// Table and columns.
    pub form: Arc<RowForm>,
    /// The predicate in its canonical text, with parameters folded in.
    pub predicate: Option<Arc<str>>,
    /// Form of updates and deletes.
    pub replica: Replica,
    /// Whether there is a snapshot.
    pub log: LogMode,
    /// The tables of the subqueries of the predicate, by their number; none without subqueries.
    pub inner: Option<Arc<InnerTables>>,
}

/// Tables of subqueries.
#[derive(Debug)]
pub struct InnerTables(pub Vec<Arc<TableInfo>>);

/// A definition as a key of maps and in the catalogue: names, because positions move when a column is dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DefinitionKey {
    /// OID of the table.
    pub oid: u32,
    /// Selected columns, in the order of the table.
    pub columns: Vec<Box<str>>,
    /// The predicate.
    #[serde(rename = "where", default, skip_serializing_if = "Option::is_none")]
    pub predicate: Option<Box<str>>,
    /// Form of updates and deletes.
    pub replica: Replica,
    /// Whether there is a snapshot.
    pub log: LogMode,
}

impl ShapeDefinition {
    /// Whether the definitions have the same identity.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let is_same_form =
            || self.form.table.oid == other.form.table.oid && self.column_names().eq(other.column_names());
        self.predicate == other.predicate
            && (self.replica, self.log) == (other.replica, other.log)
            && (Arc::ptr_eq(&self.form, &other.form) || is_same_form())
    }

    /// The tables of the subqueries, by their number.
    #[must_use]
    pub fn inner_tables(&self) -> &[Arc<TableInfo>] {
        self.inner.as_ref().map_or(&[], |inner| inner.0.as_slice())
    }

    /// All tables that the shape depends on.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<TableInfo>> {
        std::iter::once(&self.form.table).chain(self.inner_tables())
    }

    fn column_names(&self) -> impl Iterator<Item = &str> {
        let columns = &self.form.table.columns;
        self.form.columns.iter().filter_map(|column| columns.get(*column)).map(|column| column.name.as_str())
    }

    /// The identity.
    #[must_use]
    pub fn key(&self) -> DefinitionKey {
        let table = &self.form.table;
        DefinitionKey {
            oid: table.oid,
            columns: self.column_names().map(Into::into).collect(),
            predicate: self.predicate.as_deref().map(Into::into),
            replica: self.replica,
            log: self.log,
        }
    }
}

impl DefinitionKey {
    /// A hash that is the same in all versions and on all machines.
    #[must_use]
    pub fn hash(&self) -> u32 {
        let mut text = self.oid.to_string().into_bytes();
        for column in &self.columns {
            text.push(0);
            text.extend_from_slice(column.as_bytes());
        }
        text.extend_from_slice(&[0, 0]);
        text.extend_from_slice(self.predicate.as_deref().unwrap_or_default().as_bytes());
        text.extend_from_slice(&[
            0,
            u8::from(self.replica == Replica::Full),
            u8::from(self.log == LogMode::ChangesOnly),
        ]);
        crc32c::crc32c(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> DefinitionKey {
        let columns = vec!["id".into(), "a".into()];
        DefinitionKey { oid: 5, columns, predicate: None, replica: Replica::Default, log: LogMode::Full }
    }

    #[test]
    fn each_part_of_a_definition_counts() {
        let keys = [
            key(),
            DefinitionKey { oid: 6, ..key() },
            DefinitionKey { columns: vec!["id".into()], ..key() },
            DefinitionKey { columns: vec!["ida".into()], ..key() },
            DefinitionKey { predicate: Some("true".into()), ..key() },
            DefinitionKey { replica: Replica::Full, ..key() },
            DefinitionKey { log: LogMode::ChangesOnly, ..key() },
        ];
        let hashes: std::collections::BTreeSet<u32> = keys.iter().map(DefinitionKey::hash).collect();
        assert_eq!(hashes.len(), keys.len());
        for key in keys {
            let stored = serde_json::to_string(&key).unwrap();
            assert_eq!(serde_json::from_str::<DefinitionKey>(&stored).unwrap(), key);
        }
    }
}
