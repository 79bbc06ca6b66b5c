//! Table definitions as the stream describes them, with versions.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tidegate_wire::replication::pgoutput::{
    PgoutputMessage, RelationField, RelationMessage, ReplicaIdentity,
    encode::{self, RelationFields},
};

use crate::error::DecodeChangeError;

/// A column of a [`Relation`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationColumn {
    /// Name of the column.
    pub name: Box<str>,
    /// OID of the type.
    pub type_oid: u32,
    /// Type modifier, such as the length of a `varchar`; -1 if there is none.
    pub type_modifier: i32,
    /// Whether the column belongs to the replica identity. With `REPLICA IDENTITY FULL` every column does.
    pub is_key: bool,
}

/// A version of the definition of a table: the published columns, in the order of the rows.
///
/// Definitions come from the stream and never from a query: a query returns the present definition, and a row may be
/// older (CH-50).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// OID of the table. It is not reused while the table exists, and survives a rename.
    pub oid: u32,
    /// Schema of the table.
    pub schema: Box<str>,
    /// Name of the table.
    pub name: Box<str>,
    /// The replica identity.
    pub identity: ReplicaIdentity,
    /// The columns.
    pub columns: Box<[RelationColumn]>,
    /// Counts the definitions of this table from 1, in the order in which [`Relations`] received them.
    pub version: u32,
}

impl Relation {
    /// Decodes a Relation message, as [`Relation::encode`] writes it.
    ///
    /// # Errors
    /// The bytes are not a Relation message, or a name is not UTF-8.
    pub fn decode(frame: &[u8], version: u32) -> Result<Self, DecodeChangeError> {
        match PgoutputMessage::decode(frame, false)?.message {
            PgoutputMessage::Relation(message) => Self::from_message(&message, version),
            _ => Err(DecodeChangeError::Unexpected("Relation")),
        }
    }

    pub(crate) fn from_message(message: &RelationMessage<'_>, version: u32) -> Result<Self, DecodeChangeError> {
        let text = |bytes: &[u8]| match str::from_utf8(bytes) {
            Ok(text) => Ok(Box::from(text)),
            Err(_) => Err(DecodeChangeError::Name { oid: message.oid }),
        };
        let column = |field: RelationField<'_>| {
            Ok(RelationColumn {
                name: text(field.name)?,
                type_oid: field.type_oid,
                type_modifier: field.type_modifier,
                is_key: field.is_key,
            })
        };
        Ok(Self {
            oid: message.oid,
            schema: if message.schema.is_empty() { "pg_catalog".into() } else { text(message.schema)? },
            name: text(message.name)?,
            identity: message.identity,
            columns: message.columns().map(column).collect::<Result<_, DecodeChangeError>>()?,
            version,
        })
    }

    /// Appends the definition as a Relation message of `pgoutput`, without the version.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let field = |column: &RelationColumn| (column.is_key, column.type_oid, column.type_modifier);
        let columns: Vec<_> = self
            .columns
            .iter()
            .map(|column| {
                let (is_key, type_oid, type_modifier) = field(column);
                RelationField { is_key, name: column.name.as_bytes(), type_oid, type_modifier }
            })
            .collect();
        let fields = RelationFields {
            oid: self.oid,
            schema: self.schema.as_bytes(),
            name: self.name.as_bytes(),
            identity: self.identity,
            columns: &columns,
        };
        encode::relation(None, &fields, out);
    }

    /// The index of the column with this name.
    #[must_use]
    pub fn column_index(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| &*column.name == name)
    }

    /// Whether the definitions are equal, regardless of their versions.
    #[must_use]
    pub fn is_same_definition(&self, other: &Self) -> bool {
        self.oid == other.oid
            && self.schema == other.schema
            && self.name == other.name
            && self.identity == other.identity
            && self.columns == other.columns
    }
}

/// A new definition of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaChange {
    /// The previous definition; `None` for a table that the stream sees for the first time.
    pub before: Option<Arc<Relation>>,
    /// The definition of the rows that follow.
    pub after: Arc<Relation>,
}

impl SchemaChange {
    /// Columns that only the new definition has. Together with a removed column this may be a rename (CH-50).
    pub fn added_columns(&self) -> impl Iterator<Item = &str> {
        names_missing_in(&self.after, self.before.as_deref())
    }

    /// Columns that only the previous definition has.
    pub fn removed_columns(&self) -> impl Iterator<Item = &str> {
        let after = Some(&*self.after);
        self.before.iter().flat_map(move |before| names_missing_in(before, after))
    }
}

fn names_missing_in<'a>(one: &'a Relation, other: Option<&'a Relation>) -> impl Iterator<Item = &'a str> {
    let is_missing = move |name: &&str| other.is_none_or(|other| other.column_index(name).is_none());
    one.columns.iter().map(|column| &*column.name).filter(is_missing)
}

/// The newest definition of every table of a stream.
///
/// ```
/// use tidegate_changes::{Relation, RelationColumn, Relations, ReplicaIdentity};
///
/// let id = RelationColumn { name: "id".into(), type_oid: 20, type_modifier: -1, is_key: true };
/// let table = Relation {
///     oid: 16_384, schema: "public".into(), name: "orders".into(), identity: ReplicaIdentity::Default,
///     columns: [id].into(), version: 0,
/// };
/// let mut relations = Relations::default();
/// let change = relations.update(table.clone()).expect("the table is new");
/// assert_eq!((change.before, change.after.version), (None, 1));
/// assert!(relations.update(table).is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Relations {
    by_oid: FxHashMap<u32, Arc<Relation>>,
    /// Definitions that no delivered change has used yet.
    unannounced: FxHashMap<u32, SchemaChange>,
}

impl Relations {
    /// The newest definition of a table.
    #[must_use]
    pub fn get(&self, oid: u32) -> Option<&Arc<Relation>> {
        self.by_oid.get(&oid)
    }

    /// Stores a definition with the next version. Returns `None` if it is equal to the newest one, which stays.
    pub fn update(&mut self, mut relation: Relation) -> Option<SchemaChange> {
        let before = self.by_oid.get(&relation.oid).cloned();
        if before.as_ref().is_some_and(|before| before.is_same_definition(&relation)) {
            return None;
        }
        relation.version = before.as_ref().map_or(1, |before| before.version.saturating_add(1));
        let after = Arc::new(relation);
        self.by_oid.insert(after.oid, Arc::clone(&after));
        Some(SchemaChange { before, after })
    }

    /// Stores a definition from the stream; [`Relations::announce`] returns it later.
    pub(crate) fn receive(&mut self, relation: Relation) {
        let Some(change) = self.update(relation) else { return };
        let oid = change.after.oid;
        // The consumer has seen neither of two definitions that follow each other without a change between.
        let before = match self.unannounced.remove(&oid) {
            Some(earlier) => earlier.before,
            None => change.before,
        };
        self.unannounced.insert(oid, SchemaChange { before, after: change.after });
    }

    pub(crate) fn has_unannounced(&self) -> bool {
        !self.unannounced.is_empty()
    }

    pub(crate) fn announce(&mut self, oid: u32) -> Option<SchemaChange> {
        self.unannounced.remove(&oid)
    }

    /// Stores a definition with its version, as it was read from a store.
    pub fn restore(&mut self, relation: Arc<Relation>) {
        self.by_oid.insert(relation.oid, relation);
    }

    /// All definitions, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Relation>> {
        self.by_oid.values()
    }

    /// The number of tables.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_oid.len()
    }

    /// Whether no table is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_oid.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, is_key: bool) -> RelationColumn {
        RelationColumn { name: name.into(), type_oid: 25, type_modifier: -1, is_key }
    }

    fn table(columns: &[RelationColumn]) -> Relation {
        Relation {
            oid: 7,
            schema: "public".into(),
            name: "t".into(),
            identity: ReplicaIdentity::Default,
            columns: columns.into(),
            version: 0,
        }
    }

    /// CH-49, CH-50.
    #[test]
    fn each_definition_gets_its_own_version() {
        let mut relations = Relations::default();
        let first = relations.update(table(&[column("a", true)])).unwrap();
        assert!(relations.update(table(&[column("a", true)])).is_none());
        let second = relations.update(table(&[column("a", true), column("b", false)])).unwrap();
        assert_eq!(second.before.as_deref(), Some(&*first.after));
        assert_eq!((first.after.version, second.after.version), (1, 2));
        assert_eq!(second.added_columns().collect::<Vec<_>>(), ["b"]);
        let third = relations.update(table(&[column("a", true)])).unwrap();
        assert_eq!(third.after.version, 3);
        assert_eq!(third.removed_columns().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn definition_survives_encoding() {
        let before = Relation { version: 4, ..table(&[column("a", true), column("ö", false)]) };
        let mut frame = Vec::new();
        before.encode(&mut frame);
        assert_eq!(Relation::decode(&frame, 4).unwrap(), before);
    }

    /// CH-45.
    #[test]
    fn name_that_is_not_utf8_is_refused() {
        let mut frame = Vec::new();
        table(&[column("a", true)]).encode(&mut frame);
        let at = frame.iter().position(|byte| *byte == b'a').unwrap();
        frame[at] = 0xff;
        let error = Relation::decode(&frame, 1).unwrap_err();
        assert_eq!(error, DecodeChangeError::Name { oid: 7 });
    }
}
