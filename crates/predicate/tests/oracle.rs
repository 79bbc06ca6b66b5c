//! Random predicates on random rows have the value that Postgres returns, or fail where Postgres fails.
//!
//! `ORACLE_ROUNDS` is the number of batches of 100 predicates, `ORACLE_SEED` repeats a run. A failure is shrunk to a smaller
//! predicate before it is reported.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

#[path = "oracle/expressions.rs"]
mod expressions;
#[path = "oracle/server.rs"]
mod server;

use std::sync::Arc;

use expressions::{Expression, Generator};
use server::{Answer, Server};
use tidegate_predicate::{EvalError, PredicateErrorKind, Table, parse};

const BATCH: usize = 100;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Our value for each row, in the form of the server's.
fn evaluate(text: &str, table: &Arc<Table>, rows: &[Vec<Option<String>>]) -> Result<Vec<Answer>, PredicateErrorKind> {
    let predicate = parse(text, &[], table).map_err(|error| error.kind)?;
    let one = |row: &Vec<Option<String>>| {
        let values: Vec<Option<&[u8]>> = row.iter().map(|value| value.as_ref().map(|value| value.as_bytes())).collect();
        match predicate.evaluate(&values) {
            Ok(value) => Answer::Value(value),
            Err(EvalError::Unsupported(_) | EvalError::UnknownForm { .. }) => Answer::Unknown,
            Err(error @ (EvalError::BadRow { .. } | EvalError::ShortRow { .. })) => panic!("{text}: {error}"),
            Err(_) => Answer::Fails,
        }
    };
    Ok(rows.iter().map(one).collect())
}

/// The difference between our answers and the server's, if there is one.
fn difference(text: &str, server: &Server, expected: &[Answer]) -> Option<String> {
    let describe = || {
        parse(text, &[], server.table()).map_or_else(|error| error.to_string(), |found| found.canonical().to_owned())
    };
    match evaluate(text, server.table(), server.rows()) {
        Err(PredicateErrorKind::Unsupported) => None,
        Err(kind) if expected.iter().all(|answer| *answer == Answer::Fails) => {
            (kind == PredicateErrorKind::TooComplex).then(&describe)
        }
        Err(kind) => Some(format!("refused as {kind:?}: {}", describe())),
        Ok(answers) => {
            let differs = |(ours, theirs): (&Answer, &Answer)| *ours != Answer::Unknown && ours != theirs;
            let row = answers.iter().zip(expected).position(differs)?;
            Some(format!("row {row}: {:?}, the server has {:?}; read as {}", answers[row], expected[row], describe()))
        }
    }
}

/// Looks for a smaller expression that differs as well.
fn shrink(mut failing: Expression, server: &Server) -> (String, String) {
    loop {
        let candidates = failing.smaller();
        let texts: Vec<String> = candidates.iter().map(Expression::text).collect();
        let mut found = None;
        for (chunk, start) in texts.chunks(50).zip((0..).step_by(50)) {
            let answers = server.ask(chunk);
            found = (0..chunk.len())
                .find(|at| difference(&chunk[*at], server, &answers[*at]).is_some())
                .map(|at| start + at);
            if found.is_some() {
                break;
            }
        }
        match found {
            Some(at) => failing = candidates.into_iter().nth(at).unwrap(),
            None => {
                let text = failing.text();
                let answers = server.ask(std::slice::from_ref(&text));
                let reason = difference(&text, server, &answers[0]).unwrap_or_default();
                return (text, reason);
            }
        }
    }
}

fn compare(major: u8, rounds: u64, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let server = Server::start(major, &mut random);
    let mut generator = Generator::new(random);
    let (mut evaluated, mut refused) = (0_u64, 0_u64);
    let mut reasons = std::collections::BTreeMap::new();
    let mut failures = Vec::new();
    for _ in 0..rounds {
        let batch: Vec<Expression> = (0..BATCH).map(|_| generator.predicate()).collect();
        let texts: Vec<String> = batch.iter().map(Expression::text).collect();
        let answers = server.ask(&texts);
        let mut canonical = Vec::new();
        for ((expression, text), expected) in batch.into_iter().zip(&texts).zip(&answers) {
            match parse(text, &[], server.table()) {
                Ok(predicate) => {
                    evaluated += 1;
                    canonical.push((predicate.canonical().to_owned(), expected.clone()));
                }
                Err(error) if error.kind == PredicateErrorKind::Unsupported => {
                    refused += 1;
                    *reasons.entry(error.message).or_insert(0) += 1;
                }
                Err(_) => {}
            }
            if difference(text, &server, expected).is_some() && failures.len() < 12 {
                failures.push(shrink(expression, &server));
            }
        }
        check_canonical(&server, &canonical, &mut failures);
        if failures.len() >= 12 {
            break;
        }
    }
    failures.sort();
    failures.dedup();
    let report: Vec<String> = failures.iter().map(|(text, reason)| format!("{text}\n    {reason}")).collect();
    if std::env::var_os("ORACLE_REFUSED").is_some() {
        println!("{reasons:#?}");
    }
    println!("Postgres {major}, ORACLE_SEED={seed}: {evaluated} predicates evaluated, {refused} refused");
    assert!(
        failures.is_empty(),
        "Postgres {major}, ORACLE_SEED={seed}, {} differences:\n{}",
        failures.len(),
        report.join("\n")
    );
    assert!(evaluated > refused, "most predicates are evaluated: {evaluated} are, {refused} are refused");
}

/// Canonical text is a fixed point, and the server reads it with the same result.
fn check_canonical(server: &Server, canonical: &[(String, Vec<Answer>)], failures: &mut Vec<(String, String)>) {
    let texts: Vec<String> = canonical.iter().map(|(text, _)| text.clone()).collect();
    for ((text, expected), answers) in canonical.iter().zip(server.ask(&texts)) {
        let again = parse(text, &[], server.table()).map(|predicate| predicate.canonical().to_owned());
        if again.as_deref() != Ok(text) {
            failures.push((text.clone(), format!("canonical text is read as {again:?}")));
        } else if answers != *expected {
            failures.push((
                text.clone(),
                format!("the server has for canonical text {answers:?}\n    and for the original {expected:?}"),
            ));
        }
    }
}

/// SH-51, SH-52 and the differences between Electric and Postgres that `docs/` lists.
#[test]
fn predicates_have_the_value_of_postgres() {
    let seed = number("ORACLE_SEED").unwrap_or_else(|| fastrand::u64(..));
    let rounds = number("ORACLE_ROUNDS").unwrap_or(10);
    // Printed when the test fails.
    println!("ORACLE_SEED={seed}");
    for major in [18, 14] {
        compare(major, rounds, seed);
    }
}
