//! Statistics of the rounds of a run.

/// The median; the mean of the middle two for an even count, NaN without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The smallest value that is not exceeded by `share` (0 to 1) of the sorted values; 0 without values.
pub(crate) fn percentile(sorted: &[u64], share: f64) -> u64 {
    let last = sorted.len().saturating_sub(1);
    // The cast is lossless: the rank is between 0 and the length.
    let rank = (sorted.len() as f64 * share) as usize;
    sorted.get(rank.min(last)).copied().unwrap_or(0)
}

/// The median of the ratios by round. A disturbance of a round affects both subjects, so the ratio cancels it.
pub(crate) fn paired_ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(our, their)| our / their).collect();
    median(&ratios)
}

/// A mean and its standard error, which is NaN for fewer than two values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mean {
    pub(crate) mean: f64,
    pub(crate) error: f64,
}

impl Mean {
    pub(crate) fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Self { mean, error: (variance / count).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&hundred, 0.5), 51);
        assert_eq!(percentile(&hundred, 0.99), 100);
        assert_eq!(percentile(&[], 0.5), 0);
    }

    #[test]
    fn mean_has_the_standard_error_of_its_values() {
        let mean = Mean::of(&[1.0, 3.0]);
        assert_eq!((mean.mean, mean.error), (2.0, 1.0));
        assert!(Mean::of(&[1.0]).error.is_nan());
    }

    #[test]
    fn slow_round_does_not_change_the_ratio() {
        assert_eq!(paired_ratio(&[10.0, 5.0, 20.0], &[20.0, 10.0, 40.0]), 0.5);
    }
}
