//! Whose limit it is when no file can be opened.

use std::{fmt, io};

use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};

/// An error of the system in its own words, and where there are too many open files, what to raise.
#[derive(Debug)]
pub struct WithLimit<'a>(pub &'a io::Error);

impl fmt::Display for WithLimit<'_> {
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
    fn too_many_open_files_are_told_with_whose_limit_it_is() {
        let told = |errno: Errno| {
            let error = errno.into();
            WithLimit(&error).to_string()
        };
        let process = told(Errno::MFILE);
        assert!(process.starts_with("Too many open files") && process.contains("ulimit -n"), "{process}");
        let system = told(Errno::NFILE);
        assert!(system.starts_with("Too many open files") && system.contains("fs.file-max"), "{system}");
        assert!(!told(Errno::CONNREFUSED).contains("limit"));
    }
}
