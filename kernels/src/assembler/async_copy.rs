//! Copies from global to shared memory that go on while the thread does something else (cp.async).
//!
//! A thread issues copies, closes them into a group, and later waits until all but its latest
//! groups are complete. That makes its own copies visible to itself; a barrier then shows them to
//! the CTA.
//!
//! PTX ISA, "Data Movement and Conversion Instructions: cp.async".

use super::{GlobalAddress, Kernel, Pred, SharedAddress, U32};

impl<'k> SharedAddress<'k> {
    /// Copies `BYTES` (4, 8 or 16) from global memory to here where the predicate holds; elsewhere
    /// nothing is read and zeros are written. Both addresses must be multiples of `BYTES`.
    ///
    /// Sixteen bytes go past the L1 cache, which would be of no use to data that is in shared
    /// memory.
    #[track_caller]
    pub fn copy_async<const BYTES: u32>(self, from: GlobalAddress<'k>, condition: Pred<'k>) {
        self.copy_async_first::<BYTES>(from, condition.select(BYTES, 0u32));
    }

    /// As [`SharedAddress::copy_async`], but only the first `read` of the `BYTES` are read; the
    /// rest become zeros.
    #[track_caller]
    pub fn copy_async_first<const BYTES: u32>(self, from: GlobalAddress<'k>, read: U32<'k>) {
        let cache = if BYTES == 16 { "cg" } else { "ca" };
        let (to, from) = (self.written(), from.written());
        self.kernel().emit(format_args!(
            "cp.async.{cache}.shared.global {to}, {from}, {BYTES}, {read}"
        ));
    }
}

impl Kernel {
    /// Makes the thread's copies since the last time a group.
    #[track_caller]
    pub fn commit_copies(&self) {
        self.emit("cp.async.commit_group");
    }

    /// Waits until all of the thread's groups but the latest `pending` are complete.
    #[track_caller]
    pub fn wait_for_copies(&self, pending: u32) {
        self.emit(format_args!("cp.async.wait_group {pending}"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::tests::body;
    use super::super::{Kernel, Target};

    /// Sixteen bytes go past L1; other sizes cannot.
    #[test]
    fn copies_read_as_much_as_the_predicate_says() {
        let k = &Kernel::new("copies", Target::Sm80, 32);
        let (from, to) = (k.pointer("x"), k.shared::<f32>(32));
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
