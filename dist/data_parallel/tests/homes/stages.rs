//! Two stages of a model on one rank: their passes alternate, and each has a last pass of its own.

use meshgrad_autograd::{Grads, Init, Module, Param, Spec, Tape, Var, ops};
use meshgrad_comm::{Local, Rank, Redistributor, TracedRank};
use meshgrad_data_parallel::{DataParallel, Strategy};
use meshgrad_mesh::{Mesh, Placement};
use meshgrad_runtime::{DType, Device, Error, Result, Tensor, ops as runtime};

use crate::chain::Chain;

const RANKS: usize = 3;
const WIDTH: usize = 5;
const MICROBATCHES: usize = 3;

/// The rows of a microbatch, [7, WIDTH].
fn all_rows(device: &Device, microbatch: usize) -> Result<Tensor> {
    let value = |at: usize| ((at * at + 3 * microbatch) % 11) as f64 / 7.0 - 0.5;
    let values: Vec<f64> = (0..7 * WIDTH).map(value).collect();
    runtime::cast(&Tensor::from_slice(device, &[7, WIDTH], &values)?, DType::F32)
}

/// This rank's rows of a microbatch.
fn rows(device: &Device, microbatch: usize) -> Result<Tensor> {
    let x = all_rows(device, microbatch)?.as_replicated()?;
    meshgrad_collectives::redistribute(&x, [("dp", Placement::shard(0))])
}

fn forward(layers: &[&Param], x: &Var) -> Result<Var> {
    let mut x = x.clone();
    for layer in layers {
        x = ops::silu(&ops::linear(&x, &layer.var()?)?)?;
    }
    Ok(x)
}

/// Which passes run after each other, and whether the last ones of each stage are announced.
#[derive(Clone, Copy, PartialEq)]
enum Passes {
    /// One tape per microbatch.
    Whole,
    /// One tape per stage and microbatch, the second stage's backward passes ahead.
    Stages { announced: bool },
}

/// The gradients of this rank's rows, and the collectives that they took.
fn gradients(rank: &dyn Rank, strategy: &Strategy, passes: Passes) -> Result<(Vec<f32>, u64)> {
    let rank = TracedRank::new(rank);
    let mesh = Mesh::new(&[RANKS], &["dp"])?;
    Redistributor::new(&rank).run_on(&mesh, || {
        let model = Chain::new(4, WIDTH);
        let parallel = DataParallel::new(&rank, &mesh, strategy.clone());
        parallel.unit("layers.*", strategy.clone()).apply(&model)?;
        model.materialize(rank.device(), 1)?;
        let params = model.params();
        let (first, second): (Vec<&Param>, Vec<&Param>) =
            (params[..2].iter().collect(), params[2..].iter().collect());
        let mut grads = Grads::new(&params)?;
        let before = rank.stats().collectives;
        grads.expect_passes(match passes {
            Passes::Whole => MICROBATCHES,
            Passes::Stages { .. } => 2 * MICROBATCHES,
        });

        let mut waiting = Vec::new();
        for microbatch in 0..MICROBATCHES {
            let x = rows(rank.device(), microbatch)?;
            let is_last = microbatch + 1 == MICROBATCHES;
            if passes == Passes::Whole {
                let (y, tape) =
                    Tape::record(|| forward(&second, &forward(&first, &Var::constant(x))?))?;
                tape.backward_from(&[(&y, y.value().clone())], &mut grads)?;
                continue;
            }
            let (hidden, tape) = Tape::record(|| forward(&first, &Var::constant(x)))?;
            let ((input, y), second_tape) = Tape::record(|| {
                let input = Var::input(hidden.value().clone());
                forward(&second, &input).map(|y| (input, y))
            })?;
            if passes == (Passes::Stages { announced: true }) {
                grads.last_pass_of(second.iter().copied().filter(|_| is_last));
            }
            let root = [(&y, y.value().clone())];
            let dx = second_tape.backward_with(&root, &[&input], &mut grads)?;
            waiting.push((hidden, tape, dx));
        }
        for (at, (hidden, tape, dx)) in waiting.into_iter().enumerate() {
            if passes == (Passes::Stages { announced: true }) {
                let is_last = at + 1 == MICROBATCHES;
                grads.last_pass_of(first.iter().copied().filter(|_| is_last));
            }
            let dx = dx.into_iter().next().expect("one input");
            tape.backward_from(&[(&hidden, dx)], &mut grads)?;
        }
        let mut values = Vec::new();
        for (_, gradient) in grads.all()? {
            values.extend(gradient.local().to_vec::<f32>()?);
        }
        Ok::<_, Error>((values, rank.stats().collectives - before))
    })
}

/// The passes of two stages give the gradients of the whole model, in the same bits, because each
/// stage adds its microbatches in the same order. If stages announce their last passes, no unit is
/// reduced for a pass of another stage.
#[test]
fn stages_share_one_grads() {
    let strategies = [Strategy::replicate(["dp"]), Strategy::zero1(["dp"]), Strategy::fsdp(["dp"])];
    for strategy in strategies {
        let run = |passes| {
            let local = Local::new(RANKS).threads(1);
            local.launch(|rank| gradients(rank, &strategy, passes)).unwrap()
        };
        let whole = run(Passes::Whole);
        for announced in [true, false] {
            let stages = run(Passes::Stages { announced });
            for ((expected, of_whole), (actual, of_stages)) in whole.iter().zip(&stages) {
                assert_eq!(actual, expected, "{strategy:?}");
                assert!(!announced || of_stages == of_whole, "{strategy:?}");
            }
        }
    }
}

/// Further passes after the last that was announced or expected add to the gradients, as on one rank.
/// They are reduced by themselves.
#[test]
fn further_passes_are_reduced_by_themselves() {
    let strategies = || {
        let hsdp = Strategy::hsdp(["dp"], ["copies"]);
        [Strategy::replicate(["copies", "dp"]), Strategy::zero1(["copies", "dp"]), hsdp]
    };
    let run = |rank: &dyn Rank, strategy: &Strategy, is_announced: bool| {
        let mesh = Mesh::new(&[2, 2], &["copies", "dp"])?;
        Redistributor::new(rank).run_on(&mesh, || {
            let model = Chain::new(2, WIDTH);
            DataParallel::new(rank, &mesh, strategy.clone())
                .unit("layers.*", strategy.clone())
                .apply(&model)?;
            for layer in &model.layers {
                let shape = layer.weight.shape();
                layer.weight.set(&runtime::full(rank.device(), shape, DType::F32, 0.5)?)?;
            }
            let params = model.params();
            let mut grads = Grads::new(&params)?;
            let x = runtime::full(rank.device(), &[4, WIDTH], DType::F32, 1.0)?;
            let rows = ["copies", "dp"].map(|axis| (axis, Placement::shard(0)));
            let x = Var::constant(meshgrad_collectives::redistribute(&x, rows)?);
            for pass in [0, 1, 1, 1, 0] {
                let (y, tape) = Tape::record(|| ops::linear(&x, &params[pass].var()?))?;
                if is_announced {
                    grads.last_pass_of([&params[pass]]);
                }
                tape.backward_from(&[(&y, y.value().clone())], &mut grads)?;
            }
            let mut values = Vec::new();
            for (param, gradient) in grads.all()? {
                let value = gradient.local().to_vec::<f32>()?;
                values.push((param.name().to_owned(), value));
            }
            Ok::<_, Error>(values)
        })
    };
    // Of a pass, each element is the sum of 0.5 WIDTH over 4 rows.
    let of_pass = 4.0 * 0.5 * WIDTH as f32;
    for strategy in strategies() {
        for is_announced in [true, false] {
            let ranks = Local::new(4).threads(1).launch(|rank| run(rank, &strategy, is_announced));
            for (name, values) in ranks.unwrap().into_iter().flatten() {
                let passes = if name == "layers.0.weight" { 2.0 } else { 3.0 };
                let is_sum = values.iter().all(|value| *value == passes * of_pass);
                assert!(is_sum, "{strategy:?} {is_announced} {name}: {values:?}");
            }
        }
    }
}

/// Ranks may differ in the use of an optional layer. All reduce the layers in one order, so that no
/// rank adds the gradient of one to that of another.
#[test]
fn ranks_may_leave_out_a_layer() {
    let model = || {
        let mut model = Chain::new(3, WIDTH);
        let spec = Spec { optional: true, ..Spec::new([WIDTH, WIDTH], Init::Normal { std: 0.1 }) };
        model.layers[1].weight = Param::with_spec("layers.1.weight", spec);
        model
    };
    let gradients = |params: &[Param], x: Tensor, rank: usize, grads: &mut Grads| {
        let used: Vec<&Param> = match rank {
            0 => params.iter().collect(),
            _ => vec![&params[0], &params[2]],
        };
        let (y, tape) = Tape::record(|| forward(&used, &Var::constant(x)))?;
        tape.backward_from(&[(&y, y.value().clone())], grads)
    };
    let values = |grads: &mut Grads| {
        let all = grads.all()?.into_iter();
        all.map(|(_, it)| it.local().to_vec::<f32>()).collect::<Result<Vec<_>>>()
    };
    let run = |rank: &dyn Rank, starts_in_pass: bool| {
        let mesh = Mesh::new(&[RANKS], &["dp"])?;
        Redistributor::new(rank).run_on(&mesh, || {
            let (model, replicate) = (model(), Strategy::replicate(["dp"]));
            let parallel = DataParallel::new(rank, &mesh, replicate.clone());
            parallel.unit("layers.*", replicate).apply(&model)?;
            model.materialize(rank.device(), 1)?;
            let mut grads = Grads::new(&model.params())?;
            if !starts_in_pass {
                grads.expect_passes(2); // so that reading starts the reductions
            }
            let x = rows(rank.device(), 0)?;
            gradients(&model.params(), x, rank.rank(), &mut grads)?;
            values(&mut grads)
        })
    };
    let device = Device::cpu();
    let model = model();
    model.materialize(&device, 1).unwrap();
    let mut grads = Grads::new(&model.params()).unwrap();
    let x = all_rows(&device, 0).unwrap();
    for (rank, range) in [0..3, 3..5, 5..7].into_iter().enumerate() {
        gradients(&model.params(), x.slice(0, range).unwrap(), rank, &mut grads).unwrap();
    }
    let expected = values(&mut grads).unwrap();
    for starts_in_pass in [true, false] {
        let local = Local::new(RANKS).threads(1);
        for actual in local.launch(|rank| run(rank, starts_in_pass)).unwrap() {
            for (actual, expected) in actual.iter().flatten().zip(expected.iter().flatten()) {
                assert!(
                    (actual - expected).abs() <= 1e-9 + 1e-5 * expected.abs(),
                    "{actual} {expected}"
                );
            }
        }
    }
}

/// The gradients of each microbatch, in the order of the model's parameters. With `apart`, each stage's
/// are taken after its own pass, while the other stage is ahead or behind.
fn gradients_by_microbatch(
    rank: &dyn Rank,
    strategy: &Strategy,
    apart: bool,
) -> Result<Vec<Vec<f32>>> {
    let mesh = Mesh::new(&[RANKS], &["dp"])?;
    Redistributor::new(rank).run_on(&mesh, || {
        let model = Chain::new(4, WIDTH);
        let parallel = DataParallel::new(rank, &mesh, strategy.clone());
        parallel.unit("layers.*", strategy.clone()).apply(&model)?;
        model.materialize(rank.device(), 1)?;
        let params = model.params();
        let stages = params.split_at(2);
        let mut grads = Grads::new(&params)?;
        let values = |gradients: Vec<Tensor>| {
            let values = gradients.iter().map(|gradient| gradient.local().to_vec::<f32>());
            Ok::<_, Error>(values.collect::<Result<Vec<_>>>()?.concat())
        };

        let (mut taken, mut waiting) = (Vec::new(), Vec::new());
        for microbatch in 0..MICROBATCHES {
            let x = Var::constant(rows(rank.device(), microbatch)?);
            let [first, second] =
                [stages.0, stages.1].map(|stage| stage.iter().collect::<Vec<_>>());
            let (hidden, tape) = Tape::record(|| forward(&first, &x))?;
            let ((input, y), second_tape) = Tape::record(|| {
                let input = Var::input(hidden.value().clone());
                forward(&second, &input).map(|y| (input, y))
            })?;
            let root = [(&y, y.value().clone())];
            let dx = second_tape.backward_with(&root, &[&input], &mut grads)?.swap_remove(0);
            if apart {
                taken.push(values(grads.take(stages.1)?)?);
                waiting.push((hidden, tape, dx));
            } else {
                tape.backward_from(&[(&hidden, dx)], &mut grads)?;
                taken.push(values(grads.take(&params)?)?);
            }
        }
        for ((hidden, tape, dx), second) in waiting.into_iter().zip(&mut taken) {
            tape.backward_from(&[(&hidden, dx)], &mut grads)?;
            let first = values(grads.take(stages.0)?)?;
            *second = [first, std::mem::take(second)].concat();
        }
        Ok::<_, Error>(taken)
    })
}

/// The gradients of a stage can be taken while another stage is ahead, as a sum of each stage's own
/// passes needs. They have the bits of the whole model's.
#[test]
fn a_stage_takes_its_gradients() {
    let strategies = [Strategy::replicate(["dp"]), Strategy::zero1(["dp"]), Strategy::fsdp(["dp"])];
    for strategy in strategies {
        let run = |apart| {
            let local = Local::new(RANKS).threads(1);
            local.launch(|rank| gradients_by_microbatch(rank, &strategy, apart)).unwrap()
        };
        let whole = run(false);
        assert_ne!(whole[0][0], whole[0][1], "microbatches differ");
        assert_eq!(run(true), whole, "{strategy:?}");
    }
}

/// The parameters of a unit are reduced together, so they are of one stage.
#[test]
fn a_unit_of_two_stages_cannot_be_taken_apart() {
    let messages = Local::run(RANKS, |rank| {
        let mesh = Mesh::new(&[RANKS], &["dp"])?;
        Redistributor::new(rank).run_on(&mesh, || {
            let model = Chain::new(2, WIDTH);
            DataParallel::new(rank, &mesh, Strategy::fsdp(["dp"])).apply(&model)?;
            model.materialize(rank.device(), 1)?;
            let mut grads = Grads::new(&model.params())?;
            let error = grads.take(&model.params()[..1]).unwrap_err();
            Ok::<_, Error>(error.to_string())
        })
    });
    let message = &messages.unwrap()[0];
    assert!(message.starts_with("take: `layers.1.weight` is in the unit of"), "{message}");
}
