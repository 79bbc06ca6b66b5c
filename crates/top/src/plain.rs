//! Output without a terminal: one screen as text, or everything as one JSON object.

use std::io::Write;

use anyhow::Context as _;
use serde_json::{Map, Value, json};
use tidegate_changes::{ConnectOptions, QueryTable};
use tidegate_config::escape::escaped_json;

use crate::{
    MonitorArgs, Screen, draw,
    load_history::{LoadHistory, waiting},
    sample::{self, GatewaySample, value},
    session,
    table_view::TableView,
};

/// `pg_type.oid` of int8, int4 and numeric.
pub(crate) const NUMBER_TYPES: [u32; 3] = [20, 23, 1700];
/// Widest text of a cell.
const CELL_CHARS_MAX: usize = 200;

/// Takes two samples, an interval apart, and prints the second one with the rates between them.
///
/// # Errors
/// The console cannot be reached, or the output cannot be written.
pub(crate) async fn print(args: &MonitorArgs, options: &ConnectOptions, out: &mut impl Write) -> anyhow::Result<()> {
    let mut connection = session::connect(options).await?;
    let screens = match args.screen {
        Some(screen) => vec![screen],
        None if args.json => Screen::ALL.to_vec(),
        None => vec![Screen::Overview],
    };
    let mut history = LoadHistory::default();
    if screens.contains(&Screen::Overview) {
        history.add(&sample::read(&mut connection, Screen::Overview, args.minutes, false).await?);
        tokio::time::sleep(args.interval).await;
    }
    let mut samples = Vec::new();
    for screen in screens {
        samples.push((screen, sample::read(&mut connection, screen, args.minutes, false).await?));
    }
    let address = connection.address().to_owned();
    connection.close().await;
    let (_, first) = samples.first().context("there is a screen")?;
    history.add(first);
    if args.json {
        writeln!(out, "{}", escaped_json(&json(args, &address, &samples, &history).to_string()))?;
        return Ok(());
    }
    for (screen, sample) in &samples {
        if *screen == Screen::Overview {
            for (name, shown) in draw::overview_values(sample, &history) {
                writeln!(out, "{name:<18}{shown}")?;
            }
            writeln!(out)?;
        }
        match table(*screen, sample) {
            Ok(found) => write_table(args, *screen, found, out)?,
            Err(reason) => anyhow::bail!("{}", reason.to_owned()),
        }
    }
    Ok(())
}

fn table(screen: Screen, sample: &GatewaySample) -> Result<&QueryTable, &str> {
    match &sample.table {
        Some((_, found)) => found.as_ref().map_err(String::as_str),
        None => {
            debug_assert!(
                matches!(screen, Screen::Overview | Screen::Pools),
                "other screens have a table of their own"
            );
            Ok(&sample.pools)
        }
    }
}

/// Rows in the order and with the filter of the arguments.
fn rows<'t>(args: &MonitorArgs, screen: Screen, table: &'t QueryTable) -> Vec<&'t [Option<String>]> {
    // The overview shows the pools.
    let mut view = TableView::new(if screen == Screen::Overview { Screen::Pools } else { screen });
    view.filter = args.filter.clone().unwrap_or_default();
    if let Some(sort) = &args.sort {
        view.sort_by(sort);
    }
    view.rows(table).into_iter().map(|index| table.rows[index].as_slice()).collect()
}

/// All columns, each as wide as its widest value.
fn write_table(args: &MonitorArgs, screen: Screen, table: &QueryTable, out: &mut impl Write) -> anyhow::Result<()> {
    let columns = if screen == Screen::Overview { Screen::Pools } else { screen }.columns();
    let mut lines: Vec<Vec<String>> = vec![columns.iter().map(|column| column.title.to_owned()).collect()];
    for row in rows(args, screen, table) {
        let shown = columns.iter().map(|column| {
            let text = column.form.shown(value(table, row, column.source));
            tidegate_query_log::commands::units::truncate(&text, CELL_CHARS_MAX).into_owned()
        });
        lines.push(shown.collect());
    }
    let width = |index: usize| lines.iter().map(|line| line[index].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for line in &lines {
        let mut text = String::new();
        for ((cell, column), width) in line.iter().zip(columns).zip(&widths) {
            let aligned = if column.form.is_number() { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
            text.push_str(&aligned);
            text.push_str("  ");
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

fn json(args: &MonitorArgs, address: &str, samples: &[(Screen, GatewaySample)], history: &LoadHistory) -> Value {
    let (_, first) = &samples[0];
    let mut object = Map::new();
    object.insert("address".to_owned(), json!(address));
    object.insert("state".to_owned(), json!(first.phase));
    object.insert("uptime_s".to_owned(), json!(first.uptime.map(|uptime| uptime.as_secs())));
    object.insert("connected".to_owned(), json!(first.clients));
    object.insert("waiting".to_owned(), json!(waiting(first)));
    for (screen, sample) in samples {
        if *screen == Screen::Overview {
            let rates = history.last().map(|point| point.rates).unwrap_or_default();
            object.insert(
                "load".to_owned(),
                json!({
                    "transactions": rates.transactions, "queries": rates.queries, "query_ms": rates.query_ms,
                    "wait_ms": rates.wait_ms, "errors": rates.errors, "received_bytes": rates.received_bytes,
                    "sent_bytes": rates.sent_bytes,
                }),
            );
            let rows: Vec<&[Option<String>]> = sample.errors.rows.iter().map(Vec::as_slice).collect();
            object.insert("errors".to_owned(), objects(&sample.errors, &rows));
            continue;
        }
        let (name, shown) = match table(*screen, sample) {
            Ok(found) => (screen.name().to_owned(), objects(found, &rows(args, *screen, found))),
            Err(reason) => (format!("{}_error", screen.name()), json!(reason)),
        };
        object.insert(name, shown);
    }
    Value::Object(object)
}

/// Rows as objects; values of number columns are numbers.
fn objects(table: &QueryTable, rows: &[&[Option<String>]]) -> Value {
    let is_number = |index: usize| table.types.get(index).is_some_and(|oid| NUMBER_TYPES.contains(oid));
    let cell = |(index, text): (usize, &Option<String>)| match text {
        None => Value::Null,
        Some(text) if is_number(index) => text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number)),
        Some(text) => json!(text),
    };
    let object = |row: &&[Option<String>]| -> Value {
        table.columns.iter().cloned().zip(row.iter().enumerate().map(cell)).collect::<Map<_, _>>().into()
    };
    rows.iter().map(object).collect()
}
