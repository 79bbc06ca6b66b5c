//! Names in `/etc/hosts`.

use std::collections::HashMap;
use std::net::IpAddr;

/// Addresses by name, in lower case.
#[derive(Debug, Default)]
pub(crate) struct HostsFile(HashMap<String, Vec<IpAddr>>);

impl HostsFile {
    /// Parses lines of an address and its names. Other lines are ignored.
    pub(crate) fn parse(text: &str) -> Self {
        let mut names: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(address) = words.next().and_then(|word| word.parse().ok()) else { continue };
            for name in words {
                names.entry(normalized(name)).or_default().push(address);
            }
        }
        Self(names)
    }

    pub(crate) fn find(&self, name: &str) -> &[IpAddr] {
        self.0.get(&normalized(name)).map_or(&[], Vec::as_slice)
    }
}

fn normalized(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_addresses_with_names() {
        let hosts =
            HostsFile::parse("# all\n127.0.0.1 localhost db # both\n::1\tlocalhost\n\nnonsense x\n10.0.0.1 DB.\n");
        assert_eq!(hosts.find("LocalHost."), ["127.0.0.1".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
        assert_eq!(hosts.find("db").len(), 2);
        assert!(hosts.find("x").is_empty());
    }
}
