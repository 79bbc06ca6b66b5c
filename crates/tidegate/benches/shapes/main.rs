//! Live queries end to end: Postgres, a process `tidegate shapes`, and clients in a process of their own, on one machine.
//!
//! `cargo bench -p tidegate --bench shapes -- [--quick] [--json FILE] [--check] [--case PART] [--rounds N]`
//!
//! Every case begins with empty logs. Figures of memory are those of the process; its peak is `VmHWM`. Postgres commits
//! wait for the WAL to be written and not for the disk. `TIDEGATE=PATH` measures another build of the program.

mod cases;
mod client;
mod load;
mod process;

use std::process::ExitCode;

use cases::{CASES, Scale};
use tidegate_figures::{Options, words};

fn main() -> ExitCode {
    let words = words();
    if let [first, arguments @ ..] = words.iter().map(String::as_str).collect::<Vec<_>>().as_slice()
        && *first == "--client"
    {
        return match load::run(arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{arguments:?}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let options = match Options::read("Live queries from Postgres to HTTP clients.", true) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let is_quick = options.is_quick();
    let rounds = if is_quick { 1 } else { options.rounds().unwrap_or(3).min(3) };
    raise_open_files();
    let scale = Scale { is_quick, rounds };
    let selected = CASES.iter().filter(|case| options.selects(case.name));
    let figures: Vec<_> = selected.flat_map(|case| (case.run)(&scale)).collect();
    options.finish("shapes", &figures)
}

/// Ten thousand clients need as many files in two processes, which inherit the limit.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // A lower limit shows as an error of the load.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
