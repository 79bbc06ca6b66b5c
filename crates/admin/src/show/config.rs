//! SHOW CONFIG: all current settings, followed by those with a name in PgBouncer.

use super::super::table::{TableCell, TableColumn, row, text};
use tidegate_config::{
    SettingRow,
    pgbouncer::{AUTH_FILE, CONFIG_FILE, alias, is_related},
};
use tidegate_proxy::plane::Configuration;

pub(super) const COLUMNS: &[TableColumn] = &[text("key"), text("value"), text("default"), text("changeable")];

pub(super) fn rows(configuration: &Configuration) -> Vec<Vec<TableCell>> {
    let config = &configuration.setup().config;
    let mut settings = config.setting_rows();
    let own = settings.len();
    // Exporters read some of them by PgBouncer's names.
    settings.extend(alias::rows(&settings));
    let file = |key: &str, value: String, reloadable, settable| SettingRow {
        key: key.to_owned(),
        value,
        default: String::new(),
        reloadable,
        settable,
    };
    let path = configuration.file();
    settings.extend(path.map(|path| file(CONFIG_FILE, path.display().to_string(), false, config.admin.set_files)));
    settings.push(file(AUTH_FILE, config.user_file.clone(), true, config.ini_file.is_some()));
    // As since PgBouncer 1.25.
    settings[own..].sort_by(|a, b| a.key.cmp(&b.key));
    if config.ini_file.is_some() {
        let has_effect = |row: &&mut SettingRow| is_related(&row.key) && alias::without_effect(&row.key).is_none();
        settings.iter_mut().filter(has_effect).for_each(|row| row.settable = true);
        // As in PgBouncer, a value is shown that waits for others: a key for its certificate.
        for (key, value) in configuration.related() {
            settings.iter_mut().filter(|row| row.key == key).for_each(|row| row.value.clone_from(&value));
        }
    }
    let row = |setting: SettingRow| {
        let changeable = changeable(&setting);
        row![setting.key, setting.value, setting.default, changeable]
    };
    settings.into_iter().map(row).collect()
}

/// How a setting can be changed at run time.
fn changeable(setting: &SettingRow) -> &'static str {
    match setting {
        SettingRow { settable: true, .. } => "yes",
        SettingRow { reloadable: true, .. } => "reload",
        _ => "no",
    }
}
