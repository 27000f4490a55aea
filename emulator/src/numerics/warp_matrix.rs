//! The fragments and arithmetic of `wmma`: matrices with an opaque register layout.
//!
//! Implements PTX ISA, "Warp-level Matrix Instructions: wmma". The layout of fragments is
//! unspecified, except for the number of registers. Here, elements are numbered row by row;
//! register r of lane l holds the e = 32 / bits elements starting at e (32 r + l), lowest bits
//! first. f16 fragments have more registers than that requires; there the numbering starts over.
//!
//! Sums are computed as in [`super::tensor_core`]: exact products added in f64 in the order of k,
//! then the accumulator, and one rounding to nearest even.

use super::fragment::{LANES, Plane};
use super::half_precision::{Bf16, F16, Half};
use super::rounding::{canonical, narrow_to_odd};

/// The type of a matrix's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// `.f16`.
    F16,
    /// `.bf16`.
    Bf16,
    /// `.tf32`: an f32 whose low 13 bits are ignored.
    Tf32,
    /// `.s8`.
    S8,
    /// `.u8`.
    U8,
    /// `.f32`, of accumulators.
    F32,
    /// `.s32`, of accumulators.
    S32,
}

impl Element {
    /// Bytes in memory.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Element::S8 | Element::U8 => 1,
            Element::F16 | Element::Bf16 => 2,
            Element::Tf32 | Element::F32 | Element::S32 => 4,
        }
    }

    /// Elements per register.
    pub(crate) fn per_register(self) -> usize {
        4 / self.bytes()
    }

    /// The number that the low bits encode.
    fn decode(self, bits: u32) -> f64 {
        match self {
            Element::F16 => f64::from(F16::widen(bits as u16)),
            Element::Bf16 => f64::from(Bf16::widen(bits as u16)),
            Element::Tf32 => f64::from(f32::from_bits(bits & !0x1fff)),
            Element::S8 => f64::from(bits as i8),
            Element::U8 => f64::from(bits as u8),
            Element::F32 => f64::from(f32::from_bits(bits)),
            Element::S32 => f64::from(bits as i32),
        }
    }

    /// The bits of an accumulator. Integer sums are exact; they wrap around or saturate.
    fn encode(self, sum: f64, saturates: bool) -> u32 {
        match self {
            Element::F16 => u32::from(F16::narrow(narrow_to_odd(sum))),
            Element::S32 if saturates => sum as i32 as u32,
            Element::S32 => sum as i64 as u32,
            _ => canonical(sum as f32).to_bits(),
        }
    }
}

/// The extents of a product: an m x k matrix times a k x n matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// The role of a matrix in D = A B + C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    A,
    B,
    /// C or D.
    Accumulator,
}

/// A matrix in the registers of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) element: Element,
    /// Registers per lane.
    pub(crate) registers: usize,
}

impl Fragment {
    /// The fragment with these properties; `None` if PTX has none.
    pub(crate) fn new(shape: Shape, role: Role, element: Element) -> Option<Fragment> {
        let Shape { m, n, k } = shape;
        let (rows, columns) = match role {
            Role::A => (m, k),
            Role::B => (k, n),
            Role::Accumulator => (m, n),
        };
        let exists = match (role, element) {
            (Role::Accumulator, Element::F32) => true,
            (Role::Accumulator, Element::F16 | Element::S32) => k == 16,
            (Role::A | Role::B, Element::Tf32) => k == 8,
            (Role::A | Role::B, Element::F32 | Element::S32) => false,
            (Role::A | Role::B, _) => k == 16,
            (Role::Accumulator, _) => false,
        };
        let registers = match (role, element) {
            (Role::A | Role::B, Element::F16) => 8,
            _ => rows * columns / LANES / element.per_register(),
        };
        exists.then_some(Fragment { rows, columns, element, registers })
    }

    /// Row and column of element `part` of a lane's register.
    pub(crate) fn position(self, lane: usize, register: usize, part: usize) -> (usize, usize) {
        let index = (register * LANES + lane) * self.element.per_register() + part;
        let index = index % (self.rows * self.columns);
        (index / self.columns, index % self.columns)
    }

    /// The matrix's numbers, row by row.
    fn gather(self, planes: &[Plane]) -> Vec<f64> {
        let bits = 8 * self.element.bytes();
        let mut matrix = vec![0.0; self.rows * self.columns];
        for (register, plane) in planes.iter().enumerate() {
            for (lane, word) in plane.iter().enumerate() {
                for part in 0..self.element.per_register() {
                    let (row, column) = self.position(lane, register, part);
                    let number = self.element.decode(word >> (part * bits));
                    matrix[row * self.columns + column] = number;
                }
            }
        }
        matrix
    }

    /// The registers of an accumulator matrix.
    fn scatter(self, matrix: &[f64], saturates: bool) -> Vec<Plane> {
        let bits = 8 * self.element.bytes();
        let mut planes = vec![[0; LANES]; self.registers];
        for (register, plane) in planes.iter_mut().enumerate() {
            for (lane, word) in plane.iter_mut().enumerate() {
                for part in 0..self.element.per_register() {
                    let (row, column) = self.position(lane, register, part);
                    let number = matrix[row * self.columns + column];
                    *word |= self.element.encode(number, saturates) << (part * bits);
                }
            }
        }
        planes
    }
}

/// The fragments of D = A B + C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    pub(crate) a: Fragment,
    pub(crate) b: Fragment,
    pub(crate) c: Fragment,
    pub(crate) d: Fragment,
    /// `.satfinite`, for integers.
    pub(crate) saturates: bool,
}

impl Product {
    /// D's registers from those of A, B and C.
    pub(crate) fn multiply(&self, a: &[Plane], b: &[Plane], c: &[Plane]) -> Vec<Plane> {
        let (a, b, c) = (self.a.gather(a), self.b.gather(b), self.c.gather(c));
        let (inner, columns) = (self.a.columns, self.b.columns);
        let mut d = c;
        for (row, d) in d.chunks_mut(columns).enumerate() {
            for (column, d) in d.iter_mut().enumerate() {
                let products = (0..inner).map(|k| a[row * inner + k] * b[k * columns + column]);
                *d += products.sum::<f64>();
            }
        }
        self.d.scatter(&d, self.saturates)
    }

    /// Floating-point (or integer) operations; a multiply-add counts as two.
    pub(crate) fn operations(&self) -> u64 {
        2 * (self.a.rows * self.a.columns * self.b.columns) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element of the matrix occurs equally often in the fragment.
    #[test]
    fn fragments_hold_their_matrix() {
        for (m, n) in [(16, 16), (32, 8), (8, 32)] {
            let shape = Shape { m, n, k: 16 };
            for role in [Role::A, Role::B, Role::Accumulator] {
                for element in [Element::F16, Element::Bf16, Element::U8, Element::F32] {
                    let Some(fragment) = Fragment::new(shape, role, element) else {
                        continue;
                    };
                    let parts = element.per_register();
                    let mut held = vec![0; fragment.rows * fragment.columns];
                    for index in 0..LANES * fragment.registers * parts {
                        let (lane, part) = (index % LANES, index / LANES % parts);
                        let (row, column) = fragment.position(lane, index / LANES / parts, part);
                        held[row * fragment.columns + column] += 1;
                    }
                    assert!(held[0] > 0 && held.iter().all(|count| *count == held[0]));
                }
            }
        }
    }

    #[test]
    fn sums_of_integers_wrap_around_or_saturate() {
        let shape = Shape { m: 16, n: 16, k: 16 };
        let fragment = |role, element| Fragment::new(shape, role, element).unwrap();
        let mut product = Product {
            a: fragment(Role::A, Element::S8),
            b: fragment(Role::B, Element::U8),
            c: fragment(Role::Accumulator, Element::S32),
            d: fragment(Role::Accumulator, Element::S32),
            saturates: false,
        };
        let (a, b) = ([[0x8080_8080; LANES]; 2], [[0xffff_ffff; LANES]; 2]);
        let c = [[i32::MIN as u32; LANES]; 8];
        let sum = -128 * 255 * 16;
        let d = product.multiply(&a, &b, &c);
        assert_eq!(d, [[i32::MIN.wrapping_add(sum) as u32; LANES]; 8]);
        product.saturates = true;
        assert_eq!(product.multiply(&a, &b, &c), c);
        let c = [[3; LANES]; 8];
        assert_eq!(product.multiply(&a, &b, &c), [[(sum + 3) as u32; LANES]; 8]);
    }
}
