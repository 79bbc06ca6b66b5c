//! Reduction of a script to the smallest script with a difference.

use std::ops::Range;

/// A missing message takes a whole timeout to detect in each try.
const TRIES_MAX: usize = 150;

/// A script that can be shortened.
pub(crate) trait Shrinks: Clone {
    /// The number of parts.
    fn len(&self) -> usize;

    /// The script without some parts.
    fn without(&self, range: Range<usize>) -> Self;
}

/// Removes runs of parts, of decreasing length, while a difference remains.
pub(crate) fn smallest<S: Shrinks>(
    mut script: S,
    mut difference: String,
    mut find: impl FnMut(&S) -> Option<String>,
) -> (S, String) {
    let mut tries = 0;
    let mut size = script.len().div_ceil(2);
    while size > 0 && tries < TRIES_MAX {
        let mut at = 0;
        let mut reduced = false;
        while at < script.len() && tries < TRIES_MAX {
            let candidate = script.without(at..(at + size).min(script.len()));
            tries += 1;
            match find(&candidate) {
                Some(found) => {
                    (script, difference, reduced) = (candidate, found, true);
                }
                None => at += size,
            }
        }
        if !reduced || size > 1 {
            size /= 2;
        }
    }
    (script, difference)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Shrinks for Vec<u32> {
        fn len(&self) -> usize {
            self.len()
        }

        fn without(&self, range: Range<usize>) -> Self {
            let mut rest = self.clone();
            rest.drain(range);
            rest
        }
    }

    #[test]
    fn smallest_script_keeps_only_required_parts() {
        let find = |script: &Vec<u32>| {
            let differs = script.contains(&3) && script.contains(&17);
            differs.then(|| format!("{script:?}"))
        };
        let (script, difference) = smallest((0..20).collect(), String::new(), find);
        assert_eq!((script, difference), (vec![3, 17], "[3, 17]".to_owned()));
    }
}
