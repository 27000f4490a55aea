//! Products of warpgroups (`wgmma`), for [`Target::Sm90a`](super::Target::Sm90a).
//!
//! A warpgroup is four consecutive warps, from a multiple of four on. Its products run
//! asynchronously and read their operands from shared memory:
//!
//! 1. The threads that wrote the operands call [`Kernel::publish_to_products`], then a barrier.
//! 2. [`Kernel::begin_products`], any number of [`warpgroup_mma_bf16`], and
//!    [`Kernel::commit_products`], which makes them a group.
//! 3. [`Kernel::wait_for_products`]. Until then, neither the sums nor the operands may be touched.
//!
//! All threads of the warpgroup call all of them.
//!
//! PTX ISA, "Asynchronous warpgroup level matrix instructions".

use super::memory::list;
use super::{Kernel, Pair, SharedAddress, U32, U64, Variable};

/// Bytes per line of an operand in shared memory: 64 elements of 16 bits.
const LINE: u32 = 128;

/// Lines after which the swizzle repeats.
const PATTERN: u32 = 8;

/// Alignment in bytes of an operand: one repetition of the swizzle.
pub const OPERAND_ALIGNMENT: u32 = PATTERN * LINE;

/// In a descriptor: addresses and offsets are in units of 16 bytes.
const UNIT: u32 = 16;

/// In a descriptor, bits 62 and 63: lines of 128 bytes whose chunks of 16 bytes are permuted. Chunk
/// c of line l is stored at `c ^ (l % 8)`.
const SWIZZLE_128: u32 = 1 << 30;

/// An operand \[rows, 16\] of a product in shared memory. It consists of lines of 64 elements, with
/// their chunks permuted: chunk c of 8 elements of line l is stored at `c ^ (l % 8)`.
#[derive(Clone, Copy)]
pub struct GroupOperand<'k> {
    /// Bits 0 to 31 of the descriptor.
    low: U32<'k>,
    /// Bits 32 to 63 of the descriptor.
    high: u32,
    /// Whether the lines run along k.
    along_k: bool,
    /// Lines until those of the next 64 elements.
    lines: u32,
}

impl<'k> SharedAddress<'k> {
    /// The operand that begins at this address, which must be aligned to [`OPERAND_ALIGNMENT`].
    ///
    /// If `along_k`, a line is 64 k of one row. Otherwise a line is 64 rows of one k. `lines` lines
    /// are followed by those of the next 64 k, or rows.
    #[track_caller]
    pub fn group_operand(self, along_k: bool, lines: u32) -> GroupOperand<'k> {
        let address = self.to_register() >> UNIT.trailing_zeros();
        // From 64 rows to the next 64; unused along k.
        let panel = if along_k { UNIT } else { lines * LINE };
        GroupOperand {
            low: address | ((panel / UNIT) << 16),
            high: (OPERAND_ALIGNMENT / UNIT) | SWIZZLE_128,
            along_k,
            lines,
        }
    }
}

impl<'k> GroupOperand<'k> {
    /// The operand `bytes` later, which must be a multiple of [`OPERAND_ALIGNMENT`].
    #[track_caller]
    pub fn byte_add(self, bytes: U32<'k>) -> GroupOperand<'k> {
        let low = self.low + (bytes >> UNIT.trailing_zeros());
        GroupOperand { low, ..self }
    }

    /// The operand of the next 16 k, `step` times.
    #[track_caller]
    pub fn step(self, step: u32) -> GroupOperand<'k> {
        let bytes = match self.along_k {
            true => step / 4 * self.lines * LINE + step % 4 * 32,
            false => step * 16 * LINE,
        };
        let low = self.low + bytes / UNIT;
        GroupOperand { low, ..self }
    }

    #[track_caller]
    fn descriptor(self, k: &'k Kernel) -> U64<'k> {
        let (low, high) = (self.low, self.high);
        let descriptor = k.register();
        k.emit(format_args!("mov.b64 {descriptor}, {{{low}, {high}}}"));
        descriptor
    }
}

/// The first operand of a product, \[64, 16\].
#[derive(Clone, Copy)]
pub enum Rows64<'k> {
    /// In shared memory.
    Shared(GroupOperand<'k>),
    /// In registers: each warp holds its 16 rows, as [`mma_bf16`](super::mma_bf16) does. They must
    /// not change until the product is complete. In a loop, compute them in the same iteration:
    /// ptxas 13.0 overwrites registers that were computed before the loop.
    Registers([Pair<'k>; 4]),
}

/// `sums += a b` with bf16 `a` \[64, 16\], bf16 `b` \[16, N\] and f32 `sums` \[64, N\].
///
/// Warp w of the warpgroup holds rows 16 w to 16 w + 15 of the sums, as N / 8 fragments in the layout
/// of [`mma_bf16`](super::mma_bf16).
///
/// # Panics
/// If there are no sums or more than 32 fragments.
#[track_caller]
pub fn warpgroup_mma_bf16<'k>(
    k: &'k Kernel,
    sums: &[[Variable<'k, f32>; 4]],
    a: Rows64<'k>,
    b: GroupOperand<'k>,
) {
    let columns = 8 * sums.len();
    assert!((8..=256).contains(&columns), "a product of {columns} columns: the limit is 8 to 256");
    let registers: Vec<_> = sums.iter().flatten().map(|sum| **sum).collect();
    let sums = list(&registers);
    let transposed = |operand: GroupOperand<'_>| u32::from(!operand.along_k);
    let (a, transposed_a) = match a {
        Rows64::Shared(a) => (a.descriptor(k).to_string(), format!("{}, ", transposed(a))),
        Rows64::Registers(a) => (list(&a), String::new()),
    };
    let (b, transposed_b) = (b.descriptor(k), transposed(b));
    let adds = k.constant(true);
    k.emit(format_args!(
        "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {sums}, {a}, {b}, {adds}, 1, \
         1, {transposed_a}{transposed_b}"
    ));
}

impl Kernel {
    /// Makes this thread's writes to shared memory visible to products after the next barrier.
    #[track_caller]
    pub fn publish_to_products(&self) {
        self.emit("fence.proxy.async.shared::cta");
    }

    /// Orders earlier changes of the sums before the next products.
    #[track_caller]
    pub fn begin_products(&self) {
        self.emit("wgmma.fence.sync.aligned");
    }

    /// Makes the products since the last call a group.
    #[track_caller]
    pub fn commit_products(&self) {
        self.emit("wgmma.commit_group.sync.aligned");
    }

    /// Waits until all but the latest `pending` groups are complete.
    #[track_caller]
    pub fn wait_for_products(&self, pending: u32) {
        self.emit(format_args!("wgmma.wait_group.sync.aligned {pending}"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::tests::body;
    use super::super::{Bf16, Kernel, Target};
    use super::*;

    #[test]
    fn descriptors_hold_the_layout() {
        let k = &Kernel::new("product", Target::Sm90a, 128);
        let shared = k.shared_aligned::<Bf16>(2 * 64 * 64, OPERAND_ALIGNMENT);
        let sums = [[(); 4].map(|()| k.var(0.0_f32))];
        let a = shared.group_operand(true, 64);
        let b = shared.offset(8192).group_operand(false, 64).step(1);
        warpgroup_mma_bf16(k, &sums, Rows64::Shared(a), b);
        let text = body(k);
        let product = text.iter().find(|line| line.starts_with("wgmma")).unwrap();
        assert!(product.ends_with("1, 1, 0, 1;"), "{product}");
        // 64 units of 16 bytes from 8 lines to the next, and the swizzle.
        let high = (1 << 30) | 64;
        assert!(text.iter().any(|line| line.contains(&format!(", {high}}}"))));
        // A panel of 64 rows is 64 lines of 128 bytes: 512 units.
        let panel = 512 << 16;
        assert!(text.iter().any(|line| line.contains(&panel.to_string())));
    }

    #[test]
    #[should_panic(expected = "a product of 264 columns")]
    fn columns_are_limited() {
        let k = &Kernel::new("product", Target::Sm90a, 128);
        let operand = k.shared_aligned::<Bf16>(64 * 64, OPERAND_ALIGNMENT);
        let operand = operand.group_operand(true, 64);
        let sums: Vec<_> = (0..33).map(|_| [(); 4].map(|()| k.var(0.0_f32))).collect();
        warpgroup_mma_bf16(k, &sums, Rows64::Shared(operand), operand);
    }
}
