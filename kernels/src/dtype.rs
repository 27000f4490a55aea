//! The number formats that kernels read and write.

/// A floating-point format in memory. Kernels compute in f32 whichever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// The upper 16 bits of an f32.
    Bf16,
}

impl Dtype {
    /// Bytes of an element.
    pub fn size(self) -> u32 {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        }
    }

    /// Its name, as in the names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
        }
    }

    /// How many elements 16 bytes hold, the most that a thread moves at once.
    pub fn per_vector(self) -> u32 {
        16 / self.size()
    }
}
