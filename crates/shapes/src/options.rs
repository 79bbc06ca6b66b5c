//! Settings of a server.

use std::path::PathBuf;
use std::time::Duration;

use crate::cursor::CacheAges;
use crate::database::PublicationMode;

/// Settings of a server of shapes. The defaults are those of Electric's server where it has them.
#[derive(Clone, Debug)]
pub struct ShapesOptions {
    /// Folder of the logs.
    pub storage: PathBuf,
    /// Ends the names of publication and slot, so that several servers can follow one database.
    pub name: String,
    /// Whether tables are published on request.
    pub publication: PublicationMode,
    /// Query parameter `secret` that requests need; none admits all.
    pub secret: Option<String>,
    /// Whether clients may delete shapes.
    pub allow_deletion: bool,
    /// A chunk is closed by the row that crosses this size.
    pub chunk_bytes: u64,
    /// How long a live request waits.
    pub long_poll: Duration,
    /// Ages in `cache-control`.
    pub cache: CacheAges,
    /// Limit of shapes; the least recently read ones are removed.
    pub shapes_max: usize,
    /// Limit of bytes on disk; the least recently read shapes are removed.
    pub storage_bytes_max: u64,
    /// Limit of concurrent requests without a known handle.
    pub initial_requests_max: usize,
    /// Limit of concurrent requests with a known handle, which wait for changes.
    pub requests_max: usize,
    /// Limit of requests per second and address of a client; 0 is without limit.
    pub request_rate_max: u32,
    /// Limit of concurrent connections per address of the server.
    pub connections_max: usize,
    /// How long a client may accept no bytes of an answer; none is one minute.
    pub stall_limit: Option<Duration>,
    /// Limit of concurrent snapshots.
    pub snapshots_max: usize,
    /// How long the first row of a snapshot may take.
    pub first_row: Duration,
    /// A snapshot that no client waits for is cancelled after this time.
    pub abandoned_after: Duration,
    /// Limit of the memory for the rows of a shape that is compared with a snapshot; more rows are compared in parts.
    pub comparison_bytes_max: usize,
    /// How often the catalogue is compared with the shapes.
    pub catalogue_interval: Duration,
}

impl ShapesOptions {
    /// Defaults for a folder.
    #[must_use]
    pub fn new(storage: PathBuf) -> Self {
        Self {
            storage,
            name: "default".to_owned(),
            publication: PublicationMode::Managed,
            secret: None,
            allow_deletion: false,
            chunk_bytes: 10 << 20,
            long_poll: Duration::from_secs(20),
            cache: CacheAges::default(),
            shapes_max: 1_000_000,
            storage_bytes_max: 10 << 30,
            initial_requests_max: 300,
            requests_max: 10_000,
            request_rate_max: 0,
            connections_max: 20_000,
            stall_limit: None,
            snapshots_max: 8,
            first_row: Duration::from_secs(30),
            abandoned_after: Duration::from_secs(10),
            comparison_bytes_max: 256 << 20,
            catalogue_interval: Duration::from_secs(10),
        }
    }

    /// The name of the publication.
    #[must_use]
    pub fn publication_name(&self) -> String {
        format!("tidegate_shapes_{}", self.name)
    }

    /// The name of the replication slot.
    #[must_use]
    pub fn slot_name(&self) -> String {
        self.publication_name()
    }
}
