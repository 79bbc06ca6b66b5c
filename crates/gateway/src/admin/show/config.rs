//! SHOW CONFIG: every setting in force, and behind them those that PgBouncer has a name for.

use super::super::table::{Column, Value, row, text};
use crate::{
    config::Row,
    pgbouncer::{AUTH_FILE, CONFIG_FILE, alias},
    plane::Gateway,
};

pub(super) const COLUMNS: &[Column] = &[text("key"), text("value"), text("default"), text("changeable")];

pub(super) fn rows(gateway: &Gateway) -> Vec<Vec<Value>> {
    let config = &gateway.setup().config;
    let mut settings = config.render();
    // Exporters ask for some of them by PgBouncer's names.
    settings.extend(alias::rows(&settings));
    let file = |key: &str, value: String| Row { key: key.to_owned(), value, default: String::new(), reloadable: true };
    settings.extend(gateway.config_file().map(|path| file(CONFIG_FILE, path.display().to_string())));
    settings.push(file(AUTH_FILE, config.user_file.clone()));
    let row = |setting: Row| {
        let changeable = if setting.reloadable { "yes" } else { "no" };
        row![setting.key, setting.value, setting.default, changeable]
    };
    settings.into_iter().map(row).collect()
}
