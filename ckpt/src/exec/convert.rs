//! Element conversions on the way to the target, mostly casts.

use half::{bf16, f16};

use crate::Dtype;
use crate::graph::{ElementOp, Scalar};
use crate::plan::Conversion;

/// Applies the operations to each element. Common casts have specialized loops with identical
/// results.
pub(super) fn convert(conversion: &Conversion, from: &[u8], to: &mut [u8]) {
    match (conversion.from, &conversion.steps[..]) {
        (Dtype::BF16, [ElementOp::Cast(Dtype::F32)]) => {
            each(from, to, |it| bf16::from_le_bytes(it).to_f32().to_le_bytes());
        }
        (Dtype::F16, [ElementOp::Cast(Dtype::F32)]) => {
            each(from, to, |it| f16::from_le_bytes(it).to_f32().to_le_bytes());
        }
        (Dtype::F32, [ElementOp::Cast(Dtype::BF16)]) => {
            each(from, to, |it| bf16::from_f32(f32::from_le_bytes(it)).to_le_bytes());
        }
        (Dtype::F64, [ElementOp::Cast(Dtype::F32)]) => {
            each(from, to, |it| (f64::from_le_bytes(it) as f32).to_le_bytes());
        }
        _ => one_by_one(conversion, from, to),
    }
}

fn each<const A: usize, const B: usize>(
    from: &[u8],
    to: &mut [u8],
    convert: impl Fn([u8; A]) -> [u8; B],
) {
    let (from, to) = (from.as_chunks::<A>().0, to.as_chunks_mut::<B>().0);
    for (from, to) in from.iter().zip(to) {
        *to = convert(*from);
    }
}

/// Any operations between any dtypes.
fn one_by_one(conversion: &Conversion, from: &[u8], to: &mut [u8]) {
    let size = conversion.from.bits() / 8;
    let count = from.len() / size;
    let to_size = to.len() / count.max(1);
    for (from, to) in from.chunks_exact(size).zip(to.chunks_exact_mut(to_size)) {
        let mut bits = [0; 8];
        bits[..size].copy_from_slice(from);
        let element = Scalar::from_bits(conversion.from, u64::from_le_bytes(bits));
        let step = |element: Scalar, step: &ElementOp| step.apply(element);
        // The graph has rejected operations that cannot be applied.
        if let Some(done) = conversion.steps.iter().try_fold(element, step) {
            to.copy_from_slice(&done.bits().to_le_bytes()[..to_size]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The specialized loops match the general one for every 16-bit number, and for 32- and 64-bit
    /// patterns across the whole range. All NaNs count as equal.
    #[test]
    fn specialized_loops_match_the_general_one() {
        let patterns = |size: usize| -> Vec<u8> {
            let count = 1u64 << 16;
            let bits = (0..count).map(|it| match size {
                2 => it << 48,
                _ => it.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (it << 47),
            });
            bits.flat_map(|it| it.to_le_bytes()[8 - size..].to_vec()).collect()
        };
        for (from, to) in [
            (Dtype::BF16, Dtype::F32),
            (Dtype::F16, Dtype::F32),
            (Dtype::F32, Dtype::BF16),
            (Dtype::F64, Dtype::F32),
        ] {
            let conversion = Conversion { from, steps: vec![ElementOp::Cast(to)] };
            let elements = patterns(from.bits() / 8);
            let size = to.bits() / 8;
            let (mut fast, mut general) = (vec![0; size << 16], vec![0; size << 16]);
            convert(&conversion, &elements, &mut fast);
            one_by_one(&conversion, &elements, &mut general);
            for (a, b) in fast.chunks(size).zip(general.chunks(size)) {
                let value = |bytes: &[u8]| {
                    let mut bits = [0; 8];
                    bits[..size].copy_from_slice(bytes);
                    Scalar::from_bits(to, u64::from_le_bytes(bits)).value().unwrap()
                };
                assert!(a == b || (value(a).is_nan() && value(b).is_nan()), "{from}: {a:?}, {b:?}");
            }
        }
    }
}
