//! How many collectives a step of data-parallel ranks needs.

use meshgrad_collectives::redistribute;
use meshgrad_comm::{Local, Rank, Redistributor, TracedRank};
use meshgrad_data_parallel::{DataParallel, Strategy};
use meshgrad_mesh::{Mesh, Placement};
use meshgrad_models::families::qwen3::Qwen3Config;
use meshgrad_models::{Balancing, Decoder, TokenBatch};
use meshgrad_runtime::{Device, Tensor};
use meshgrad_train::Result;
use meshgrad_train::config::{Config, NoTables};
use meshgrad_train::trainer::Trainer;

const LAYERS: usize = 5;
const RANKS: usize = 3;

/// A mixture of experts in which no layer has parameters of its own unit.
fn model(balancing: Balancing) -> Result<Decoder> {
    let config = format!(
        "model_type = 'qwen3_moe'
         vocab_size = 20
         hidden_size = 8
         num_hidden_layers = {LAYERS}
         num_attention_heads = 2
         num_key_value_heads = 1
         head_dim = 4
         num_experts = 4
         num_experts_per_tok = 2
         moe_intermediate_size = 6"
    );
    let mut model =
        Decoder::new(&toml::from_str::<Qwen3Config>(&config).unwrap())?.balanced(balancing);
    model.add_router_biases();
    Ok(model)
}

fn batch(device: &Device) -> Result<TokenBatch> {
    let ids: Vec<i64> = (0..7 * 4).map(|at| at * at % 20).collect();
    let ids = Tensor::from_slice(device, &[7, 4], &ids)?.as_replicated()?;
    let ids = redistribute(&ids, [("dp", Placement::shard(0))])?;
    Ok(TokenBatch::new(&ids, &ids))
}

/// The collectives of a step of `microbatches` on one of the ranks, and the loss of the second
/// step.
fn step(balancing: Balancing, microbatches: usize) -> (u64, f64) {
    let mesh = Mesh::new(&[RANKS], &["dp"]).unwrap();
    let counted = Local::new(RANKS).threads(1).launch(|rank| {
        let rank = TracedRank::new(rank);
        Redistributor::new(&rank).run_on(&mesh, || {
            let model = model(balancing)?;
            DataParallel::new(&rank, &mesh, Strategy::replicate(["dp"])).apply(&model)?;
            meshgrad_autograd::Module::materialize(&model, rank.device(), 1)?;
            let config = Config::parse::<NoTables>("", "the test", &[])?;
            let mut trainer = Trainer::new(model, &config, rank.device())?;
            let batches = || (0..microbatches).map(|_| batch(rank.device()));
            trainer.step(1, batches())?;
            let before = rank.stats().collectives;
            let done = trainer.step(2, batches())?;
            let collectives = rank.stats().collectives - before;
            Ok::<_, meshgrad_train::Error>((collectives, done.wait(&trainer.model)?.loss))
        })
    });
    counted.unwrap()[1]
}

/// The gradients take one collective, their norm another, and the sums of the step a third, however
/// many layers and microbatches there are. Losses of balancing need the counts of all ranks before
/// backward: one more per microbatch.
#[test]
fn a_step_reduces_its_sums_once() {
    let bias = Balancing { bias_update_rate: 0.1, ..Balancing::default() };
    let losses = Balancing { auxiliary: 0.01, z: 0.001, ..bias };
    let [without, with] = [bias, losses].map(|balancing| [1, 2, 4].map(|n| step(balancing, n)));
    assert_eq!(without.map(|(collectives, _)| collectives), [3; 3]);
    assert_eq!(with.map(|(collectives, _)| collectives), [4, 5, 7]);
    // Equal microbatches have the loss of one.
    for (_, loss) in without {
        assert!((loss - without[0].1).abs() < 1e-5, "{without:?}");
    }
}

/// Without homes, gradients of ranks with different rows are partial sums, which no optimizer
/// takes.
#[test]
fn a_partial_gradient_is_an_error() {
    let mesh = Mesh::new(&[2], &["dp"]).unwrap();
    let stepped = Local::run(2, |rank| {
        Redistributor::new(rank).run_on(&mesh, || {
            let model = model(Balancing::default())?;
            meshgrad_autograd::Module::materialize(&model, rank.device(), 1)?;
            let config = Config::parse::<NoTables>("", "the test", &[])?;
            let mut trainer = Trainer::new(model, &config, rank.device())?;
            let error = trainer.step(1, [batch(rank.device())]).map(drop).unwrap_err();
            Ok::<_, meshgrad_train::Error>(error.to_string())
        })
    });
    for error in stepped.unwrap() {
        assert!(error.contains("partial"), "{error}");
    }
}
