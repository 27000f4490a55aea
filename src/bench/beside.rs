//! torch beside a device of ours.

use std::time::Duration;

use meshgrad::prelude::Device;
use meshgrad_harness::{Peer, PeerOptions};

/// Starts `script`, if torch is asked for, to be timed beside `device`.
pub(crate) fn beside(
    device: &Device,
    options: &PeerOptions,
    script: &str,
    arguments: &[&str],
) -> anyhow::Result<Option<Peer>> {
    let mut peer = options.start(script, arguments)?;
    if let Some(peer) = &mut peer
        && device.is_gpu()
    {
        peer.pause = Duration::ZERO; // nothing of it spins between requests
    }
    Ok(peer)
}

/// What torch calls `device`. Nothing of it runs on the emulator.
pub(crate) fn torch_name(device: &Device) -> String {
    let name = device.to_string();
    match name.starts_with("cuda") {
        true => name,
        false => "cpu".into(),
    }
}
