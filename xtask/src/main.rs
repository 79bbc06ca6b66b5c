//! The commands of the project, `cargo xtask NAME`: the steps of CI, and the measurements of a release. `.ci/run` names
//! the programs that they need.

mod bench;
mod ci;
mod deny;
mod differ;
mod dist;
mod docs;
mod drivers;
mod flamegraph;
mod fuzz;
mod gateway;
mod machine;
mod models;
mod repository;
mod retry;
mod soak;
mod step;
mod test_threads;
mod tests;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Commands of the project
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run every check of a change: format, tidy, clippy, docs, tests in both I/O modes, models, drivers
    Ci(ci::Arguments),
    /// Fetch Postgres 14 and 18, and run all tests
    Test(tests::Arguments),
    /// Check the rules of the repository: language, names, lengths, import cycles, sizes of crates
    Tidy,
    /// Check the links of all Markdown files, and build the book in docs/ (mdBook)
    Docs(docs::Arguments),
    /// Check all interleavings of lock-free code (loom)
    Models,
    /// Measure an area beside its peers
    Bench(bench::Arguments),
    /// Run nine real drivers through the gateway, in transaction and session mode
    Drivers(drivers::Arguments),
    /// Make the packages of a release: tar.gz, deb, rpm, image, chart; with --check, check them
    Dist(dist::Arguments),
    /// Compare with an installed PgBouncer: console tables and client errors
    Differ(differ::Arguments),
    /// Profile the gateway under a benchmark's load, as an SVG in target/
    Flamegraph(flamegraph::Arguments),
    /// Run the randomised tests in rounds, each with a new seed
    Soak(soak::Arguments),
    /// Replay the corpus of the fuzz targets, or run cargo-fuzz
    Fuzz(fuzz::Arguments),
    /// Run a test executable with the threads that suit it, in place of `cargo test`
    #[command(hide = true)]
    RunTests(test_threads::Arguments),
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
        Command::Dist(arguments) => dist::run(&arguments),
        Command::Differ(arguments) => differ::run(&arguments),
        Command::Drivers(arguments) => drivers::run(&arguments),
        Command::Flamegraph(arguments) => flamegraph::run(&arguments),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::RunTests(arguments) => test_threads::run(&arguments),
    }
}
