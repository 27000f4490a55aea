//! Typed registers, and the operands of instructions.

use std::fmt;
use std::marker::PhantomData;

use super::Kernel;

/// A virtual register of type `T`. Exactly one instruction writes it, except for a [`Variable`].
///
/// [`Variable`]: super::Variable
pub struct Register<'k, T> {
    pub(super) k: &'k Kernel,
    pub(super) id: u32,
    scalar: PhantomData<T>,
}

/// An f32.
pub type F32<'k> = Register<'k, f32>;
/// An f64.
pub type F64<'k> = Register<'k, f64>;
/// An unsigned 32-bit integer.
pub type U32<'k> = Register<'k, u32>;
/// A signed 32-bit integer.
pub type S32<'k> = Register<'k, i32>;
/// An unsigned 64-bit integer.
pub type U64<'k> = Register<'k, u64>;
/// A signed 64-bit integer.
pub type S64<'k> = Register<'k, i64>;
/// A predicate: the result of a comparison, the condition of a branch.
pub type Pred<'k> = Register<'k, bool>;
/// One bf16 in 16 bits.
pub type B16<'k> = Register<'k, Bf16>;
/// Two bf16 in 32 bits, the one with the lower address in the lower half.
pub type Pair<'k> = Register<'k, Bf16x2>;

/// The type of [`B16`]: the bits of one bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bf16(pub u16);

/// The type of [`Pair`]: the bits of two bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bf16x2(pub u32);

/// A register type.
pub trait Scalar: Copy + sealed::Sealed {
    /// Its register class; types of one class and size share register names.
    #[doc(hidden)]
    const CLASS: Class;
    /// The suffix of instructions that move its bits.
    #[doc(hidden)]
    const BITS: &'static str;

    /// The value in PTX syntax.
    #[doc(hidden)]
    fn immediate(self) -> String;
}

/// A class of register names, `%f1` and so on.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Pred,
    B16,
    B32,
    B64,
    F32,
    F64,
}

impl Class {
    pub(super) const ALL: [Class; 6] =
        [Class::Pred, Class::B16, Class::B32, Class::B64, Class::F32, Class::F64];

    /// The prefix of its register names, and its type in declarations.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Class::Pred => ("%p", "pred"),
            Class::B16 => ("%h", "b16"),
            Class::B32 => ("%r", "b32"),
            Class::B64 => ("%rd", "b64"),
            Class::F32 => ("%f", "f32"),
            Class::F64 => ("%fd", "f64"),
        }
    }
}

macro_rules! scalars {
    ($($type:ty: $class:ident, $bits:literal, |$value:ident| $immediate:expr;)+) => {
        $(
            impl sealed::Sealed for $type {}

            impl Scalar for $type {
                const CLASS: Class = Class::$class;
                const BITS: &'static str = $bits;

                fn immediate(self) -> String {
                    let $value = self;
                    $immediate
                }
            }
        )+
    };
}

// PTX writes an exact float as its bits: 0f3F800000.
scalars! {
    bool: Pred, "pred", |x| u8::from(x).to_string();
    Bf16: B16, "b16", |x| format!("0x{:04X}", x.0);
    Bf16x2: B32, "b32", |x| format!("0x{:08X}", x.0);
    u32: B32, "b32", |x| x.to_string();
    i32: B32, "b32", |x| x.to_string();
    u64: B64, "b64", |x| x.to_string();
    i64: B64, "b64", |x| x.to_string();
    f32: F32, "f32", |x| format!("0f{:08X}", x.to_bits());
    f64: F64, "f64", |x| format!("0d{:016X}", x.to_bits());
}

mod sealed {
    pub trait Sealed {}
}

/// An operand that an instruction reads: a register, a variable or a constant of type `T`.
pub trait Operand<T: Scalar>: Copy {
    /// The operand in PTX syntax.
    #[doc(hidden)]
    fn written(self) -> String;
}

impl<T: Scalar> Operand<T> for T {
    fn written(self) -> String {
        self.immediate()
    }
}

impl<T: Scalar> Operand<T> for Register<'_, T> {
    fn written(self) -> String {
        self.to_string()
    }
}

impl<'k, T> Register<'k, T> {
    pub(super) fn new(k: &'k Kernel, id: u32) -> Self {
        let scalar = PhantomData;
        Register { k, id, scalar }
    }

    /// The kernel it belongs to.
    pub fn kernel(self) -> &'k Kernel {
        self.k
    }
}

impl<T> Clone for Register<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Register<'_, T> {}

impl<T: Scalar> fmt::Display for Register<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", T::CLASS.names().0, self.id)
    }
}

impl<T: Scalar> fmt::Debug for Register<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
