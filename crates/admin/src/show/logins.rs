//! SHOW LOGINS: addresses and users with failed logins.

use std::time::Instant;

use super::super::table::{TableCell, TableColumn, int8, row, text};
use tidegate_proxy::plane::{Clients, Configuration, FailedLoginRules, FailedLoginSource};

pub(super) const COLUMNS: &[TableColumn] = &[text("kind"), text("name"), int8("failures"), int8("delay_ms")];

pub(super) fn rows(config: &Configuration, clients: &Clients) -> Vec<Vec<TableCell>> {
    let rules = FailedLoginRules::of(&config.setup().config.auth);
    let (addresses, users) = clients.failed_logins.offenders(rules, Instant::now());
    let row = |kind: &'static str| {
        move |offender: FailedLoginSource| {
            let delay_ms = u64::try_from(offender.delay.as_millis()).unwrap_or(u64::MAX);
            row![kind, offender.name, u64::from(offender.failures), delay_ms]
        }
    };
    addresses.into_iter().map(row("address")).chain(users.into_iter().map(row("user"))).collect()
}
