//! Limit of open files: every client and every server needs one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use tidegate_config::Config;

/// Other open files: listeners, event loops, logs.
const OTHERS: u64 = 40;

/// Raises the limit to its maximum, and warns if it is too low.
pub(super) fn raise_limit(config: &Config) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    let (max_clients, servers) = (config.listen.max_clients, servers(config));
    let files_needed = u64::from(max_clients).saturating_add(servers).saturating_add(OTHERS);
    if let Some(files_max) = getrlimit(Resource::Nofile).current.filter(|most| *most < files_needed) {
        tracing::warn!(
            files_max,
            files_needed,
            max_clients,
            servers,
            "the limit of open files is lower than max_clients and their servers need: raise the limit of the process \
             (ulimit -n, LimitNOFILE=) or lower max_clients"
        );
    }
}

/// The maximum number of servers if the clients of each database are one user.
fn servers(config: &Config) -> u64 {
    let pools = config.databases.keys().filter_map(|name| config.pool_for(name, ""));
    pools.fold(0, |servers, plan| {
        let hosts = plan.choice.as_ref().map_or(1, Vec::len) as u64;
        let own = u64::from(plan.pool.size) + u64::from(plan.pool.reserve_size);
        let most = match plan.shared.database_servers {
            0 => u64::MAX,
            most => most.into(),
        };
        own.saturating_mul(hosts).min(most).saturating_add(servers)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::toml;

    #[test]
    fn servers_are_counted_per_database_and_host() {
        for (text, expected) in [
            ("[databases.\"*\"]\nhost = \"a\"\n", 20),
            ("[databases.a]\nhost = \"a\"\nsize = 5\n[databases.b]\nhosts = [\"a\", \"b\"]\nreserve_size = 1\n", 47),
            ("[databases.a]\nhosts = [\"a\", \"b\"]\nmax_servers = 30\n", 30),
        ] {
            let config = toml::parse(text, "tidegate.toml").expect(text);
            assert_eq!(servers(&config), expected, "{text}");
        }
    }
}
