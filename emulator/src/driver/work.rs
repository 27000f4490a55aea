//! Stream operations and what they do to memory.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::memory::{AddressSpace, MemoryError};

use super::Driver;
use super::error::{Code, Error, Result};
use super::ffi::host::{HostCall, HostRange};
use super::launch::KernelCall;
use super::nccl::link::Exchange;
use super::nccl::meeting::Meeting;

/// Calls that are one operation, and this rank's place in each.
pub(crate) type Meetings = Arc<[(Arc<Meeting>, usize)]>;

/// A stream operation.
#[derive(Clone)]
pub(crate) enum Work {
    /// Waits for its dependencies and does nothing else.
    Join,
    Copy {
        to: CopySide,
        from: CopySide,
        rows: Rows,
    },
    /// Writes a repeated pattern.
    Fill {
        to: u64,
        pattern: Pattern,
        count: usize,
    },
    Kernel(Arc<KernelCall>),
    Host(HostCall),
    /// Records the time.
    Stamp(Arc<OnceLock<Instant>>),
    /// Waits until a value in memory meets a condition.
    WaitValue {
        at: u64,
        condition: Condition,
    },
    /// Frees memory in stream order.
    Free {
        address: u64,
    },
    /// A collective, or transfers that run together.
    Meet(Meetings),
    /// Sends the data of a collective, or of transfers that run together, to ranks in other processes.
    Post(Arc<Exchange>),
    /// Waits for the data that these ranks send, and writes it.
    Receive(Arc<Exchange>),
}

/// One end of a copy.
#[derive(Clone)]
pub(crate) enum CopySide {
    /// In the unified address space: device, pinned or managed memory.
    Space(u64),
    /// Pageable host memory.
    Host(HostRange),
    /// Host bytes that were copied when the operation was submitted.
    Staged(Arc<[u8]>),
}

/// The shape of a copy: `height` rows of `width` bytes, one pitch apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) to_pitch: usize,
    pub(crate) from_pitch: usize,
}

impl Rows {
    /// One row.
    pub(crate) fn linear(bytes: usize) -> Rows {
        Rows { width: bytes, height: 1, to_pitch: bytes, from_pitch: bytes }
    }

    /// Bytes from the first to the last row at this pitch. `None` if the pitch is less than the
    /// width or the size overflows.
    pub(crate) fn extent(&self, pitch: usize) -> Option<usize> {
        let gaps = self.height.saturating_sub(1);
        match self.width * self.height.min(1) {
            0 => Some(0),
            _ if gaps > 0 && pitch < self.width => None,
            width => pitch.checked_mul(gaps)?.checked_add(width),
        }
    }
}

/// The pattern of a fill, of 1 to 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    bytes: [u8; 8],
    length: usize,
}

impl Pattern {
    pub(crate) fn new(bytes: &[u8]) -> Pattern {
        let length = bytes.len().min(8);
        let mut pattern = [0; 8];
        pattern[..length].copy_from_slice(&bytes[..length]);
        Pattern { bytes: pattern, length }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The condition of a `cuStreamWaitValue32` or `cuStreamWaitValue64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) test: Test,
    pub(crate) value: u64,
    /// 4 or 8.
    pub(crate) bytes: usize,
}

/// `CUstreamWaitValue_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// The cyclic difference to the value is not negative.
    AtLeast,
    Equal,
    /// Some bit is set in both.
    And,
    /// Some bit is set in neither.
    Nor,
}

impl Condition {
    pub(crate) fn holds(&self, found: u64) -> bool {
        let wide = self.bytes == 8;
        match self.test {
            Test::Equal => found == self.value,
            Test::And => found & self.value != 0,
            Test::AtLeast if wide => found.wrapping_sub(self.value) as i64 >= 0,
            Test::AtLeast => (found as u32).wrapping_sub(self.value as u32) as i32 >= 0,
            Test::Nor if wide => !(found | self.value) != 0,
            Test::Nor => !(found as u32 | self.value as u32) != 0,
        }
    }
}

impl Work {
    /// What it does together with other operations.
    pub(crate) fn meetings(&self) -> &[(Arc<Meeting>, usize)] {
        match self {
            Work::Meet(meetings) => meetings,
            _ => &[],
        }
    }

    /// Whether it may run once its dependencies have finished.
    pub(crate) fn may_run(&self, space: &AddressSpace) -> bool {
        let (at, condition) = match self {
            Work::WaitValue { at, condition } => (at, condition),
            Work::Receive(exchange) => return exchange.may_end(),
            _ => return true,
        };
        let mut found = [0; 8];
        // An address that is no longer valid is reported when the operation runs.
        match space.read(*at, &mut found[..condition.bytes]) {
            Ok(()) => condition.holds(u64::from_le_bytes(found)),
            Err(_) => true,
        }
    }
}

impl Driver {
    /// Executes an operation.
    pub(crate) fn perform(&self, work: Work) -> Result<()> {
        let space = &*self.space;
        match work {
            Work::Join => Ok(()),
            Work::Copy { to, from, rows } => copy(space, &to, &from, rows).map_err(late),
            Work::Fill { to, pattern, count } => {
                space.fill(to, pattern.bytes(), count).map_err(late)
            }
            Work::Kernel(call) => self.perform_kernel(&call),
            Work::Host(call) => {
                call.call();
                Ok(())
            }
            Work::Stamp(time) => {
                // Each timestamp is written once.
                let _ = time.set(Instant::now());
                Ok(())
            }
            Work::WaitValue { at, condition } => {
                space.read(at, &mut [0; 8][..condition.bytes]).map_err(late)
            }
            Work::Free { address } => self.perform_free(address),
            Work::Meet(meetings) => {
                let sums = self.configuration.sums;
                let mut meetings = meetings.iter();
                meetings
                    .try_for_each(|(meeting, member)| meeting.run(*member, space, sums))
                    .map_err(late)
            }
            Work::Post(exchange) => exchange.post(space).map_err(late),
            Work::Receive(exchange) => match exchange.receive(space).map_err(late)? {
                Some(fault) => Err(Code::LaunchFailed.because(fault)),
                None => Ok(()),
            },
        }
    }
}

/// The error of an operation whose memory was valid when it was submitted.
fn late(error: MemoryError) -> Error {
    match error {
        MemoryError::Undefined(finding) => Code::LaunchFailed.because(finding.to_string()),
        MemoryError::Race(message) => Code::LaunchFailed.because(message),
        error => Code::IllegalAddress
            .because(format!("the memory of a stream operation was freed before it ran: {error}")),
    }
}

/// Bytes copied through a host buffer at a time.
const CHUNK: usize = 1 << 20;

fn copy(
    space: &AddressSpace,
    to: &CopySide,
    from: &CopySide,
    rows: Rows,
) -> Result<(), MemoryError> {
    let mut buffer = Vec::new();
    for row in 0..rows.height {
        let (to_row, from_row) = (row * rows.to_pitch, row * rows.from_pitch);
        match (to, from) {
            (CopySide::Space(to), CopySide::Space(from)) => {
                space.copy(to + to_row as u64, from + from_row as u64, rows.width)?;
            }
            (CopySide::Space(to), CopySide::Staged(bytes)) => {
                space.write(to + to_row as u64, &bytes[from_row..from_row + rows.width])?;
            }
            _ => {
                for start in (0..rows.width).step_by(CHUNK) {
                    buffer.resize(CHUNK.min(rows.width - start), 0);
                    from.read(space, from_row + start, &mut buffer)?;
                    to.write(space, to_row + start, &buffer)?;
                }
            }
        }
    }
    Ok(())
}

impl CopySide {
    fn read(
        &self,
        space: &AddressSpace,
        offset: usize,
        into: &mut [u8],
    ) -> Result<(), MemoryError> {
        match self {
            CopySide::Space(base) => return space.read(base + offset as u64, into),
            CopySide::Host(range) => range.read(offset, into),
            CopySide::Staged(bytes) => into.copy_from_slice(&bytes[offset..offset + into.len()]),
        }
        Ok(())
    }

    fn write(&self, space: &AddressSpace, offset: usize, bytes: &[u8]) -> Result<(), MemoryError> {
        match self {
            CopySide::Space(base) => return space.write(base + offset as u64, bytes),
            CopySide::Host(range) => range.write(offset, bytes),
            // A staged copy is never a destination.
            CopySide::Staged(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryKind;

    #[test]
    fn copied_rows_are_a_pitch_apart() {
        let space = AddressSpace::new();
        let to = space.allocate(64, MemoryKind::Device(0)).unwrap();
        space.fill(to, &[9], 64).unwrap();
        let staged: Arc<[u8]> = (0..12).collect();
        let rows = Rows { width: 3, height: 3, to_pitch: 16, from_pitch: 4 };
        copy(&space, &CopySide::Space(to), &CopySide::Staged(staged), rows).unwrap();
        let mut back = [0; 64];
        space.read(to, &mut back).unwrap();
        assert_eq!(back[0..5], [0, 1, 2, 9, 9]);
        assert_eq!(back[16..21], [4, 5, 6, 9, 9]);
        assert_eq!(back[32..37], [8, 9, 10, 9, 9]);
        assert_eq!((rows.extent(16), rows.extent(4), rows.extent(2)), (Some(35), Some(11), None));
        assert_eq!(rows.extent(usize::MAX), None);
        assert_eq!(Rows { width: 0, ..rows }.extent(0), Some(0));
    }

    #[test]
    fn wait_conditions_compare_as_the_api_defines() {
        let condition = |test, value, bytes| Condition { test, value, bytes };
        assert!(condition(Test::AtLeast, 5, 4).holds(5));
        assert!(!condition(Test::AtLeast, 5, 4).holds(4));
        // Cyclic: a counter may wrap around.
        assert!(condition(Test::AtLeast, u64::from(u32::MAX), 4).holds(1));
        assert!(!condition(Test::AtLeast, u64::from(u32::MAX), 8).holds(1));
        assert!(condition(Test::And, 6, 4).holds(2));
        assert!(!condition(Test::And, 4, 4).holds(2));
        assert!(condition(Test::Nor, 1, 4).holds(1));
        assert!(!condition(Test::Nor, u64::from(u32::MAX), 4).holds(0));
        assert!(condition(Test::Equal, 7, 8).holds(7));
    }
}
