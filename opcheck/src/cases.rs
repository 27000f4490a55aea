//! Cases for every differentiable op, to check its values and its gradients. The tests and
//! `meshgrad check` run them.

mod compositions;
mod inputs;
mod table;

use meshgrad_autograd::{Error, Result, Var};
use meshgrad_error::error;
use meshgrad_runtime::op_cases::{OpCase, small};
use meshgrad_runtime::{DType, Device, Tensor};

use inputs::Inputs;

/// An op as a function of its float inputs and its other operands.
pub type Function = Box<dyn Fn(&[Var], &[Tensor]) -> Result<Vec<Var>>>;

/// An op with inputs.
pub struct Case {
    /// The op, and what is special about the inputs.
    pub name: &'static str,
    /// The op.
    pub function: Function,
    /// The inputs at which it is checked.
    pub inputs: Vec<Tensor>,
    /// Operands without a gradient, such as indices and tables.
    pub constants: Vec<Tensor>,
    /// Positions of inputs that are weights; their gradients are accumulated in f32.
    pub weights: &'static [usize],
}

impl Case {
    /// An op of float inputs only, none of which is a weight.
    pub fn new(
        name: &'static str,
        inputs: Vec<Tensor>,
        function: impl Fn(&[Var]) -> Result<Vec<Var>> + 'static,
    ) -> Case {
        Case {
            name,
            function: Box::new(move |inputs, _| function(inputs)),
            inputs,
            constants: Vec::new(),
            weights: &[],
        }
    }

    /// The op at `inputs`.
    ///
    /// # Errors
    /// Errors of the op.
    pub fn run(&self, inputs: &[Var]) -> Result<Vec<Var>> {
        (self.function)(inputs, &self.constants)
    }
}

/// The cases of every op on `device`, with inputs of `dtype`. Inputs are the same on all devices,
/// up to rounding.
///
/// # Errors
/// When memory runs out.
pub fn all(device: &Device, dtype: DType) -> Result<Vec<Case>> {
    at(&Inputs { device, dtype, rounded_to: dtype })
}

/// The reference for `all(_, dtype)`: the same cases at the same rounded inputs, in f64 on the CPU.
///
/// # Errors
/// When memory runs out.
pub fn exact(dtype: DType) -> Result<Vec<Case>> {
    at(&Inputs { device: &Device::cpu(), dtype: DType::F64, rounded_to: dtype })
}

fn at(inputs: &Inputs<'_>) -> Result<Vec<Case>> {
    let mut cases = Cases { table: small(inputs)?, dtype: inputs.dtype, cases: Vec::new() };
    table::ops_of_the_table(&mut cases)?;
    compositions::compositions(inputs, &mut cases)?;
    Ok(cases.cases)
}

/// The cases so far.
struct Cases {
    /// The table of ops, whose operands are the inputs and constants of cases.
    table: Vec<OpCase>,
    /// The dtype of inputs.
    dtype: DType,
    cases: Vec<Case>,
}

impl Cases {
    /// Adds a case with the operands of the table's case `name`: the first `N` operands of floats
    /// are inputs, the others constants.
    fn op<const N: usize, const C: usize, R: Outputs>(
        &mut self,
        name: &'static str,
        function: impl Fn(&[Var; N], &[Tensor; C]) -> Result<R> + 'static,
    ) -> Result<&mut Case> {
        let case = self.table.iter().find(|case| case.name == name);
        let case = case.ok_or_else(|| invalid(name, "the table of ops has no such case".into()))?;
        let (mut inputs, mut constants) = (Vec::new(), Vec::new());
        for operand in &case.operands {
            match operand.dtype() == self.dtype && inputs.len() < N {
                true => inputs.push(operand.clone()),
                false => constants.push(operand.clone()),
            }
        }
        self.push(name, inputs, constants, function)
    }

    /// Adds a case of ops that are called together, or at special inputs.
    fn composed<const N: usize, const C: usize, R: Outputs>(
        &mut self,
        name: &'static str,
        inputs: [Tensor; N],
        constants: [Tensor; C],
        function: impl Fn(&[Var; N], &[Tensor; C]) -> Result<R> + 'static,
    ) -> Result<&mut Case> {
        self.push(name, inputs.into(), constants.into(), function)
    }

    fn push<const N: usize, const C: usize, R: Outputs>(
        &mut self,
        name: &'static str,
        inputs: Vec<Tensor>,
        constants: Vec<Tensor>,
        function: impl Fn(&[Var; N], &[Tensor; C]) -> Result<R> + 'static,
    ) -> Result<&mut Case> {
        array::<_, N>(name, "inputs", &inputs)?;
        array::<_, C>(name, "constants", &constants)?;
        let function = move |vars: &[Var], constants: &[Tensor]| {
            let vars = array(name, "inputs", vars)?;
            let constants = array(name, "constants", constants)?;
            Ok(function(vars, constants)?.list())
        };
        self.cases.push(Case {
            name,
            function: Box::new(function),
            inputs,
            constants,
            weights: &[],
        });
        Ok(self.cases.last_mut().unwrap_or_else(|| unreachable!()))
    }
}

/// All `N` elements.
fn array<'a, T, const N: usize>(
    name: &'static str,
    what: &str,
    elements: &'a [T],
) -> Result<&'a [T; N]> {
    let problem = || format!("{} {what}; the case takes {N}", elements.len());
    elements.try_into().map_err(|_| invalid(name, problem()))
}

fn invalid(op: &'static str, problem: String) -> Error {
    error!(Invalid, "{op}: {problem}")
}

/// What a function on variables returns.
trait Outputs {
    fn list(self) -> Vec<Var>;
}

impl Outputs for Var {
    fn list(self) -> Vec<Var> {
        vec![self]
    }
}

impl Outputs for (Var, Var) {
    fn list(self) -> Vec<Var> {
        vec![self.0, self.1]
    }
}

#[cfg(test)]
mod tests {
    use meshgrad_autograd::{Save, Tape, Tolerance, Track, gradcheck, weighted_roots};

    use std::collections::BTreeSet;

    use meshgrad_runtime::op_cases::Source;
    use meshgrad_runtime::ops as runtime;

    use super::*;

    /// Ops that only the case `experts` calls.
    const OF_EXPERTS: [&str; 2] = ["permute_tokens", "unpermute_tokens"];

    /// An op has a gradient if there is an op named after it and `_grad`.
    #[test]
    fn every_op_with_a_gradient_has_a_case() {
        let cases = all(&Device::cpu(), DType::F64).unwrap();
        let covered = cases.iter().map(|case| case.name).chain(OF_EXPERTS);
        let covered: BTreeSet<&str> = covered.collect();
        let names: BTreeSet<&str> = runtime::signatures().map(|it| it.name()).collect();
        let has_gradient = |name: &&&str| {
            let prefix = format!("{name}_grad");
            names.iter().any(|name| name.starts_with(&prefix))
        };
        let differentiable: Vec<_> = names.iter().filter(has_gradient).collect();
        assert!(differentiable.len() > 30, "{differentiable:?}");
        let missing = differentiable.iter().filter(|name| !covered.contains(**name));
        let missing: Vec<_> = missing.collect();
        assert!(missing.is_empty(), "ops whose gradient is not checked: {missing:?}");
    }

    #[test]
    fn every_gradient_agrees_with_finite_differences() {
        for case in all(&Device::cpu(), DType::F64).unwrap() {
            let checked = gradcheck(|x| case.run(x), &case.inputs, Tolerance::default());
            checked.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        }
    }

    /// The gradients of the inputs that are tracked.
    fn gradients(case: &Case, is_tracked: impl Fn(usize) -> bool) -> Vec<Option<Vec<f64>>> {
        let ((inputs, outputs), tape) = Tape::record(|| {
            let inputs = case.inputs.iter().enumerate();
            let inputs: Vec<Var> = inputs
                .map(|(at, input)| match is_tracked(at) {
                    true => Var::input(input.clone()),
                    false => Var::constant(input.clone()),
                })
                .collect();
            let outputs = case.run(&inputs)?;
            Ok((inputs, outputs))
        })
        .unwrap();
        let tracked: Vec<&Var> = inputs.iter().filter(|it| it.is_tracked()).collect();
        let roots = weighted_roots(&outputs).unwrap();
        let (gradients, _) = tape.backward_inputs(&roots, &tracked).unwrap();
        let mut gradients = gradients.iter().map(|it| it.to_vec().unwrap());
        let of = |input: &Var| input.is_tracked().then(|| gradients.next().unwrap());
        inputs.iter().map(of).collect()
    }

    #[test]
    fn a_gradient_does_not_depend_on_which_others_are_computed() {
        for case in all(&Device::cpu(), DType::F64).unwrap() {
            let whole = gradients(&case, |_| true);
            for subset in 1..1usize << case.inputs.len() {
                let some = gradients(&case, |at| subset >> at & 1 == 1);
                for (some, whole) in some.iter().zip(&whole) {
                    let Some((some, whole)) = some.as_ref().zip(whole.as_ref()) else {
                        continue;
                    };
                    let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * (1.0 + b.abs());
                    let are_near = some.iter().zip(whole).all(is_near);
                    assert!(are_near, "{} {subset:b}: {some:?} {whole:?}", case.name);
                }
            }
        }
    }

    #[test]
    fn a_wrong_gradient_is_detected() {
        let device = Device::cpu();
        let wrong = |x: &[Var]| {
            let y = runtime::square(x[0].value())?;
            let saved = x[0].value().save();
            Ok(vec![y.tracked([&x[0]], move |_, [dx]| dx.add(|| saved.get()))?])
        };
        let x = Inputs { device: &device, dtype: DType::F64, rounded_to: DType::F64 }
            .numbers("x", &[3])
            .unwrap();
        let error = gradcheck(wrong, &[x], Tolerance::default()).unwrap_err().to_string();
        assert!(error.starts_with("the gradient of element 0 of input 0 is "), "{error}");
    }
}
