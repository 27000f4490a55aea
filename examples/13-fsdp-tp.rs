//! A Llama of one's own, fully sharded over dp, tensor and sequence parallel over tp, on eight ranks
//! of any launcher. The steps are those of PyTorch's tutorial on tensor parallelism with FSDP.
//!
//! ```text
//! cargo run --example 13-fsdp-tp     # one rank, then eight threads
//! meshgrad launch -n 8 -- target/debug/examples/13-fsdp-tp
//! mpirun --oversubscribe -n 8 target/debug/examples/13-fsdp-tp    # built with --features mpi
//! ```

use meshgrad::collectives::full_concat;
use meshgrad::prelude::*;
use meshgrad::runtime::Key;
use meshgrad::train::config::Algorithm;
use meshgrad::train::optim::AdamWConfig;

const VOCABULARY: usize = 512;
const FEATURES: usize = 64;
const HEADS: usize = 4;
const LAYERS: usize = 2;
const ROWS: usize = 8;
const TOKENS: usize = 32;
const STEPS: u64 = 5;
const LEARNING_RATE: f64 = 3e-3;

// Legend: b rows, t tokens, d features, h heads, c features per head.

#[derive(Module)]
struct Transformer {
    tok_embeddings: Param,
    embedded: Seam,
    layers: Vec<Block>,
    norm: RmsNorm,
    normed: Seam,
    output: Param,
}

#[derive(Module)]
struct Block {
    attention_norm: RmsNorm,
    attention: Attention,
    ffn_norm: RmsNorm,
    feed_forward: FeedForward,
}

#[derive(Module)]
struct Attention {
    input: Seam,
    wq: Linear,
    wk: Linear,
    wv: Linear,
    wo: Linear,
    output: Seam,
}

#[derive(Module)]
struct FeedForward {
    input: Seam,
    w1: Linear,
    w2: Linear,
    w3: Linear,
    output: Seam,
}

impl Transformer {
    fn new() -> Transformer {
        let (table, init) = ([VOCABULARY, FEATURES], Init::Normal { std: 0.02 });
        let block = |layer| Block::new(&ModulePath::from("layers").index(layer));
        Transformer {
            tok_embeddings: Param::new("tok_embeddings.weight", table, init),
            embedded: Seam::new("tok_embeddings.output"),
            layers: (0..LAYERS).map(block).collect(),
            norm: RmsNorm::new("norm", FEATURES, 1e-5),
            normed: Seam::new("output.input"),
            output: Param::new("output.weight", table, init),
        }
    }
}

impl Block {
    fn new(at: &ModulePath) -> Block {
        let linear = |name: &str, inputs, outputs| Linear::new(at.sub(name), inputs, outputs);
        let seam = |name: &str| Seam::new(at.sub(name));
        let (d, inner) = (FEATURES, 3 * FEATURES);
        Block {
            attention_norm: RmsNorm::new(at.sub("attention_norm"), d, 1e-5),
            attention: Attention {
                input: seam("attention.input"),
                wq: linear("attention.wq", d, d),
                wk: linear("attention.wk", d, d),
                wv: linear("attention.wv", d, d),
                wo: linear("attention.wo", d, d),
                output: seam("attention.output"),
            },
            ffn_norm: RmsNorm::new(at.sub("ffn_norm"), d, 1e-5),
            feed_forward: FeedForward {
                input: seam("feed_forward.input"),
                w1: linear("feed_forward.w1", d, inner),
                w2: linear("feed_forward.w2", inner, d),
                w3: linear("feed_forward.w3", d, inner),
                output: seam("feed_forward.output"),
            },
        }
    }

    fn forward(&self, x_btd: &Var, angles: &[Tensor; 2]) -> Result<Var> {
        let normed = self.attention_norm.forward(x_btd)?;
        let x_btd = (x_btd + &self.attention.forward(&normed, angles)?)?;
        let normed = self.ffn_norm.forward(&x_btd)?;
        &x_btd + &self.feed_forward.forward(&normed)?
    }
}

impl Attention {
    fn forward(&self, x_btd: &Var, [cos, sin]: &[Tensor; 2]) -> Result<Var> {
        let x_btd = self.input.redistribute(x_btd)?;
        // A rank has some of the heads.
        let c = FEATURES / HEADS;
        let heads = |linear: &Linear| ops::split_last(&linear.forward(&x_btd)?, c);
        let rotated = |x_bthc: Var| ops::rope(&x_bthc, cos, sin, RopeStyle::Interleaved);
        let (q_bthc, k_bthc) = (rotated(heads(&self.wq)?)?, rotated(heads(&self.wk)?)?);
        let (mask, scale) = (AttentionMask::causal(), (c as f64).sqrt().recip());
        let y_bthc = ops::attention(&q_bthc, &k_bthc, &heads(&self.wv)?, &mask, scale)?;
        let y_btd = self.wo.forward(&ops::merge_last(&y_bthc)?)?;
        self.output.redistribute(&y_btd)
    }
}

impl FeedForward {
    fn forward(&self, x_btd: &Var) -> Result<Var> {
        let x_btd = self.input.redistribute(x_btd)?;
        let inside = (&ops::silu(&self.w1.forward(&x_btd)?)? * &self.w3.forward(&x_btd)?)?;
        self.output.redistribute(&self.w2.forward(&inside)?)
    }
}

impl Model for Transformer {
    type Batch = TokenBatch;
    type Stream = ();

    fn loss(&self, batch: &TokenBatch, _: Compute) -> Result<Loss> {
        let x_btd = ops::embedding(&self.tok_embeddings.var()?, &batch.ids)?.as_activation()?;
        let mut x_btd = self.embedded.redistribute(&x_btd)?;
        let angles = angles(batch.ids.device())?;
        for layer in &self.layers {
            x_btd = layer.forward(&x_btd, &angles)?;
        }
        let x_btd = self.normed.redistribute(&self.norm.forward(&x_btd)?)?;
        let (sum, count) =
            ops::linear_cross_entropy(&x_btd, &self.output.var()?, &batch.labels, IGNORE_INDEX)?;
        Ok(Loss::new(sum, count))
    }

    /// Column and then row parallel blocks; between them, activations are sharded by tokens.
    fn plan(&self, parallelism: &ModelParallelism) -> Result<ModelPlan> {
        let (columns, rows) = (parallelism.shard(0), parallelism.shard(1));
        let (tokens, whole) = (parallelism.shard(1), parallelism.replicate());
        Ok(ModelPlan::new(&parallelism.mesh)
            .place("tok_embeddings.weight", &columns)
            .place("tok_embeddings.output", &tokens)
            .place("layers.*.attention.input", &whole)
            .place("layers.*.attention.w[qkv].weight", &columns)
            .place("layers.*.attention.wo.weight", &rows)
            .place("layers.*.attention.output", &tokens)
            .place("layers.*.feed_forward.input", &whole)
            .place("layers.*.feed_forward.w[13].weight", &columns)
            .place("layers.*.feed_forward.w2.weight", &rows)
            .place("layers.*.feed_forward.output", &tokens)
            .place("output.input", &whole)
            .place("output.weight", &columns))
    }
}

/// Cosines and sines of the rotary angles, [t, c / 2].
fn angles(device: &Device) -> Result<[Tensor; 2]> {
    let c = FEATURES / HEADS;
    let frequency = |pair: usize| 1e4f32.powf(-2.0 * pair as f32 / c as f32);
    let frequencies: Vec<f32> = (0..c / 2).map(frequency).collect();
    let frequencies = Tensor::from_slice(device, &[c / 2], &frequencies)?.as_replicated()?;
    let positions = ops::arange(device, TOKENS, DType::I64)?;
    let (cos, sin) = ops::rope_tables(&positions, &frequencies, 1.0)?;
    Ok([cos, sin])
}

/// Random tokens; a rank keeps the rows of its index on dp.
fn batch(device: &Device, step: u64) -> Result<TokenBatch> {
    let shape = [ROWS, TOKENS + 1];
    let random = ops::uniform(device, &shape, DType::F32, Key::new(step), 0.0, VOCABULARY as f64)?;
    let tokens = ops::cast(&random, DType::I64)?;
    let rows = |first| {
        let tokens = tokens.slice(1, first..first + TOKENS)?;
        ops::redistribute(&tokens, [("dp", Placement::shard(0))])
    };
    Ok(TokenBatch::new(&rows(0)?, &rows(1)?))
}

/// The mean loss of each step.
fn train(model: &Transformer, device: &Device) -> Result<Vec<f32>> {
    model.materialize(device, 42)?;
    let adamw = Algorithm::AdamW(AdamWConfig::default());
    let config = OptimizerConfig::new(adamw, LEARNING_RATE);
    let mut optimizer = Optimizer::new(model, device, &config, 0)?;
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

/// [`train`] as a rank of a 4 x 2 mesh.
fn train_on(rank: &dyn Rank) -> Result<Vec<f32>> {
    let mesh = Mesh::new(&[4, 2], &["dp", "tp"])?;
    let model = Transformer::new();
    let parallelism = ModelParallelism::new(&mesh).tensor(["tp"]);
    let plan = model.plan(&parallelism?)?;
    if rank.rank() == 0 {
        println!("{plan}");
    }
    plan.apply(&model, rank.rank())?;
    DataParallel::new(rank, &mesh, Strategy::fsdp(["dp"]))
        .unit("layers.*", Strategy::fsdp(["dp"]))
        .apply(&model)?;
    Redistributor::new(rank).run_on(&mesh, || train(&model, rank.device()))
}

fn main() -> Result<()> {
    println!("one rank: losses {:.4?}", train(&Transformer::new(), &Device::cpu())?);
    println!("of eight ranks: losses {:.4?}", ranks::run(8, train_on)?[0]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_ranks_train_as_one() {
        let one = train(&Transformer::new(), &Device::cpu()).unwrap();
        for eight in ranks::run(8, train_on).unwrap() {
            let apart = one.iter().zip(&eight).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f32::max) < 1e-4, "{one:?} and {eight:?}");
        }
    }
}
