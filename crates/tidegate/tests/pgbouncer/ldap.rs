//! `auth_type = ldap`, with the machine's slapd: a directory that the test makes.

use std::{
    fs,
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tidegate_testkit::{Authority, eventually};

use crate::bouncer::{Bouncer, Setup, free_port_of, server};

const PROGRAM: &str = "/usr/sbin/slapd";

const RULES: &str = "include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
disallow bind_anon
database mdb
suffix dc=example,dc=net
rootdn cn=admin,dc=example,dc=net
rootpw of-the-admin
directory $DIR
";

const TOP: &str = "dn: dc=example,dc=net
objectClass: dcObject
objectClass: organization
o: example
dc: example
";

/// What a directory with a certificate adds: passwords are heard under TLS alone.
const TLS_RULES: &str = "TLSCertificateFile $CERT
TLSCertificateKeyFile $KEY
security simple_bind=128
";

/// A directory, until it is dropped.
struct Directory {
    slapd: Child,
    port: u16,
    /// Where it speaks TLS from the first byte, if it has a certificate.
    tls_port: u16,
    _folder: TempDir,
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = self.slapd.kill();
        let _ = self.slapd.wait();
    }
}

impl Directory {
    /// With these users, each with `secret of NAME`. `None` where there is no slapd.
    fn with(users: &[&str]) -> Option<Self> {
        Self::started(users, "")
    }

    /// The same with a certificate for `localhost`.
    fn secured(users: &[&str], authority: &Authority) -> Option<Self> {
        let own = authority.issue(&["localhost"]);
        let rules = TLS_RULES.replace("$CERT", &own.cert.display().to_string());
        Self::started(users, &rules.replace("$KEY", &own.key.display().to_string()))
    }

    fn started(users: &[&str], tls_rules: &str) -> Option<Self> {
        if fs::metadata(PROGRAM).is_err() {
            eprintln!("LDAP is not tested: there is no {PROGRAM} here");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("the folder can be written");
            path
        };
        // What holds for the whole directory stands before its database.
        let rules = RULES.replace("database mdb", &format!("{tls_rules}database mdb"));
        let rules = file("slapd.conf", &rules.replace("$DIR", &folder.path().display().to_string()));
        let entry = |user: &&str| {
            format!(
                "\ndn: uid={user},dc=example,dc=net\nobjectClass: inetOrgPerson\nuid: {user}\ncn: {user}\nsn: twin\n\
                 mail: {user}@example.net\nuserPassword: secret of {user}\n"
            )
        };
        let entries = file("entries", &(TOP.to_owned() + &users.iter().map(entry).collect::<String>()));
        let added = Command::new("/usr/sbin/slapadd").arg("-f").arg(&rules).arg("-l").arg(entries).output();
        assert!(added.as_ref().is_ok_and(|output| output.status.success()), "{added:?}");
        let (port, tls_port) = (free_port_of(32_000..33_000), free_port_of(32_000..33_000));
        let plain = format!("ldap://127.0.0.1:{port}/");
        let places = if tls_rules.is_empty() { plain } else { format!("{plain} ldaps://127.0.0.1:{tls_port}/") };
        let mut slapd = Command::new(PROGRAM);
        // It stays in the foreground with a level of what it prints.
        slapd.arg("-f").arg(rules).args(["-d", "0", "-h", &places]);
        let slapd = slapd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let directory = Self { slapd: slapd.expect("it can be started"), port, tls_port, _folder: folder };
        eventually("the directory listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(directory)
    }

    /// Options that look for a user as the admin does.
    fn searching(&self, more: &str) -> String {
        format!(
            "ldapserver=127.0.0.1 ldapport={} ldapbasedn=\"dc=example,dc=net\" ldapbinddn=\"cn=admin,dc=example,dc=net\" \
             ldapbindpasswd=of-the-admin {more}",
            self.port
        )
    }

    /// Options that make a user's entry of its name.
    fn making(&self) -> String {
        format!("ldapserver=127.0.0.1 ldapport={} ldapprefix=\"uid=\" ldapsuffix=\",dc=example,dc=net\"", self.port)
    }
}

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres user=postgres\nown = $PG dbname=postgres\n";

fn assert_refused(bouncer: &Bouncer, user: &str, password: &str) {
    let refused = bouncer.startup("shop").user(user).password(password).refused();
    assert_eq!((refused.code.as_str(), refused.message.as_str()), ("08P01", "LDAP authentication failed"), "{user}");
}

#[test]
fn a_directory_decides_who_comes_in() {
    let Some(directory) = Directory::with(&["ldap_app", "other"]) else { return };
    server().sql("create role ldap_app login password 'secret of ldap_app' in role scram_login");
    for options in
        [directory.making(), directory.searching(""), directory.searching("ldapsearchfilter=(mail=$username@*)")]
    {
        let ini =
            format!("{SHOP}[pgbouncer]\nauth_type = ldap\nadmin_users = ldap_app\nauth_ldap_options = {options}\n");
        let bouncer = Bouncer::start(&ini);
        let login = |database: &str| bouncer.startup(database).user("ldap_app").password("secret of ldap_app");
        login("shop").connect().ok("select 1");
        // The password opens the server as well, as in PgBouncer.
        assert_eq!(login("own").connect().value("select current_user"), "ldap_app", "{options}");
        for (user, password) in
            [("ldap_app", "wrong"), ("ldap_app", ""), ("nobody", "secret"), ("*", "secret of other")]
        {
            assert_refused(&bouncer, user, password);
        }
        bouncer.wait_for_log("LDAP does not let the user in");
        assert!(!bouncer.log().contains("secret of"), "passwords are in no log");
        let settings = login("pgbouncer").connect().show("CONFIG");
        assert!(settings.iter().all(|row| !row["value"].contains("of-the-admin")), "nor are they in the console");
    }
}

#[test]
fn a_rule_of_the_file_can_ask_a_directory() {
    let Some(directory) = Directory::with(&["app"]) else { return };
    let rule = format!("host shop all all ldap {}\n", directory.searching("ldapsearchattribute=cn"));
    let url =
        format!("host own all all ldap ldapurl=\"ldap://127.0.0.1:{}/dc=example,dc=net?uid?one\"\n", directory.port);
    let bouncer = Bouncer::with(&Setup {
        ini: &format!("{SHOP}[pgbouncer]\nauth_type = hba\nauth_hba_file = $DIR/hba\n"),
        files: &[("hba", &(rule + &url))],
        ..Setup::default()
    });
    bouncer.startup("shop").user("app").password("secret of app").connect().ok("select 1");
    assert_refused(&bouncer, "app", "wrong");
    // This directory shows nothing to those who do not say who they are.
    let refused = bouncer.startup("own").user("app").password("secret of app").refused();
    assert_eq!(refused.message, "LDAP authentication failed");
}

#[test]
fn one_of_several_is_nobody_and_a_directory_that_is_gone_lets_nobody_in() {
    let Some(directory) = Directory::with(&["one", "two"]) else { return };
    let options = directory.searching("ldapsearchfilter=(sn=twin)");
    let bouncer = Bouncer::start(&format!("{SHOP}[pgbouncer]\nauth_type = ldap\nauth_ldap_options = {options}\n"));
    assert_refused(&bouncer, "one", "secret of one");
    bouncer.wait_for_log("there are several who fit");
    drop(directory);
    assert_refused(&bouncer, "one", "secret of one");
}

#[test]
fn options_that_cannot_be_are_told() {
    let setup = Setup {
        ini: &format!("{SHOP}[pgbouncer]\nauth_type = ldap\nauth_ldap_options = ldapserver=d\n"),
        ..Setup::default()
    };
    let mut bouncer = Bouncer::spawn(&setup, free_port_of(33_000..34_000));
    assert!(!bouncer.wait().success());
    assert!(bouncer.log().contains("ldap needs ldapbasedn, ldapprefix, or ldapsuffix"), "{}", bouncer.log());
}

/// A gateway that trusts the authority in this file, and no other.
fn trusting(ca: &Path, options: &str) -> Bouncer {
    let trusted = format!("SSL_CERT_FILE={}", ca.display());
    Bouncer::with(&Setup {
        ini: &format!("{SHOP}[pgbouncer]\nauth_type = ldap\nauth_ldap_options = {options}\n"),
        starter: &["env", &trusted],
        ..Setup::default()
    })
}

const ENTRY: &str = "ldapprefix=\"uid=\" ldapsuffix=\",dc=example,dc=net\"";
const SEARCH: &str = "ldapbinddn=\"cn=admin,dc=example,dc=net\" ldapbindpasswd=of-the-admin";

#[test]
fn a_directory_is_asked_under_tls() {
    let authority = Authority::new();
    let Some(directory) = Directory::secured(&["app"], &authority) else { return };
    let (plain, tls) = (directory.port, directory.tls_port);
    for options in [
        format!("ldapserver=localhost ldapport={tls} ldapscheme=ldaps {ENTRY}"),
        format!("ldapurl=\"ldaps://localhost:{tls}/dc=example,dc=net?uid?sub\" {SEARCH}"),
        format!("ldapserver=localhost ldapport={plain} ldaptls=1 {ENTRY}"),
        format!("ldapurl=\"ldap://localhost:{plain}/dc=example,dc=net?uid?sub\" ldaptls=1 {SEARCH}"),
        // The first that can be reached: nobody listens there.
        format!("ldapserver=\"127.0.0.2 localhost\" ldapport={tls} ldapscheme=ldaps {ENTRY}"),
    ] {
        let bouncer = trusting(&authority.ca(), &options);
        bouncer.startup("shop").user("app").password("secret of app").connect().ok("select 1");
        assert_refused(&bouncer, "app", "wrong");
        let of_rule = Bouncer::with(&Setup {
            ini: &format!("{SHOP}[pgbouncer]\nauth_type = hba\nauth_hba_file = $DIR/hba\n"),
            files: &[("hba", &format!("host all all all ldap {options}\n"))],
            starter: &["env", &format!("SSL_CERT_FILE={}", authority.ca().display())],
            ..Setup::default()
        });
        of_rule.startup("shop").user("app").password("secret of app").connect().ok("select 1");
    }
    // In the clear this directory hears no passwords: it was TLS indeed.
    let bouncer = trusting(&authority.ca(), &format!("ldapserver=localhost ldapport={plain} ldaptls=0 {ENTRY}"));
    assert_refused(&bouncer, "app", "secret of app");
    bouncer.wait_for_log("confidentiality required");
}

#[test]
fn a_directory_that_cannot_prove_itself_is_told_no_password() {
    let (authority, other) = (Authority::new(), Authority::new());
    let Some(directory) = Directory::secured(&["app"], &authority) else { return };
    let (plain, tls) = (directory.port, directory.tls_port);
    let ways = |host: &str| {
        [
            format!("ldapserver={host} ldapport={tls} ldapscheme=ldaps {ENTRY}"),
            format!("ldapserver={host} ldapport={plain} ldaptls=1 {ENTRY}"),
        ]
    };
    for options in ways("localhost") {
        let bouncer = trusting(&other.ca(), &options);
        assert_refused(&bouncer, "app", "secret of app");
        bouncer.wait_for_log("its certificate is of no authority that this machine trusts");
    }
    for options in ways("127.0.0.1") {
        let bouncer = trusting(&authority.ca(), &options);
        assert_refused(&bouncer, "app", "secret of app");
        bouncer.wait_for_log("its certificate is for another name");
    }
    // One that has no TLS is not told either.
    let Some(directory) = Directory::with(&["app"]) else { return };
    let options = format!("ldapserver=localhost ldapport={} ldaptls=1 {ENTRY}", directory.port);
    let bouncer = trusting(&authority.ca(), &options);
    assert_refused(&bouncer, "app", "secret of app");
    bouncer.wait_for_log("it refuses StartTLS");
}
