//! SHOW CONFIG: every setting in force, and behind them those that PgBouncer has a name for.

use super::super::table::{Column, Value, row, text};
use crate::{
    pgbouncer::{CONFIG_FILE, alias},
    plane::Gateway,
};

pub(super) const COLUMNS: &[Column] = &[text("key"), text("value"), text("default"), text("changeable")];

pub(super) fn rows(gateway: &Gateway) -> Vec<Vec<Value>> {
    let mut settings = gateway.setup().config.render();
    // Exporters ask for some of them by PgBouncer's names.
    settings.extend(alias::rows(&settings));
    if let Some(file) = gateway.config_file() {
        let (key, value) = (CONFIG_FILE.to_owned(), file.display().to_string());
        settings.push(crate::config::Row { key, value, default: String::new(), reloadable: true });
    }
    let row = |setting: crate::config::Row| {
        let changeable = if setting.reloadable { "yes" } else { "no" };
        row![setting.key, setting.value, setting.default, changeable]
    };
    settings.into_iter().map(row).collect()
}
