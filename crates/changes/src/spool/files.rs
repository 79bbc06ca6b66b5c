//! The files of a spool beside its log: identity, reader position, and definitions of tables.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidegate_wire::replication::Lsn;

use crate::{
    position::{SlotIdentity, lsn_text},
    relation::{Relation, Relations},
    snapshot::SnapshotState,
};

const META_FILE: &str = "spool.json";
const CHECKPOINT_FILE: &str = "checkpoint.json";
const RELATIONS_FILE: &str = "relations.bin";
/// The layout of the folder.
pub(super) const LAYOUT_VERSION: u32 = 1;
/// Bytes before each definition: length and checksum.
const ENTRY_HEAD_BYTES: usize = 8;

/// The stream that a spool belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SpoolMeta {
    pub(super) version: u32,
    #[serde(flatten)]
    pub(super) identity: SlotIdentity,
    pub(super) publication: String,
}

/// How far the consumer has acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SpoolCheckpoint {
    #[serde(with = "lsn_text")]
    pub(super) lsn: Lsn,
    /// A position of the log, before the first transaction that is not acknowledged.
    pub(super) position: String,
}

pub(super) fn read_meta(folder: &Path) -> io::Result<Option<SpoolMeta>> {
    read_json(&folder.join(META_FILE))
}

pub(super) fn write_meta(folder: &Path, meta: &SpoolMeta) -> io::Result<()> {
    write_json(folder, META_FILE, meta)
}

/// A checkpoint that a power failure destroyed is missing: all that is left in the log is delivered again.
pub(super) fn read_checkpoint(folder: &Path) -> Option<SpoolCheckpoint> {
    read_json(&folder.join(CHECKPOINT_FILE)).ok().flatten()
}

pub(super) fn write_checkpoint(folder: &Path, checkpoint: &SpoolCheckpoint) -> io::Result<()> {
    write_json(folder, CHECKPOINT_FILE, checkpoint)
}

impl SnapshotState {
    /// The name of its file in the folder of a spool.
    pub const FILE: &str = "copy.json";

    /// Reads the state from the folder of a spool; `None` if there is none. Blocks.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn load(folder: &Path) -> io::Result<Option<Self>> {
        read_json(&folder.join(Self::FILE))
    }

    /// Replaces the state in the folder of a spool, durably. Blocks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, folder: &Path) -> io::Result<()> {
        write_json(folder, Self::FILE, self)
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces the file as a whole, durably.
fn write_json(folder: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let (path, fresh) = (folder.join(name), folder.join(format!("{name}.new")));
    let mut file = File::create(&fresh)?;
    file.write_all(&serde_json::to_vec(value).map_err(io::Error::other)?)?;
    file.sync_data()?;
    fs::rename(fresh, path)?;
    File::open(folder)?.sync_all()
}

/// All versions of all tables in the log. Rows name the version that they were written with.
#[derive(Debug)]
pub(super) struct RelationFile {
    path: PathBuf,
    newest: Relations,
    versions: BTreeMap<(u32, u32), Arc<Relation>>,
    unsynced: Vec<u8>,
}

impl RelationFile {
    /// Reads the definitions. A torn one at the end is ignored: no durable row uses it.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(RELATIONS_FILE);
        let mut bytes = Vec::new();
        match File::open(&path) {
            Ok(mut file) => drop(file.read_to_end(&mut bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut found = Self { path, newest: Relations::default(), versions: BTreeMap::new(), unsynced: Vec::new() };
        let mut rest = &bytes[..];
        while let Some((relation, after)) = read_entry(rest) {
            let relation = Arc::new(relation);
            found.versions.insert((relation.oid, relation.version), Arc::clone(&relation));
            found.newest.restore(relation);
            rest = after;
        }
        let intact = bytes.len() - rest.len();
        if !rest.is_empty() {
            File::options().write(true).open(&found.path)?.set_len(intact as u64)?;
        }
        Ok(found)
    }

    /// Adds a definition, if it differs from the newest one.
    pub(super) fn update(&mut self, relation: &Relation) {
        let Some(change) = self.newest.update(relation.clone()) else { return };
        let mut entry = change.after.version.to_be_bytes().to_vec();
        change.after.encode(&mut entry);
        self.unsynced.extend_from_slice(&u32::try_from(entry.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.unsynced.extend_from_slice(&crc32c::crc32c(&entry).to_be_bytes());
        self.unsynced.extend_from_slice(&entry);
        self.versions.insert((change.after.oid, change.after.version), change.after);
    }

    /// The version of the newest definition; 0 if the table is unknown.
    pub(super) fn version(&self, oid: u32) -> u32 {
        self.newest.get(oid).map_or(0, |relation| relation.version)
    }

    pub(super) fn get(&self, oid: u32, version: u32) -> Option<&Arc<Relation>> {
        self.versions.get(&(oid, version))
    }

    /// Makes new definitions durable.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.unsynced.is_empty() {
            return Ok(());
        }
        let mut file = File::options().create(true).append(true).open(&self.path)?;
        file.write_all(&self.unsynced)?;
        file.sync_all()?;
        self.unsynced.clear();
        self.path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

fn read_entry(bytes: &[u8]) -> Option<(Relation, &[u8])> {
    let (head, rest) = bytes.split_at_checked(ENTRY_HEAD_BYTES)?;
    let number = |at: usize| head.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    let (entry, rest) = rest.split_at_checked(number(0)? as usize)?;
    if crc32c::crc32c(entry) != number(4)? {
        return None;
    }
    let (version, message) = entry.split_first_chunk::<4>()?;
    Some((Relation::decode(message, u32::from_be_bytes(*version)).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReplicaIdentity, relation::RelationColumn};

    fn table(columns: &[&str]) -> Relation {
        let column =
            |name: &&str| RelationColumn { name: (*name).into(), type_oid: 25, type_modifier: -1, is_key: true };
        Relation {
            oid: 7,
            schema: "public".into(),
            name: "t".into(),
            identity: ReplicaIdentity::Default,
            columns: columns.iter().map(column).collect(),
            version: 0,
        }
    }

    #[test]
    fn definitions_survive_a_torn_write() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = RelationFile::open(folder.path()).unwrap();
        for columns in [&["a"][..], &["a"], &["a", "b"]] {
            file.update(&table(columns));
        }
        file.sync().unwrap();
        let path = folder.path().join(RELATIONS_FILE);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [&whole[..], &whole[..20]].concat()).unwrap();
        let mut file = RelationFile::open(folder.path()).unwrap();
        assert_eq!((file.version(7), file.version(8)), (2, 0));
        assert_eq!(file.get(7, 1).unwrap().columns.len(), 1);
        file.update(&table(&["c"]));
        file.sync().unwrap();
        let file = RelationFile::open(folder.path()).unwrap();
        assert_eq!((file.version(7), file.get(7, 3).unwrap().columns.len()), (3, 1));
    }

    #[test]
    fn identity_and_checkpoint_survive() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!((read_meta(folder.path()).unwrap(), read_checkpoint(folder.path())), (None, None));
        let identity = SlotIdentity { system_id: u64::MAX, timeline: 2, database: "d".into(), slot: "s".into() };
        let meta = SpoolMeta { version: LAYOUT_VERSION, identity, publication: "p".into() };
        write_meta(folder.path(), &meta).unwrap();
        assert_eq!(read_meta(folder.path()).unwrap(), Some(meta));
        let checkpoint = SpoolCheckpoint { lsn: Lsn(0x1_0000_0010), position: "journal/0:1+2".into() };
        write_checkpoint(folder.path(), &checkpoint).unwrap();
        assert_eq!(read_checkpoint(folder.path()), Some(checkpoint));
    }
}
