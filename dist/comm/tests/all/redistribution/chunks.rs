//! Redistributions in chunks, alone and beside matrix products.

use std::ops::Range;

use meshgrad_autograd::{Grads, Init, Module, Param, Result, Seam, Tape, Var, ops};
use meshgrad_collectives::Redistribute;
use meshgrad_comm::{Local, LocalRank, Rank, Redistributor};
use meshgrad_mesh::{Chunks, Mesh, Placement, Sharding};
use meshgrad_runtime::{Pending, Tensor, ops as runtime};

use crate::parts::part;
use crate::redistribution::{pairs, whole};

/// The elements of some rows of `x`.
fn elements(x: &Tensor, rows: &[Range<usize>]) -> Vec<f32> {
    let columns = x.extent(-1).unwrap();
    let all = x.local().to_vec::<f32>().unwrap();
    let of = |rows: &Range<usize>| all[rows.start * columns..rows.end * columns].to_vec();
    rows.iter().flat_map(of).collect()
}

/// Redistributes all chunks, each started before the one before is waited for, and compares them
/// with the rows of the whole result.
fn check_chunks(rank: &LocalRank, [from, to]: &[Sharding; 2], count: usize) -> Result<()> {
    let redistributor = Redistributor::new(rank);
    let x = part(&whole(rank.device(), from.shape()), from, rank.rank());
    let expected = redistributor.redistribute(&x, to)?;
    let chunks = Chunks::new(from, to, count);
    let region = |sharding: &Sharding| sharding.region(rank.rank()).unwrap();
    let start = |chunk| {
        let shape = chunks.part(chunk, &region(from)).extents();
        let values = elements(&x, &chunks.rows(chunk, &region(from)));
        let x = Tensor::from_slice(rank.device(), &shape, &values)?;
        redistributor.start_chunk(&x, [from, to], &chunks, chunk)
    };
    let started: Result<Vec<Pending<Tensor>>> = (0..chunks.len()).map(start).collect();
    for (chunk, pending) in started?.into_iter().enumerate() {
        let actual = pending.wait()?;
        assert_eq!(actual.sharding(), None);
        assert_eq!(
            actual.to_vec::<f32>()?,
            elements(&expected, &chunks.rows(chunk, &region(to))),
            "chunk {chunk} of {}, {from} -> {to} of {:?}",
            chunks.len(),
            to.shape()
        );
    }
    Ok(())
}

#[test]
fn chunks_of_any_redistribution_are_rows_of_the_whole() {
    let one = Mesh::new(&[3], &["tp"]).unwrap();
    let two = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    let cases = [
        (&one, &[7, 4][..], 1),
        (&one, &[1, 7, 4], 1),
        (&one, &[3, 5, 4], 1),
        (&one, &[0, 5, 4], 3),
        (&two, &[7, 4], 5),
        (&two, &[1, 9, 4], 41),
        (&two, &[3, 5, 4], 43),
    ];
    for (mesh, shape, step) in cases {
        let pairs = pairs(mesh, shape, step);
        let checked = Local::run(mesh.len(), |rank| {
            for pair in &pairs {
                check_chunks(rank, pair, 2)?;
                check_chunks(rank, pair, 4)?;
            }
            Ok::<_, meshgrad_runtime::Error>(())
        });
        checked.unwrap();
    }
}

/// A column-parallel layer with two weights, then a row-parallel layer.
#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Layers {
    input: Seam,
    gate: Param,
    up: Param,
    down: Param,
    output: Seam,
}

impl Layers {
    fn on(mesh: &Mesh, rank: &LocalRank, sequence: bool, chunks: usize) -> Result<Layers> {
        let layers = Layers {
            input: Seam::new("input"),
            gate: Param::new("gate", [5, 4], Init::Normal { std: 0.5 }),
            up: Param::new("up", [5, 4], Init::Normal { std: 0.5 }),
            down: Param::new("down", [4, 5], Init::Normal { std: 0.5 }),
            output: Seam::new("output"),
        };
        let placed =
            |dim, shape: &[usize]| Sharding::new(mesh, [("tp", Placement::shard(dim))], shape);
        layers.gate.shard(&placed(0, &[5, 4])?, rank.rank())?;
        layers.up.shard(&placed(0, &[5, 4])?, rank.rank())?;
        layers.down.shard(&placed(1, &[4, 5])?, rank.rank())?;
        layers.input.place([("tp", Placement::Replicate)]);
        layers.output.place([("tp", between(sequence))]);
        layers.input.overlap(chunks);
        layers.output.overlap(chunks);
        layers.materialize(rank.device(), 3)?;
        Ok(layers)
    }

    fn forward(&self, x: &Var) -> Result<Var> {
        let (gate, up) = (self.gate.var()?, self.up.var()?);
        let [gate, up] = self.input.redistribute_linear(x, [&gate, &up])?;
        let inside = (&ops::silu(&gate)? * &up)?;
        self.output.linear_redistribute(&inside, &self.down.var()?)
    }
}

fn between(sequence: bool) -> Placement {
    match sequence {
        true => Placement::shard(1),
        false => Placement::Replicate,
    }
}

/// The bits of this rank's part of the result and of all gradients.
fn bits(
    rank: &LocalRank,
    mesh: &Mesh,
    sequence: bool,
    chunks: usize,
    backward: Backward,
) -> Result<Vec<Vec<u32>>> {
    Redistributor::new(rank).run_on(mesh, || {
        let layers = Layers::on(mesh, rank, sequence, chunks)?;
        let from = Sharding::new(mesh, [("tp", between(sequence))], &[1, 7, 4])?;
        let x = runtime::affine(&whole(rank.device(), &[1, 7, 4]), 0.1, 0.0)?.local();
        let x = part(&x, &from, rank.rank());
        let ((x, y), tape) = Tape::record(|| {
            let x = Var::input(x.clone());
            let y = layers.forward(&x)?;
            Ok::<_, meshgrad_runtime::Error>((x, y))
        })?;
        let mut grads = Grads::new(&layers.params())?;
        let roots = [(&y, y.value().clone())];
        let mut tensors = match backward {
            Backward::Split => {
                let (dx, weights) = tape.backward_inputs(&roots, &[&x])?;
                weights.run(&mut grads)?;
                dx
            }
            Backward::Full => {
                tape.backward_from(&roots, &mut grads)?;
                Vec::new()
            }
        };
        tensors.push(y.value().clone());
        for (_, gradient) in grads.all()? {
            tensors.push(gradient);
        }
        let of = |x: &Tensor| Ok(x.local().to_vec::<f32>()?.iter().map(|x| x.to_bits()).collect());
        tensors.iter().map(of).collect()
    })
}

#[derive(Clone, Copy)]
enum Backward {
    Full,
    Split,
}

/// Chunks change no bit, and neither does a split backward, which keeps what it has gathered.
#[test]
fn chunks_beside_products_change_no_bit() {
    for ranks in [2, 3, 4] {
        let mesh = Mesh::new(&[ranks], &["tp"]).unwrap();
        for sequence in [false, true] {
            let run = |chunks, backward| {
                let run = |rank: &LocalRank| bits(rank, &mesh, sequence, chunks, backward);
                Local::run(ranks, run).unwrap()
            };
            let split = run(1, Backward::Split);
            for chunks in [1, 2, 3] {
                let what = format!("{ranks} ranks, {chunks} chunks, sequence: {sequence}");
                assert_eq!(run(chunks, Backward::Split), split, "{what}");
                let without_dx = |of: &Vec<Vec<u32>>| of[1..].to_vec();
                let expected: Vec<_> = split.iter().map(without_dx).collect();
                assert_eq!(run(chunks, Backward::Full), expected, "{what}");
            }
        }
    }
}
