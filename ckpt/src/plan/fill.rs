//! Constant elements of targets: padding and fills.

use super::copy::ByteLoop;
use super::request::Target;
use crate::graph::{ElementCopy, ElementOp, Scalar};

/// One element, written to many positions of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) target: u32,
    /// The first byte in the target.
    pub(crate) to: u64,
    /// The bytes of the element.
    pub(crate) element: Vec<u8>,
    /// The loops; the source strides are unused.
    pub(crate) loops: Vec<ByteLoop>,
}

impl Fill {
    pub(super) fn new(element_copy: &ElementCopy, value: Scalar, target: &Target) -> Fill {
        let step = |element: Scalar, step: &ElementOp| step.apply(element);
        let value = element_copy.steps.iter().try_fold(value, step).unwrap_or(value);
        // Constants are floats of whole bytes.
        let size = target.dtype.bits() as u64 / 8;
        let loops = element_copy.loops.iter().map(|it| ByteLoop {
            count: it.count,
            from: 0,
            to: it.destination_stride * size,
        });
        Fill {
            target: target.index as u32,
            to: element_copy.destination_offset * size,
            element: value.bits().to_le_bytes()[..size as usize].to_vec(),
            loops: loops.collect(),
        }
    }

    /// The number of bytes that it writes.
    pub(crate) fn bytes(&self) -> u64 {
        let iterations = self.loops.iter().map(|it| it.count);
        iterations.product::<u64>() * self.element.len() as u64
    }
}
