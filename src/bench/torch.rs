//! Starts torch for comparison with a device.

use std::time::Duration;

use meshgrad::prelude::Device;
use meshgrad_harness::{Peer, PeerOptions};

/// Starts `script`, if torch is requested, for comparison with `device`.
pub(crate) fn start_torch(
    device: &Device,
    options: &PeerOptions,
    script: &str,
    arguments: &[&str],
) -> anyhow::Result<Option<Peer>> {
    let mut peer = options.start(script, arguments)?;
    if let Some(peer) = &mut peer
        && device.is_gpu()
    {
        peer.pause = Duration::ZERO; // it has no threads that spin between requests
    }
    Ok(peer)
}

/// torch's name of `device`. The emulator is compared with the CPU.
pub(crate) fn torch_name(device: &Device) -> String {
    let name = device.to_string();
    match name.starts_with("cuda") {
        true => name,
        false => "cpu".into(),
    }
}
