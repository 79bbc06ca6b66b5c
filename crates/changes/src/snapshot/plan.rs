//! The tables to copy, and the SQL of a chunk.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tidegate_wire::replication::{pgoutput::ReplicaIdentity, quote_ident, quote_literal};

use crate::{
    client::{ClientError, PgConnection, QueryRow},
    error::ChangeStreamError,
    relation::{Relation, RelationColumn},
};

/// A published table, as the catalog describes it at the time of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableDefinition {
    pub(super) relation: Arc<Relation>,
    /// Types of the columns, for literals of keys.
    pub(super) types: Vec<String>,
    /// Indexes of the columns of the key, in the order of its index.
    pub(super) key: Vec<usize>,
    /// Rows that are published, as an SQL condition.
    pub(super) filter: Option<String>,
    /// Rows of the table, by the statistics of the server.
    pub(super) rows_estimated: u64,
}

/// Lists the tables of the publications: schema, name, OID.
pub(super) async fn published_tables(
    connection: &mut PgConnection,
    publications: &[String],
) -> Result<Vec<(String, String, u32)>, ClientError> {
    let names: Vec<_> = publications.iter().map(|name| quote_literal(name)).collect();
    let sql = format!(
        "select distinct t.schemaname, t.tablename, c.oid from pg_catalog.pg_publication_tables t \
         join pg_catalog.pg_namespace n on n.nspname = t.schemaname \
         join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = t.tablename \
         where t.pubname in ({}) order by 1, 2",
        names.join(", ")
    );
    let rows = connection.query(&sql).await?;
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            let [schema, name, oid] = <[Option<String>; 3]>::try_from(row).ok()?;
            Some((schema?, name?, oid?.parse().ok()?))
        })
        .collect())
}

/// Tables that one query describes: the server expands the publications for each query.
const DEFINITIONS_MAX: usize = 1_000;

/// Name of the prepared statement that reads the definition of a table.
const DEFINITION: &str = "tidegate_definition";

/// Prepares the query of a definition, which is planned once in a session: its plan costs several times its execution.
pub(super) fn prepare_sql(publications: &[String], major: u32) -> String {
    let query = columns_sql("$1", publications, major);
    format!("set plan_cache_mode = force_generic_plan; prepare {DEFINITION} (oid[]) as {query}")
}

/// Executes the query of a definition. In the transaction of a chunk, after the table was locked, it fits the rows.
pub(super) fn execute_sql(oid: u32) -> String {
    format!("execute {DEFINITION} ('{{{oid}}}')")
}

/// The definition from the rows of its query.
pub(super) fn found_definition(oid: u32, rows: &[QueryRow]) -> Result<TableDefinition, ChangeStreamError> {
    if rows.is_empty() { Err(not_published(oid)) } else { Ok(definition_of(rows)) }
}

/// Reads the definition of a table.
pub(super) async fn definition(
    connection: &mut PgConnection,
    oid: u32,
    publications: &[String],
) -> Result<TableDefinition, ChangeStreamError> {
    let found = definitions(connection, &[oid], publications).await?.remove(&oid);
    found.ok_or_else(|| not_published(oid))
}

pub(super) fn not_published(oid: u32) -> ChangeStreamError {
    ChangeStreamError::Refused(format!("the table with OID {oid} is not published any more"))
}

/// Reads the definitions of tables, without those that are not published.
pub(super) async fn definitions(
    connection: &mut PgConnection,
    oids: &[u32],
    publications: &[String],
) -> Result<FxHashMap<u32, TableDefinition>, ChangeStreamError> {
    let major = connection.major_version()?;
    let mut found = FxHashMap::default();
    for part in oids.chunks(DEFINITIONS_MAX) {
        let oids: Vec<_> = part.iter().map(u32::to_string).collect();
        let oids = format!("'{{{}}}'::oid[]", oids.join(","));
        let rows = connection.query(&columns_sql(&oids, publications, major)).await?;
        let oid_of = |row: &QueryRow| text(row, 10);
        for columns in rows.chunk_by(|one, other| oid_of(one) == oid_of(other)) {
            let definition = definition_of(columns);
            found.insert(definition.relation.oid, definition);
        }
    }
    Ok(found)
}

fn text(row: &[Option<String>], at: usize) -> String {
    row.get(at).cloned().flatten().unwrap_or_default()
}

/// The definition from the rows of a table's columns.
fn definition_of(rows: &[QueryRow]) -> TableDefinition {
    let first = rows.first().map_or(&[][..], Vec::as_slice);
    let mut columns = Vec::new();
    let (mut types, mut key) = (Vec::new(), Vec::new());
    for row in rows {
        let position: Option<usize> = text(row, 4).parse().ok();
        if let Some(position) = position {
            key.push((position, columns.len()));
        }
        columns.push(RelationColumn {
            name: text(row, 0).into(),
            type_oid: text(row, 1).parse().unwrap_or(0),
            type_modifier: text(row, 2).parse().unwrap_or(-1),
            is_key: position.is_some(),
        });
        types.push(text(row, 3));
    }
    key.sort_unstable();
    let identity = text(first, 7).bytes().next().and_then(ReplicaIdentity::from_byte);
    let filters: Vec<String> =
        text(first, 9).split('\u{1}').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let relation = Relation {
        oid: text(first, 10).parse().unwrap_or(0),
        schema: text(first, 5).into(),
        name: text(first, 6).into(),
        identity: identity.unwrap_or(ReplicaIdentity::Nothing),
        columns: columns.into(),
        version: 0,
    };
    TableDefinition {
        relation: Arc::new(relation),
        types,
        key: key.into_iter().map(|(_, column)| column).collect(),
        filter: (!filters.is_empty()).then(|| filters.join(" or ")),
        rows_estimated: text(first, 8).parse::<f64>().map_or(0, |rows| rows.max(0.0) as u64),
    }
}

/// Returns a row per published column, by table: the place in the key, if the key identifies rows of the stream as well.
fn columns_sql(oids: &str, publications: &[String], major: u32) -> String {
    let names: Vec<_> = publications.iter().map(|name| quote_literal(name)).collect();
    // Several publications publish a row that one of them publishes; one without a filter publishes all.
    let (listed, filter) = if major >= 15 {
        (
            "exists (select from listed l where l.oid = c.oid and a.attname = any (l.attnames))",
            "case when bool_or(rowfilter is null) then null \
             else string_agg('(' || rowfilter || ')', E'\\x01') end",
        )
    } else {
        ("a.attgenerated = ''", "null::text")
    };
    format!(
        "with listed as (select c.oid, t.* from pg_catalog.pg_publication_tables t \
         join pg_catalog.pg_namespace n on n.nspname = t.schemaname \
         join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = t.tablename \
         where t.pubname in ({}) and c.oid = any ({oids})), \
         published as (select oid, {filter} as filter from listed group by oid) \
         select a.attname, a.atttypid, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod), \
         (select k.n from pg_catalog.pg_index i, unnest(i.indkey) with ordinality k(attnum, n) \
         where i.indrelid = c.oid and k.attnum = a.attnum and k.n <= i.indnkeyatts and \
         (c.relreplident = 'i' and i.indisreplident or c.relreplident in ('d', 'f') and i.indisprimary)), \
         n.nspname, c.relname, c.relreplident, \
         coalesce((select sum(greatest(l.reltuples, 0)) from pg_catalog.pg_partition_tree(c.oid) p \
         join pg_catalog.pg_class l on l.oid = p.relid where p.isleaf), c.reltuples), p.filter, c.oid \
         from published p join pg_catalog.pg_class c on c.oid = p.oid \
         join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
         join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped \
         where {listed} order by c.oid, a.attnum",
        names.join(", "),
    )
}

impl TableDefinition {
    /// Schema and name, quoted.
    pub(super) fn quoted_name(&self) -> String {
        format!("{}.{}", quote_ident(&self.relation.schema), quote_ident(&self.relation.name))
    }

    pub(super) fn key_names(&self) -> Vec<String> {
        self.key.iter().filter_map(|at| Some(self.relation.columns.get(*at)?.name.to_string())).collect()
    }

    /// Selects the rows of `pages` pages from a page on; of all further pages if `pages` is `None`.
    pub(super) fn range_sql(&self, first_page: u64, pages: Option<u64>) -> String {
        let columns: Vec<_> = self.relation.columns.iter().map(|column| quote_ident(&column.name)).collect();
        let mut conditions: Vec<String> = self.filter.iter().map(|filter| format!("({filter})")).collect();
        if first_page > 0 {
            conditions.push(format!("ctid >= '({first_page},0)'"));
        }
        if let Some(pages) = pages {
            conditions.push(format!("ctid < '({},0)'", first_page + pages));
        }
        format!("select {} from {}{}", columns.join(", "), self.quoted_name(), where_sql(&conditions))
    }

    /// Selects the next rows after a key, in the order of the key, up to the key `end` if there is one; all rows of a table
    /// without a key.
    pub(super) fn chunk_sql(&self, after: Option<&[String]>, end: Option<&[String]>, limit: u32) -> String {
        let columns: Vec<_> = self.relation.columns.iter().map(|column| quote_ident(&column.name)).collect();
        let mut conditions: Vec<String> = self.filter.iter().map(|filter| format!("({filter})")).collect();
        conditions.extend(self.key_condition(">", after));
        conditions.extend(self.key_condition("<=", end));
        let key = self.quoted_key().join(", ");
        let order = if key.is_empty() { String::new() } else { format!(" order by {key} limit {limit}") };
        format!("select {} from {}{}{order}", columns.join(", "), self.quoted_name(), where_sql(&conditions))
    }

    /// Selects the key that is `rows` rows after a key; none if there are fewer. Rows that are not published count, so that the
    /// query needs nothing but the index. `None` for a table without a key.
    pub(super) fn end_sql(&self, after: Option<&[String]>, rows: u32) -> Option<String> {
        let key = Some(self.quoted_key().join(", ")).filter(|key| !key.is_empty())?;
        let conditions: Vec<_> = self.key_condition(">", after).into_iter().collect();
        let (name, condition, offset) = (self.quoted_name(), where_sql(&conditions), rows.saturating_sub(1));
        Some(format!("select {key} from {name}{condition} order by {key} offset {offset} limit 1"))
    }

    fn quoted_key(&self) -> Vec<String> {
        self.key_names().iter().map(|name| quote_ident(name)).collect()
    }

    /// Compares the key with a value, as text; `None` if the value does not fit the key.
    fn key_condition(&self, operator: &str, value: Option<&[String]>) -> Option<String> {
        let value = value.filter(|value| value.len() == self.key.len() && !value.is_empty())?;
        let literal = |(at, value): (&usize, &String)| {
            let kind = self.types.get(*at).map_or("text", String::as_str);
            format!("{}::{kind}", quote_literal(value))
        };
        let values: Vec<_> = self.key.iter().zip(value).map(literal).collect();
        Some(format!("({}) {operator} ({})", self.quoted_key().join(", "), values.join(", ")))
    }
}

fn where_sql(conditions: &[String]) -> String {
    if conditions.is_empty() { String::new() } else { format!(" where {}", conditions.join(" and ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(key: &[usize], filter: Option<&str>) -> TableDefinition {
        let column = |name: &str| RelationColumn { name: name.into(), type_oid: 25, type_modifier: -1, is_key: false };
        let relation = Relation {
            oid: 1,
            schema: "public".into(),
            name: "my \"t\"".into(),
            identity: ReplicaIdentity::Default,
            columns: [column("a"), column("b")].into(),
            version: 0,
        };
        TableDefinition {
            relation: Arc::new(relation),
            types: vec!["text".to_owned(), "bigint".to_owned()],
            key: key.to_vec(),
            filter: filter.map(str::to_owned),
            rows_estimated: 0,
        }
    }

    #[test]
    fn chunk_follows_the_key_in_its_order() {
        let name = r#""public"."my ""t""""#;
        let sql = |table: &TableDefinition, after: &[&str]| {
            let after: Vec<String> = after.iter().map(|value| (*value).to_owned()).collect();
            table.chunk_sql((!after.is_empty()).then_some(after.as_slice()), None, 10)
        };
        assert_eq!(
            sql(&table(&[1, 0], None), &[]),
            format!(r#"select "a", "b" from {name} order by "b", "a" limit 10"#)
        );
        assert_eq!(
            sql(&table(&[1, 0], Some("a > 'x'")), &["7", "it's"]),
            format!(
                "select \"a\", \"b\" from {name} where (a > 'x') and (\"b\", \"a\") > ('7'::bigint, 'it''s'::text) \
                 order by \"b\", \"a\" limit 10"
            )
        );
        let (after, end) = (["1".to_owned(), "a".to_owned()], ["2".to_owned(), "b".to_owned()]);
        let filtered = table(&[1, 0], Some("a > 'x'"));
        assert!(filtered.chunk_sql(Some(&after), Some(&end), 10).ends_with(
            "(\"b\", \"a\") > ('1'::bigint, 'a'::text) and (\"b\", \"a\") <= ('2'::bigint, 'b'::text) \
             order by \"b\", \"a\" limit 10"
        ));
        assert_eq!(
            filtered.end_sql(Some(&after), 10).unwrap(),
            format!(
                "select \"b\", \"a\" from {name} where (\"b\", \"a\") > ('1'::bigint, 'a'::text) \
                 order by \"b\", \"a\" offset 9 limit 1"
            )
        );
        let ranges = [(0, Some(8)), (8, None)].map(|(first, pages)| table(&[0], None).range_sql(first, pages));
        assert!(ranges[0].ends_with("where ctid < '(8,0)'") && ranges[1].ends_with("where ctid >= '(8,0)'"));
        assert_eq!(sql(&table(&[], None), &[]), format!(r#"select "a", "b" from {name}"#));
    }
}
