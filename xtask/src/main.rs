//! The project's own commands, `cargo xtask NAME`: what CI runs, what a release is measured with, and nothing that
//! needs a tool which this file does not name.

mod bench;
mod ci;
mod deny;
mod differ;
mod docs;
mod drivers;
mod flamegraph;
mod fuzz;
mod gateway;
mod machine;
mod models;
mod repository;
mod second;
mod soak;
mod step;
mod tests;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything a change must pass: format, tidy, clippy, docs, tests in both I/O modes, models, drivers
    Ci(ci::Arguments),
    /// Bring what the tests need (Postgres 14 and 18) and run all of them
    Test(tests::Arguments),
    /// Check the rules of the repository: language, names, lengths, import cycles, sizes of crates
    Tidy,
    /// Check the links of all Markdown files, and build the book in docs/ (mdBook)
    Docs(docs::Arguments),
    /// Try every interleaving of what threads share without a lock (loom)
    Models,
    /// Measure one area side by side with its peers
    Bench(bench::Arguments),
    /// Run eight real drivers through the gateway, in transaction and session mode
    Drivers(drivers::Arguments),
    /// Compare with a PgBouncer that is installed: the console's tables, the errors that clients get
    Differ(differ::Arguments),
    /// Record where the time goes under a benchmark's load, and draw it: an SVG in target/
    Flamegraph(flamegraph::Arguments),
    /// Run the randomised tests for long, each round with a new seed
    Soak(soak::Arguments),
    /// Replay the kept corpus of the fuzz targets, or fuzz for a while
    Fuzz(fuzz::Arguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ci(arguments) => ci::run(&arguments),
        Command::Test(arguments) => tests::run(&arguments),
        Command::Tidy => tidy::run(),
        Command::Docs(arguments) => docs::run(&arguments),
        Command::Models => models::run(),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Differ(arguments) => differ::run(&arguments),
        Command::Drivers(arguments) => drivers::run(&arguments),
        Command::Flamegraph(arguments) => flamegraph::run(&arguments),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
    }
}
