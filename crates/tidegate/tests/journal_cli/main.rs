//! `tidegate journal` as a user runs it: the real binary over journals that the library and a real gateway have written.

mod live;
mod trouble;
mod views;
mod written;

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use tidegate_testkit::Gateway;

/// `tidegate journal`, in a zone of its own: five and a half hours east.
fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(Gateway::binary(env!("CARGO_BIN_EXE_tidegate")));
    command.arg("journal").args(arguments).env("TZ", "<+0530>-5:30").env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

/// How a command ended, and what it said.
#[derive(Debug)]
struct Said {
    good: bool,
    out: String,
    err: String,
}

impl Said {
    fn lines(&self) -> Vec<&str> {
        self.out.lines().collect()
    }

    #[track_caller]
    fn json(&self) -> Vec<serde_json::Value> {
        let object = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.out.lines().map(object).collect()
    }
}

fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Said {
    let output = command(arguments).output().expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it speaks UTF-8");
    Said { good: output.status.success(), out: text(output.stdout), err: text(output.stderr) }
}

/// What a command that ends well says.
#[track_caller]
fn good<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Said {
    let said = run(arguments);
    assert!(said.good, "{said:?}");
    said
}

/// What one that fails says on standard error.
#[track_caller]
fn bad<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> String {
    let said = run(arguments);
    assert!(!said.good, "{said:?}");
    said.err
}
