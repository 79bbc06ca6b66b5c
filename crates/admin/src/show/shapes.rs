//! SHOW SHAPES: a bounded number of live queries, those with most waiting requests first.

use std::time::SystemTime;

use super::super::table::{ResultTable, TableCell, TableColumn, int8, row, text};
use tidegate_shapes::{ShapeRow, ShapeServer};

/// Short names: a typical row fits in 80 columns, apart from its handle.
pub(super) const COLUMNS: &[TableColumn] = &[
    text("table"),
    text("where"),
    text("state"),
    int8("wait"),
    int8("rows"),
    int8("bytes"),
    int8("idle_s"),
    int8("lag"),
    text("handle"),
];

/// Limit of rows: there may be a million shapes.
pub(crate) const ROWS_MAX: usize = 100;
/// Length of a predicate in the table without a filter.
const PREDICATE_CHARS_MAX: usize = 24;

/// The shapes whose table, predicate or handle contains `filter`, and the number of all that do. Predicates are shortened
/// without a filter.
pub(crate) fn table(server: Option<&ShapeServer>, filter: &str) -> (ResultTable, usize) {
    let Some(server) = server else { return (ResultTable::new(COLUMNS, Vec::new()), 0) };
    let (shapes, count) = server.shape_rows(filter, ROWS_MAX);
    let lag = server.snapshot().totals.slot_lag_bytes;
    let now = SystemTime::now();
    let rows = shapes.into_iter().map(|shape| row_of(shape, lag, now, filter.is_empty())).collect();
    (ResultTable::new(COLUMNS, rows), count)
}

fn row_of(shape: ShapeRow, lag: Option<u64>, now: SystemTime, is_short: bool) -> Vec<TableCell> {
    let idle = shape.changed_at.map(|at| now.duration_since(at).unwrap_or_default().as_secs());
    let number = |value: Option<u64>| value.map_or(TableCell::Null, TableCell::from);
    let predicate = if is_short { shortened(&shape.predicate) } else { shape.predicate };
    row![
        shape.table,
        predicate,
        shape.state,
        u64::from(shape.waiting),
        number(shape.rows),
        shape.log_bytes,
        number(idle),
        number(lag),
        shape.handle,
    ]
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(PREDICATE_CHARS_MAX) {
        None => text.to_owned(),
        Some(_) => text.chars().take(PREDICATE_CHARS_MAX - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_predicates_are_shortened() {
        assert_eq!(shortened("(id = 5)"), "(id = 5)");
        assert_eq!(shortened(&"é".repeat(24)), "é".repeat(24));
        assert_eq!(shortened(&"é".repeat(25)), format!("{}…", "é".repeat(23)));
    }
}
