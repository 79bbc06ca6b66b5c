//! Which directory checks a password, and how: the options that PostgreSQL has for its method `ldap`.

use url::Url;

use crate::{Secret, setting::nearest, url::decode};

/// Where the directory is, and under which name a user is known to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ldap {
    /// `ldap://host:port` or `ldaps://host:port`; the first that can be reached is asked.
    pub servers: Vec<String>,
    /// Whether TLS begins after the connection is made.
    pub start_tls: bool,
    /// How a user's entry is found.
    pub way: Way,
}

/// How a user's entry is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Its name is made of the user's.
    Made {
        /// What stands before the user's name.
        prefix: String,
        /// What stands behind it.
        suffix: String,
    },
    /// It is looked for.
    Searched(Search),
}

/// How an entry is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// The entry below which it is.
    pub base: String,
    /// How far below.
    pub scope: Scope,
    /// The filter, in which `$username` stands for the user's name.
    pub filter: String,
    /// Who looks; empty for nobody in particular.
    pub user: String,
    /// Its password.
    pub password: Secret,
}

/// How far below its base a search goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The base alone.
    Base,
    /// What is right below it.
    One,
    /// Everything below it.
    Subtree,
}

/// In a filter it stands for the user's name.
const USERNAME: &str = "$username";

#[derive(Default)]
struct Options {
    url: Option<String>,
    server: Option<String>,
    port: Option<u16>,
    scheme: Option<String>,
    start_tls: bool,
    prefix: Option<String>,
    suffix: Option<String>,
    base: Option<String>,
    scope: Option<Scope>,
    bind_user: String,
    bind_password: String,
    attribute: Option<String>,
    filter: Option<String>,
}

impl Ldap {
    /// Reads options as they stand behind `ldap` in a rule, in one text.
    ///
    /// # Errors
    /// What cannot be understood, or does not go together.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fields = super::words::lines(text).map_err(|(_, reason)| reason)?;
        // Between two options there is a space: a comma belongs to the value, with or without quotes.
        let joined =
            |field: &Vec<super::Word>| field.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(",");
        let texts: Vec<String> = fields.iter().flat_map(|(_, fields)| fields).map(joined).collect();
        Self::read(texts.iter().map(String::as_str))
    }

    /// The same, word by word.
    pub(super) fn read<'o>(words: impl Iterator<Item = &'o str>) -> Result<Self, String> {
        let mut options = Options::default();
        for word in words {
            options.take(word)?;
        }
        if let Some(url) = options.url.take() {
            options.take_url(&url)?;
        }
        options.finish()
    }
}

impl Options {
    fn take(&mut self, word: &str) -> Result<(), String> {
        // A word may be a part of a password that was not put in quotes, so only what is known to be a name is repeated.
        let (name, value) =
            word.split_once('=').ok_or("an option of ldap has no value; a value with blanks needs quotes")?;
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
                return Err(format!("an option of ldap is not known{like}; {known} are"));
            }
        }
        Ok(())
    }

    /// `ldap://host:port/base?attribute?scope?filter`, of which everything may be left out.
    fn take_url(&mut self, text: &str) -> Result<(), String> {
        let url = Url::parse(text).map_err(|error| format!("ldapurl: {error}"))?;
        let scheme = url.scheme();
        if !["ldap", "ldaps"].contains(&scheme) {
            return Err("ldapurl begins with neither ldap:// nor ldaps://".to_owned());
        }
        self.scheme = Some(scheme.to_owned());
        self.server = url.host_str().map(str::to_owned).or_else(|| self.server.take());
        self.port = url.port().or(self.port);
        let plain = |part: &str| decode(part).map_err(|wrong| format!("ldapurl: {}", wrong.reason));
        let base = plain(url.path().trim_start_matches('/'))?;
        if !base.is_empty() {
            self.base = Some(base);
        }
        let mut parts = url.query().unwrap_or_default().split('?');
        let mut next = || parts.next().filter(|part| !part.is_empty()).map(plain).transpose();
        // As in PostgreSQL, of several attributes the first counts.
        if let Some(attributes) = next()? {
            self.attribute = attributes.split(',').next().map(str::to_owned);
        }
        if let Some(scope) = next()? {
            self.scope = Some(match scope.as_str() {
                "base" => Scope::Base,
                "one" => Scope::One,
                "sub" => Scope::Subtree,
                _ => return Err("ldapurl: the scope can be base, one or sub".to_owned()),
            });
        }
        if let Some(filter) = next()? {
            self.filter = Some(filter);
        }
        Ok(())
    }

    fn finish(self) -> Result<Ldap, String> {
        let searches = self.base.is_some()
            || self.attribute.is_some()
            || self.filter.is_some()
            || !self.bind_user.is_empty()
            || !self.bind_password.is_empty();
        let makes = self.prefix.is_some() || self.suffix.is_some();
        if searches && makes {
            return Err("a user's entry is either made by ldapprefix and ldapsuffix or looked for".to_owned());
        }
        let servers = self.server.ok_or("ldap needs ldapserver or ldapurl")?;
        let way = if makes {
            Way::Made { prefix: self.prefix.unwrap_or_default(), suffix: self.suffix.unwrap_or_default() }
        } else {
            let base = self.base.ok_or("ldap needs ldapbasedn, ldapprefix, or ldapsuffix")?;
            let filter = match (self.filter, self.attribute) {
                (Some(_), Some(_)) => {
                    return Err("ldapsearchattribute and ldapsearchfilter exclude each other".to_owned());
                }
                // A URL may leave the brackets out.
                (Some(filter), None) if filter.starts_with('(') => filter,
                (Some(filter), None) => format!("({filter})"),
                (None, attribute) => format!("({}={USERNAME})", attribute.as_deref().unwrap_or("uid")),
            };
            let password = Secret::new(&self.bind_password);
            let scope = self.scope.unwrap_or(Scope::Subtree);
            Way::Searched(Search { base, scope, filter, user: self.bind_user, password })
        };
        let scheme = self.scheme.as_deref().unwrap_or("ldap");
        let port = self.port.unwrap_or(if scheme == "ldaps" { 636 } else { 389 });
        let servers: Vec<_> = servers.split_whitespace().map(|host| format!("{scheme}://{host}:{port}")).collect();
        if servers.iter().any(|server| Url::parse(server).is_err()) {
            return Err("ldapserver is no place of a directory".to_owned());
        }
        if servers.is_empty() {
            return Err("ldap needs ldapserver or ldapurl".to_owned());
        }
        Ok(Ldap { servers, start_tls: self.start_tls, way })
    }
}

impl Search {
    /// The filter for a user; nothing if the name has characters that would mean something in it.
    #[must_use]
    pub fn filter_for(&self, user: &str) -> Option<String> {
        let is_safe = !user.contains(['*', '(', ')', '\\', '/', '\0']);
        is_safe.then(|| self.filter.replace(USERNAME, user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn searched(text: &str) -> (Ldap, Search) {
        let ldap = Ldap::parse(text).expect("options");
        match ldap.way.clone() {
            Way::Searched(search) => (ldap, search),
            Way::Made { .. } => panic!("{text} searches"),
        }
    }

    #[test]
    fn a_url_says_everything() {
        let text = "ldapurl=\"ldap://127.0.0.1:12345/dc=example,dc=net?uid?sub\"";
        let (ldap, search) = searched(text);
        assert_eq!(ldap.servers, ["ldap://127.0.0.1:12345"]);
        assert_eq!((search.base.as_str(), search.scope), ("dc=example,dc=net", Scope::Subtree));
        assert_eq!(search.filter_for("ann").as_deref(), Some("(uid=ann)"));
        let (_, search) = searched("ldapurl=\"ldaps://d/ou=a%20b??one?(|(uid=$username)(mail=$username))\"");
        assert_eq!((search.base.as_str(), search.scope), ("ou=a b", Scope::One));
        assert_eq!(search.filter_for("ann").as_deref(), Some("(|(uid=ann)(mail=ann))"));
    }

    #[test]
    fn options_say_the_same() {
        let (ldap, search) = searched(
            "ldapserver=\"a b\" ldapport=1389 ldaptls=1 ldapbasedn=\"dc=x, dc=y\" ldapbinddn=\"cn=r\" \
             ldapbindpasswd=\"a b\" ldapsearchattribute=cn",
        );
        assert_eq!(ldap.servers, ["ldap://a:1389", "ldap://b:1389"]);
        assert!(ldap.start_tls);
        assert_eq!((search.base.as_str(), search.user.as_str()), ("dc=x, dc=y", "cn=r"));
        assert_eq!((search.password.reveal(), search.filter.as_str()), ("a b", "(cn=$username)"));
        let made =
            Ldap::parse("ldapserver=d ldapprefix=\"cn=\" ldapsuffix=\", dc=x\" ldapscheme=ldaps").expect("options");
        assert_eq!(made.servers, ["ldaps://d:636"]);
        assert_eq!(made.way, Way::Made { prefix: "cn=".to_owned(), suffix: ", dc=x".to_owned() });
    }

    #[test]
    fn a_name_cannot_change_the_filter() {
        let (_, search) = searched("ldapserver=d ldapbasedn=x");
        for user in ["*", "a)(uid=*", "a\\2a", "a/b", "a\0"] {
            assert_eq!(search.filter_for(user), None, "{user}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
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
            assert!(Ldap::parse(text).is_err(), "{text}");
        }
    }
}
