//! `tidegate top`: a running gateway in a terminal.
//!
//! The program is a client of the admin console, so it works from another machine and over ssh, and needs no rights but those of
//! a user of the console. `GatewaySampler` runs SHOW commands and connects again when the gateway was restarted; the
//! `App` holds what is shown and reacts to keys; `draw` renders it. Sorting, filtering and formats are pure and tested
//! without a terminal.
//!
//! ```
//! use clap::Parser;
//! use tidegate_top::MonitorArgs;
//!
//! #[derive(Parser)]
//! struct Cli {
//!     #[command(flatten)]
//!     top: MonitorArgs,
//! }
//!
//! let cli = Cli::parse_from(["top", "--once", "--screen", "pools", "postgres://ann@127.0.0.1:6432/tidegate"]);
//! assert!(cli.top.once);
//! ```

mod app;
mod draw;
mod load_history;
mod options;
mod plain;
mod sample;
mod sampler;
mod screen;
mod session;
mod table_view;

use std::io::{IsTerminal as _, Write};

use anyhow::bail;

pub use options::{Environment, MonitorArgs};
pub use screen::Screen;

/// Runs the command until the user quits, or prints once.
///
/// # Errors
/// The console cannot be reached, refuses the login, or the output cannot be written.
pub fn run(args: &MonitorArgs, env: Environment<'_>, out: &mut impl Write) -> anyhow::Result<()> {
    let options = args.connect_options(env)?;
    args.check_sort()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if args.once || args.json {
        return runtime.block_on(plain::print(args, &options, out));
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("standard input and output are not a terminal: use --once or --json");
    }
    let has_colour = options::has_colour(env);
    let is_utf8 = options::is_utf8(env);
    runtime.block_on(session::run(args, options, draw::Theme::new(has_colour, is_utf8)))
}
