//! Finds values that are not finite while they are in host memory.

use meshgrad_error::{Result, ensure};
use meshgrad_runtime::{DType, Tensor};

/// Elements that are checked without a branch.
const BATCH: usize = 256;

/// Fails if `bytes`, contiguous little-endian elements of `tensor`, contain NaN or an infinity.
pub(crate) fn check(name: &str, tensor: &Tensor, bytes: &[u8]) -> Result<()> {
    let is_finite = match tensor.dtype() {
        DType::BF16 => {
            all(bytes, |element: &[u8; 2]| u16::from_le_bytes(*element) & 0x7f80 != 0x7f80)
        }
        DType::F32 => all(bytes, |element: &[u8; 4]| {
            u32::from_le_bytes(*element) & 0x7f80_0000 != 0x7f80_0000
        }),
        _ => true,
    };
    ensure!(is_finite, NotFinite, "`{}` has values that are not finite", name.escape_debug());
    Ok(())
}

/// Whether every element of `N` bytes is finite.
fn all<const N: usize>(bytes: &[u8], is_finite: impl Fn(&[u8; N]) -> bool) -> bool {
    let mut batches = bytes.as_chunks().0.chunks(BATCH);
    batches.all(|batch| batch.iter().fold(true, |all, element| all & is_finite(element)))
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use meshgrad_runtime::{Device, Kind};

    use super::*;

    /// A value that is not finite is found at any position of any length.
    #[test]
    fn every_position_is_checked() {
        let device = Device::cpu();
        for length in [1, 2, BATCH, BATCH + 1, 3 * BATCH + 5] {
            for position in [0, length / 2, length - 1] {
                for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.0] {
                    let tensor = |dtype| Tensor::zeros(&device, &[length], dtype, Kind::Parameter);
                    let mut values = vec![1.5f32; length];
                    values[position] = value;
                    let f32s: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
                    let found = check("w", &tensor(DType::F32).unwrap(), &f32s);
                    assert_eq!(found.is_ok(), value.is_finite(), "{value} at {position}");

                    let halves = values.iter().map(|it| bf16::from_f32(*it));
                    let expected = halves.clone().all(bf16::is_finite);
                    let halves: Vec<u8> = halves.flat_map(bf16::to_le_bytes).collect();
                    let found = check("w", &tensor(DType::BF16).unwrap(), &halves);
                    assert_eq!(found.is_ok(), expected, "{value} at {position}");
                }
            }
        }
    }
}
