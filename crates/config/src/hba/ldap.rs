//! Options of the method `ldap`, as in `pg_hba.conf`.

use url::Url;

use crate::{Secret, setting::nearest, url::decode};

/// LDAP servers, and how the entry of a user is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LdapConfig {
    /// URLs `ldap://host:port` or `ldaps://host:port`; the first that can be reached is used.
    pub servers: Vec<String>,
    /// Whether StartTLS is used.
    pub start_tls: bool,
    /// How the entry of a user is found.
    pub bind: LdapBind,
}

/// How the entry of a user is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LdapBind {
    /// Simple bind: the name is built from the user name.
    Simple {
        /// Text before the user name.
        prefix: String,
        /// Text after the user name.
        suffix: String,
    },
    /// Search and bind: the entry is searched.
    Search(LdapSearch),
}

/// Parameters of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LdapSearch {
    /// Base DN.
    pub base: String,
    /// Scope of the search.
    pub scope: LdapScope,
    /// Filter, in which `$username` stands for the user name.
    pub filter: String,
    /// DN of the search; empty for an anonymous bind.
    pub user: String,
    /// Password of `user`.
    pub password: Secret,
}

/// Scope of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LdapScope {
    /// The base only.
    Base,
    /// Direct children of the base.
    One,
    /// The whole subtree.
    Subtree,
}

/// Placeholder of the user name in a filter.
const USERNAME: &str = "$username";

#[derive(Default)]
struct RawOptions {
    url: Option<String>,
    server: Option<String>,
    port: Option<u16>,
    scheme: Option<String>,
    start_tls: bool,
    prefix: Option<String>,
    suffix: Option<String>,
    base: Option<String>,
    scope: Option<LdapScope>,
    bind_user: String,
    bind_password: String,
    attribute: Option<String>,
    filter: Option<String>,
}

impl LdapConfig {
    /// Parses the options that follow `ldap` in a rule.
    ///
    /// # Errors
    /// Unknown, invalid or contradicting options.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fields = super::tokens::lines(text).map_err(|(_, reason)| reason)?;
        // Options are separated by spaces: a comma belongs to the value, quoted or not.
        let joined =
            |field: &Vec<super::HbaToken>| field.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(",");
        let texts: Vec<String> = fields.iter().flat_map(|(_, fields)| fields).map(joined).collect();
        Self::read(texts.iter().map(String::as_str))
    }

    /// Parses options word by word.
    pub(super) fn read<'o>(words: impl Iterator<Item = &'o str>) -> Result<Self, String> {
        let mut options = RawOptions::default();
        for word in words {
            options.take(word)?;
        }
        if let Some(url) = options.url.take() {
            options.take_url(&url)?;
        }
        options.finish()
    }
}

impl RawOptions {
    fn take(&mut self, word: &str) -> Result<(), String> {
        // The word may be part of an unquoted password, so only known option names are repeated.
        let (name, value) =
            word.split_once('=').ok_or("an option of ldap has no value; a value with spaces needs quotes")?;
        let text = || Some(value.to_owned());
        match name {
            "ldapurl" => self.url = text(),
            "ldapserver" => self.server = text(),
            "ldapport" => {
                let port = value.parse::<u16>().ok().filter(|port| *port > 0);
                self.port = Some(port.ok_or("ldapport is not a port")?);
            }
            "ldapscheme" if ["ldap", "ldaps"].contains(&value) => self.scheme = text(),
            "ldapscheme" => return Err("ldapscheme can be ldap or ldaps".to_owned()),
            "ldaptls" => self.start_tls = value == "1",
            "ldapprefix" => self.prefix = text(),
            "ldapsuffix" => self.suffix = text(),
            "ldapbasedn" => self.base = text(),
            "ldapbinddn" => value.clone_into(&mut self.bind_user),
            "ldapbindpasswd" => value.clone_into(&mut self.bind_password),
            "ldapsearchattribute" => self.attribute = text(),
            "ldapsearchfilter" => self.filter = text(),
            _ => {
                let known = "ldapurl, ldapserver, ldapport, ldapscheme, ldaptls, ldapprefix, ldapsuffix, ldapbasedn, \
                             ldapbinddn, ldapbindpasswd, ldapsearchattribute, ldapsearchfilter";
                let like = nearest(name, known.split(", ")).map(|near| format!("; did you mean {near}?"));
                let like = like.unwrap_or_default();
                return Err(format!("unknown option of ldap{like}; the options are {known}"));
            }
        }
        Ok(())
    }

    /// Parses `ldap://host:port/base?attribute?scope?filter`, of which every part is optional.
    fn take_url(&mut self, text: &str) -> Result<(), String> {
        let url = Url::parse(text).map_err(|error| format!("ldapurl: {error}"))?;
        let scheme = url.scheme();
        if !["ldap", "ldaps"].contains(&scheme) {
            return Err("ldapurl must start with ldap:// or ldaps://".to_owned());
        }
        self.scheme = Some(scheme.to_owned());
        self.server = url.host_str().map(str::to_owned).or_else(|| self.server.take());
        self.port = url.port().or(self.port);
        let plain = |part: &str| decode(part).map_err(|error| format!("ldapurl: {}", error.reason));
        let base = plain(url.path().trim_start_matches('/'))?;
        if !base.is_empty() {
            self.base = Some(base);
        }
        let mut parts = url.query().unwrap_or_default().split('?');
        let mut next = || parts.next().filter(|part| !part.is_empty()).map(plain).transpose();
        // As in PostgreSQL, only the first attribute is used.
        if let Some(attributes) = next()? {
            self.attribute = attributes.split(',').next().map(str::to_owned);
        }
        if let Some(scope) = next()? {
            self.scope = Some(match scope.as_str() {
                "base" => LdapScope::Base,
                "one" => LdapScope::One,
                "sub" => LdapScope::Subtree,
                _ => return Err("ldapurl: the scope can be base, one or sub".to_owned()),
            });
        }
        if let Some(filter) = next()? {
            self.filter = Some(filter);
        }
        Ok(())
    }

    fn finish(self) -> Result<LdapConfig, String> {
        let has_search_options = self.base.is_some()
            || self.attribute.is_some()
            || self.filter.is_some()
            || !self.bind_user.is_empty()
            || !self.bind_password.is_empty();
        let has_bind_name = self.prefix.is_some() || self.suffix.is_some();
        if has_search_options && has_bind_name {
            return Err("ldapprefix and ldapsuffix exclude the options of a search".to_owned());
        }
        let servers = self.server.ok_or("ldap needs ldapserver or ldapurl")?;
        let bind = if has_bind_name {
            LdapBind::Simple { prefix: self.prefix.unwrap_or_default(), suffix: self.suffix.unwrap_or_default() }
        } else {
            let base = self.base.ok_or("ldap needs ldapbasedn, ldapprefix, or ldapsuffix")?;
            let filter = match (self.filter, self.attribute) {
                (Some(_), Some(_)) => {
                    return Err("ldapsearchattribute and ldapsearchfilter exclude each other".to_owned());
                }
                // Parentheses are optional in a URL.
                (Some(filter), None) if filter.starts_with('(') => filter,
                (Some(filter), None) => format!("({filter})"),
                (None, attribute) => format!("({}={USERNAME})", attribute.as_deref().unwrap_or("uid")),
            };
            let password = Secret::new(&self.bind_password);
            let scope = self.scope.unwrap_or(LdapScope::Subtree);
            LdapBind::Search(LdapSearch { base, scope, filter, user: self.bind_user, password })
        };
        let scheme = self.scheme.as_deref().unwrap_or("ldap");
        let port = self.port.unwrap_or(if scheme == "ldaps" { 636 } else { 389 });
        let servers: Vec<_> = servers.split_whitespace().map(|host| format!("{scheme}://{host}:{port}")).collect();
        if servers.iter().any(|server| Url::parse(server).is_err()) {
            return Err("ldapserver is not a valid host".to_owned());
        }
        if servers.is_empty() {
            return Err("ldap needs ldapserver or ldapurl".to_owned());
        }
        Ok(LdapConfig { servers, start_tls: self.start_tls, bind })
    }
}

impl LdapSearch {
    /// The filter for a user; `None` if the name contains special characters of filters.
    #[must_use]
    pub fn filter_for(&self, user: &str) -> Option<String> {
        let is_safe = !user.contains(['*', '(', ')', '\\', '/', '\0']);
        is_safe.then(|| self.filter.replace(USERNAME, user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn searched(text: &str) -> (LdapConfig, LdapSearch) {
        let ldap = LdapConfig::parse(text).expect("options");
        match ldap.bind.clone() {
            LdapBind::Search(search) => (ldap, search),
            LdapBind::Simple { .. } => panic!("{text} searches"),
        }
    }

    #[test]
    fn a_url_sets_all_options() {
        let text = "ldapurl=\"ldap://127.0.0.1:12345/dc=example,dc=net?uid?sub\"";
        let (ldap, search) = searched(text);
        assert_eq!(ldap.servers, ["ldap://127.0.0.1:12345"]);
        assert_eq!((search.base.as_str(), search.scope), ("dc=example,dc=net", LdapScope::Subtree));
        assert_eq!(search.filter_for("ann").as_deref(), Some("(uid=ann)"));
        let (_, search) = searched("ldapurl=\"ldaps://d/ou=a%20b??one?(|(uid=$username)(mail=$username))\"");
        assert_eq!((search.base.as_str(), search.scope), ("ou=a b", LdapScope::One));
        assert_eq!(search.filter_for("ann").as_deref(), Some("(|(uid=ann)(mail=ann))"));
    }

    #[test]
    fn options_are_parsed() {
        let (ldap, search) = searched(
            "ldapserver=\"a b\" ldapport=1389 ldaptls=1 ldapbasedn=\"dc=x, dc=y\" ldapbinddn=\"cn=r\" \
             ldapbindpasswd=\"a b\" ldapsearchattribute=cn",
        );
        assert_eq!(ldap.servers, ["ldap://a:1389", "ldap://b:1389"]);
        assert!(ldap.start_tls);
        assert_eq!((search.base.as_str(), search.user.as_str()), ("dc=x, dc=y", "cn=r"));
        assert_eq!((search.password.reveal(), search.filter.as_str()), ("a b", "(cn=$username)"));
        let made = LdapConfig::parse("ldapserver=d ldapprefix=\"cn=\" ldapsuffix=\", dc=x\" ldapscheme=ldaps")
            .expect("options");
        assert_eq!(made.servers, ["ldaps://d:636"]);
        assert_eq!(made.bind, LdapBind::Simple { prefix: "cn=".to_owned(), suffix: ", dc=x".to_owned() });
    }

    #[test]
    fn a_user_name_cannot_change_the_filter() {
        let (_, search) = searched("ldapserver=d ldapbasedn=x");
        for user in ["*", "a)(uid=*", "a\\2a", "a/b", "a\0"] {
            assert_eq!(search.filter_for(user), None, "{user}");
        }
    }

    #[test]
    fn invalid_options_are_refused() {
        for text in [
            "",
            "ldapserver=d",
            "ldapbasedn=x",
            "ldapserver=\" \" ldapbasedn=x",
            "ldapserver=d ldapprefix=a ldapbasedn=x",
            "ldapserver=d ldapbasedn=x ldapsearchattribute=a ldapsearchfilter=(a=b)",
            "ldapserver=d ldapbasedn=x ldapport=0",
            "ldapserver=d ldapbasedn=x ldapscheme=http",
            "ldapurl=http://d/x",
            "ldapurl=ldap://d/x?uid?deep",
            "ldapurl=ldap://d/%zz",
            "ldapurl=ldap://d/%+1",
            "ldapserver=d ldapbasedn=x nonsense=1",
            "ldapserver",
        ] {
            assert!(LdapConfig::parse(text).is_err(), "{text}");
        }
    }
}
