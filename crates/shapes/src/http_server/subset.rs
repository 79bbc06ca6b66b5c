//! A part of a shape's rows, read from the database.

use std::fmt::Write as _;
use std::sync::Arc;

use http::HeaderValue;

use super::answer::{self, HttpAnswer};
use super::resolving::Resolving;
use crate::cursor::Cacheability;
use crate::database::{SnapshotQuery, query_text};
use crate::order_by;
use crate::parameters::{ParameterErrors, SubsetParameters};
use crate::resolver::Resolved;
use crate::shape::{ReadPlan, Shape, SnapshotFailure};

/// Limit of the rows of a subset, which are one answer.
const SUBSET_BYTES_MAX: usize = 64 << 20;

/// `None` if the table has changed since the definition was checked.
pub(super) async fn answer(
    resolving: &Resolving<'_>,
    resolved: &Resolved,
    shape: &Arc<Shape>,
    parameters: &SubsetParameters,
) -> Option<HttpAnswer> {
    if let Err(plan) = resolving.begun(shape).await {
        return resolving.refusal(resolved, plan).await;
    }
    let sql = match query(resolving, resolved, shape, parameters) {
        Ok(sql) => sql,
        Err(errors) => return Some(answer::invalid(&errors)),
    };
    // All changes after this position are in the stream.
    let end = shape.log().readable_end();
    let body = match rows(resolving, shape, &sql).await {
        Ok(body) => body,
        Err(SnapshotFailure::Refused { text, .. }) => {
            return Some(answer::invalid(&ParameterErrors::in_subset("where", text)));
        }
        Err(failure) => return resolving.refusal(resolved, ReadPlan::Failed(failure)).await,
    };
    let ages = &resolving.server.options.cache;
    let mut answer = answer::ok(super::body::text(body), Cacheability::Revalidate, ages);
    resolving.add_headers(&mut answer, shape, end, false);
    answer.headers_mut().insert(answer::SNAPSHOT, HeaderValue::from_static("true"));
    Some(answer)
}

struct SubsetQuery {
    sql: String,
    columns: Vec<usize>,
}

/// The query: every part of it is made from a parsed text (SH-34).
fn query(
    resolving: &Resolving<'_>,
    resolved: &Resolved,
    shape: &Shape,
    parameters: &SubsetParameters,
) -> Result<SubsetQuery, ParameterErrors> {
    let definition = &shape.definition;
    let table = &definition.form.table;
    let queryable = resolving.request.definition.queryable_columns.as_deref();
    let is_queryable = |name: &str| queryable.is_none_or(|names| names.iter().any(|known| known == name));
    let main = definition.predicate.as_ref().map(|_| resolved.predicate.canonical());
    let subset = match &parameters.predicate {
        None => None,
        Some(text) => {
            let parsed = resolving.server.resolver.parse(text, &parameters.params, definition);
            let parsed = parsed.map_err(|error| ParameterErrors::in_subset("where", error))?;
            let columns = parsed.columns();
            let names = columns.iter().filter_map(|column| table.columns.get(*column));
            if let Some(hidden) = names.map(|column| &column.name).find(|name| !is_queryable(name)) {
                return Err(ParameterErrors::in_subset("where", format!("column {hidden} cannot be queried")));
            }
            Some(parsed)
        }
    };
    let mut tail = String::new();
    if let Some(text) = &parameters.order_by {
        let order = order_by::parse(text, |name| table.position(name).is_some() && is_queryable(name));
        let order = order.map_err(|error| ParameterErrors::in_subset("order_by", error))?;
        // Writing to a String cannot fail.
        let _ = write!(tail, " ORDER BY {order}");
    }
    let mut clause = |name: &str, number: Option<u64>| {
        if let Some(number) = number {
            let _ = write!(tail, " {name} {number}");
        }
    };
    clause("LIMIT", parameters.limit);
    clause("OFFSET", parameters.offset);
    let predicates: Vec<&str> = main.into_iter().chain(subset.as_ref().map(|parsed| parsed.canonical())).collect();
    let (sql, columns) = query_text(&definition.form, &predicates, &tail);
    Ok(SubsetQuery { sql, columns })
}

async fn rows(resolving: &Resolving<'_>, shape: &Shape, query: &SubsetQuery) -> Result<Vec<u8>, SnapshotFailure> {
    let server = resolving.server;
    let unavailable = |text: String| SnapshotFailure::Unavailable(text);
    let busy = |_| unavailable("too many snapshots are waiting".to_owned());
    let limit = server.options.first_row;
    let _turn = tokio::time::timeout(limit, server.snapshot_turns.acquire()).await.map_err(busy)?;
    let client = server.client().await.map_err(|error| unavailable(error.to_string()))?;
    let form = &shape.definition.form;
    let transaction = SnapshotQuery::begin(&client, &shape.definition).await?;
    // A number that JavaScript represents exactly.
    let mark = fastrand::u64(1..1 << 31);
    let extra = format!(",\"snapshot_mark\":{mark}");
    let mut out = b"{\"metadata\":{".to_vec();
    transaction.filter.snapshot.push_fields(&mut out);
    let lsn = transaction.filter.until_lsn;
    out.extend_from_slice(format!(",\"database_lsn\":\"{lsn}\",\"snapshot_mark\":{mark}}},\"data\":[").as_bytes());
    let read = async {
        let mut rows = transaction.rows(&query.sql).await?;
        let mut separator: &[u8] = b"";
        while let Some(row) = rows.next().await? {
            let mut values: Vec<Option<&[u8]>> = vec![None; form.table.columns.len()];
            for (index, column) in query.columns.iter().enumerate() {
                let value = row.try_get(index).map_err(|error| unavailable(error.to_string()))?;
                values[*column] = value.map(str::as_bytes);
            }
            out.extend_from_slice(separator);
            separator = b",";
            form.push_snapshot_row(&mut out, &values, extra.as_bytes());
            if out.len() > SUBSET_BYTES_MAX {
                let text = format!("has more than {SUBSET_BYTES_MAX} bytes of rows; use limit and offset");
                return Err(SnapshotFailure::Refused { field: "subset", text });
            }
        }
        Ok(())
    };
    let slow = |_| unavailable(format!("the query took longer than {limit:?}"));
    tokio::time::timeout(limit, read).await.map_err(slow)??;
    transaction.end().await?;
    client.release();
    out.extend_from_slice(b"]}");
    Ok(out)
}
