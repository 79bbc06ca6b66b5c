//! A table that records every delivery in order, and its check.

use std::collections::BTreeMap;

use tidegate_testkit::Fixture;

pub(crate) struct DeliveryTable {
    pub(crate) fixture: Fixture,
    pub(crate) table: String,
}

impl DeliveryTable {
    pub(crate) fn new() -> Self {
        let fixture = Fixture::new(env!("CARGO_BIN_EXE_tidegate"), 18);
        let table = fixture.create_table("id bigserial primary key, k text, n bigint");
        Self { fixture, table }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.fixture.server.port())
    }

    pub(crate) fn sql(&self) -> String {
        format!("insert into {} (k, n) values ($1, $2)", self.table)
    }

    pub(crate) fn count(&self) -> u64 {
        self.fixture.server.value(&format!("select count(*) from {}", self.table)).parse().unwrap()
    }

    pub(crate) fn distinct(&self) -> u64 {
        self.fixture.server.value(&format!("select count(distinct n) from {}", self.table)).parse().unwrap()
    }

    /// Asserts that each number of the range was delivered at least once, with the first deliveries of a key in order.
    #[track_caller]
    pub(crate) fn check(&self, range: std::ops::Range<u64>) {
        let rows = self.fixture.server.client().ok(&format!("select k, n from {} order by id", self.table)).rows;
        let mut newest = BTreeMap::<String, u64>::new();
        let mut seen = std::collections::BTreeSet::new();
        for row in &rows {
            let n: u64 = row[1].parse().unwrap();
            if seen.insert(n) {
                let before = newest.insert(row[0].clone(), n);
                assert!(before.is_none_or(|before| before < n), "{}: {n} first came after {before:?}", row[0]);
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), range.collect::<Vec<_>>());
    }
}
