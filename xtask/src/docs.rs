//! `cargo xtask docs`: checks the links of all Markdown files and builds the book in `docs` with mdBook.

mod links;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::repository::{cargo, root, run as run_command, target_dir};

/// The version that is installed where mdBook is missing.
const VERSION: &str = "0.5.4";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Check links only; do not install mdBook and do not build the book
    #[arg(long)]
    links: bool,
}

/// Checks the links, then builds the book into `target/book`.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    links::check()?;
    if arguments.links {
        return Ok(());
    }
    prepare()?;
    run_command(Command::new(mdbook()?).args(["build", "docs"]).current_dir(root()))?;
    println!("docs: target/book/index.html");
    Ok(())
}

/// The step of CI.
pub(crate) fn run_for_ci() -> Result<()> {
    run(&Arguments { links: false })
}

/// Installs mdBook from crates.io into the target folder, unless it is installed. The parts that serve and watch a book are
/// left out: they are half of its dependencies.
pub(crate) fn prepare() -> Result<()> {
    if is_installed(&mdbook()?) {
        return Ok(());
    }
    let mut install = cargo();
    install.args(["install", "mdbook", "--locked", "--quiet", "--version", VERSION]);
    install.args(["--no-default-features", "--features", "search", "--root"]).arg(tools()?);
    // The flags of the workspace do not apply to a tool.
    run_command(install.env_remove("RUSTFLAGS")).context("install mdbook")
}

/// The `mdbook` of the machine, or else the one in the target folder.
fn mdbook() -> Result<PathBuf> {
    let of_the_machine = PathBuf::from("mdbook");
    Ok(if is_installed(&of_the_machine) { of_the_machine } else { tools()?.join("bin/mdbook") })
}

fn tools() -> Result<PathBuf> {
    Ok(target_dir()?.join("tools"))
}

fn is_installed(program: &Path) -> bool {
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}
