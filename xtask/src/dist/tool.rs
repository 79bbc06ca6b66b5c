//! Programs of the machine that make and check packages.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::step::StepOutcome;

/// Debian package of each program, for reports of missing programs.
const PACKAGES: &[(&str, &str)] = &[
    ("bash", "bash"),
    ("dpkg", "dpkg"),
    ("dpkg-deb", "dpkg"),
    ("fish", "fish"),
    ("gzip", "gzip"),
    ("helm", "`go install helm.sh/helm/v3/cmd/helm@v3.22.0`"),
    ("lintian", "lintian"),
    ("logrotate", "logrotate"),
    ("mmdebstrap", "mmdebstrap"),
    ("objcopy", "binutils"),
    ("readelf", "binutils"),
    ("rpm", "rpm"),
    ("rpmbuild", "rpm"),
    ("runc", "runc"),
    ("sha256sum", "coreutils"),
    ("skopeo", "skopeo"),
    ("strip", "binutils"),
    ("systemd-analyze", "systemd"),
    ("tar", "tar"),
    ("umoci", "umoci"),
    ("zsh", "zsh"),
];

/// Runs a step if the machine has its programs; otherwise the step is reported as missing, with the packages to install.
pub(super) fn with(programs: &[&str], step: impl FnOnce() -> Result<()>) -> StepOutcome {
    let missing: Vec<String> =
        programs.iter().filter(|program| find(program).is_none()).map(|program| named(program)).collect();
    if missing.is_empty() { step().into() } else { StepOutcome::Missing(missing.join(", ")) }
}

fn named(program: &str) -> String {
    match PACKAGES.iter().find(|(known, _)| *known == program) {
        Some((_, package)) if *package != program => format!("{program} (install {package})"),
        _ => program.to_owned(),
    }
}

/// The path of a program. `/usr/sbin` is searched too, where some programs of Debian lie.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    if let Some(home) = std::env::var_os("HOME") {
        // Where `go install` puts programs.
        folders.push(Path::new(&home).join("go/bin"));
    }
    folders.iter().map(|folder| folder.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_named_with_their_package() {
        let outcome = with(&["tar", "no-such-program"], || panic!("a program is missing"));
        assert!(matches!(outcome, StepOutcome::Missing(why) if why == "no-such-program"));
        assert_eq!(named("rpmbuild"), "rpmbuild (install rpm)");
    }
}
