//! 64-bit keys that sort elements by value.
//!
//! The upper 32 bits hold the value as an integer that preserves its order. 0 and -0 are equal, and
//! NaN is greater than every number. The lower 32 bits hold the inverted index, so of equal values
//! the first has the largest key. The keys of a row are distinct, so the maximum does not depend on
//! the order of comparisons.

use crate::assembler::{F32, Pred, U32, U64};

/// Less than the key of every element.
pub(crate) const NONE: u64 = 0;

/// The key of an element if it `exists`, otherwise [`NONE`]. Larger values have larger keys.
#[track_caller]
pub(crate) fn key<'k>(value: F32<'k>, index: U32<'k>, exists: Pred<'k>) -> U64<'k> {
    let k = value.kernel();
    let without_negative_zero = value + 0.0;
    let bits = without_negative_zero.to_bits();

    // The bits of positive floats have the order of the floats, those of negative floats the
    // reverse.
    let flipped = (bits.signed() >> 31).unsigned() | 0x8000_0000;
    let order = bits ^ flipped;
    let order = value.differs(value).select(u32::MAX, order);
    let key = k.compute("mov.b64", &[&format_args!("{{{}, {order}}}", !index)]);
    exists.select(key, NONE)
}

/// The index of the element with this key.
#[track_caller]
pub(crate) fn index_of(key: U64<'_>) -> U32<'_> {
    !key.low()
}
