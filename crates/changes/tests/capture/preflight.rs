//! Checks before a start, against real servers.

use tidegate_changes::preflight::{FindingLevel, PreflightOptions, findings, read_facts};

use crate::fixture::{Fixture, versions};

fn options(slot: &str, publications: &[&str]) -> PreflightOptions {
    let publications = publications.iter().map(|name| (*name).to_owned()).collect();
    let (slot, tables) = (slot.to_owned(), Vec::new());
    PreflightOptions { slot, publications, tables, snapshot: true, creates: false }
}

async fn errors(fixture: &Fixture, options: &PreflightOptions) -> Vec<String> {
    let mut connection = fixture.connection().await;
    let facts = read_facts(&mut connection, options).await.unwrap();
    let found = findings(&facts, options)
        .into_iter()
        .filter(|finding| finding.level >= FindingLevel::Error || finding.problem.contains("replica identity"));
    found.map(|finding| format!("{}; {}", finding.problem, finding.remedy)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn prepared_server_has_no_errors() {
    for major in versions() {
        let fixture = Fixture::new(major);
        assert_eq!(errors(&fixture, &options("s", &["p"])).await, [""; 0]);
    }
}

/// A new slot takes over the `catalog_xmin` of an older slot, so that its age does not show when the publication was created.
#[tokio::test(flavor = "multi_thread")]
async fn older_slot_does_not_cast_doubt_on_a_new_one() {
    for major in versions() {
        let fixture = Fixture::new(major);
        fixture.sql("create table late (id int primary key); create publication late for table late");
        fixture.sql("select pg_create_logical_replication_slot('new', 'pgoutput')");
        let options = options("new", &["late"]);
        let mut connection = fixture.connection().await;
        let facts = read_facts(&mut connection, &options).await.unwrap();
        assert!(facts.publications[0].may_be_newer_than_slot, "the older slot does not matter any more");
        let found = findings(&facts, &options).into_iter().filter(|finding| finding.problem.contains("publication"));
        for finding in found {
            assert_eq!(finding.level, FindingLevel::Note, "{finding:?}");
            assert!(!finding.remedy.to_lowercase().contains("drop"), "{finding:?}");
        }
    }
}

/// CH-33: the SQL of each remedy removes the error.
#[tokio::test(flavor = "multi_thread")]
async fn remedies_remove_the_errors() {
    for major in versions() {
        let fixture = Fixture::new(major);
        fixture.sql("create table keyless (v text); create publication late for table keyless");
        let options = options("new", &["late", "absent"]);
        let found = errors(&fixture, &options).await;
        assert_eq!(found.len(), 3, "{found:?}");
        for (part, remedy) in [
            ("absent", "create publication absent for table t"),
            ("public.keyless", "alter table public.keyless replica identity full"),
            ("\"new\"", "select pg_create_logical_replication_slot('new', 'pgoutput')"),
        ] {
            assert!(found.iter().any(|finding| finding.contains(part)), "{part}: {found:?}");
            fixture.sql(remedy);
        }
        assert_eq!(errors(&fixture, &options).await, [""; 0]);
    }
}
