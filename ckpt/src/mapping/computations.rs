//! What maps compute: means, merged low-rank updates, dequantised blocks. In f64, rounded once.

use std::ops::Range;

use crate::Dtype;
use crate::graph::{Compute, Operand, Scalar, TensorType};

/// The mean of tensors of one type.
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
        Some((dtype, _)) => Err(format!("an operand is {dtype}, which is no float")),
        None => Ok(()),
    }
}

fn check_result(dtype: Dtype) -> Result<(), String> {
    match Scalar::nearest(dtype, 0.0) {
        Some(_) => Ok(()),
        None => Err(format!(
            "the result would be {dtype}; F64, F32, F16 and BF16 can be made"
        )),
    }
}

/// An element of an operand's bytes, counted from the first that is here.
fn element(operand: &Operand<'_>, index: u64) -> f64 {
    let dtype = operand.tensor.0;
    let size = dtype.bits() / 8;
    let mut bits = [0; 8];
    let at = index as usize * size;
    bits[..size].copy_from_slice(&operand.bytes[at..at + size]);
    let scalar = Scalar::from_bits(dtype, u64::from_le_bytes(bits));
    scalar.value().unwrap_or(f64::NAN) // dtypes without values were refused
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
            return Err(format!("operands are {a} {b:?} and {c} {d:?}"));
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
            return Err(format!(
                "it takes a weight, a and b, not {} operands",
                operands.len()
            ));
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
        extents
            .map(|(extent, block)| extent.div_ceil(*block))
            .collect()
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
                "it takes a weight and scales, not {} operands",
                operands.len()
            ));
        };
        if weight.len() != self.block.len() || weight.is_empty() {
            return Err(format!(
                "weight {weight:?} and block {:?} have other dims",
                self.block
            ));
        }
        match self.scales_shape(weight) {
            wanted if wanted == *scales => Ok((self.dtype, weight.clone())),
            wanted => Err(format!(
                "weight {weight:?} in blocks of {:?} has scales {wanted:?}, not {scales:?}",
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
