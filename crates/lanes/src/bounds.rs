//! Limits on queued records.

/// Limits on unfinished records taken from a source. Once a limit is reached, the subscription takes no more records
/// until the amount is down to 70 % of the limit, which prevents flapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Unfinished records of all lanes. Default: 100,000.
    pub records_max: usize,
    /// Bytes of unfinished records of all lanes, including bytes that the source's client has prefetched. Default: 256
    /// MiB. A quarter of the limit stays available to taken records, whatever the client has prefetched.
    pub bytes_max: usize,
    /// Unfinished records of one lane. Default: 100,000.
    pub lane_records_max: usize,
    /// Records of one lane from the first unfinished record to the last one taken, finished or not. Limits how many
    /// records run again after a crash; each costs 5 bytes of memory. Default: 1,000,000.
    pub lane_span_max: usize,
    /// Keys that are ready to run. At this number no more records are taken, because queued records fall out of the CPU
    /// caches. Default: 1,024. Ignored for batches and with compaction, which need many queued records per key.
    pub ready_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            records_max: 100_000,
            bytes_max: 256 << 20,
            lane_records_max: 100_000,
            lane_span_max: 1_000_000,
            ready_max: 1024,
        }
    }
}

impl Bounds {
    /// The share of [`bytes_max`](Self::bytes_max) that is left to taken records.
    pub(crate) fn bytes_taken_max(&self, buffered: usize) -> usize {
        self.bytes_max.saturating_sub(buffered).max(self.bytes_max.div_ceil(4))
    }
}

/// The low watermark of a limit: 70 %.
pub(crate) fn low(max: usize) -> usize {
    max / 10 * 7 + max % 10 * 7 / 10
}
