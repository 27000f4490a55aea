//! Conversions between number types, and bit casts.

use super::{F32, F64, Register, S32, S64, U32, U64};

impl<'k> F32<'k> {
    /// Its bits.
    #[track_caller]
    pub fn to_bits(self) -> U32<'k> {
        self.k.compute("mov.b32", &[&self])
    }

    /// Converted to f64, exactly.
    #[track_caller]
    pub fn to_f64(self) -> F64<'k> {
        self.k.compute("cvt.f64.f32", &[&self])
    }

    /// The integer part as u32, saturating; 0 for NaN.
    #[track_caller]
    pub fn to_u32(self) -> U32<'k> {
        self.k.compute("cvt.rzi.u32.f32", &[&self])
    }
}

impl<'k> F64<'k> {
    /// Its bits.
    #[track_caller]
    pub fn to_bits(self) -> U64<'k> {
        self.k.compute("mov.b64", &[&self])
    }

    /// Rounded to f32, to nearest even.
    #[track_caller]
    pub fn to_f32(self) -> F32<'k> {
        self.k.compute("cvt.rn.f32.f64", &[&self])
    }
}

impl<'k> U32<'k> {
    /// Extended to 64 bits.
    #[track_caller]
    pub fn wide(self) -> U64<'k> {
        self.k.compute("cvt.u64.u32", &[&self])
    }

    /// As f32, rounded to nearest even.
    #[track_caller]
    pub fn to_f32(self) -> F32<'k> {
        self.k.compute("cvt.rn.f32.u32", &[&self])
    }

    /// The float with these bits.
    #[track_caller]
    pub fn to_f32_bits(self) -> F32<'k> {
        self.k.compute("mov.b32", &[&self])
    }

    /// The same bits, signed. No instruction.
    pub fn signed(self) -> S32<'k> {
        Register::new(self.k, self.id)
    }
}

impl<'k> S32<'k> {
    /// As f32, rounded to nearest even.
    #[track_caller]
    pub fn to_f32(self) -> F32<'k> {
        self.k.compute("cvt.rn.f32.s32", &[&self])
    }

    /// Extended to 64 bits.
    #[track_caller]
    pub fn wide(self) -> S64<'k> {
        self.k.compute("cvt.s64.s32", &[&self])
    }

    /// The same bits, unsigned. No instruction.
    pub fn unsigned(self) -> U32<'k> {
        Register::new(self.k, self.id)
    }
}

impl<'k> U64<'k> {
    /// The lower 32 bits.
    #[track_caller]
    pub fn low(self) -> U32<'k> {
        self.k.compute("cvt.u32.u64", &[&self])
    }

    /// The f64 with these bits.
    #[track_caller]
    pub fn to_f64_bits(self) -> F64<'k> {
        self.k.compute("mov.b64", &[&self])
    }

    /// The same bits, signed. No instruction.
    pub fn signed(self) -> S64<'k> {
        Register::new(self.k, self.id)
    }
}

impl<'k> S64<'k> {
    /// As f64, rounded to nearest even.
    #[track_caller]
    pub fn to_f64(self) -> F64<'k> {
        self.k.compute("cvt.rn.f64.s64", &[&self])
    }

    /// As f32, rounded to nearest even.
    #[track_caller]
    pub fn to_f32(self) -> F32<'k> {
        self.k.compute("cvt.rn.f32.s64", &[&self])
    }

    /// The same bits, unsigned. No instruction.
    pub fn unsigned(self) -> U64<'k> {
        Register::new(self.k, self.id)
    }
}
