//! TCP settings of the section `[tcp]`, for clients and servers: keepalive, user timeout and kernel buffers.

use std::{io, os::fd::AsFd};

use socket2::{SockRef, TcpKeepalive};

use tidegate_config::TcpConfig;

/// Sets the kernel buffers of a socket that is not connected, or of a listener for the sockets that it accepts: afterwards the
/// window scale is agreed on, and a smaller buffer would leave the peer a window of less than a segment.
///
/// # Errors
/// Errors of `setsockopt`.
pub fn set_buffers(socket: &impl AsFd, settings: &TcpConfig) -> io::Result<()> {
    if settings.socket_buffer > 0 {
        let (socket, bytes) = (SockRef::from(socket), settings.socket_buffer as usize);
        socket.set_recv_buffer_size(bytes)?;
        socket.set_send_buffer_size(bytes)?;
    }
    Ok(())
}

/// Applies the settings to a TCP socket, except for its kernel buffers ([`set_buffers`]). Defaults of `link` are not repeated.
///
/// # Errors
/// Errors of `setsockopt`.
pub fn configure(socket: &impl AsFd, settings: &TcpConfig) -> io::Result<()> {
    if *settings == TcpConfig::default() {
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, time::Duration};

    use super::*;

    #[test]
    fn settings_reach_the_kernel() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let settings = TcpConfig {
            keepalive_idle: Duration::from_secs(7),
            keepalive_interval: Duration::from_secs(3),
            keepalive_count: 2,
            user_timeout: Duration::from_millis(1500),
            socket_buffer: 65_536,
            ..TcpConfig::default()
        };
        configure(&socket, &settings).expect("a TCP socket");
        set_buffers(&socket, &settings).expect("a TCP socket");
        let seen = SockRef::from(&socket);
        assert!(seen.keepalive().expect("a TCP socket"));
        assert_eq!(seen.tcp_keepalive_time().expect("a TCP socket"), Duration::from_secs(7));
        assert_eq!(seen.tcp_user_timeout().expect("a TCP socket"), Some(Duration::from_millis(1500)));
        // The kernel doubles the value for its own overhead.
        assert_eq!(seen.send_buffer_size().expect("a TCP socket"), 2 * 65_536);
        configure(&socket, &TcpConfig { keepalive: false, ..TcpConfig::default() }).expect("a TCP socket");
        assert!(!seen.keepalive().expect("a TCP socket"));
    }
}
