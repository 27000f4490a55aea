//! Addresses in messages: the allocation that contains or neighbors them, and the offset.

use std::fmt;
use std::sync::Arc;

use super::allocation::{Allocation, AllocationInfo};
use super::block::ALIGNMENT;

/// The description of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressDescription {
    /// The address.
    pub address: u64,
    /// Whether it is in freed memory.
    pub freed: bool,
    text: String,
}

impl AddressDescription {
    pub(super) fn new(
        address: u64,
        below: Option<&Arc<Allocation>>,
        above: Option<&Arc<Allocation>>,
    ) -> AddressDescription {
        let inside = below.filter(|it| address < it.end());
        let text = match (inside, below, above) {
            (Some(it), ..) => {
                format!("byte {} of {}", address - it.info.base, describe_allocation(it))
            }
            (None, Some(it), _) if address - it.end() < ALIGNMENT as u64 * 2 => {
                format!("{} bytes past the end of {}", address - it.end(), describe_allocation(it))
            }
            (None, _, Some(it)) if it.info.base - address <= ALIGNMENT as u64 => {
                let before = it.info.base - address;
                format!("{before} bytes before the start of {}", describe_allocation(it))
            }
            _ if address < 4096 => "a null pointer".to_owned(),
            _ => "not in any allocation".to_owned(),
        };
        AddressDescription { address, freed: inside.is_some_and(|it| it.is_freed()), text }
    }
}

impl fmt::Display for AddressDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}, {}", self.address, self.text)
    }
}

pub(super) fn describe_allocation(allocation: &Allocation) -> String {
    let AllocationInfo { bytes, kind, number, .. } = allocation.info;
    let freed = if allocation.is_freed() { ", freed" } else { "" };
    format!("allocation #{number} ({bytes} bytes, {kind}{freed})")
}
