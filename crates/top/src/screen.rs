//! Screens: the table of the console behind each, and its columns.

use clap::ValueEnum;
use tidegate_query_log::commands::units;

/// A screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Screen {
    /// Load, waits and errors.
    Overview,
    /// Pools by database and user.
    Pools,
    /// Clients that wait or are active.
    Clients,
    /// Server connections.
    Servers,
    /// Servers with role, state and lag.
    Hosts,
    /// Slow queries of the query log.
    Queries,
    /// Streams.
    Streams,
}

/// Form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueForm {
    Text,
    Count,
    Bytes,
    Micros,
    Millis,
    Seconds,
    /// A fraction of one.
    Share,
}

/// A column of a screen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScreenColumn {
    /// Column of the table.
    pub(crate) source: &'static str,
    pub(crate) title: &'static str,
    /// Width in characters; at least that of the title.
    pub(crate) width: u16,
    /// Columns with the highest rank are left out first where there is no room.
    pub(crate) rank: u8,
    pub(crate) form: ValueForm,
}

const fn column(source: &'static str, title: &'static str, width: u16, rank: u8, form: ValueForm) -> ScreenColumn {
    ScreenColumn { source, title, width, rank, form }
}

use ValueForm::{Bytes, Count, Micros, Millis, Seconds, Share, Text};

const POOLS: &[ScreenColumn] = &[
    column("database", "database", 14, 0, Text),
    column("user", "user", 11, 0, Text),
    column("cl_active", "clients", 7, 1, Count),
    column("cl_waiting", "waiting", 7, 0, Count),
    column("maxwait_us", "maxwait", 9, 0, Micros),
    column("sv_active", "busy", 5, 0, Count),
    column("sv_free", "idle", 5, 1, Count),
    column("sv_login", "login", 5, 2, Count),
    column("pool_size", "size", 5, 1, Count),
    column("paused", "paused", 6, 3, Text),
    column("pool_mode", "mode", 11, 4, Text),
];
const CLIENTS: &[ScreenColumn] = &[
    column("id", "id", 7, 0, Count),
    column("database", "database", 12, 0, Text),
    column("user", "user", 10, 0, Text),
    column("state", "state", 8, 0, Text),
    column("wait_ms", "wait", 8, 0, Millis),
    column("request_age_ms", "request", 8, 1, Millis),
    column("server", "server", 6, 2, Count),
    column("pinned", "pinned", 9, 1, Text),
    column("application", "application", 16, 3, Text),
    column("address", "address", 21, 4, Text),
    column("age_s", "age", 11, 5, Seconds),
    column("prepared", "prepared", 8, 6, Count),
    column("tls", "tls", 20, 7, Text),
];
const SERVERS: &[ScreenColumn] = &[
    column("id", "id", 7, 0, Count),
    column("database", "database", 12, 0, Text),
    column("user", "user", 10, 0, Text),
    column("state", "state", 14, 0, Text),
    column("addr", "address", 15, 0, Text),
    column("port", "port", 5, 2, Text),
    column("remote_pid", "pid", 8, 0, Text),
    column("link", "client", 8, 1, Text),
    column("application_name", "application", 16, 3, Text),
    column("prepared_statements", "prepared", 8, 4, Count),
    column("connect_time", "connected", 23, 5, Text),
    column("tls", "tls", 20, 6, Text),
];
const HOSTS: &[ScreenColumn] = &[
    column("database", "database", 11, 0, Text),
    column("host", "host", 16, 0, Text),
    column("port", "port", 5, 1, Text),
    column("role", "role", 8, 0, Text),
    column("state", "state", 9, 0, Text),
    column("lag_ms", "lag", 8, 0, Millis),
    column("lag_bytes", "behind", 9, 2, Bytes),
    column("servers", "servers", 7, 1, Count),
    column("in_flight", "running", 7, 3, Count),
    column("ejections", "ejections", 9, 4, Count),
    column("last_error", "last error", 40, 5, Text),
];
const QUERIES: &[ScreenColumn] = &[
    column("share", "share", 7, 0, Share),
    column("calls", "calls", 8, 0, Count),
    column("total_us", "total", 9, 2, Micros),
    column("mean_us", "mean", 8, 1, Micros),
    column("p50_us", "p50", 8, 3, Micros),
    column("p99_us", "p99", 8, 0, Micros),
    column("max_us", "max", 8, 5, Micros),
    column("wait_us", "wait", 8, 5, Micros),
    column("rows", "rows", 9, 6, Count),
    column("errors", "errors", 6, 1, Count),
    column("statement", "statement", 30, 0, Text),
];
const STREAMS: &[ScreenColumn] = &[
    column("name", "name", 14, 0, Text),
    column("state", "state", 10, 0, Text),
    column("done", "done", 10, 0, Count),
    column("rate", "rate/s", 8, 0, Count),
    column("lag", "lag", 8, 0, Count),
    column("oldest_ms", "oldest", 8, 1, Millis),
    column("in_flight", "running", 7, 2, Count),
    column("retried", "retried", 7, 2, Count),
    column("dead_lettered", "dead", 6, 1, Count),
    column("parked", "parked", 6, 3, Count),
    column("restarts", "restarts", 8, 4, Count),
    column("last_error", "last error", 40, 5, Text),
];

impl Screen {
    /// All screens, in the order of their keys.
    pub(crate) const ALL: [Self; 7] =
        [Self::Overview, Self::Pools, Self::Clients, Self::Servers, Self::Hosts, Self::Queries, Self::Streams];

    /// Position, from 0; its key is one more.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Pools => "pools",
            Self::Clients => "clients",
            Self::Servers => "servers",
            Self::Hosts => "hosts",
            Self::Queries => "queries",
            Self::Streams => "streams",
        }
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Pools => "Pools",
            Self::Clients => "Clients",
            Self::Servers => "Servers",
            Self::Hosts => "Hosts",
            Self::Queries => "Queries",
            Self::Streams => "Streams",
        }
    }

    /// Shown in place of an empty table.
    pub(crate) const fn when_empty(self) -> &'static str {
        match self {
            Self::Overview | Self::Pools => "no pool has been used",
            Self::Clients => "no client is connected",
            Self::Servers => "no server connection is open",
            Self::Hosts => "no database is configured",
            Self::Queries => "no query was recorded in this period",
            Self::Streams => "no stream is configured",
        }
    }

    pub(crate) const fn columns(self) -> &'static [ScreenColumn] {
        match self {
            Self::Overview => &[],
            Self::Pools => POOLS,
            Self::Clients => CLIENTS,
            Self::Servers => SERVERS,
            Self::Hosts => HOSTS,
            Self::Queries => QUERIES,
            Self::Streams => STREAMS,
        }
    }

    /// Columns of the table that identify a row.
    pub(crate) const fn key_columns(self) -> &'static [&'static str] {
        match self {
            Self::Overview => &[],
            Self::Pools => &["database", "user"],
            Self::Clients | Self::Servers => &["id"],
            Self::Hosts => &["database", "host", "port"],
            Self::Queries => &["fingerprint", "statement"],
            Self::Streams => &["name"],
        }
    }

    /// Title of the column by which the screen is sorted at first, and whether the largest value is on top.
    pub(crate) const fn first_sort(self) -> (&'static str, bool) {
        match self {
            Self::Overview | Self::Pools => ("waiting", true),
            Self::Clients => ("wait", true),
            Self::Servers => ("state", false),
            Self::Hosts => ("database", false),
            Self::Queries => ("share", true),
            Self::Streams => ("name", false),
        }
    }

    /// Position of the column with this title.
    pub(crate) fn column_named(self, title: &str) -> Option<usize> {
        self.columns().iter().position(|column| column.title.eq_ignore_ascii_case(title))
    }

    /// Columns that fit into a width, in their order, each with its width. The last column takes the rest.
    pub(crate) fn layout(self, width: u16) -> Vec<(usize, u16)> {
        let columns = self.columns();
        let mut by_rank: Vec<usize> = (0..columns.len()).collect();
        by_rank.sort_by_key(|index| columns[*index].rank);
        let (mut used, mut chosen) = (0, Vec::new());
        for index in by_rank {
            let needed = columns[index].width + u16::from(!chosen.is_empty());
            if used + needed <= width || chosen.is_empty() {
                used += needed;
                chosen.push(index);
            }
        }
        chosen.sort_unstable();
        let mut layout: Vec<(usize, u16)> = chosen.iter().map(|index| (*index, columns[*index].width)).collect();
        // Texts at the end of a line are cut less if they take what is left.
        if let Some((last, last_width)) = layout.last_mut()
            && columns[*last].form == Text
        {
            *last_width += width.saturating_sub(used);
        }
        layout
    }
}

impl ValueForm {
    pub(crate) fn is_number(self) -> bool {
        self != Self::Text
    }

    /// The value as it is shown; empty for NULL.
    pub(crate) fn shown(self, value: Option<&str>) -> String {
        let Some(value) = value else { return String::new() };
        let number = || value.parse::<u64>().ok();
        let shown = match self {
            Self::Text => None,
            Self::Count => number().map(units::count),
            Self::Bytes => number().map(units::bytes),
            Self::Micros => number().map(units::duration),
            Self::Millis => number().map(|millis| units::duration(millis.saturating_mul(1_000))),
            Self::Seconds => number().map(|seconds| units::duration(seconds.saturating_mul(1_000_000))),
            Self::Share => value.parse::<f64>().ok().map(|share| format!("{:.1} %", share * 100.0)),
        };
        // Names and texts come from clients.
        shown.unwrap_or_else(|| units::one_line(value).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_into_80_characters() {
        for screen in &Screen::ALL[1..] {
            for width in [20, 79, 80, 120, 250] {
                let layout = screen.layout(width);
                let used: u16 = layout.iter().map(|(_, width)| width + 1).sum::<u16>() - 1;
                assert!(used <= width, "{screen:?} at {width}: {used}");
                assert!(!layout.is_empty());
            }
            let essential = screen.columns().iter().enumerate().filter(|(_, column)| column.rank == 0);
            let shown = screen.layout(80);
            for (index, column) in essential {
                assert!(shown.iter().any(|(at, _)| *at == index), "{screen:?} has no {} at 80", column.title);
            }
            for column in screen.columns() {
                assert!(usize::from(column.width) >= column.title.len(), "{}", column.title);
            }
            assert!(screen.column_named(screen.first_sort().0).is_some(), "{screen:?}");
        }
    }

    #[test]
    fn values_have_units() {
        for (form, value, expected) in [
            (ValueForm::Count, Some("1234567"), "1 234 567"),
            (ValueForm::Micros, Some("1500"), "1.50 ms"),
            (ValueForm::Millis, Some("1500"), "1.50 s"),
            (ValueForm::Seconds, Some("90000"), "25 h 00 min"),
            (ValueForm::Bytes, Some("2048"), "2.00 KiB"),
            (ValueForm::Share, Some("0.1234"), "12.3 %"),
            (ValueForm::Count, Some("x"), "x"),
            (ValueForm::Millis, None, ""),
            (ValueForm::Text, Some("a\u{1b}[2J\nb"), "a\\u{1b}[2J b"),
        ] {
            assert_eq!(form.shown(value), expected);
        }
    }
}
