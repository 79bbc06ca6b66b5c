//! The command line of PgBouncer.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use rustix::process::geteuid;

use crate::bouncer::{Bouncer, Setup, binary, output};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres\n";

#[test]
fn verbosity_is_that_of_the_command_line() {
    for (options, level) in [(&[][..], "info"), (&["-v"], "debug"), (&["-v", "-v"], "trace"), (&["run", "-v"], "debug")]
    {
        let bouncer = Bouncer::with(&Setup { ini: SHOP, options, ..Setup::default() });
        assert_eq!(bouncer.setting("log.level"), level, "{options:?}");
        bouncer.client("shop").ok("select 1");
    }
}

#[test]
fn version_and_help_are_told() {
    let version = output(&["--version"]);
    assert!(version.status.success());
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("tidegate "), "{version:?}");
    let help = output(&["--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("tidegate pgbouncer.ini"));
}

#[test]
fn root_becomes_the_user_that_is_named() {
    if !geteuid().is_root() {
        eprintln!("-u is not tested: only root may become somebody else");
        return;
    }
    for (line, options) in [("", &["-u", "nobody"][..]), ("user = nobody\n", &[])] {
        let ini = format!("{SHOP}[pgbouncer]\nunix_socket_dir =\n{line}");
        let bouncer = Bouncer::with(&Setup { ini: &ini, options, ..Setup::default() });
        bouncer.client("shop").ok("select 1");
        let status = std::fs::read_to_string(format!("/proc/{}/status", bouncer.id())).expect("it runs");
        let ids = status.lines().find(|line| line.starts_with("Uid:")).expect("it has four");
        assert!(ids.split_whitespace().skip(1).all(|id| id != "0"), "{ids}");
    }
}

/// A pipe can be read once: it was read to see which kind of file it is, and was empty then.
#[test]
fn a_configuration_may_come_from_a_pipe() {
    let mut check = Command::new(binary());
    let check = check.args(["check", "/dev/stdin"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut check = check.spawn().expect("the binary can be started");
    let text = "[auth]\nmethod = \"trust\"\n[databases.shop]\nhost = \"127.0.0.1\"\n";
    check.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it is taken");
    let said = String::from_utf8_lossy(&check.wait_with_output().expect("it ends").stdout).into_owned();
    assert!(said.contains("good: 1 database"), "{said}");
}
