//! The `tidegate` binary.

use std::process::ExitCode;

use tidegate::cli::{Cli, Command};
use tidegate_config::escape::escaped_lines;

/// Small short-lived objects, one per I/O operation: what this allocator is best at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Whoever reads what is printed may have seen enough (`| head`): that is an end like any other.
fn read_enough(error: std::io::Error) -> anyhow::Result<()> {
    if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error.into()) }
}

fn main() -> ExitCode {
    let outcome = match Cli::read(std::env::args_os()).command {
        Command::Run(run) => tidegate::run::main(&run),
        Command::Check(check) => match check.run(&mut std::io::stdout(), tidegate::run::refusals) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => read_enough(error),
        },
        Command::Convert(convert) => match convert.run(&mut std::io::stdout()) {
            Ok(printed) => printed.or_else(read_enough),
            Err(errors) => {
                eprintln!("{}", escaped_lines(&errors.to_string()));
                return ExitCode::FAILURE;
            }
        },
        Command::Pgbouncer(bouncer) => tidegate::run::main(&bouncer.into()),
        Command::Stream(stream) => match tidegate::run::stream(&stream) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Demo(demo) => tidegate::run::demo(&demo),
        Command::Journal(journal) => match tidegate_query_log::read::run(&journal) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        _ => return ExitCode::from(2),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // It may quote what a server, a sink or a file has said.
            eprintln!("tidegate: {}", escaped_lines(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}
