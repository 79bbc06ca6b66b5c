//! `tidegate shapes`: live queries of one database over HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustls::ServerConfig;
use tidegate_config as config;
use tidegate_config::{LogConfig, LogFormat, LogLevel, pgpass};
use tidegate_shapes::{DatabaseLogin, PublicationMode, ShapesOptions};
use tidegate_tls::{HttpAlpn, TlsError};

use super::key_values;

const EXAMPLES: &str = "\
One minute (the password comes from PGPASSWORD or ~/.pgpass):
  tidegate shapes --database postgres://app@127.0.0.1:5432/shop
  curl -i 'http://127.0.0.1:3000/v1/shape?table=items&offset=-1'

Then repeat the request with the answer's electric-handle and electric-offset,
and with live=true to wait for changes. Electric's clients do that:
  new ShapeStream({
    url: 'http://127.0.0.1:3000/v1/shape', params: { table: 'items' } })

The database needs wal_level = logical, and the role needs REPLICATION (ALTER
ROLE app REPLICATION), CREATE on the database for the publication, and
ownership of the tables. The server creates the publication and the replication
slot tidegate_shapes_NAME, and sets REPLICA IDENTITY FULL on each table with a
shape; with --publication manual it changes nothing and names the statements.

Documentation: docs/src/guide/live-queries.md in the repository.";

/// `tidegate shapes`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct ShapesArgs {
    /// The database, as a postgres:// URL.
    #[arg(short, long, value_name = "URL", env = "TIDEGATE_DATABASE")]
    pub database: String,

    /// Address to listen on.
    #[arg(short, long, value_name = "IP:PORT", default_value = "127.0.0.1:3000", value_parser = config::parse_listen_address)]
    pub listen: SocketAddr,

    /// Address of `GET /metrics`, with the certificate of the other addresses. It needs no secret.
    #[arg(long, value_name = "IP:PORT", value_parser = config::parse_listen_address)]
    pub metrics: Option<SocketAddr>,

    /// Folder of the logs, which survive restarts.
    #[arg(long, value_name = "DIR", default_value = "tidegate-shapes")]
    pub storage: PathBuf,

    /// Ends the names of the publication and of the slot: lower-case letters, digits, underscores.
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = slot_suffix)]
    pub name: String,

    /// Whether tables are published on request, or by an administrator.
    #[arg(long, value_name = "MODE", default_value = "managed", value_parser = ["managed", "manual"])]
    pub publication: String,

    /// The query parameter `secret` that all requests need; other users of the machine see a command line, so use the
    /// environment.
    #[arg(long, value_name = "TEXT", env = "TIDEGATE_SHAPES_SECRET", hide_env_values = true)]
    pub secret: Option<String>,

    /// PEM file with the certificate and its chain, for HTTPS with HTTP/2.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the private key of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Let clients delete shapes (DELETE /v1/shape).
    #[arg(long)]
    pub allow_deletion: bool,

    /// Size of a chunk of an answer, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20, value_parser = clap::value_parser!(u64).range(1000..=1 << 28))]
    pub chunk_bytes: u64,

    /// Limit of the logs on disk, in bytes; the least recently read shapes are removed.
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 30)]
    pub storage_max: u64,

    /// Limit of shapes; the least recently read ones are removed.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub shapes_max: usize,

    /// Limit of concurrent requests with a known handle, which wait for changes; further ones get status 503.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub requests_max: usize,

    /// Limit of requests per second and address of a client; further ones get status 429. 0 is without limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub request_rate_max: u32,

    /// Limit of connections; a new one displaces an idle one.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub connections_max: usize,

    /// `max-age` of answers that are not live, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub cache_max_age: u64,

    /// `stale-while-revalidate` of answers that are not live, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub cache_stale_age: u64,

    /// Format of log lines; auto is text, with colour on a terminal.
    #[arg(long, value_name = "FORM", value_parser = key_values::<LogFormat>(LogFormat::WORDS))]
    pub log_format: Option<LogFormat>,

    /// Least important event that is logged.
    #[arg(long, value_name = "LEVEL", value_parser = key_values::<LogLevel>(LogLevel::WORDS))]
    pub log_level: Option<LogLevel>,
}

/// Checks the end of the name of a slot.
///
/// # Errors
/// The reason.
pub(crate) fn slot_suffix(text: &str) -> Result<String, String> {
    let is_valid = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_';
    // Postgres limits the name of a slot to 63 bytes.
    let fits = (1..=40).contains(&text.len()) && text.chars().all(is_valid);
    if fits { Ok(text.to_owned()) } else { Err("use 1 to 40 lower-case letters, digits and underscores".to_owned()) }
}

impl ShapesArgs {
    /// The URL with the password of the environment.
    #[must_use]
    pub fn url(&self) -> String {
        pgpass::with_password(&self.database, &super::environment)
    }

    /// The login of the database.
    ///
    /// # Errors
    /// If the URL is malformed.
    pub fn login(&self) -> Result<DatabaseLogin, String> {
        DatabaseLogin::from_url(&self.url()).map_err(|error| error.to_string())
    }

    /// The settings of the server.
    #[must_use]
    pub fn options(&self) -> ShapesOptions {
        let mut options = ShapesOptions::new(self.storage.clone());
        options.name.clone_from(&self.name);
        options.publication =
            if self.publication == "manual" { PublicationMode::Manual } else { PublicationMode::Managed };
        options.secret = self.secret.clone().filter(|secret| !secret.is_empty());
        options.allow_deletion = self.allow_deletion;
        options.chunk_bytes = self.chunk_bytes;
        options.storage_bytes_max = self.storage_max;
        options.shapes_max = self.shapes_max;
        options.requests_max = self.requests_max;
        options.request_rate_max = self.request_rate_max;
        options.connections_max = self.connections_max.max(1);
        options.cache.max_age = Duration::from_secs(self.cache_max_age);
        options.cache.stale_age = Duration::from_secs(self.cache_stale_age);
        options
    }

    /// The certificate; none for HTTP.
    ///
    /// # Errors
    /// The file that cannot be used, and why.
    pub fn tls(&self) -> Result<Option<Arc<ServerConfig>>, TlsError> {
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        tidegate_tls::for_http(cert, key, HttpAlpn::Http1And2)
    }

    /// The settings of the log.
    #[must_use]
    pub fn log(&self) -> LogConfig {
        let mut log = LogConfig::default();
        log.format = self.log_format.unwrap_or(log.format);
        log.level = self.log_level.unwrap_or(log.level);
        log
    }
}
