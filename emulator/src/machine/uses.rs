//! Uses of undefined values, which are errors: branches, addresses, predicates and other operands that
//! decide what a thread does.

use super::cta::Cta;
use super::fault::Fault;
use super::registers::Slot;
use super::undefined::{Load, Origin};
use super::warp::Warp;
use super::windows::MemoryId;
use crate::report::FindingKind;

impl Cta<'_> {
    /// Requires that a register is fully defined in all lanes of a mask.
    #[inline(always)]
    pub(super) fn require_defined(
        &self,
        warp: &Warp,
        slot: Slot,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        let missing = warp.registers.missing(&[slot], mask);
        if missing != 0 && self.grid.options.sanitize {
            let origin = |lane| warp.registers.undefined_lane(slot, lane).1;
            return Err(self.undefined_use(missing, "an undefined value", origin));
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn require_predicate_defined(
        &self,
        warp: &Warp,
        predicate: Slot,
        mask: u32,
    ) -> Result<(), Box<Fault>> {
        let missing = mask & !warp.registers.predicate_defined(predicate);
        if missing != 0 && self.grid.options.sanitize {
            let origin = |lane| warp.registers.predicate_origin(predicate, lane);
            return Err(self.undefined_use(missing, "an undefined predicate", origin));
        }
        Ok(())
    }

    /// The fault of a use in these lanes.
    #[cold]
    pub(super) fn undefined_use(
        &self,
        lanes: u32,
        what: &str,
        origin: impl Fn(usize) -> Origin,
    ) -> Box<Fault> {
        let lane = lanes.trailing_zeros() as usize & 31;
        let origin = origin(lane);
        let (kind, source) = self.describe_origin(origin);
        let message = format!("use of {what} (lanes {lanes:#010x}): it comes from {source}");
        Box::new(Fault { origin: Some(origin), ..*Fault::new(kind, lane, message) })
    }

    /// The kind of a finding about this origin, and its description.
    pub(super) fn describe_origin(&self, origin: Origin) -> (FindingKind, String) {
        let Origin::Memory(load) = origin else {
            let source = "a register that was never written".to_owned();
            return (FindingKind::UninitializedRegister, source);
        };
        let Load { memory, offset, stored, warp, lane, .. } = load;
        let place = self.place(memory, usize::from(warp), usize::from(lane), offset);
        if let MemoryId::Global(index) = memory
            && stored
            && let Some((_, stored)) = self.grid.allocations[index].stored_undefined(offset, 1)
        {
            let source = format!(
                "{place}, where kernel `{}` stored an undefined value at {}; {}",
                stored.kernel, stored.site, stored.message
            );
            return (stored.kind, source);
        }
        let kind = match memory {
            MemoryId::Shared => FindingKind::UninitializedShared,
            MemoryId::Local => FindingKind::UninitializedLocal,
            MemoryId::Param | MemoryId::Global(_) => FindingKind::UninitializedGlobal,
        };
        (kind, format!("{place}, which was never written"))
    }
}
