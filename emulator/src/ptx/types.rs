//! The sizes of types and arrays (PTX ISA 5.2).

/// The element type of a variable: a fundamental type or a vector.
pub(super) struct Element {
    /// The name of the type, with its leading dot.
    pub(super) kind: String,
    pub(super) lanes: usize,
}

impl Element {
    /// Bytes per lane.
    pub(super) fn lane_bytes(&self) -> usize {
        bytes_of_type(&self.kind).unwrap_or_default()
    }

    pub(super) fn bytes(&self) -> usize {
        self.lanes * self.lane_bytes()
    }
}

/// Bytes of a fundamental type, given with its dot.
pub(crate) fn bytes_of_type(kind: &str) -> Option<usize> {
    Some(match kind {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" | ".tf32" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

/// Bytes of an array; `None` on overflow.
pub(super) fn bytes_of_extents(extents: &[Option<usize>], element: usize) -> Option<usize> {
    let extents = extents.iter().map(|extent| extent.unwrap_or(1));
    extents.into_iter().try_fold(element, usize::checked_mul)
}
