//! A bounded run on a stable compiler: the corpus, then mutations of it from a printed seed.
//!
//! `FUZZ_ROUNDS` is the number of mutations per target, `FUZZ_SEED` repeats a run.

use std::path::{Path, PathBuf};

use tidegate_fuzz::{Run, TARGETS};

/// Detects common faults; `cargo xtask fuzz` runs ten times as many.
const ROUNDS: u64 = 2_000;
const LEN_MAX: usize = 2048;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = std::fs::read_dir(&folder).expect("each target has a corpus");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).expect("the corpus can be read")).collect()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("it is a number"))
}

fn replay(target: &str) {
    let run: Run = TARGETS.iter().find(|(name, _)| *name == target).expect("the target exists").1;
    let mut inputs = corpus(target);
    assert!(!inputs.is_empty(), "the corpus of {target} is empty");
    inputs.iter().for_each(|input| run(input));
    let seed = number("FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..));
    // Printed when the test fails.
    println!("{target}: FUZZ_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..number("FUZZ_ROUNDS").unwrap_or(ROUNDS) {
        let input = mutate(&inputs, &mut random);
        let outcome = std::panic::catch_unwind(|| run(&input));
        assert!(outcome.is_ok(), "{target} fails on \"{}\"", input.escape_ascii());
        if random.u8(..) == 0 {
            let at = random.usize(..inputs.len());
            inputs[at] = input;
        }
    }
}

fn mutate(inputs: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut input = inputs[random.usize(..inputs.len())].clone();
    for _ in 0..=random.u8(..4) {
        let at = random.usize(..=input.len());
        match random.u8(..7) {
            0 => input.insert(at, random.u8(..)),
            1 => input.truncate(at),
            2 => drop(input.drain(at..(at + random.usize(..9)).min(input.len()))),
            3 => splice(&mut input, at, &inputs[random.usize(..inputs.len())], random),
            4 => overwrite(&mut input, at, &[random.u8(..)]),
            5 => overwrite(&mut input, at, &[0, 0, 0, random.u8(..)]),
            _ => overwrite(
                &mut input,
                at,
                random.choice([[0xff; 4], [0; 4], [0x7f, 0xff, 0xff, 0xff]]).as_ref().expect("one of three"),
            ),
        }
    }
    input.truncate(LEN_MAX);
    input
}

fn overwrite(input: &mut [u8], at: usize, bytes: &[u8]) {
    for (old, new) in input.iter_mut().skip(at).zip(bytes) {
        *old = *new;
    }
}

fn splice(input: &mut Vec<u8>, at: usize, other: &[u8], random: &mut fastrand::Rng) {
    let start = random.usize(..=other.len());
    let end = random.usize(start..=other.len());
    input.splice(at..at, other[start..end].iter().copied());
}

#[test]
fn scan() {
    replay("scan");
}

#[test]
fn startup() {
    replay("startup");
}

#[test]
fn frontend() {
    replay("frontend");
}

#[test]
fn backend() {
    replay("backend");
}

#[test]
fn scram() {
    replay("scram");
}

#[test]
fn pgoutput() {
    replay("pgoutput");
}

#[test]
fn config() {
    replay("config");
}

#[test]
fn journal_reader() {
    replay("journal_reader");
}

#[test]
fn journal_recovery() {
    replay("journal_recovery");
}

#[test]
fn hba() {
    replay("hba");
}

#[test]
fn ini() {
    replay("ini");
}

#[test]
fn classified() {
    replay("classified");
}

#[test]
fn shapes() {
    replay("shapes");
}

#[test]
fn journal_entry() {
    replay("journal_entry");
}

#[test]
fn predicate() {
    replay("predicate");
}

#[test]
fn shape_request() {
    replay("shape_request");
}
