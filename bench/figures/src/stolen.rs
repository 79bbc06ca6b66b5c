//! Steal time: CPU time that the hypervisor gave to other machines. Figures with much steal time are unreliable.

use std::fs;

/// A measurement of steal time from its creation on.
#[derive(Clone, Copy, Debug)]
pub struct Stolen {
    before: Option<Ticks>,
}

/// Ticks of all CPUs since boot.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    requested: u64,
    stolen: u64,
}

impl Ticks {
    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// See proc(5): user, nice, system, idle, iowait, irq, softirq, steal, and guests, which are in user and nice.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).take(8).collect();
        let [user, nice, system, _idle, _iowait, irq, softirq, stolen] = ticks[..].try_into().ok()?;
        Some(Self { requested: user + nice + system + irq + softirq + stolen, stolen })
    }
}

impl Stolen {
    /// Starts a measurement.
    #[must_use]
    pub fn begin() -> Self {
        Self { before: Ticks::read() }
    }

    /// Share of the requested CPU time that was stolen, in percent; `None` if the kernel does not report it.
    #[must_use]
    pub fn percent(self) -> Option<f64> {
        let (before, now) = (self.before?, Ticks::read()?);
        let (requested, stolen) =
            (now.requested.checked_sub(before.requested)?, now.stolen.checked_sub(before.stolen)?);
        #[expect(clippy::cast_precision_loss, reason = "ticks of a run")]
        let percent = stolen as f64 / requested.max(1) as f64 * 100.0;
        Some(percent)
    }

    /// A line for the head of a table.
    #[must_use]
    pub fn note(self) -> String {
        match self.percent() {
            Some(percent) => format!("the hypervisor took {percent:.0} % of the requested CPU time"),
            None => "steal time is not available".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_parsed() {
        let ticks = Ticks::parse("cpu  10 2 3 1000 50 4 5 6 9 9\ncpu0 1 2 3\n").expect("ticks");
        assert_eq!((ticks.requested, ticks.stolen), (30, 6));
        for other in ["", "cpu  10 2 3\n", "cpu0 1 2 3 4 5 6 7 8\n", "cpu a b c d e f g h\n"] {
            assert!(Ticks::parse(other).is_none(), "{other}");
        }
    }
}
