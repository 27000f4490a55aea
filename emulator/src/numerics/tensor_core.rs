//! The arithmetic of `mma.sync`: D = A B + C on one warp.
//!
//! Implements PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions: mma". Fragments are
//! gathered into dense tiles (see [`super::fragment`] for the layout), multiplied in loops that the
//! compiler vectorizes over the eight columns, and scattered back.
//!
//! NVIDIA specifies that products are exact and that sums have at least single precision, in an
//! unspecified order and rounding. Measurements show that tensor cores align the products of a
//! slice of k and the accumulator to the largest of them, truncate lower bits, and add them as
//! integers (Fasi, Higham, Mikaitis and Pranesh, 2021; Khattak and Mikaitis, arXiv 2512.07004). The
//! number of kept bits depends on the generation. The emulator computes what all generations
//! approximate: exact products summed in f64 in the order of k, then the accumulator, and one
//! rounding to nearest even. This is at least as accurate as any hardware and the same on every
//! machine. Tests must not expect a GPU to match it bit for bit.
//!
//! Subnormal operands are not flushed. NaN results are canonical.

use super::fragment::{
    Accumulator, COLUMNS, LANES, MmaKind, Operand, Plane, ROWS, a_position, accumulator_position,
    b_position,
};
use super::half_precision::{Bf16, F16, Half, pack, unpack};
use super::rounding::{canonical, narrow_to_odd};
use crate::simd::vectorized;

/// The largest k of floating-point and of integer instructions.
const MAX_K: usize = 32;

pub(super) type TileA<T> = [[T; MAX_K]; ROWS];
pub(super) type TileB<T> = [[T; COLUMNS]; MAX_K];
pub(super) type TileC<T> = [[T; COLUMNS]; ROWS];

/// `mma.sync`: D = A B + C. Each slice holds the operand's registers.
///
/// # Panics
///
/// If a slice has fewer registers than `kind` requires.
pub(crate) fn multiply(kind: MmaKind, a: &[Plane], b: &[Plane], c: &[Plane], d: &mut [Plane]) {
    // Compiled for several instruction sets of the host. All give the same bits: products are exact
    // in f64, so fusing them with the sum changes nothing.
    vectorized(
        #[inline(always)]
        || multiply_here(kind, a, b, c, d),
    );
}

#[inline(always)]
fn multiply_here(kind: MmaKind, a: &[Plane], b: &[Plane], c: &[Plane], d: &mut [Plane]) {
    let a = &a[..kind.a_registers()];
    let b = &b[..kind.b_registers()];
    let c = &c[..kind.accumulator_registers()];
    let d = &mut d[..kind.accumulator_registers()];

    match kind.accumulator() {
        Accumulator::F32 => {
            let products = float_products(kind, a, b);
            map_accumulators(&products, c, d, |product, c| {
                let sum = product + f64::from(f32::from_bits(c));
                canonical(sum as f32).to_bits()
            });
        }
        Accumulator::F16 => {
            let products = float_products(kind, a, b);
            map_packed_accumulators(&products, c, d, |product, c| {
                F16::narrow(narrow_to_odd(product + f64::from(F16::widen(c))))
            });
        }
        Accumulator::S32 => {
            let products = integer_products(kind, a, b);
            map_accumulators(&products, c, d, |product: i32, c| {
                product.wrapping_add(c as i32) as u32
            });
        }
        Accumulator::SaturatedS32 => {
            let products = integer_products(kind, a, b);
            // The sum of products is exact, so one clamped addition is enough.
            map_accumulators(&products, c, d, |product: i32, c| {
                product.saturating_add(c as i32) as u32
            });
        }
    }
}

/// A B in f64.
#[inline(always)]
fn float_products(kind: MmaKind, a: &[Plane], b: &[Plane]) -> TileC<f64> {
    match kind.a() {
        Operand::F16 => {
            let decode = |word, at| f64::from(F16::widen((word >> (16 * at)) as u16));
            product(kind.k(), &gather_a::<_, 2>(a, decode), &gather_b::<_, 2>(b, decode))
        }
        Operand::Bf16 => {
            let decode = |word, at| f64::from(Bf16::widen((word >> (16 * at)) as u16));
            product(kind.k(), &gather_a::<_, 2>(a, decode), &gather_b::<_, 2>(b, decode))
        }
        // Only tf32 gets here: the integer types have integer accumulators.
        Operand::Tf32 | Operand::S8 | Operand::U8 => {
            let decode = |word, _| f64::from(f32::from_bits(word & !0x1fff));
            product(kind.k(), &gather_a::<_, 1>(a, decode), &gather_b::<_, 1>(b, decode))
        }
    }
}

/// A B in i32, which is large enough for 32 products of bytes.
#[inline(always)]
fn integer_products(kind: MmaKind, a: &[Plane], b: &[Plane]) -> TileC<i32> {
    // Shifting up and down extends the byte by its sign or by zeros.
    let byte = |signed: bool| {
        move |word: u32, at: u32| {
            let top = word << (24 - 8 * at);
            if signed { top as i32 >> 24 } else { (top >> 24) as i32 }
        }
    };
    let a = gather_a::<_, 4>(a, byte(kind.a() == Operand::S8));
    let b = gather_b::<_, 4>(b, byte(kind.b() == Operand::S8));
    product(kind.k(), &a, &b)
}

/// The elements of a register in all lanes, grouped by position. Each position has its own loop,
/// so that it vectorizes.
#[inline(always)]
fn decode_plane<T: Copy + Default, const PACKED: usize>(
    plane: &Plane,
    decode: impl Fn(u32, u32) -> T,
) -> [[T; LANES]; PACKED] {
    let mut elements = [[T::default(); LANES]; PACKED];
    for (position, elements) in elements.iter_mut().enumerate() {
        for (element, &word) in elements.iter_mut().zip(plane) {
            *element = decode(word, position as u32);
        }
    }
    elements
}

/// The tile of A. `decode` extracts the element at a position from a register.
#[inline(always)]
pub(super) fn gather_a<T: Copy + Default, const PACKED: usize>(
    planes: &[Plane],
    decode: impl Fn(u32, u32) -> T,
) -> TileA<T> {
    let mut tile = empty_a();
    for (register, plane) in planes.iter().enumerate() {
        let elements: [_; PACKED] = decode_plane(plane, &decode);
        for lane in 0..LANES {
            let (row, column) = a_position(lane, register, PACKED);
            for (offset, elements) in elements.iter().enumerate() {
                tile[row][column + offset] = elements[lane];
            }
        }
    }
    tile
}

/// The tile of B. `decode` extracts the element at a position from a register.
#[inline(always)]
fn gather_b<T: Copy + Default, const PACKED: usize>(
    planes: &[Plane],
    decode: impl Fn(u32, u32) -> T,
) -> TileB<T> {
    let mut tile = empty_b();
    for (register, plane) in planes.iter().enumerate() {
        let elements: [_; PACKED] = decode_plane(plane, &decode);
        for lane in 0..LANES {
            let (row, column) = b_position(lane, register, PACKED);
            for (offset, elements) in elements.iter().enumerate() {
                tile[row + offset][column] = elements[lane];
            }
        }
    }
    tile
}

/// The product of two tiles over the first `k` of the reduction dimension, in order.
#[inline(always)]
pub(super) fn product<T>(k: usize, a: &TileA<T>, b: &TileB<T>) -> TileC<T>
where
    T: Copy + Default + std::ops::AddAssign + std::ops::Mul<Output = T>,
{
    let mut sums = [[T::default(); COLUMNS]; ROWS];
    for (sums, a) in sums.iter_mut().zip(a) {
        for (&a, b) in a[..k].iter().zip(b) {
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    sums
}

/// A tile of zeros.
#[inline(always)]
pub(super) fn empty_a<T: Copy + Default>() -> TileA<T> {
    [[T::default(); MAX_K]; ROWS]
}

/// A tile of zeros.
#[inline(always)]
pub(super) fn empty_b<T: Copy + Default>() -> TileB<T> {
    [[T::default(); COLUMNS]; MAX_K]
}

/// Adds products to f32 accumulators.
#[inline(always)]
pub(super) fn add_accumulators(products: &TileC<f64>, d: &mut [Plane]) {
    // Lane 4g + t has columns 2t and 2t + 1 of row g: in row-major order, elements 2 lane and
    // 2 lane + 1 of eight rows. So written, the loop over lanes vectorizes.
    for (index, d) in d.iter_mut().enumerate() {
        let rows = &products[8 * (index / 2)..8 * (index / 2) + 8];
        let (pairs, _) = rows.as_flattened().as_chunks::<2>();
        for (d, pair) in d.iter_mut().zip(pairs) {
            let sum = pair[index % 2] + f64::from(f32::from_bits(*d));
            *d = canonical(sum as f32).to_bits();
        }
    }
}

/// Each 32-bit accumulator: `d = add(product, c)`.
#[inline(always)]
fn map_accumulators<T: Copy>(
    products: &TileC<T>,
    c: &[Plane],
    d: &mut [Plane],
    add: impl Fn(T, u32) -> u32,
) {
    for (index, (c, d)) in c.iter().zip(d).enumerate() {
        for lane in 0..LANES {
            let (row, column) = accumulator_position(lane, index);
            d[lane] = add(products[row][column], c[lane]);
        }
    }
}

/// Each 16-bit accumulator: `d = add(product, c)`.
#[inline(always)]
fn map_packed_accumulators(
    products: &TileC<f64>,
    c: &[Plane],
    d: &mut [Plane],
    add: impl Fn(f64, u16) -> u16,
) {
    for (register, (c, d)) in c.iter().zip(d).enumerate() {
        for lane in 0..LANES {
            let (row, column) = accumulator_position(lane, 2 * register);
            let [low, high] = unpack(c[lane]);
            let products = &products[row][column..column + 2];
            d[lane] = pack([add(products[0], low), add(products[1], high)]);
        }
    }
}

/// `mma.sync.aligned.m8n8k4.row.col.f64`: lane 4g + t holds `A[g][t]`, `B[t][g]` and the
/// accumulators `[g][2t]` and `[g][2t + 1]`. Each sum is a chain of fused multiply-adds starting at
/// C, in the order of k.
pub(crate) fn multiply_f64(
    a: &[f64; LANES],
    b: &[f64; LANES],
    c: [&[f64; LANES]; 2],
    d: [&mut [f64; LANES]; 2],
) {
    for (part, (c, d)) in c.into_iter().zip(d).enumerate() {
        for lane in 0..LANES {
            let (group, thread) = (lane / 4, lane % 4);
            let column = 2 * thread + part;
            d[lane] = (0..4).fold(c[lane], |sum, k| {
                let (a, b) = (a[4 * group + k], b[4 * column + k]);
                super::double::fma_f64(a, b, sum, super::exact::Rounding::Nearest)
            });
        }
    }
}
