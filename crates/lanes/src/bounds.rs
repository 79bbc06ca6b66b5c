//! How much may wait.

/// How much a subscription takes from its source before it is done with it. At a bound it takes nothing more until it is
/// down to 70 % of it, so that it does not flap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Records of all lanes that are not done. 100,000 by default.
    pub records_max: usize,
    /// Bytes of all lanes that are not done, with what the source's client has read ahead. 256 MiB by default. Whatever
    /// the client holds, a quarter of it is for records that were taken: one at a time would help nobody.
    pub bytes_max: usize,
    /// Records of one lane that are not done. 100,000 by default.
    pub lane_records_max: usize,
    /// Records of one lane from the first that is not done to the last one taken, done or not: how much is run again
    /// after a crash at most, and 5 bytes of memory each. 1,000,000 by default.
    pub lane_span_max: usize,
    /// Keys that could begin at once if they had their turn. While there are so many, more records would only wait and
    /// grow cold, so none are taken. 1,024 by default; without effect for batches and with compaction, which want many
    /// records of a key.
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
    /// Of [`bytes_max`](Self::bytes_max), what is left to records that were taken.
    pub(crate) fn bytes_taken_max(&self, buffered: usize) -> usize {
        self.bytes_max.saturating_sub(buffered).max(self.bytes_max.div_ceil(4))
    }
}

/// Down to this a bound lets go.
pub(crate) fn low(max: usize) -> usize {
    max / 10 * 7 + max % 10 * 7 / 10
}
