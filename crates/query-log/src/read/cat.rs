//! `cat`, `export` and `merge`: entries from the first to the last.

use std::path::Path;

use anyhow::Result;
use tidegate_journal::AtEnd;

use super::{
    print::{Form, Printer, Sink},
    progress::Progress,
    sieve::{Sieve, Verdict},
    source::{self, Sources},
    zone::Zone,
};
use crate::options::{self, Colour, Look, Places};

/// What the three have in common.
struct Copy<'a> {
    places: &'a Places,
    sieve: &'a options::Sieve,
    look: &'a Look,
    form: Form,
    records_max: Option<u64>,
    output: Option<&'a Path>,
}

pub(super) fn cat(cat: &options::Cat) -> Result<()> {
    let options::Cat { places, sieve, look, lines, .. } = cat;
    let form = Form::of(look, cat.long);
    copy(&Copy { places, sieve, look, form, records_max: *lines, output: None })
}

pub(super) fn export(export: &options::Export) -> Result<()> {
    let options::Export { places, sieve, output, csv, utc, .. } = export;
    let look = &Look { utc: *utc, ..Look::default() };
    let form = if *csv { Form::Csv } else { Form::Json };
    copy(&Copy { places, sieve, look, form, records_max: None, output: output.as_deref() })
}

pub(super) fn merge(merge: &options::Merge) -> Result<()> {
    let options::Merge { places, sieve, output, text, csv, utc, .. } = merge;
    let color = if output.is_some() { Colour::Never } else { Colour::Auto };
    let look = &Look { utc: *utc, full: true, color, ..Look::default() };
    let form = match (text, csv) {
        (true, _) => Form::Text,
        (_, true) => Form::Csv,
        _ => Form::Json,
    };
    copy(&Copy { places, sieve, look, form, records_max: None, output: output.as_deref() })
}

fn copy(copy: &Copy<'_>) -> Result<()> {
    let zone = Zone::new(copy.look.utc);
    let sieve = Sieve::new(copy.sieve, &zone)?;
    let mut sources = Sources::open(&source::places(copy.places)?, sieve.since, AtEnd::Stop)?;
    let mut progress = Progress::beside_output(copy.output.is_some());
    let mut out = Sink::new(copy.output)?;
    let mut printer = Printer::new(copy.form, copy.look, &zone).to(&out);
    printer.head(&mut out)?;
    let mut left = copy.records_max.unwrap_or(u64::MAX);
    while left > 0
        && let Some(item) = sources.next()?
    {
        progress.step(|| sources.progress());
        match sieve.judge(&item) {
            Verdict::Over => break,
            Verdict::Unwanted => {}
            Verdict::Wanted => {
                left -= u64::from(item.what.is_record());
                printer.print(&item, &mut out)?;
            }
        }
    }
    drop(progress);
    out.finish()
}
