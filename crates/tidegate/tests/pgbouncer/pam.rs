//! `auth_type = pam` with the Linux-PAM of the machine and rules of the test.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    process::{Command, Stdio},
};

use tidegate_testkit::{Signal, eventually};

use crate::ini_gateway::{IniGateway, Setup, server};

/// The script that pam_exec runs: it reads the password, and its exit status is the result.
const CHECK: &str = "#!/bin/sh
password=$(tr -d '\\000')
echo \"$PAM_SERVICE $PAM_TYPE $PAM_USER $PAM_RHOST\" >> $DIR/requests
case $PAM_USER in
    stuck) cat $DIR/gate > /dev/null;;
esac
test \"$password\" = \"secret of $PAM_USER\"
";

/// Disabled accounts are listed in a file.
const RULES: &str = "auth required pam_exec.so expose_authtok quiet $DIR/check
account required pam_listfile.so onerr=fail item=user sense=deny file=$DIR/closed
";

/// Whether this process may create a mount namespace.
fn can_replace_rules() -> bool {
    let mut probe = Command::new("unshare");
    probe.args(["--mount", "--map-root-user", "mount", "--bind", "/tmp", "/etc/pam.d"]);
    let able = probe.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success());
    if !able {
        eprintln!("skipped: this machine does not allow a mount namespace with its own /etc/pam.d (unshare --mount)");
    }
    able
}

/// Creates the folder of rules, and starts the gateway in a mount namespace where it is `/etc/pam.d`.
const STARTER: &[&str] = &[
    "unshare",
    "--mount",
    "--map-root-user",
    "sh",
    "-c",
    "chmod 755 $DIR/check && mkfifo $DIR/gate && mkdir $DIR/pam.d && cp $DIR/rules $DIR/pam.d/pgbouncer && \
     mount --bind $DIR/pam.d /etc/pam.d && exec \"$@\"",
    "sh",
];

/// A gateway with these PAM rules, or `None` where they cannot be installed.
fn start(lines: &str) -> Option<IniGateway> {
    start_with(lines, "")
}

/// A gateway with these PAM rules and a userlist.
fn start_with(lines: &str, users: &str) -> Option<IniGateway> {
    let ini = format!("[databases]\nshop = $PG dbname=postgres user=postgres\n[pgbouncer]\n{lines}");
    let hba = "host all all all pam\n";
    let files = &[("check", CHECK), ("rules", RULES), ("closed", "closed\n"), ("hba", hba), ("users", users)];
    can_replace_rules().then(|| IniGateway::with(&Setup { ini: &ini, files, starter: STARTER, ..Setup::default() }))
}

fn requests(gateway: &IniGateway) -> String {
    fs::read_to_string(gateway.file("requests")).unwrap_or_default()
}

#[test]
fn pam_rules_decide_the_login() {
    let Some(gateway) = start("auth_type = pam\nadmin_users = app\n") else { return };
    let login = |user: &str, password: &str| gateway.startup("shop").user(user).password(password);
    login("app", "secret of app").connect().ok("select 1");
    assert_eq!(requests(&gateway), "pgbouncer auth app 127.0.0.1\n");
    for (user, password) in
        [("app", "wrong"), ("app", ""), ("unlisted", "secret of app"), ("closed", "secret of closed")]
    {
        let refused = login(user, password).refused();
        assert_eq!((refused.code.as_str(), refused.message.as_str()), ("08P01", "PAM authentication failed"), "{user}");
    }
    gateway.wait_for_log("PAM does not let the user in");
    assert!(!gateway.log().contains("secret of"), "a password is in the log");
    // The console uses PAM as well.
    let mut console = gateway.startup("pgbouncer").user("app").password("secret of app").connect();
    assert_eq!(IniGateway::setting_by(&mut console, "auth.pam_service"), "pgbouncer");
}

/// Like in PgBouncer, the password accepted by PAM is used towards the server with every method, and the entry in
/// `auth_file` is ignored.
#[test]
fn pam_password_logs_in_to_the_server() {
    let lines = "auth_type = pam\nauth_file = $DIR/users\n[databases]\nown = $PG dbname=postgres\n";
    for group in ["scram_login", "md5_login", "cleartext_login"] {
        let user = format!("pam_{group}");
        server().sql(&format!("create role {user} login password 'secret of {user}' in role {group}"));
        let users = format!("\"{user}\" \"another word\"\n");
        let Some(gateway) = start_with(lines, &users) else { return };
        let login = |password: &str| gateway.startup("own").user(&user).password(password);
        assert_eq!(login(&format!("secret of {user}")).connect().value("select current_user"), user);
        assert_eq!(login("another word").refused().message, "PAM authentication failed");
    }
}

#[test]
fn hanging_pam_module_blocks_no_other_client() {
    let Some(mut gateway) = start("auth_type = pam\nclient_login_timeout = 1\nadmin_users = app\n") else { return };
    let mut client = gateway.startup("shop").user("app").password("secret of app").connect();
    let stuck = gateway.startup("shop").user("stuck").password("secret of stuck");
    let waiting = std::thread::spawn(move || stuck.refused());
    eventually("the module is called", || requests(&gateway).contains("stuck"));
    client.ok("select 1");
    gateway.startup("shop").user("other").password("secret of other").connect().ok("select 1");
    let refused = waiting.join().expect("the client gets an error");
    assert_eq!(refused.message, "client_login_timeout");
    client.ok("select 1");
    // A hanging module does not delay the shutdown.
    drop(client);
    gateway.signal(Signal::QUIT);
    assert!(gateway.wait().success());
    let mut gate = OpenOptions::new().write(true).open(gateway.file("gate")).expect("the module still reads");
    gate.write_all(b"x").expect("the module reads");
}

#[test]
fn hba_rule_can_use_pam() {
    let Some(gateway) = start("auth_type = hba\nauth_hba_file = $DIR/hba\n") else { return };
    let login = |password: &str| gateway.startup("shop").user("app").password(password);
    login("secret of app").connect().ok("select 1");
    assert_eq!(login("wrong").refused().message, "PAM authentication failed");
}
