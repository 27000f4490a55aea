//! The law of sharded gradients: if an op and its gradient accept the shardings of the operands,
//! assembling the ranks' results and gradients gives those of the unsharded op.
//!
//! Ops never communicate, so the ranks run one after the other.

mod parts;

use meshgrad_autograd::{Grads, Param, Spec, Tape, Var};
use meshgrad_mesh::{Division, Incompatible, Mesh, Placement, Reduction, Sharding};
use meshgrad_opcheck::cases::{self, Case};
use meshgrad_runtime::{DType, Device, Error, Result, Tensor, ops, with_mesh};

use parts::{assemble, assert_near, part, tensor};

/// The shardings of a case's inputs, then of its constants.
type Choice = Vec<Sharding>;

/// What an op computes: results, and the gradients of the inputs.
struct Computed {
    /// That of the inputs.
    dtype: DType,
    results: Vec<Tensor>,
    gradients: Vec<Tensor>,
}

/// How the gradient of each result is given.
#[derive(Clone, Copy, PartialEq)]
enum Seeds {
    /// Sharded like the result, and replicated otherwise.
    Whole,
    /// As [`Seeds::Whole`], but partial along one axis that does not shard the result.
    Partial(&'static str),
}

/// All combinations of placements of the operands along `axis`.
fn choices(case: &Case, mesh: &Mesh, axis: &str) -> Vec<Choice> {
    choices_of(case, mesh, axis, |_| Division::Even)
}

/// As [`choices`], where shards divide a dim as `division` of its extent.
fn choices_of(
    case: &Case,
    mesh: &Mesh,
    axis: &str,
    division: impl Fn(usize) -> Division,
) -> Vec<Choice> {
    let mut choices = vec![Vec::new()];
    for (at, x) in operands(case).enumerate() {
        let mut placements = vec![Placement::Replicate];
        let shards = x.shape().iter().enumerate();
        placements.extend(shards.map(|(dim, extent)| Placement::Shard(dim, division(*extent))));
        if at < case.inputs.len() {
            placements.push(Placement::Partial(Reduction::Sum));
        }
        let longer = |choice: Choice| {
            let with = |placement: &Placement| {
                let next = Sharding::new(mesh, [(axis, placement.clone())], x.shape()).unwrap();
                [&choice[..], &[next]].concat()
            };
            placements.iter().map(with).collect::<Vec<_>>()
        };
        choices = choices.into_iter().flat_map(longer).collect();
    }
    choices
}

fn operands(case: &Case) -> impl Iterator<Item = &Tensor> {
    case.inputs.iter().chain(&case.constants)
}

/// Runs a case forward and backward on one rank. Weights are parameters.
fn run(
    case: &Case,
    parts: &[Tensor],
    seeds: impl Fn(&[Var]) -> Result<Vec<Tensor>>,
) -> Result<Computed> {
    let (inputs, constants) = parts.split_at(case.inputs.len());
    let is_param = |at: usize, x: &Tensor| {
        let partial = x.sharding().is_some_and(|it| !it.partials().is_empty());
        case.weights.contains(&at) && !partial
    };
    let mut params = Vec::new();
    let ((inputs, outputs), tape) = Tape::record(|| {
        let mut vars = Vec::new();
        for (at, x) in inputs.iter().enumerate() {
            vars.push(match is_param(at, x) {
                true => {
                    params.push(param(at, x)?);
                    params[params.len() - 1].var()?
                }
                false => Var::input(x.clone()),
            });
        }
        let outputs = (case.function)(&vars, constants)?;
        Ok((vars, outputs))
    })?;
    let dys = seeds(&outputs)?;
    let roots: Vec<(&Var, Tensor)> = outputs.iter().zip(dys).collect();
    let tracked: Vec<&Var> = inputs
        .iter()
        .enumerate()
        .filter(|(at, x)| !is_param(*at, x.value()))
        .map(|(_, x)| x)
        .collect();
    let mut grads = Grads::new(&params)?;
    let (of_inputs, of_weights) = tape.backward_inputs(&roots, &tracked)?;
    of_weights.run(&mut grads)?;

    let (mut of_inputs, mut of_params) = (of_inputs.into_iter(), params.iter());
    let gradients = inputs.iter().enumerate().map(|(at, x)| match is_param(at, x.value()) {
        true => grads.get(of_params.next().unwrap()),
        false => Ok(of_inputs.next().unwrap()),
    });
    Ok(Computed {
        dtype: parts[0].dtype(),
        gradients: gradients.collect::<Result<_>>()?,
        results: outputs.into_iter().map(Var::into_value).collect(),
    })
}

fn param(at: usize, x: &Tensor) -> Result<Param> {
    let spec = Spec {
        shape: x.global_shape(),
        dtype: x.dtype(),
        init: meshgrad_autograd::Init::Zeros,
        optional: true,
    };
    let param = Param::with_spec(format!("w{at}"), spec);
    param.set(x)?;
    Ok(param)
}

/// The gradient of result `at`, of the dtype of `y`.
fn seed(y: &Tensor, at: usize, shape: &[usize]) -> Tensor {
    numbers(y, shape, 11 + at)
}

/// Distinct numbers between -1 and 1, on the device and in the dtype of `like`.
fn numbers(like: &Tensor, shape: &[usize], salt: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let number = |at: usize| (1.0 + at as f64 * 1.7 + salt as f64 * 0.9).sin();
    tensor(like, shape, &(0..count).map(number).collect::<Vec<_>>())
}

/// The differences that reordered sums of a dtype may cause, relative and absolute.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-11,
        DType::F32 => 1e-4,
        _ => 0.1,
    }
}

fn run_whole(case: &Case) -> Computed {
    let parts: Vec<Tensor> = operands(case).cloned().collect();
    let seeds = |outputs: &[Var]| {
        let seed = |(at, y): (usize, &Var)| seed(y.value(), at, y.shape());
        Ok(outputs.iter().enumerate().map(seed).collect())
    };
    run(case, &parts, seeds).unwrap()
}

/// Whether an error is about shardings: placements without a strategy, a gradient that one rank
/// cannot know, or an op that must communicate.
fn is_refusal(error: &Error) -> bool {
    let other = ["depends on all ranks", "no ranks to communicate with"];
    let message = error.to_string();
    error.details::<Incompatible>().is_some() || other.iter().any(|it| message.contains(it))
}

/// Runs a case on all ranks; the error of rank 0 if it is refused, which must be a sharding error.
fn run_sharded(case: &Case, choice: &Choice, mesh: &Mesh, seeds: Seeds) -> Option<Vec<Computed>> {
    let what = || format!("{}: {}", case.name, text(choice));
    let of_rank = |rank: usize| {
        let parts = operands(case).zip(choice);
        let parts = parts.map(|(x, sharding)| part(x, sharding, rank));
        let parts: Vec<Tensor> = parts.collect();
        let dys = |outputs: &[Var]| {
            let dy = |(at, y): (usize, &Var)| {
                let Some(sharding) = y.value().sharding() else {
                    panic!("{}: result {at} has no sharding", what());
                };
                let sharding = seeds.sharding(sharding);
                part(&seed(y.value(), at, sharding.shape()), &sharding, rank)
            };
            Ok(outputs.iter().enumerate().map(dy).collect())
        };
        with_mesh(mesh, rank, || run(case, &parts, dys))
    };
    let computed: Vec<Result<Computed>> = mesh.ranks().into_iter().map(of_rank).collect();
    let refused = computed.iter().filter(|it| it.is_err()).count();
    match computed.into_iter().collect::<Result<Vec<_>>>() {
        Ok(computed) => Some(computed),
        Err(error) if is_refusal(&error) && refused == mesh.ranks().len() => None,
        Err(error) => panic!("{}: {error} on {refused} ranks", what()),
    }
}

impl Seeds {
    fn sharding(self, result: &Sharding) -> Sharding {
        let whole = result.without_partials();
        match self {
            Seeds::Partial(axis) if whole.placement(axis) == Ok(Placement::Replicate) => {
                let with = |(name, at): (&str, Placement)| match name == axis {
                    true => (name.to_owned(), Placement::Partial(Reduction::Sum)),
                    false => (name.to_owned(), at),
                };
                let placements: Vec<_> = whole.placements().into_iter().map(with).collect();
                Sharding::new(whole.mesh(), placements, whole.shape()).unwrap()
            }
            _ => whole,
        }
    }
}

fn text(choice: &[Sharding]) -> String {
    let texts: Vec<String> = choice.iter().map(Sharding::to_string).collect();
    texts.join(" | ")
}

/// Compares the assembled results and gradients of all ranks with those of the whole op. Returns
/// the shardings of the gradients.
fn check(
    whole: &Computed,
    computed: &[Computed],
    inputs: &[Sharding],
    what: &str,
) -> Vec<Sharding> {
    let pick = |of: fn(&Computed) -> &Vec<Tensor>, at: usize| -> Vec<Tensor> {
        computed.iter().map(|it| of(it)[at].clone()).collect()
    };
    let tolerance = tolerance(whole.dtype);
    for (at, whole) in whole.results.iter().enumerate() {
        let parts = pick(|it| &it.results, at);
        assert_near(&assemble(&parts, what), whole, tolerance, what);
    }
    let mut shardings = Vec::new();
    for (at, whole) in whole.gradients.iter().enumerate() {
        let parts = pick(|it| &it.gradients, at);
        let sharding = parts[0].sharding().unwrap_or_else(|| panic!("{what}: no sharding"));
        assert_eq!(
            sharding.without_partials(),
            inputs[at].without_partials(),
            "{what}: the gradient of input {at} has other shards"
        );
        let what = format!("{what}: input {at}");
        assert_near(&assemble(&parts, &what), whole, tolerance, &what);
        shardings.push(sharding.clone());
    }
    shardings
}

/// Checks a choice with gradients of the results that are replicated or partial along `axis`.
/// Returns the shardings of the gradients in the first case; `None` if the op refuses the choice.
fn check_choice(
    case: &Case,
    choice: &Choice,
    mesh: &Mesh,
    axis: &'static str,
) -> Option<Vec<Sharding>> {
    let whole = run_whole(case);
    let check = |seeds: Seeds| {
        let computed = run_sharded(case, choice, mesh, seeds)?;
        let what = format!("{}: {}", case.name, text(choice));
        Some(check(&whole, &computed, choice, &what))
    };
    let gradients = check(Seeds::Whole);
    check(Seeds::Partial(axis));
    gradients
}

/// All cases, except that rows sorted by expert have no sharding.
fn all_cases(dtype: DType) -> impl Iterator<Item = Case> {
    let cases = cases::all(&Device::cpu(), dtype).unwrap();
    cases.into_iter().filter(|case| case.name != "experts")
}

/// The snapshot lists the shardings of operands that each op and its gradient accept on two ranks,
/// and those of the gradients.
#[test]
fn sharded_gradients_are_those_of_the_whole() {
    let mut table = Vec::new();
    for case in all_cases(DType::F64) {
        table.push(case.name.to_owned());
        for ranks in [2, 3, 4] {
            let mesh = Mesh::new(&[ranks], &["tp"]).unwrap();
            for choice in choices(&case, &mesh, "tp") {
                let gradients = check_choice(&case, &choice, &mesh, "tp");
                let is_trivial = choice.iter().all(Sharding::is_replicated);
                if let (Some(gradients), 2, false) = (gradients, ranks, is_trivial) {
                    table.push(format!("  {} -> {}", text(&choice), text(&gradients)));
                }
            }
        }
    }
    insta::assert_snapshot!(table.join("\n"));
}

/// Cases with extents that can be divided into several ranges per rank: the first dim has 10 rows, a
/// sequence 10 steps, a vector 6 features.
fn cases_of_several_ranges() -> Vec<Case> {
    use meshgrad_autograd::ops;
    use meshgrad_runtime::ops::AttentionMask;

    let like = Tensor::from_slice(&Device::cpu(), &[0], &[0.0f64; 0]).unwrap();
    let inputs = |shapes: &[&[usize]]| -> Vec<Tensor> {
        let numbered = shapes.iter().enumerate();
        numbered.map(|(at, shape)| numbers(&like, shape, at)).collect()
    };
    let [rows, wide, q] = [&[10, 6][..], &[10, 12], &[2, 10, 2, 3]];
    let tokens: &[usize] = &[2, 10, 6];
    vec![
        Case::new("mul", inputs(&[rows, rows]), |x| Ok(vec![ops::mul(&x[0], &x[1])?])),
        Case::new("softmax", inputs(&[rows]), |x| Ok(vec![ops::softmax(&x[0])?])),
        Case::new("sum", inputs(&[tokens]), |x| Ok(vec![ops::sum(&x[0], &[1])?])),
        Case::new("linear", inputs(&[rows, rows]), |x| Ok(vec![ops::linear(&x[0], &x[1])?])),
        Case::new("rms_norm", inputs(&[tokens, &[6]]), |x| {
            Ok(vec![ops::rms_norm(&x[0], &x[1], 1e-5)?])
        }),
        Case::new("dropout", inputs(&[tokens]), |x| {
            Ok(vec![ops::dropout(&x[0], meshgrad_runtime::Key::new(5), 0.3)?])
        }),
        Case::new("attention", inputs(&[q, q, q]), |x| {
            Ok(vec![ops::attention(&x[0], &x[1], &x[2], &AttentionMask::causal(), 0.7)?])
        }),
        Case::new("attention with log-sum-exp", inputs(&[q, q, q]), |x| {
            let causal = AttentionMask::causal();
            let (out, lse) = ops::attention_with_lse(&x[0], &x[1], &x[2], &causal, 0.7)?;
            Ok(vec![out, lse])
        }),
        Case::new("merge_leading", inputs(&[tokens]), |x| Ok(vec![ops::merge_leading(&x[0])?])),
        Case::new("merge_last", inputs(&[tokens]), |x| Ok(vec![ops::merge_last(&x[0])?])),
        Case::new("chunk", inputs(&[wide]), |x| Ok(vec![ops::chunk(&x[0], 2)?])),
        Case::new("concat", inputs(&[rows, rows]), |x| Ok(vec![ops::concat(&[&x[0], &x[1]], 0)?])),
        Case::new("split", inputs(&[wide]), |x| ops::split(&x[0], &[6, 6], 1)),
    ]
}

/// Shards of several ranges: head and tail, and in two blocks. The snapshot lists the shardings that
/// each op and its gradient accept on two ranks, and those of the gradients.
#[test]
fn gradients_of_shards_with_several_ranges() {
    let in_blocks = |extent: usize| match extent.is_multiple_of(2) {
        true => Division::in_blocks(extent / 2, Division::Even),
        false => Division::Even,
    };
    let divisions: [&dyn Fn(usize) -> Division; 2] = [&|_| Division::HeadAndTail, &in_blocks];
    let several = |sharding: &Sharding| {
        let mut dims = 0..sharding.shape().len();
        dims.any(|dim| !sharding.has_one_range(dim))
    };
    let mut table = Vec::new();
    for case in cases_of_several_ranges() {
        table.push(case.name.to_owned());
        for (division, ranks) in divisions.iter().flat_map(|it| [(it, 2), (it, 3)]) {
            let mesh = Mesh::new(&[ranks], &["tp"]).unwrap();
            let choices = choices_of(&case, &mesh, "tp", division).into_iter();
            for choice in choices.filter(|choice| choice.iter().any(several)) {
                let gradients = check_choice(&case, &choice, &mesh, "tp");
                if let (Some(gradients), 2) = (gradients, ranks) {
                    table.push(format!("  {} -> {}", text(&choice), text(&gradients)));
                }
            }
        }
    }
    insta::assert_snapshot!(table.join("\n"));
}

/// The gradient has the sharding of its value even if the reverse rule would give an equal layout
/// another form: a batch smaller than its axis, and another order of axes.
#[test]
fn gradients_of_reshapes_have_the_sharding_of_the_value() {
    use meshgrad_autograd::ops;

    let like = Tensor::from_slice(&Device::cpu(), &[0], &[0.0f64; 0]).unwrap();
    let mesh = Mesh::new(&[4, 2], &["dp", "cp"]).unwrap();
    let merge = Case::new("merge", vec![numbers(&like, &[3, 4, 2], 1)], |x| {
        Ok(vec![ops::merge_leading(&x[0])?])
    });
    let batch = [("dp", Placement::shard(0)), ("cp", Placement::shard(1))];
    let batch = Sharding::new(&mesh, batch, &[3, 4, 2]).unwrap();
    assert!(check_choice(&merge, &vec![batch], &mesh, "dp").is_some());

    let split = Case::new("split", vec![numbers(&like, &[8, 2], 1)], |x| {
        Ok(vec![ops::reshape(&x[0], &[2, 4, 2])?])
    });
    let mesh = Mesh::new(&[2, 2], &["dp", "cp"]).unwrap();
    let fused = [("cp", Placement::in_blocks(0, 4)), ("dp", Placement::shard(0))];
    let fused = Sharding::new(&mesh, fused, &[8, 2]).unwrap();
    assert!(check_choice(&split, &vec![fused], &mesh, "dp").is_some());
}

#[test]
fn sharded_gradients_in_narrow_dtypes() {
    let mesh = Mesh::new(&[2], &["tp"]).unwrap();
    for case in all_cases(DType::F32).chain(all_cases(DType::BF16)) {
        for choice in choices(&case, &mesh, "tp") {
            check_choice(&case, &choice, &mesh, "tp");
        }
    }
}

/// Shardings that an op accepts along one axis can be combined on a mesh of two axes.
#[test]
fn gradients_on_two_axes() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let (mut accepted, mut refused) = (0, 0);
    for case in all_cases(DType::F64) {
        let along = |ranks: usize, axis: &'static str| -> Vec<Choice> {
            let mesh = Mesh::new(&[ranks], &[axis]).unwrap();
            let choices = choices(&case, &mesh, axis).into_iter();
            choices
                .filter(|choice| run_sharded(&case, choice, &mesh, Seeds::Whole).is_some())
                .collect()
        };
        let (dp, tp) = (along(2, "dp"), along(3, "tp"));
        for (dp, tp) in dp.iter().flat_map(|dp| tp.iter().map(move |tp| (dp, tp))) {
            let both = |(dp, tp): (&Sharding, &Sharding)| {
                let placements = dp.placements().into_iter().chain(tp.placements());
                Sharding::new(&mesh, placements.collect::<Vec<_>>(), dp.shape()).unwrap()
            };
            let choice: Choice = dp.iter().zip(tp).map(both).collect();
            match check_choice(&case, &choice, &mesh, "tp") {
                Some(_) => accepted += 1,
                None => refused += 1,
            }
        }
    }
    // Nested shards of unequal sizes are refused by ops that merge dims or compute means.
    assert!(accepted > 500 && refused < accepted / 10, "{accepted} accepted, {refused} refused");
}

/// A reduced dim of extent 1 can be sharded.
#[test]
fn gradients_of_reductions_over_one_element() {
    let mesh = Mesh::new(&[3], &["tp"]).unwrap();
    let case = |shape: &[usize]| {
        let like = Tensor::from_slice(&Device::cpu(), &[0], &[0.0f64; 0]).unwrap();
        let x = numbers(&like, shape, 1);
        Case::new("mean", vec![x], |x| Ok(vec![meshgrad_autograd::ops::mean(&x[0], &[0])?]))
    };
    let shard =
        |shape: &[usize]| vec![Sharding::new(&mesh, [("tp", Placement::shard(0))], shape).unwrap()];
    assert!(check_choice(&case(&[3, 2]), &shard(&[3, 2]), &mesh, "tp").is_some());
    let sums = Case::new("sum", case(&[1, 4]).inputs, |x| {
        Ok(vec![meshgrad_autograd::ops::sum(&x[0], &[0])?])
    });
    assert!(check_choice(&sums, &shard(&[1, 4]), &mesh, "tp").is_some());
}

/// The gradient of a norm's weight is partial over the axis of the batch and that of the sequence.
#[test]
fn the_weight_of_a_norm_is_partial_over_batch_and_sequence() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let case = all_cases(DType::F64).find(|case| case.name == "rms_norm").unwrap();
    let sharded = [("dp", Placement::shard(0)), ("tp", Placement::shard(1))];
    let choice = vec![
        Sharding::new(&mesh, sharded, case.inputs[0].shape()).unwrap(),
        Sharding::replicated(&mesh, case.inputs[1].shape()).unwrap(),
    ];
    let gradients = check_choice(&case, &choice, &mesh, "tp").unwrap();
    assert_eq!(gradients[1].to_string(), "dp: partial(sum), tp: partial(sum)");
}

/// Mistakes that an implementation could make.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Partial gradients are taken for whole ones.
    DroppedReduction,
    /// Gradients are multiplied by the number of ranks.
    ScaledGradient,
    /// Ranks 0 and 1 exchange their gradients.
    SwappedRanks,
}

impl Fault {
    fn plant(self, computed: &mut [Computed]) {
        let ranks = computed.len();
        match self {
            Fault::DroppedReduction => {
                for gradient in computed[1..].iter_mut().flat_map(|it| &mut it.gradients) {
                    if !gradient.sharding().unwrap().partials().is_empty() {
                        *gradient = ops::affine(gradient, 0.0, 0.0).unwrap();
                    }
                }
            }
            Fault::ScaledGradient => {
                for gradient in computed.iter_mut().flat_map(|it| &mut it.gradients) {
                    *gradient = ops::affine(gradient, ranks as f64, 0.0).unwrap();
                }
            }
            Fault::SwappedRanks => swap(computed),
        }
    }
}

/// Exchanges the values of equal shape of ranks 0 and 1.
fn swap(computed: &mut [Computed]) {
    for at in 0..computed[0].gradients.len() {
        let [a, b] = [0, 1].map(|rank| computed[rank].gradients[at].clone());
        if a.shape() == b.shape() {
            let exchanged = |x: &Tensor, place: &Tensor, rank: usize| {
                x.local().with_sharding(place.sharding().unwrap(), rank).unwrap()
            };
            computed[0].gradients[at] = exchanged(&b, &a, 0);
            computed[1].gradients[at] = exchanged(&a, &b, 1);
        }
    }
}

/// Each fault must be found in some choice for a linear layer.
#[test]
fn planted_faults_are_found() {
    let mesh = Mesh::new(&[3], &["tp"]).unwrap();
    let case = all_cases(DType::F64).find(|case| case.name == "linear, aligned").unwrap();
    let whole = run_whole(&case);
    for fault in [Fault::DroppedReduction, Fault::ScaledGradient, Fault::SwappedRanks] {
        let is_found = |choice: &Choice| {
            let Some(mut computed) = run_sharded(&case, choice, &mesh, Seeds::Whole) else {
                return false;
            };
            fault.plant(&mut computed);
            let checked =
                std::panic::AssertUnwindSafe(|| check(&whole, &computed, choice, "planted"));
            std::panic::catch_unwind(checked).is_err()
        };
        let found = choices(&case, &mesh, "tp").iter().filter(|choice| is_found(choice)).count();
        assert!(found > 0, "{fault:?} is not found");
    }
}
