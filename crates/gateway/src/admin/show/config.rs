//! SHOW CONFIG: every setting in force.

use super::super::table::{Column, Value, row, text};
use crate::plane::Gateway;

pub(super) const COLUMNS: &[Column] = &[text("key"), text("value"), text("default"), text("changeable")];

pub(super) fn rows(gateway: &Gateway) -> Vec<Vec<Value>> {
    let settings = gateway.setup().config.render();
    let row = |setting: crate::config::Row| {
        let changeable = if setting.reloadable { "yes" } else { "no" };
        row![setting.key, setting.value, setting.default, changeable]
    };
    settings.into_iter().map(row).collect()
}
