//! Random client scripts get the same messages from the gateway as from Postgres.
//!
//! A script is a list of [`Op`](script::Op)s that end in reads. It runs against Postgres first, which determines the
//! number of messages of each read, and then against the gateway, which must send the same messages. Between the steps
//! another client connects and disconnects, so that the transactions of the script move between servers. Cancel keys,
//! process ids and reported parameters may differ.
//!
//! `TIDEGATE_CASES` is the number of scripts per mode and version, `TIDEGATE_SEED` the first seed. A failure prints its
//! seed and the smallest script that still fails. The scripts are the same in every run without a seed, so that a
//! failure is caused by a change of the code; `cargo xtask soak` uses new seeds.

mod runner;
mod script;
mod settings;
mod shrink;

use tidegate_testkit::Fixture;

use crate::runner::Runner;
use crate::script::Script;

const CASES: u64 = 150;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn differential(major: u32, mode: &'static str) {
    let fixture = Fixture::new(env!("CARGO_BIN_EXE_tidegate"), major);
    let mut runner = Runner::new(&fixture, mode);
    let seed = number("TIDEGATE_SEED", 1);
    println!("TIDEGATE_SEED={seed}");
    for case in seed..seed + number("TIDEGATE_CASES", CASES) {
        let script = Script::random(case);
        let script = if mode == "statement" { script.without_blocks() } else { script };
        let Some(difference) = runner.difference(&script) else { continue };
        let (script, difference) = shrink::smallest(script, difference, |script| runner.difference(script));
        panic!("TIDEGATE_SEED={case} TIDEGATE_CASES=1, {mode} mode, Postgres {major}:\n{script}{difference}");
    }
}

fn settings(major: u32, mode: &'static str) {
    let new_runner = || settings::SettingsRunner::new(env!("CARGO_BIN_EXE_tidegate"), major, mode);
    let mut runner = new_runner();
    let seed = number("TIDEGATE_SEED", 1);
    println!("TIDEGATE_SEED={seed}");
    for case in seed..seed + number("TIDEGATE_CASES", CASES) {
        let script = settings::Script::random(case);
        let Some(difference) = runner.difference(&script) else { continue };
        let (script, difference) = shrink::smallest(script, difference, |script| new_runner().difference(script));
        panic!("TIDEGATE_SEED={case} TIDEGATE_CASES=1, {mode} mode, Postgres {major}:\n{script}{difference}");
    }
}

#[test]
fn settings_in_transaction_mode_on_14() {
    settings(14, "transaction");
}

#[test]
fn settings_in_transaction_mode_on_18() {
    settings(18, "transaction");
}

#[test]
fn settings_in_session_mode_on_14() {
    settings(14, "session");
}

#[test]
fn settings_in_session_mode_on_18() {
    settings(18, "session");
}

#[test]
fn transaction_mode_on_14() {
    differential(14, "transaction");
}

#[test]
fn transaction_mode_on_18() {
    differential(18, "transaction");
}

#[test]
fn session_mode_on_14() {
    differential(14, "session");
}

#[test]
fn session_mode_on_18() {
    differential(18, "session");
}

#[test]
fn statement_mode_on_14() {
    differential(14, "statement");
}

#[test]
fn statement_mode_on_18() {
    differential(18, "statement");
}
