//! Names the limit to raise when no file can be opened.

use std::{fmt, io};

use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};

/// An OS error, with the limit to raise if there are too many open files.
#[derive(Debug)]
pub struct OsErrorText<'a>(pub &'a io::Error);

impl fmt::Display for OsErrorText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(error) = self;
        write!(f, "{error}")?;
        match Errno::from_io_error(error) {
            Some(Errno::MFILE) => {
                let most = getrlimit(Resource::Nofile).current.map_or("unlimited".to_owned(), |most| most.to_string());
                write!(f, ": the limit of the gateway's process is {most} (ulimit -n, LimitNOFILE=)")
            }
            Some(Errno::NFILE) => f.write_str(": this is the limit of the whole system (sysctl fs.file-max)"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_open_files_names_the_limit() {
        let text = |errno: Errno| {
            let error = errno.into();
            OsErrorText(&error).to_string()
        };
        let process = text(Errno::MFILE);
        assert!(process.starts_with("Too many open files") && process.contains("ulimit -n"), "{process}");
        let system = text(Errno::NFILE);
        assert!(system.starts_with("Too many open files") && system.contains("fs.file-max"), "{system}");
        assert!(!text(Errno::CONNREFUSED).contains("limit"));
    }
}
