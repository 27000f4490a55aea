//! A small Qwen3-MoE, data parallel over dp, tensor and sequence parallel over tp, on four ranks of any launcher.
//!
//! ```text
//! cargo run --example 12-tensor-parallel     # one rank, then four threads
//! meshgrad launch -n 4 -- target/debug/examples/12-tensor-parallel
//! mpirun --oversubscribe -n 4 target/debug/examples/12-tensor-parallel    # built with --features mpi
//! ```

use meshgrad::collectives::{full_concat, redistribute_like};
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::prelude::*;

const CONFIG: &str = r#"{
    "model_type": "qwen3_moe", "vocab_size": 260, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": true
}"#;

/// The rows of this rank's dp index; on one rank all rows.
fn batch(device: &Device) -> Result<TokenBatch> {
    let text = b"one source for one rank and for many; ";
    let token = |at: usize| i64::from(text[at % text.len()]);
    let rows = |shift: usize| {
        let tokens: Vec<i64> = (0..4 * 48).map(|at| token(at + at / 48 * 7 + shift)).collect();
        let whole = Tensor::from_slice(device, &[4, 48], &tokens)?.as_replicated()?;
        ops::redistribute(&whole, [("dp", Placement::shard(0))])
    };
    Ok(TokenBatch::new(&rows(0)?, &rows(1)?))
}

/// The mean loss of each step of gradient descent.
fn train(model: &Decoder, device: &Device) -> Result<Vec<f32>> {
    model.materialize(device, 42)?;
    let batch = batch(device)?;
    let mut grads = Grads::new(&model.params())?;
    let step = |_| {
        let (loss, tape) = Tape::record(|| model.loss(&batch, Compute::new(DType::F32)))?;
        tape.backward(&loss.total, &mut grads)?;
        // Each rank has the sums of its own tokens.
        let sums = full_concat(&[&loss.sum, &loss.weight])?.to_vec::<f32>()?;
        let (sum, weight) = (sums[0], sums[1]);
        for (param, gradient) in grads.all()? {
            let value = param.value()?;
            let gradient = redistribute_like(&gradient, &value)?;
            param
                .set(&ops::sub(&value, &ops::affine(&gradient, 0.2 / f64::from(weight), 0.0)?)?)?;
        }
        grads.clear();
        Ok(sum / weight)
    };
    (0..5).map(step).collect()
}

/// [`train`] as a rank of a 2 x 2 mesh.
fn train_on(rank: &dyn Rank) -> Result<Vec<f32>> {
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"])?;
    let model = Decoder::new(&Qwen3Config::from_json(CONFIG)?)?;
    let parallelism = ModelParallelism::new(&mesh).tensor(["tp"])?;
    let plan = model.plan(&parallelism.sequence_parallel(true))?;
    if rank.rank() == 0 {
        println!("{plan}");
    }
    plan.apply(&model, rank.rank())?;
    Redistributor::new(rank).run_on(&mesh, || train(&model, rank.device()))
}

fn main() -> Result<()> {
    let model = Decoder::new(&Qwen3Config::from_json(CONFIG)?)?;
    println!("one rank: losses {:.4?}", train(&model, &Device::cpu())?);
    println!("of four ranks: losses {:.4?}", ranks::run(4, train_on)?[0]);
    Ok(())
}
