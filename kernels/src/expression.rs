//! Expressions of elementwise kernels. They are plain data; expressions with the same operations
//! are equal.
//!
//! ```
//! use meshgrad_kernels::expression::Expression;
//!
//! let (gate, up) = (Expression::operand(0), Expression::operand(1));
//! let swiglu = &gate * gate.sigmoid() * up;
//! assert_eq!(swiglu.to_string(), "times_times_x0_sigmoid_x0_x1");
//! ```
//!
//! The set of operations is minimal. A function that others can express, such as a square or a
//! maximum, has no operation of its own.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::sync::Arc;

/// A function of corresponding elements of all operands, computed in f32.
///
/// Every operation rounds to nearest even; none are fused. Cloning is cheap and shares
/// subexpressions. Hashing is cheap too, because every launch looks up a kernel by its expression.
#[derive(Clone, PartialEq, Eq)]
pub struct Expression(Arc<Root>);

/// The outermost operation, and facts about the whole expression.
#[derive(PartialEq, Eq)]
struct Root {
    /// The hash of the node; first, so that different expressions rarely compare nodes.
    digest: u64,
    operations: usize,
    instructions: usize,
    operands: usize,
    scalars: usize,
    node: Node,
}

/// One operation of an [`Expression`].
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Node {
    /// The element of an operand.
    Operand(u8),
    /// An f32 constant, stored as its bits.
    Constant(u32),
    /// An f32 given at launch.
    Scalar(u8),
    /// A function of one value.
    Unary(Unary, Expression),
    /// A function of two values.
    Binary(Binary, Expression, Expression),
    /// 1 if the comparison is true, otherwise 0.
    Compare(Comparison, Expression, Expression),
    /// The second value if the first is not 0, otherwise the third.
    Select(Expression, Expression, Expression),
}

/// Defines an enum of functions, and a method of [`Expression`] for each.
macro_rules! functions {
    (
        $(#[$doc:meta])* $family:ident = $node:ident;
        $($(#[$function_doc:meta])* $function:ident $method:ident $other:tt;)+
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $family {
            $($(#[$function_doc])* $function,)+
        }

        impl $family {
            /// All variants.
            pub const ALL: &[$family] = &[$($family::$function),+];

            /// Its name, which is also the name of its method.
            pub fn name(self) -> &'static str {
                match self {
                    $($family::$function => stringify!($method),)+
                }
            }
        }

        impl Expression {
            $(functions! { @method $(#[$function_doc])* $method $other $node($family::$function) })+
        }
    };

    (@method $(#[$doc:meta])* $method:ident () $node:ident($function:path)) => {
        $(#[$doc])*
        pub fn $method(&self) -> Expression {
            Node::$node($function, self.clone()).into()
        }
    };

    (@method $(#[$doc:meta])* $method:ident (y) $node:ident($function:path)) => {
        $(#[$doc])*
        pub fn $method(&self, y: impl Into<Expression>) -> Expression {
            Node::$node($function, self.clone(), y.into()).into()
        }
    };
}

functions! {
    /// A function of one value.
    Unary = Unary;
    /// -x.
    Neg neg ();
    /// |x|.
    Abs abs ();
    /// The square root, correctly rounded.
    Sqrt sqrt ();
    /// e^x; see [`exp`](crate::elementary::exp).
    Exp exp ();
    /// The natural logarithm; see [`ln`](crate::elementary::ln).
    Ln ln ();
    /// The sine of an angle in radians; see [`sin`](crate::elementary::sin).
    Sin sin ();
    /// The cosine of an angle in radians; see [`cos`](crate::elementary::cos).
    Cos cos ();
    /// The hyperbolic tangent; see [`tanh`](crate::elementary::tanh).
    Tanh tanh ();
    /// 1 / (1 + e^-x); see [`sigmoid`](crate::elementary::sigmoid).
    Sigmoid sigmoid ();
    /// The error function; see [`erf`](crate::elementary::erf).
    Erf erf ();
}

functions! {
    /// A function of two values.
    Binary = Binary;
    /// x + y.
    Add plus (y);
    /// x - y.
    Sub minus (y);
    /// x * y.
    Mul times (y);
    /// x / y, correctly rounded.
    Div over (y);
}

functions! {
    /// A comparison, which returns 1 or 0. All but `Ne` return 0 if either value is NaN.
    Comparison = Compare;
    /// x == y, as 1 or 0.
    Eq equals (y);
    /// x != y, as 1 or 0.
    Ne differs (y);
    /// x < y, as 1 or 0.
    Lt lt (y);
    /// x <= y, as 1 or 0.
    Le le (y);
    /// x > y, as 1 or 0.
    Gt gt (y);
    /// x >= y, as 1 or 0.
    Ge ge (y);
}

impl Expression {
    /// The element of the operand `index`, from 0.
    pub fn operand(index: u8) -> Expression {
        Node::Operand(index).into()
    }

    /// A constant in the kernel's code.
    pub fn constant(value: f32) -> Expression {
        Node::Constant(value.to_bits()).into()
    }

    /// The scalar `index`, from 0, that is given at launch.
    pub fn scalar(index: u8) -> Expression {
        Node::Scalar(index).into()
    }

    /// `a` if self is not 0, otherwise `b`.
    pub fn select(&self, a: impl Into<Expression>, b: impl Into<Expression>) -> Expression {
        Node::Select(self.clone(), a.into(), b.into()).into()
    }

    /// The outermost operation.
    pub fn node(&self) -> &Node {
        &self.0.node
    }

    /// The arguments of the outermost operation.
    pub fn arguments(&self) -> impl Iterator<Item = &Expression> {
        self.node().arguments()
    }

    /// The number of operations. Shared operations are counted once per use.
    pub(crate) fn operations(&self) -> usize {
        self.0.operations
    }

    /// The estimated number of instructions per element.
    pub(crate) fn instructions(&self) -> usize {
        self.0.instructions
    }

    /// The number of operands: one more than the largest index of one.
    pub(crate) fn operands(&self) -> usize {
        self.0.operands
    }

    /// The number of scalars: one more than the largest index of one.
    pub(crate) fn scalars(&self) -> usize {
        self.0.scalars
    }

    /// Whether the expression reads the operand `index`.
    pub(crate) fn reads(&self, index: usize) -> bool {
        match self.node() {
            Node::Operand(at) => usize::from(*at) == index,
            _ => self.arguments().any(|argument| argument.reads(index)),
        }
    }

    /// Whether the result is 0 where the first `count` operands are 0, whatever the other values are.
    /// Elements outside a row are such operands.
    pub(crate) fn is_zero_without(&self, count: usize) -> bool {
        match self.node() {
            Node::Operand(index) => usize::from(*index) < count,
            Node::Binary(Binary::Add | Binary::Sub | Binary::Mul, a, b) => {
                a.is_zero_without(count) && b.is_zero_without(count)
            }
            _ => false,
        }
    }
}

impl Node {
    fn arguments(&self) -> impl Iterator<Item = &Expression> {
        let arguments = match self {
            Node::Operand(_) | Node::Constant(_) | Node::Scalar(_) => [None, None, None],
            Node::Unary(_, a) => [Some(a), None, None],
            Node::Binary(_, a, b) | Node::Compare(_, a, b) => [Some(a), Some(b), None],
            Node::Select(a, b, c) => [Some(a), Some(b), Some(c)],
        };
        arguments.into_iter().flatten()
    }
}

impl From<Node> for Expression {
    fn from(node: Node) -> Expression {
        let mut digest = DefaultHasher::new();
        node.hash(&mut digest);
        let instructions = match node {
            Node::Unary(Unary::Neg | Unary::Abs | Unary::Sqrt, _) => 1,
            Node::Unary(..) => 24,
            _ => 1,
        };
        let (operands, scalars) = match node {
            Node::Operand(index) => (usize::from(index) + 1, 0),
            Node::Scalar(index) => (0, usize::from(index) + 1),
            _ => (0, 0),
        };
        let mut root =
            Root { digest: digest.finish(), operations: 1, instructions, operands, scalars, node };
        for Expression(argument) in root.node.arguments() {
            // Sharing makes exponentially large trees from few allocations.
            root.operations = root.operations.saturating_add(argument.operations);
            root.instructions = root.instructions.saturating_add(argument.instructions);
            root.operands = root.operands.max(argument.operands);
            root.scalars = root.scalars.max(argument.scalars);
        }
        Expression(Arc::new(root))
    }
}

impl Hash for Expression {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.digest.hash(state);
    }
}

impl From<&Expression> for Expression {
    fn from(expression: &Expression) -> Expression {
        expression.clone()
    }
}

impl From<f32> for Expression {
    fn from(value: f32) -> Expression {
        Expression::constant(value)
    }
}

/// Rounds to f32, so that a literal works as an operand.
impl From<f64> for Expression {
    fn from(value: f64) -> Expression {
        Expression::constant(value as f32)
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident = $named:ident;)+) => {
        $(
            impl<R: Into<Expression>> $trait<R> for &Expression {
                type Output = Expression;

                fn $method(self, other: R) -> Expression {
                    self.$named(other)
                }
            }

            impl<R: Into<Expression>> $trait<R> for Expression {
                type Output = Expression;

                fn $method(self, other: R) -> Expression {
                    self.$named(other)
                }
            }
        )+
    };
}

operators! {
    Add add = plus;
    Sub sub = minus;
    Mul mul = times;
    Div div = over;
}

impl Neg for Expression {
    type Output = Expression;

    fn neg(self) -> Expression {
        Node::Unary(Unary::Neg, self).into()
    }
}

impl Neg for &Expression {
    type Output = Expression;

    fn neg(self) -> Expression {
        Node::Unary(Unary::Neg, self.clone()).into()
    }
}

/// Formats the expression in prefix notation, which needs no parentheses: `times_x0_sigmoid_x0`. It
/// is a part of the kernel's name.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node() {
            Node::Operand(index) => write!(f, "x{index}")?,
            Node::Constant(bits) => write!(f, "c{bits:08x}")?,
            Node::Scalar(index) => write!(f, "s{index}")?,
            Node::Unary(function, _) => f.write_str(function.name())?,
            Node::Binary(function, ..) => f.write_str(function.name())?,
            Node::Compare(comparison, ..) => f.write_str(comparison.name())?,
            Node::Select(..) => f.write_str("select")?,
        }
        self.arguments().try_for_each(|argument| write!(f, "_{argument}"))
    }
}

/// The longest text of expressions in a kernel's name.
const MAX_NAME: usize = 64;

/// The text of expressions for a kernel's name: itself, or the FNV-1a digest (64 bits) of a long one.
pub(crate) fn short_name(text: String) -> String {
    if text.len() <= MAX_NAME {
        return text;
    }
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{digest:016x}")
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expressions are cache keys: equal expressions compare equal, however they were built.
    #[test]
    fn equal_expressions_are_equal_keys() {
        let build = || {
            let x = Expression::operand(0);
            (&x * 2.0 + x.sigmoid()).select(1.0, Expression::scalar(0))
        };
        assert_eq!(build(), build());
        assert_eq!(build().to_string(), "select_plus_times_x0_c40000000_sigmoid_x0_c3f800000_s0");
    }

    #[test]
    fn long_names_are_digests() {
        assert_eq!(short_name("x0".to_owned()), "x0");
        let long = |end: &str| short_name("plus_".repeat(20) + end);
        assert_eq!(long("x0").len(), 16);
        assert_eq!(long("x0"), long("x0"));
        assert_ne!(long("x0"), long("x1"));
    }

    #[test]
    fn constants_differ_by_their_bits() {
        assert_ne!(Expression::constant(0.0), Expression::constant(-0.0));
        assert_eq!(Expression::constant(f32::NAN), Expression::constant(f32::NAN));
    }

    #[test]
    fn shared_operations_are_counted_once_per_use() {
        assert_eq!((Expression::operand(0) + 1.0).operations(), 3);
        let mut x = Expression::operand(0);
        for _ in 0..200 {
            x = &x * &x;
        }
        assert_eq!(x.operations(), usize::MAX);
    }
}
