//! Writing a rank's region of a tensor to its position in the shared file.

use std::ops::Range;

use meshgrad_error::{Result, bail};

use crate::{SharedFile, TensorInfo};

/// Writes a region of a tensor, given as dense row-major bytes, to the file that will contain the
/// whole tensor: one write per contiguous range. An empty region writes nothing.
///
/// # Errors
/// For a region outside the tensor, data of another size, and elements that share bytes with
/// another region; errors of [`SharedFile::write_at`].
pub fn write_region(
    file: &SharedFile,
    tensor: &TensorInfo,
    region: &[Range<u64>],
    bytes: &[u8],
) -> Result<()> {
    let runs = Runs::of(tensor, region).filter(|runs| runs.total == bytes.len() as u64);
    let Some(runs) = runs else {
        bail!(
            Invalid,
            "cannot write {} bytes as region {region:?} of tensor `{}` of shape {:?}: it must lie \
             inside the tensor and start and end at whole bytes, and the data must match its size",
            bytes.len(),
            tensor.name.escape_debug(),
            tensor.shape
        );
    };
    if bytes.is_empty() {
        return Ok(());
    }
    let (mut rest, mut done) = (bytes, Ok(()));
    runs.each(|offset| {
        let (run, after) = rest.split_at(runs.run as usize);
        rest = after;
        if done.is_ok() {
            done = file.write_at(tensor.range.start + offset, run);
        }
    });
    done
}

/// A region as contiguous byte ranges of its tensor.
struct Runs {
    /// Bytes per range.
    run: u64,
    /// Bytes of all ranges.
    total: u64,
    start: u64,
    /// Count and distance in bytes, the outermost first.
    loops: Vec<(u64, u64)>,
}

impl Runs {
    fn of(tensor: &TensorInfo, region: &[Range<u64>]) -> Option<Runs> {
        let extents: Vec<u64> = tensor.shape.iter().map(|extent| *extent as u64).collect();
        let inside =
            |(range, extent): (&Range<u64>, &u64)| range.start <= range.end && range.end <= *extent;
        if region.len() != extents.len() || !region.iter().zip(&extents).all(inside) {
            return None;
        }
        // In bits, to distinguish elements smaller than a byte from whole bytes.
        let bits = tensor.dtype.bits() as u64;
        let (mut run, mut start, mut stride) = (bits, 0, bits);
        let mut loops = Vec::new();
        for (range, extent) in region.iter().zip(&extents).rev() {
            let count = range.end - range.start;
            start += range.start * stride;
            match run == stride {
                true => run *= count,
                false => loops.push((count, stride / 8)),
            }
            stride *= extent;
        }
        let whole = [run, start].iter().all(|it| it.is_multiple_of(8));
        loops.reverse();
        let iterations: u64 = loops.iter().map(|it| it.0).product();
        whole.then_some(Runs { run: run / 8, total: run / 8 * iterations, start: start / 8, loops })
    }

    /// Calls `f` with the first offset of each range, in order.
    fn each(&self, mut f: impl FnMut(u64)) {
        fn nested(loops: &[(u64, u64)], offset: u64, f: &mut impl FnMut(u64)) {
            match loops {
                [] => f(offset),
                [(count, stride), inner @ ..] => {
                    (0..*count).for_each(|iteration| nested(inner, offset + iteration * stride, f));
                }
            }
        }
        nested(&self.loops, self.start, &mut f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    fn runs(dtype: Dtype, shape: &[usize], region: &[Range<u64>]) -> Option<(u64, Vec<u64>)> {
        let tensor = TensorInfo { name: "x".into(), dtype, shape: shape.to_vec(), range: 0..0 };
        let runs = Runs::of(&tensor, region)?;
        let mut starts = Vec::new();
        runs.each(|start| starts.push(start));
        assert_eq!(runs.total, runs.run * starts.len() as u64);
        Some((runs.run, starts))
    }

    #[test]
    fn regions_become_the_longest_possible_ranges() {
        let f32 = |region: &[Range<u64>]| runs(Dtype::F32, &[4, 3, 5], region).unwrap();
        assert_eq!(f32(&[0..4, 0..3, 0..5]), (240, vec![0]));
        assert_eq!(f32(&[1..3, 0..3, 0..5]), (120, vec![60]));
        assert_eq!(f32(&[1..3, 1..3, 0..5]), (40, vec![80, 140]));
        assert_eq!(f32(&[2..3, 0..2, 1..3]), (8, vec![124, 144]));
        assert_eq!(runs(Dtype::F32, &[], &[]), Some((4, vec![0])));
        assert_eq!(runs(Dtype::F4, &[2, 4], &[1..2, 0..4]), Some((2, vec![2])));
        assert_eq!(runs(Dtype::F4, &[2, 4], &[0..2, 1..2]), None);
        assert_eq!(runs(Dtype::U8, &[2, 1], &[1..3, 0..1]), None);
    }
}
