//! Steps in graphs: all collectives of a step but those of pipelines are captured with it.

use meshgrad_autograd::{Tape, ops};
use meshgrad_collectives::full_tensor;
use meshgrad_comm::{Local, NcclRank, Rank};
use meshgrad_models::{Decoder, Model, TokenBatch};
use meshgrad_runtime::{DType, Device, Kind as TensorKind, Tensor};
use meshgrad_train::Result;
use meshgrad_train::optimizer::Optimizer;
use meshgrad_train::ranks::RunRanks;
use meshgrad_train::trainer::Trainer;

use crate::homes::step::Share;
use crate::small;
use crate::together::draw::{Combination, Kind};
use crate::together::is_exhaustive;
use crate::together::nccl::{along, on_gpus};
use crate::together::run::{Microbatch, divided, weights};

/// A model with its optimizer and the word of overflows, for steps on one batch.
struct Stepping {
    model: Decoder,
    optimizer: Optimizer,
    batch: TokenBatch,
    overflow: Tensor,
}

impl Stepping {
    fn new(of: &Combination, ranks: &RunRanks<'_>, device: &Device) -> Result<Stepping> {
        let Trainer { model, optimizer, .. } = divided(of, ranks, device)?;
        let batch = Microbatch { of, number: 0, device, ranks: Some(ranks) }.tensors()?;
        let overflow = Tensor::zeros(device, &[], DType::F32, TensorKind::OptimizerState)?;
        Ok(Stepping { model, optimizer, batch, overflow })
    }

    fn begin(&self, step: u64) -> Result<()> {
        self.optimizer.begin(step, 1e-2)
    }

    /// A step that changes nothing if it overflows. Returns the sums of its statistics.
    fn work(&mut self) -> Result<Vec<Tensor>> {
        let compute = small::compute(false, false);
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

    /// Two steps in a graph, which is captured after the first step. With too few slots for the tokens of experts a
    /// step changes nothing, and is captured again with those that it needs.
    fn two_in_graphs(&mut self, device: &Device) -> Result<()> {
        if self.model.sparse_blocks().count() > 0 {
            self.model.sparse_blocks().for_each(|moe| moe.set_slots(1));
            let before = weights(&self.model)?;
            let mut graph = device.capture(|| self.work())?;
            self.begin(2)?;
            graph.launch()?;
            assert!(self.overflow.item::<f32>()? > 0.0);
            assert!(weights(&self.model)? == before);
            let sums = graph.results().iter().map(|it| it.local().to_vec::<f32>());
            self.model.follow(&sums.collect::<Result<Vec<_>>>()?);
            ops::fill_into(&self.overflow, 0.0)?;
        }
        let mut graph = device.capture(|| self.work())?;
        for step in 2..=3 {
            self.begin(step)?;
            graph.launch()?;
        }
        assert_eq!(self.overflow.item::<f32>()?, 0.0);
        Ok(())
    }
}

/// What each rank has of the weights after three steps.
fn trained(of: &Combination, in_graphs: bool) -> Vec<Vec<Share>> {
    let config = of.config();
    let ran = Local::new(of.ranks()).threads(1).launch(|rank| -> Result<Vec<Share>> {
        let rank = NcclRank::new(rank, Device::emulator(rank.rank())?)?;
        let ranks = RunRanks::new(&rank, &config)?;
        ranks.on_mesh(|| {
            let mut stepping = Stepping::new(of, &ranks, rank.device())?;
            for step in 1..=if in_graphs { 1 } else { 3 } {
                stepping.begin(step)?;
                stepping.work()?;
            }
            if in_graphs {
                stepping.two_in_graphs(rank.device())?;
            }
            weights(&stepping.model)
        })
    });
    ran.unwrap()
}

#[test]
fn steps_in_graphs_have_the_bits_of_eager_ones() {
    let test = "together::captured::steps_in_graphs_have_the_bits_of_eager_ones";
    on_gpus(test, if is_exhaustive() { 3 } else { 1 }, 1, |case| {
        let all = [
            along(&[("dp_shard", 3), ("ep", 3)], Kind::Experts),
            along(&[("dp_shard", 2), ("tp", 2), ("ep", 2)], Kind::Experts),
            along(&[("cp_shard", 2), ("tp", 2)], Kind::Dense),
        ];
        let of = all[case].clone();
        let (overflows, ring) = (of.degree("ep") > 1, of.degree("cp_shard") > 1);
        let of = Combination { overflows, ring, ..of };
        assert!(trained(&of, true) == trained(&of, false), "{of}");
    });
}
