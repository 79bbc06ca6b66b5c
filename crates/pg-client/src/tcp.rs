//! `[tcp]`, for clients and for servers: when a peer that says nothing is held for gone, and what the kernel buffers.

use std::{io, os::fd::AsFd};

use socket2::{SockRef, TcpKeepalive};

use tidegate_config::Tcp;

/// Puts the settings in force on a TCP socket. What `link` does anyway is not done again.
///
/// # Errors
/// Those of `setsockopt`.
pub fn tune(socket: &impl AsFd, settings: &Tcp) -> io::Result<()> {
    if *settings == Tcp::default() {
        return Ok(());
    }
    let socket = SockRef::from(socket);
    socket.set_keepalive(settings.keepalive)?;
    if settings.keepalive {
        let mut keepalive =
            TcpKeepalive::new().with_time(settings.keepalive_idle).with_interval(settings.keepalive_interval);
        if settings.keepalive_count > 0 {
            keepalive = keepalive.with_retries(settings.keepalive_count);
        }
        socket.set_tcp_keepalive(&keepalive)?;
    }
    if !settings.user_timeout.is_zero() {
        socket.set_tcp_user_timeout(Some(settings.user_timeout))?;
    }
    if settings.socket_buffer > 0 {
        let bytes = settings.socket_buffer as usize;
        socket.set_recv_buffer_size(bytes)?;
        socket.set_send_buffer_size(bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, time::Duration};

    use super::*;

    #[test]
    fn the_kernel_knows_what_is_set() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let settings = Tcp {
            keepalive_idle: Duration::from_secs(7),
            keepalive_interval: Duration::from_secs(3),
            keepalive_count: 2,
            user_timeout: Duration::from_millis(1500),
            socket_buffer: 65_536,
            ..Tcp::default()
        };
        tune(&socket, &settings).expect("it can be set");
        let seen = SockRef::from(&socket);
        assert!(seen.keepalive().expect("it can be asked"));
        assert_eq!(seen.tcp_keepalive_time().expect("it can be asked"), Duration::from_secs(7));
        assert_eq!(seen.tcp_user_timeout().expect("it can be asked"), Some(Duration::from_millis(1500)));
        // The kernel doubles it, for books of its own.
        assert_eq!(seen.send_buffer_size().expect("it can be asked"), 2 * 65_536);
        tune(&socket, &Tcp { keepalive: false, ..Tcp::default() }).expect("it can be set");
        assert!(!seen.keepalive().expect("it can be asked"));
    }
}
