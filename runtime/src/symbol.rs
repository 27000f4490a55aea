//! Writing an elementwise function down by running it once on symbols.
//!
//! What comes out is an [`Expression`]: small, without heap memory, a key by which kernels are kept.
//! Constants are not part of it but numbers beside it, so that another constant is not another
//! kernel.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::Number;
use crate::cpu::elementwise::Function;

/// The most steps that an expression has.
const MAX_STEPS: usize = 24;
/// The most constants that an expression has, 0 and 1 aside.
const MAX_CONSTANTS: usize = 4;

/// An elementwise function, step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Expression {
    steps: [Option<Step>; MAX_STEPS],
    result: Value,
}

impl Expression {
    /// The steps in the order of their computation.
    pub(crate) fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        self.steps.iter().map_while(|step| *step)
    }

    /// What the function returns.
    pub(crate) fn result(&self) -> Value {
        self.result
    }
}

/// A number that an expression knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    Zero,
    One,
    Operand(u8),
    Constant(u8),
    /// The result of a step.
    Step(u8),
}

/// One computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Unary(Unary, Value),
    Binary(Binary, Value, Value),
    /// The third where the comparison of the first two holds, else the fourth.
    Choose(Comparison, [Value; 4]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Unary {
    Neg,
    Sqrt,
    Abs,
    Exp,
    Ln,
    Sin,
    Cos,
    Tanh,
    Sigmoid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Comparison {
    Less,
    LessOrEqual,
    Equal,
}

/// The constants of an expression, in the order of their numbers.
pub(crate) type Constants = [f32; MAX_CONSTANTS];

/// A number that is not known yet.
#[derive(Clone, Copy)]
pub(crate) struct Symbol(Value);

#[derive(Clone, Copy)]
struct Recorder {
    steps: [Option<Step>; MAX_STEPS],
    steps_len: usize,
    constants: Constants,
    constants_len: usize,
}

thread_local! {
    static RECORDER: RefCell<Recorder> = const { RefCell::new(Recorder::NEW) };
}

impl Recorder {
    const NEW: Recorder = Recorder {
        steps: [None; MAX_STEPS],
        steps_len: 0,
        constants: [0.0; MAX_CONSTANTS],
        constants_len: 0,
    };
}

/// Writes `f` down: its expression, and its constants.
///
/// Functions are constants of the program: one with too many steps or constants is found by the
/// first call of its op, on any GPU.
pub(crate) fn record<const N: usize>(f: &impl Function<N>) -> (Expression, Constants) {
    RECORDER.set(Recorder::NEW);
    let operands = std::array::from_fn(|at| Symbol(Value::Operand(at as u8)));
    let Symbol(result) = f.value(operands);
    RECORDER.with_borrow(|recorder| {
        let expression = Expression {
            steps: recorder.steps,
            result,
        };
        (expression, recorder.constants)
    })
}

fn step(step: Step) -> Symbol {
    RECORDER.with_borrow_mut(|recorder| {
        let at = recorder.steps_len;
        recorder.steps[at] = Some(step);
        recorder.steps_len += 1;
        Symbol(Value::Step(at as u8))
    })
}

fn unary(operation: Unary, Symbol(x): Symbol) -> Symbol {
    step(Step::Unary(operation, x))
}

macro_rules! binary_operators {
    ($($operator:ident $function:ident),+) => {
        $(
            impl $operator for Symbol {
                type Output = Symbol;

                fn $function(self, other: Symbol) -> Symbol {
                    step(Step::Binary(Binary::$operator, self.0, other.0))
                }
            }
        )+
    };
}

binary_operators!(Add add, Sub sub, Mul mul, Div div);

impl Neg for Symbol {
    type Output = Symbol;

    fn neg(self) -> Symbol {
        unary(Unary::Neg, self)
    }
}

macro_rules! unary_functions {
    ($($function:ident $operation:ident),+) => {
        $(
            fn $function(self) -> Symbol {
                unary(Unary::$operation, self)
            }
        )+
    };
}

macro_rules! choices {
    ($($function:ident $comparison:ident),+) => {
        $(
            fn $function(self, other: Symbol, then: Symbol, otherwise: Symbol) -> Symbol {
                let values = [self.0, other.0, then.0, otherwise.0];
                step(Step::Choose(Comparison::$comparison, values))
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
            recorder.constants[at] = x as f32;
            recorder.constants_len += 1;
            Symbol(Value::Constant(at as u8))
        })
    }

    unary_functions!(
        sqrt Sqrt, abs Abs, exp Exp, ln Ln, sin Sin, cos Cos, tanh Tanh, sigmoid Sigmoid
    );
    choices!(if_lt Less, if_le LessOrEqual, if_eq Equal);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes an expression as a kernel would.
    fn evaluate(expression: &Expression, constants: &Constants, operands: &[f32]) -> f32 {
        let mut results = Vec::new();
        for step in expression.steps() {
            let of = |value: Value| value_of(value, operands, constants, &results);
            let result = match step {
                Step::Unary(operation, x) => apply(operation, of(x)),
                Step::Binary(Binary::Add, a, b) => of(a) + of(b),
                Step::Binary(Binary::Sub, a, b) => of(a) - of(b),
                Step::Binary(Binary::Mul, a, b) => of(a) * of(b),
                Step::Binary(Binary::Div, a, b) => of(a) / of(b),
                Step::Choose(comparison, values) => {
                    let [a, b, then, otherwise] = values.map(of);
                    let holds = match comparison {
                        Comparison::Less => a < b,
                        Comparison::LessOrEqual => a <= b,
                        Comparison::Equal => a == b,
                    };
                    if holds { then } else { otherwise }
                }
            };
            results.push(result);
        }
        value_of(expression.result(), operands, constants, &results)
    }

    fn value_of(value: Value, operands: &[f32], constants: &Constants, results: &[f32]) -> f32 {
        match value {
            Value::Zero => 0.0,
            Value::One => 1.0,
            Value::Operand(at) => operands[at as usize],
            Value::Constant(at) => constants[at as usize],
            Value::Step(at) => results[at as usize],
        }
    }

    fn apply(operation: Unary, x: f32) -> f32 {
        match operation {
            Unary::Neg => -x,
            Unary::Sqrt => Number::sqrt(x),
            Unary::Abs => Number::abs(x),
            Unary::Exp => Number::exp(x),
            Unary::Ln => Number::ln(x),
            Unary::Sin => Number::sin(x),
            Unary::Cos => Number::cos(x),
            Unary::Tanh => Number::tanh(x),
            Unary::Sigmoid => Number::sigmoid(x),
        }
    }

    struct Mixed;

    impl Function<2> for Mixed {
        fn value<W: Number>(&self, [a, b]: [W; 2]) -> W {
            let scaled = a * W::constant(0.3) - b / W::constant(-7.0);
            let bent =
                scaled.tanh() + (-a).exp().sqrt() + b.abs().sigmoid() + (b * b + W::ONE).ln();
            a.if_lt(
                b,
                bent * a.sin(),
                b.if_eq(a, W::ZERO, a.if_le(W::ONE, bent, b.cos())),
            )
        }
    }

    /// What was written down computes what was run, to the bit.
    #[test]
    fn expressions_equal_their_functions() {
        let (expression, constants) = record(&Mixed);
        let values = [-3.0, -0.5, 0.0, 0.7, 1.0, 12.0, f32::NAN, f32::INFINITY];
        for a in values {
            for b in values {
                let (by_steps, direct) = (
                    evaluate(&expression, &constants, &[a, b]),
                    Mixed.value([a, b]),
                );
                assert_eq!(by_steps.to_bits(), direct.to_bits(), "{a} {b}");
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
    fn another_constant_is_not_another_expression() {
        let ((two, twos), (three, threes)) = (record(&Scaled(2.0)), record(&Scaled(3.0)));
        assert_eq!(two, three);
        assert_eq!((twos[0], threes[0]), (2.0, 3.0));
    }
}
