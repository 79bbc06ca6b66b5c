//! Time that the hypervisor gave to others while we wanted it: where it is much, figures are of little worth.

use std::fs;

/// A stretch of time on this machine, from its making on.
#[derive(Clone, Copy, Debug)]
pub struct Stolen {
    before: Option<Ticks>,
}

/// Of all processors, since the machine started.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    wanted: u64,
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
        Some(Self { wanted: user + nice + system + irq + softirq + stolen, stolen })
    }
}

impl Stolen {
    /// From now on.
    #[must_use]
    pub fn begin() -> Self {
        Self { before: Ticks::read() }
    }

    /// The share of the time wanted that went to others, in percent; none where the kernel does not tell.
    #[must_use]
    pub fn percent(self) -> Option<f64> {
        let (before, now) = (self.before?, Ticks::read()?);
        let (wanted, stolen) = (now.wanted.checked_sub(before.wanted)?, now.stolen.checked_sub(before.stolen)?);
        #[expect(clippy::cast_precision_loss, reason = "ticks of a run")]
        let percent = stolen as f64 / wanted.max(1) as f64 * 100.0;
        Some(percent)
    }

    /// A line for the head of a table.
    #[must_use]
    pub fn note(self) -> String {
        match self.percent() {
            Some(percent) => format!("the hypervisor took {percent:.0} % of the processor time that was wanted"),
            None => "what the hypervisor took is not known here".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_as_the_kernel_writes_them() {
        let ticks = Ticks::parse("cpu  10 2 3 1000 50 4 5 6 9 9\ncpu0 1 2 3\n").expect("ticks");
        assert_eq!((ticks.wanted, ticks.stolen), (30, 6));
        for other in ["", "cpu  10 2 3\n", "cpu0 1 2 3 4 5 6 7 8\n", "cpu a b c d e f g h\n"] {
            assert!(Ticks::parse(other).is_none(), "{other}");
        }
    }
}
