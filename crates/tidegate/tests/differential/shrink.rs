//! The smallest script that still shows a difference.

use std::ops::Range;

/// A difference may cost seconds each time it shows as a missing message.
const TRIES_MAX: usize = 150;

/// A script of which parts can be left out.
pub(crate) trait Shrinks: Clone {
    /// The number of its parts.
    fn len(&self) -> usize;

    /// The script without some of its parts.
    fn without(&self, range: Range<usize>) -> Self;
}

/// Leaves out ever smaller runs of parts, as long as a difference remains.
pub(crate) fn smallest<S: Shrinks>(
    mut script: S,
    mut difference: String,
    mut find: impl FnMut(&S) -> Option<String>,
) -> (S, String) {
    let mut tries = 0;
    let mut size = script.len().div_ceil(2);
    while size > 0 && tries < TRIES_MAX {
        let mut at = 0;
        let mut smaller = false;
        while at < script.len() && tries < TRIES_MAX {
            let candidate = script.without(at..(at + size).min(script.len()));
            tries += 1;
            match find(&candidate) {
                Some(found) => {
                    (script, difference, smaller) = (candidate, found, true);
                }
                None => at += size,
            }
        }
        if !smaller || size > 1 {
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
    fn parts_that_do_not_matter_are_left_out() {
        let find = |script: &Vec<u32>| {
            let differs = script.contains(&3) && script.contains(&17);
            differs.then(|| format!("{script:?}"))
        };
        let (script, difference) = smallest((0..20).collect(), String::new(), find);
        assert_eq!((script, difference), (vec![3, 17], "[3, 17]".to_owned()));
    }
}
