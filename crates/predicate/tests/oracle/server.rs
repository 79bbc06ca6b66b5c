//! A Postgres with one table of random rows.

use std::sync::Arc;

use fastrand::Rng;
use tidegate_predicate::{Collation, Column, ColumnType, Table};
use tidegate_sandbox::{Major, Postgres};

use crate::expressions::{TYPES, literal};

const ROWS: usize = 40;

/// The value of a predicate for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Value(Option<bool>),
    Fails,
    /// Refused when it is evaluated.
    Unknown,
}

pub(crate) struct Server {
    postgres: Postgres,
    table: Arc<Table>,
    rows: Vec<Vec<Option<String>>>,
}

/// Evaluates each predicate on all rows together, and row by row if that fails.
const FUNCTION: &str = r"
CREATE FUNCTION oracle(predicates text[]) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    predicate text; result text; answer text; row_pk int;
BEGIN
    FOREACH predicate IN ARRAY predicates LOOP
        BEGIN
            EXECUTE 'SELECT string_agg(CASE v WHEN true THEN ''t'' WHEN false THEN ''f'' ELSE ''n'' END, '''' ORDER BY pk)'
                || ' FROM (SELECT pk, (' || predicate || E'\n) AS v FROM rows OFFSET 0) AS s' INTO result;
        EXCEPTION WHEN others THEN
            result := '';
            FOR row_pk IN SELECT pk FROM rows ORDER BY pk LOOP
                BEGIN
                    EXECUTE 'SELECT CASE v WHEN true THEN ''t'' WHEN false THEN ''f'' ELSE ''n'' END FROM (SELECT ('
                        || predicate || E'\n) AS v FROM rows WHERE pk = ' || row_pk || ' OFFSET 0) AS s' INTO answer;
                EXCEPTION WHEN others THEN
                    answer := 'e';
                END;
                result := result || answer;
            END LOOP;
        END;
        RETURN NEXT result;
    END LOOP;
END $$";

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

impl Server {
    pub(crate) fn start(major: u8, random: &mut Rng) -> Self {
        let settings = [
            ("timezone", "UTC"),
            ("datestyle", "ISO, DMY"),
            ("intervalstyle", "iso_8601"),
            ("plan_cache_mode", "auto"),
        ];
        let mut builder = Postgres::builder().version(Major(major));
        for (name, value) in settings {
            builder = builder.setting(name, value);
        }
        let postgres = builder.start().unwrap();
        postgres
            .simple_query("CREATE DATABASE oracle TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'")
            .unwrap();
        let columns: Vec<String> =
            TYPES.iter().flat_map(|(name, sql, _)| [format!("{name}_a {sql}"), format!("{name}_b {sql}")]).collect();
        let run = |sql: &str| postgres.simple_query_in("oracle", sql).unwrap();
        run(&format!("CREATE TABLE rows (pk int PRIMARY KEY, {})", columns.join(", ")));
        for pk in 0..ROWS {
            let value = |random: &mut Rng, name: &str| {
                if random.u8(..5) == 0 { "NULL".to_owned() } else { quoted(&literal(random, name)) }
            };
            let values: Vec<String> =
                TYPES.iter().flat_map(|(name, ..)| [value(random, name), value(random, name)]).collect();
            run(&format!("INSERT INTO rows VALUES ({pk}, {})", values.join(", ")));
        }
        run(FUNCTION);
        let rows = run("SELECT * FROM rows ORDER BY pk");
        Self { postgres, table: table(), rows }
    }

    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    pub(crate) fn rows(&self) -> &[Vec<Option<String>>] {
        &self.rows
    }

    /// The answers for all rows, for each predicate.
    pub(crate) fn ask(&self, predicates: &[String]) -> Vec<Vec<Answer>> {
        if predicates.is_empty() {
            return Vec::new();
        }
        let list: Vec<String> = predicates.iter().map(|predicate| quoted(predicate)).collect();
        let rows = self
            .postgres
            .simple_query_in("oracle", &format!("SELECT * FROM oracle(ARRAY[{}])", list.join(",")))
            .unwrap();
        let answer = |letter| match letter {
            't' => Answer::Value(Some(true)),
            'f' => Answer::Value(Some(false)),
            'n' => Answer::Value(None),
            _ => Answer::Fails,
        };
        rows.iter().map(|row| row[0].as_ref().unwrap().chars().map(answer).collect()).collect()
    }
}

pub(crate) fn table() -> Arc<Table> {
    let mut columns = vec![Column::new("pk", ColumnType::INT4)];
    for (name, _, oid) in TYPES {
        columns.push(Column::new(&format!("{name}_a"), ColumnType::from_oid(oid)));
        columns.push(Column::new(&format!("{name}_b"), ColumnType::from_oid(oid)));
    }
    Arc::new(Table::new("public", "rows", columns, Collation::c()))
}
