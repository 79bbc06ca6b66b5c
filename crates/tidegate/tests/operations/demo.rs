//! `tidegate demo`: runs, leaves nothing behind, and ends at Ctrl-C.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tidegate_testkit::{Gateway, eventually};

fn start(folder: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(Gateway::binary(env!("CARGO_BIN_EXE_tidegate")));
    command.arg("demo").args(arguments).env("TMPDIR", folder).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("the demo starts")
}

fn assert_empty(folder: &Path) {
    let left: Vec<_> = fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// OP-50: With a Postgres that is in the cache.
#[test]
fn demo_runs_and_leaves_nothing_behind() {
    tidegate_sandbox::Binaries::find_or_fetch(tidegate_sandbox::Major(18), &mut |_| {}).expect("a Postgres");
    let folder = tempfile::tempdir().expect("a folder");
    // Postgres has a user of its own if the test runs as root.
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("a folder");
    let output = start(folder.path(), &["--seconds", "1", "--clients", "8"]).wait_with_output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("8 clients read rows by key"), "{text}");
    assert!(text.contains("Both are stopped."), "{text}");
    assert_empty(folder.path());
}

/// OP-50.
#[test]
fn demo_ends_at_ctrl_c() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("a folder");
    let mut demo = start(folder.path(), &["--seconds", "3600", "--clients", "4"]);
    let mut output = demo.stdout.take().expect("a pipe");
    let mut text = String::new();
    eventually("the measurement begins", || {
        let mut part = [0; 1000];
        let read = output.read(&mut part).expect("the demo writes");
        text.push_str(&String::from_utf8_lossy(&part[..read]));
        text.contains("clients read rows by key")
    });
    kill_process(Pid::from_child(&demo), Signal::INT).expect("the demo runs");
    output.read_to_string(&mut text).expect("the demo writes");
    assert!(demo.wait().expect("a child").success() && text.contains("Interrupted."), "{text}");
    assert_empty(folder.path());
}
