//! A meta device predicts the memory and the FLOPs of the device it imitates.

use meshgrad::autograd::{Module, Tape};
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::models::{Balancing, Compute, Decoder, Model, TokenBatch};
use meshgrad::prelude::*;
use meshgrad::runtime::Work;
use meshgrad::train::config::OptimizerConfig;
use meshgrad::train::optimizer::Optimizer;

fn config(name: &str) -> Qwen3Config {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/fixtures");
    let text = std::fs::read_to_string(folder.join(name).join("config.json")).unwrap();
    Qwen3Config::from_json(&text).unwrap()
}

/// One training step. Returns its work and the peak memory.
fn step(
    device: &Device,
    config: &Qwen3Config,
    compute: Compute,
    shape: [usize; 2],
) -> (Work, usize) {
    let model = Decoder::materialized(config, device, 1).unwrap();
    let options = OptimizerConfig::default();
    let mut optimizer = Optimizer::new(&model, device, &options, 1).unwrap();
    let tokens: Vec<i64> =
        (0..shape[0] * shape[1]).map(|i| (i % config.vocab_size) as i64).collect();
    let ids = Tensor::from_slice(device, &shape, &tokens).unwrap();

    device.reset_peak();
    let balancing = Balancing { auxiliary: 0.01, z: 0.001, ..Balancing::default() };
    let model = model.balanced(balancing);
    let batch = TokenBatch::new(&ids, &ids);
    let (loss, tape) = Tape::record(|| model.loss(&batch, compute)).unwrap();
    tape.backward(&loss.total, optimizer.grads()).unwrap();
    optimizer.step(&loss.weight, 1, 1e-3).unwrap();
    (device.work(), device.memory_stats().peak)
}

/// A training step has the same memory and FLOPs on both devices, in both dtypes, with and without
/// activation checkpointing.
#[test]
fn meta_predicts_memory_and_flops_of_the_cpu() {
    for name in ["dense-bias-yarn", "dense-window-linear", "moe-hub-sharded", "moe-sparse-step"] {
        for dtype in [DType::F32, DType::BF16] {
            for checkpointing in [false, true] {
                let compute = Compute { dtype, checkpointing };
                let cpu = Device::cpu();
                let meta = Device::meta(cpu.properties());
                let config = config(name);
                let measured = step(&cpu, &config, compute, [3, 17]);
                let predicted = step(&meta, &config, compute, [3, 17]);
                assert_eq!(predicted, measured, "{name} {compute:?}");
            }
        }
    }
}

/// A model that is too large for this machine can be planned on it.
#[test]
fn meta_plans_a_model_that_does_not_fit() {
    let config = Qwen3Config::from_json(include_str!("../../examples/qwen3-30b-a3b.json")).unwrap();
    let meta = Device::meta(Device::cpu().properties());
    let compute = Compute { dtype: DType::BF16, checkpointing: true };
    let (work, peak) = step(&meta, &config, compute, [1, 4096]);

    // Master weights, gradients and two moments in f32 and a copy in bf16: 18 bytes per parameter,
    // plus activations.
    let model = Decoder::new(&config).unwrap();
    let count = model.parameter_count();
    let parameters = count.total() as usize;
    assert!(peak > 18 * parameters && peak < 19 * parameters, "{peak}");
    // Six floating-point operations per token and active parameter in GEMMs, eight with
    // recomputation, plus attention.
    let products = 8 * 4096 * count.active_in_matmuls();
    assert!(work.flops > products && work.flops < 2 * products, "{}", work.flops);
    assert_eq!(model.params().len(), 3 + 48 * 11);
}
