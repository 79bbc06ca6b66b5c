//! WHERE clauses.

use std::sync::{Arc, LazyLock};

use tidegate_predicate::{Collation, Column, ColumnType, Table, parse};

static TABLE: LazyLock<Arc<Table>> = LazyLock::new(|| {
    let columns = vec![
        Column::new("i", ColumnType::INT4),
        Column::new("n", ColumnType::NUMERIC),
        Column::new("f", ColumnType::FLOAT8),
        Column::new("t", ColumnType::TEXT),
        Column::new("c", ColumnType::BPCHAR),
        Column::new("b", ColumnType::BOOL),
        Column::new("d", ColumnType::DATE),
        Column::new("s", ColumnType::TIMESTAMPTZ),
        Column::new("v", ColumnType::INTERVAL),
        Column::new("a", ColumnType::INT4_ARRAY),
        Column::new("x", ColumnType::TEXT_ARRAY),
    ];
    Arc::new(Table::new("public", "rows", columns, Collation::c()))
});

const ROWS: [[Option<&str>; 11]; 2] = [
    [
        Some("7"),
        Some("1.50"),
        Some("NaN"),
        Some("a%b\\"),
        Some("ab  "),
        Some("t"),
        Some("2020-02-29"),
        Some("2020-02-29 01:02:03.5+00"),
        Some("P1M2DT-3H"),
        Some("[2:3]={1,NULL}"),
        Some("{\"a b\",NULL}"),
    ],
    [None; 11],
];

/// A predicate, a zero byte, the value of `$1`: an accepted predicate has a canonical text that is accepted, is its own
/// canonical text, and has the same values.
pub fn predicate(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let (text, param) = text.split_once('\0').map_or((text, None), |(text, param)| (text, Some(param)));
    let found = match parse(text, &[param], &TABLE) {
        Ok(found) => found,
        Err(error) => {
            assert!(error.offset.is_none_or(|offset| offset <= text.len()), "{error:?}");
            return;
        }
    };
    let again = match parse(found.canonical(), &[], &TABLE) {
        Ok(again) => again,
        Err(error) => panic!("{} of {text}: {error}", found.canonical()),
    };
    assert_eq!(found.canonical(), again.canonical());
    let _ = found.index_conjuncts();
    for row in ROWS {
        let values = row.map(|value| value.map(str::as_bytes));
        assert_eq!(found.evaluate(&values), again.evaluate(&values), "{}", found.canonical());
    }
}
