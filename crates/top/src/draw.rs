//! Renders the state of the user interface.

use std::time::Duration;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    symbols::bar,
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph, Sparkline, Wrap},
};
use tidegate_changes::QueryTable;
use tidegate_query_log::commands::units;

use crate::{
    app::{App, InputMode, LinkState},
    load_history::{LoadHistory, LoadPoint, waiting},
    sample::{GatewaySample, number, value},
    screen::{Screen, ScreenColumn},
    table_view::TableView,
};

/// Bars for terminals without Unicode.
const ASCII_BARS: bar::Set<'_> = bar::Set {
    full: "#",
    seven_eighths: "*",
    three_quarters: "+",
    five_eighths: "=",
    half: "-",
    three_eighths: ":",
    one_quarter: ".",
    one_eighth: "_",
    empty: " ",
};

const KEYS: &[(&str, &str)] = &[
    ("1 … 7, Tab", "screen"),
    ("↑ ↓ j k, PgUp PgDn, g G", "row"),
    ("Enter", "all columns of the row, with the whole statement"),
    ("/", "filter: rows that contain a text; Esc ends it"),
    ("< >, ← →", "column to sort by"),
    ("r", "reverse the order"),
    ("space", "pause and continue"),
    ("+ -", "longer or shorter interval"),
    ("K", "disconnect the selected client; asks first"),
    ("? h", "this list"),
    ("q, Ctrl-C", "quit"),
];

/// Styles and symbols.
#[derive(Clone, Debug)]
pub(crate) struct Theme {
    accent: Style,
    warning: Style,
    dim: Style,
    selected: Style,
    bars: bar::Set<'static>,
    descending: &'static str,
    ascending: &'static str,
}

impl Theme {
    /// Bold and reversed text carry the same distinctions without colour.
    pub(crate) fn new(has_colour: bool, is_utf8: bool) -> Self {
        let colour = |colour: Color| if has_colour { Style::new().fg(colour) } else { Style::new() };
        Self {
            accent: colour(Color::Cyan).add_modifier(Modifier::BOLD),
            warning: colour(Color::Red).add_modifier(Modifier::BOLD),
            dim: if has_colour { Style::new().fg(Color::DarkGray) } else { Style::new().add_modifier(Modifier::DIM) },
            selected: Style::new().add_modifier(Modifier::REVERSED),
            bars: if is_utf8 { bar::NINE_LEVELS } else { ASCII_BARS },
            descending: if is_utf8 { "▼" } else { "v" },
            ascending: if is_utf8 { "▲" } else { "^" },
        }
    }
}

/// Renders everything.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &mut App, theme: &Theme) {
    let rows = [Constraint::Length(1), Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [head, tabs, body, foot] = Layout::vertical(rows).areas(frame.area());
    draw_head(frame, head, app, theme);
    draw_tabs(frame, tabs, app, theme);
    match app.screen() {
        Screen::Overview => draw_overview(frame, body, app, theme),
        screen => draw_screen(frame, body, app, screen, theme),
    }
    draw_foot(frame, foot, app, theme);
    match app.mode.clone() {
        InputMode::Help => draw_help(frame, theme),
        InputMode::Details(line) => draw_details(frame, app, line, theme),
        InputMode::Browse | InputMode::Filter | InputMode::ConfirmKill(_) => {}
    }
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, app: &App, theme: &Theme) {
    let mut spans = vec![Span::styled("Tidegate", theme.accent), format!("  {}", app.address).into()];
    if let Some(sample) = &app.sample {
        let phase = if sample.phase == "active" { Style::new() } else { theme.warning };
        spans.extend(["  ".into(), Span::styled(sample.phase, phase)]);
        if let Some(uptime) = sample.uptime {
            spans.push(format!("  up {}", shown_time(uptime)).into());
        }
    }
    let interval = format!("every {} s", app.request.interval.as_secs_f64());
    let right = match (&app.link, app.request.is_paused) {
        (LinkState::Lost(_), _) => Span::styled("reconnecting", theme.warning),
        (LinkState::Connected, true) => Span::styled("paused", theme.warning),
        (LinkState::Connected, false) => Span::styled(interval, theme.dim),
    };
    frame.render_widget(Line::from(spans), area);
    frame.render_widget(Line::from(right).right_aligned(), area);
}

fn shown_time(time: Duration) -> String {
    units::duration(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

fn draw_tabs(frame: &mut Frame<'_>, area: Rect, app: &App, theme: &Theme) {
    let mut spans = Vec::new();
    for screen in Screen::ALL {
        let style = if screen == app.screen() { theme.selected } else { Style::new() };
        spans.push(Span::styled(format!(" {} {} ", screen.index() + 1, screen.title()), style));
    }
    frame.render_widget(Line::from(spans), area);
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, app: &mut App, theme: &Theme) {
    let screen = app.screen();
    let line = match (&app.mode, &app.link) {
        (InputMode::Filter, _) => {
            let filter = app.view_mut(screen).filter.clone();
            Line::from(vec![Span::styled("filter: ", theme.accent), format!("{}_", units::one_line(&filter)).into()])
        }
        (InputMode::ConfirmKill(client), _) => {
            Line::styled(format!("disconnect client {client}? y: yes, any other key: no"), theme.warning)
        }
        (_, LinkState::Lost(reason)) => Line::styled(units::one_line(reason).into_owned(), theme.warning),
        _ => match &app.notice {
            Some(notice) => Line::styled(units::one_line(notice).into_owned(), theme.accent),
            None if screen == Screen::Overview => Line::styled("1-7 screen  space pause  ? keys  q quit", theme.dim),
            None => {
                let filter = app.view_mut(screen).filter.clone();
                let keys = "/ filter  < > sort  r reverse  Enter details  space pause  ? keys  q quit";
                match filter.is_empty() {
                    true => Line::styled(keys, theme.dim),
                    false => Line::styled(format!("filter: {} (Esc ends it)", units::one_line(&filter)), theme.accent),
                }
            }
        },
    };
    frame.render_widget(line, area);
}

/// Names and values of the overview.
pub(crate) fn overview_values(sample: &GatewaySample, history: &LoadHistory) -> Vec<(&'static str, String)> {
    let rates = history.last().map(|point| point.rates).unwrap_or_default();
    let sum = |column: &str| -> u64 { sample.pools.rows.iter().map(|row| number(&sample.pools, row, column)).sum() };
    let longest = sample.pools.rows.iter().map(|row| number(&sample.pools, row, "maxwait_us")).max();
    vec![
        ("Transactions/s", rate(rates.transactions)),
        ("Queries/s", rate(rates.queries)),
        ("Query time", millis(rates.query_ms)),
        ("Wait time", millis(rates.wait_ms)),
        ("Waiting clients", units::count(waiting(sample))),
        ("Errors/s", rate(rates.errors)),
        ("Longest wait", units::duration(longest.unwrap_or_default())),
        ("Clients", units::count(sample.clients)),
        ("Servers", format!("{} busy, {} idle, {} logging in", sum("sv_active"), sum("sv_free"), sum("sv_login"))),
        (
            "Traffic",
            format!(
                "{}/s in, {}/s out",
                units::bytes(rates.received_bytes as u64),
                units::bytes(rates.sent_bytes as u64)
            ),
        ),
    ]
}

/// Values that the charts show, by the name of their line.
fn chart_value(name: &str, point: &LoadPoint) -> Option<f64> {
    match name {
        "Transactions/s" => Some(point.rates.transactions),
        "Queries/s" => Some(point.rates.queries),
        "Query time" => Some(point.rates.query_ms),
        "Wait time" => Some(point.rates.wait_ms),
        "Waiting clients" => Some(point.waiting as f64),
        "Errors/s" => Some(point.rates.errors),
        _ => None,
    }
}

fn rate(per_second: f64) -> String {
    if per_second < 99.95 { format!("{per_second:.1}") } else { units::count(per_second.round() as u64) }
}

fn millis(millis: f64) -> String {
    units::duration((millis * 1e3).round() as u64)
}

fn draw_overview(frame: &mut Frame<'_>, area: Rect, app: &App, theme: &Theme) {
    let Some(sample) = &app.sample else { return draw_waiting(frame, area, theme) };
    let values = overview_values(sample, &app.history);
    let height = u16::try_from(values.len()).unwrap_or(u16::MAX);
    let errors = error_lines(sample);
    let errors_height = u16::try_from(errors.len()).unwrap_or(u16::MAX).min(5) + 1;
    let rows = [
        Constraint::Length(1),
        Constraint::Length(height),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(errors_height),
    ];
    let [_, top, _, pools, foot] = Layout::vertical(rows).areas(area);
    for (y, (name, shown)) in (top.y..top.bottom()).zip(values) {
        let line = Rect { y, height: 1, ..top };
        let is_bad = matches!(name, "Waiting clients" | "Errors/s") && shown != "0" && shown != "0.0";
        let [label, figure, chart] =
            Layout::horizontal([Constraint::Length(18), Constraint::Length(14), Constraint::Min(0)]).areas(line);
        frame.render_widget(Span::styled(name, theme.dim), label);
        let style = if is_bad { theme.warning } else { Style::new().add_modifier(Modifier::BOLD) };
        let wide = Rect { width: figure.width + chart.width, ..figure };
        let points = app.history.points();
        let skipped = points.len().saturating_sub(usize::from(chart.width));
        let data: Option<Vec<u64>> =
            points.skip(skipped).map(|point| chart_value(name, point).map(|value| (value * 1e3) as u64)).collect();
        match data.filter(|data| !data.is_empty()) {
            Some(data) => {
                frame.render_widget(Span::styled(shown, style), figure);
                frame.render_widget(
                    Sparkline::default().data(data).bar_set(theme.bars.clone()).style(theme.accent),
                    chart,
                );
            }
            None => frame.render_widget(Span::styled(shown, style), wide),
        }
    }
    let mut shown = TableView::new(Screen::Pools).rows(&sample.pools);
    shown.truncate(usize::from(pools.height.saturating_sub(1)));
    draw_table(frame, pools, Screen::Pools, &sample.pools, &shown, None, None, theme);
    frame.render_widget(Line::styled("Since the start", theme.dim), Rect { height: 1, ..foot });
    let list = Rect { y: foot.y + 1, height: foot.height.saturating_sub(1), ..foot };
    frame.render_widget(Paragraph::new(errors), list);
}

/// Failures since the start, the most frequent first. Regular ends of sessions are none.
fn error_lines(sample: &GatewaySample) -> Vec<Line<'static>> {
    let errors = &sample.errors;
    let mut found: Vec<(u64, String)> = Vec::new();
    for row in &errors.rows {
        let count = number(errors, row, "count");
        let event = value(errors, row, "event").unwrap_or_default();
        if count == 0 || event == "disconnect" {
            continue;
        }
        let reason = value(errors, row, "reason").map(|reason| format!(": {reason}")).unwrap_or_default();
        found.push((count, units::one_line(&format!("{event}{reason}")).into_owned()));
    }
    if found.is_empty() {
        return vec![Line::from("no errors")];
    }
    found.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    found.into_iter().map(|(count, text)| Line::from(format!("{:>9}  {text}", units::count(count)))).collect()
}

fn draw_waiting(frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
    frame.render_widget(Line::styled("reading", theme.dim), Rect { y: area.y + 1.min(area.height), height: 1, ..area });
}

fn draw_screen(frame: &mut Frame<'_>, area: Rect, app: &mut App, screen: Screen, theme: &Theme) {
    let [title, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    let total = app.sample.as_ref().map(|sample| sample.clients);
    let minutes = app.request.minutes;
    match app.table(screen) {
        None => return draw_waiting(frame, area, theme),
        Some(Err(reason)) => {
            let line = Line::styled(units::one_line(reason).into_owned(), theme.warning);
            return frame.render_widget(line, Rect { height: 1, ..body });
        }
        Some(Ok(_)) => {}
    }
    let Some((view, table)) = app.view_and_table() else { return };
    let (part, selected) = view.window(table, usize::from(body.height.saturating_sub(1)));
    let found = view.rows(table).len();
    let mut text = format!("{} of {} rows", units::count(found as u64), units::count(table.rows.len() as u64));
    match (screen, total) {
        (Screen::Clients, Some(total)) if total > table.rows.len() as u64 => {
            text = format!("{text}, those that wait longest or are active; {} clients", units::count(total));
        }
        (Screen::Queries, _) => text = format!("{text}, last {minutes} minutes"),
        _ => {}
    }
    frame.render_widget(Line::styled(text, theme.dim), title);
    if part.is_empty() {
        let reason = if table.rows.is_empty() { screen.when_empty() } else { "no row contains the filter" };
        frame.render_widget(Line::from(reason), Rect { y: body.y + 1.min(body.height), height: 1, ..body });
    }
    let sort = Some((view.sort, view.is_descending));
    draw_table(frame, body, screen, table, &part, Some(selected), sort, theme);
}

/// Column to sort by, and whether the largest value is on top.
type SortMark = (usize, bool);

#[expect(clippy::too_many_arguments, reason = "the overview and the screens differ in each of them")]
fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    screen: Screen,
    table: &QueryTable,
    rows: &[usize],
    selected: Option<usize>,
    sort: Option<SortMark>,
    theme: &Theme,
) {
    let columns = screen.columns();
    let layout = screen.layout(area.width);
    let head = Rect { height: 1, ..area };
    for (index, x, width) in positions(&layout, area.x) {
        let column = &columns[index];
        let mark = match sort {
            Some((at, true)) if at == index => theme.descending,
            Some((at, false)) if at == index => theme.ascending,
            _ => "",
        };
        // The mark replaces the space beside a title that fills its column.
        let title = format!("{}{mark}", column.title);
        let style = if mark.is_empty() { theme.dim } else { theme.accent };
        put(frame, Rect { x, width, ..head }, &title, column, style);
    }
    for (line, row) in rows.iter().enumerate() {
        let Ok(offset) = u16::try_from(line + 1) else { break };
        if offset >= area.height {
            break;
        }
        let place = Rect { y: area.y + offset, height: 1, ..area };
        let row = &table.rows[*row];
        for (index, x, width) in positions(&layout, area.x) {
            let column = &columns[index];
            let text = column.form.shown(value(table, row, column.source));
            put(frame, Rect { x, width, ..place }, &text, column, cell_style(column, &text, theme));
        }
        if selected == Some(line) {
            frame.buffer_mut().set_style(place, theme.selected);
        }
    }
}

/// Column, left edge and width of each column.
fn positions(layout: &[(usize, u16)], left: u16) -> impl Iterator<Item = (usize, u16, u16)> + '_ {
    let mut x = left;
    layout.iter().map(move |(index, width)| {
        let at = x;
        x += width + 1;
        (*index, at, *width)
    })
}

/// Writes a text into a column: numbers at its right edge, and no more than fits.
fn put(frame: &mut Frame<'_>, cell: Rect, text: &str, column: &ScreenColumn, style: Style) {
    let cell = cell.intersection(frame.area());
    let used = u16::try_from(Span::raw(text).width()).unwrap_or(u16::MAX).min(cell.width);
    let indent = if column.form.is_number() { cell.width - used } else { 0 };
    if cell.area() > 0 {
        frame.buffer_mut().set_stringn(cell.x + indent, cell.y, text, usize::from(cell.width - indent), style);
    }
}

/// States that need attention.
fn cell_style(column: &ScreenColumn, text: &str, theme: &Theme) -> Style {
    let is_bad = match column.source {
        "state" => {
            matches!(text, "waiting" | "down" | "lagging" | "silent" | "closed" | "deposed" | "ejected" | "failed")
        }
        "cl_waiting" | "errors" | "dead_lettered" => !matches!(text, "" | "0"),
        "paused" | "pinned" => !text.is_empty(),
        _ => false,
    };
    if is_bad { theme.warning } else { Style::new() }
}

/// A box in the middle of the screen.
fn popup(frame: &mut Frame<'_>, title: &str, width: u16, height: u16) -> Rect {
    let area = frame.area();
    let (width, height) = (width.min(area.width), height.min(area.height));
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    let block = Block::bordered().title(format!(" {title} "));
    let inner = block.inner(place);
    frame.render_widget(Clear, place);
    frame.render_widget(block, place);
    inner
}

fn draw_help(frame: &mut Frame<'_>, theme: &Theme) {
    let height = u16::try_from(KEYS.len()).unwrap_or(u16::MAX) + 2;
    let inner = popup(frame, "Keys", 78, height);
    let line = |(keys, meaning): &(&'static str, &'static str)| {
        Line::from(vec![Span::styled(format!(" {keys:<24} "), theme.accent), Span::raw(*meaning)])
    };
    frame.render_widget(Paragraph::new(KEYS.iter().map(line).collect::<Vec<_>>()), inner);
}

fn draw_details(frame: &mut Frame<'_>, app: &mut App, line: u16, theme: &Theme) {
    let Some(values) = app.selected_row() else { return };
    let area = frame.area();
    let inner = popup(frame, "Details: ↑ ↓ scroll, Esc closes", area.width, area.height);
    let width = values.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    let shown = |(name, text): &(String, Option<String>)| {
        let text = units::one_line(text.as_deref().unwrap_or("-")).into_owned();
        Line::from(vec![Span::styled(format!("{:width$}  ", units::one_line(name)), theme.dim), Span::raw(text)])
    };
    let lines: Vec<Line<'_>> = values.iter().map(shown).collect();
    // A statement may be longer than the box: it is wrapped, and the box scrolls.
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((line, 0)), inner);
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::{
        app::tests::{app, give},
        sample::tests::{sample, table},
        sampler::SamplerReport,
    };

    /// Lines of the screen.
    fn rendered(app: &mut App, width: u16, height: u16, theme: &Theme) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
        terminal.draw(|frame| draw(frame, app, theme)).expect("drawn in memory");
        let buffer = terminal.backend().buffer();
        (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>()).collect()
    }

    fn plain() -> Theme {
        Theme::new(false, false)
    }

    #[test]
    fn overview_fits_into_80_by_24() {
        let mut app = app(Screen::Overview);
        for second in 0..70 {
            let mut sample = sample();
            sample.at += Duration::from_secs(second);
            sample.load.totals.query_count = second * second * 100;
            app.on_report(SamplerReport::Sample(Box::new(sample)));
        }
        let lines = rendered(&mut app, 80, 24, &plain());
        let text = lines.join("\n");
        for expected in [
            "Tidegate  127.0.0.1:6432  active  up 27 h 46 min",
            " 1 Overview  2 Pools  3 Clients ",
            "Queries/s         13 700 ",
            "Waiting clients   3",
            "Longest wait      2.50 s",
            "Servers           21 busy, 5 idle, 1 logging in",
            "shop           app              40       3    2.50 s    20",
            "        4  checkout_timeout",
            "q quit",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(lines[4].contains("-=+*#") || lines[4].contains('#'), "{text}");
        assert!(lines[4].is_ascii(), "the charts need no Unicode: {text}");
    }

    #[test]
    fn screen_marks_sort_and_selection() {
        let mut app = app(Screen::Clients);
        let clients = table("id database user state wait_ms", &["1 shop ann idle -", "2 shop bob waiting 1500"]);
        give(&mut app, Screen::Clients, Ok(clients));
        let lines = rendered(&mut app, 80, 24, &plain());
        assert_eq!(lines[2].trim(), "2 of 2 rows, those that wait longest or are active; 46 clients");
        assert!(lines[3].contains("   waitv"), "{lines:#?}");
        assert_eq!(lines[4].split_whitespace().collect::<Vec<_>>(), ["2", "shop", "bob", "waiting", "1.50", "s"]);
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a terminal in memory");
        terminal.draw(|frame| draw(frame, &mut app, &plain())).expect("drawn in memory");
        let style = terminal.backend().buffer()[(10, 4)].style();
        assert!(style.add_modifier.contains(Modifier::REVERSED), "{style:?}");
    }

    #[test]
    fn without_colour_there_is_none() {
        for has_colour in [true, false] {
            let mut app = app(Screen::Pools);
            give(&mut app, Screen::Hosts, Ok(QueryTable::default()));
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a terminal in memory");
            let theme = Theme::new(has_colour, true);
            terminal.draw(|frame| draw(frame, &mut app, &theme)).expect("drawn in memory");
            let is_coloured = terminal.backend().buffer().content().iter().any(|cell| cell.fg != Color::Reset);
            assert_eq!(is_coloured, has_colour);
        }
    }

    #[test]
    fn errors_of_a_table_are_shown_in_its_place() {
        let mut app = app(Screen::Queries);
        give(&mut app, Screen::Queries, Err("there is no query log: set folder in [journal] and restart".to_owned()));
        assert!(rendered(&mut app, 80, 24, &plain()).join("\n").contains("set folder in [journal]"));
        app.on_report(SamplerReport::Lost("connection refused".to_owned()));
        let lines = rendered(&mut app, 80, 24, &plain());
        assert!(lines[0].ends_with("reconnecting") && lines[23].contains("connection refused"), "{lines:#?}");
    }

    #[test]
    fn details_wrap_long_and_hostile_texts() {
        let mut app = app(Screen::Queries);
        let mut queries = table("fingerprint share statement", &["ab 0.5 -"]);
        queries.rows[0][2] = Some(format!("select {}\u{1b}[2J", "column_name, ".repeat(20)));
        give(&mut app, Screen::Queries, Ok(queries));
        app.mode = InputMode::Details(0);
        let text = rendered(&mut app, 80, 24, &plain()).join("\n");
        assert!(text.contains("fingerprint") && text.contains("u{1b}[2J"), "{text}");
        app.mode = InputMode::Help;
        assert!(rendered(&mut app, 80, 24, &plain()).join("\n").contains("disconnect the selected client"));
    }

    /// No size of a terminal is an error.
    #[test]
    fn every_size_is_drawn() {
        for screen in Screen::ALL {
            for (width, height) in [(1, 1), (3, 2), (20, 5), (80, 24), (300, 100)] {
                for mode in [InputMode::Browse, InputMode::Help, InputMode::Details(3), InputMode::Filter] {
                    let mut app = app(screen);
                    app.mode = mode;
                    rendered(&mut app, width, height, &plain());
                    give(&mut app, screen, Ok(table("id state name", &["1 idle a", "2 waiting b"])));
                    rendered(&mut app, width, height, &plain());
                }
            }
        }
    }
}
