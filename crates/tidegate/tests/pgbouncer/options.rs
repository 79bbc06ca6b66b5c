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

/// What `run` refuses, `check` refuses too: the files that a configuration names are read, not only looked for.
#[test]
fn check_refuses_the_files_that_run_refuses() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("the folder can be written");
        file.display().to_string()
    };
    let good_hba = write("good", "local all all trust\n");
    let bad_hba = write("hba", "local all all trust\nhost all all all tust\n");
    let cert_hba = write("certs", "hostssl all all all cert\n");
    let bad_map = write("ident", "m only_two\n");
    let bad_pem = write("pem", "this is no certificate\n");
    let hba = |file: &str| format!("[auth]\nmethod = \"hba\"\nhba_file = \"{file}\"\n");
    let tls = format!("[listen]\ntls = \"allow\"\ntls_cert = \"{bad_pem}\"\ntls_key = \"{bad_pem}\"\n");
    let shop = "[databases.shop]\nhost = \"127.0.0.1\"\n";
    for (text, place, key) in [
        (hba(&bad_hba), format!("{bad_hba}:2:1"), "auth.hba_file"),
        (hba(&cert_hba), format!("{cert_hba}:1:1"), "auth.hba_file"),
        (format!("{}ident_file = \"{bad_map}\"\n", hba(&good_hba)), format!("{bad_map}:1:1"), "auth.hba_file"),
        (tls, format!("{bad_pem}:1:1"), "tls"),
        ("[runtime]\nuser = \"nobody_of_that_name\"\n".into(), "/etc/passwd:1:1".into(), "runtime.user"),
        (
            "[listen]\nunix_socket_dir = \"/tmp\"\nunix_socket_group = \"no_group\"\n".into(),
            "/etc/group:1:1".into(),
            "listen.unix_socket_group",
        ),
    ] {
        let sslrootcert = if key == "tls" {
            format!("sslmode = \"verify-ca\"\nsslrootcert = \"{bad_pem}\"\n")
        } else {
            String::new()
        };
        let file = write("tidegate.toml", &format!("{text}{shop}{sslrootcert}"));
        let checked = output(&["check", &file]);
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(!checked.status.success() && said.contains(&place) && said.contains("cannot be used"), "{said}");
        let json = output(&["check", "--json", &file]).stdout;
        let report: serde_json::Value = serde_json::from_slice(&json).expect("an object");
        let findings = report["findings"].as_array().expect("a list");
        assert!(report["ok"] == false && findings.iter().any(|finding| finding["key"] == key), "{report}");
        // The files of clients and of servers are reported at once.
        let files = findings.iter().filter(|finding| finding["key"] == "tls").count();
        assert_eq!(files, if key == "tls" { 2 } else { 0 }, "{report}");
        let run = Command::new(binary()).args(["run", "-c", &file]).output().expect("the binary runs");
        assert!(!run.status.success(), "{text}");
    }
    let file = write("tidegate.toml", &format!("{}{shop}", hba(&good_hba)));
    assert!(output(&["check", &file]).status.success());
}
