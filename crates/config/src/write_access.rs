//! Warnings about files and folders that this process cannot write.

use std::path::Path;

use rustix::{
    fs::{Access, access},
    io::Errno,
};

use super::Config;
use super::diagnostic::{Diagnostic, DiagnosticSeverity};
use super::raw::SourceText;

impl Config {
    /// Warnings about what the gateway has to write and this process cannot: logs, states of streams and live queries, the PID
    /// file, the Unix socket. None for root, which can write everything, and none for missing folders that the gateway
    /// creates, if the folder above them can be written. `file` is the configuration file.
    #[must_use]
    pub fn unwritable_files(&self, file: Option<&Path>) -> Vec<Diagnostic> {
        let name = file.map_or("--database".to_owned(), |file| file.display().to_string());
        let source = SourceText::new(name, "");
        let written = self.written_paths().into_iter().filter(|(path, ..)| !path.as_os_str().is_empty());
        let refused = written.filter_map(|(path, key, folders)| Some((refusal(path, folders)?, key)));
        let warnings = refused.map(|((path, error), key)| {
            let reason = format!("{key}: cannot write to {}: {error}", path.display());
            let help = match error {
                Errno::NOENT => "create the folder, with write access for the user of the gateway",
                _ => "run `tidegate check` as the user of the gateway, or give it write access",
            };
            let warning = Diagnostic::new(&source, &(0..0), DiagnosticSeverity::Warning, key);
            warning.with_reason(reason).with_help(help.to_owned())
        });
        warnings.collect()
    }

    /// Paths that the gateway writes, and their keys.
    fn written_paths(&self) -> Vec<(&Path, &'static str, MissingFolders)> {
        use MissingFolders::{Created, Refused};
        let mut paths: Vec<(&Path, &'static str, MissingFolders)> = vec![
            (&self.log.file, "log.file", Refused),
            (&self.runtime.pid_file, "runtime.pid_file", Refused),
            (&self.listen.unix_socket_dir, "listen.unix_socket_dir", Refused),
            (&self.journal.folder, "journal.folder", Created),
        ];
        if !self.shapes.database.is_empty() {
            paths.push((&self.shapes.storage, "shapes.storage", Created));
        }
        for stream in &self.streams {
            paths.push((&stream.keys.state, "streams.state", Created));
            paths.push((&stream.keys.checkpoint, "streams.checkpoint", Refused));
        }
        paths
    }
}

/// Whether the gateway creates the folders above a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissingFolders {
    Created,
    Refused,
}

/// The path that cannot be written, and why: `path`, or the folder in which it would be created.
fn refusal(path: &Path, folders: MissingFolders) -> Option<(&Path, Errno)> {
    // A relative path begins in the current folder.
    let existing = |path: &Path| path.as_os_str().is_empty() || path.exists();
    let found = path.ancestors().find(|path| existing(path))?;
    let parent = path.parent().unwrap_or(path);
    let found = if found.as_os_str().is_empty() { Path::new(".") } else { found };
    if found != path && !found.is_dir() {
        return Some((found, Errno::NOTDIR));
    }
    if folders == MissingFolders::Refused && !existing(path) && !existing(parent) {
        return Some((parent, Errno::NOENT));
    }
    let needed = if found.is_dir() { Access::WRITE_OK | Access::EXEC_OK } else { Access::WRITE_OK };
    access(found, needed).err().map(|error| (found, error))
}

#[cfg(test)]
mod tests {
    use super::super::toml;
    use super::*;

    fn reasons(path: &Path) -> Vec<String> {
        let text = format!(
            "[databases.a]\nhost = \"127.0.0.1\"\n[log]\nfile = \"{0}/log\"\n[shapes]\ndatabase = \"postgres://a@127.0.0.1/a\"\n\
             storage = \"{0}/new/shapes\"\n",
            path.display()
        );
        let config = toml::parse(&text, "tidegate.toml").expect("a configuration");
        config.unwritable_files(None).into_iter().map(|warning| warning.reason).collect()
    }

    #[test]
    fn path_that_cannot_be_written_is_warned_of() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("a file");
        // Root can write every folder, but no file can have a path below it.
        let found = reasons(&file);
        assert!(found.len() == 2 && found.iter().all(|reason| reason.contains("Not a directory")), "{found:?}");
        let found = reasons(&folder.path().join("missing"));
        assert!(found.len() == 1 && found[0].starts_with("log.file: cannot write to"), "{found:?}");
    }

    #[test]
    fn missing_folder_that_is_created_is_not_warned_of() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(reasons(folder.path()), [] as [String; 0]);
    }
}
