//! `auth_type = pam`, with the machine's Linux-PAM: its modules are asked by rules that the test makes.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    process::{Command, Stdio},
};

use tidegate_testkit::{Signal, eventually};

use crate::bouncer::{Bouncer, Setup, server};

/// What pam_exec runs: it is given the password, and says by its status whether that is right.
const CHECK: &str = "#!/bin/sh
password=$(tr -d '\\000')
echo \"$PAM_SERVICE $PAM_TYPE $PAM_USER $PAM_RHOST\" >> $DIR/asked
case $PAM_USER in
    stuck) cat $DIR/gate > /dev/null;;
esac
test \"$password\" = \"secret of $PAM_USER\"
";

/// Accounts that are closed are named in a file.
const RULES: &str = "auth required pam_exec.so expose_authtok quiet $DIR/check
account required pam_listfile.so onerr=fail item=user sense=deny file=$DIR/closed
";

/// Whether this process may have a view of its own of the machine's files.
fn can_have_own_rules() -> bool {
    let mut probe = Command::new("unshare");
    probe.args(["--mount", "--map-root-user", "mount", "--bind", "/tmp", "/etc/pam.d"]);
    let able = probe.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success());
    if !able {
        eprintln!("PAM is not tested: this machine lets nobody have an /etc/pam.d of their own (unshare --mount)");
    }
    able
}

/// Makes the folder of rules, and starts the rest in a view of the files in which it is `/etc/pam.d`.
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

/// A gateway that PAM's rules hold for. `None` where that cannot be had.
fn start(lines: &str) -> Option<Bouncer> {
    start_with(lines, "")
}

/// The same, with a file of users.
fn start_with(lines: &str, users: &str) -> Option<Bouncer> {
    let ini = format!("[databases]\nshop = $PG dbname=postgres user=postgres\n[pgbouncer]\n{lines}");
    let hba = "host all all all pam\n";
    let files = &[("check", CHECK), ("rules", RULES), ("closed", "closed\n"), ("hba", hba), ("users", users)];
    can_have_own_rules().then(|| Bouncer::with(&Setup { ini: &ini, files, starter: STARTER, ..Setup::default() }))
}

fn asked(bouncer: &Bouncer) -> String {
    fs::read_to_string(bouncer.file("asked")).unwrap_or_default()
}

#[test]
fn the_systems_rules_decide_who_comes_in() {
    let Some(bouncer) = start("auth_type = pam\nadmin_users = app\n") else { return };
    let login = |user: &str, password: &str| bouncer.startup("shop").user(user).password(password);
    login("app", "secret of app").connect().ok("select 1");
    assert_eq!(asked(&bouncer), "pgbouncer auth app 127.0.0.1\n");
    for (user, password) in
        [("app", "wrong"), ("app", ""), ("stranger", "secret of app"), ("closed", "secret of closed")]
    {
        let refused = login(user, password).refused();
        assert_eq!((refused.code.as_str(), refused.message.as_str()), ("08P01", "PAM authentication failed"), "{user}");
    }
    bouncer.wait_for_log("PAM does not let the user in");
    assert!(!bouncer.log().contains("secret of"), "passwords are in no log");
    // The console asks as well.
    let mut console = bouncer.startup("pgbouncer").user("app").password("secret of app").connect();
    assert_eq!(Bouncer::setting_by(&mut console, "auth.pam_service"), "pgbouncer");
}

/// As PgBouncer does: the password that PAM has found right opens the server, whatever the server asks for, and what
/// `auth_file` has for the user does not count.
#[test]
fn the_password_opens_the_server_as_well() {
    let lines = "auth_type = pam\nauth_file = $DIR/users\n[databases]\nown = $PG dbname=postgres\n";
    for group in ["scram_login", "md5_login", "cleartext_login"] {
        let user = format!("pam_{group}");
        server().sql(&format!("create role {user} login password 'secret of {user}' in role {group}"));
        let users = format!("\"{user}\" \"another word\"\n");
        let Some(bouncer) = start_with(lines, &users) else { return };
        let login = |password: &str| bouncer.startup("own").user(&user).password(password);
        assert_eq!(login(&format!("secret of {user}")).connect().value("select current_user"), user);
        assert_eq!(login("another word").refused().message, "PAM authentication failed");
    }
}

#[test]
fn a_module_that_hangs_holds_up_nobody() {
    let Some(mut bouncer) = start("auth_type = pam\nclient_login_timeout = 1\nadmin_users = app\n") else { return };
    let mut client = bouncer.startup("shop").user("app").password("secret of app").connect();
    let stuck = bouncer.startup("shop").user("stuck").password("secret of stuck");
    let waits = std::thread::spawn(move || stuck.refused());
    eventually("the module is asked", || asked(&bouncer).contains("stuck"));
    client.ok("select 1");
    bouncer.startup("shop").user("other").password("secret of other").connect().ok("select 1");
    let refused = waits.join().expect("it is told");
    assert_eq!(refused.message, "client_login_timeout");
    client.ok("select 1");
    // Nor does it hold up the end.
    drop(client);
    bouncer.signal(Signal::QUIT);
    assert!(bouncer.wait().success());
    let mut gate = OpenOptions::new().write(true).open(bouncer.file("gate")).expect("the module reads still");
    gate.write_all(b"x").expect("it does");
}

#[test]
fn a_rule_of_the_file_can_ask_pam() {
    let Some(bouncer) = start("auth_type = hba\nauth_hba_file = $DIR/hba\n") else { return };
    let login = |password: &str| bouncer.startup("shop").user("app").password(password);
    login("secret of app").connect().ok("select 1");
    assert_eq!(login("wrong").refused().message, "PAM authentication failed");
}
