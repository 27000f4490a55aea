//! Frozen parameters cost no gradient and no reduction.

use meshgrad_autograd::{Module, Param};
use meshgrad_comm::{Collective, CommLog};
use meshgrad_models::Decoder;
use meshgrad_runtime::Device;

use crate::homes::cases::{Case, DP3, Trained};
use crate::homes::resources::{Costs, HOMES, STEPS, planned};
use crate::homes::step::{PASSES, TOKENS, alone, optimizer, passes};
use crate::small::{DENSE, EXPERTS};

const RANKS: usize = 3;

fn meta() -> Device {
    Device::meta(Device::cpu().properties())
}

fn model(case: &Case) -> Decoder {
    alone(case, &meta()).unwrap()
}

/// The FLOPs of the passes on one rank, which has all rows.
fn flops_alone(case: &Case) -> u64 {
    let device = meta();
    let model = alone(case, &device).unwrap();
    let mut optimizer = optimizer(case, &model, &device).unwrap();
    let grads = optimizer.grads();
    let before = device.work().flops;
    for step in 0..STEPS {
        passes(case, &model, grads, &device, step).unwrap();
        grads.clear();
    }
    device.work().flops - before
}

/// What the ranks do.
struct Work {
    /// Of the passes, over all ranks.
    flops: u64,
    /// What one rank sends.
    log: CommLog,
}

impl Work {
    fn of(case: &Case) -> Work {
        let ranks = (0..RANKS).map(|rank| planned(case, rank));
        let (costs, mut logs): (Vec<Costs>, Vec<CommLog>) = ranks.unzip();
        Work { flops: costs.iter().map(|costs| costs.flops).sum(), log: logs.swap_remove(0) }
    }

    fn bytes(&self, kinds: &[Collective]) -> u64 {
        let is_counted = |kind| kinds.contains(&kind);
        let calls = self.log.calls();
        let counted = calls.filter(|call| is_counted(call.request.fingerprint.collective));
        counted.map(|call| call.bytes).sum()
    }

    fn reduced(&self) -> u64 {
        self.bytes(&[Collective::ReduceScatter, Collective::AllReduce])
    }

    fn gathered(&self) -> u64 {
        self.bytes(&[Collective::AllGather])
    }
}

fn elements<'a>(params: impl IntoIterator<Item = &'a Param>) -> usize {
    let params = params.into_iter();
    params.map(|param| param.shape().elements()).sum()
}

/// The elements of the gradients of `params` in the buffers of units.
fn buffered(params: &[Param]) -> usize {
    let elements = params.iter().map(|param| param.shape().elements());
    elements.map(|it| it.next_multiple_of(64)).sum()
}

/// The reductions of a unit in a step.
fn reductions(case: &Case) -> usize {
    match case.name.starts_with("fsdp") {
        true => PASSES,
        false => 1,
    }
}

/// The bytes that all steps reduce of the gradients of `params`.
fn reduced_bytes(case: &Case, params: &[Param]) -> u64 {
    (4 * STEPS * reductions(case) * buffered(params)) as u64
}

#[test]
fn a_frozen_layer_costs_no_gradient_and_no_reduction() {
    const LAYER: usize = 1;

    for (name, home) in HOMES {
        for text in [DENSE, EXPERTS] {
            let all = Case::new(name, text, DP3, home);
            let frozen = all.trained(Trained::Except(LAYER));
            let (of_all, of_frozen) = (Work::of(&all), Work::of(&frozen));
            let params = model(&all).layers[LAYER].params();
            let saved_bytes = of_all.reduced() - of_frozen.reduced();
            assert_eq!(saved_bytes, reduced_bytes(&all, &params), "{name}");
            // Its weights are gathered for the gradient of its input, but do not change.
            let unchanged = match name {
                "zero1" => 4 * (STEPS - 1) * buffered(&params),
                _ => 0,
            };
            let saved_bytes = of_all.gathered() - of_frozen.gathered();
            assert_eq!(saved_bytes, unchanged as u64, "{name}");

            let saved = of_all.flops - of_frozen.flops;
            let saved_alone = flops_alone(&all) - flops_alone(&frozen);
            let matrices = params.iter().filter(|param| param.shape().len() > 1);
            let tokens = all.rows() * TOKENS * PASSES * STEPS;
            assert!(saved_alone >= (2 * tokens * elements(matrices)) as u64);
            // Each rank adds its rows to a bias, and reduced gradients of passes are summed.
            let biases = params.iter().filter(|param| param.name().ends_with("bias"));
            let by_ranks = (RANKS - 1) * PASSES * STEPS * elements(biases);
            let by_passes = (reductions(&all) - 1) * STEPS * buffered(&params);
            assert_eq!(saved, saved_alone + (by_ranks + by_passes) as u64, "{name}");
        }
    }
}

#[test]
fn with_adapters_nothing_else_is_reduced() {
    for (name, home) in HOMES {
        for text in [DENSE, EXPERTS] {
            let all = Case::new(name, text, DP3, home);
            let adapters = all.trained(Trained::Adapters);
            let (of_all, of_adapters) = (Work::of(&all), Work::of(&adapters));
            let bytes = |case: &Case| reduced_bytes(case, &model(case).trained());
            let saved_bytes = of_all.reduced() - of_adapters.reduced();
            assert_eq!(saved_bytes, bytes(&all) - bytes(&adapters), "{name}");

            let alone = flops_alone(&adapters);
            let more = of_adapters.flops - alone;
            assert!(more * 1000 < alone, "{name}: {more} more than {alone}");
        }
    }
}
