//! Cases for every differentiable op, to check its values and its gradients. The tests and
//! `meshgrad check` run them.

use meshgrad_autograd::{Result, Var, ops};
use meshgrad_runtime::ops::{
    self as runtime, AttentionMask, AttentionSequences, Domain, RopeStyle,
};
use meshgrad_runtime::{DType, Device, Key, Tensor};

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

    fn with_weights(self, weights: &'static [usize]) -> Case {
        Case { weights, ..self }
    }
}

/// Generates inputs: numbers away from points where functions are not differentiable.
struct Inputs<'a> {
    device: &'a Device,
    dtype: DType,
    /// The numbers are first rounded to this dtype.
    rounded_to: DType,
}

impl Inputs<'_> {
    /// Distinct numbers between -1.5 and 1.5, not near 0.
    fn any(&self, shape: &[usize], salt: usize) -> Result<Tensor> {
        let number = |i: usize| {
            let x = ((i * 7 + salt * 13 + 1) as f64 * 0.618_033_988_75).fract() - 0.5;
            2.6 * x + 0.2 * x.signum()
        };
        self.filled(shape, number)
    }

    /// Numbers between 0.5 and 2.
    fn positive(&self, shape: &[usize], salt: usize) -> Result<Tensor> {
        self.filled(shape, |i| {
            0.5 + 1.5 * ((i * 5 + salt * 11 + 1) as f64 * 0.618_033_988_75).fract()
        })
    }

    fn filled(&self, shape: &[usize], number: impl Fn(usize) -> f64) -> Result<Tensor> {
        let count = shape.iter().product();
        let numbers: Vec<f64> = (0..count).map(number).collect();
        let numbers = Tensor::from_slice(&Device::cpu(), shape, &numbers)?;
        let rounded = runtime::cast(&numbers, self.rounded_to)?;
        let numbers = runtime::cast(&rounded, self.dtype)?;
        runtime::to_device(&numbers, self.device)
    }
}

/// The cases of every op on `device`, with inputs of `dtype`. Inputs are the same on all devices,
/// up to rounding.
///
/// # Errors
/// When memory runs out.
pub fn all(device: &Device, dtype: DType) -> Result<Vec<Case>> {
    at(&Inputs {
        device,
        dtype,
        rounded_to: dtype,
    })
}

/// The reference for `all(_, dtype)`: the same cases at the same rounded inputs, in f64 on the CPU.
///
/// # Errors
/// When memory runs out.
pub fn exact(dtype: DType) -> Result<Vec<Case>> {
    at(&Inputs {
        device: &Device::cpu(),
        dtype: DType::F64,
        rounded_to: dtype,
    })
}

fn at(inputs: &Inputs<'_>) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    elementwise(inputs, &mut cases)?;
    reductions(inputs, &mut cases)?;
    shapes(inputs, &mut cases)?;
    products(inputs, &mut cases)?;
    layers(inputs, &mut cases)?;
    experts(inputs, &mut cases)?;
    indexing(inputs, &mut cases)?;
    ordering(inputs, &mut cases)?;
    scored_attention(inputs, &mut cases)?;
    Ok(cases)
}

fn case<const N: usize>(
    name: &'static str,
    inputs: [Tensor; N],
    function: impl Fn(&[Var; N]) -> Result<Var> + 'static,
) -> Case {
    case_with(name, inputs, [], move |inputs, []| function(inputs))
}

fn case_with<const N: usize, const C: usize>(
    name: &'static str,
    inputs: [Tensor; N],
    constants: [Tensor; C],
    function: impl Fn(&[Var; N], &[Tensor; C]) -> Result<Var> + 'static,
) -> Case {
    let function = move |vars: &[Var], constants: &[Tensor]| {
        let vars: &[Var; N] = vars.try_into().unwrap_or_else(|_| unreachable!());
        let constants: &[Tensor; C] = constants.try_into().unwrap_or_else(|_| unreachable!());
        Ok(vec![function(vars, constants)?])
    };
    Case {
        name,
        function: Box::new(function),
        inputs: inputs.to_vec(),
        constants: constants.to_vec(),
        weights: &[],
    }
}

fn elementwise(at: &Inputs<'_>, cases: &mut Vec<Case>) -> Result<()> {
    for (listed, op) in runtime::UNARY.iter().zip(ops::unary()) {
        let x = match listed.domain {
            Domain::Real => at.any(&[3, 5], 0)?,
            Domain::Positive => at.positive(&[3, 5], 0)?,
        };
        cases.push(case(listed.name, [x], move |[x]| op(x)));
    }
    cases.push(case("neg", [at.any(&[3, 5], 0)?], |[x]| ops::neg(x)));

    type Binary = fn(&Var, &Var) -> Result<Var>;
    let binary: [(&str, &str, Binary); 6] = [
        ("add", "add, broadcast", ops::add),
        ("sub", "sub, broadcast", ops::sub),
        ("mul", "mul, broadcast", ops::mul),
        ("div", "div, broadcast", ops::div),
        ("maximum", "maximum, broadcast", ops::maximum),
        ("minimum", "minimum, broadcast", ops::minimum),
    ];
    for (same_shape, broadcast, op) in binary {
        let inputs = [at.any(&[2, 5], 1)?, at.positive(&[2, 5], 2)?];
        cases.push(case(same_shape, inputs, move |[a, b]| op(a, b)));
        let inputs = [at.any(&[2, 1, 4], 1)?, at.positive(&[3, 1], 2)?];
        cases.push(case(broadcast, inputs, move |[a, b]| op(a, b)));
    }
    cases.push(case(
        "mul of an operand with itself",
        [at.any(&[4], 3)?],
        |[x]| ops::mul(x, x),
    ));
    cases.push(case(
        "add, empty",
        [at.any(&[0, 3], 0)?, at.any(&[3], 1)?],
        |[a, b]| ops::add(a, b),
    ));
    cases.push(case("affine", [at.any(&[7], 4)?], |[x]| {
        ops::affine(x, -1.7, 0.3)
    }));
    cases.push(case("clamp", [at.any(&[3, 7], 5)?], |[x]| {
        ops::clamp(x, -0.6, 0.9)
    }));

    let condition = runtime::gt(&at.any(&[3, 4], 6)?, &at.any(&[4], 7)?)?;
    for (name, inputs) in [
        ("where_", [at.any(&[3, 4], 8)?, at.any(&[3, 4], 9)?]),
        ("where_, broadcast", [at.any(&[3, 1], 8)?, at.any(&[4], 9)?]),
    ] {
        let constants = [condition.clone()];
        cases.push(case_with(name, inputs, constants, |[a, b], [condition]| {
            ops::where_(condition, a, b)
        }));
    }
    Ok(())
}

fn reductions(at: &Inputs<'_>, cases: &mut Vec<Case>) -> Result<()> {
    type Reduction = fn(&Var, &[isize]) -> Result<Var>;
    let reductions: [(&str, Reduction); 4] = [
        ("sum", ops::sum),
        ("mean", ops::mean),
        ("max", ops::max),
        ("min", ops::min),
    ];
    for (name, op) in reductions {
        cases.push(case(name, [at.any(&[3, 4, 2], 0)?], move |[x]| {
            op(x, &[0, -1])
        }));
    }
    cases.push(case("logsumexp", [at.any(&[3, 4, 2], 0)?], |[x]| {
        ops::logsumexp(x, &[0, -1])
    }));
    cases.push(case("sum of a transpose", [at.any(&[3, 4], 1)?], |[x]| {
        ops::sum(&ops::transpose(x, 0, 1)?, &[0])
    }));
    Ok(())
}

fn shapes(at: &Inputs<'_>, cases: &mut Vec<Case>) -> Result<()> {
    let x = || at.any(&[3, 4, 2], 0);
    cases.push(case("reshape of a transpose", [x()?], |[x]| {
        ops::reshape(&ops::transpose(x, 0, 1)?, &[2, 12])
    }));
    cases.push(case("permute", [x()?], |[x]| {
        ops::square(&ops::permute(x, &[2, 0, 1])?)
    }));
    cases.push(case("broadcast_to", [at.any(&[3, 1], 1)?], |[x]| {
        ops::square(&ops::broadcast_to(x, &[2, 3, 5])?)
    }));
    cases.push(case("slice", [x()?], |[x]| {
        ops::square(&ops::slice(x, 1, 1..3)?)
    }));
    cases.push(case("contiguous", [x()?], |[x]| {
        ops::contiguous(&ops::transpose(x, 1, 2)?)
    }));
    cases.push(case("split_last, merge_last", [x()?], |[x]| {
        ops::merge_last(&ops::split_last(&ops::transpose(x, 1, 2)?, 2)?)
    }));
    Ok(())
}

fn products(at: &Inputs<'_>, cases: &mut Vec<Case>) -> Result<()> {
    let inputs = [at.any(&[2, 3, 4], 0)?, at.any(&[5, 4], 1)?];
    cases.push(case("linear", inputs, |[x, w]| ops::linear(x, w)).with_weights(&[1]));
    // The rows consist of whole 16-byte vectors in every float dtype.
    let inputs = [at.any(&[3, 16], 0)?, at.any(&[8, 16], 1)?];
    cases.push(case("linear, aligned", inputs, |[x, w]| ops::linear(x, w)).with_weights(&[1]));
    let inputs = [at.any(&[0, 4], 0)?, at.any(&[5, 4], 1)?];
    cases.push(case("linear, no rows", inputs, |[x, w]| ops::linear(x, w)).with_weights(&[1]));
    let inputs = [at.any(&[2, 4, 3], 2)?, at.any(&[2, 4, 5], 3)?];
    cases.push(case("matmul of transposes, batched", inputs, |[a, b]| {
        ops::matmul(&ops::transpose(a, -1, -2)?, b)
    }));
    let inputs = [
        at.any(&[1, 5, 4, 3], 4)?,
        at.any(&[1, 5, 2, 3], 5)?,
        at.any(&[1, 5, 2, 3], 6)?,
    ];
    cases.push(case("attention, window", inputs, |[q, k, v]| {
        let mask = AttentionMask {
            window: Some(3),
            ..AttentionMask::causal()
        };
        ops::attention(q, k, v, &mask, 0.7)
    }));
    cases.push(attention_with_lse(at)?);
    let inputs = [
        at.any(&[2, 3, 2, 2], 4)?,
        at.any(&[2, 6, 1, 2], 5)?,
        at.any(&[2, 6, 1, 2], 6)?,
    ];
    let list = |values: [i64; 2]| Tensor::from_slice(at.device, &[2], &values);
    let lists = [list([3, 1])?, list([6, 4])?];
    cases.push(case_with(
        "attention, cached keys",
        inputs,
        lists,
        |[q, k, v], [q_offset, k_len]| {
            let mask = AttentionMask {
                sequences: AttentionSequences::Cached {
                    q_offset: q_offset.clone(),
                    k_len: k_len.clone(),
                },
                ..AttentionMask::causal()
            };
            ops::attention(q, k, v, &mask, 0.7)
        },
    ));
    Ok(())
}

/// The loss depends on both results.
fn attention_with_lse(at: &Inputs<'_>) -> Result<Case> {
    let inputs = vec![
        at.any(&[2, 3, 2, 3], 4)?,
        at.any(&[2, 3, 2, 3], 5)?,
        at.any(&[2, 3, 2, 3], 6)?,
    ];
    Ok(Case::new("attention with log-sum-exp", inputs, |x| {
        let mask = AttentionMask::causal();
        let (out, lse) = ops::attention_with_lse(&x[0], &x[1], &x[2], &mask, 0.7)?;
        Ok(vec![out, lse])
    }))
}

fn layers(at: &Inputs<'_>, cases: &mut Vec<Case>) -> Result<()> {
    let inputs = [at.any(&[2, 3, 5], 0)?, at.positive(&[5], 1)?];
    cases.push(case("rms_norm", inputs, |[x, w]| ops::rms_norm(x, w, 1e-3)).with_weights(&[1]));
    let inputs = [at.any(&[3, 16], 0)?, at.positive(&[16], 1)?];
    cases.push(
        case("rms_norm, aligned", inputs, |[x, w]| {
            ops::rms_norm(x, w, 1e-3)
        })
        .with_weights(&[1]),
    );
    let inputs = [
        at.any(&[2, 3, 5], 0)?,
        at.positive(&[5], 1)?,
        at.any(&[5], 2)?,
    ];
    cases.push(
        case("layer_norm", inputs, |[x, w, b]| {
            ops::layer_norm(x, w, b, 1e-3)
        })
        .with_weights(&[1, 2]),
    );
    let inputs = || -> Result<[Tensor; 3]> {
        let (x, added) = (at.any(&[2, 3, 5], 0)?, at.any(&[2, 3, 5], 2)?);
        Ok([x, added, at.positive(&[5], 1)?])
    };
    cases.push(
        case("add_rms_norm", inputs()?, |[x, added, w]| {
            let (sum, y) = ops::add_rms_norm(x, added, w, 1e-3)?;
            ops::mul(&sum, &y)
        })
        .with_weights(&[2]),
    );
    cases.push(
        case("add_rms_norm, norm only", inputs()?, |[x, added, w]| {
            Ok(ops::add_rms_norm(x, added, w, 1e-3)?.1)
        })
        .with_weights(&[2]),
    );
    cases.push(case("softmax", [at.any(&[3, 5], 2)?], |[x]| {
        ops::softmax(x)
    }));
    cases.push(case("log_softmax", [at.any(&[3, 5], 3)?], |[x]| {
        ops::log_softmax(x)
    }));
    cases.push(case("swiglu", [at.any(&[3, 2, 5], 4)?], |[x]| {
        ops::swiglu(x)
    }));

    let cpu = Device::cpu();
    let positions = Tensor::from_slice(&cpu, &[2, 3], &[0i64, 1, 2, 5, 6, 70])?;
    let frequencies = Tensor::from_slice(&cpu, &[2], &[1.0f32, 0.03])?;
    let (cos, sin) = runtime::rope_tables(&positions, &frequencies, 1.1)?;
    let cos = runtime::to_device(&cos, at.device)?;
    let sin = runtime::to_device(&sin, at.device)?;
    for (name, style) in [
        ("rope, half", RopeStyle::Half),
        ("rope, interleaved", RopeStyle::Interleaved),
    ] {
        // Five features, four of which are rotated.
        let (x, tables) = (at.any(&[2, 3, 2, 5], 5)?, [cos.clone(), sin.clone()]);
        cases.push(case_with(name, [x], tables, move |[x], [cos, sin]| {
            ops::rope(x, cos, sin, style)
        }));
    }
    for (name, style, features) in [
        ("rms_norm_rope, half", RopeStyle::Half, 5),
        ("rms_norm_rope, interleaved", RopeStyle::Interleaved, 4),
    ] {
        let inputs = [
            at.any(&[2, 3, 2, features], 5)?,
            at.positive(&[features], 6)?,
        ];
        let tables = [cos.clone(), sin.clone()];
        let function = move |[x, w]: &[Var; 2], [cos, sin]: &[Tensor; 2]| {
            ops::rms_norm_rope(x, w, cos, sin, style, 1e-3)
        };
        cases.push(case_with(name, inputs, tables, function).with_weights(&[1]));
    }

    cases.push(case("dropout", [at.any(&[4, 7], 9)?], |[x]| {
        ops::dropout(x, Key::new(5), 0.3)
    }));

    let ids = Tensor::from_slice(at.device, &[2, 3], &[3i64, 0, 3, 3, 1, 0])?;
    cases.push(
        case_with(
            "embedding",
            [at.any(&[4, 3], 6)?],
            [ids],
            |[table], [ids]| ops::embedding(table, ids),
        )
        .with_weights(&[0]),
    );
    let labels = Tensor::from_slice(at.device, &[2, 3], &[3i64, -100, 0, 6, 6, -100])?;
    cases.push(case_with(
        "cross_entropy",
        [at.any(&[2, 3, 7], 9)?],
        [labels.clone()],
        |[logits], [labels]| Ok(ops::cross_entropy(logits, labels, -100)?.0),
    ));
    let inputs = [at.any(&[2, 3, 4], 7)?, at.any(&[7, 4], 8)?];
    cases.push(
        case_with(
            "linear_cross_entropy",
            inputs,
            [labels],
            |[x, w], [labels]| Ok(ops::linear_cross_entropy(x, w, labels, -100)?.0),
        )
        .with_weights(&[1]),
    );
    Ok(())
}

fn experts(at: &Inputs<'_>, cases: &mut Vec<Case>) -> Result<()> {
    for (name, renormalize) in [
        ("router_top_k", false),
        ("router_top_k, renormalized", true),
    ] {
        cases.push(case(name, [at.positive(&[4, 5], 0)?], move |[x]| {
            Ok(ops::router_top_k(x, 2, renormalize, None)?.0)
        }));
    }

    // Experts 1 and 2 of four are held; expert 2 has no tokens.
    let chosen = Tensor::from_slice(at.device, &[4, 2], &[1i64, 0, 3, 1, 0, 3, 1, 3])?;
    let inputs = [
        at.any(&[4, 3], 1)?,
        at.any(&[2, 5, 3], 2)?,
        at.any(&[4, 2], 3)?,
    ];
    cases.push(
        case_with("experts", inputs, [chosen], |[x, w, weights], [chosen]| {
            let order = runtime::expert_order(chosen, 4, 1, 2)?;
            let rows = ops::permute_tokens(x, &order)?;
            let rows = ops::grouped_matmul(&rows, w, &order.offsets)?;
            ops::unpermute_tokens(&rows, weights, &order)
        })
        .with_weights(&[1]),
    );
    Ok(())
}

fn indexing(at: &Inputs<'_>, cases: &mut Vec<Case>) -> Result<()> {
    let inputs = [at.any(&[2, 3], 0)?, at.any(&[2, 1], 1)?];
    cases.push(case("concat", inputs, |[a, b]| ops::concat(&[a, b, a], -1)));
    cases.push(case("split", [at.any(&[2, 5], 2)?], |[x]| {
        let parts = ops::split(x, &[2, 1, 2], 1)?;
        ops::mul(&parts[0], &parts[2])
    }));

    let ids = Tensor::from_slice(at.device, &[4], &[2i64, 0, 2, 1])?;
    let x = [at.any(&[3, 2], 3)?];
    cases.push(case_with("index_select", x, [ids], |[x], [ids]| {
        ops::index_select(x, 0, ids)
    }));
    let index = Tensor::from_slice(at.device, &[2, 3], &[2i64, 0, 2, 1, 1, 1])?;
    let (x, again) = ([at.any(&[2, 4], 4)?], index.clone());
    cases.push(case_with("gather", x, [index], |[x], [index]| {
        ops::gather(x, 1, index)
    }));
    let x = [at.any(&[2, 3], 5)?];
    cases.push(case_with("scatter_add", x, [again], |[x], [index]| {
        ops::scatter_add(&[2, 4], 1, index, x)
    }));
    Ok(())
}

fn ordering(at: &Inputs<'_>, cases: &mut Vec<Case>) -> Result<()> {
    for (name, dim) in [("cumsum", -1), ("cumsum of the first dim", 0)] {
        let x = [at.any(&[3, 2, 5], 0)?];
        cases.push(case(name, x, move |[x]| ops::cumsum(x, dim)));
    }
    for (name, descending) in [("sort", false), ("sort, descending", true)] {
        let x = [at.any(&[3, 2, 5], 0)?];
        cases.push(case(name, x, move |[x]| Ok(ops::sort(x, 0, descending)?.0)));
    }
    cases.push(case("tril", [at.any(&[2, 3, 4], 1)?], |[x]| {
        ops::tril(x, 1)
    }));
    cases.push(case("triu", [at.any(&[2, 3, 4], 1)?], |[x]| {
        ops::triu(x, -1)
    }));
    Ok(())
}

/// Two heads share a key head.
fn scored_attention(at: &Inputs<'_>, cases: &mut Vec<Case>) -> Result<()> {
    let operands = || -> Result<[Tensor; 4]> {
        Ok([
            at.any(&[2, 3, 4, 2], 4)?,
            at.any(&[2, 5, 2, 2], 5)?,
            at.any(&[2, 5, 2, 2], 6)?,
            at.any(&[4, 3, 5], 7)?,
        ])
    };
    cases.push(case("attention, bias", operands()?, |[q, k, v, bias]| {
        let mask = AttentionMask::default();
        ops::attention_with_scores([q, k, v], Some(bias), None, &mask, 0.7)
    }));
    let [q, k, v, bias] = operands()?;
    let lists = [[1i64, 2], [4, 5]].map(|list| Tensor::from_slice(at.device, &[2], &list));
    let [q_offset, k_len] = lists;
    cases.push(case_with(
        "attention, soft cap, bias, cached keys",
        [q, k, v, bias],
        [q_offset?, k_len?],
        |[q, k, v, bias], [q_offset, k_len]| {
            let mask = AttentionMask {
                sequences: AttentionSequences::Cached {
                    q_offset: q_offset.clone(),
                    k_len: k_len.clone(),
                },
                ..AttentionMask::causal()
            };
            ops::attention_with_scores([q, k, v], Some(bias), Some(0.8), &mask, 0.7)
        },
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use meshgrad_autograd::{
        Error, Save, Tape, TapeError, Tolerance, Track, gradcheck, weighted_roots,
    };

    use super::*;

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
            let y = meshgrad_runtime::ops::square(x[0].value())?;
            let saved = x[0].value().save();
            Ok(vec![
                y.tracked([&x[0]], move |_, [dx]| dx.add(|| saved.get()))?,
            ])
        };
        let x = Inputs {
            device: &device,
            dtype: DType::F64,
            rounded_to: DType::F64,
        }
        .any(&[3], 0)
        .unwrap();
        let result = gradcheck(wrong, &[x], Tolerance::default());
        assert!(matches!(
            result,
            Err(Error::Tape(TapeError::GradientCheck { .. }))
        ));
    }
}
