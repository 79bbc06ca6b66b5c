//! Who may come from where, and how they prove who they are: files as `pg_hba.conf` and `pg_ident.conf`.
//!
//! The grammar is that of the PostgreSQL documentation ("The pg_hba.conf File", "User Name Maps"), without groups, names of
//! hosts, and regular expressions in rules; maps have them. The first rule that fits decides.

use std::{collections::HashMap, fs, net::IpAddr, path::Path, sync::Arc};

use crate::AuthMethod;

mod ldap;
mod maps;
mod options;
mod words;

use maps::Mapping;
use words::{Word, lines};

pub use ldap::{Ldap, Scope, Search, Way};
pub use options::{Certificate, CertificateName};

/// The rules, and the maps that they name.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    maps: HashMap<String, Vec<Mapping>>,
    /// The line of the first rule that asks for a certificate.
    certificates_at: Option<usize>,
    /// The line of the first rule by which a password may cross a network in clear text.
    clear_text_at: Option<usize>,
}

/// A line of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    transport: Transport,
    databases: Vec<Name>,
    users: Vec<Name>,
    network: Network,
    verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Unix,
    Tcp,
    WithTls,
    WithoutTls,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    All,
    SameUser,
    Replication,
    Exact(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    All,
    Cidr(IpAddr, u8),
}

/// What a rule says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The client is asked for proof in this way.
    Method(AuthMethod),
    /// The same, and its certificate has to be as told.
    Certified(AuthMethod, Certificate),
    /// A directory judges the password.
    Ldap(Arc<Ldap>),
    /// The process at the other end of the unix socket has to belong to the user, by a map if there is one.
    Peer(Option<String>),
    /// The client is kept out.
    Reject,
}

impl Verdict {
    /// That the client is asked for proof in this way, whatever rules there are.
    #[must_use]
    pub fn of(method: AuthMethod) -> Self {
        match method {
            AuthMethod::Cert => Self::Certified(method, Certificate::of_user()),
            _ => Self::Method(method),
        }
    }
}

/// A client as the rules see it.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// Where it comes from; nothing for a unix socket.
    pub ip: Option<IpAddr>,
    /// Whether it uses TLS.
    pub tls: bool,
    /// Whether it asks for physical replication.
    pub replication: bool,
    /// The database it asks for.
    pub database: &'a str,
    /// As whom it comes.
    pub user: &'a str,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}{place}: {reason}", place = .line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct HbaError {
    file: String,
    line: Option<usize>,
    reason: String,
}

impl HbaError {
    /// The file.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line that cannot be understood; the first if it is the whole file.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line.unwrap_or(1)
    }

    /// Why it cannot be used.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Where it is, without anything that the file says.
    #[must_use]
    pub fn outline(&self) -> String {
        match self.line {
            Some(line) => format!("{}:{line}: invalid rule or map", self.file),
            None => format!("{}: the file cannot be used", self.file),
        }
    }
}

/// Files larger than this are no rules.
const LARGEST_BYTES: u64 = 4 << 20;

impl Rules {
    /// Reads both files; an empty path is none.
    ///
    /// # Errors
    /// The first line that cannot be understood: a rule that is passed over might be the one that keeps somebody out.
    pub fn load(rules: &Path, maps: &Path) -> Result<Self, HbaError> {
        let folder = rules.parent().unwrap_or(Path::new(""));
        let include = |file: &Path| read(&folder.join(file)).map_err(|error| error.reason);
        let mut read_rules = Self::parse(&read(rules)?, &include).map_err(|wrong| in_file(rules, wrong))?;
        if !maps.as_os_str().is_empty() {
            read_rules.maps = maps::parse(&read(maps)?).map_err(|wrong| in_file(maps, wrong))?;
        }
        Ok(read_rules)
    }

    fn parse(text: &str, include: &Include<'_>) -> Result<Self, Wrong> {
        let mut rules = Self::default();
        for (number, words) in lines(text)? {
            let rule = rule(&words, include).map_err(|reason| (number, reason))?;
            if matches!(rule.verdict, Verdict::Certified(..)) {
                rules.certificates_at.get_or_insert(number);
            }
            if rule.takes_clear_text() {
                rules.clear_text_at.get_or_insert(number);
            }
            rules.rules.push(rule);
        }
        Ok(rules)
    }

    /// Sees that no rule asks for certificates, where clients are not asked for them.
    ///
    /// # Errors
    /// The first that does, in that file.
    pub fn refuse_certificates(&self, file: &Path) -> Result<(), HbaError> {
        let Some(line) = self.certificates_at else { return Ok(()) };
        let reason = "certificates are checked with authorities only: name them in tls_client_ca of [listen] \
                      (client_tls_ca_file), with TLS on";
        Err(in_file(file, (line, reason.to_owned())))
    }

    /// The line of the first rule by which a password may cross a network in clear text, without TLS.
    #[must_use]
    pub fn clear_text_at(&self) -> Option<usize> {
        self.clear_text_at
    }

    /// What the first rule that fits says; nothing if none does.
    #[must_use]
    pub fn judge(&self, caller: &Caller<'_>) -> Option<&Verdict> {
        self.rules.iter().find(|rule| rule.fits(caller)).map(|rule| &rule.verdict)
    }

    /// Whether `system`, a user of the machine or a name of a certificate, may come as `user`.
    #[must_use]
    pub fn may_come_as(&self, map: Option<&str>, system: &str, user: &str) -> bool {
        match map {
            None => system == user,
            Some(map) => self.maps.get(map).is_some_and(|lines| lines.iter().any(|line| line.lets(system, user))),
        }
    }
}

type Wrong = (usize, String);

fn in_file(file: &Path, (line, reason): Wrong) -> HbaError {
    HbaError { file: file.display().to_string(), line: Some(line), reason }
}

fn read(file: &Path) -> Result<String, HbaError> {
    let error = |reason: String| HbaError { file: file.display().to_string(), line: None, reason };
    let length = fs::metadata(file).map_err(|wrong| error(wrong.to_string()))?.len();
    if length > LARGEST_BYTES {
        return Err(error(format!("it is larger than {} MiB", LARGEST_BYTES >> 20)));
    }
    let bytes = fs::read(file).map_err(|wrong| error(wrong.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a file that a rule names.
type Include<'a> = dyn Fn(&Path) -> Result<String, String> + 'a;

/// Files of names within files at most; more are a circle.
const DEPTH_MAX: usize = 10;

fn rule(words: &[Vec<Word>], include: &Include<'_>) -> Result<Rule, String> {
    let text = |at: usize| words.get(at).and_then(|words| words.first()).map(|word| word.text.as_str());
    let transport = match text(0).unwrap_or_default() {
        "local" => Transport::Unix,
        "host" => Transport::Tcp,
        "hostssl" => Transport::WithTls,
        "hostnossl" => Transport::WithoutTls,
        other => return Err(format!("`{other}` is none of local, host, hostssl, hostnossl")),
    };
    let listed = |at: usize| {
        let words = words.get(at).ok_or("a rule ends too early")?;
        names(words, Path::new(""), 0, include)
    };
    let (databases, users) = (listed(1)?, listed(2)?);
    let (network, at) = match transport {
        Transport::Unix => (Network::All, 3),
        _ => network(text(3).ok_or("a rule without an address")?, text(4))?,
    };
    let method = text(at).ok_or("a rule without a method")?;
    let options = words.get(at + 1..).unwrap_or_default().iter().flatten().map(|word| word.text.as_str());
    let verdict = options::verdict(method, options, transport == Transport::WithTls)?;
    Ok(Rule { transport, databases, users, network, verdict })
}

/// What the words of a field mean; files that they name are in `folder`, `depth` files deep.
fn names(words: &[Word], folder: &Path, depth: usize, include: &Include<'_>) -> Result<Vec<Name>, String> {
    let mut names = Vec::new();
    for word in words {
        let name = match word.text.as_str() {
            _ if word.quoted => Name::Exact(word.text.clone()),
            "all" => Name::All,
            "sameuser" => Name::SameUser,
            "replication" => Name::Replication,
            "samerole" | "samegroup" => return Err(format!("`{}` is not supported", word.text)),
            group if group.starts_with('+') => return Err(format!("`{group}`: groups are not supported")),
            file if file.starts_with('@') => {
                let within = |reason: String| format!("{file}: {reason}");
                names.extend(names_in(&folder.join(&file[1..]), depth, include).map_err(within)?);
                continue;
            }
            name => Name::Exact(name.to_owned()),
        };
        names.push(name);
    }
    Ok(names)
}

/// The words of a file mean what they would mean in the rule, keywords and further files among them.
fn names_in(file: &Path, depth: usize, include: &Include<'_>) -> Result<Vec<Name>, String> {
    if depth == DEPTH_MAX {
        return Err("files name each other in a circle".to_owned());
    }
    let (text, folder) = (include(file)?, file.parent().unwrap_or(Path::new("")));
    let lines = lines(&text).map_err(|(number, reason)| format!("line {number}: {reason}"))?;
    let words: Vec<_> = lines.into_iter().flat_map(|(_, fields)| fields).flatten().collect();
    names(&words, folder, depth + 1, include)
}

/// An address, and with it the place of the method: a mask may stand beside it.
fn network(address: &str, next: Option<&str>) -> Result<(Network, usize), String> {
    let wrong = || format!("`{address}` is not an address: write 10.0.0.0/8, ::1/128 or all");
    if address == "all" {
        return Ok((Network::All, 4));
    }
    if let Some((ip, bits)) = address.split_once('/') {
        let (ip, bits): (IpAddr, u8) = (ip.parse().map_err(|_| wrong())?, bits.parse().map_err(|_| wrong())?);
        let most = if ip.is_ipv4() { 32 } else { 128 };
        return if bits <= most { Ok((Network::Cidr(ip, bits), 4)) } else { Err(wrong()) };
    }
    let ip: IpAddr = address.parse().map_err(|_| wrong())?;
    match next.and_then(|next| next.parse::<IpAddr>().ok()) {
        Some(mask) => Ok((Network::Cidr(ip, bits_of(mask)), 5)),
        None => Ok((Network::Cidr(ip, if ip.is_ipv4() { 32 } else { 128 }), 4)),
    }
}

fn bits_of(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => u32::from(mask).leading_ones(),
        IpAddr::V6(mask) => u128::from(mask).leading_ones(),
    };
    u8::try_from(ones).unwrap_or(128)
}

impl Rule {
    /// Whether a client on another machine may send its password in clear text.
    fn takes_clear_text(&self) -> bool {
        let is_remote = match self.network {
            Network::All => true,
            Network::Cidr(ip, _) => !ip.is_loopback(),
        };
        let is_clear = |method: AuthMethod| matches!(method, AuthMethod::Password | AuthMethod::Pam);
        let sends_password = match &self.verdict {
            Verdict::Method(method) | Verdict::Certified(method, _) => is_clear(*method),
            Verdict::Ldap(_) => true,
            Verdict::Peer(_) | Verdict::Reject => false,
        };
        matches!(self.transport, Transport::Tcp | Transport::WithoutTls) && is_remote && sends_password
    }

    fn fits(&self, caller: &Caller<'_>) -> bool {
        let transport = match (self.transport, caller.ip) {
            (Transport::Unix, ip) => ip.is_none(),
            (_, None) => false,
            (Transport::Tcp, _) => true,
            (Transport::WithTls, _) => caller.tls,
            (Transport::WithoutTls, _) => !caller.tls,
        };
        let database = |name: &Name| match name {
            // Replication is asked for by its own name only.
            Name::Replication => caller.replication,
            _ if caller.replication => false,
            Name::All => true,
            Name::SameUser => caller.database == caller.user,
            Name::Exact(name) => caller.database == name,
        };
        let user = |name: &Name| match name {
            Name::All => true,
            Name::Exact(name) => caller.user == name,
            Name::SameUser | Name::Replication => false,
        };
        transport
            && caller.ip.is_none_or(|ip| self.network.has(ip))
            && self.databases.iter().any(database)
            && self.users.iter().any(user)
    }
}

impl Network {
    fn has(self, ip: IpAddr) -> bool {
        let Self::Cidr(network, bits) = self else { return true };
        let bits = u32::from(bits);
        // A client of a socket for both families looks like ::ffff:10.0.0.1.
        match (network, ip.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                let shift = 32_u32.saturating_sub(bits);
                u32::from(network).checked_shr(shift) == u32::from(ip).checked_shr(shift)
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                let shift = 128_u32.saturating_sub(bits);
                u128::from(network).checked_shr(shift) == u128::from(ip).checked_shr(shift)
            }
            _ => false,
        }
    }
}

/// The name of a user of this machine, from its file of users.
#[must_use]
pub fn name_of_uid(uid: u32) -> Option<String> {
    let text = fs::read_to_string("/etc/passwd").ok()?;
    let named = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    };
    text.lines().find_map(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::parse(text, &|_| Ok("carol\n\"d e\"\n".into())).unwrap_or_else(|wrong| panic!("{wrong:?}"))
    }

    fn caller<'a>(ip: &str, database: &'a str, user: &'a str) -> Caller<'a> {
        Caller { ip: ip.parse().ok(), tls: false, replication: false, database, user }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = rules(
            "# who\nlocal all all peer map=m\nhostssl all all all trust\nhost shop,\"all\" app 10.0.0.0/8 md5\n\
             host all mallory 0.0.0.0/0 reject\nhost sameuser all ::1/128 scram-sha-256\n\
             host replication all 10.1.0.0 255.255.0.0 plain\nhost all @file 192.168.1.1/32 trust\n",
        );
        let method = |method| Some(Verdict::Method(method));
        let judge = |caller: Caller<'_>| rules.judge(&caller).cloned();
        assert_eq!(judge(caller("", "x", "y")), Some(Verdict::Peer(Some("m".into()))));
        assert_eq!(judge(caller("10.9.9.9", "shop", "app")), method(AuthMethod::Md5));
        assert_eq!(judge(caller("::ffff:10.9.9.9", "all", "app")), method(AuthMethod::Md5));
        assert_eq!(judge(caller("10.9.9.9", "other", "app")), None);
        assert_eq!(judge(caller("10.9.9.9", "shop", "mallory")), Some(Verdict::Reject));
        assert_eq!(judge(caller("::1", "bob", "bob")), method(AuthMethod::ScramSha256));
        assert_eq!(judge(caller("::2", "bob", "bob")), None);
        assert_eq!(judge(Caller { tls: true, ..caller("::2", "bob", "bob") }), method(AuthMethod::Trust));
        let replica = Caller { replication: true, ..caller("10.1.2.3", "shop", "r") };
        assert_eq!(judge(replica), method(AuthMethod::Password));
        assert_eq!(judge(caller("192.168.1.1", "x", "d e")), method(AuthMethod::Trust));
    }

    #[test]
    fn a_file_of_names_says_what_the_rule_would_say() {
        let files = |file: &Path| match file.to_str() {
            Some("lists/blocked") => Ok("mallory, \"all\"\n@more # beside it\n".to_owned()),
            Some("lists/more") => Ok("eve\n".to_owned()),
            Some("everybody") => Ok("all\n".to_owned()),
            Some("circle") => Ok("@circle\n".to_owned()),
            Some("groups") => Ok("a\n+staff\n".to_owned()),
            _ => Err("it is not there".to_owned()),
        };
        let read = |rule: &str| Rules::parse(rule, &files);
        let keeps_out = |rule: &str, user: &str| {
            let rules = read(rule).unwrap_or_else(|wrong| panic!("{rule}: {wrong:?}"));
            rules.judge(&caller("::1", "shop", user)) == Some(&Verdict::Reject)
        };
        for (user, is_kept_out) in [("mallory", true), ("eve", true), ("all", true), ("app", false)] {
            assert_eq!(keeps_out("host all @lists/blocked all reject", user), is_kept_out, "{user}");
        }
        assert!(
            keeps_out("host @everybody app all reject", "app") && keeps_out("host all @everybody all reject", "app")
        );
        for (rule, told) in [
            ("host all @circle all reject", "circle"),
            ("host all @groups all reject", "groups are not"),
            ("host all @nowhere all reject", "@nowhere: it is not there"),
        ] {
            let (_, reason) = read(rule).expect_err(rule);
            assert!(reason.contains(told), "{reason}");
        }
    }

    #[test]
    fn a_map_says_who_comes_as_whom() {
        let maps = maps::parse("m root app # x\nm \"web server\" all\n").expect("maps");
        let rules = Rules { maps, ..Rules::default() };
        assert!(rules.may_come_as(Some("m"), "root", "app") && !rules.may_come_as(Some("m"), "root", "other"));
        assert!(rules.may_come_as(Some("m"), "web server", "whoever"));
        assert!(rules.may_come_as(None, "app", "app") && !rules.may_come_as(Some("n"), "app", "app"));
    }

    #[test]
    fn what_cannot_be_understood_is_told_with_its_line() {
        for text in [
            "hosts all all all trust",
            "host all all nowhere.example trust",
            "host all all 10.0.0.0/40 trust",
            "host all +group all trust",
            "host all all all",
            "host all all all ldap",
            "host all all all md5 map=m",
            "host all all all cert",
            "host all all all md5 clientcert=verify-ca",
            "hostssl all all all md5 clientcert=1",
            "hostssl all all all cert clientcert=verify-ca",
            "hostssl all all all md5 clientcert=verify-full map=m",
            "hostssl all all all md5 clientname=DN",
            "hostssl all all all pam map=m",
            #[cfg(not(feature = "pam"))]
            "host all all all pam",
            "local all",
            "local samerole all trust",
        ] {
            let wrong = Rules::parse(&format!("\n{text}\n"), &|_| Ok(String::new())).expect_err(text);
            assert_eq!(wrong.0, 2, "{text}");
        }
    }

    #[test]
    fn a_rule_can_ask_for_a_certificate() {
        let rules = rules(
            "hostssl a all all cert map=m\nhostssl b all all scram-sha-256 clientcert=verify-ca\n\
             hostssl c all all md5 clientcert=verify-full\nhostssl d all all cert clientname=DN\n",
        );
        let judge = |database| rules.judge(&Caller { tls: true, ..caller("::1", database, "u") }).cloned();
        let name = |name| Certificate { name, map: None };
        let common = Some(CertificateName::Common);
        let mapped = Certificate { map: Some("m".into()), ..name(common) };
        assert_eq!(judge("a"), Some(Verdict::Certified(AuthMethod::Cert, mapped)));
        assert_eq!(judge("b"), Some(Verdict::Certified(AuthMethod::ScramSha256, name(None))));
        assert_eq!(judge("c"), Some(Verdict::Certified(AuthMethod::Md5, name(common))));
        let distinguished = name(Some(CertificateName::Distinguished));
        assert_eq!(judge("d"), Some(Verdict::Certified(AuthMethod::Cert, distinguished)));
        assert!(
            rules.refuse_certificates(Path::new("hba")).expect_err("it is told").to_string().starts_with("hba:1: ")
        );
    }

    #[test]
    fn root_has_the_number_zero() {
        assert_eq!(name_of_uid(0).as_deref(), Some("root"));
    }
}
