//! `tidegate journal` as a user runs it: the binary, with logs written by the library and by a gateway.

mod damage;
mod follow;
mod sample_log;
mod views;

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use tidegate_testkit::Gateway;

/// `tidegate journal` in the time zone +05:30.
fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(Gateway::binary(env!("CARGO_BIN_EXE_tidegate")));
    command.arg("journal").args(arguments).env("TZ", "<+0530>-5:30").env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

/// The exit status and the output of a command.
#[derive(Debug)]
struct CommandOutput {
    success: bool,
    stdout: String,
    stderr: String,
}

impl CommandOutput {
    fn lines(&self) -> Vec<&str> {
        self.stdout.lines().collect()
    }

    #[track_caller]
    fn json(&self) -> Vec<serde_json::Value> {
        let object = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.stdout.lines().map(object).collect()
    }
}

fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> CommandOutput {
    let output = command(arguments).output().expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the output is UTF-8");
    CommandOutput { success: output.status.success(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Runs a command that must succeed.
#[track_caller]
fn run_ok<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> CommandOutput {
    let output = run(arguments);
    assert!(output.success, "{output:?}");
    output
}

/// Runs a command that must fail, and returns its standard error.
#[track_caller]
fn run_err<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> String {
    let output = run(arguments);
    assert!(!output.success, "{output:?}");
    output.stderr
}
