//! No rank allocates a whole logits, matrix or inner activation.

use meshgrad_autograd::{Grads, Module, Result, Tape, Var};
use meshgrad_collectives::redistribute;
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::{Mesh, Placement};
use meshgrad_models::families::qwen3::Qwen3Config;
use meshgrad_models::moe::Dispatch;
use meshgrad_models::{Compute, Decoder, Model, ModelParallelism, ModelPlan, TokenBatch};
use meshgrad_runtime::{DType, Device, Key, Tensor, ops};

use crate::sharded::run::gradients;

const TOKENS: usize = 96;
const VOCABULARY: usize = 4096;
const HIDDEN: usize = 32;
const INNER: usize = 1024;

fn config() -> Qwen3Config {
    let text = format!(
        r#"
        model_type = "qwen3"
        vocab_size = {VOCABULARY}
        hidden_size = {HIDDEN}
        intermediate_size = {INNER}
        num_hidden_layers = 2
        num_attention_heads = 4
        num_key_value_heads = 4
        tie_word_embeddings = true
        "#
    );
    toml::from_str(&text).unwrap()
}

/// The largest allocation, and the peak, of a step and of what comes before it, in bytes.
fn largest_and_peak(device: &Device, model: &Decoder) -> Result<[usize; 2]> {
    model.materialize(device, 1)?;
    let ids: Vec<i64> = (0..TOKENS).map(|at| (at * 31 % VOCABULARY) as i64).collect();
    let ids = Tensor::from_slice(device, &[1, TOKENS], &ids)?.as_replicated()?;
    let batch = TokenBatch::new(&ids, &ids);
    let compute = Compute::new(DType::F32);
    gradients(&model.params(), || model.loss(&batch, compute))?;
    let stats = device.memory_stats();
    Ok([stats.largest, stats.peak])
}

/// Of each of four ranks, with sequence parallelism.
fn on_ranks(chunks: usize) -> Vec<[usize; 2]> {
    let mesh = Mesh::new(&[4], &["tp"]).unwrap();
    let of_ranks = Local::run(4, |rank| {
        Redistributor::new(rank).run_on(&mesh, || {
            let model = Decoder::new(&config())?;
            let parallelism = ModelParallelism::new(&mesh).tensor(["tp"]).unwrap();
            let parallelism = parallelism.sequence_parallel(true).overlap_chunks(chunks);
            let plan = model.plan(&parallelism)?;
            plan.apply(&model, Rank::rank(rank))?;
            largest_and_peak(rank.device(), &model)
        })
    });
    of_ranks.unwrap()
}

#[test]
fn no_rank_allocates_what_is_sharded() {
    let bytes = |elements: usize| 4 * elements;
    let logits = bytes(TOKENS * VOCABULARY);
    let matrix = bytes(VOCABULARY * HIDDEN);
    let activation = bytes(TOKENS * 2 * INNER);
    let smallest = logits.min(matrix).min(activation);

    let device = Device::cpu();
    let [alone, _] = largest_and_peak(&device, &Decoder::new(&config()).unwrap()).unwrap();
    assert!(alone >= smallest, "{alone}");

    for (rank, [largest, _]) in on_ranks(1).into_iter().enumerate() {
        assert!(largest < smallest, "rank {rank}: {largest} of {smallest} bytes");
    }
}

/// Experts on ranks of their own: no rank ever holds those of another, nor their gradients.
#[test]
fn no_rank_allocates_all_experts() {
    const EXPERTS: usize = 8;
    const FEATURES: usize = 256;
    let text = format!(
        r#"
        model_type = "qwen3_moe"
        vocab_size = 64
        hidden_size = {HIDDEN}
        num_hidden_layers = 2
        num_attention_heads = 4
        num_key_value_heads = 4
        num_experts = {EXPERTS}
        num_experts_per_tok = 2
        moe_intermediate_size = {FEATURES}
        "#
    );
    let config: Qwen3Config = toml::from_str(&text).unwrap();
    let step = |device: &Device, model: &Decoder, rows: &[(&str, Placement)]| -> Result<usize> {
        model.materialize(device, 1)?;
        let ids: Vec<i64> = (0..4 * 5).map(|at| at * 31 % 64).collect();
        let ids = Tensor::from_slice(device, &[4, 5], &ids)?.as_replicated()?;
        let ids = redistribute(&ids, rows)?;
        let compute = Compute::new(DType::F32);
        gradients(&model.params(), || model.loss(&TokenBatch::new(&ids, &ids), compute))?;
        Ok(device.memory_stats().largest)
    };
    let all = 4 * EXPERTS * 2 * FEATURES * HIDDEN;
    let device = Device::cpu();
    let alone = step(&device, &Decoder::new(&config).unwrap(), &[]).unwrap();
    assert!(alone >= all, "{alone}");

    for dispatch in [Dispatch::AllGather, Dispatch::AllToAll] {
        let (mesh, experts) =
            (Mesh::new(&[4], &["dp"]).unwrap(), Mesh::new(&[4], &["ep"]).unwrap());
        let largest = Local::run(4, |rank| {
            Redistributor::new(rank).run_on(&mesh, || {
                let mut model = Decoder::new(&config)?;
                model.dispatch_experts_by(dispatch);
                let parallelism =
                    ModelParallelism::new(&mesh).experts(&experts, ["ep"], [""; 0])?;
                model.plan(&parallelism)?.apply(&model, Rank::rank(rank))?;
                step(rank.device(), &model, &[("dp", Placement::shard(0))])
            })
        });
        for (rank, largest) in largest.unwrap().into_iter().enumerate() {
            assert!(largest < all, "{dispatch:?}, rank {rank}: {largest} of {all} bytes");
            assert!(3 * largest <= alone, "{dispatch:?}, rank {rank}: {largest} of {alone} bytes");
        }
    }
}

/// Two chunks are in memory in addition, each before and after its collective.
#[test]
fn overlap_adds_chunks_to_the_peak() {
    const CHUNKS: usize = 4;

    let chunk = 4 * TOKENS * HIDDEN / CHUNKS;
    let ranks = on_ranks(1).into_iter().zip(on_ranks(CHUNKS));
    for (rank, ([_, whole], [_, overlapped])) in ranks.enumerate() {
        assert!(
            overlapped <= whole + 4 * chunk,
            "rank {rank}: {overlapped} bytes, {whole} without overlap"
        );
    }
}

/// The peak of a block of experts over four ranks, in rows of features: what docs/experts.md says.
#[test]
fn dispatchers_need_so_many_rows() {
    const TOKENS: usize = 64;
    const FEATURES: usize = 128;
    let text = format!(
        r#"
        model_type = "qwen3_moe"
        vocab_size = 64
        hidden_size = {FEATURES}
        num_hidden_layers = 1
        num_attention_heads = 4
        num_key_value_heads = 4
        num_experts = 8
        num_experts_per_tok = 2
        moe_intermediate_size = 1
        "#
    );
    let config: Qwen3Config = toml::from_str(&text).unwrap();
    let (mesh, experts) = (Mesh::new(&[4], &["dp"]).unwrap(), Mesh::new(&[4], &["ep"]).unwrap());
    // The rows that the peak is above what is there before.
    let peak = |dispatch: Dispatch, slots: Option<usize>| {
        let peaks = Local::new(4).threads(1).launch(|rank| {
            Redistributor::new(rank).run_on(&mesh, || {
                let mut moe = config.moe(&"mlp".into());
                moe.dispatch_by(dispatch);
                moe.adapt_slots(slots.is_some());
                moe.set_slots(slots.unwrap_or_default());
                ModelPlan::new(&mesh)
                    .place_on(&experts, "*.experts.*_proj", [("ep", Placement::shard(0))])
                    .apply(&moe, Rank::rank(rank))?;
                moe.materialize(rank.device(), 1)?;
                let key = Key::new(3);
                let shape = [4 * TOKENS, FEATURES];
                let x = ops::normal(rank.device(), &shape, DType::F32, key, 0.0, 1.0)?;
                let x = redistribute(&x, [("dp", Placement::shard(0))])?;
                let mut grads = Grads::new(&moe.params())?;
                rank.device().reset_peak();
                let before = rank.device().memory_stats().live;
                let ((x, y), tape) = Tape::record(|| {
                    let x = Var::input(x);
                    let y = moe.forward(&x)?.0;
                    Ok((x, y))
                })?;
                tape.backward_with(&[(&y, y.value().clone())], &[&x], &mut grads)?;
                let above = rank.device().memory_stats().peak - before;
                Ok::<_, meshgrad_comm::Error>(above / (4 * FEATURES))
            })
        });
        peaks.unwrap().into_iter().max().unwrap()
    };
    let all_gather = peak(Dispatch::AllGather, None);
    let [worst, adapted] = [None, Some(64)].map(|slots| peak(Dispatch::AllToAll, slots));
    println!("rows at the peak: all_gather {all_gather}, all_to_all {worst}, adapted {adapted}");
    assert!(adapted < all_gather && all_gather < worst);
}
