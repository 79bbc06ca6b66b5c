//! The runbook is keyed by texts of the code: each key exists in the code, and each warning and error of the log is a key.

use std::fs;
use std::path::{Path, PathBuf};

const RUNBOOK: &str = include_str!("../../../../docs/src/guide/runbook.md");

/// Texts without an entry of their own, with the reason.
const WITHOUT_ENTRY: &[&str] = &[
    // Details of a PgBouncer-style line whose main text has an entry.
    "{} {detail}",
    // A constant with an entry.
    "{OLD_TLS}",
    // The names come first, as in PgBouncer; the text behind them has an entry.
    "{database}/{user}: taking connection from reserve_pool",
    // The text is that of an error with an entry.
    "{error:#}",
    "{fault}",
    " failed: {error}",
    // Words of PgBouncer, with the entry of the error that the client gets.
    " database as an auth_dbname",
    "{host}: closing because: server DNS lookup failed ({error})",
    "{message}",
    "{reason}",
    "{client} pooler error: {reason}",
    "{log_name} pooler error: {sent}",
];

/// The keys: headings that are code.
fn keys() -> Vec<&'static str> {
    let heading = |line: &'static str| line.strip_prefix("### `")?.strip_suffix('`');
    RUNBOOK.lines().filter_map(heading).collect()
}

fn source_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            source_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The code without its tests, each file as one text. A line that a string literal continues is joined with the next one.
fn code() -> Vec<String> {
    let mut files = Vec::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for entry in fs::read_dir(crates).expect("the crates of the repository") {
        source_files(&entry.expect("an entry").path().join("src"), &mut files);
    }
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("a file of the repository");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let mut joined = String::new();
        for part in code.split("\\\n") {
            joined.push_str(if joined.is_empty() { part } else { part.trim_start() });
        }
        joined
    };
    files.iter().map(read).collect()
}

/// The message of each `tracing::warn!` and `tracing::error!` in a file: the string literal that is no value of a field.
fn messages(code: &str) -> Vec<String> {
    let mut messages = Vec::new();
    for rest in code.split("tracing::").skip(1) {
        let Some(body) = rest.strip_prefix("warn!(").or_else(|| rest.strip_prefix("error!(")) else { continue };
        let parts: Vec<&str> = body.split('"').collect();
        // Odd parts are literals; the macro ends with the first part outside of a literal that closes the statement.
        let mut literals = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            if index % 2 == 1 {
                let before = parts[index - 1].trim_end();
                let is_value = before.ends_with('=') || before.ends_with('(') && index > 1;
                literals.extend((!is_value).then_some(*part));
            } else if part.contains(");") || part.contains(")\n") || part.contains("),\n") {
                break;
            }
        }
        messages.extend(literals.last().map(|message| (*message).to_owned()));
    }
    messages
}

#[test]
fn keys_of_the_runbook_exist_in_the_code() {
    let code = code();
    let wire = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../proxy/src/error/cause.rs")).expect("a file");
    let missing: Vec<_> = keys()
        .into_iter()
        .filter(|key| !wire.contains(key) && !code.iter().any(|file| file.contains(key.trim_end_matches(':'))))
        .collect();
    assert!(keys().len() > 50 && missing.is_empty(), "no such text in the code: {missing:#?}");
}

#[test]
fn warnings_and_errors_are_in_the_runbook() {
    let mut found = 0;
    let mut missing = Vec::new();
    for file in code() {
        for message in messages(&file) {
            found += 1;
            let has_key = keys().iter().any(|key| message.starts_with(key.trim_end_matches(':')));
            let is_known = has_key || WITHOUT_ENTRY.contains(&message.as_str());
            if !is_known {
                missing.push(message);
            }
        }
    }
    assert!(found > 40, "only {found} messages are found");
    assert!(missing.is_empty(), "add an entry to docs/src/guide/runbook.md: {missing:#?}");
}

/// The texts of the reasons why the gateway ends or refuses a client, in both dialects.
#[test]
fn texts_of_causes_are_in_the_runbook() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../proxy/src/error/cause.rs");
    let code = fs::read_to_string(path).expect("a file of the repository");
    let mut found = 0;
    for name in ["const fn postgres(", "const fn pgbouncer("] {
        let body = code.split(name).nth(1).and_then(|rest| rest.split("\n    }\n").next()).expect("a function");
        // Escaped quotes are part of a literal.
        let body = body.replace("\\\"", "'");
        for text in body.split('"').skip(1).step_by(2) {
            found += 1;
            let text = text.replace('\'', "\"");
            // Texts that continue after a colon share the entry of their first part.
            let first = text.split(':').next().unwrap_or(&text);
            let has_entry = RUNBOOK.contains(&format!("`{text}`")) || RUNBOOK.contains(&format!("`{first}`"));
            assert!(has_entry, "{text}: no entry");
        }
    }
    assert!(found > 40, "only {found} texts are found");
}

/// The texts of errors that end a stream, and of requests for live queries that cannot be served.
#[test]
fn errors_of_streams_are_in_the_runbook() {
    let read = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a file");
    let streams = read("../streams/src/error.rs");
    let texts: Vec<&str> = streams
        .split("#[error(\"")
        .skip(1)
        .filter_map(|rest| rest.split(['"', ':', '{', ';']).next())
        .map(str::trim)
        // These have an entry by the text of the log: `record failed`; or begin with the reason.
        .filter(|text| !text.is_empty() && *text != "record")
        .collect();
    assert!(texts.len() > 8, "only {texts:?} are found");
    for text in texts.iter().copied().chain(["no privilege to publish table", "cannot publish table"]) {
        assert!(keys().iter().any(|key| text.starts_with(key)), "{text} has no entry");
    }
}

/// Errors that clients get and that are not among the causes.
#[test]
fn errors_of_clients_are_in_the_runbook() {
    for text in [
        "no server became free within",
        "too many clients wait for a server already",
        "password authentication failed",
        "the gateway is out of file descriptors",
        "cannot listen on",
        "cannot open the log",
        "cannot open the query log in",
        "the server is not the primary any more",
        "transaction blocks are not allowed in statement mode",
        "could not connect to",
        "connecting to the server took longer than",
        "could not be resolved",
        "the server refused the login",
        "closed the connection during login",
        "query_wait_timeout",
        "no such database",
        "wrong password type",
        "the server requests an md5 password",
        "the server requests a clear-text password",
        "the verifier on the server differs from that of the gateway",
    ] {
        assert!(RUNBOOK.contains(&format!("`{text}`")), "{text} has no entry");
    }
    for key in keys() {
        let entry = RUNBOOK.split(&format!("### `{key}`\n")).nth(1).unwrap_or_default();
        let entry = entry.split("\n## ").next().and_then(|part| part.split("\n### ").next()).unwrap_or_default();
        for part in ["**Means:**", "**Look at:**", "**Change:**"] {
            assert!(entry.contains(part), "{key}: {part} is missing");
        }
    }
}
