//! A free port for a server.

use std::net::TcpListener;

use crate::Error;

/// A port without a listener. It is below the range of ports for outgoing connections (from 32768), so that a restarted
/// server finds its port free.
pub(crate) fn free_port() -> Result<u16, Error> {
    let is_free = |&port: &u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(20_000..32_000))
        .take(1_000)
        .find(is_free)
        .ok_or_else(|| Error::io("find a free port")(std::io::ErrorKind::AddrInUse.into()))
}
