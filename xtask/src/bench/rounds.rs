//! Rounds in which the subjects take turns. Rounds that the hypervisor disturbed are repeated.

use anyhow::Result;
use tidegate_figures::Stolen;

use super::subject::Subject;

/// A round in which the hypervisor took more than this share of the requested CPU time is repeated.
const STOLEN_PERCENT_MAX: f64 = 5.0;

/// Limit of rounds, per requested round. After that, the least disturbed rounds count.
const TRIES: u32 = 3;

/// A note for the head of a table.
pub(super) const NOTE: &str = "a round in which the hypervisor took more than 5 % was measured again, twice at most";

/// Measures every subject once per round; each round starts with another subject. Results are by subject, then by
/// round.
pub(super) fn in_turn<T>(
    subjects: &[&Subject],
    rounds: u32,
    mut measure: impl FnMut(u32, &Subject) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut done: Vec<(f64, Vec<T>)> = Vec::new();
    for round in 0..rounds * TRIES {
        let stolen = Stolen::begin();
        let mut got: Vec<Option<T>> = subjects.iter().map(|_| None).collect();
        for turn in 0..subjects.len() {
            let index = (round as usize + turn) % subjects.len();
            got[index] = Some(measure(round + 1, subjects[index])?);
        }
        let percent = stolen.percent().unwrap_or(0.0);
        if percent > STOLEN_PERCENT_MAX {
            eprintln!("round {}: the hypervisor took {percent:.0} %", round + 1);
        }
        done.push((percent, got.into_iter().flatten().collect()));
        if done.iter().filter(|(percent, _)| *percent <= STOLEN_PERCENT_MAX).count() == rounds as usize {
            break;
        }
    }
    done.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let mut series: Vec<Vec<T>> = subjects.iter().map(|_| Vec::new()).collect();
    for (_, got) in done.into_iter().take(rounds as usize) {
        series.iter_mut().zip(got).for_each(|(series, got)| series.push(got));
    }
    Ok(series)
}
