//! Order, filter and selection of a table.

use std::cmp::Ordering;

use tidegate_changes::QueryTable;

use crate::{sample::value, screen::Screen};

/// How a screen shows its table.
#[derive(Clone, Debug)]
pub(crate) struct TableView {
    screen: Screen,
    /// Index of the column of the screen.
    pub(crate) sort: usize,
    /// The largest value is on top.
    pub(crate) is_descending: bool,
    pub(crate) filter: String,
    /// Identity of the selected row: it stays selected when rows move.
    selected: Option<Vec<Option<String>>>,
    /// First row on the screen.
    offset: usize,
}

impl TableView {
    pub(crate) fn new(screen: Screen) -> Self {
        let (title, is_descending) = screen.first_sort();
        let sort = screen.column_named(title).unwrap_or_default();
        Self { screen, sort, is_descending, filter: String::new(), selected: None, offset: 0 }
    }

    /// Sorts by a column, named by its title; with a minus, in the other direction.
    pub(crate) fn sort_by(&mut self, name: &str) {
        let title = name.trim_start_matches('-');
        if let Some(index) = self.screen.column_named(title) {
            self.sort_column(index);
            self.is_descending ^= name.starts_with('-');
        }
    }

    /// Sorts by a column, numbers from the largest on.
    fn sort_column(&mut self, index: usize) {
        self.sort = index;
        self.is_descending = self.screen.columns().get(index).is_some_and(|column| column.form.is_number());
    }

    /// Sorts by the column beside the present one.
    pub(crate) fn move_sort(&mut self, step: isize) {
        let last = self.screen.columns().len().saturating_sub(1);
        self.sort_column(self.sort.saturating_add_signed(step).min(last));
    }

    /// Rows that pass the filter, in order.
    pub(crate) fn rows(&self, table: &QueryTable) -> Vec<usize> {
        let filter = self.filter.to_lowercase();
        let passes = |row: &[Option<String>]| {
            filter.is_empty() || row.iter().flatten().any(|text| text.to_lowercase().contains(&filter))
        };
        let mut rows: Vec<usize> = (0..table.rows.len()).filter(|index| passes(&table.rows[*index])).collect();
        let Some(column) = self.screen.columns().get(self.sort) else { return rows };
        let of = |index: &usize| value(table, &table.rows[*index], column.source);
        rows.sort_by(|a, b| {
            let order = if column.form.is_number() { numbers(of(a), of(b)) } else { texts(of(a), of(b)) };
            if self.is_descending { order.reverse() } else { order }
        });
        rows
    }

    fn key(&self, table: &QueryTable, index: usize) -> Option<Vec<Option<String>>> {
        let row = table.rows.get(index)?;
        Some(self.screen.key_columns().iter().map(|name| value(table, row, name).map(str::to_owned)).collect())
    }

    /// Position of the selected row among those that are shown; the first one if it is gone.
    pub(crate) fn position(&self, table: &QueryTable, rows: &[usize]) -> usize {
        let found = rows.iter().position(|index| self.selected.is_some() && self.key(table, *index) == self.selected);
        found.unwrap_or_default()
    }

    /// Moves the selection.
    pub(crate) fn move_selection(&mut self, table: &QueryTable, step: isize) {
        let rows = self.rows(table);
        let last = rows.len().saturating_sub(1);
        let position = self.position(table, &rows).saturating_add_signed(step).min(last);
        self.selected = rows.get(position).and_then(|index| self.key(table, *index));
    }

    /// The part of the rows that fits, with the selected row in it, and the position of that row in the part.
    pub(crate) fn window(&mut self, table: &QueryTable, height: usize) -> (Vec<usize>, usize) {
        let rows = self.rows(table);
        let position = self.position(table, &rows);
        let height = height.max(1);
        let offset_max = rows.len().saturating_sub(height);
        self.offset = self.offset.clamp((position + 1).saturating_sub(height), position).min(offset_max);
        let part = rows.iter().skip(self.offset).take(height).copied().collect();
        (part, position - self.offset)
    }

    /// The selected row.
    pub(crate) fn selected_row<'t>(&self, table: &'t QueryTable) -> Option<&'t [Option<String>]> {
        let rows = self.rows(table);
        let index = rows.get(self.position(table, &rows))?;
        table.rows.get(*index).map(Vec::as_slice)
    }
}

/// NULL is less than every number.
fn numbers(a: Option<&str>, b: Option<&str>) -> Ordering {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<f64>().ok());
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

fn texts(a: Option<&str>, b: Option<&str>) -> Ordering {
    let key = |text: Option<&str>| text.map(str::to_lowercase);
    key(a).cmp(&key(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests::table;

    fn clients() -> QueryTable {
        table(
            "id database user state wait_ms application",
            &[
                "1 shop ann idle - Web",
                "2 shop bob waiting 9 batch",
                "3 Audit ann waiting 10 web-2",
                "4 audit eve active - -",
            ],
        )
    }

    fn ids(view: &TableView, table: &QueryTable) -> Vec<usize> {
        view.rows(table).iter().map(|index| index + 1).collect()
    }

    #[test]
    fn numbers_are_sorted_by_value_and_null_is_last() {
        let table = clients();
        let mut view = TableView::new(Screen::Clients);
        assert_eq!(ids(&view, &table), [3, 2, 1, 4], "the longest wait is on top, and equal rows keep their order");
        view.is_descending = false;
        assert_eq!(ids(&view, &table), [1, 4, 2, 3]);
        view.sort_by("-id");
        assert_eq!(ids(&view, &table), [1, 2, 3, 4]);
        view.sort_by("id");
        assert_eq!(ids(&view, &table), [4, 3, 2, 1]);
    }

    #[test]
    fn texts_are_sorted_without_regard_to_case() {
        let mut view = TableView::new(Screen::Clients);
        view.sort_by("database");
        assert_eq!(ids(&view, &clients()), [3, 4, 1, 2]);
        view.sort_by("no such column");
        assert_eq!(ids(&view, &clients()), [3, 4, 1, 2]);
    }

    #[test]
    fn sort_moves_between_the_columns() {
        let mut view = TableView::new(Screen::Clients);
        view.move_sort(-100);
        assert_eq!((view.sort, view.is_descending), (0, true), "numbers begin with the largest");
        view.move_sort(1);
        assert_eq!((view.sort, view.is_descending), (1, false));
        view.move_sort(100);
        assert_eq!(view.sort, Screen::Clients.columns().len() - 1);
    }

    #[test]
    fn filter_finds_text_in_every_column() {
        let table = clients();
        let mut view = TableView::new(Screen::Clients);
        for (filter, expected) in [("WEB", &[3, 1][..]), ("audit", &[3, 4]), ("ann", &[3, 1]), ("nobody", &[])] {
            filter.clone_into(&mut view.filter);
            assert_eq!(ids(&view, &table), expected, "{filter}");
        }
    }

    #[test]
    fn selected_row_stays_selected_when_rows_move() {
        let mut table = clients();
        let mut view = TableView::new(Screen::Clients);
        let selected = |view: &TableView, table: &QueryTable| {
            view.selected_row(table).and_then(|row| value(table, row, "id")).map(str::to_owned)
        };
        assert_eq!(selected(&view, &table).as_deref(), Some("3"));
        view.move_selection(&table, 1);
        assert_eq!(selected(&view, &table).as_deref(), Some("2"));
        table.rows[1][4] = Some("99".to_owned());
        assert_eq!(ids(&view, &table)[0], 2);
        assert_eq!(selected(&view, &table).as_deref(), Some("2"));
        table.rows.remove(1);
        assert_eq!(selected(&view, &table).as_deref(), Some("3"), "the first row replaces the removed row");
        view.move_selection(&QueryTable::default(), 5);
        assert_eq!(selected(&view, &QueryTable::default()), None);
    }

    #[test]
    fn window_contains_the_selected_row() {
        let rows: Vec<String> = (0..50).map(|id| format!("{id} shop ann idle - web")).collect();
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        let table = table("id database user state wait_ms application", &rows);
        let mut view = TableView::new(Screen::Clients);
        assert_eq!(view.window(&table, 10), ((0..10).collect(), 0));
        view.move_selection(&table, 12);
        assert_eq!(view.window(&table, 10), ((3..13).collect(), 9));
        view.move_selection(&table, -5);
        assert_eq!(view.window(&table, 10), ((3..13).collect(), 4), "the window moves only if it has to");
        view.move_selection(&table, 1_000);
        assert_eq!(view.window(&table, 10), ((40..50).collect(), 9));
        assert_eq!(view.window(&table, 100), ((0..50).collect(), 49));
        view.move_selection(&table, -1_000);
        assert_eq!(view.window(&table, 1), (vec![0], 0));
    }
}
