//! The router finds what evaluating every predicate finds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_predicate::{Collation, Column, ColumnType, EvalError, Matches, Predicate, Router, Table, parse};

fn table() -> Arc<Table> {
    let columns = vec![
        Column::new("i", ColumnType::INT4),
        Column::new("t", ColumnType::TEXT),
        Column::new("c", ColumnType::BPCHAR),
        Column::new("n", ColumnType::NUMERIC),
        Column::new("f", ColumnType::FLOAT8),
        Column::new("b", ColumnType::BOOL),
    ];
    Arc::new(Table::new("public", "rows", columns, Collation::c()))
}

type Row = [Option<String>; 6];

fn values(row: &Row) -> [Option<&[u8]>; 6] {
    std::array::from_fn(|at| row[at].as_ref().map(String::as_bytes))
}

fn random_row(random: &mut fastrand::Rng) -> Row {
    let texts = [
        random.i32(0..6).to_string(),
        ["a", "b", "a "][random.usize(..3)].to_owned(),
        ["a   ", "b   ", "    "][random.usize(..3)].to_owned(),
        ["1", "1.0", "2.50", "NaN"][random.usize(..4)].to_owned(),
        ["0", "-0", "1", "NaN"][random.usize(..4)].to_owned(),
        ["t", "f"][random.usize(..2)].to_owned(),
    ];
    texts.map(|text| (random.u8(..6) > 0).then_some(text))
}

fn random_predicate(random: &mut fastrand::Rng) -> String {
    let mut part = || {
        let (number, other) = (random.i32(0..6), random.i32(0..6));
        match random.u8(..16) {
            0 | 1 => format!("i = {number}"),
            2 => format!("i IN ({number}, {other}, NULL)"),
            3 => format!("i = ANY ('{{{number},{other}}}')"),
            4 => format!("'{}' = t", ["a", "b", "a "][random.usize(..3)]),
            5 => format!("c = '{}'", ["a", "b", ""][random.usize(..3)]),
            6 => format!("n = {}", ["1", "2.5", "'NaN'"][random.usize(..3)]),
            7 => format!("f = {}", ["0", "1", "'NaN'"][random.usize(..3)]),
            8 => "b".to_owned(),
            9 => "NOT b".to_owned(),
            10 => format!("i > {number}"),
            11 => format!("(i = {number} OR i = {other})"),
            12 => format!("(i = {number} OR t = 'a')"),
            13 => "t LIKE '%a'".to_owned(),
            14 => format!("6 / (i - {number}) = 1"),
            _ => "n IS NULL".to_owned(),
        }
    };
    let parts: Vec<String> = (0..3).map(|_| part()).collect();
    parts[..random.usize(1..=3)].join(" AND ")
}

/// Evaluates each predicate on a row, without a router.
fn evaluate(predicates: &BTreeMap<u32, Arc<Predicate>>, row: Option<&Row>) -> BTreeMap<u32, Result<bool, EvalError>> {
    let one = |predicate: &Predicate| {
        row.map_or(Ok(false), |row| predicate.evaluate(&values(row)).map(|value| value == Some(true)))
    };
    predicates.iter().map(|(shape, predicate)| (*shape, one(predicate))).collect()
}

/// SH-52, SH-54: the index finds the shapes of a change, while shapes come and go.
#[test]
fn router_agrees_with_every_predicate() {
    let seed = std::env::var("ROUTER_SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
    println!("ROUTER_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let table = table();
    let mut router = Router::new(Arc::clone(&table));
    let mut shapes: BTreeMap<u32, Arc<Predicate>> = BTreeMap::new();
    let mut matches = Matches::default();
    for step in 0..6_000 {
        let shape = random.u32(..150);
        if random.u8(..4) == 0 {
            assert_eq!(router.remove(shape), shapes.remove(&shape).is_some());
        } else {
            let text = random_predicate(&mut random);
            let predicate = Arc::new(parse(&text, &[], &table).unwrap_or_else(|error| panic!("{text}: {error}")));
            router.insert(shape, &predicate);
            shapes.insert(shape, predicate);
        }
        assert_eq!(router.len(), shapes.len());
        let different: BTreeSet<&str> = shapes.values().map(|predicate| predicate.canonical()).collect();
        assert_eq!(router.predicate_count(), different.len());
        let rows = [random_row(&mut random), random_row(&mut random)];
        let old = (random.u8(..3) > 0).then_some(&rows[0]);
        let new = (old.is_none() || random.u8(..3) > 0).then_some(&rows[1]);
        router.route(
            old.map(values).as_ref().map(|row| &row[..]),
            new.map(values).as_ref().map(|row| &row[..]),
            &mut matches,
        );
        let found: BTreeMap<u32, (bool, bool)> =
            matches.shapes.iter().map(|hit| (hit.shape, (hit.old, hit.new))).collect();
        assert_eq!(found.len(), matches.shapes.len(), "a shape is found once");
        let failed: BTreeSet<u32> = matches.failed.iter().map(|(shape, _)| *shape).collect();
        let (before, after) = (evaluate(&shapes, old), evaluate(&shapes, new));
        for (shape, predicate) in &shapes {
            let hit = found.get(shape).copied().unwrap_or_default();
            let context = || format!("step {step}, shape {shape}: {} on {old:?}, {new:?}", predicate.canonical());
            match (&before[shape], &after[shape]) {
                (Ok(old), Ok(new)) => assert!(hit == (*old, *new) && !failed.contains(shape), "{}: {hit:?}", context()),
                // A condition that the index answers may be false before the part that fails is reached.
                _ => assert!(failed.contains(shape) || hit == (false, false), "{}: {hit:?}", context()),
            }
        }
    }
}

#[test]
fn equal_predicates_are_held_once() {
    let table = table();
    let mut router = Router::new(Arc::clone(&table));
    for (shape, text) in ["i > 1 AND b", "(i > '1') AND b", "rows.i > 1::int AND rows.b"].into_iter().enumerate() {
        router.insert(shape, &Arc::new(parse(text, &[], &table).unwrap()));
    }
    router.insert(3, &Arc::new(Predicate::always_true(&table)));
    assert_eq!((router.len(), router.predicate_count(), router.scanned_count()), (4, 2, 1));
}

#[test]
fn bad_value_fails_the_shapes_that_read_it() {
    let table = table();
    let mut router = Router::new(Arc::clone(&table));
    router.insert(1, &Arc::new(parse("i = 1", &[], &table).unwrap()));
    router.insert(2, &Arc::new(parse("t = 'a'", &[], &table).unwrap()));
    let row: [Option<&[u8]>; 6] = [Some(b"x"), Some(b"a"), None, None, None, None];
    let mut matches = Matches::default();
    router.route(None, Some(&row), &mut matches);
    assert_eq!(matches.shapes.iter().map(|hit| hit.shape).collect::<Vec<_>>(), [2]);
    assert_eq!(matches.failed, [(1, EvalError::BadRow { column: 0, type_name: "int4" })]);
}
