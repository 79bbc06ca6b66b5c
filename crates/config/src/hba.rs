//! Access rules and user name maps in the format of `pg_hba.conf` and `pg_ident.conf`.
//!
//! The grammar is that of the PostgreSQL documentation ("The pg_hba.conf File", "User Name Maps"), without groups, host
//! names, and regular expressions in rules; maps support them. The first matching rule decides.

use std::{collections::HashMap, fs, net::IpAddr, path::Path, sync::Arc};

use crate::AuthMethod;

mod ldap;
mod options;
mod tokens;
mod user_map;

use tokens::{HbaToken, lines};
use user_map::UserMapping;

pub use ldap::{LdapBind, LdapConfig, LdapScope, LdapSearch};
pub use options::{CertificateCheck, CertificateName};

/// Access rules with their user name maps.
#[derive(Debug, Clone, Default)]
pub struct HbaRules {
    rules: Vec<HbaRule>,
    maps: HashMap<String, Vec<UserMapping>>,
    /// Line of the first rule that needs a client certificate.
    certificates_at: Option<usize>,
    /// Line of the first rule that allows a clear-text password over a network.
    clear_text_at: Option<usize>,
}

/// A line of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HbaRule {
    transport: HbaTransport,
    databases: Vec<NameMatch>,
    users: Vec<NameMatch>,
    network: HbaNetwork,
    verdict: HbaAction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HbaTransport {
    Unix,
    Tcp,
    WithTls,
    WithoutTls,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum NameMatch {
    All,
    SameUser,
    Replication,
    Exact(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HbaNetwork {
    All,
    Cidr(IpAddr, u8),
}

/// The action of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HbaAction {
    /// Authenticate the client with this method.
    Method(AuthMethod),
    /// Authenticate the client with this method, and check its certificate.
    Certified(AuthMethod, CertificateCheck),
    /// Verify the password with LDAP.
    Ldap(Arc<LdapConfig>),
    /// The process at the other end of the Unix socket must belong to the user, or be mapped to it.
    Peer(Option<String>),
    /// Refuse the client.
    Reject,
}

impl HbaAction {
    /// The action of a method without rules.
    #[must_use]
    pub fn of(method: AuthMethod) -> Self {
        match method {
            AuthMethod::Cert => Self::Certified(method, CertificateCheck::of_user()),
            _ => Self::Method(method),
        }
    }
}

/// Properties of a client that rules test.
#[derive(Debug, Clone, Copy)]
pub struct HbaClient<'a> {
    /// Address; `None` for a Unix socket.
    pub ip: Option<IpAddr>,
    /// Whether the connection uses TLS.
    pub tls: bool,
    /// Whether the client requests physical replication.
    pub replication: bool,
    /// Requested database.
    pub database: &'a str,
    /// User of the login.
    pub user: &'a str,
}

/// Error in a file of rules or maps.
#[derive(Debug, thiserror::Error)]
#[error("{file}{place}: {reason}", place = .line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct HbaError {
    file: String,
    line: Option<usize>,
    reason: String,
}

impl HbaError {
    /// Name of the file.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Line of the error; 1 if it concerns the whole file.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line.unwrap_or(1)
    }

    /// Reason of the error.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// File and line, without content of the file.
    #[must_use]
    pub fn outline(&self) -> String {
        match self.line {
            Some(line) => format!("{}:{line}: invalid rule or map", self.file),
            None => format!("{}: the file cannot be used", self.file),
        }
    }
}

/// Maximum size of a file of rules.
const FILE_BYTES_MAX: u64 = 4 << 20;

impl HbaRules {
    /// Reads both files; an empty path is none.
    ///
    /// # Errors
    /// The first invalid line. Invalid rules are not skipped, because one of them may refuse clients.
    pub fn load(rules: &Path, maps: &Path) -> Result<Self, HbaError> {
        let folder = rules.parent().unwrap_or(Path::new(""));
        let include = |file: &Path| read(&folder.join(file)).map_err(|error| error.reason);
        let mut read_rules = Self::parse(&read(rules)?, &include).map_err(|wrong| line_error(rules, wrong))?;
        if !maps.as_os_str().is_empty() {
            read_rules.maps = user_map::parse(&read(maps)?).map_err(|wrong| line_error(maps, wrong))?;
        }
        Ok(read_rules)
    }

    fn parse(text: &str, include: &IncludeFn<'_>) -> Result<Self, HbaLineError> {
        let mut rules = Self::default();
        for (number, words) in lines(text)? {
            let rule = rule(&words, include).map_err(|reason| (number, reason))?;
            if matches!(rule.verdict, HbaAction::Certified(..)) {
                rules.certificates_at.get_or_insert(number);
            }
            if rule.takes_clear_text() {
                rules.clear_text_at.get_or_insert(number);
            }
            rules.rules.push(rule);
        }
        Ok(rules)
    }

    /// Checks that no rule needs client certificates, for a gateway that does not request them.
    ///
    /// # Errors
    /// The first rule that needs one; `file` is the file of the rules.
    pub fn reject_certificate_rules(&self, file: &Path) -> Result<(), HbaError> {
        let Some(line) = self.certificates_at else { return Ok(()) };
        let reason = "certificates need authorities: set tls_client_ca in [listen] \
                      (client_tls_ca_file), with TLS on";
        Err(line_error(file, (line, reason.to_owned())))
    }

    /// Line of the first rule that allows a clear-text password over a network without TLS.
    #[must_use]
    pub fn clear_text_line(&self) -> Option<usize> {
        self.clear_text_at
    }

    /// Action of the first matching rule; `None` if no rule matches.
    #[must_use]
    pub fn action_for(&self, client: &HbaClient<'_>) -> Option<&HbaAction> {
        self.rules.iter().find(|rule| rule.matches(client)).map(|rule| &rule.verdict)
    }

    /// Whether `system`, a user of the machine or a name in a certificate, may log in as `user`.
    #[must_use]
    pub fn user_map_allows(&self, map: Option<&str>, system: &str, user: &str) -> bool {
        match map {
            None => system == user,
            Some(map) => self.maps.get(map).is_some_and(|lines| lines.iter().any(|line| line.allows(system, user))),
        }
    }
}

type HbaLineError = (usize, String);

fn line_error(file: &Path, (line, reason): HbaLineError) -> HbaError {
    HbaError { file: file.display().to_string(), line: Some(line), reason }
}

fn read(file: &Path) -> Result<String, HbaError> {
    let error = |reason: String| HbaError { file: file.display().to_string(), line: None, reason };
    let length = fs::metadata(file).map_err(|wrong| error(wrong.to_string()))?.len();
    if length > FILE_BYTES_MAX {
        return Err(error(format!("it is larger than {} MiB", FILE_BYTES_MAX >> 20)));
    }
    let bytes = fs::read(file).map_err(|wrong| error(wrong.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a file that a rule names.
type IncludeFn<'a> = dyn Fn(&Path) -> Result<String, String> + 'a;

/// Maximum nesting depth of files of names; deeper nesting is treated as a cycle.
const DEPTH_MAX: usize = 10;

fn rule(words: &[Vec<HbaToken>], include: &IncludeFn<'_>) -> Result<HbaRule, String> {
    let text = |at: usize| words.get(at).and_then(|words| words.first()).map(|word| word.text.as_str());
    let transport = match text(0).unwrap_or_default() {
        "local" => HbaTransport::Unix,
        "host" => HbaTransport::Tcp,
        "hostssl" => HbaTransport::WithTls,
        "hostnossl" => HbaTransport::WithoutTls,
        other => return Err(format!("`{other}` is not one of local, host, hostssl, hostnossl")),
    };
    let listed = |at: usize| {
        let words = words.get(at).ok_or("the rule is incomplete")?;
        names(words, Path::new(""), 0, include)
    };
    let (databases, users) = (listed(1)?, listed(2)?);
    let (network, at) = match transport {
        HbaTransport::Unix => (HbaNetwork::All, 3),
        _ => network(text(3).ok_or("the rule has no address")?, text(4))?,
    };
    let method = text(at).ok_or("the rule has no method")?;
    let options = words.get(at + 1..).unwrap_or_default().iter().flatten().map(|word| word.text.as_str());
    let verdict = options::verdict(method, options, transport == HbaTransport::WithTls)?;
    Ok(HbaRule { transport, databases, users, network, verdict })
}

/// Parses the words of a field. Files that they name are in `folder`; `depth` is the nesting depth.
fn names(words: &[HbaToken], folder: &Path, depth: usize, include: &IncludeFn<'_>) -> Result<Vec<NameMatch>, String> {
    let mut names = Vec::new();
    for word in words {
        let name = match word.text.as_str() {
            _ if word.quoted => NameMatch::Exact(word.text.clone()),
            "all" => NameMatch::All,
            "sameuser" => NameMatch::SameUser,
            "replication" => NameMatch::Replication,
            "samerole" | "samegroup" => return Err(format!("`{}` is not supported", word.text)),
            group if group.starts_with('+') => return Err(format!("`{group}`: groups are not supported")),
            file if file.starts_with('@') => {
                let within = |reason: String| format!("{file}: {reason}");
                names.extend(names_in(&folder.join(&file[1..]), depth, include).map_err(within)?);
                continue;
            }
            name => NameMatch::Exact(name.to_owned()),
        };
        names.push(name);
    }
    Ok(names)
}

/// Words in a file have the same meaning as in a rule, including keywords and further files.
fn names_in(file: &Path, depth: usize, include: &IncludeFn<'_>) -> Result<Vec<NameMatch>, String> {
    if depth == DEPTH_MAX {
        return Err("files include each other in a cycle".to_owned());
    }
    let (text, folder) = (include(file)?, file.parent().unwrap_or(Path::new("")));
    let lines = lines(&text).map_err(|(number, reason)| format!("line {number}: {reason}"))?;
    let words: Vec<_> = lines.into_iter().flat_map(|(_, fields)| fields).flatten().collect();
    names(&words, folder, depth + 1, include)
}

/// Parses an address. Also returns the index of the method, because a mask may follow the address.
fn network(address: &str, next: Option<&str>) -> Result<(HbaNetwork, usize), String> {
    let wrong = || format!("`{address}` is not an address: write 10.0.0.0/8, ::1/128 or all");
    if address == "all" {
        return Ok((HbaNetwork::All, 4));
    }
    if let Some((ip, bits)) = address.split_once('/') {
        let (ip, bits): (IpAddr, u8) = (ip.parse().map_err(|_| wrong())?, bits.parse().map_err(|_| wrong())?);
        let most = if ip.is_ipv4() { 32 } else { 128 };
        return if bits <= most { Ok((HbaNetwork::Cidr(ip, bits), 4)) } else { Err(wrong()) };
    }
    let ip: IpAddr = address.parse().map_err(|_| wrong())?;
    match next.and_then(|next| next.parse::<IpAddr>().ok()) {
        Some(mask) => Ok((HbaNetwork::Cidr(ip, bits_of(mask)), 5)),
        None => Ok((HbaNetwork::Cidr(ip, if ip.is_ipv4() { 32 } else { 128 }), 4)),
    }
}

fn bits_of(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => u32::from(mask).leading_ones(),
        IpAddr::V6(mask) => u128::from(mask).leading_ones(),
    };
    u8::try_from(ones).unwrap_or(128)
}

impl HbaRule {
    /// Whether a client on another machine may send its password in clear text.
    fn takes_clear_text(&self) -> bool {
        let is_remote = match self.network {
            HbaNetwork::All => true,
            HbaNetwork::Cidr(ip, _) => !ip.is_loopback(),
        };
        let is_clear = |method: AuthMethod| matches!(method, AuthMethod::Password | AuthMethod::Pam);
        let sends_password = match &self.verdict {
            HbaAction::Method(method) | HbaAction::Certified(method, _) => is_clear(*method),
            HbaAction::Ldap(_) => true,
            HbaAction::Peer(_) | HbaAction::Reject => false,
        };
        matches!(self.transport, HbaTransport::Tcp | HbaTransport::WithoutTls) && is_remote && sends_password
    }

    fn matches(&self, client: &HbaClient<'_>) -> bool {
        let transport = match (self.transport, client.ip) {
            (HbaTransport::Unix, ip) => ip.is_none(),
            (_, None) => false,
            (HbaTransport::Tcp, _) => true,
            (HbaTransport::WithTls, _) => client.tls,
            (HbaTransport::WithoutTls, _) => !client.tls,
        };
        let database = |name: &NameMatch| match name {
            // As in Postgres, `all` does not match replication.
            NameMatch::Replication => client.replication,
            _ if client.replication => false,
            NameMatch::All => true,
            NameMatch::SameUser => client.database == client.user,
            NameMatch::Exact(name) => client.database == name,
        };
        let user = |name: &NameMatch| match name {
            NameMatch::All => true,
            NameMatch::Exact(name) => client.user == name,
            NameMatch::SameUser | NameMatch::Replication => false,
        };
        transport
            && client.ip.is_none_or(|ip| self.network.has(ip))
            && self.databases.iter().any(database)
            && self.users.iter().any(user)
    }
}

impl HbaNetwork {
    fn has(self, ip: IpAddr) -> bool {
        let Self::Cidr(network, bits) = self else { return true };
        let bits = u32::from(bits);
        // IPv4 clients of a dual-stack socket have addresses such as ::ffff:10.0.0.1.
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

/// Name of a user of this machine, from `/etc/passwd`.
#[must_use]
pub fn user_name_of_uid(uid: u32) -> Option<String> {
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

    fn rules(text: &str) -> HbaRules {
        HbaRules::parse(text, &|_| Ok("carol\n\"d e\"\n".into())).unwrap_or_else(|wrong| panic!("{wrong:?}"))
    }

    fn client<'a>(ip: &str, database: &'a str, user: &'a str) -> HbaClient<'a> {
        HbaClient { ip: ip.parse().ok(), tls: false, replication: false, database, user }
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let rules = rules(
            "# who\nlocal all all peer map=m\nhostssl all all all trust\nhost shop,\"all\" app 10.0.0.0/8 md5\n\
             host all mallory 0.0.0.0/0 reject\nhost sameuser all ::1/128 scram-sha-256\n\
             host replication all 10.1.0.0 255.255.0.0 plain\nhost all @file 192.168.1.1/32 trust\n",
        );
        let method = |method| Some(HbaAction::Method(method));
        let judge = |client: HbaClient<'_>| rules.action_for(&client).cloned();
        assert_eq!(judge(client("", "x", "y")), Some(HbaAction::Peer(Some("m".into()))));
        assert_eq!(judge(client("10.9.9.9", "shop", "app")), method(AuthMethod::Md5));
        assert_eq!(judge(client("::ffff:10.9.9.9", "all", "app")), method(AuthMethod::Md5));
        assert_eq!(judge(client("10.9.9.9", "other", "app")), None);
        assert_eq!(judge(client("10.9.9.9", "shop", "mallory")), Some(HbaAction::Reject));
        assert_eq!(judge(client("::1", "bob", "bob")), method(AuthMethod::ScramSha256));
        assert_eq!(judge(client("::2", "bob", "bob")), None);
        assert_eq!(judge(HbaClient { tls: true, ..client("::2", "bob", "bob") }), method(AuthMethod::Trust));
        let replica = HbaClient { replication: true, ..client("10.1.2.3", "shop", "r") };
        assert_eq!(judge(replica), method(AuthMethod::Password));
        assert_eq!(judge(client("192.168.1.1", "x", "d e")), method(AuthMethod::Trust));
    }

    #[test]
    fn names_in_a_file_mean_the_same_as_in_a_rule() {
        let files = |file: &Path| match file.to_str() {
            Some("lists/blocked") => Ok("mallory, \"all\"\n@more # beside it\n".to_owned()),
            Some("lists/more") => Ok("eve\n".to_owned()),
            Some("everybody") => Ok("all\n".to_owned()),
            Some("circle") => Ok("@circle\n".to_owned()),
            Some("groups") => Ok("a\n+staff\n".to_owned()),
            _ => Err("it is not there".to_owned()),
        };
        let read = |rule: &str| HbaRules::parse(rule, &files);
        let keeps_out = |rule: &str, user: &str| {
            let rules = read(rule).unwrap_or_else(|wrong| panic!("{rule}: {wrong:?}"));
            rules.action_for(&client("::1", "shop", user)) == Some(&HbaAction::Reject)
        };
        for (user, is_kept_out) in [("mallory", true), ("eve", true), ("all", true), ("app", false)] {
            assert_eq!(keeps_out("host all @lists/blocked all reject", user), is_kept_out, "{user}");
        }
        assert!(
            keeps_out("host @everybody app all reject", "app") && keeps_out("host all @everybody all reject", "app")
        );
        for (rule, expected) in [
            ("host all @circle all reject", "cycle"),
            ("host all @groups all reject", "groups are not"),
            ("host all @nowhere all reject", "@nowhere: it is not there"),
        ] {
            let (_, reason) = read(rule).expect_err(rule);
            assert!(reason.contains(expected), "{reason}");
        }
    }

    #[test]
    fn a_user_map_allows_its_users() {
        let maps = user_map::parse("m root app # x\nm \"web server\" all\n").expect("maps");
        let rules = HbaRules { maps, ..HbaRules::default() };
        assert!(rules.user_map_allows(Some("m"), "root", "app") && !rules.user_map_allows(Some("m"), "root", "other"));
        assert!(rules.user_map_allows(Some("m"), "web server", "anyone"));
        assert!(rules.user_map_allows(None, "app", "app") && !rules.user_map_allows(Some("n"), "app", "app"));
    }

    #[test]
    fn an_invalid_rule_is_reported_with_its_line() {
        for text in [
            "hosts all all all trust",
            "host all all nowhere.example trust",
            "host all all 10.0.0.0/40 trust",
            "host all +group all trust",
            "host all all all",
            "host all all all ldap",
            "host all all all md5 map=m",
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
            let wrong = HbaRules::parse(&format!("\n{text}\n"), &|_| Ok(String::new())).expect_err(text);
            assert_eq!(wrong.0, 2, "{text}");
        }
    }

    #[test]
    fn a_rule_can_ask_for_a_certificate() {
        let rules = rules(
            "host a all all cert map=m\nhostssl b all all scram-sha-256 clientcert=verify-ca\n\
             hostssl c all all md5 clientcert=verify-full\nhostssl d all all cert clientname=DN\n",
        );
        let judge = |database| rules.action_for(&HbaClient { tls: true, ..client("::1", database, "u") }).cloned();
        let name = |name| CertificateCheck { name, map: None };
        let common = Some(CertificateName::Common);
        let mapped = CertificateCheck { map: Some("m".into()), ..name(common) };
        assert_eq!(judge("a"), Some(HbaAction::Certified(AuthMethod::Cert, mapped)));
        assert_eq!(judge("b"), Some(HbaAction::Certified(AuthMethod::ScramSha256, name(None))));
        assert_eq!(judge("c"), Some(HbaAction::Certified(AuthMethod::Md5, name(common))));
        let distinguished = name(Some(CertificateName::Distinguished));
        assert_eq!(judge("d"), Some(HbaAction::Certified(AuthMethod::Cert, distinguished)));
        assert!(
            rules
                .reject_certificate_rules(Path::new("hba"))
                .expect_err("a rule needs certificates")
                .to_string()
                .starts_with("hba:1: ")
        );
    }

    #[test]
    fn user_zero_is_root() {
        assert_eq!(user_name_of_uid(0).as_deref(), Some("root"));
    }
}
