//! The `tidegate` binary.

use std::process::ExitCode;

use tidegate::cli::{Cli, Command, RunArgs};
use tidegate_allocator::{MiMalloc, return_memory_soon};
use tidegate_config::escape::escaped_lines;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// A reader that closes the pipe early (`| head`) is not an error.
fn ignore_broken_pipe(error: std::io::Error) -> anyhow::Result<()> {
    if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error.into()) }
}

fn main() -> ExitCode {
    return_memory_soon();
    let outcome = match Cli::read(std::env::args_os()).command {
        Command::Run(run) => match tidegate::run::main(&run) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Check(check) => match check.run(&mut std::io::stdout(), tidegate::run::startup_errors) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => ignore_broken_pipe(error),
        },
        Command::Convert(convert) => match convert.run(&mut std::io::stdout()) {
            Ok(printed) => printed.or_else(ignore_broken_pipe),
            Err(errors) => {
                eprintln!("{}", escaped_lines(&errors.to_string()));
                return ExitCode::FAILURE;
            }
        },
        Command::Pgbouncer(bouncer) => match tidegate::run::main(&bouncer.into()) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Stream(stream) => match tidegate::run::stream(&stream) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Shapes(shapes) => tidegate::run::shapes(&shapes),
        Command::Slots(slots) => slots
            .run(&mut std::io::stdout())
            .or_else(|error| error.downcast::<std::io::Error>().map_or_else(Err, ignore_broken_pipe)),
        Command::Backfill(backfill) => backfill
            .run(&mut std::io::stdout())
            .or_else(|error| error.downcast::<std::io::Error>().map_or_else(Err, ignore_broken_pipe)),
        Command::Top(top) => tidegate_top::run(&top, &|name| std::env::var(name).ok(), &mut std::io::stdout())
            .or_else(|error| error.downcast::<std::io::Error>().map_or_else(Err, ignore_broken_pipe)),
        Command::Demo(demo) => tidegate::run::demo(&demo),
        Command::Journal(journal) => match tidegate_query_log::commands::run(&journal) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        // The files in memory exist until the gateway has ended.
        Command::Container => {
            match tidegate::cli::container_arguments().and_then(|(run, _files)| tidegate::run::main(&run)) {
                Ok(code) => return code,
                Err(error) => Err(error),
            }
        }
        Command::Healthcheck(check) => check.run(|| {
            let (run, _files) = RunArgs::of_running_gateway(check.config.clone())?;
            run.config().map_err(|errors| anyhow::anyhow!("invalid configuration\n\n{errors}"))
        }),
        Command::Completions(completions) => completions.run(&mut std::io::stdout()).or_else(ignore_broken_pipe),
        Command::Man(man) => man.run(),
        _ => return ExitCode::from(2),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The error may quote a server, a sink or a file.
            eprintln!("tidegate: {}", escaped_lines(&tidegate::error_line(&error)));
            ExitCode::FAILURE
        }
    }
}
