//! Finds the jars of Kafka: in a folder named by the environment, in the cache, or by their Maven coordinates.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Error, java};
use crate::cache::{cache_dir, create_readable};

/// The newest release line that runs on JDK 17.
const VERSION: &str = "4.3.1";
/// The logging library of Kafka; without its binding, the broker writes no log.
const LOGGING_VERSION: &str = "2.25.4";
/// Names a folder with the jars, instead of the cache.
const VARIABLE: &str = "TIDEGATE_KAFKA";

/// A folder of jars.
#[derive(Clone, Debug)]
pub(super) struct Jars {
    dir: PathBuf,
}

impl Jars {
    /// Searches the folder of `TIDEGATE_KAFKA` and the cache, then downloads: about 45 MB. Concurrent processes wait
    /// for the first download.
    pub(super) fn find_or_fetch() -> Result<Self, Error> {
        if let Some(dir) = std::env::var_os(VARIABLE).map(PathBuf::from) {
            return Self::in_folder(&dir).ok_or(Error::NoJars { variable: VARIABLE, dir });
        }
        let cache = cache_dir();
        let place = cache.join(format!("kafka-{VERSION}"));
        if let Some(cached) = Self::in_folder(&place) {
            return Ok(cached);
        }
        create_readable(&cache)?;
        let path = cache.join("lock");
        let lock = File::create(&path).map_err(Error::io(format!("create {}", path.display())))?;
        lock.lock().map_err(Error::io(format!("lock {}", path.display())))?;
        match Self::in_folder(&place) {
            Some(fetched_meanwhile) => Ok(fetched_meanwhile),
            None => fetch(&cache, &place),
        }
    }

    /// The argument of `java -cp`.
    pub(super) fn class_path(&self) -> PathBuf {
        self.dir.join("*")
    }

    fn in_folder(dir: &Path) -> Option<Self> {
        let is_kafka = |name: &str| name.starts_with("kafka_2.13-") && name.ends_with(".jar");
        let holds = |dir: &Path| {
            let mut names = fs::read_dir(dir).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.any(|name| is_kafka(&name)).then(|| dir.to_path_buf())
        };
        // The release archive of Kafka has them in `libs`.
        holds(dir).or_else(|| holds(&dir.join("libs"))).map(|dir| Self { dir })
    }
}

/// Downloads into a temporary folder, then renames it, so that other processes never find an incomplete folder.
fn fetch(cache: &Path, place: &Path) -> Result<Jars, Error> {
    let maven = java::on_path("mvn").ok_or(Error::NoMaven { variable: VARIABLE })?;
    let part = tempfile::tempdir_in(cache).map_err(Error::io(format!("create a folder in {}", cache.display())))?;
    let pom = part.path().join("pom.xml");
    fs::write(&pom, project()).map_err(Error::io(format!("write {}", pom.display())))?;
    let jars = part.path().join("jars");
    let run = Command::new(&maven)
        .args(["--batch-mode", "--quiet", "dependency:copy-dependencies", "-DincludeScope=runtime"])
        .arg(format!("-DoutputDirectory={}", jars.display()))
        .arg("--file")
        .arg(&pom)
        .output()
        .map_err(Error::io(format!("start {}", maven.display())))?;
    if !run.status.success() {
        let output = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned();
        return Err(Error::Fetch { version: VERSION, output });
    }
    fs::rename(&jars, place).map_err(Error::io(format!("rename to {}", place.display())))?;
    Jars::in_folder(place).ok_or(Error::NoJars { variable: "the cache", dir: place.to_path_buf() })
}

/// A minimal project that depends on the jars.
fn project() -> String {
    let dependency = |group: &str, artifact: &str, version: &str| {
        format!(
            "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
             <version>{version}</version></dependency>"
        )
    };
    let kafka = dependency("org.apache.kafka", "kafka_2.13", VERSION);
    let logging = dependency("org.apache.logging.log4j", "log4j-slf4j-impl", LOGGING_VERSION);
    format!(
        "<project><modelVersion>4.0.0</modelVersion><groupId>tidegate</groupId><artifactId>sandbox</artifactId>\
         <version>1</version><dependencies>{kafka}{logging}</dependencies></project>"
    )
}
