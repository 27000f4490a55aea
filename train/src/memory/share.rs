//! What ranks need of each memory, and what is free.

use std::fs;

use meshgrad_runtime::Device;
use serde::{Deserialize, Serialize};

use super::Needed;
use crate::Result;

/// A name for this host that other hosts do not have.
pub(crate) fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// What a rank needs of a memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Share {
    /// The host and the name, which identify the memory.
    memory: (String, String),
    needed: u64,
    /// Bytes that are free; `None` if that is unknown.
    free: Option<u64>,
}

/// A memory that is too small.
pub(super) struct Lacking {
    pub(super) memory: (String, String),
    pub(super) name: String,
    pub(super) needed: u64,
    pub(super) free: u64,
}

/// The bytes that all ranks need of a memory.
pub(super) fn total(shares: &[Share], memory: &(String, String)) -> u64 {
    shares.iter().filter(|share| share.memory == *memory).map(|share| share.needed).sum()
}

/// The first memory that is too small for all ranks that use it.
pub(super) fn lacking(shares: &[Share]) -> Option<Lacking> {
    shares.iter().find_map(|share| {
        let memory = &share.memory;
        let same = shares.iter().filter(|other| other.memory == *memory);
        let free = same.clone().filter_map(|it| it.free).min()?;
        let (needed, count) = (total(shares, memory), same.count());
        let name = match count {
            1 => memory.1.clone(),
            _ => format!("{} for {count} ranks", memory.1),
        };
        (needed > free).then(|| Lacking { memory: memory.clone(), name, needed, free })
    })
}

impl Needed {
    /// What is needed of the memory of `device` on `host`, and of the host's if that is another.
    pub(super) fn shares(self, device: &Device, host: &str, free: Free) -> Vec<Share> {
        let share =
            |name: String, needed, free| Share { memory: (host.to_owned(), name), needed, free };
        match device.is_gpu() {
            false => vec![share(device.to_string(), self.device + self.saving, free.device)],
            true => vec![
                share(device.to_string(), self.device, free.device),
                share("the host".to_owned(), self.saving, free.host),
            ],
        }
    }
}

/// Bytes that are free; `None` where that is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Free {
    pub(super) device: Option<u64>,
    /// On the host, if the device is a GPU.
    pub(super) host: Option<u64>,
}

impl Free {
    pub(super) fn of(device: &Device) -> Result<Free> {
        let bytes = |device: &Device| -> Result<Option<u64>> {
            Ok(device.available_memory()?.map(|bytes| bytes as u64))
        };
        Ok(Free {
            device: bytes(device)?,
            host: match device.is_gpu() {
                true => bytes(&Device::cpu())?,
                false => None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranks of a host need its memory together, those of another host do not.
    #[test]
    fn ranks_of_a_host_are_summed() {
        let cpu = Device::cpu();
        let needed = Needed { device: 70, saving: 40 };
        let shares = |host: &str, free| {
            let free = Free { device: free, host: None };
            needed.shares(&cpu, host, free)
        };
        let lacks = |shares: &[Vec<Share>]| {
            let lacking = lacking(&shares.concat())?;
            Some((lacking.name, lacking.needed, lacking.free))
        };
        assert_eq!(lacks(&[shares("a", Some(110))]), None);
        assert_eq!(lacks(&[shares("a", Some(109))]), Some(("cpu".to_owned(), 110, 109)));
        assert_eq!(lacks(&[shares("a", Some(200)), shares("b", Some(200))]), None);
        let both = [shares("a", Some(220)), shares("b", Some(200)), shares("b", Some(219))];
        assert_eq!(lacks(&both), Some(("cpu for 2 ranks".to_owned(), 220, 200)));
        assert_eq!(lacks(&[shares("a", None), shares("a", None)]), None);
    }
}
