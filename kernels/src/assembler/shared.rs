//! Shared memory: the layout of a CTA's arrays, and addresses in them.

use super::memory::written;
use super::{Kernel, Operand, Stored, U32};

/// Maximum static shared memory in bytes. Beyond it, shared memory is dynamic and requested at
/// launch.
pub const STATIC_LIMIT: u32 = 48 * 1024;

/// The alignment of every array: 128 bytes, so that it begins at bank 0.
const ALIGNMENT: u32 = 128;

/// The layout of the arrays allocated so far, one after another.
pub(super) struct SharedLayout {
    bytes: u32,
    /// The largest alignment of an array.
    alignment: u32,
}

impl Default for SharedLayout {
    fn default() -> Self {
        SharedLayout { bytes: 0, alignment: ALIGNMENT }
    }
}

impl SharedLayout {
    /// Allocates an array and returns its offset.
    fn reserve(&mut self, bytes: u32, alignment: u32) -> u32 {
        let start = self.bytes.next_multiple_of(alignment);
        self.bytes = start + bytes;
        self.alignment = self.alignment.max(alignment);
        start
    }

    pub(super) fn dynamic_bytes(&self) -> u32 {
        if self.bytes > STATIC_LIMIT { self.bytes } else { 0 }
    }

    pub(super) fn dynamic_declaration(&self) -> Option<String> {
        let alignment = self.alignment;
        (self.bytes > STATIC_LIMIT)
            .then(|| format!(".extern .shared .align {alignment} .b8 arrays[];"))
    }

    pub(super) fn static_declaration(&self) -> Option<String> {
        let fits = (1..=STATIC_LIMIT).contains(&self.bytes);
        let SharedLayout { bytes, alignment } = self;
        fits.then(|| format!(".shared .align {alignment} .b8 arrays[{bytes}];"))
    }
}

/// An address in shared memory: a register and a constant offset.
#[derive(Clone, Copy, Debug)]
pub struct SharedAddress<'k> {
    base: U32<'k>,
    offset: u32,
}

impl<'k> SharedAddress<'k> {
    /// Adds a constant byte offset. No instruction.
    pub fn offset(self, bytes: u32) -> Self {
        SharedAddress { offset: self.offset + bytes, ..self }
    }

    /// The address of element `index` of an array of `T` that begins here.
    #[track_caller]
    pub fn element<T: Stored>(self, index: U32<'k>) -> Self {
        let base = index.mad(T::BYTES, self.base);
        SharedAddress { base, ..self }
    }

    /// Adds a byte offset; one instruction.
    #[track_caller]
    pub fn byte_add(self, bytes: impl Operand<u32>) -> Self {
        let base = self.base;
        let base = base.k.compute("add.u32", &[&base, &bytes.written()]);
        SharedAddress { base, ..self }
    }

    /// The address in a register.
    #[track_caller]
    pub(super) fn to_register(self) -> U32<'k> {
        self.base + self.offset
    }

    /// The constant offset from the register.
    pub(super) fn constant(self) -> u32 {
        self.offset
    }

    pub(super) fn kernel(self) -> &'k Kernel {
        self.base.kernel()
    }

    /// In PTX syntax: `[%r1+16]`.
    pub(super) fn written(self) -> String {
        written(&self.base, i64::from(self.offset))
    }
}

impl Kernel {
    /// An uninitialized array of `count` elements in the shared memory of the CTA.
    ///
    /// Arrays are in static shared memory if all together fit in 48 KiB, otherwise in dynamic
    /// shared memory. Their addresses do not depend on this.
    #[track_caller]
    pub fn shared<T: Stored>(&self, count: u32) -> SharedAddress<'_> {
        self.shared_aligned::<T>(count, ALIGNMENT)
    }

    /// Like [`Kernel::shared`], at a multiple of `alignment` bytes, which is a power of two of at least
    /// 128.
    #[track_caller]
    pub fn shared_aligned<T: Stored>(&self, count: u32, alignment: u32) -> SharedAddress<'_> {
        let offset = self.shared_layout(|layout| layout.reserve(count * T::BYTES, alignment));
        let base = self.compute("mov.u32", &[&"arrays"]);
        SharedAddress { base, offset }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kernel, Target};

    #[test]
    fn arrays_are_consecutive_and_aligned() {
        let k = &Kernel::new("small", Target::Sm80, 32);
        let (a, b) = (k.shared::<f32>(3), k.shared::<f32>(32));
        b.offset(8).store(a.load::<f32>());
        let ptx = k.finish();
        assert_eq!(ptx.dynamic_shared, 0);
        assert!(ptx.text.contains(".shared .align 128 .b8 arrays[256];"));
        assert!(ptx.text.contains("st.shared.f32 [%r2+136], %f1;"));
    }

    #[test]
    fn the_largest_alignment_is_that_of_all_arrays() {
        let k = &Kernel::new("aligned", Target::Sm80, 32);
        k.shared::<f32>(3);
        k.shared_aligned::<f32>(32, 1024);
        let text = k.finish().text;
        assert!(text.contains(".shared .align 1024 .b8 arrays[1152];"), "{text}");
    }

    #[test]
    fn large_arrays_are_dynamic() {
        let k = &Kernel::new("large", Target::Sm80, 32);
        k.shared::<f32>(12_289);
        let ptx = k.finish();
        assert_eq!(ptx.dynamic_shared, 49_156);
        assert!(ptx.text.contains(".extern .shared .align 128 .b8 arrays[];"));
    }
}
