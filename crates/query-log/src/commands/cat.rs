//! `cat`, `export` and `merge`: print entries from the first to the last.

use std::path::Path;

use anyhow::Result;
use tidegate_journal::AtEnd;

use super::{
    filter::{FilterOutcome, RangeEnd, RecordFilter},
    print::{EntryPrinter, Output, OutputFormat},
    progress::ReadProgress,
    source::{self, MergedSources},
    zone::Zone,
};
use crate::options::{self, ColorChoice, DisplayArgs, SourceArgs};

/// Common settings of the three commands.
struct CopyJob<'a> {
    source: &'a SourceArgs,
    filter: &'a options::FilterArgs,
    display: &'a DisplayArgs,
    form: OutputFormat,
    records_max: Option<u64>,
    output: Option<&'a Path>,
}

pub(super) fn cat(cat: &options::CatArgs) -> Result<()> {
    let options::CatArgs { source, filter, display, lines, .. } = cat;
    let form = OutputFormat::of(display, cat.long);
    copy_entries(&CopyJob { source, filter, display, form, records_max: *lines, output: None })
}

pub(super) fn export(export: &options::ExportArgs) -> Result<()> {
    let options::ExportArgs { source, filter, output, csv, utc, .. } = export;
    let display = &DisplayArgs { utc: *utc, ..DisplayArgs::default() };
    let form = if *csv { OutputFormat::Csv } else { OutputFormat::Json };
    copy_entries(&CopyJob { source, filter, display, form, records_max: None, output: output.as_deref() })
}

pub(super) fn merge(merge: &options::MergeArgs) -> Result<()> {
    let options::MergeArgs { source, filter, output, text, csv, utc, .. } = merge;
    let color = if output.is_some() { ColorChoice::Never } else { ColorChoice::Auto };
    let display = &DisplayArgs { utc: *utc, full: true, color, ..DisplayArgs::default() };
    let form = match (text, csv) {
        (true, _) => OutputFormat::Text,
        (_, true) => OutputFormat::Csv,
        _ => OutputFormat::Json,
    };
    copy_entries(&CopyJob { source, filter, display, form, records_max: None, output: output.as_deref() })
}

fn copy_entries(copy: &CopyJob<'_>) -> Result<()> {
    let zone = Zone::new(copy.display.utc);
    let filter = RecordFilter::new(copy.filter, &zone)?;
    let mut sources = MergedSources::open(&source::locations(copy.source)?, filter.since, AtEnd::Stop)?;
    let mut progress = ReadProgress::beside_output(copy.output.is_some());
    let mut out = Output::new(copy.output)?;
    let mut printer = EntryPrinter::new(copy.form, copy.display, &zone).to(&out);
    printer.head(&mut out)?;
    let mut end = RangeEnd::default();
    let mut left = copy.records_max.unwrap_or(u64::MAX);
    while left > 0
        && let Some(entry) = sources.next()?
    {
        progress.step(|| sources.progress());
        let outcome = filter.evaluate(&entry);
        if end.is_reached(outcome) {
            break;
        }
        if outcome == FilterOutcome::Match {
            left -= u64::from(entry.content.is_record());
            printer.print(&entry, &mut out)?;
        }
    }
    drop(progress);
    end.warn();
    out.finish()
}
