//! Check of `[journal]`: the folder, and combinations of keys that the journal supports.

use super::{Checker, SectionView};
use crate::keys::{JournalAck, JournalFormat, JournalOverload, QueryLogConfig, TracesConfig};
use crate::raw::RawTable;

impl Checker<'_> {
    pub(super) fn journal(&mut self, root: &RawTable) -> QueryLogConfig {
        let section = &SectionView::of(root, "journal");
        let mut journal: QueryLogConfig = self.settings(section);
        self.future_path(&mut journal.folder);
        let is_off = journal.folder.as_os_str().is_empty() && !SectionView::of(root, "traces").has("endpoint");
        if is_off && !section.table.entries.is_empty() && !section.has("folder") {
            let help = "name a folder: folder = \"/var/lib/tidegate/journal\"";
            self.warning(section.locate(&[]), "[journal] has no folder: the query log is off", help);
        }
        if journal.format == JournalFormat::Json && journal.stripes > 1 {
            let help = "leave out stripes, or write format = \"framed\"";
            self.error(section.locate(&["stripes"]), "the json format has one stripe", help);
        }
        let samples = [journal.queries_overload, journal.connections_overload].contains(&JournalOverload::Sample);
        if section.has("sample_one_in") && !samples {
            let help = "write queries_overload = \"sample\"";
            self.warning(section.locate(&["sample_one_in"]), "sample_one_in has no effect: nothing is sampled", help);
        }
        let displaces = [journal.queries_overload, journal.connections_overload].contains(&JournalOverload::DropOldest);
        if displaces && journal.ack != JournalAck::Accepted {
            let help = "write ack = \"accepted\", or drop_newest or sample";
            let reason = "drop_oldest acts as drop_newest: with this ack, a queued record is not displaced";
            self.warning(section.locate(&["queries_overload", "connections_overload"]), reason, help);
        }
        if section.has("linger") && journal.ack != JournalAck::Accepted {
            let help = "write ack = \"accepted\", or leave linger out";
            self.warning(section.locate(&["linger"]), "linger has no effect: records are written immediately", help);
        }
        let per_stripe = u64::from(journal.queue_bytes) / u64::from(journal.stripes.max(1));
        if per_stripe < 64 << 10 {
            let help = "allow at least 64 KiB for each stripe";
            self.error(section.locate(&["queue_bytes"]), "queue_bytes is too small for so many stripes", help);
        }
        journal
    }

    /// `[traces]`, whose spans are made from the records of the query log.
    pub(super) fn traces(&mut self, root: &RawTable) -> TracesConfig {
        let section = &SectionView::of(root, "traces");
        let mut traces: TracesConfig = self.settings(section);
        self.file(section, "ca_file", &mut traces.ca_file);
        if !traces.is_on() {
            if !section.table.entries.is_empty() && !section.has("endpoint") {
                let help = "name a collector: endpoint = \"http://127.0.0.1:4318\"";
                self.warning(section.locate(&[]), "[traces] has no endpoint: no spans are made", help);
            }
            return traces;
        }
        let is_url = ["http://", "https://"].iter().any(|scheme| traces.endpoint.starts_with(scheme));
        if !is_url {
            let help = "write endpoint = \"http://127.0.0.1:4318\"";
            self.error(section.locate(&["endpoint"]), "endpoint is not the URL of a collector", help);
        }
        if traces.interval.is_zero() || traces.timeout.is_zero() {
            let help = "write interval = \"1s\" and timeout = \"10s\"";
            self.error(section.locate(&["interval", "timeout"]), "interval and timeout cannot be zero", help);
        }
        traces
    }
}
