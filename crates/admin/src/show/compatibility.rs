//! Tables of PgBouncer without an exact counterpart: file descriptors, DNS, memory.

use super::super::table::{TableCell, TableColumn, bytea, int4, int8, row, text};
use tidegate_pg_client::resolve::{CachedName, Resolver};

pub(super) const FDS: &[TableColumn] = &[
    int4("fd"),
    text("task"),
    text("user"),
    text("database"),
    text("addr"),
    int4("port"),
    int8("cancel"),
    int4("link"),
    text("client_encoding"),
    text("std_strings"),
    text("datestyle"),
    text("timezone"),
    text("password"),
    bytea("scram_client_key"),
    bytea("scram_server_key"),
];

pub(super) const DNS_HOSTS: &[TableColumn] = &[text("hostname"), int8("ttl"), text("addrs")];
pub(super) const DNS_ZONES: &[TableColumn] = &[text("zonename"), int8("serial"), int4("count")];

pub(super) const MEM: &[TableColumn] = &[text("name"), int4("size"), int4("used"), int4("free"), int8("memtotal")];

/// Size of a memory page.
const PAGE_BYTES: u64 = 4096;

/// Memory of the process: the allocator does not count by type of object.
pub(super) fn memory() -> Vec<Vec<TableCell>> {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0_u64);
    vec![row!["process", PAGE_BYTES, resident, 0_u32, resident * PAGE_BYTES]]
}

/// The cached host names.
pub(super) fn names(resolver: &Resolver) -> Vec<Vec<TableCell>> {
    let row = |known: CachedName| {
        let addresses: Vec<_> = known.addresses.iter().map(ToString::to_string).collect();
        row![known.name, known.left.as_secs(), addresses.join(",")]
    };
    resolver.cached_names().into_iter().map(row).collect()
}
