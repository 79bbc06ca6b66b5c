//! The smallest script that still shows a difference.

use crate::play::Stage;
use crate::script::Script;

/// A difference may cost seconds each time it shows as a missing message.
const TRIES_MAX: usize = 150;

/// Leaves out ever smaller runs of ops, as long as a difference remains.
pub(crate) fn smallest(stage: &mut Stage<'_>, mut script: Script, mut difference: String) -> (Script, String) {
    let mut tries = 0;
    let mut size = script.ops.len().div_ceil(2);
    while size > 0 && tries < TRIES_MAX {
        let mut at = 0;
        let mut smaller = false;
        while at < script.ops.len() && tries < TRIES_MAX {
            let mut candidate = script.clone();
            candidate.ops.drain(at..(at + size).min(script.ops.len()));
            tries += 1;
            match stage.difference(&candidate) {
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
