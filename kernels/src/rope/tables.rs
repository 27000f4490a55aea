//! Cosine and sine tables of the angles of all positions.
//!
//! Angles, cosines and sines are computed in f64 and rounded to f32 once; an f32 angle would be off
//! by 0.03 radians at position one million. An angle below 2^50 is reduced to r = angle - n pi / 2
//! with |r| <= pi / 4. The constant pi / 2 is the sum of three f64. Subtracting n times the first
//! is exact: the angle and the product are multiples of 2^-53, and the difference is below 1. The
//! other two parts correct the rest.

use crate::assembler::{
    F64, GlobalAddress, In, Kernel, Launch, Out, Ptx, S32, S64, Target, U32, Variant,
};
use crate::params;

/// Threads per CTA, one pair each.
const THREADS: u32 = 256;

/// Adding and subtracting 1.5 * 2^52 rounds to the nearest integer, which is then in the low bits
/// of the sum.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// From this magnitude on, an f64 has at most two fraction bits, so an angle is meaningless.
const LARGEST_ANGLE: f64 = (1u64 << 50) as f64;

/// pi / 2 in three parts, each an f64.
const HALF_PI: [f64; 3] =
    [std::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17, -1.497_384_904_859_169_8e-33];

/// sin(r) = r + r^3 q(r^2) on |r| <= pi / 4, by Taylor's series: error below 2^-53.
const SIN_TAIL: [f64; 7] = [
    -1.0 / 6.0,
    1.0 / 120.0,
    -1.0 / 5_040.0,
    1.0 / 362_880.0,
    -1.0 / 39_916_800.0,
    1.0 / 6_227_020_800.0,
    -1.0 / 1_307_674_368_000.0,
];

/// cos(r) = 1 - r^2 / 2 + r^4 q(r^2), likewise.
const COS_TAIL: [f64; 7] = [
    1.0 / 24.0,
    -1.0 / 720.0,
    1.0 / 40_320.0,
    -1.0 / 3_628_800.0,
    1.0 / 479_001_600.0,
    -1.0 / 87_178_291_200.0,
    1.0 / 20_922_789_888_000.0,
];

/// The format of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PositionFormat {
    /// Signed, 64 bits.
    I64,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
}

impl PositionFormat {
    /// All variants.
    pub const ALL: [PositionFormat; 3] =
        [PositionFormat::I64, PositionFormat::I32, PositionFormat::U32];

    fn name(self) -> &'static str {
        match self {
            PositionFormat::I64 => "i64",
            PositionFormat::I32 => "i32",
            PositionFormat::U32 => "u32",
        }
    }

    #[track_caller]
    fn load<'k>(self, positions: GlobalAddress<'k>, index: U32<'k>) -> S64<'k> {
        match self {
            PositionFormat::I64 => positions.element::<i64>(index).load(),
            PositionFormat::I32 => {
                let position: S32<'k> = positions.element::<i32>(index).load();
                position.wide()
            }
            PositionFormat::U32 => {
                let position: U32<'k> = positions.element::<u32>(index).load();
                position.wide().signed()
            }
        }
    }
}

/// cos and sin of position * inv_freq, both times a factor. Angles of 2^50 or more count as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeTables {
    positions: PositionFormat,
}

impl RopeTables {
    /// Maximum number of elements of a table.
    pub const MAX_ELEMENTS: u32 = u32::MAX - THREADS;

    /// The kernel for positions of this format.
    pub fn new(positions: PositionFormat) -> RopeTables {
        RopeTables { positions }
    }

    /// The launch over tables of `elements` elements; `None` if there are no elements.
    pub fn launch(&self, elements: u32) -> Option<Launch> {
        Launch::new([elements.div_ceil(THREADS), 1, 1], THREADS)
    }
}

params! {
    /// Arguments of [`RopeTables`].
    pub struct RopeTablesArguments => Call {
        /// \[R\] of the kernel's format.
        positions: In,
        /// \[H\] of f32.
        inv_freq: In,
        /// \[R, H\] of f32.
        cos: Out,
        /// \[R, H\] of f32.
        sin: Out,
        /// R H.
        elements: u32,
        /// H.
        pairs: u32,
        /// Factor of cosines and sines.
        factor: f64,
    }
}

impl Variant for RopeTables {
    type Arguments = RopeTablesArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { positions, inv_freq, cos, sin, elements, pairs, factor } = self.parameters(k);

        let element = k.cta().mad(THREADS, k.thread());
        k.if_(element.lt(elements), || {
            let row = element / pairs;
            let pair = element - row * pairs;
            let position = self.positions.load(positions, row).to_f64();
            let inv_freq = inv_freq.element::<f32>(pair).load::<f32>().to_f64();
            let [cosine, sine] = cos_and_sin(position * inv_freq);

            let store = |table: GlobalAddress<'_>, value: F64<'_>| {
                table.element::<f32>(element).store((value * factor).to_f32());
            };
            store(cos, cosine);
            store(sin, sine);
        });
        k.finish()
    }

    fn entry(&self) -> String {
        format!("rope_tables_{}", self.positions.name())
    }
}

/// Cosine and sine of `angle`, or of 0 if its magnitude is [`LARGEST_ANGLE`] or more.
#[track_caller]
fn cos_and_sin(angle: F64<'_>) -> [F64<'_>; 2] {
    let one = angle.kernel().constant(1.0_f64);
    let angle = angle.abs().lt(LARGEST_ANGLE).select(angle, 0.0);

    let rounded = angle.fma(std::f64::consts::FRAC_2_PI, ROUND);
    let n = rounded - ROUND;
    let r = HALF_PI.iter().fold(angle, |r, part| n.fma(-part, r));
    let r2 = r * r;
    let sine = (r * r2).fma(polynomial(r2, &SIN_TAIL), r);
    let cosine = (r2 * r2).fma(polynomial(r2, &COS_TAIL), r2.fma(-0.5, one));

    // The two low bits of n: a quarter turn swaps sine and cosine, a half turn negates both.
    let quadrant = rounded.to_bits().low();
    let odd = (quadrant & 1).differs(0);
    [
        with_sign_in(quadrant + 1, odd.select(sine, cosine)),
        with_sign_in(quadrant, odd.select(cosine, sine)),
    ]
}

/// Negates `value` in the third and the fourth quadrant.
#[track_caller]
fn with_sign_in<'k>(quadrant: U32<'k>, value: F64<'k>) -> F64<'k> {
    let sign = (quadrant & 2).wide() << 62;
    (value.to_bits() ^ sign).to_f64_bits()
}

/// c[0] + c[1] x + c[2] x^2 + ..., by Horner's rule.
#[track_caller]
fn polynomial<'k>(x: F64<'k>, coefficients: &[f64]) -> F64<'k> {
    let zero = x.kernel().constant(0.0_f64);
    let highest_first = coefficients.iter().rev();
    highest_first.fold(zero, |sum, c| sum.fma(x, *c))
}
