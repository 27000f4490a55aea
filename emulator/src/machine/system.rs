//! The functions that the driver provides to kernels: `vprintf` and `__assertfail`.

use super::check::{ALWAYS, AccessInfo};
use super::cta::Cta;
use super::fault::Fault;
use super::printf::{self, Arguments};
use super::registers::{LANES, lanes_of};
use super::warp::Warp;
use crate::program::op::{Space, SystemCall};
use crate::report::FindingKind;

/// The longest string that is read from memory.
const MAX_TEXT: u64 = 64 << 10;

impl Cta<'_> {
    pub(super) fn system_call(
        &mut self,
        warp: &Warp,
        call: SystemCall,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        self.progress();
        match call {
            SystemCall::Print { format, values, result } => {
                for lane in lanes_of(mask) {
                    let count = self.print(warp, lane, format, values)?;
                    let at = (warp.index * LANES + lane) * self.local_stride + result as usize;
                    self.local.data.write(at, &count.to_le_bytes());
                    self.local.initialized.set(at, 4);
                }
                Ok(())
            }
            SystemCall::Fail { message, file, line, function } => {
                let lane = mask.trailing_zeros() as usize & 31;
                let mut text = |at| -> Result<String, Box<Fault>> {
                    let address = self.passed(warp, lane, at, 8)?;
                    let text = self.text(warp, lane, address)?;
                    Ok(String::from_utf8_lossy(&text).into_owned())
                };
                let (message, file, function) = (text(message)?, text(file)?, text(function)?);
                let line = self.passed(warp, lane, line, 4)?;
                let message = format!("{file}:{line}: {function}: assertion `{message}` failed");
                Err(Fault::new(FindingKind::Assertion, lane, message))
            }
        }
    }

    /// Prints for one lane; returns the number of values.
    fn print(
        &mut self,
        warp: &Warp,
        lane: usize,
        format: u32,
        values: u32,
    ) -> Result<i32, Box<Fault>> {
        let format = self.passed(warp, lane, format, 8)?;
        let values = self.passed(warp, lane, values, 8)?;
        if format == 0 {
            return Ok(-1);
        }
        let format = self.text(warp, lane, format)?;
        let mut arguments = Values { cta: self, warp, lane, next: values, count: 0 };
        let text = printf::format(&format, &mut arguments)?;
        let count = arguments.count;
        self.grid.options.output.write(&text);
        Ok(count)
    }

    /// A value that was passed in the lane's local memory.
    fn passed(
        &mut self,
        warp: &Warp,
        lane: usize,
        at: u32,
        bytes: usize,
    ) -> Result<u64, Box<Fault>> {
        self.value(warp, lane, (Space::Local, u64::from(at)), (bytes, 1))
    }

    /// The string at a generic address, without its final zero.
    fn text(&mut self, warp: &Warp, lane: usize, address: u64) -> Result<Vec<u8>, Box<Fault>> {
        let mut text = Vec::new();
        for at in 0..MAX_TEXT {
            let place = (Space::Generic, address.wrapping_add(at));
            match self.value(warp, lane, place, (1, 1))? as u8 {
                0 => return Ok(text),
                byte => text.push(byte),
            }
        }
        let message = format!("the string at {address:#x} is longer than {MAX_TEXT} bytes");
        Err(Fault::new(FindingKind::InvalidArgument, lane, message))
    }

    /// A value of up to 8 bytes in memory, which must be defined.
    fn value(
        &mut self,
        warp: &Warp,
        lane: usize,
        (space, address): (Space, u64),
        (bytes, align): (usize, usize),
    ) -> Result<u64, Box<Fault>> {
        let resolved = self.resolve(warp, space, &[address; LANES], 1 << lane, bytes)?;
        let info = AccessInfo { align, ..AccessInfo::new(bytes, true, false, self.pc) };
        self.check(warp, &resolved, info, ALWAYS)?;
        if let Some(undefined) = self.undefined_bytes(warp, &resolved, bytes, self.pc) {
            let origin = |lane: usize| undefined.origins[lane];
            return Err(self.undefined_use(1 << lane, "an undefined value", origin));
        }
        let mut value = [0; 8];
        let at = resolved.offsets[lane] as usize;
        self.data(resolved.memory).read(at, &mut value[..bytes]);
        Ok(u64::from_le_bytes(value))
    }
}

/// The values of a `printf`, each aligned to its size.
struct Values<'v, 'g> {
    cta: &'v mut Cta<'g>,
    warp: &'v Warp,
    lane: usize,
    next: u64,
    count: i32,
}

impl Arguments for Values<'_, '_> {
    fn next(&mut self, bytes: usize) -> Result<u64, Box<Fault>> {
        let at = self.next.next_multiple_of(bytes as u64);
        self.next = at + bytes as u64;
        self.count += 1;
        let place = (Space::Generic, at);
        self.cta.value(self.warp, self.lane, place, (bytes, bytes))
    }

    fn text(&mut self, address: u64) -> Result<Vec<u8>, Box<Fault>> {
        match address {
            0 => Ok(b"(null)".to_vec()),
            _ => self.cta.text(self.warp, self.lane, address),
        }
    }
}
