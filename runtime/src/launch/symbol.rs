//! Tracing: runs an elementwise function once with symbols, and records the [`Expression`] that a
//! kernel is generated from.
//!
//! Constants become kernel arguments, so that functions that differ only in constants share a
//! kernel. The recorded operations are the cache key of the expression: after the first call,
//! tracing allocates no heap memory.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::ops::{Add, Div, Mul, Neg, Sub};

use hashbrown::HashMap;
use meshgrad_error::{Result, bail};
use meshgrad_kernels::expression::{Binary, Comparison, Expression, Node, Unary};

use crate::{Function, Number};

/// The maximum number of operations of a function.
const MAX_STEPS: usize = 24;
/// The maximum number of constants of a function, not counting 0 and 1.
const MAX_CONSTANTS: usize = 8;

/// The constants of a function, which are scalar arguments of its expression.
pub(crate) type Constants = [f32; MAX_CONSTANTS];

/// A symbolic number.
#[derive(Clone, Copy)]
pub(crate) struct Symbol(Value);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Zero,
    One,
    Operand(u8),
    Constant(u8),
    Step(u8),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Unary(Unary, Value),
    Binary(Binary, Value, Value),
    /// `Choose(comparison, [a, b, c, d])` is c if the comparison of a and b is true, and d
    /// otherwise.
    Choose(Comparison, [Value; 4]),
}

/// Hashes one word, because every launch looks up its steps.
impl Hash for Step {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let bytes = match *self {
            Step::Unary(function, x) => [0, function as u8, x.code(), 0, 0, 0, 0, 0],
            Step::Binary(function, a, b) => [1, function as u8, a.code(), b.code(), 0, 0, 0, 0],
            Step::Choose(comparison, values) => {
                let [a, b, c, d] = values.map(Value::code);
                [2, comparison as u8, a, b, c, d, 0, 0]
            }
        };
        state.write_u64(u64::from_le_bytes(bytes));
    }
}

/// The operations of a function, in order.
#[derive(Clone, Copy)]
struct Steps {
    steps: [Step; MAX_STEPS],
    len: usize,
    result: Value,
}

impl Steps {
    const NONE: Steps = Steps {
        steps: [Step::Unary(Unary::Neg, Value::Zero); MAX_STEPS],
        len: 0,
        result: Value::Zero,
    };

    fn taken(&self) -> &[Step] {
        &self.steps[..self.len]
    }

    fn expression(&self) -> Expression {
        let mut results: Vec<Expression> = Vec::with_capacity(self.len);
        for step in self.taken() {
            let of = |value: Value| value.expression(&results);
            let result = match *step {
                Step::Unary(function, x) => Node::Unary(function, of(x)),
                Step::Binary(function, a, b) => Node::Binary(function, of(a), of(b)),
                Step::Choose(comparison, [a, b, then, otherwise]) => {
                    let holds = Node::Compare(comparison, of(a), of(b));
                    Node::Select(holds.into(), of(then), of(otherwise))
                }
            };
            results.push(result.into());
        }
        self.result.expression(&results)
    }
}

impl PartialEq for Steps {
    fn eq(&self, other: &Steps) -> bool {
        self.taken() == other.taken() && self.result == other.result
    }
}

impl Eq for Steps {}

impl Hash for Steps {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for step in self.taken() {
            step.hash(state);
        }
        state.write_u8(self.result.code());
    }
}

impl Value {
    /// A byte for hashing. Up to 64 values of a kind have different ones.
    fn code(self) -> u8 {
        match self {
            Value::Zero => 0,
            Value::One => 1,
            Value::Operand(at) => at ^ 0x40,
            Value::Constant(at) => at ^ 0x80,
            Value::Step(at) => at ^ 0xc0,
        }
    }

    fn expression(self, results: &[Expression]) -> Expression {
        match self {
            Value::Zero => Expression::constant(0.0),
            Value::One => Expression::constant(1.0),
            Value::Operand(at) => Expression::operand(at),
            Value::Constant(at) => Expression::scalar(at),
            Value::Step(at) => results[usize::from(at)].clone(),
        }
    }
}

struct Recorder {
    steps: Steps,
    constants: Constants,
    constants_len: usize,
    /// What exceeded its limit, and the limit.
    refused: Option<(&'static str, usize)>,
}

impl Recorder {
    fn refuse(&mut self, what: &'static str, limit: usize) -> Symbol {
        self.refused = Some((what, limit));
        Symbol(Value::Zero)
    }
}

thread_local! {
    static RECORDER: RefCell<Recorder> = const {
        RefCell::new(Recorder {
            steps: Steps::NONE,
            constants: [0.0; MAX_CONSTANTS],
            constants_len: 0,
            refused: None,
        })
    };

    static TRACED: RefCell<HashMap<Steps, Expression>> = RefCell::default();
}

/// The trace of a function whose type is not known, so that plans are compiled once for all.
pub(crate) type Trace<'a> = &'a dyn Fn() -> Result<(Expression, Constants)>;

/// Traces `f`: returns its expression, and the values of its scalar arguments.
///
/// # Errors
/// For more than [`MAX_STEPS`] operations or [`MAX_CONSTANTS`] constants.
pub(crate) fn trace<const N: usize>(f: &impl Function<N>) -> Result<(Expression, Constants)> {
    let mut tracer = Tracer::new();
    let expression = tracer.expression(|| f.value(operands(0)))?;
    Ok((expression, tracer.constants()))
}

/// The operands of an expression from `first` on.
pub(crate) fn operands<const N: usize>(first: usize) -> [Symbol; N] {
    std::array::from_fn(|at| Symbol(Value::Operand((first + at) as u8)))
}

/// Traces functions that share the scalar arguments of one kernel. One tracer is in use at a time.
pub(crate) struct Tracer(());

impl Tracer {
    pub(crate) fn new() -> Tracer {
        RECORDER.with_borrow_mut(|recorder| recorder.constants_len = 0);
        Tracer(())
    }

    /// The expression that `f` computes from [`operands`].
    ///
    /// # Errors
    /// As for [`trace`].
    pub(crate) fn expression(&mut self, f: impl FnOnce() -> Symbol) -> Result<Expression> {
        RECORDER.with_borrow_mut(|recorder| {
            recorder.steps.len = 0;
            recorder.refused = None;
        });
        let Symbol(result) = f();
        recorded(result)
    }

    /// The values of the scalar arguments.
    pub(crate) fn constants(&self) -> Constants {
        RECORDER.with_borrow(|recorder| recorder.constants)
    }
}

fn recorded(result: Value) -> Result<Expression> {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some((what, limit)) = recorder.refused.take() {
            bail!(
                Unsupported,
                "elementwise: {} {what}, but the limit is {limit}; split the call",
                limit + 1
            );
        }
        recorder.steps.result = result;
        let steps = &recorder.steps;
        let expression = TRACED.with_borrow_mut(|traced| match traced.get(steps) {
            Some(expression) => expression.clone(),
            None => traced.entry(*steps).or_insert_with_key(Steps::expression).clone(),
        });
        Ok(expression)
    })
}

fn take(step: Step) -> Symbol {
    RECORDER.with_borrow_mut(|recorder| {
        let steps = &mut recorder.steps;
        if steps.len == MAX_STEPS {
            return recorder.refuse("steps", MAX_STEPS);
        }
        steps.steps[steps.len] = step;
        steps.len += 1;
        Symbol(Value::Step((steps.len - 1) as u8))
    })
}

macro_rules! binary_operators {
    ($($operator:ident $function:ident),+) => {
        $(
            impl $operator for Symbol {
                type Output = Symbol;

                fn $function(self, other: Symbol) -> Symbol {
                    take(Step::Binary(Binary::$operator, self.0, other.0))
                }
            }
        )+
    };
}

binary_operators!(Add add, Sub sub, Mul mul, Div div);

impl Neg for Symbol {
    type Output = Symbol;

    fn neg(self) -> Symbol {
        take(Step::Unary(Unary::Neg, self.0))
    }
}

macro_rules! functions {
    ($($function:ident $name:ident),+) => {
        $(
            fn $function(self) -> Symbol {
                take(Step::Unary(Unary::$name, self.0))
            }
        )+
    };
}

macro_rules! choices {
    ($($function:ident $comparison:ident),+) => {
        $(
            fn $function(self, other: Symbol, then: Symbol, otherwise: Symbol) -> Symbol {
                let values = [self.0, other.0, then.0, otherwise.0];
                take(Step::Choose(Comparison::$comparison, values))
            }
        )+
    };
}

impl Number for Symbol {
    const ZERO: Symbol = Symbol(Value::Zero);
    const ONE: Symbol = Symbol(Value::One);

    fn constant(x: f64) -> Symbol {
        RECORDER.with_borrow_mut(|recorder| {
            let at = recorder.constants_len;
            if at == MAX_CONSTANTS {
                return recorder.refuse("constants", MAX_CONSTANTS);
            }
            recorder.constants[at] = x as f32;
            recorder.constants_len += 1;
            Symbol(Value::Constant(at as u8))
        })
    }

    functions!(
        sqrt Sqrt, abs Abs, exp Exp, ln Ln, sin Sin, cos Cos, tanh Tanh, sigmoid Sigmoid,
        erf Erf
    );
    choices!(if_lt Lt, if_le Le, if_eq Eq);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates an expression as a kernel would.
    fn evaluate(expression: &Expression, scalars: &Constants, operands: &[f32]) -> f32 {
        let of = |expression: &Expression| evaluate(expression, scalars, operands);
        match expression.node() {
            Node::Operand(at) => operands[usize::from(*at)],
            Node::Constant(bits) => f32::from_bits(*bits),
            Node::Scalar(at) => scalars[usize::from(*at)],
            Node::Unary(function, x) => unary(*function, of(x)),
            Node::Binary(Binary::Add, a, b) => of(a) + of(b),
            Node::Binary(Binary::Sub, a, b) => of(a) - of(b),
            Node::Binary(Binary::Mul, a, b) => of(a) * of(b),
            Node::Binary(Binary::Div, a, b) => of(a) / of(b),
            Node::Compare(Comparison::Lt, a, b) => f32::from(of(a) < of(b)),
            Node::Compare(Comparison::Le, a, b) => f32::from(of(a) <= of(b)),
            Node::Compare(Comparison::Eq, a, b) => f32::from(of(a) == of(b)),
            Node::Select(condition, a, b) if of(condition) != 0.0 => of(a),
            Node::Select(_, _, b) => of(b),
            other => panic!("tracing does not record this operation: {}", {
                Expression::from(other.clone())
            }),
        }
    }

    fn unary(function: Unary, x: f32) -> f32 {
        match function {
            Unary::Neg => -x,
            Unary::Sqrt => Number::sqrt(x),
            Unary::Abs => Number::abs(x),
            Unary::Exp => Number::exp(x),
            Unary::Ln => Number::ln(x),
            Unary::Sin => Number::sin(x),
            Unary::Cos => Number::cos(x),
            Unary::Tanh => Number::tanh(x),
            Unary::Sigmoid => Number::sigmoid(x),
            Unary::Erf => Number::erf(x),
        }
    }

    struct Mixed;

    impl Function<2> for Mixed {
        fn value<W: Number>(&self, [a, b]: [W; 2]) -> W {
            let scaled = a * W::constant(0.3) - b / W::constant(-7.0);
            let bent =
                scaled.tanh() + (-a).exp().sqrt() + b.abs().sigmoid() + (b * b + W::ONE).ln();
            let inside = b.if_eq(a, W::ZERO, a.if_le(W::ONE, bent, b.cos()));
            a.if_lt(b, bent * a.sin() + a.erf(), inside)
        }
    }

    /// An expression computes the same bits as its function. The sign of a NaN is left open.
    #[test]
    fn expressions_equal_their_functions() {
        let bits = |x: f32| if x.is_nan() { f32::NAN } else { x }.to_bits();
        let (expression, constants) = trace(&Mixed).unwrap();
        let values = [-3.0, -0.5, 0.0, 0.7, 1.0, 12.0, f32::NAN, f32::INFINITY];
        for a in values {
            for b in values {
                let written = evaluate(&expression, &constants, &[a, b]);
                let direct = Mixed.value([a, b]);
                assert_eq!(bits(written), bits(direct), "{a} {b}");
            }
        }
    }

    struct Scaled(f64);

    impl Function<1> for Scaled {
        fn value<W: Number>(&self, [x]: [W; 1]) -> W {
            W::constant(self.0) * x
        }
    }

    #[test]
    fn functions_that_differ_only_in_constants_share_an_expression() {
        let (two, twos) = trace(&Scaled(2.0)).unwrap();
        let (three, threes) = trace(&Scaled(3.0)).unwrap();
        assert_eq!(two, three);
        assert_eq!((twos[0], threes[0]), (2.0, 3.0));
    }

    /// The given number of additions, and the given number of unused constants.
    struct Long(usize, usize);

    impl Function<1> for Long {
        fn value<W: Number>(&self, [x]: [W; 1]) -> W {
            (0..self.1).for_each(|at| {
                let _ = W::constant(at as f64);
            });
            (0..self.0).fold(x, |sum, _| sum + x)
        }
    }

    #[test]
    fn a_function_that_is_too_long_is_rejected() {
        assert!(trace(&Long(MAX_STEPS, MAX_CONSTANTS)).is_ok());
        let message = |long| trace(&long).unwrap_err().to_string();
        assert_eq!(
            message(Long(MAX_STEPS + 9, 0)),
            "elementwise: 25 steps, but the limit is 24; split the call"
        );
        assert_eq!(
            message(Long(1, MAX_CONSTANTS + 1)),
            "elementwise: 9 constants, but the limit is 8; split the call"
        );
        assert!(trace(&Mixed).is_ok());
    }
}
