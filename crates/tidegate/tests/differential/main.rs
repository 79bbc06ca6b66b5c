//! The gateway answers as Postgres does: random scripts of a client, played at both doors, message by message.
//!
//! A script is a list of [`Op`]s that end in reads. It is played at Postgres itself, which tells how many messages each
//! read brings, then at the gateway, which must bring the same ones. Between the steps another client comes and goes, so
//! that the script's transactions wander over the servers. Keys, process ids and reported parameters may differ.
//!
//! `TIDEGATE_CASES` is the number of scripts per mode and version, `TIDEGATE_SEED` the first seed; a failure prints its own
//! and the smallest script that still fails. Without a seed the scripts are the same in every run, so that a change
//! fails for what it changes; `cargo xtask soak` looks for new ones.

mod play;
mod script;
mod settings;
mod shrink;

use tidegate_testkit::Fixture;

use crate::play::Stage;
use crate::script::Script;

const CASES: u64 = 150;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn differential(major: u32, mode: &'static str) {
    let fixture = Fixture::new(env!("CARGO_BIN_EXE_tidegate"), major);
    let mut stage = Stage::new(&fixture, mode);
    let seed = number("TIDEGATE_SEED", 1);
    println!("TIDEGATE_SEED={seed}");
    for case in seed..seed + number("TIDEGATE_CASES", CASES) {
        let script = Script::random(case);
        let script = if mode == "statement" { script.without_blocks() } else { script };
        let Some(difference) = stage.difference(&script) else { continue };
        let (script, difference) = shrink::smallest(script, difference, |script| stage.difference(script));
        panic!("TIDEGATE_SEED={case} TIDEGATE_CASES=1, {mode} mode, Postgres {major}:\n{script}{difference}");
    }
}

fn settings(major: u32, mode: &'static str) {
    let new_stage = || settings::Stage::new(env!("CARGO_BIN_EXE_tidegate"), major, mode);
    let mut stage = new_stage();
    let seed = number("TIDEGATE_SEED", 1);
    println!("TIDEGATE_SEED={seed}");
    for case in seed..seed + number("TIDEGATE_CASES", CASES) {
        let script = settings::Script::random(case);
        let Some(difference) = stage.difference(&script) else { continue };
        let (script, difference) = shrink::smallest(script, difference, |script| new_stage().difference(script));
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
