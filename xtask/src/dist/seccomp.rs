//! Profiles of system calls for runs of the image: the filter of the unit, and a profile without io_uring, as Docker has.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::repository::{output_of, root};

/// EPERM, as `SystemCallErrorNumber=` of the unit.
const EPERM: u32 = 1;
const IO_URING: [&str; 3] = ["io_uring_setup", "io_uring_enter", "io_uring_register"];

/// The calls that the unit allows.
pub(super) fn unit() -> Result<Value> {
    let text = fs::read_to_string(root().join("packaging/systemd/tidegate.service")).context("read the unit")?;
    let listed = output_of(Command::new("systemd-analyze").args(["syscall-filter", "--no-pager"]))?;
    let allowed = allowed(&text, &listed)?;
    ensure!(IO_URING.iter().all(|call| allowed.contains(*call)), "the unit forbids io_uring");
    let allow = json!([{ "names": allowed, "action": "SCMP_ACT_ALLOW" }]);
    Ok(json!({ "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": EPERM, "syscalls": allow }))
}

/// Everything but io_uring.
pub(super) fn without_io_uring() -> Value {
    let deny = json!([{ "names": IO_URING, "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM }]);
    json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": deny })
}

/// Applies the lines `SystemCallFilter=` in their order: names are added, and removed after `~`.
fn allowed(unit: &str, listed: &str) -> Result<BTreeSet<String>> {
    let mut allowed = BTreeSet::new();
    for line in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (names, removes) = line.strip_prefix('~').map_or((line, false), |names| (names, true));
        for name in names.split_whitespace() {
            let mut calls = BTreeSet::new();
            expand(name, listed, &mut calls)?;
            match removes {
                true => allowed.retain(|call| !calls.contains(call)),
                false => allowed.append(&mut calls),
            }
        }
    }
    ensure!(!allowed.is_empty(), "the unit has no SystemCallFilter");
    Ok(allowed)
}

/// The calls of a group, and those of its groups: the group is a line, its members are indented lines below it.
fn expand(name: &str, listed: &str, calls: &mut BTreeSet<String>) -> Result<()> {
    if !name.starts_with('@') {
        calls.insert(name.to_owned());
        return Ok(());
    }
    let mut lines = listed.lines().skip_while(|line| line.trim_end() != name).skip(1).peekable();
    ensure!(lines.peek().is_some(), "systemd has no group {name}");
    for member in lines.take_while(|line| line.starts_with(' ')).map(str::trim) {
        if !member.is_empty() && !member.starts_with('#') {
            expand(member, listed, calls)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_lines_of_a_filter_remove_and_add() {
        let listed = "@service\n    # Comment\n    @aio\n    read\n    chown\n\n@aio\n    io_uring_setup\n\n\
                      @privileged\n    chown\n    mount\n";
        let unit = "SystemCallFilter=@service\nSystemCallFilter=~@privileged\nSystemCallFilter=setpriority\n";
        let allowed = allowed(unit, listed).expect("a filter");
        assert_eq!(allowed.into_iter().collect::<Vec<_>>(), ["io_uring_setup", "read", "setpriority"]);
        assert!(super::allowed("SystemCallFilter=@none\n", listed).is_err());
    }
}
