//! The command line of PgBouncer.

use std::{
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::geteuid;
use tidegate_testkit::{Authority, TlsMode, eventually};

use crate::ini_gateway::{IniGateway, Setup, binary, free_port, output};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres\n";

/// The user to which root changes.
const USER: &str = "nobody";

#[test]
fn verbosity_options_set_the_log_level() {
    for (options, level) in [(&[][..], "info"), (&["-v"], "debug"), (&["-v", "-v"], "trace"), (&["run", "-v"], "debug")]
    {
        let gateway = IniGateway::with(&Setup { ini: SHOP, options, ..Setup::default() });
        assert_eq!(gateway.setting("log.level"), level, "{options:?}");
        gateway.client("shop").ok("select 1");
    }
}

#[test]
fn version_and_help_are_printed() {
    let version = output(&["--version"]);
    assert!(version.status.success());
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("tidegate "), "{version:?}");
    // Scripts that expect PgBouncer start the binary by that name.
    let folder = tempfile::tempdir().expect("a folder");
    let link = folder.path().join("pgbouncer");
    std::os::unix::fs::symlink(binary(), &link).expect("a link");
    for option in ["--version", "-V"] {
        let version = Command::new(&link).arg(option).output().expect("the binary runs");
        let text = String::from_utf8_lossy(&version.stdout).into_owned();
        assert!(version.status.success() && text.starts_with("PgBouncer 1.25.0 (Tidegate "), "{text}");
    }
    let help = output(&["--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("tidegate pgbouncer.ini"));
}

#[test]
fn root_switches_to_the_configured_user() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root may switch to another user");
        return;
    }
    for (line, options) in [("", &["-u", USER][..]), (&*format!("user = {USER}\n"), &[])] {
        let ini = format!("{SHOP}[pgbouncer]\nunix_socket_dir =\n{line}");
        // The file is for root alone, because it may contain passwords; it is read before the change.
        let starter = &["sh", "-c", "chmod 600 $DIR/pgbouncer.ini; exec \"$0\" \"$@\""];
        let gateway = IniGateway::with(&Setup { ini: &ini, options, starter, ..Setup::default() });
        gateway.client("shop").ok("select 1");
        gateway.wait_for_log(&format!("the user `{USER}` cannot read "));
        let error = gateway.console().query("RELOAD").error.expect("the user cannot read the file");
        assert!(error.message.contains("cannot be used"), "{error:?}");
        assert!(
            error.message.contains(&format!("the user `{USER}` of the process cannot read a file again")),
            "{error:?}"
        );
        gateway.wait_for_log("let the user of the process read it");
        gateway.client("shop").ok("select 1");
        let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.id())).expect("the process runs");
        let ids = status.lines().find(|line| line.starts_with("Uid:")).expect("the status has user ids");
        assert!(ids.split_whitespace().skip(1).all(|id| id != "0"), "{ids}");
    }
}

/// A reload that cannot read a file locks no user out, and admits no other one.
#[test]
fn reload_keeps_what_only_root_can_read() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root may switch to another user");
        return;
    }
    let rules = "auth_type = hba\nauth_hba_file = $DIR/rules\n";
    for (lines, file) in [("auth_type = md5\n", "users"), (rules, "rules")] {
        let ini = format!(
            "{SHOP}[pgbouncer]\nuser = {USER}\nunix_socket_dir =\nauth_file = $DIR/users\n{lines}default_pool_size = 3\n"
        );
        let files = [("users", "\"postgres\" \"secret\"\n"), ("rules", "host all all all md5\n")];
        let starter = format!("chmod 755 $DIR; chmod 644 $DIR/*; chmod 600 $DIR/{file}; exec \"$0\" \"$@\"");
        let starter = ["sh", "-c", starter.as_str()];
        let gateway = IniGateway::with(&Setup { ini: &ini, files: &files, starter: &starter, ..Setup::default() });
        let login = |password: &str| gateway.startup("shop").password(password);
        let mut console = login("secret").database("pgbouncer").connect();
        gateway.set_config(&ini.replace("default_pool_size = 3", "default_pool_size = 4"));
        let error = console.query("RELOAD").error.expect("the user cannot read the file");
        assert!(error.message.contains("chmod 640"), "{error:?}");
        gateway.wait_for_log(&format!("the user `{USER}` cannot read {}", gateway.file(file).display()));
        assert_eq!(IniGateway::setting_by(&mut console, "default_pool_size"), "3");
        login("secret").connect().ok("select 1");
        assert_eq!(login("wrong").refused().code, "28P01", "{file}");
        let readable = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(gateway.file(file), readable).expect("root may change it");
        console.ok("RELOAD");
        assert_eq!(IniGateway::setting_by(&mut console, "default_pool_size"), "4");
    }
}

/// TLS is served with the key that was read before the user changed.
#[test]
fn reload_keeps_a_tls_key_of_root() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root may switch to another user");
        return;
    }
    let authority = Authority::new();
    let identity = authority.issue(&["localhost"]);
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file of the authority");
    let (cert, key) = (read(&identity.cert), read(&identity.key));
    let ini = format!(
        "{SHOP}[pgbouncer]\nuser = {USER}\nunix_socket_dir =\nclient_tls_sslmode = require\n\
         client_tls_cert_file = $DIR/cert\nclient_tls_key_file = $DIR/key\ndefault_pool_size = 3\n"
    );
    let files = [("cert", cert.as_str()), ("key", key.as_str())];
    let starter = &["sh", "-c", "chmod 755 $DIR; chmod 644 $DIR/*; chmod 600 $DIR/key; exec \"$0\" \"$@\""];
    let gateway = IniGateway::with(&Setup { ini: &ini, files: &files, starter, ..Setup::default() });
    let login = gateway.startup("pgbouncer").tls(TlsMode::Request(authority.ca()));
    let mut console = login.connect();
    gateway.set_config(&ini.replace("default_pool_size = 3", "default_pool_size = 4"));
    let error = console.query("RELOAD").error.expect("the user cannot read the key");
    assert!(error.message.contains("chmod 640"), "{error:?}");
    gateway.wait_for_log(&format!("the user `{USER}` cannot read {}", gateway.file("key").display()));
    assert_eq!(IniGateway::setting_by(&mut console, "default_pool_size"), "3");
    login.database("shop").connect().ok("select 1");
}

/// Files are read before the user changes, and the log is opened after it, so that the user owns the file.
#[test]
fn warnings_before_the_user_changes_are_logged() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root may switch to another user");
        return;
    }
    let ini = |log: &str| {
        format!(
            "{SHOP}[pgbouncer]\nuser = {USER}\nunix_socket_dir =\nauth_type = hba\nauth_hba_file = $DIR/rules\n\
             logfile = {log}\n"
        )
    };
    let files = [("rules", "hostssl all other all cert\nhost all all all trust\n")];
    let starter = ["sh", "-c", "chmod 777 $DIR; chmod 644 $DIR/*; exec \"$0\" \"$@\""];
    let setup = Setup { files: &files, options: &["-q"], starter: &starter, ..Setup::default() };
    let text = ini("$DIR/own.log");
    let gateway = IniGateway::with(&Setup { ini: &text, ..setup.clone() });
    let text = || std::fs::read_to_string(gateway.file("own.log")).expect("the log file");
    eventually("the gateway listens", || text().contains("listening"));
    let log = text();
    let warning = log.find("WARNING hba_file").expect("the warning is in the file");
    assert!(log.find("listening").is_some_and(|at| at > warning), "{log}");
    assert_eq!(gateway.log(), "", "standard error is not empty");
    let text = ini("/nowhere/log");
    let mut failed = IniGateway::spawn(&Setup { ini: &text, ..setup }, free_port());
    assert!(!failed.wait().success());
    let shown = failed.log();
    assert!(shown.contains("WARNING hba_file") && shown.contains("cannot open the log"), "{shown}");
}

/// A pipe can be read only once. Detecting the kind of file must not consume it.
#[test]
fn configuration_is_read_from_a_pipe() {
    let mut check = Command::new(binary());
    let check = check.args(["check", "/dev/stdin"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut check = check.spawn().expect("the binary can be started");
    let text = "[auth]\nmethod = \"trust\"\n[databases.shop]\nhost = \"127.0.0.1\"\n";
    check.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("the text is written");
    let report = String::from_utf8_lossy(&check.wait_with_output().expect("the command ends").stdout).into_owned();
    assert!(report.contains("good: 1 database"), "{report}");
}

/// `check` rejects what `run` rejects: it reads the files that a configuration names.
#[test]
fn check_rejects_the_files_that_run_rejects() {
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
    for (text, position, key) in [
        (hba(&bad_hba), format!("{bad_hba}:2:1"), "auth.hba_file"),
        (hba(&cert_hba), format!("{cert_hba}:1:1"), "auth.hba_file"),
        (format!("{}ident_file = \"{bad_map}\"\n", hba(&good_hba)), format!("{bad_map}:1:1"), "auth.hba_file"),
        (tls, format!("{bad_pem}:1:1"), "tls"),
        ("[runtime]\nuser = \"no_such_user\"\n".into(), "/etc/passwd:1:1".into(), "runtime.user"),
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
        let report = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(
            !checked.status.success() && report.contains(&position) && report.contains("cannot be used"),
            "{report}"
        );
        let stdout = output(&["check", "--json", &file]).stdout;
        let json: serde_json::Value = serde_json::from_slice(&stdout).expect("an object");
        let findings = json["findings"].as_array().expect("a list");
        assert!(json["ok"] == false && findings.iter().any(|finding| finding["key"] == key), "{json}");
        // Errors in the files of clients and of servers are reported together.
        let files = findings.iter().filter(|finding| finding["key"] == "tls").count();
        assert_eq!(files, if key == "tls" { 2 } else { 0 }, "{json}");
        let run = Command::new(binary()).args(["run", "-c", &file]).output().expect("the binary runs");
        assert!(!run.status.success(), "{text}");
    }
    let file = write("tidegate.toml", &format!("{}{shop}", hba(&good_hba)));
    assert!(output(&["check", &file]).status.success());
}
