//! `tidegate backfill`: asks a running stream to copy a table again.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  tidegate stream --name orders --state /var/lib/tidegate --to - \\
    --from 'postgres://cdc@10.0.0.5/shop?publication=orders'
  tidegate backfill --state /var/lib/tidegate --name orders public.items

The rows arrive as records with \"op\":\"read\" beside the changes. The command ends when the copy has begun; the log of
the stream shows its progress. It must run as the user of the stream, or as root. In a gateway, STREAM BACKFILL of the
console does the same.

Exit status: 0 the copy has begun, 1 an error or a refusal, 2 an invalid command line.";

/// `tidegate backfill`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct BackfillArgs {
    /// The table, with its schema: SCHEMA.TABLE. Without a schema, it is public.
    pub table: String,

    /// Name of the stream, as in its --name.
    #[arg(long, value_name = "NAME", default_value = "stream")]
    pub name: String,

    /// Folder of the stream's state, as in its --state.
    #[arg(long, value_name = "FOLDER")]
    pub state: PathBuf,
}

impl BackfillArgs {
    /// Asks the stream, and waits until the copy has begun.
    ///
    /// # Errors
    /// No stream runs with this state, or it refuses: the table has no key, or is not published.
    pub fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let (schema, table) = self.table.split_once('.').unwrap_or(("public", &self.table));
        tidegate_streams::request_backfill(&self.state, &self.name, schema, table)
            .with_context(|| format!("stream {} does not copy {schema}.{table}", self.name))?;
        writeln!(out, "the copy of {schema}.{table} has begun")?;
        Ok(())
    }
}
