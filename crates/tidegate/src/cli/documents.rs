//! Manual pages and shell completions, made from the definitions of the command line and of the configuration keys, so that
//! they always match the binary.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use tidegate_config::{KeyScope, Reload, documented_sections};

use super::Cli;

/// `tidegate completions`.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// Shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `tidegate man`.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Folder for the pages; it is created if missing.
    pub folder: PathBuf,
}

impl CompletionsArgs {
    /// Prints the completions of the shell.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn run(&self, out: &mut impl Write) -> io::Result<()> {
        // Generated into memory, because the generator panics if its output cannot be written.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "tidegate", &mut script);
        out.write_all(&script)
    }
}

impl ManArgs {
    /// Writes tidegate(1), a page for each command, and tidegate.toml(5).
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn run(&self) -> anyhow::Result<()> {
        use anyhow::Context as _;
        fs::create_dir_all(&self.folder).with_context(|| format!("cannot create {}", self.folder.display()))?;
        let mut command = Cli::command();
        command.build();
        let page = page_of(&command).seealso();
        write_page(&self.folder.join("tidegate.1"), &page.into_roff()?)?;
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            let text = page_of(sub).into_roff()?;
            write_page(&self.folder.join(format!("tidegate-{}.1", sub.get_name())), &text)?;
        }
        write_page(&self.folder.join("tidegate.toml.5"), configuration_page().as_bytes())
    }
}

fn write_page(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    use anyhow::Context as _;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A page of section 1.
struct CommandPage {
    man: clap_mangen::Man,
    after: &'static str,
}

fn page_of(command: &clap::Command) -> CommandPage {
    // The date would differ from build to build.
    let man = clap_mangen::Man::new(command.clone()).date("").manual("Tidegate").source(SOURCE);
    CommandPage { man, after: "" }
}

const SOURCE: &str = concat!("tidegate ", env!("CARGO_PKG_VERSION"));

impl CommandPage {
    fn seealso(mut self) -> Self {
        self.after = ".SH \"SEE ALSO\"\n.BR tidegate.toml (5),\n.BR pgbouncer (1)\n";
        self
    }

    fn into_roff(self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        self.man.render(&mut text)?;
        text.extend_from_slice(self.after.as_bytes());
        Ok(text)
    }
}

/// The page tidegate.toml(5): every section and key with its default.
fn configuration_page() -> String {
    let mut page = format!(
        ".TH tidegate.toml 5 \"\" \"{SOURCE}\" \"Tidegate\"\n.SH NAME\ntidegate.toml \\- configuration of the Postgres gateway \
         tidegate\n.SH DESCRIPTION\n\
         Times are strings with a unit (\\(dq250ms\\(dq, \\(dq5s\\(dq, \\(dq1h\\(dq); 0 disables. Paths are relative \
         to the folder of the file. Keys marked\n.I live\ntake effect at a reload, keys marked\n.I restart\nat the next start.\n\
         .BR tidegate\\-check (1)\nreports every error of a file.\n.PP\n\
         A variable of the environment overrides a key: TIDEGATE_POOL_SIZE is\n.I size\nin [pool], and\n\
         TIDEGATE_DATABASES_shop__HOST is\n.I host\nin [databases.shop].\n"
    );
    for section in documented_sections() {
        let heading = if section.name == "streams" { "[[streams]]".to_owned() } else { format!("[{}]", section.name) };
        // Writing to a string does not fail.
        let _ = writeln!(page, ".SH \"{}\"", escaped(&heading));
        for (key, default) in section.keys.iter().zip(&section.defaults) {
            let reload = if key.reload == Reload::Live { "live" } else { "restart" };
            let scope = if key.scope == KeyScope::Pool { "; also in [databases.NAME] and [users.NAME]" } else { "" };
            let doc = key.doc.split_whitespace().collect::<Vec<_>>().join(" ");
            let default = if default.is_empty() { "empty" } else { default };
            let _ = write!(
                page,
                ".TP\n.B {}\n{}\n.br\nDefault: {}. Reload: {reload}{scope}.\n",
                escaped(key.name),
                escaped(&doc),
                escaped(default),
            );
        }
    }
    page.push_str(
        ".SH FILES\n.TP\n/etc/tidegate/tidegate.toml\nConfiguration of the service of the packages.\n.SH \"SEE ALSO\"\n\
         .BR tidegate (1),\n.BR tidegate\\-run (1),\n.BR tidegate\\-check (1)\n",
    );
    page
}

/// The text for roff: without commands, and with hyphens that can be copied.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('`', "");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn man_pages_cover_commands_and_keys() {
        let folder = tempfile::tempdir().expect("a folder");
        ManArgs { folder: folder.path().join("man") }.run().expect("the folder can be written");
        let page = |name: &str| fs::read_to_string(folder.path().join("man").join(name)).expect(name);
        for name in ["tidegate.1", "tidegate-run.1", "tidegate-check.1", "tidegate-journal.1", "tidegate-healthcheck.1"]
        {
            assert!(page(name).contains(".SH NAME"), "{name}");
        }
        assert!(page("tidegate-run.1").contains("\\-\\-take\\-over"));
        let keys = page("tidegate.toml.5");
        for section in documented_sections() {
            for key in section.keys {
                assert!(keys.contains(&format!(".B {}\n", key.name)), "{}.{}", section.name, key.name);
            }
        }
        assert!(!folder.path().join("man/tidegate-pgbouncer.1").exists(), "the page of a hidden command");
    }

    #[test]
    fn completions_exist_for_the_usual_shells() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            CompletionsArgs { shell }.run(&mut script).expect("memory can be written");
            let script = String::from_utf8(script).expect("text");
            assert!(script.contains("healthcheck") && script.contains("take-over"), "{shell}");
        }
    }

    #[test]
    fn text_cannot_become_a_roff_command() {
        assert_eq!(escaped(".so /etc/passwd"), "\\&.so /etc/passwd");
        assert_eq!(escaped("a-b\\c"), "a\\-b\\ec");
    }
}
