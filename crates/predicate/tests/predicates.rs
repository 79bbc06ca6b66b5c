//! Parsing, errors, canonical text and values, without a server.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::sync::Arc;

use tidegate_predicate::{
    Collation, Column, ColumnType, EvalError, Predicate, PredicateError, PredicateErrorKind, Table, parse, parse_with,
    subquery_tables,
};

fn table_with(collation: Collation) -> Arc<Table> {
    let columns = vec![
        Column::new("id", ColumnType::INT4),
        Column::new("Name", ColumnType::TEXT),
        Column::new("price", ColumnType::NUMERIC),
        Column::new("tags", ColumnType::TEXT_ARRAY),
        Column::new("done", ColumnType::BOOL),
        Column::new("at", ColumnType::TIMESTAMPTZ),
        Column::new("mood", ColumnType::enumeration(90_000)),
        Column::new("extra", ColumnType::from_oid(3802)),
    ];
    Arc::new(Table::new("public", "items", columns, collation))
}

fn table() -> Arc<Table> {
    table_with(Collation::c())
}

const ROW: [Option<&[u8]>; 8] = [
    Some(b"7"),
    Some(b"blue"),
    Some(b"1.50"),
    Some(b"{a,NULL}"),
    Some(b"t"),
    Some(b"2020-02-29 12:00:00+00"),
    Some(b"happy"),
    Some(b"{}"),
];

fn value(text: &str) -> Option<bool> {
    parse(text, &[], &table()).unwrap_or_else(|error| panic!("{text}: {error}")).evaluate(&ROW).unwrap()
}

fn error(text: &str) -> (PredicateErrorKind, String) {
    let error = parse(text, &[], &table()).expect_err(text);
    (error.kind, error.to_string())
}

fn canonical(text: &str, params: &[Option<&str>]) -> String {
    parse(text, params, &table()).unwrap_or_else(|error| panic!("{text}: {error}")).canonical().to_owned()
}

/// The examples of the documentation.
#[test]
fn documented_predicates_are_supported() {
    const DOCS: &str = include_str!("../../../docs/src/guide/live-queries.md");
    let columns = vec![
        Column::new("id", ColumnType::INT4),
        Column::new("name", ColumnType::TEXT),
        Column::new("price", ColumnType::NUMERIC),
        Column::new("tags", ColumnType::TEXT_ARRAY),
        Column::new("done", ColumnType::BOOL),
        Column::new("created", ColumnType::TIMESTAMPTZ),
        Column::new("mood", ColumnType::enumeration(90_000)),
        Column::new("extra", ColumnType::from_oid(3802)),
    ];
    let table = Arc::new(Table::new("public", "items", columns, Collation::c()));
    let section = DOCS.split("## Predicates\n").nth(1).unwrap();
    let examples: Vec<_> = section.split("```").nth(1).unwrap().lines().skip(1).collect();
    assert!(examples.len() > 5, "{examples:?}");
    for example in examples {
        let parsed = parse(example, &[Some("x")][..example.matches("$1").count()], &table);
        assert!(parsed.is_ok(), "{example}: {:?}", parsed.err());
    }
    for refused in [
        "created > now()",
        "extra ->> 'a' = 'b'",
        "name ~ 'a'",
        "name SIMILAR TO 'a'",
        "CASE WHEN done THEN true END",
        "extract(year from created) = 2026",
        "(id, name) = (1, 'a')",
        "name = 'a' COLLATE \"C\"",
        "created AT TIME ZONE 'Asia/Tokyo' > '2026-01-01'",
    ] {
        assert!(parse(refused, &[], &table).is_err(), "{refused}");
    }
}

#[test]
fn values_follow_three_valued_logic() {
    for (text, expected) in [
        ("id = 7 AND done", Some(true)),
        ("id = 8 OR NULL", None),
        ("id = 8 AND NULL", Some(false)),
        ("id NOT IN (1, NULL)", None),
        ("'b' = ANY (tags)", None),
        ("'a' = ANY (items.tags)", Some(true)),
        ("public.items.\"Name\" LIKE 'bl%'", Some(true)),
        ("price * 2 = 3", Some(true)),
        ("at < '2020-03-01' AND at + interval '1 day' >= timestamptz '2020-03-01 12:00:00+00'", Some(true)),
        ("mood::text = 'happy'", Some(true)),
        ("extra IS NOT NULL", Some(true)),
        ("NOT id = 7 IS NULL", Some(true)),
        ("- 2 ^ 2 = 4 IS NULL", None),
    ] {
        if text.contains('^') {
            assert_eq!(error(text).0, PredicateErrorKind::Unsupported);
        } else {
            assert_eq!(value(text), expected, "{text}");
        }
    }
}

/// The text that a client's suite compares, and others in its form.
#[test]
fn errors_name_their_location() {
    use PredicateErrorKind::{
        Ambiguous, BadLiteral, BadParameter, ConstantFails, Syntax, Undefined, Unsupported, WrongType,
    };
    for (text, kind, message) in [
        ("1 x 1", Syntax, "At location 17: syntax error at or near \"x\""),
        ("id = 1; DROP TABLE items", Syntax, "At location 21: syntax error at or near \";\""),
        ("id =", Syntax, "At location 19: syntax error at end of input"),
        ("1 < id < 3", Syntax, "At location 22: syntax error at or near \"<\""),
        ("id = 1 AND name = 'x'", Undefined, "At location 11: unknown reference name"),
        ("id = 'x'", BadLiteral, "At location 5: invalid input syntax for type int4: \"x\""),
        ("id = $1", BadParameter, "At location 5: parameter $1 was not provided"),
        ("id + 1", WrongType, "At location 3: argument of WHERE must be type boolean, not type integer"),
        ("id = 1 / 0", ConstantFails, "At location 7: division by zero"),
        ("id LIKE 'x'", Undefined, "At location 3: operator does not exist: integer ~~ unknown"),
        ("'1' + '2' = 3", Ambiguous, "At location 4: operator is not unique: unknown + unknown"),
        ("id IN (SELECT 1)", Unsupported, "At location 14: an expression in the list of a subquery is not supported"),
        ("extra @> extra", Unsupported, "At location 6: operator jsonb @> jsonb is not supported"),
        ("now() > at", Unsupported, "At location 0: function now() does not exist or is not supported"),
        (
            "at > 'yesterday'",
            Unsupported,
            "At location 5: this form of a value of type timestamptz is not supported: \"yesterday\"",
        ),
    ] {
        assert_eq!(error(text), (kind, message.to_owned()), "{text}");
    }
}

#[test]
fn unreached_constant_errors_do_not_occur() {
    assert_eq!(value("false AND 1 / 0 = 1 OR id = 7"), Some(true));
    assert_eq!(value("coalesce(1, 1 / 0) = 1"), Some(true));
    assert_eq!(error("id = 7 AND 1 / 0 = 1").0, PredicateErrorKind::ConstantFails);
}

#[test]
fn errors_of_rows_are_returned() {
    let predicate = parse("1 / (id - 7) = 1", &[], &table()).unwrap();
    assert_eq!(predicate.evaluate(&ROW), Err(EvalError::DivisionByZero));
    assert_eq!(predicate.evaluate(&[]), Err(EvalError::ShortRow { got: 0, column: 0 }));
    let mut row = ROW;
    row[0] = Some(b"x");
    assert_eq!(predicate.evaluate(&row), Err(EvalError::BadRow { column: 0, type_name: "int4" }));
}

#[test]
fn spellings_have_one_canonical_text() {
    let expected = "((\"id\" = '7'::int4) AND (\"Name\" = 'x''y'::text))";
    assert_eq!(canonical("id = 7 AND \"Name\" = 'x''y'", &[]), expected);
    assert_eq!(canonical("(items.id=$2) and (public.items.\"Name\" = $1)", &[Some("x'y"), Some(" 7")]), expected);
    let unknown = "((\"id\" = '1'::int4) OR (\"id\" > '2'::int4) OR NULL::bool)";
    assert_eq!(canonical("(id = 1 OR NULL) OR id > 2", &[]), unknown);
    assert_eq!(canonical("id = CAST('3' AS int) + 4 AND \"Name\" = E'x\\'y' AND NOT false", &[]), expected);
}

#[test]
fn parameter_with_a_zero_byte_is_refused() {
    let error = parse("\"Name\" <> 'x' || $1", &[Some("a\0b")], &table()).unwrap_err();
    assert_eq!(error.kind, PredicateErrorKind::BadParameter);
    assert!(error.message.contains("0x00"), "{error}");
}

#[test]
fn parameter_with_two_types_is_refused() {
    let error = parse("id = $1 OR \"Name\" = $1", &[Some("1")], &table()).unwrap_err();
    assert_eq!((error.kind, error.offset), (PredicateErrorKind::BadParameter, Some(20)));
    assert_eq!(
        canonical("id = $1 OR id + $1 = 2", &[Some("1")]),
        "((\"id\" = '1'::int4) OR ((\"id\" + '1'::int4) = '2'::int4))"
    );
}

#[test]
fn collations_limit_operators_on_texts() {
    let german = table_with(Collation::language("de_DE.utf8"));
    let refused = |text: &str, table: &Arc<Table>| parse(text, &[], table).expect_err(text).message;
    assert!(parse("\"Name\" = 'x' AND \"Name\" LIKE 'x%'", &[], &german).is_ok());
    for text in [
        "\"Name\" < 'x'",
        "lower(\"Name\") = 'x'",
        "\"Name\" ILIKE 'x'",
        "greatest(\"Name\", 'x') = 'x'",
        "tags < '{}'",
    ] {
        assert!(refused(text, &german).contains("de_DE.utf8"), "{text}");
    }
    let code_points = table_with(Collation::code_points("C.UTF-8"));
    assert!(parse("\"Name\" < 'x'", &[], &code_points).is_ok());
    assert!(refused("upper(\"Name\") = 'x'", &code_points).contains("C.UTF-8"));
    let loose = table_with(Collation::nondeterministic("loose"));
    for text in ["\"Name\" = 'x'", "tags = '{}'", "tags @> '{x}'", "'x' = ANY (tags)", "\"Name\" IN ('x', 'y')"] {
        assert!(refused(text, &loose).contains("loose"), "{text}");
    }
}

#[test]
fn hostile_texts_are_refused_in_bounds() {
    let long = |part: &str, count: usize| part.repeat(count);
    for text in [
        long("(", 500_000),
        long("NOT ", 200_000),
        long("- ", 400_000),
        long("ARRAY[", 100_000),
        format!("id = 1{}", long("::int", 100_000)),
        format!("id{} = 1", long(" + 1", 100_000)),
        format!("{}id", long("id BETWEEN 1 AND 2 = ", 1)),
        format!("{}done{}", long("(", 150), long(" BETWEEN false AND true)", 150)),
        format!("done{}", long(" IS NULL", 100_000)),
        format!("id = {}", long("9", 900_000)),
        long("x", 2 << 20),
        long("/*", 500_000),
        format!("$${}", long("a", 900_000)),
        format!("id = ANY ('{}", long("{", 900_000)),
    ] {
        assert!(parse(&text, &[], &table()).is_err(), "{}", &text[..20]);
    }
    let list: Vec<String> = (0..50_000).map(|number| number.to_string()).collect();
    assert_eq!(value(&format!("id IN ({})", list.join(","))), Some(true));
    let chain: Vec<String> = (0..20_000).map(|number| format!("id = {number}")).collect();
    assert_eq!(value(&chain.join(" OR ")), Some(true));
    assert_eq!(value(&format!("\"Name\" LIKE '{}'", long("%b", 100_000))), Some(false));
}

#[test]
fn columns_are_listed_once() {
    let predicate = parse("price > 1 AND id = 1 OR id = 2", &[], &table()).unwrap();
    assert_eq!(predicate.columns(), [0, 2]);
}

#[test]
fn conjuncts_are_conditions_of_one_column() {
    let columns = |text: &str| {
        let found = parse(text, &[], &table()).unwrap().index_conjuncts();
        found.into_iter().map(|conjunct| (conjunct.column, conjunct.keys.len())).collect::<Vec<_>>()
    };
    assert_eq!(columns("id = 1"), [(0, 1)]);
    assert_eq!(columns("1::int8 = id AND \"Name\" IN ('a', 'b', 'a') AND price > 1"), [(0, 1), (1, 2)]);
    assert_eq!(columns("id = 1 OR id IN (2, 3)"), [(0, 3)]);
    assert_eq!(columns("id = ANY ('{1,NULL}')"), [(0, 1)]);
    assert_eq!(columns("done AND NOT done"), [(4, 1), (4, 1)]);
    assert_eq!(columns("id = 1 OR price = 2"), []);
    assert_eq!(columns("id <> 1"), []);
    assert_eq!(columns("price = 1.50"), columns("price = 1.5"));
}

fn with_owners(text: &str, params: &[Option<&str>]) -> Result<Predicate, PredicateError> {
    let columns = [
        ("id", ColumnType::INT8),
        ("label", ColumnType::VARCHAR),
        ("area", ColumnType::INT4),
        ("extra", ColumnType::from_oid(3802)),
    ];
    let columns = columns.map(|(name, oid)| Column::new(name, oid)).to_vec();
    let owners = Arc::new(Table::new("public", "owners", columns, Collation::c()));
    parse_with(text, params, &table(), &[owners])
}

#[test]
fn subqueries_have_one_canonical_text() {
    let expected = r#"("id" IN (SELECT "id" FROM ONLY "public"."owners" WHERE ("area" > '5'::int4)))"#;
    for text in [
        "id IN (SELECT id FROM owners WHERE area > $1)",
        "items.id in (select o.id from public.owners as o where o.area > $1)",
        "(id IN (SELECT owners.id FROM ONLY owners WHERE ($1 < area)))",
        expected,
    ] {
        let found = with_owners(text, &[Some("5")]).unwrap_or_else(|error| panic!("{text}: {error}"));
        if !text.contains("$1 <") {
            assert_eq!(found.canonical(), expected, "{text}");
        }
        let again = with_owners(found.canonical(), &[]).unwrap();
        assert_eq!(again.canonical(), found.canonical());
        assert_eq!((found.subqueries().len(), found.columns()), (1, vec![0]));
        assert_eq!(found.subqueries()[0].columns(), [0, 2]);
    }
    let nested = "id NOT IN (SELECT id FROM owners WHERE area IN (SELECT area FROM owners WHERE label = 'x')) AND done";
    let nested = with_owners(nested, &[]).unwrap();
    assert_eq!((nested.subqueries().len(), nested.candidates().canonical()), (2, "\"done\""));
    assert_eq!(subquery_tables("a IN (SELECT b FROM \"X\".y)").unwrap(), [vec!["X".into(), "y".into()]]);
    assert!(subquery_tables("selected = 'SELECT a FROM b'").unwrap().is_empty());
}

#[test]
fn value_depends_on_the_result_of_the_subquery() {
    let found = with_owners("NOT (id IN (SELECT id FROM owners WHERE area = 1)) AND done", &[]).unwrap();
    let subquery = &found.subqueries()[0];
    let mut sets = vec![subquery.empty_set()];
    assert_eq!(found.evaluate_with(&ROW, &sets).unwrap(), Some(true));
    let owner: [Option<&[u8]>; 4] = [Some(b"7"), None, Some(b"1"), None];
    assert!(subquery.has(&owner, &sets).unwrap());
    sets[0].add(owner[0], 1).unwrap();
    assert_eq!(found.evaluate_with(&ROW, &sets).unwrap(), Some(false));
    assert!(found.evaluate(&ROW).is_err(), "the result is not known");
    assert_eq!(found.candidates().evaluate(&ROW).unwrap(), Some(true));
}

#[test]
fn unsupported_subqueries_are_named() {
    for (text, part) in [
        ("id IN (SELECT id, area FROM owners)", "several columns"),
        ("id IN (SELECT count(*) FROM owners)", "expression in the list"),
        ("id IN (SELECT area + 1 FROM owners)", "expression in the list"),
        ("id IN (SELECT 1)", "expression in the list"),
        ("id IN (SELECT * FROM owners)", "expression in the list"),
        ("id IN (SELECT DISTINCT id FROM owners)", "DISTINCT"),
        ("id IN (SELECT id FROM owners ORDER BY id)", "ORDER"),
        ("id IN (SELECT id FROM owners LIMIT 1)", "LIMIT"),
        ("id IN (SELECT id FROM owners UNION SELECT 1)", "UNION"),
        ("id IN (SELECT o.id FROM owners o JOIN owners p ON true)", "join"),
        ("id IN (SELECT o.id FROM owners o, owners p)", "join"),
        ("id IN (SELECT id FROM owners WHERE area = price)", "outer query"),
        ("id IN (SELECT id FROM owners WHERE items.id = area)", "outer query"),
        ("id + 1 IN (SELECT id FROM owners)", "only a column"),
        ("(id, done) IN (SELECT id FROM owners)", "row"),
        ("\"Name\" IN (SELECT id FROM owners)", "types text and bigint"),
        ("extra IN (SELECT extra FROM owners)", "jsonb"),
        ("id = (SELECT id FROM owners)", "subquery"),
        ("id = ANY (SELECT id FROM owners)", "subquery"),
        ("EXISTS (SELECT id FROM owners)", "EXISTS"),
        ("id IN (VALUES (1))", "subquery"),
    ] {
        let error = with_owners(text, &[]).expect_err(text);
        assert_eq!(error.kind, PredicateErrorKind::Unsupported, "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
    for text in
        ["id IN (SELECT id FROM others)", "id IN (SELECT nope FROM owners)", "id IN (SELECT owners.id FROM owners o)"]
    {
        let error = with_owners(text, &[]).expect_err(text);
        assert_eq!(error.kind, PredicateErrorKind::Undefined, "{text}: {error}");
    }
    assert!(with_owners("\"Name\" IN (SELECT label FROM owners)", &[]).is_ok(), "text and varchar");
}
