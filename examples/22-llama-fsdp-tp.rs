//! PyTorch's tutorial "Large Scale Transformer model training with Tensor Parallel (TP)": a Llama 2 on
//! eight ranks, fully sharded over dp 4, tensor and sequence parallel over tp 2. The sizes are the
//! tutorial's, except for a smaller vocabulary and shorter rows. The losses are those of one rank. The same model, written out: example 13.
//!
//! - as threads: `cargo run --example 22-llama-fsdp-tp`
//! - as processes: `torchrun --no-python --nproc_per_node=8 target/debug/examples/22-llama-fsdp-tp`

use meshgrad::collectives::full_concat;
use meshgrad::models::families;
use meshgrad::prelude::*;
use meshgrad::runtime::Key;

const LLAMA: &str = r#"{
    "model_type": "llama", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 768,
    "num_hidden_layers": 2, "num_attention_heads": 16
}"#;
const VOCABULARY: f64 = 1024.0;
const ROWS: usize = 8;
const TOKENS: usize = 32;
const STEPS: u64 = 10;
const LEARNING_RATE: f64 = 3e-3;

/// Random tokens, each of which is the label of the one before; a rank keeps the rows of its index on dp.
fn batch(device: &Device, step: u64) -> Result<TokenBatch> {
    let shape = [ROWS, TOKENS + 1];
    let random = ops::uniform(device, &shape, DType::F32, Key::new(step), 0.0, VOCABULARY)?;
    let tokens = ops::cast(&random, DType::I64)?;
    let part = |first| {
        let tokens = tokens.slice(1, first..first + TOKENS)?;
        ops::redistribute(&tokens, [("dp", Placement::shard(0))])
    };
    Ok(TokenBatch::new(&part(0)?, &part(1)?))
}

/// The mean loss of each step.
fn train(model: &Decoder, device: &Device) -> Result<Vec<f32>> {
    model.materialize(device, 0)?;
    let mut optimizer = Optimizer::new(model, device, &OptimizerConfig::default(), 0)?;
    let step = |step| {
        let batch = batch(device, step)?;
        let (loss, tape) = Tape::record(|| model.loss(&batch, Compute::new(DType::F32)))?;
        tape.backward(&loss.total, optimizer.grads())?;
        optimizer.step(&loss.weight, step, LEARNING_RATE)?;
        let sums = full_concat(&[&loss.sum, &loss.weight])?.to_vec::<f32>()?;
        Ok(sums[0] / sums[1])
    };
    (1..=STEPS).map(step).collect()
}

/// The model of a rank: `parallelize_module` with a plan, then `fully_shard`.
fn train_on(rank: &dyn Rank) -> Result<Vec<f32>> {
    let mesh = Mesh::new(&[4, 2], &["dp", "tp"])?; // init_device_mesh
    let model = Decoder::new(&*families::from_json(LLAMA)?)?;
    let parallelism = ModelParallelism::new(&mesh).tensor(["tp"])?.sequence_parallel(true);
    let plan = model.plan(&parallelism)?;
    if rank.rank() == 0 {
        println!("{plan}");
    }
    plan.apply(&model, rank.rank())?;
    DataParallel::new(rank, &mesh, Strategy::fsdp(["dp"]))
        .unit("model.layers.*", Strategy::fsdp(["dp"]))
        .apply(&model)?;
    Redistributor::new(rank).run_on(&mesh, || train(&model, rank.device()))
}

fn main() -> Result<()> {
    let one = train(&Decoder::new(&*families::from_json(LLAMA)?)?, &Device::cpu())?;
    let losses = ranks::run(8, train_on)?;
    for (step, (one, eight)) in one.iter().zip(&losses[0]).enumerate() {
        println!("step {:>2}: one rank {one:.6}, eight ranks {eight:.6}", step + 1);
        assert!((one - eight).abs() < 1e-4);
    }
    Ok(())
}
