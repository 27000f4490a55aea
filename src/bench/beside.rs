//! torch beside a device of ours.

use std::time::Duration;

use meshgrad::prelude::Device;

use super::peer::{Peer, PeerOptions};

/// Starts `script`, if torch is asked for, to be timed beside `device`.
pub(crate) fn beside(
    device: &Device,
    options: &PeerOptions,
    script: &str,
    arguments: &[&str],
) -> anyhow::Result<Option<Peer>> {
    let Some(python) = &options.torch else {
        return Ok(None);
    };
    let mut peer = Peer::start(python, script, arguments)?;
    if device.is_gpu() {
        peer.pause = Duration::ZERO; // nothing of it spins between requests
    }
    Ok(Some(peer))
}

/// What torch calls `device`. Nothing of it runs on the emulator.
pub(crate) fn torch_name(device: &Device) -> String {
    let name = device.to_string();
    match name.starts_with("cuda") {
        true => name,
        false => "cpu".into(),
    }
}
