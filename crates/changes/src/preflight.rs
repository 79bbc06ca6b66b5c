//! Checks of a server before a stream starts, each with the SQL that mends what it found.
//!
//! [`read_facts`] asks the server; [`findings`] is pure.

use tidegate_wire::replication::{quote_ident, quote_literal};

use crate::{
    client::{ClientError, PgConnection, QueryRow},
    server_state::{SlotState, invalidation},
    slots::{list_slots, quoted_table},
};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingLevel {
    /// Worth knowing.
    Note,
    /// Changes may be missing or WAL may grow, under conditions that the finding names.
    Warning,
    /// The stream cannot start, or is certain to fail.
    Error,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreflightFinding {
    /// How bad it is.
    pub level: FindingLevel,
    /// The problem.
    pub problem: String,
    /// The remedy: SQL where SQL suffices.
    pub remedy: String,
}

/// A published table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedTable {
    /// Schema and name, quoted.
    pub name: String,
    /// Schema and name with a dot, as they are.
    pub full_name: String,
    /// `d`, `i`, `f` or `n`.
    pub identity: String,
    /// Whether it has a primary key.
    pub has_primary_key: bool,
    /// Whether row security hides rows from the role of the connection.
    pub has_hidden_rows: bool,
    /// Whether the role may read it.
    pub is_readable: bool,
    /// Whether it has stored generated columns.
    pub has_generated_columns: bool,
    /// Whether it is a partition, and published by its own name.
    pub is_leaf: bool,
}

/// A publication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublicationState {
    /// Name of the publication.
    pub name: String,
    /// Operations that it does not publish.
    pub unpublished: Vec<String>,
    /// Whether the slot may hold WAL that is older than the publication. `false` is certain; `true` is not, because a new slot
    /// takes over the `catalog_xmin` of an older slot (`GetOldestSafeDecodingTransactionId`) or of a running transaction.
    pub may_be_newer_than_slot: bool,
    /// Published tables.
    pub tables: Vec<PublishedTable>,
    /// Whether it updates or deletes.
    pub needs_identity: bool,
}

/// Answers of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreflightFacts {
    /// `server_version_num`.
    pub version: u32,
    /// `effective_wal_level` or `wal_level`.
    pub wal_level: String,
    /// The role of the connection.
    pub role: String,
    /// Whether the role may use replication.
    pub may_replicate: bool,
    /// The database.
    pub database: String,
    /// Slots that exist, and `max_replication_slots`.
    pub slots: (u32, u32),
    /// WAL senders that run, and `max_wal_senders`.
    pub senders: (u32, u32),
    /// `max_slot_wal_keep_size` in megabytes; -1 for no limit.
    pub wal_keep_mb: i64,
    /// `wal_sender_timeout` in milliseconds.
    pub sender_timeout_ms: u64,
    /// Slots of `synchronized_standby_slots` that are missing or not read.
    pub stalled_standbys: Vec<String>,
    /// Whether `synchronized_standby_slots` names a slot.
    pub waits_for_standbys: bool,
    /// The slot.
    pub slot: Option<SlotState>,
    /// The publications that exist.
    pub publications: Vec<PublicationState>,
}

/// Subject of the checks.
#[derive(Clone, Debug)]
pub struct PreflightOptions {
    /// Name of the slot.
    pub slot: String,
    /// Names of the publications.
    pub publications: Vec<String>,
    /// Tables that have to be published, as `schema.name`.
    pub tables: Vec<String>,
    /// Whether tables are copied first, which needs the right to read them.
    pub snapshot: bool,
    /// Whether the caller creates the slot and the publication if they are missing.
    pub creates: bool,
}

/// Asks the server everything that [`findings`] needs.
///
/// # Errors
/// The connection broke, or the server refused a query.
pub async fn read_facts(
    connection: &mut PgConnection,
    options: &PreflightOptions,
) -> Result<PreflightFacts, ClientError> {
    let major = connection.major_version()?;
    let rows = connection.query(SERVER).await?;
    let row = rows.into_iter().next().unwrap_or_default();
    let text = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
    let small = |at: usize| text(at).parse::<u32>().unwrap_or(0);
    let mut facts = PreflightFacts {
        version: small(0),
        wal_level: text(1),
        role: text(2),
        may_replicate: text(3) == "t",
        database: text(4),
        slots: (small(5), small(6)),
        senders: (small(7), small(8)),
        wal_keep_mb: text(9).parse().unwrap_or(-1),
        sender_timeout_ms: text(10).parse().unwrap_or(0),
        stalled_standbys: text(11).split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        waits_for_standbys: text(12) == "t",
        slot: list_slots(connection, Some(&options.slot)).await?.into_iter().next(),
        publications: Vec::new(),
    };
    for name in &options.publications {
        let sql = publication_sql(name, &options.slot);
        if let Some(row) = connection.query(&sql).await?.into_iter().next() {
            let tables = connection.query(&tables_sql(name, major)).await?;
            facts.publications.push(publication(name, &row, &tables));
        }
    }
    Ok(facts)
}

const SERVER: &str = "select current_setting('server_version_num'), \
    coalesce(current_setting('effective_wal_level', true), current_setting('wal_level')), current_user, \
    (select rolreplication or rolsuper from pg_catalog.pg_roles where rolname = current_user) or exists \
    (select from pg_catalog.pg_roles where rolname = 'rds_replication' and pg_catalog.pg_has_role(oid, 'member')), \
    current_database(), (select count(*) from pg_catalog.pg_replication_slots), \
    current_setting('max_replication_slots'), (select count(*) from pg_catalog.pg_stat_replication \
    where pid <> pg_catalog.pg_backend_pid()), \
    current_setting('max_wal_senders'), \
    (select setting from pg_catalog.pg_settings where name = 'max_slot_wal_keep_size'), \
    (select setting from pg_catalog.pg_settings where name = 'wal_sender_timeout'), \
    (select string_agg(name, ',') from (select btrim(unnest(string_to_array( \
    current_setting('synchronized_standby_slots', true), ','))) as name) as standby \
    where name <> '' and not exists (select from pg_catalog.pg_replication_slots \
    where slot_name = name and active)), \
    coalesce(current_setting('synchronized_standby_slots', true), '') <> ''";

fn publication_sql(name: &str, slot: &str) -> String {
    let (name, slot) = (quote_literal(name), quote_literal(slot));
    format!(
        "select concat_ws(',', case when not pubinsert then 'insert' end, case when not pubupdate then 'update' end, \
         case when not pubdelete then 'delete' end, case when not pubtruncate then 'truncate' end), \
         pubupdate or pubdelete, exists (select from pg_catalog.pg_replication_slots s where s.slot_name = {slot} \
         and s.catalog_xmin is not null and pg_catalog.age(p.xmin) <= pg_catalog.age(s.catalog_xmin)) \
         from pg_catalog.pg_publication p where pubname = {name}"
    )
}

fn tables_sql(name: &str, major: u32) -> String {
    // Since 18 a publication declares whether generated columns are published.
    let generated = if major >= 18 { "and p.pubgencols = 'n'" } else { "" };
    format!(
        "select pg_catalog.format('%I.%I', t.schemaname, t.tablename), \
         pg_catalog.format('%s.%s', t.schemaname, t.tablename), c.relreplident, \
         exists (select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisprimary), \
         pg_catalog.row_security_active(c.oid), pg_catalog.has_table_privilege(c.oid, 'select'), \
         exists (select from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attgenerated = 's' \
         and not a.attisdropped {generated}), c.relispartition \
         from pg_catalog.pg_publication_tables t \
         join pg_catalog.pg_publication p on p.pubname = t.pubname \
         join pg_catalog.pg_namespace n on n.nspname = t.schemaname \
         join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = t.tablename \
         where t.pubname = {} order by 1",
        quote_literal(name)
    )
}

fn publication(name: &str, row: &QueryRow, tables: &[QueryRow]) -> PublicationState {
    let text = |row: &QueryRow, at: usize| row.get(at).cloned().flatten().unwrap_or_default();
    let flag = |row: &QueryRow, at: usize| text(row, at) == "t";
    let table = |row: &QueryRow| PublishedTable {
        name: text(row, 0),
        full_name: text(row, 1),
        identity: text(row, 2),
        has_primary_key: flag(row, 3),
        has_hidden_rows: flag(row, 4),
        is_readable: flag(row, 5),
        has_generated_columns: flag(row, 6),
        is_leaf: flag(row, 7),
    };
    PublicationState {
        name: name.to_owned(),
        unpublished: text(row, 0).split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect(),
        needs_identity: flag(row, 1),
        may_be_newer_than_slot: flag(row, 2),
        tables: tables.iter().map(table).collect(),
    }
}

/// Names at most a few of many tables.
const NAMED_MAX: usize = 5;

/// Collects findings.
#[derive(Default)]
struct Report(Vec<PreflightFinding>);

impl Report {
    fn add(&mut self, level: FindingLevel, problem: impl Into<String>, remedy: impl Into<String>) {
        self.0.push(PreflightFinding { level, problem: problem.into(), remedy: remedy.into() });
    }

    /// Adds a single finding for all tables with the fault.
    fn tables<'a>(
        &mut self,
        level: FindingLevel,
        problem: &str,
        tables: impl Iterator<Item = &'a PublishedTable>,
        remedy: impl Fn(&str) -> String,
    ) {
        let names: Vec<&str> = tables.map(|table| table.name.as_str()).collect();
        let Some(first) = names.first() else { return };
        let more = names.len().saturating_sub(NAMED_MAX);
        let mut listed = names.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
        if more > 0 {
            listed.push_str(&format!(" and {more} more"));
        }
        self.add(level, format!("{problem}: {listed}"), remedy(first));
    }
}

/// Evaluates the facts. The worst findings come first.
#[must_use]
pub fn findings(facts: &PreflightFacts, options: &PreflightOptions) -> Vec<PreflightFinding> {
    let mut report = Report::default();
    server_findings(facts, &mut report);
    slot_findings(facts, options, &mut report);
    for name in &options.publications {
        match facts.publications.iter().find(|found| found.name == *name) {
            Some(found) => publication_findings(found, facts, options, &mut report),
            None if options.creates => {}
            None => report.add(
                FindingLevel::Error,
                format!("publication \"{name}\" does not exist"),
                format!("CREATE PUBLICATION {} FOR TABLE ...; before the slot is created", quote_ident(name)),
            ),
        }
    }
    let is_published = |table: &&String| {
        facts.publications.iter().any(|found| found.tables.iter().any(|known| known.full_name == **table))
    };
    // A publication that does not exist yet gets the tables.
    if facts.publications.len() == options.publications.len() {
        for table in options.tables.iter().filter(|table| !is_published(table)) {
            let publication = quote_ident(options.publications.first().map_or("", String::as_str));
            report.add(
                FindingLevel::Error,
                format!("table {table} is not in the publication"),
                format!("ALTER PUBLICATION {publication} ADD TABLE {}", quoted_table(table)),
            );
        }
    }
    report.0.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    report.0
}

fn server_findings(facts: &PreflightFacts, report: &mut Report) {
    use FindingLevel::{Error, Note, Warning};
    let (major, minor) = (facts.version / 10_000, facts.version % 10_000);
    if major < 14 {
        report.add(Error, format!("the server is version {major}"), "upgrade to Postgres 14 or newer");
    }
    // The release of 2024-11 mends a restart_lsn that goes back (CH-15).
    let mended = [(14, 15), (15, 10), (16, 6), (17, 2)].into_iter().find(|(known, _)| *known == major);
    if let Some((_, first)) = mended.filter(|(_, first)| minor < *first) {
        let problem = format!("Postgres {major}.{minor} may lose WAL that a slot needs");
        report.add(Warning, problem, format!("update to {major}.{first} or newer"));
    }
    if facts.wal_level != "logical" {
        report.add(
            Error,
            format!("wal_level is {}", facts.wal_level),
            "ALTER SYSTEM SET wal_level = logical; and restart the server (on RDS rds.logical_replication = 1, on Cloud \
             SQL cloudsql.logical_decoding = on)",
        );
    }
    if !facts.may_replicate {
        report.add(
            Error,
            format!("role {} may not use replication", facts.role),
            format!(
                "ALTER ROLE {role} REPLICATION; (on RDS GRANT rds_replication TO {role})",
                role = quote_ident(&facts.role)
            ),
        );
    }
    if facts.slot.is_none() && facts.slots.0 >= facts.slots.1 {
        let problem = format!("all {} replication slots are in use", facts.slots.1);
        report.add(Error, problem, "drop unused slots, or ALTER SYSTEM SET max_replication_slots and restart");
    }
    if facts.senders.0 >= facts.senders.1 {
        let problem = format!("all {} WAL senders are in use", facts.senders.1);
        report.add(Error, problem, "end unused ones, or ALTER SYSTEM SET max_wal_senders and restart");
    }
    if facts.wal_keep_mb < 0 {
        report.add(
            Warning,
            "max_slot_wal_keep_size is not set: a consumer that stops makes the server keep WAL until its disk is full",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf(); a lost slot is then reported",
        );
    }
    if facts.sender_timeout_ms == 0 {
        report.add(
            Note,
            "wal_sender_timeout is 0: a walsender of a broken connection holds the slot until TCP notices",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf()",
        );
    }
    if !facts.stalled_standbys.is_empty() {
        // Not an error: a standby may connect again in a moment, as after a restart of the primary.
        report.add(
            Warning,
            format!(
                "synchronized_standby_slots names slots that no standby reads: {}; failover slots stall until they are",
                facts.stalled_standbys.join(", ")
            ),
            "start the standbys, or take them out of synchronized_standby_slots",
        );
    }
}

fn slot_findings(facts: &PreflightFacts, options: &PreflightOptions, report: &mut Report) {
    use FindingLevel::{Error, Note, Warning};
    let name = &options.slot;
    let recreate = format!("SELECT pg_drop_replication_slot({0}); create it again", quote_literal(name));
    let Some(slot) = &facts.slot else {
        if options.creates {
            return;
        }
        let create = format!("SELECT pg_create_logical_replication_slot({}, 'pgoutput')", quote_literal(name));
        return report.add(Error, format!("replication slot \"{name}\" does not exist"), create);
    };
    if slot.plugin.as_deref() != Some("pgoutput") {
        let found = slot.plugin.as_deref().unwrap_or("none");
        let problem = format!("replication slot \"{name}\" has the output plugin {found}");
        report.add(Error, problem, "use another name, or drop it and create it with the plugin pgoutput");
    } else if slot.database.as_deref() != Some(facts.database.as_str()) {
        let found = slot.database.as_deref().unwrap_or_default();
        let problem = format!("replication slot \"{name}\" belongs to database \"{found}\"");
        report.add(Error, problem, "connect to that database, or use another name");
    }
    if let Some(reason) = invalidation(slot) {
        report.add(Error, format!("replication slot \"{name}\" is invalid ({reason})"), recreate);
    }
    if let Some(pid) = slot.active_pid {
        let problem = format!("replication slot \"{name}\" is read by process {pid}");
        report.add(Note, problem, "stop that consumer first, if it is not this one");
    }
    if slot.failover == Some(false) {
        report.add(
            Note,
            format!("replication slot \"{name}\" is lost at a failover"),
            format!("ALTER_REPLICATION_SLOT {} (FAILOVER true) on a replication connection", quote_ident(name)),
        );
    }
    if slot.failover == Some(true) && !facts.waits_for_standbys {
        report.add(
            Warning,
            format!("replication slot \"{name}\" may be ahead of the standby that is promoted, and is lost then"),
            "ALTER SYSTEM SET synchronized_standby_slots = 'the slot of the standby'; SELECT pg_reload_conf()",
        );
    }
}

fn publication_findings(
    found: &PublicationState,
    facts: &PreflightFacts,
    options: &PreflightOptions,
    report: &mut Report,
) {
    use FindingLevel::{Error, Note, Warning};
    let name = &found.name;
    if found.tables.is_empty() {
        let remedy = format!("ALTER PUBLICATION {} ADD TABLE ...", quote_ident(name));
        report.add(Warning, format!("publication \"{name}\" has no tables"), remedy);
    }
    if !found.unpublished.is_empty() {
        let problem = format!("publication \"{name}\" leaves out: {}", found.unpublished.join(", "));
        let all = "'insert, update, delete, truncate'";
        report.add(Note, problem, format!("ALTER PUBLICATION {} SET (publish = {all})", quote_ident(name)));
    }
    if found.may_be_newer_than_slot {
        report.add(
            Note,
            format!(
                "the server does not show whether publication \"{name}\" was created before slot \"{}\"",
                options.slot
            ),
            "nothing if CREATE PUBLICATION was committed first; otherwise changes from before it fail or are left out: \
             create another slot and copy the tables again",
        );
    }
    let tables = || found.tables.iter();
    let is_keyless = |table: &&PublishedTable| table.identity == "n" || table.identity == "d" && !table.has_primary_key;
    if found.needs_identity {
        // Inserts are streamed all the same.
        report.tables(
            Warning,
            "UPDATE and DELETE by the application fail, because these tables have no replica identity",
            tables().filter(is_keyless),
            |table| format!("ALTER TABLE {table} REPLICA IDENTITY FULL; or add a primary key"),
        );
    }
    let is_copied = |table: &&PublishedTable| options.tables.is_empty() || options.tables.contains(&table.full_name);
    if options.snapshot {
        report.tables(
            Error,
            &format!("role {} may not read these tables for the snapshot", facts.role),
            tables().filter(is_copied).filter(|table| !table.is_readable),
            |table| format!("GRANT SELECT ON {table} TO {}", quote_ident(&facts.role)),
        );
        report.tables(
            Error,
            "row security hides rows of these tables from the snapshot",
            tables().filter(is_copied).filter(|table| table.has_hidden_rows),
            |_| format!("ALTER ROLE {} BYPASSRLS", quote_ident(&facts.role)),
        );
    }
    report.tables(
        Note,
        "stored generated columns of these tables are not published",
        tables().filter(|table| table.has_generated_columns),
        |_| format!("ALTER PUBLICATION {} SET (publish_generated_columns = stored); on Postgres 18", quote_ident(name)),
    );
    report.tables(
        Note,
        "these partitions are published by their own names",
        tables().filter(|table| table.is_leaf),
        |_| format!("ALTER PUBLICATION {} SET (publish_via_partition_root = true)", quote_ident(name)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> PreflightOptions {
        let (slot, publications, tables) = ("s".to_owned(), vec!["p".to_owned()], vec!["public.t".to_owned()]);
        PreflightOptions { slot, publications, tables, snapshot: true, creates: false }
    }

    fn table() -> PublishedTable {
        let (name, full_name, identity) = ("public.t".to_owned(), "public.t".to_owned(), "d".to_owned());
        PublishedTable {
            name,
            full_name,
            identity,
            has_primary_key: true,
            is_readable: true,
            ..PublishedTable::default()
        }
    }

    fn good() -> PreflightFacts {
        PreflightFacts {
            version: 180_006,
            wal_level: "logical".to_owned(),
            role: "cdc".to_owned(),
            may_replicate: true,
            database: "shop".to_owned(),
            slots: (1, 10),
            senders: (1, 10),
            wal_keep_mb: 50_000,
            sender_timeout_ms: 60_000,
            stalled_standbys: Vec::new(),
            waits_for_standbys: true,
            slot: Some(SlotState {
                name: "s".to_owned(),
                plugin: Some("pgoutput".to_owned()),
                database: Some("shop".to_owned()),
                failover: Some(true),
                ..SlotState::default()
            }),
            publications: vec![PublicationState {
                name: "p".to_owned(),
                needs_identity: true,
                tables: vec![table()],
                ..PublicationState::default()
            }],
        }
    }

    #[test]
    fn good_server_has_no_findings() {
        assert_eq!(findings(&good(), &options()), []);
    }

    /// CH-15, CH-33, CH-65, CH-70.
    #[test]
    fn each_fault_has_a_finding_with_its_remedy() {
        type Fault = fn(&mut PreflightFacts);
        let cases: [(Fault, FindingLevel, &str); 18] = [
            (
                |facts| facts.publications[0].tables[0].full_name = "public.other".to_owned(),
                FindingLevel::Error,
                "ALTER PUBLICATION \"p\" ADD TABLE \"public\".\"t\"",
            ),
            (|facts| facts.version = 130_020, FindingLevel::Error, "Postgres 14"),
            (|facts| facts.version = 170_001, FindingLevel::Warning, "17.2"),
            (|facts| facts.wal_level = "replica".to_owned(), FindingLevel::Error, "wal_level = logical"),
            (|facts| facts.may_replicate = false, FindingLevel::Error, "ALTER ROLE \"cdc\" REPLICATION"),
            (|facts| facts.senders.0 = 10, FindingLevel::Error, "max_wal_senders"),
            (|facts| facts.wal_keep_mb = -1, FindingLevel::Warning, "max_slot_wal_keep_size"),
            (|facts| facts.sender_timeout_ms = 0, FindingLevel::Note, "wal_sender_timeout"),
            (|facts| facts.stalled_standbys.push("x".to_owned()), FindingLevel::Warning, "standbys"),
            (|facts| facts.slot = None, FindingLevel::Error, "pg_create_logical_replication_slot('s', 'pgoutput')"),
            (|facts| facts.slot.as_mut().unwrap().failover = Some(false), FindingLevel::Note, "FAILOVER true"),
            (|facts| facts.waits_for_standbys = false, FindingLevel::Warning, "synchronized_standby_slots"),
            (
                |facts| facts.slot.as_mut().unwrap().wal_status = Some("lost".to_owned()),
                FindingLevel::Error,
                "pg_drop_replication_slot('s')",
            ),
            (|facts| facts.publications.clear(), FindingLevel::Error, "CREATE PUBLICATION \"p\""),
            (|facts| facts.publications[0].may_be_newer_than_slot = true, FindingLevel::Note, "create another slot"),
            (
                |facts| facts.publications[0].tables[0].has_primary_key = false,
                FindingLevel::Warning,
                "ALTER TABLE public.t REPLICA IDENTITY FULL",
            ),
            (
                |facts| facts.publications[0].tables[0].is_readable = false,
                FindingLevel::Error,
                "GRANT SELECT ON public.t TO \"cdc\"",
            ),
            (|facts| facts.publications[0].tables[0].has_hidden_rows = true, FindingLevel::Error, "BYPASSRLS"),
        ];
        let runbook = problems_of_the_runbook();
        for (number, (fault, level, remedy)) in cases.into_iter().enumerate() {
            let mut facts = good();
            fault(&mut facts);
            let found = findings(&facts, &options());
            assert_eq!(found.len(), 1, "case {number}: {found:?}");
            assert_eq!(found[0].level, level, "case {number}: {found:?}");
            assert!(found[0].remedy.contains(remedy), "case {number}: {found:?}");
            let has_entry = runbook.iter().any(|problem| found[0].problem.contains(problem.as_str()));
            assert!(has_entry, "no row of the runbook: {found:?}");
        }
    }

    /// The first column of the table of problems.
    fn problems_of_the_runbook() -> Vec<String> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/guide/runbook.md");
        let runbook = std::fs::read_to_string(path).unwrap();
        let entry = runbook.split("### `check of the server`").nth(1).unwrap().split("\n### ").next().unwrap();
        let problems = entry.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        // The first row is the head of the table.
        problems.skip(1).map(str::to_owned).collect()
    }
}
