//! Computations of maps: means, merged low-rank updates, dequantized blocks. All compute in f64 and
//! round once.

use std::ops::Range;

use crate::Dtype;
use crate::graph::{Compute, Operand, Scalar, TensorType};

/// The mean of tensors with the same type.
#[derive(Debug)]
pub(super) struct Mean;

/// weight [O, I] + scale * b [O, R] @ a [R, I] (Hu et al. 2021, LoRA), in the weight's dtype.
#[derive(Debug)]
pub(super) struct Lora {
    pub(super) scale: f64,
}

/// weight[i, j, ..] * scale[i / block, j / block, ..], to another dtype.
#[derive(Debug)]
pub(super) struct Dequant {
    pub(super) block: Vec<u64>,
    pub(super) dtype: Dtype,
}

fn check_floats(operands: &[TensorType]) -> Result<(), String> {
    let unreadable = |it: &&TensorType| Scalar::from_bits(it.0, 0).value().is_none();
    match operands.iter().find(unreadable) {
        Some((dtype, _)) => Err(format!("an operand is {dtype}, which is not a float type")),
        None => Ok(()),
    }
}

fn check_result(dtype: Dtype) -> Result<(), String> {
    match Scalar::nearest(dtype, 0.0) {
        Some(_) => Ok(()),
        None => Err(format!("the result cannot be {dtype}; it must be F64, F32, F16 or BF16")),
    }
}

/// An element of an operand. Index 0 is the first element of `operand.bytes`.
fn element(operand: &Operand<'_>, index: u64) -> f64 {
    let dtype = operand.tensor.0;
    let size = dtype.bits() / 8;
    let mut bits = [0; 8];
    let at = index as usize * size;
    bits[..size].copy_from_slice(&operand.bytes[at..at + size]);
    let scalar = Scalar::from_bits(dtype, u64::from_le_bytes(bits));
    scalar.value().unwrap_or(f64::NAN) // dtypes without values were rejected
}

/// Fills `out` with elements of `dtype`.
fn write(out: &mut [u8], dtype: Dtype, mut value: impl FnMut(u64) -> f64) {
    let size = dtype.bits() / 8;
    for (index, bytes) in (0..).zip(out.chunks_exact_mut(size)) {
        if let Some(scalar) = Scalar::nearest(dtype, value(index)) {
            bytes.copy_from_slice(&scalar.bits().to_le_bytes()[..size]);
        }
    }
}

fn product(extents: &[u64]) -> u64 {
    extents.iter().product()
}

impl Compute for Mean {
    fn name(&self) -> &'static str {
        "mean"
    }

    fn result(&self, operands: &[TensorType]) -> Result<TensorType, String> {
        check_floats(operands)?;
        let first = operands.first().ok_or("it needs a tensor")?;
        check_result(first.0)?;
        if let Some(other) = operands.iter().find(|it| *it != first) {
            let ((a, b), (c, d)) = (first, other);
            return Err(format!("operands differ: {a} {b:?} and {c} {d:?}"));
        }
        Ok(first.clone())
    }

    fn rows_of_operands(&self, rows: Range<u64>, operands: &[TensorType]) -> Vec<Range<u64>> {
        vec![rows; operands.len()]
    }

    fn compute(&self, _: Range<u64>, operands: &[Operand<'_>], out: &mut [u8]) {
        let count = operands.len() as f64;
        write(out, operands[0].tensor.0, |index| {
            operands.iter().map(|it| element(it, index)).sum::<f64>() / count
        });
    }
}

impl Compute for Lora {
    fn name(&self) -> &'static str {
        "lora"
    }

    fn result(&self, operands: &[TensorType]) -> Result<TensorType, String> {
        check_floats(operands)?;
        let [(dtype, weight), (_, a), (_, b)] = operands else {
            return Err(format!("expected the operands weight, a and b, found {}", operands.len()));
        };
        check_result(*dtype)?;
        match (&weight[..], &a[..], &b[..]) {
            ([o, i], [rank, a_i], [b_o, b_rank]) if (o, i, rank) == (b_o, a_i, b_rank) => {
                Ok(operands[0].clone())
            }
            _ => Err(format!(
                "weight [O, I], a [R, I] and b [O, R] do not fit: {weight:?}, {a:?}, {b:?}"
            )),
        }
    }

    fn rows_of_operands(&self, rows: Range<u64>, operands: &[TensorType]) -> Vec<Range<u64>> {
        vec![rows.clone(), 0..operands[1].1[0], rows]
    }

    fn compute(&self, _: Range<u64>, operands: &[Operand<'_>], out: &mut [u8]) {
        let [weight, a, b] = operands else {
            return;
        };
        let (inputs, rank) = (weight.tensor.1[1], a.tensor.1[0]);
        write(out, weight.tensor.0, |index| {
            let (row, column) = (index / inputs, index % inputs);
            let terms =
                (0..rank).map(|r| element(b, row * rank + r) * element(a, r * inputs + column));
            element(weight, index) + self.scale * terms.sum::<f64>()
        });
    }
}

impl Dequant {
    fn scales_shape(&self, weight: &[u64]) -> Vec<u64> {
        let extents = weight.iter().zip(&self.block);
        extents.map(|(extent, block)| extent.div_ceil(*block)).collect()
    }
}

impl Compute for Dequant {
    fn name(&self) -> &'static str {
        "dequant"
    }

    fn result(&self, operands: &[TensorType]) -> Result<TensorType, String> {
        check_floats(operands)?;
        check_result(self.dtype)?;
        let [(_, weight), (_, scales)] = operands else {
            return Err(format!(
                "expected the operands weight and scales, found {}",
                operands.len()
            ));
        };
        if weight.len() != self.block.len() || weight.is_empty() {
            return Err(format!(
                "weight {weight:?} and block {:?} have different numbers of dims",
                self.block
            ));
        }
        match self.scales_shape(weight) {
            expected if expected == *scales => Ok((self.dtype, weight.clone())),
            expected => Err(format!(
                "weight {weight:?} in blocks of {:?} needs scales {expected:?}, not {scales:?}",
                self.block
            )),
        }
    }

    fn rows_of_operands(&self, rows: Range<u64>, _: &[TensorType]) -> Vec<Range<u64>> {
        let block = self.block[0];
        let scales = rows.start / block..rows.end.div_ceil(block);
        vec![rows, scales]
    }

    fn compute(&self, rows: Range<u64>, operands: &[Operand<'_>], out: &mut [u8]) {
        let [weight, scales] = operands else {
            return;
        };
        let shape = &weight.tensor.1;
        let scales_shape = &scales.tensor.1;
        let row_elements = product(&shape[1..]);
        write(out, self.dtype, |index| {
            let (mut rest, mut at, mut stride) = (index % row_elements, 0, 1);
            for dim in (1..shape.len()).rev() {
                at += rest % shape[dim] / self.block[dim] * stride;
                stride *= scales_shape[dim];
                rest /= shape[dim];
            }
            let row = rows.start + index / row_elements;
            at += (row / self.block[0] - scales.rows.start) * stride;
            element(weight, index) * element(scales, at)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|it| it.to_le_bytes()).collect()
    }

    fn floats(bytes: &[u8]) -> Vec<f32> {
        let float = |it: &[u8]| f32::from_le_bytes([it[0], it[1], it[2], it[3]]);
        bytes.chunks_exact(4).map(float).collect()
    }

    /// Computes the result `at_a_time` rows at a time, from only the operand rows that these need.
    fn result(how: &dyn Compute, operands: &[(TensorType, Vec<u8>)], at_a_time: u64) -> Vec<u8> {
        let types: Vec<TensorType> = operands.iter().map(|(it, _)| it.clone()).collect();
        let (dtype, shape) = how.result(&types).unwrap();
        let row_bytes =
            |(dtype, shape): &TensorType| product(&shape[1..]) as usize * dtype.bits() / 8;
        let mut all = Vec::new();
        for start in (0..shape[0]).step_by(at_a_time as usize) {
            let rows = start..(start + at_a_time).min(shape[0]);
            let needed = how.rows_of_operands(rows.clone(), &types);
            let parts = operands.iter().zip(needed).map(|((tensor, bytes), rows)| {
                let size = row_bytes(tensor);
                let bytes = &bytes[rows.start as usize * size..rows.end as usize * size];
                Operand { tensor, rows, bytes }
            });
            let parts: Vec<Operand<'_>> = parts.collect();
            let size = row_bytes(&(dtype, shape.clone()));
            let mut out = vec![0; (rows.end - rows.start) as usize * size];
            how.compute(rows, &parts, &mut out);
            all.extend(out);
        }
        all
    }

    fn check(how: &dyn Compute, operands: &[(TensorType, Vec<u8>)], expected: &[f32]) {
        for at_a_time in [1, 2, 3, 100] {
            assert_eq!(floats(&result(how, operands, at_a_time)), expected, "{at_a_time}");
        }
    }

    #[test]
    fn mean_of_tensors() {
        let tensor = |values: &[f32]| ((Dtype::F32, vec![3, 1]), bytes(values));
        let operands = [tensor(&[1.0, 2.0, 3.0]), tensor(&[3.0, 5.0, -3.0])];
        check(&Mean, &operands, &[2.0, 3.5, 0.0]);
    }

    /// The expected values of weight + 2 b @ a are computed by hand.
    #[test]
    fn lora_adds_the_low_rank_product() {
        let weight = ((Dtype::F32, vec![2, 3]), bytes(&[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]));
        let a = ((Dtype::F32, vec![2, 3]), bytes(&[1.0, 2.0, 3.0, 0.5, 0.5, 0.5]));
        let b = ((Dtype::F32, vec![2, 2]), bytes(&[1.0, 0.0, 1.0, 2.0]));
        let how = Lora { scale: 2.0 };
        check(&how, &[weight, a, b], &[3.0, 5.0, 7.0, 4.0, 6.0, 8.0]);
    }

    /// Blocks of 2 x 3 over 5 x 4 elements, the last ones truncated: element (i, j) is 8-bit 1.0 or
    /// -2.0 times the scale of block (i / 2, j / 3).
    #[test]
    fn dequant_scales_blocks() {
        let weight: Vec<u8> = (0..20).map(|at| if at % 2 == 0 { 0x38 } else { 0xc0 }).collect();
        let weight = ((Dtype::F8E4M3, vec![5, 4]), weight);
        let scales = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0];
        let operands = [weight, ((Dtype::F32, vec![3, 2]), bytes(&scales))];
        let expected: Vec<f32> = (0..20)
            .map(|at| {
                let (i, j) = (at / 4, at % 4);
                let value = if at % 2 == 0 { 1.0 } else { -2.0 };
                value * scales[i / 2 * 2 + j / 3]
            })
            .collect();
        let how = Dequant { block: vec![2, 3], dtype: Dtype::F32 };
        check(&how, &operands, &expected);
    }

    #[test]
    fn mismatched_operands_are_rejected() {
        let f32 = |shape: &[u64]| (Dtype::F32, shape.to_vec());
        let dequant = |block: &[u64], dtype| Dequant { block: block.to_vec(), dtype };
        let blocks = dequant(&[2, 2], Dtype::BF16);
        let rejected = [
            Mean.result(&[f32(&[2]), f32(&[3])]),
            Mean.result(&[(Dtype::I8, vec![2])]),
            Mean.result(&[(Dtype::F8E4M3, vec![2])]),
            Lora { scale: 1.0 }.result(&[f32(&[2, 3]), f32(&[4, 3]), f32(&[2, 5])]),
            blocks.result(&[f32(&[4, 3]), f32(&[2, 1])]),
            blocks.result(&[f32(&[4]), f32(&[2])]),
            dequant(&[2], Dtype::I8).result(&[f32(&[4]), f32(&[2])]),
        ];
        assert_eq!(
            rejected.map(Result::unwrap_err),
            [
                "operands differ: F32 [2] and F32 [3]",
                "an operand is I8, which is not a float type",
                "the result cannot be F8_E4M3; it must be F64, F32, F16 or BF16",
                "weight [O, I], a [R, I] and b [O, R] do not fit: [2, 3], [4, 3], [2, 5]",
                "weight [4, 3] in blocks of [2, 2] needs scales [2, 2], not [2, 1]",
                "weight [4] and block [2, 2] have different numbers of dims",
                "the result cannot be I8; it must be F64, F32, F16 or BF16",
            ]
        );
    }
}
