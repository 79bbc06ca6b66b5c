//! Definitions of tables, from the system catalogue.

use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

use super::{error_text, literal};
use crate::identifier::TableName;
use crate::table::{CollationInfo, ColumnInfo, TableInfo};

/// A definition cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// The query failed.
    #[error("cannot read the catalogue: {0}")]
    Query(String),
    /// The table cannot have shapes; the text is for the client.
    #[error("{0}")]
    Table(String),
}

/// Properties of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseInfo {
    /// System identifier of the cluster.
    pub system_id: u64,
    /// `server_version_num`.
    pub version: u32,
    /// The encoding, such as `UTF8`.
    pub encoding: String,
    /// The default collation.
    pub collation: CollationInfo,
    /// `pg_snapshot_xmax(pg_current_snapshot())`.
    pub next_xid: u64,
}

/// Queries of the system catalogue.
#[derive(Debug)]
pub(crate) struct Catalogue<'a>(pub &'a Client);

impl Catalogue<'_> {
    /// Properties of the database.
    ///
    /// # Errors
    /// If the query fails, or the server is a standby.
    pub(crate) async fn database(&self) -> Result<DatabaseInfo, CatalogueError> {
        let sql = "SELECT (pg_catalog.pg_control_system()).system_identifier, \
                   pg_catalog.current_setting('server_version_num'), pg_catalog.pg_encoding_to_char(d.encoding), \
                   d.datcollate, d.datctype, pg_catalog.pg_is_in_recovery(), \
                   pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) \
                   FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()";
        let rows = rows(self.0, sql).await?;
        let row = rows.first().ok_or_else(|| CatalogueError::Query("the database has no entry".to_owned()))?;
        if text(row, 5) == "t" {
            return Err(CatalogueError::Query("the server is a standby; shapes need the primary".to_owned()));
        }
        let (collate, ctype) = (text(row, 3), text(row, 4));
        let locale = if collate == ctype { collate.clone() } else { format!("{collate}/{ctype}") };
        Ok(DatabaseInfo {
            system_id: number(row, 0)?,
            version: number(row, 1)?,
            encoding: text(row, 2),
            collation: CollationInfo { name: collate, locale, is_deterministic: true },
            next_xid: number(row, 6)?,
        })
    }

    /// The table with this name; `None` if there is none.
    ///
    /// # Errors
    /// If the query fails, or the table cannot have shapes.
    pub(crate) async fn table(&self, name: &TableName) -> Result<Option<TableInfo>, CatalogueError> {
        let condition = format!("n.nspname = {} AND c.relname = {}", literal(&name.schema), literal(&name.table));
        Ok(self.tables(&condition).await?.into_iter().next())
    }

    /// The tables with these OIDs that still exist.
    ///
    /// # Errors
    /// If the query fails.
    pub(crate) async fn tables_by_oid(&self, oids: &[u32]) -> Result<Vec<TableInfo>, CatalogueError> {
        let list: Vec<String> = oids.iter().map(u32::to_string).collect();
        self.tables(&format!("c.oid = ANY ('{{{}}}'::pg_catalog.oid[])", list.join(","))).await
    }

    async fn tables(&self, condition: &str) -> Result<Vec<TableInfo>, CatalogueError> {
        tables_of(&rows(self.0, &tables_text(condition)).await?)
    }
}

/// The query of definitions.
pub(super) fn tables_text(condition: &str) -> String {
    // A domain is described by the type below it.
    format!(
        "SELECT c.oid, n.nspname, c.relname, c.relkind, c.relreplident, c.relispartition, c.relpersistence, \
             a.attname, a.atttypid, coalesce(e.typname, t.typname), \
             (WITH RECURSIVE below(oid, base, kind) AS (SELECT t.oid, t.typbasetype, t.typtype \
               UNION ALL SELECT p.oid, p.typbasetype, p.typtype FROM below JOIN pg_catalog.pg_type p ON p.oid = below.base \
               WHERE below.kind = 'd') SELECT oid::text || kind::text FROM below WHERE kind <> 'd'), \
             o.collname, o.collctype, o.collisdeterministic, a.atttypmod, \
             CASE WHEN e.oid IS NULL THEN 0 ELSE greatest(a.attndims, 1) END, a.attnotnull, \
             CASE WHEN pg_catalog.current_setting('server_version_num')::int >= 180000 AND a.attgenerated <> '' \
               THEN 'published ' || a.attgenerated::text ELSE (a.attgenerated <> '')::text END, \
             pg_catalog.array_position(i.indkey::pg_catalog.int2[], a.attnum), \
             CASE WHEN c.relkind = 'p' THEN (SELECT pg_catalog.string_agg(p.relid::pg_catalog.oid::text || k.relkind::text \
               || k.relpersistence::text, ',' ORDER BY p.relid::pg_catalog.oid) FROM pg_catalog.pg_partition_tree(c.oid) p \
               JOIN pg_catalog.pg_class k ON k.oid = p.relid WHERE p.isleaf AND k.relkind <> 'p') END \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
             LEFT JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
             LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A' \
             LEFT JOIN pg_catalog.pg_collation o ON o.oid = a.attcollation AND a.attcollation <> 100 \
             LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisprimary \
             WHERE ({condition}) AND c.relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY c.oid, a.attnum"
    )
}

/// The result of [`tables_text`].
pub(super) fn tables_of(rows: &[SimpleQueryRow]) -> Result<Vec<TableInfo>, CatalogueError> {
    let mut tables: Vec<TableInfo> = Vec::new();
    for row in rows {
        let oid = number(row, 0)?;
        if tables.last().is_none_or(|table| table.oid != oid) {
            tables.push(table(row, oid)?);
        }
        // A table may have no columns.
        if row.get(7).is_some() {
            let column = column(row)?;
            let table = tables.last_mut().expect("a table was pushed");
            match row.get(17) {
                Some("published s") => table.has_published_generated = true,
                // A publication cannot have it, so that REPLICA IDENTITY FULL would make every UPDATE fail.
                Some("published v") => {
                    let (table, column) = (table.name.quoted(), column.name);
                    let text = format!(
                        "Table {table} has the virtual generated column {column}; only stored ones are supported"
                    );
                    return Err(CatalogueError::Table(text));
                }
                _ => {}
            }
            table.columns.push(column);
        }
    }
    Ok(tables)
}

fn table(row: &SimpleQueryRow, oid: u32) -> Result<TableInfo, CatalogueError> {
    let name = TableName { schema: text(row, 1), table: text(row, 2) };
    let kind = text(row, 3).chars().next().unwrap_or('r');
    let refused = match kind {
        'v' | 'm' => Some("is a view"),
        'f' => Some("is a foreign table"),
        _ if text(row, 5) == "t" => Some("is a partition"),
        _ if text(row, 6) != "p" => Some("is not logged to the WAL"),
        _ => None,
    };
    let partitions = text(row, 19);
    let partitions: Vec<&str> = partitions.split(',').filter(|partition| !partition.is_empty()).collect();
    let other = partitions.iter().find(|partition| !partition.ends_with("rp"));
    let refused = refused.or(other.map(|_| "has a foreign or unlogged partition"));
    if let Some(reason) = refused {
        let text = format!("Table {} {reason}; shapes need an ordinary or partitioned table", name.quoted());
        return Err(CatalogueError::Table(text));
    }
    let replica_identity = text(row, 4).chars().next().unwrap_or('d');
    let partitions = partitions.iter().filter_map(|partition| partition.strip_suffix("rp")?.parse().ok()).collect();
    Ok(TableInfo { oid, name, columns: Vec::new(), kind, replica_identity, partitions, has_published_generated: false })
}

fn column(row: &SimpleQueryRow) -> Result<ColumnInfo, CatalogueError> {
    let base = text(row, 10);
    let (base_oid, base_kind) = base.split_at(base.len().saturating_sub(1));
    let collation = row.get(11).map(|name| CollationInfo {
        name: name.to_owned(),
        locale: text(row, 12),
        is_deterministic: text(row, 13) == "t",
    });
    Ok(ColumnInfo {
        name: text(row, 7),
        type_oid: number(row, 8)?,
        type_name: text(row, 9),
        base_type_oid: base_oid.parse().map_err(|_| CatalogueError::Query("a type has no OID".to_owned()))?,
        is_enum: base_kind == "e",
        collation,
        modifier: number(row, 14)?,
        dims: number(row, 15)?,
        is_not_null: text(row, 16) == "t",
        is_generated: text(row, 17) == "true",
        pk_index: row.get(18).and_then(|index| index.parse().ok()),
    })
}

pub(super) async fn rows(client: &Client, sql: &str) -> Result<Vec<SimpleQueryRow>, CatalogueError> {
    client.simple_query(sql).await.map(only_rows).map_err(|error| CatalogueError::Query(error_text(&error)))
}

pub(super) fn only_rows(messages: Vec<SimpleQueryMessage>) -> Vec<SimpleQueryRow> {
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    rows.collect()
}

pub(super) fn text(row: &SimpleQueryRow, column: usize) -> String {
    row.get(column).unwrap_or_default().to_owned()
}

pub(super) fn number<T: std::str::FromStr>(row: &SimpleQueryRow, column: usize) -> Result<T, CatalogueError> {
    let text = row.get(column).unwrap_or_default();
    text.parse().map_err(|_| CatalogueError::Query(format!("column {column} is no number: {text:?}")))
}
