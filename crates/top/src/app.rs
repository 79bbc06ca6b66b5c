//! State of the user interface, and its keys.

use std::{collections::BTreeMap, time::Duration};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tidegate_changes::QueryTable;

use crate::{
    load_history::LoadHistory,
    sample::{GatewaySample, value},
    sampler::{SampleRequest, SamplerReport},
    screen::Screen,
    table_view::TableView,
};

/// Intervals that `+` and `-` choose from.
const INTERVALS: [Duration; 8] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
];
/// Limit of the text of a filter.
const FILTER_CHARS_MAX: usize = 200;

/// The meaning of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputMode {
    Browse,
    /// The filter is being written.
    Filter,
    Help,
    /// All columns of the selected row, from this line on.
    Details(u16),
    /// A client is disconnected if the next key is `y`.
    ConfirmKill(u64),
}

/// Effect of a key beyond the state of the app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyEffect {
    None,
    Quit,
    Kill(u64),
}

/// State of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    Connected,
    Lost(String),
}

/// The user interface.
pub(crate) struct App {
    /// Address of the gateway.
    pub(crate) address: String,
    pub(crate) request: SampleRequest,
    pub(crate) mode: InputMode,
    pub(crate) link: LinkState,
    pub(crate) sample: Option<GatewaySample>,
    pub(crate) history: LoadHistory,
    /// Outcome of the last command, until the next key.
    pub(crate) notice: Option<String>,
    views: BTreeMap<Screen, TableView>,
    tables: BTreeMap<Screen, Result<QueryTable, String>>,
}

impl App {
    pub(crate) fn new(address: String, request: SampleRequest) -> Self {
        Self {
            address,
            request,
            mode: InputMode::Browse,
            link: LinkState::Connected,
            sample: None,
            history: LoadHistory::default(),
            notice: None,
            views: Screen::ALL.into_iter().map(|screen| (screen, TableView::new(screen))).collect(),
            tables: BTreeMap::new(),
        }
    }

    pub(crate) fn screen(&self) -> Screen {
        self.request.screen
    }

    /// View of a screen.
    pub(crate) fn view_mut(&mut self, screen: Screen) -> &mut TableView {
        self.views.entry(screen).or_insert_with(|| TableView::new(screen))
    }

    /// Table of a screen; `None` before its first sample.
    pub(crate) fn table(&self, screen: Screen) -> Option<Result<&QueryTable, &str>> {
        match screen {
            Screen::Overview | Screen::Pools => self.sample.as_ref().map(|sample| Ok(&sample.pools)),
            _ => self.tables.get(&screen).map(|table| table.as_ref().map_err(String::as_str)),
        }
    }

    /// View and table of the screen, if it has a table.
    pub(crate) fn view_and_table(&mut self) -> Option<(&mut TableView, &QueryTable)> {
        let screen = self.screen();
        let Self { views, tables, sample, .. } = self;
        let table = match screen {
            Screen::Overview => return None,
            Screen::Pools => &sample.as_ref()?.pools,
            _ => tables.get(&screen)?.as_ref().ok()?,
        };
        Some((views.get_mut(&screen)?, table))
    }

    pub(crate) fn on_report(&mut self, report: SamplerReport) {
        match report {
            SamplerReport::Sample(mut sample) => {
                self.link = LinkState::Connected;
                // A sample that was under way when the user paused would move the rows.
                if self.request.is_paused && self.sample.is_some() {
                    return;
                }
                self.history.add(&sample);
                if let Some((screen, table)) = sample.table.take() {
                    self.tables.insert(screen, table);
                }
                self.sample = Some(*sample);
            }
            SamplerReport::Connected => {
                self.link = LinkState::Connected;
                self.history.restart();
            }
            SamplerReport::Lost(reason) => self.link = LinkState::Lost(reason),
            SamplerReport::Notice(text) => self.notice = Some(text),
        }
    }

    pub(crate) fn on_key(&mut self, key: KeyEvent) -> KeyEffect {
        self.notice = None;
        let is_ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_ctrl && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return KeyEffect::Quit;
        }
        match self.mode.clone() {
            InputMode::Browse => return self.on_browse_key(key.code),
            InputMode::Filter => self.on_filter_key(key.code),
            InputMode::Help => self.mode = InputMode::Browse,
            InputMode::Details(line) => {
                self.mode = match key.code {
                    KeyCode::Down | KeyCode::Char('j') => InputMode::Details(line.saturating_add(1)),
                    KeyCode::Up | KeyCode::Char('k') => InputMode::Details(line.saturating_sub(1)),
                    KeyCode::PageDown => InputMode::Details(line.saturating_add(10)),
                    KeyCode::PageUp => InputMode::Details(line.saturating_sub(10)),
                    _ => InputMode::Browse,
                };
            }
            InputMode::ConfirmKill(client) => {
                self.mode = InputMode::Browse;
                if key.code == KeyCode::Char('y') {
                    return KeyEffect::Kill(client);
                }
            }
        }
        KeyEffect::None
    }

    fn on_browse_key(&mut self, code: KeyCode) -> KeyEffect {
        match code {
            KeyCode::Char('q') => return KeyEffect::Quit,
            KeyCode::Char('?' | 'h') => self.mode = InputMode::Help,
            KeyCode::Char(' ') => self.request.is_paused = !self.request.is_paused,
            KeyCode::Char('+') => self.step_interval(1),
            KeyCode::Char('-') => self.step_interval(-1),
            KeyCode::Tab => self.step_screen(1),
            KeyCode::BackTab => self.step_screen(Screen::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='7') => {
                let index = digit as usize - '1' as usize;
                self.request.screen = Screen::ALL[index];
            }
            _ if self.screen() != Screen::Overview => self.on_table_key(code),
            _ => {}
        }
        KeyEffect::None
    }

    fn on_table_key(&mut self, code: KeyCode) {
        let screen = self.screen();
        match code {
            KeyCode::Char('/') => self.mode = InputMode::Filter,
            KeyCode::Esc => self.view_mut(screen).filter.clear(),
            KeyCode::Char('<') | KeyCode::Left => self.view_mut(screen).move_sort(-1),
            KeyCode::Char('>') | KeyCode::Right => self.view_mut(screen).move_sort(1),
            KeyCode::Char('r') => self.view_mut(screen).is_descending ^= true,
            KeyCode::Up | KeyCode::Char('k') => self.move_selection(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_selection(1),
            KeyCode::PageUp => self.move_selection(-10),
            KeyCode::PageDown => self.move_selection(10),
            KeyCode::Home | KeyCode::Char('g') => self.move_selection(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.move_selection(isize::MAX),
            KeyCode::Enter if self.selected_row().is_some() => self.mode = InputMode::Details(0),
            KeyCode::Char('K') if screen == Screen::Clients => {
                if let Some(client) = self.selected_client() {
                    self.mode = InputMode::ConfirmKill(client);
                }
            }
            _ => {}
        }
    }

    fn on_filter_key(&mut self, code: KeyCode) {
        let screen = self.screen();
        let filter = &mut self.view_mut(screen).filter;
        match code {
            KeyCode::Enter => self.mode = InputMode::Browse,
            KeyCode::Esc => {
                filter.clear();
                self.mode = InputMode::Browse;
            }
            KeyCode::Backspace => drop(filter.pop()),
            KeyCode::Char(c) if filter.chars().count() < FILTER_CHARS_MAX => filter.push(c),
            _ => {}
        }
    }

    fn step_screen(&mut self, step: usize) {
        self.request.screen = Screen::ALL[(self.screen().index() + step) % Screen::ALL.len()];
    }

    fn step_interval(&mut self, step: isize) {
        let now = INTERVALS.iter().position(|interval| *interval >= self.request.interval);
        let index = now.unwrap_or(INTERVALS.len() - 1).saturating_add_signed(step);
        self.request.interval = INTERVALS[index.min(INTERVALS.len() - 1)];
    }

    fn move_selection(&mut self, step: isize) {
        if let Some((view, table)) = self.view_and_table() {
            view.move_selection(table, step);
        }
    }

    /// Columns and values of the selected row.
    pub(crate) fn selected_row(&mut self) -> Option<Vec<(String, Option<String>)>> {
        let (view, table) = self.view_and_table()?;
        let row = view.selected_row(table)?;
        Some(table.columns.iter().cloned().zip(row.iter().cloned()).collect())
    }

    fn selected_client(&mut self) -> Option<u64> {
        let (view, table) = self.view_and_table()?;
        value(table, view.selected_row(table)?, "id")?.parse().ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sample::tests::{sample, table};

    pub(crate) fn app(screen: Screen) -> App {
        let request = SampleRequest { screen, interval: Duration::from_secs(2), is_paused: false, minutes: 15 };
        App::new("127.0.0.1:6432".to_owned(), request)
    }

    pub(crate) fn give(app: &mut App, screen: Screen, found: Result<QueryTable, String>) {
        app.on_report(SamplerReport::Sample(Box::new(GatewaySample { table: Some((screen, found)), ..sample() })));
    }

    fn press(app: &mut App, keys: &str) -> KeyEffect {
        let mut effect = KeyEffect::None;
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                c => KeyCode::Char(c),
            };
            effect = app.on_key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        effect
    }

    fn clients() -> QueryTable {
        table("id database user state wait_ms", &["1 shop ann idle -", "2 shop bob waiting 9"])
    }

    #[test]
    fn disconnecting_a_client_asks_first() {
        let mut app = app(Screen::Clients);
        assert_eq!(press(&mut app, "K"), KeyEffect::None, "there is no client");
        assert_eq!(app.mode, InputMode::Browse);
        give(&mut app, Screen::Clients, Ok(clients()));
        press(&mut app, "K");
        assert_eq!(app.mode, InputMode::ConfirmKill(2));
        assert_eq!(press(&mut app, "n"), KeyEffect::None);
        assert_eq!((press(&mut app, "Ky"), &app.mode), (KeyEffect::Kill(2), &InputMode::Browse));
        assert_eq!(press(&mut app, "jKy"), KeyEffect::Kill(1));
        app.request.screen = Screen::Pools;
        assert_eq!(press(&mut app, "Ky"), KeyEffect::None);
    }

    #[test]
    fn filter_takes_every_character_until_enter() {
        let mut app = app(Screen::Clients);
        give(&mut app, Screen::Clients, Ok(clients()));
        assert_eq!(press(&mut app, "/q2 ?bob"), KeyEffect::None);
        assert_eq!(app.view_mut(Screen::Clients).filter, "q2 ?bob");
        assert_eq!((press(&mut app, "\nq"), app.screen()), (KeyEffect::Quit, Screen::Clients));
        press(&mut app, "/\u{1b}");
        assert!(app.view_mut(Screen::Clients).filter.is_empty());
    }

    #[test]
    fn pause_keeps_the_table() {
        let mut app = app(Screen::Clients);
        give(&mut app, Screen::Clients, Ok(clients()));
        press(&mut app, " ");
        assert!(app.request.is_paused);
        give(&mut app, Screen::Clients, Ok(QueryTable::default()));
        assert_eq!(app.table(Screen::Clients), Some(Ok(&clients())));
        press(&mut app, " ");
        give(&mut app, Screen::Clients, Err("no".to_owned()));
        assert_eq!(app.table(Screen::Clients), Some(Err("no")));
    }

    #[test]
    fn interval_has_bounds() {
        let mut app = app(Screen::Overview);
        press(&mut app, "+");
        assert_eq!(app.request.interval, Duration::from_secs(5));
        press(&mut app, "++++++++");
        assert_eq!(app.request.interval, Duration::from_secs(60));
        press(&mut app, "------------");
        assert_eq!(app.request.interval, Duration::from_millis(200));
    }

    #[test]
    fn lost_connection_is_reported_until_the_next_sample() {
        let mut app = app(Screen::Overview);
        app.on_report(SamplerReport::Lost("refused".to_owned()));
        assert_eq!(app.link, LinkState::Lost("refused".to_owned()));
        app.on_report(SamplerReport::Sample(Box::new(sample())));
        assert_eq!(app.link, LinkState::Connected);
    }
}
