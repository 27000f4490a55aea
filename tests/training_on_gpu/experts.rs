//! Experts on ranks whose devices are GPUs.

use meshgrad::collectives::full_tensor;
use meshgrad::comm::{Local, LocalRank, Rank, Redistributor};
use meshgrad::data_parallel::{DataParallel, Strategy};
use meshgrad::mesh::{Mesh, Placement};
use meshgrad::models::moe::Dispatch;
use meshgrad::models::{ModelParallelism, TokenBatch};
use meshgrad::runtime::Kind;

use super::*;

/// Runs `f` on ranks, with what makes a model whose experts are divided over them.
fn on_ranks(
    ranks: usize,
    f: impl Fn(&LocalRank, &dyn Fn() -> Result<Decoder>) -> Result<()> + Sync,
) {
    let mesh = Mesh::new(&[ranks], &["dp"]).unwrap();
    let local = Local::new(ranks).devices((0..ranks).map(|_| gpu()).collect());
    let ran = local
        .launch(|rank| Redistributor::new(rank).run_on(&mesh, || f(rank, &|| model(rank, &mesh))));
    ran.unwrap();
}

fn model(rank: &LocalRank, mesh: &Mesh) -> Result<Decoder> {
    let experts = Mesh::new(&[rank.world_size()], &["ep"])?;
    let none: [&str; 0] = [];
    let mut model = decoder::model(&config(&[]), 257, None)?;
    model.dispatch_experts_by(Dispatch::AllToAll);
    model.adapt_expert_slots(true);
    let parallelism = ModelParallelism::new(mesh).experts(&experts, ["ep"], none)?;
    model.plan(&parallelism)?.apply(&model, rank.rank())?;
    let homes = DataParallel::new(rank, mesh, Strategy::fsdp(["dp"]));
    homes.mesh(&experts, none, none).apply(&model)?;
    model.materialize(rank.device(), 7)?;
    Ok(model)
}

/// Rows of all ranks.
fn batch(device: &Device, step: u64) -> Result<TokenBatch> {
    let id = |at: u64| ((at * at + 7 * at + 13 * step) % 256) as i64;
    let rows = |shift: u64| -> Result<Tensor> {
        let ids: Vec<i64> = (0..3 * 40).map(|at| id(at + shift)).collect();
        let all = Tensor::from_slice(device, &[3, 40], &ids)?.as_replicated()?;
        ops::redistribute(&all, [("dp", Placement::shard(0))])
    };
    Ok(TokenBatch::new(&rows(0)?, &rows(1)?))
}

/// Dispatching tokens to other ranks does not make the host wait for its GPU, in slots of any number.
#[test]
fn a_dispatch_never_blocks_the_host() {
    on_ranks(2, |rank, model| {
        let device = rank.device();
        let mut trainer = Trainer::new(model()?, &config(&[]), device)?;
        for steps in [1..=1, 2..=4] {
            let batches: Vec<TokenBatch> =
                steps.clone().map(|step| batch(device, step)).collect::<Result<_>>()?;
            let before = device.waits();
            let pending = steps.zip(batches).map(|(step, batch)| trainer.step(step, [Ok(batch)]));
            let pending: Vec<PendingStep> = pending.collect::<Result<_>>()?;
            assert_eq!(device.waits(), before);
            for step in pending {
                assert!(!step.wait(&trainer.model)?.overflowed);
            }
            assert!(device.waits() > before, "reading waits");
        }
        Ok(())
    });
}

/// A model with its optimizer and the word of overflows, for single steps.
struct Dispatching {
    model: Decoder,
    optimizer: Optimizer,
    batch: TokenBatch,
    overflow: Tensor,
}

impl Dispatching {
    fn new(model: Decoder, device: &Device) -> Result<Dispatching> {
        let optimizer = Optimizer::new(&model, device, &config(&[]).optimizer, 1)?;
        let overflow = Tensor::zeros(device, &[], DType::F32, Kind::OptimizerState)?;
        Ok(Dispatching { model, optimizer, batch: batch(device, 0)?, overflow })
    }

    /// A step that changes nothing if it overflows. Returns the sums of its statistics.
    fn work(&mut self) -> Result<Vec<Tensor>> {
        let compute = Compute::new(DType::F32);
        let (loss, tape) = Tape::record(|| self.model.loss(&self.batch, compute))?;
        tape.backward(&loss.total, self.optimizer.grads())?;
        let statistics: Vec<Tensor> =
            loss.statistics.iter().map(full_tensor).collect::<Result<_>>()?;
        if let Some(of_step) = self.model.overflow(&statistics)? {
            let sum = ops::add(&self.overflow, &of_step.local())?;
            ops::copy_into(&sum, &self.overflow)?;
        }
        let weight = full_tensor(&loss.weight)?;
        self.optimizer.apply_unless(&self.overflow, &weight)?;
        Ok(statistics)
    }

    fn bits(&self) -> Result<Vec<f32>> {
        let params = self.model.params();
        let values = params.iter().map(|param| param.kept_value()?.local().to_vec());
        Ok(values.collect::<Result<Vec<Vec<f32>>>>()?.concat())
    }
}

/// In a world of one rank, a step with a dispatch is captured. Replayed with too few slots it changes
/// nothing; captured again with those that it needs, it has the bits of an eager step.
#[test]
fn a_step_with_a_dispatch_is_captured() {
    on_ranks(1, |rank, model| {
        let device = rank.device();
        let mut eager = Dispatching::new(model()?, device)?;
        let mut captured = Dispatching::new(model()?, device)?;
        for step in 1..=4 {
            eager.optimizer.begin(step, 1e-3)?;
            eager.work()?;
            if step == 1 {
                captured.optimizer.begin(step, 1e-3)?;
                captured.work()?;
            }
        }

        captured.model.sparse_blocks().for_each(|moe| moe.set_slots(64));
        let before = captured.bits()?;
        let mut graph = device.capture(|| captured.work())?;
        captured.optimizer.begin(2, 1e-3)?;
        graph.launch()?;
        assert!(captured.overflow.item::<f32>()? > 0.0);
        assert!(captured.bits()? == before);

        let sums = graph.results().iter().map(Tensor::local);
        let sums: Vec<Vec<f32>> = sums.map(|of_layer| of_layer.to_vec()).collect::<Result<_>>()?;
        captured.model.follow(&sums);
        ops::fill_into(&captured.overflow, 0.0)?;
        drop(graph);
        let mut graph = device.capture(|| captured.work())?;
        for step in 2..=4 {
            captured.optimizer.begin(step, 1e-3)?;
            graph.launch()?;
        }
        assert_eq!(captured.overflow.item::<f32>()?, 0.0);
        drop(graph);
        assert!(captured.bits()? == eager.bits()?);
        Ok(())
    });
}
