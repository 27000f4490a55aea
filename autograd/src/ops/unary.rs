//! The elementwise functions of one operand that the runtime lists.

use meshgrad_runtime::{ops, unary_ops};

use crate::{Operand, Result, Save, Track};

/// Defines a differentiable op for each entry of the list. Its derivative uses the operand or the
/// result.
macro_rules! define {
    ($(
        $(#[$doc:meta])*
        $name:ident: $domain:ident = |$x:ident| $value:expr, flops $flops:literal;
        $grad:ident of $kept:ident = |$k:ident, $dy:ident| $slope:expr;
    )+) => {
        $(
            $(#[$doc])*
            ///
            /// # Shapes
            /// `x` any shape, f64, f32 or bf16; returns the same.
            ///
            /// # Errors
            /// As [`meshgrad_runtime::ops`].
            pub fn $name<V: Operand>(x: &V) -> Result<V> {
                let y = ops::$name(x.value())?;
                let saved = define!(@kept $kept, x, y).save();
                y.tracked([x], move |dy, [dx]| dx.add(|| ops::$grad(&saved.get()?, dy)))
            }
        )+

        /// The functions of [`meshgrad_runtime::ops::UNARY`], in the same order.
        pub fn unary<V: Operand>() -> Vec<fn(&V) -> Result<V>> {
            vec![$($name),+]
        }
    };

    (@kept x, $x:ident, $y:ident) => { $x };
    (@kept y, $x:ident, $y:ident) => { $y };
}

unary_ops!(define);

/// Exports the functions by name: they hide the runtime's, which are re-exported as a whole.
macro_rules! export {
    ($(
        $(#[$doc:meta])*
        $name:ident: $domain:ident = |$x:ident| $value:expr, flops $flops:literal;
        $grad:ident of $kept:ident = |$k:ident, $dy:ident| $slope:expr;
    )+) => {
        pub use $crate::ops::unary::{unary, $($name),+};
    };
}
pub(super) use export;
