//! Who may import whom inside the gateway: downward only. The table is the drawing of ARCHITECTURE.md as data.

use std::path::Path;

/// The folder that the table speaks of.
const HOUSE: &str = "crates/gateway/src";

/// Rooms that every other may enter, and that enter no room but other leaves.
const LEAVES: &[&str] = &[
    "classify",
    "cli",
    "config",
    "error",
    "escape",
    "hba",
    "log",
    "params",
    "pgbouncer",
    "record",
    "resolve",
    "statements",
    "stats",
    "tls",
    "tree",
];

/// A room and those it may enter besides the leaves.
const EDGES: &[(&str, &[&str])] = &[
    ("lib", ANY),
    ("main", &["journal", "run"]),
    ("demo", &[]),
    ("journal", &[]),
    ("run", &["admin", "client", "demo", "listen", "plane", "stream"]),
    ("admin", &["client", "hosts", "plane", "server", "stream"]),
    ("listen", &["client", "plane"]),
    ("client", &["exchange", "hosts", "plane", "server"]),
    ("exchange", &["server"]),
    ("plane", &["hosts", "server", "stream"]),
    ("hosts", &["server"]),
    ("server", &[]),
    ("stream", &[]),
];

/// Marks a room that may enter all.
const ANY: &[&str] = &["*"];

/// The room that a file belongs to; `None` outside the house.
pub(super) fn room_of(file: &Path) -> Option<String> {
    let inside = file.strip_prefix(HOUSE).ok()?;
    let first = inside.components().next()?.as_os_str().to_str()?;
    Some(first.strip_suffix(".rs").unwrap_or(first).to_owned())
}

/// Why `room` may not import from `other`; `None` when it may.
pub(super) fn refuse(room: &str, other: &str) -> Option<String> {
    if room == other || LEAVES.contains(&other) {
        return None;
    }
    if LEAVES.contains(&room) {
        return Some(format!("`{room}` is a leaf and may not enter `{other}`; pass what it needs as an argument"));
    }
    let Some((_, may)) = EDGES.iter().find(|(name, _)| *name == room) else {
        return Some(format!("`{room}` has no line in xtask/src/tidy/rooms.rs; say there whom it may enter"));
    };
    if *may == ANY || may.contains(&other) {
        return None;
    }
    Some(format!("`{room}` may not enter `{other}` (xtask/src/tidy/rooms.rs); call it from a room above both"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_entered_downward_only() {
        assert_eq!(refuse("client", "exchange"), None);
        assert_eq!(refuse("exchange", "config"), None);
        assert!(refuse("exchange", "client").is_some());
        assert!(refuse("config", "server").is_some());
        assert!(refuse("attic", "server").is_some());
    }

    #[test]
    fn a_file_and_its_folder_are_one_room() {
        for file in ["crates/gateway/src/client.rs", "crates/gateway/src/client/auth/md5.rs"] {
            assert_eq!(room_of(Path::new(file)).as_deref(), Some("client"));
        }
        assert_eq!(room_of(Path::new("crates/pool/src/lib.rs")), None);
    }
}
