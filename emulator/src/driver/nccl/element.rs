//! The types of elements.

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
    F8E4m3,
    F8E5m2,
}

impl Element {
    const ALL: [(Element, &str, usize); 12] = [
        (Element::I8, "i8", 1),
        (Element::U8, "u8", 1),
        (Element::I32, "i32", 4),
        (Element::U32, "u32", 4),
        (Element::I64, "i64", 8),
        (Element::U64, "u64", 8),
        (Element::F16, "f16", 2),
        (Element::F32, "f32", 4),
        (Element::F64, "f64", 8),
        (Element::Bf16, "bf16", 2),
        (Element::F8E4m3, "e4m3", 1),
        (Element::F8E5m2, "e5m2", 1),
    ];

    pub(crate) fn of_code(code: i32) -> Option<Element> {
        Element::ALL.get(usize::try_from(code).ok()?).map(|(element, ..)| *element)
    }

    pub(crate) fn name(self) -> &'static str {
        Element::ALL[self as usize].1
    }

    /// The bytes of `count` elements; `usize::MAX` if they overflow.
    pub(crate) fn bytes_of(self, count: usize) -> usize {
        count.saturating_mul(Element::ALL[self as usize].2)
    }
}
