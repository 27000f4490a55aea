//! Strict mode finds ranks with other values.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use meshgrad_autograd::{Grads, Init, Param, Tape, Var, ops};
use meshgrad_collectives::with_redistribution;
use meshgrad_comm::{Local, Plan, Rank, Redistributor, check_logs};
use meshgrad_mesh::{Mesh, Placement, Sharding};
use meshgrad_runtime::{DType, Error, Kind, Result, Tensor, ops as runtime, with_mesh};

use crate::redistribution::gradients::two_layers;
use crate::redistribution::recorder::{Deviation, Recorder, logged};

/// Where rank 4 has another value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Other {
    Nothing,
    Parameter,
    Root,
    RootGradient,
    /// An input that is said to be replicated over tp.
    Input,
}

fn step(rank: &dyn Rank, mesh: &Mesh, other: Other) -> Result<()> {
    let value = |case: Other, usual: f64| match rank.rank() == 4 && case == other {
        true => usual + 1.0,
        false => usual,
    };
    let filled = |shape: &[usize], value| runtime::full(rank.device(), shape, DType::F32, value);
    let w = Param::new("w", [2, 4], Init::Zeros);
    w.set(&filled(&[2, 4], value(Other::Parameter, 0.5))?)?;
    // 5 rows over dp.
    let rows = Sharding::new(mesh, [("dp", Placement::shard(0))], &[5, 4])?;
    let local = rows.local_shape(rank.rank()).unwrap();
    let x = filled(&local, value(Other::Input, 1.0))?.local();
    let x = Var::constant(x.with_sharding(&rows, rank.rank())?);

    let (loss, tape) = Tape::record(|| {
        let loss = ops::sum(&ops::linear(&x, &w.var()?)?, &[0, 1])?;
        let root = Var::constant(filled(&[], value(Other::Root, 1.0))?);
        ops::add(&ops::redistribute(&loss, [("dp", Placement::Replicate)])?, &root)
    })?;
    let mut grads = Grads::new(&[w])?;
    tape.backward_from(&[(&loss, filled(&[], value(Other::RootGradient, 1.0))?)], &mut grads)
}

#[test]
fn other_values_on_a_rank_are_errors() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let run = |other: Other, is_strict: bool| {
        Local::run(6, |rank| {
            let redistributor = Redistributor::new(rank);
            let redistributor = match is_strict {
                true => redistributor.strict(),
                false => redistributor,
            };
            with_redistribution(Arc::new(redistributor), || {
                with_mesh(&mesh, rank.rank(), || step(rank, &mesh, other))
            })
        })
    };
    let cases = [
        (Other::Parameter, "`w`", "[4]"),
        // The sum over dp has the value in the loss of rank 1.
        (Other::Input, "a root of backward", "[1, 4]"),
        (Other::Root, "a root of backward", "[4]"),
        (Other::RootGradient, "the gradient of a root", "[4]"),
    ];
    for (other, name, ranks) in cases {
        run(other, false).unwrap();
        let error = run(other, true).unwrap_err().to_string();
        assert!(error.contains(name), "{other:?}: {error}");
        assert!(error.contains(ranks), "{other:?}: {error}");
    }
    run(Other::Nothing, true).unwrap();
}

/// A parameter that the loss does not depend on is compared, too.
#[test]
fn parameters_and_gradients_are_compared() {
    let mesh = Mesh::new(&[3], &["dp"]).unwrap();
    for other in [false, true] {
        let result = Local::run(3, |rank| -> Result<()> {
            let redistributor = Arc::new(Redistributor::new(rank).strict());
            let w = Param::new("w", [3], Init::Zeros);
            let value = if other && rank.rank() == 1 { 2.0f32 } else { 1.0 };
            let value = Tensor::from_slice(rank.device(), &[3], &[value; 3])?;
            let replicated = Sharding::replicated(&mesh, &[3])?;
            w.set(&value.with_sharding(&replicated, rank.rank())?)?;
            with_redistribution(redistributor, || {
                let (y, tape) = Tape::record(|| ops::affine(&w.var()?, 0.0, 0.0))?;
                let dy = Tensor::zeros(rank.device(), &[3], DType::F32, Kind::Value)?;
                let dy = dy.with_sharding(&replicated, rank.rank())?;
                tape.backward_from(&[(&y, dy)], &mut Grads::new(std::slice::from_ref(&w))?)
            })
        });
        match other {
            true => {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("`w`") && error.contains("[1]"), "{error}");
            }
            false => result.map(drop).unwrap(),
        }
    }
}

/// Before `Grads::on_ready` reports a gradient, whose buffer the callback may reduce.
#[test]
fn gradients_are_compared_before_they_are_reported() {
    let mesh = Mesh::new(&[3], &["dp"]).unwrap();
    let reported = Arc::new(AtomicUsize::new(0));
    let result = Local::run(3, |rank| -> Result<()> {
        let replicated = Sharding::replicated(&mesh, &[3])?;
        let stated = |values: [f32; 3]| -> Result<Tensor> {
            let x = Tensor::from_slice(rank.device(), &[3], &values)?;
            x.with_sharding(&replicated, rank.rank())
        };
        let w = Param::new("w", [3], Init::Zeros);
        w.set(&stated([0.0; 3])?)?;
        let mut grads = Grads::new(std::slice::from_ref(&w))?;
        let count = reported.clone();
        grads.on_ready(move |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let redistributor = Arc::new(Redistributor::new(rank).strict());
        with_redistribution(redistributor, || {
            // The product with zeros is equal on all ranks, but its gradient is not.
            let factor = Var::constant(stated([1.0 + rank.rank() as f32; 3])?);
            let (y, tape) = Tape::record(|| ops::mul(&w.var()?, &factor))?;
            tape.backward_from(&[(&y, stated([1.0; 3])?)], &mut grads)
        })
    });
    let error = result.unwrap_err().to_string();
    assert!(error.contains("the gradient of `w`") && error.contains("[1, 2]"), "{error}");
    assert_eq!(reported.load(Ordering::Relaxed), 0);
}

#[test]
fn a_correct_program_passes() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    Local::run(6, |rank| {
        let redistributor = Arc::new(Redistributor::new(rank).strict());
        with_redistribution(redistributor, || two_layers(Some((rank, &mesh))).map(drop))
    })
    .unwrap();
}

/// Ranks whose `Grads` have other parameters compare different tensors, also if the values are
/// equal.
#[test]
fn comparing_different_tensors_is_an_error() {
    let mesh = Mesh::new(&[3], &["dp"]).unwrap();
    let run = |other: &'static str| {
        Local::run(3, |rank| -> Result<()> {
            let name = if rank.rank() == 2 { other } else { "w" };
            let w = Param::new(name, [3], Init::Ones);
            w.shard(&Sharding::replicated(&mesh, &[3])?, rank.rank())?;
            w.materialize(rank.device(), 0)?;
            let redistributor = Arc::new(Redistributor::new(rank).strict());
            with_redistribution(redistributor, || {
                let (y, tape) = Tape::record(|| ops::affine(&w.var()?, 2.0, 0.0))?;
                let dy = y.value().clone();
                tape.backward_from(&[(&y, dy)], &mut Grads::new(std::slice::from_ref(&w))?)
            })
        })
    };
    run("w").unwrap();
    let error = run("another").unwrap_err().to_string();
    let expected =
        "rank 0 compares `w`, f32[3] (dp: replicate), but rank 2 compares `another`, f32[3]";
    assert!(error.contains(expected), "{error}");
}

/// A plan has no values, and logs what is executed.
#[test]
fn a_plan_logs_the_comparisons() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let run = |rank: &dyn Rank, is_strict: bool| -> Result<()> {
        let redistributor = Redistributor::new(rank);
        let redistributor = match is_strict {
            true => redistributor.strict(),
            false => redistributor,
        };
        with_redistribution(Arc::new(redistributor), || {
            with_mesh(&mesh, rank.rank(), || step(rank, &mesh, Other::Nothing))
        })
    };
    let executed = Local::run(6, |rank| {
        let recorder = Recorder::default();
        run(&recorder.on(rank, Deviation::None), true)?;
        Ok::<_, Error>(recorder.take())
    });
    let logs = |is_strict| {
        let plan = Plan::new(6).unwrap();
        let logs = plan.trace_all(|rank| run(rank, is_strict)).unwrap();
        check_logs(&logs).unwrap();
        logs.iter().map(logged).collect::<Vec<_>>()
    };
    assert_eq!(logs(true), executed.unwrap());
    assert!(logs(true)[0].len() > logs(false)[0].len());
}
