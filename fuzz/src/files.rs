//! Hand-written files: HBA rules, and the files of PgBouncer.

use std::cell::RefCell;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use tempfile::TempDir;
use tidegate_config::{
    Config,
    hba::{HbaClient, HbaRules},
    pgbouncer, toml,
};

thread_local! {
    // A shared folder for all inputs: creating a folder costs more than reading an input.
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

fn with_folder(run: impl FnOnce(&Path)) {
    FOLDER.with_borrow_mut(|kept| run(kept.get_or_insert_with(|| TempDir::new().expect("a folder for inputs")).path()));
}

fn keep(folder: &Path, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).expect("it can be written");
    path
}

/// The parts of an input before and after the first zero byte.
fn halves(data: &[u8]) -> (&[u8], &[u8]) {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    (&data[..end], data.get(end + 1..).unwrap_or_default())
}

/// HBA rules and maps: accepted or refused. Comments, blank lines and a preceding rule that matches no client do not
/// change a verdict.
pub fn hba(data: &[u8]) {
    with_folder(|folder| {
        let (rules, maps) = halves(data);
        let maps = keep(folder, "maps", maps);
        let Ok(read) = HbaRules::load(&keep(folder, "rules", rules), &maps) else { return };
        let padded = [b"# none\n\nhost none none 192.0.2.1/32 reject\n", rules].concat();
        let padded = HbaRules::load(&keep(folder, "rules", &padded), &maps).expect("it was read before");
        for (user, ip) in [("ann", None), ("bob", Some(IpAddr::V4(Ipv4Addr::LOCALHOST)))] {
            for (tls, replication) in [(false, false), (true, false), (true, true)] {
                let client = HbaClient { ip, tls, replication, database: "shop", user };
                assert_eq!(read.action_for(&client), padded.action_for(&client));
            }
            let _ = (read.user_map_allows(Some("map"), user, "ann"), read.user_map_allows(None, user, "ann"));
        }
    });
}

/// An ini file and a user list of PgBouncer: an accepted configuration means the same after its conversion to TOML.
pub fn ini(data: &[u8]) {
    // Included files are not part of the input.
    if data.windows(8).any(|part| part.eq_ignore_ascii_case(b"%include")) {
        return;
    }
    with_folder(|folder| {
        let (text, users) = halves(data);
        let users = keep(folder, "users", users).display().to_string();
        let text = String::from_utf8_lossy(text).replace("USERS", &users);
        let path = keep(folder, "ini", text.as_bytes());
        let (loaded, converted) = (pgbouncer::load(&path), pgbouncer::convert(&path));
        let (Ok(loaded), Ok(converted)) = (&loaded, &converted) else {
            return assert_eq!(loaded.is_ok(), converted.is_ok());
        };
        let again = toml::parse(converted, "fuzz").unwrap_or_else(|errors| panic!("{errors}\n{converted}"));
        assert_eq!(settings(&again), settings(loaded), "{converted}");
    });
}

fn settings(config: &Config) -> Vec<(String, String)> {
    config.setting_rows().into_iter().map(|row| (row.key, row.value)).collect()
}
