//! A table that two stages of a pipeline use: each has a copy, and both copies have the gradient of
//! one table, the same bits after each step, and one place in the norm and in a checkpoint.

use meshgrad_autograd::{Grads, Init, Module, Param, Tape, Var, ops as tracked};
use meshgrad_ckpt::Folder;
use meshgrad_collectives::redistribute;
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Collectives, Local, LocalRank, Rank, Redistributor};
use meshgrad_data_parallel::{DataParallel, Strategy};
use meshgrad_mesh::{Mesh, Placement, Sharding};
use meshgrad_models::folder;
use meshgrad_runtime::{DType, Device, ShardedShape, Tensor, ops};
use meshgrad_train::optim::{AdamW, AdamWConfig, Groups, OptimizerPart, UpdateRule};
use meshgrad_train::optimizer::Optimizer;
use meshgrad_train::ranks::checkpoint_ranks;

use crate::homes::step::{Outcome, Result, Share, assembled, scalar, share};
use crate::small::{distance, norm};

const STAGES: usize = 2;
const TOKENS: usize = 3;
const WIDTH: usize = 6;
const ENTRIES: usize = 7;
const STEPS: usize = 3;

/// One end of the model.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
struct End {
    table: Param,
    weight: Param,
}

impl End {
    fn new(name: &str, table: &Param) -> End {
        End {
            table: table.clone(),
            weight: Param::new(name, [WIDTH, WIDTH], Init::Normal { std: 0.5 }),
        }
    }

    fn embed(&self, ids: &Tensor) -> meshgrad_runtime::Result<Var> {
        let x = tracked::embedding(&self.table.var()?, ids)?;
        tracked::linear(&x, &self.weight.var()?)
    }

    fn loss(&self, x: &Var) -> meshgrad_runtime::Result<Var> {
        let x = tracked::linear(x, &self.weight.var()?)?;
        let logits = tracked::linear(&x, &self.table.var()?)?;
        tracked::sum(&tracked::square(&logits)?, &[0, 1, 2])
    }
}

fn table() -> Param {
    Param::new("table", [ENTRIES, WIDTH], Init::Normal { std: 0.5 })
}

/// Ids [rows, TOKENS], on all ranks.
fn ids(device: &Device, rows: usize, step: usize) -> meshgrad_runtime::Result<Tensor> {
    let id = |at: usize| ((at * at + 3 * at + 5 * step) % ENTRIES) as i64;
    let ids: Vec<i64> = (0..rows * TOKENS).map(id).collect();
    Tensor::from_slice(device, &[rows, TOKENS], &ids)?.as_replicated()
}

/// Adds the gradients of a step on one rank.
fn whole_pass(ends: &[End; 2], ids: &Tensor, grads: &mut Grads) -> Result<()> {
    let (loss, tape) = Tape::record(|| ends[1].loss(&ends[0].embed(ids)?))?;
    tape.backward(&loss, grads)
}

/// A rank of one of the stages.
struct Member<'a> {
    rank: &'a LocalRank,
    stage: usize,
    mesh: Mesh,
    /// The ranks of all stages with the same rows.
    pipeline: &'a dyn meshgrad_comm::Communicator,
}

impl Member<'_> {
    /// The sharding of what one stage sends to the other.
    fn sharding(&self, rows: usize) -> Result<Sharding> {
        let placements = [("dp", Placement::shard(0))];
        Sharding::new(&self.mesh, placements, &[rows, TOKENS, WIDTH])
    }

    fn receive(&self, rows: usize) -> Result<Tensor> {
        let (sharding, rank) = (self.sharding(rows)?, self.rank.rank());
        let shape = ShardedShape::new(&sharding, rank)?;
        let peer = STAGES - 1 - self.stage;
        let x = self.pipeline.recv(shape.local(), DType::F32, peer)?.wait()?;
        x.with_sharding(&sharding, rank)
    }

    fn send(&self, x: &Tensor) -> Result<()> {
        let peer = STAGES - 1 - self.stage;
        self.pipeline.send(&x.local(), peer)?.wait()
    }

    /// Adds the gradients of this stage in a step.
    fn pass(&self, end: &End, ids: &Tensor, rows: usize, grads: &mut Grads) -> Result<()> {
        match self.stage {
            0 => {
                let ids = redistribute(ids, [("dp", Placement::shard(0))])?;
                let (x, tape) = Tape::record(|| end.embed(&ids))?;
                self.send(x.value())?;
                let dx = self.receive(rows)?;
                Ok(tape.backward_from(&[(&x, dx)], grads)?)
            }
            _ => {
                let x = self.receive(rows)?;
                let ((x, loss), tape) = Tape::record(|| {
                    let x = Var::input(x);
                    let loss = end.loss(&x)?;
                    Ok((x, loss))
                })?;
                let one = ops::full(self.rank.device(), &[], DType::F32, 1.0)?;
                let (dx, later) = tape.backward_inputs(&[(&loss, one)], &[&x])?;
                self.send(&dx[0])?;
                Ok(later.run(grads)?)
            }
        }
    }
}

fn train(
    model: &impl Module,
    device: &Device,
    rows: usize,
    mut pass: impl FnMut(&Tensor, &mut Grads) -> Result<()>,
) -> Result<Vec<Share>> {
    let adamw = |parts: &[OptimizerPart]| -> Result<Box<dyn UpdateRule>> {
        let config = AdamWConfig { eps: 1e-3, ..AdamWConfig::default() };
        Ok(Box::new(AdamW::new(parts, config, &Groups::default())?))
    };
    let mut optimizer = Optimizer::with(model, device, 1.0, adamw)?;
    let mut shares = Vec::new();
    for step in 0..STEPS {
        pass(&ids(device, rows, step)?, optimizer.grads())?;
        for (param, gradient) in optimizer.grads().all()? {
            let name = format!("gradient {step} of {}", param.name());
            shares.push(share(name, &param, &gradient)?);
        }
        let weight = ops::full(device, &[], DType::F32, rows as f64)?;
        let norm = optimizer.step(&weight, step as u64 + 1, 0.1)?;
        shares.push(scalar(format!("norm {step}"), &norm)?);
    }
    for param in model.params() {
        shares.push(share(param.name().to_owned(), &param, &param.kept_value()?)?);
    }
    Ok(shares)
}

fn on_one_rank(rows: usize) -> Outcome {
    let (device, table) = (Device::cpu(), table());
    let ends = [End::new("first", &table), End::new("last", &table)];
    let run = || {
        ends.materialize(&device, 1)?;
        train(&ends, &device, rows, |ids, grads| whole_pass(&ends, ids, grads))
    };
    assembled(&[run().unwrap()]).unwrap()
}

/// The outcome of `stages` x `ranks`, and the elements of the table in their checkpoint.
fn on_stages(
    ranks: usize,
    home: &Strategy,
    is_tied: bool,
    fault: Fault,
) -> std::result::Result<(Outcome, Vec<f32>), String> {
    let whole = Mesh::new(&[STAGES, ranks], &["pp", "dp"]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let shares = Local::new(whole.len()).launch(|rank| -> Result<Vec<Share>> {
        let stage = rank.rank() / ranks;
        let group = whole.group(["pp"], rank.rank()).unwrap().unwrap();
        let member = Member {
            rank,
            stage,
            mesh: whole.at("pp", stage).unwrap(),
            pipeline: &rank.connect("pipeline", &group)?,
        };
        let faulty = RewiredRank::faulty(rank, fault);
        Redistributor::new(rank).run_on(&member.mesh, || {
            let end = End::new(["first", "last"][stage], &table());
            let homes = DataParallel::of_stage(&faulty, &whole, "pp", home.clone())?;
            let homes = match is_tied {
                true => homes.tied("table", home.clone(), &[0, 1]),
                false => homes.unit("table", home.clone()),
            };
            homes.apply(&end)?;
            end.materialize(rank.device(), 1)?;
            let rows = 2 * ranks - 1;
            let shares =
                train(&end, rank.device(), rows, |ids, grads| member.pass(&end, ids, rows, grads))?;
            folder::save_sharded(&end, &path, &mut checkpoint_ranks(rank)?)?;
            Ok(shares)
        })
    });
    let outcome = assembled(&shares.map_err(|error| error.to_string())?)?;
    let saved = Folder::open(&path).unwrap();
    assert_eq!(saved.tensors().len(), 3);
    let bytes = saved.read("table").unwrap();
    let elements = bytes.chunks_exact(4);
    let saved = elements.map(|it| f32::from_le_bytes(it.try_into().unwrap()));
    Ok((outcome, saved.collect()))
}

fn homes() -> [Strategy; 3] {
    [Strategy::replicate(["dp"]), Strategy::zero1(["dp"]), Strategy::fsdp(["dp"])]
}

/// The tensors that differ.
fn differences(expected: &Outcome, actual: &Outcome) -> Vec<String> {
    assert!(actual.keys().eq(expected.keys()));
    let pairs = expected.iter().zip(actual.values());
    let differences = pairs.filter_map(|((name, expected), actual)| {
        let (difference, size) = (distance(expected, actual), norm(expected));
        let is_near = difference <= 1e-5 * size;
        (!is_near).then(|| format!("{name}: {difference:.1e} of {size:.1e}"))
    });
    differences.collect()
}

#[test]
fn a_table_of_two_stages_trains_as_on_one_rank() {
    for ranks in [1, 2, 3] {
        let expected = on_one_rank(2 * ranks - 1);
        for home in homes() {
            let (actual, saved) = on_stages(ranks, &home, true, Fault::None).unwrap();
            let problems = differences(&expected, &actual);
            assert!(problems.is_empty(), "{ranks} ranks, {home:?}: {problems:?}");
            assert_eq!(saved, actual["table"]);
        }
    }
}

/// A table that is not tied, and contributions that are lost or counted twice, are found.
#[test]
fn faults_give_other_tables() {
    let expected = on_one_rank(5);
    let faults = [(false, Fault::None), (true, Fault::Dropped), (true, Fault::Scaled)];
    for home in homes() {
        for (is_tied, fault) in faults {
            let outcome = on_stages(3, &home, is_tied, fault);
            let is_found = outcome.map_or(true, |(it, _)| !differences(&expected, &it).is_empty());
            assert!(is_found, "{home:?}, tied: {is_tied}, {fault:?}");
        }
    }
}
