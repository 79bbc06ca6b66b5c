//! Configuration files and Postgres URLs: accepted or refused, with a position for every error.

use tidegate_config::{Config, Diagnostic, toml};

/// Parses the input as a file and as a URL.
pub fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    check(&text, toml::parse(&text, "fuzz").map_err(|errors| errors.diagnostics().to_vec()));
    check(&text, Config::from_url(&text).map_err(|errors| errors.diagnostics().to_vec()));
}

fn check(text: &str, outcome: Result<Config, Vec<Diagnostic>>) {
    let findings = match outcome {
        Ok(config) => {
            assert!(config.databases.values().all(|database| !database.hosts.is_empty()));
            assert!(Config::diff_needs_restart(&config, &config).is_empty());
            let (pool, plan) = (config.databases.keys().next(), |name| config.pool_for(name, "user"));
            assert!(pool.is_some_and(|name| plan(name).is_some()), "a good configuration has a database");
            config.warnings
        }
        Err(findings) => findings,
    };
    for finding in findings {
        assert!(finding.line <= text.matches('\n').count() + 1, "{finding}");
    }
}
