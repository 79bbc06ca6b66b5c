//! `auth_type = ldap` with the slapd of the machine and a directory of the test.

use std::{
    fs,
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tidegate_testkit::{Authority, eventually};

use crate::ini_gateway::{IniGateway, Setup, free_port_of, server};

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

/// The rules of a directory with a certificate, which accepts passwords only over TLS.
const TLS_RULES: &str = "TLSCertificateFile $CERT
TLSCertificateKeyFile $KEY
security simple_bind=128
";

/// A running directory; dropping it kills it.
struct Directory {
    slapd: Child,
    port: u16,
    /// The port for LDAPS, if the directory has a certificate.
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
    /// Starts a directory with these users, each with the password `secret of NAME`. `None` where slapd is not
    /// installed.
    fn start(users: &[&str]) -> Option<Self> {
        Self::start_with_rules(users, "")
    }

    /// Starts a directory with a certificate for `localhost`.
    fn start_with_tls(users: &[&str], authority: &Authority) -> Option<Self> {
        let identity = authority.issue(&["localhost"]);
        let rules = TLS_RULES.replace("$CERT", &identity.cert.display().to_string());
        Self::start_with_rules(users, &rules.replace("$KEY", &identity.key.display().to_string()))
    }

    fn start_with_rules(users: &[&str], tls_rules: &str) -> Option<Self> {
        if fs::metadata(PROGRAM).is_err() {
            eprintln!("skipped: {PROGRAM} is not installed");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("the folder can be written");
            path
        };
        // Global rules precede the database.
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
        let urls = if tls_rules.is_empty() { plain } else { format!("{plain} ldaps://127.0.0.1:{tls_port}/") };
        let mut slapd = Command::new(PROGRAM);
        // `-d` keeps slapd in the foreground.
        slapd.arg("-f").arg(rules).args(["-d", "0", "-h", &urls]);
        let slapd = slapd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let directory = Self { slapd: slapd.expect("slapd can be started"), port, tls_port, _folder: folder };
        eventually("the directory listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(directory)
    }

    /// Options that search for a user with the account of the admin.
    fn search_options(&self, more: &str) -> String {
        format!(
            "ldapserver=127.0.0.1 ldapport={} ldapbasedn=\"dc=example,dc=net\" ldapbinddn=\"cn=admin,dc=example,dc=net\" \
             ldapbindpasswd=of-the-admin {more}",
            self.port
        )
    }

    /// Options that build the entry of a user from its name.
    fn bind_options(&self) -> String {
        format!("ldapserver=127.0.0.1 ldapport={} ldapprefix=\"uid=\" ldapsuffix=\",dc=example,dc=net\"", self.port)
    }
}

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres user=postgres\nown = $PG dbname=postgres\n";

fn assert_rejected(gateway: &IniGateway, user: &str, password: &str) {
    let refused = gateway.startup("shop").user(user).password(password).refused();
    assert_eq!((refused.code.as_str(), refused.message.as_str()), ("08P01", "LDAP authentication failed"), "{user}");
}

#[test]
fn directory_decides_the_login() {
    let Some(directory) = Directory::start(&["ldap_app", "other"]) else { return };
    server().sql("create role ldap_app login password 'secret of ldap_app' in role scram_login");
    for options in [
        directory.bind_options(),
        directory.search_options(""),
        directory.search_options("ldapsearchfilter=(mail=$username@*)"),
    ] {
        let ini =
            format!("{SHOP}[pgbouncer]\nauth_type = ldap\nadmin_users = ldap_app\nauth_ldap_options = {options}\n");
        let gateway = IniGateway::start(&ini);
        let login = |database: &str| gateway.startup(database).user("ldap_app").password("secret of ldap_app");
        login("shop").connect().ok("select 1");
        // The password is used towards the server as well, like in PgBouncer.
        assert_eq!(login("own").connect().value("select current_user"), "ldap_app", "{options}");
        for (user, password) in
            [("ldap_app", "wrong"), ("ldap_app", ""), ("unknown", "secret"), ("*", "secret of other")]
        {
            assert_rejected(&gateway, user, password);
        }
        gateway.wait_for_log("LDAP does not let the user in");
        assert!(!gateway.log().contains("secret of"), "a password is in the log");
        let settings = login("pgbouncer").connect().show("CONFIG");
        assert!(settings.iter().all(|row| !row["value"].contains("of-the-admin")), "a password is in the console");
    }
}

#[test]
fn hba_rule_can_use_ldap() {
    let Some(directory) = Directory::start(&["app"]) else { return };
    let rule = format!("host shop all all ldap {}\n", directory.search_options("ldapsearchattribute=cn"));
    let url =
        format!("host own all all ldap ldapurl=\"ldap://127.0.0.1:{}/dc=example,dc=net?uid?one\"\n", directory.port);
    let gateway = IniGateway::with(&Setup {
        ini: &format!("{SHOP}[pgbouncer]\nauth_type = hba\nauth_hba_file = $DIR/hba\n"),
        files: &[("hba", &(rule + &url))],
        ..Setup::default()
    });
    gateway.startup("shop").user("app").password("secret of app").connect().ok("select 1");
    assert_rejected(&gateway, "app", "wrong");
    // This directory rejects anonymous searches.
    let refused = gateway.startup("own").user("app").password("secret of app").refused();
    assert_eq!(refused.message, "LDAP authentication failed");
}

#[test]
fn ambiguous_user_and_missing_directory_are_rejected() {
    let Some(directory) = Directory::start(&["one", "two"]) else { return };
    let options = directory.search_options("ldapsearchfilter=(sn=twin)");
    let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\nauth_type = ldap\nauth_ldap_options = {options}\n"));
    assert_rejected(&gateway, "one", "secret of one");
    gateway.wait_for_log("several entries match");
    drop(directory);
    assert_rejected(&gateway, "one", "secret of one");
}

#[test]
fn invalid_ldap_options_are_reported() {
    let setup = Setup {
        ini: &format!("{SHOP}[pgbouncer]\nauth_type = ldap\nauth_ldap_options = ldapserver=d\n"),
        ..Setup::default()
    };
    let mut gateway = IniGateway::spawn(&setup, free_port_of(33_000..34_000));
    assert!(!gateway.wait().success());
    assert!(gateway.log().contains("ldap needs ldapbasedn, ldapprefix, or ldapsuffix"), "{}", gateway.log());
}

/// A gateway that trusts only the authority in this file.
fn trusting(ca: &Path, options: &str) -> IniGateway {
    let trusted = format!("SSL_CERT_FILE={}", ca.display());
    IniGateway::with(&Setup {
        ini: &format!("{SHOP}[pgbouncer]\nauth_type = ldap\nauth_ldap_options = {options}\n"),
        starter: &["env", &trusted],
        ..Setup::default()
    })
}

const ENTRY: &str = "ldapprefix=\"uid=\" ldapsuffix=\",dc=example,dc=net\"";
const SEARCH: &str = "ldapbinddn=\"cn=admin,dc=example,dc=net\" ldapbindpasswd=of-the-admin";

#[test]
fn directory_is_used_over_tls() {
    let authority = Authority::new();
    let Some(directory) = Directory::start_with_tls(&["app"], &authority) else { return };
    let (plain, tls) = (directory.port, directory.tls_port);
    for options in [
        format!("ldapserver=localhost ldapport={tls} ldapscheme=ldaps {ENTRY}"),
        format!("ldapurl=\"ldaps://localhost:{tls}/dc=example,dc=net?uid?sub\" {SEARCH}"),
        format!("ldapserver=localhost ldapport={plain} ldaptls=1 {ENTRY}"),
        format!("ldapurl=\"ldap://localhost:{plain}/dc=example,dc=net?uid?sub\" ldaptls=1 {SEARCH}"),
        // The first address has no listener, and the second is used.
        format!("ldapserver=\"127.0.0.2 localhost\" ldapport={tls} ldapscheme=ldaps {ENTRY}"),
    ] {
        let gateway = trusting(&authority.ca(), &options);
        gateway.startup("shop").user("app").password("secret of app").connect().ok("select 1");
        assert_rejected(&gateway, "app", "wrong");
        let of_rule = IniGateway::with(&Setup {
            ini: &format!("{SHOP}[pgbouncer]\nauth_type = hba\nauth_hba_file = $DIR/hba\n"),
            files: &[("hba", &format!("host all all all ldap {options}\n"))],
            starter: &["env", &format!("SSL_CERT_FILE={}", authority.ca().display())],
            ..Setup::default()
        });
        of_rule.startup("shop").user("app").password("secret of app").connect().ok("select 1");
    }
    // This directory rejects passwords without TLS, which shows that the logins above used TLS.
    let gateway = trusting(&authority.ca(), &format!("ldapserver=localhost ldapport={plain} ldaptls=0 {ENTRY}"));
    assert_rejected(&gateway, "app", "secret of app");
    gateway.wait_for_log("confidentiality required");
}

#[test]
fn untrusted_directory_gets_no_password() {
    let (authority, other) = (Authority::new(), Authority::new());
    let Some(directory) = Directory::start_with_tls(&["app"], &authority) else { return };
    let (plain, tls) = (directory.port, directory.tls_port);
    let variants = |host: &str| {
        [
            format!("ldapserver={host} ldapport={tls} ldapscheme=ldaps {ENTRY}"),
            format!("ldapserver={host} ldapport={plain} ldaptls=1 {ENTRY}"),
        ]
    };
    for options in variants("localhost") {
        let gateway = trusting(&other.ca(), &options);
        assert_rejected(&gateway, "app", "secret of app");
        gateway.wait_for_log("its certificate is of no authority that this machine trusts");
    }
    for options in variants("127.0.0.1") {
        let gateway = trusting(&authority.ca(), &options);
        assert_rejected(&gateway, "app", "secret of app");
        gateway.wait_for_log("its certificate is for another name");
    }
    // A directory without TLS gets no password either.
    let Some(directory) = Directory::start(&["app"]) else { return };
    let options = format!("ldapserver=localhost ldapport={} ldaptls=1 {ENTRY}", directory.port);
    let gateway = trusting(&authority.ca(), &options);
    assert_rejected(&gateway, "app", "secret of app");
    gateway.wait_for_log("it refuses StartTLS");
}
