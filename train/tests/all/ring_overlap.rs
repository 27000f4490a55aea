//! Computation hides the exchange of keys in ring attention, in simulated time.

use std::sync::Arc;
use std::time::Duration;

use meshgrad_autograd::{Grads, Module, Tape, Var};
use meshgrad_collectives::redistribute;
use meshgrad_comm::conformance::RewiredRank;
use meshgrad_comm::{LocalRank, Rank, Redistributor};
use meshgrad_mesh::Mesh;
use meshgrad_models::{Decoder, Model, ModelParallelism, TokenBatch};
use meshgrad_runtime::{DType, Key, Result, ops};

use crate::dispatch_overlap::{PER_FLOP, local};
use crate::homes::paced::{Pace, PacedConnector};
use crate::small;

const TOKENS: usize = 1024;
const MODEL: &str = r#"
    model_type = "qwen3"
    vocab_size = 16
    hidden_size = 8
    intermediate_size = 8
    num_hidden_layers = 1
    num_attention_heads = 4
    num_key_value_heads = 2
    head_dim = 8
"#;

/// How long a forward and a backward pass of attention take, and their computation.
fn pass(rank: &LocalRank, ranks: usize, per_flop: Duration) -> Result<[Duration; 2]> {
    let pace = Pace::new(rank, per_flop);
    let connector = PacedConnector { inner: rank.connector(), pace: pace.clone() };
    let paced = RewiredRank::new(rank, Arc::new(connector));
    let mesh = Mesh::new(&[ranks], &["cp"])?;
    Redistributor::new(&paced).run_on(&mesh, || {
        let model = Decoder::new(&small::config(MODEL))?;
        let parallelism = ModelParallelism::new(&mesh).context(["cp"])?.ring(true);
        model.plan(&parallelism)?.apply(&model, rank.rank())?;
        model.materialize(rank.device(), 1)?;
        let ids = ops::full(rank.device(), &[1, TOKENS], DType::I64, 0.0)?;
        let ids = redistribute(&ids, parallelism.of_tokens())?;
        let at = model.positions_of(&TokenBatch::new(&ids, &ids))?;
        let x = ops::normal(rank.device(), &[1, TOKENS, 8], DType::F32, Key::new(3), 0.0, 1.0)?;
        let x = redistribute(&x, parallelism.of_tokens())?;
        let attention = &model.layers[0].self_attn;
        let mut grads = Grads::new(&attention.params())?;

        pace.catch_up();
        let (start, before) = (rank.clock().now(), rank.device().work().flops);
        let ((x, y), tape) = Tape::record(|| {
            let x = Var::input(x);
            let y = attention.forward(&x, &at, None)?;
            Ok((x, y))
        })?;
        tape.backward_with(&[(&y, y.value().clone())], &[&x], &mut grads)?;
        pace.catch_up();
        let computed = pace.time(rank.device().work().flops - before);
        Ok([rank.clock().now() - start, computed])
    })
}

/// Each hop is beside the computation of the one before; the gradients of the last one are beside none.
#[test]
fn attention_hides_the_ring() {
    for ranks in [2, 4, 8] {
        let longest = |per_flop| {
            let times = local(ranks).launch(|rank| pass(rank, ranks, per_flop)).unwrap();
            times.into_iter().max().unwrap()
        };
        let [transfers, _] = longest(Duration::ZERO);
        let [all, computed] = longest(PER_FLOP);
        let hidden = 1.0 - (all - computed).as_secs_f64() / transfers.as_secs_f64();
        println!(
            "{ranks} ranks: {computed:?} of computation hide {:.0} % of {transfers:?}",
            100.0 * hidden
        );
        // Of 3 (ranks - 1) exchanges, all but one; of some, a part is longer than a hop.
        let exchanges = 3.0 * (ranks - 1) as f64;
        assert!(hidden >= 1.0 - 1.75 / exchanges, "{ranks} ranks: {hidden:.3}");
    }
}
