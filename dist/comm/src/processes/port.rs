//! Ports for processes that are yet to start.

use std::net::{Ipv4Addr, TcpListener};

use meshgrad_error::Result;

use super::secret::random;
use crate::system::system;

/// From here on, operating systems give ports to sockets that ask for any.
const ANY: u16 = 32_768;
/// Below are ports of well-known services.
const FIRST: u16 = 10_000;
const ATTEMPTS: usize = 100;

/// A random free port of this host, at which rank 0 can listen later. The operating system gives it
/// to no socket that asks for any port.
///
/// # Errors
/// When none is found.
pub fn free_port() -> Result<u16> {
    let mut attempts = (1..=ATTEMPTS).rev();
    loop {
        let port = FIRST + u16::from_le_bytes(random()?) % (ANY - FIRST);
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Err(error) if attempts.next().is_none() => {
                return Err(system("no free port")(error));
            }
            Err(_) => {}
            Ok(_) => return Ok(port),
        }
    }
}
