//! Asynchronous copies from global to shared memory (`cp.async`).
//!
//! A thread issues copies and commits them as a group. Later it waits until all but its latest
//! groups are complete. Its copies are then visible to the thread itself, and after a barrier to
//! the CTA.
//!
//! PTX ISA, "Data Movement and Conversion Instructions: cp.async".

use super::{GlobalAddress, Kernel, Pred, SharedAddress, U32};

impl<'k> SharedAddress<'k> {
    /// Copies `BYTES` bytes (4, 8 or 16) from global memory to this address if the predicate is
    /// true. Otherwise writes zeros and reads nothing. Both addresses must be multiples of `BYTES`.
    ///
    /// A 16-byte copy bypasses the L1 cache, since the data is in shared memory anyway.
    #[track_caller]
    pub fn copy_async<const BYTES: u32>(self, from: GlobalAddress<'k>, condition: Pred<'k>) {
        self.copy_async_first::<BYTES>(from, condition.select(BYTES, 0u32));
    }

    /// Like [`SharedAddress::copy_async`], but reads only the first `read` bytes and fills the rest
    /// with zeros.
    #[track_caller]
    pub fn copy_async_first<const BYTES: u32>(self, from: GlobalAddress<'k>, read: U32<'k>) {
        let cache = if BYTES == 16 { "cg" } else { "ca" };
        let (to, from) = (self.written(), from.written());
        self.kernel()
            .emit(format_args!("cp.async.{cache}.shared.global {to}, {from}, {BYTES}, {read}"));
    }
}

impl Kernel {
    /// Commits the pending async copies of the thread as one group.
    #[track_caller]
    pub fn commit_copies(&self) {
        self.emit("cp.async.commit_group");
    }

    /// Waits until all but the latest `pending` groups of the thread are complete.
    #[track_caller]
    pub fn wait_for_copies(&self, pending: u32) {
        self.emit(format_args!("cp.async.wait_group {pending}"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::tests::body;
    use super::super::{ArgumentFor, In, Kernel, Target};

    /// 16-byte copies bypass L1; smaller ones cannot.
    #[test]
    fn copies_read_nothing_if_the_predicate_is_false() {
        let k = &Kernel::new("copies", Target::Sm80, 32);
        let (from, to) = (In::declare(k, "x", &()), k.shared::<f32>(32));
        let inside = k.constant(true);
        to.offset(64).copy_async::<16>(from, inside);
        to.copy_async::<4>(from.offset(8), inside);
        k.commit_copies();
        k.wait_for_copies(1);
        assert_eq!(
            body(k)[4..10],
            [
                "selp.b32 %r2, 16, 0, %p1;",
                "cp.async.cg.shared.global [%r1+64], [%rd2], 16, %r2;",
                "selp.b32 %r3, 4, 0, %p1;",
                "cp.async.ca.shared.global [%r1], [%rd2+8], 4, %r3;",
                "cp.async.commit_group;",
                "cp.async.wait_group 1;",
            ]
        );
    }
}
