//! The options of the block, in the form of DeepSeek-V3. `scripts/prove/deepseek-moe-golden` describes
//! and writes the fixtures.

use meshgrad_autograd::{Buffer, Grads, Init, Module, Result, Tape, Var, ops as tracked};
use meshgrad_collectives::redistribute;
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::{Mesh, Placement};
use meshgrad_models::ModelPlan;
use meshgrad_models::moe::{Dispatcher, ExpertPeers, ExpertRows, Moe, RoutedTokens};
use meshgrad_runtime::ops::ExpertOrder;
use meshgrad_runtime::{Device, Tensor, ops};

use super::fixture::Fixture;
use super::{Parts, ROUTINGS, Routing, block, check_ranks, pass, tokens};
use crate::small::{config, distance, norm};
use crate::stored::names_of;

/// The largest difference of a result or gradient from torch's, relative to the norm of torch's.
const TOLERANCE: f64 = 1e-5;

impl Fixture {
    fn block(&self) -> Moe {
        let [d, f, e, k, normalize] = [
            "hidden_size",
            "moe_intermediate_size",
            "n_routed_experts",
            "num_experts_per_tok",
            "norm_topk_prob",
        ]
        .map(|name| &self.options[name]);
        let config = config(&format!(
            r#"
            model_type = "qwen3_moe"
            vocab_size = 53
            hidden_size = {d}
            num_hidden_layers = 1
            num_attention_heads = 2
            num_key_value_heads = 2
            num_experts = {e}
            num_experts_per_tok = {k}
            moe_intermediate_size = {f}
            norm_topk_prob = {normalize}
            "#
        ));
        let mut moe = config.moe(&"mlp".into()).shared_experts(self.size("n_shared_experts"));
        let groups = [self.size("n_group"), self.size("topk_group")];
        in_groups(&mut moe, groups, self.options["routed_scaling_factor"].as_f64().unwrap());
        moe.add_router_bias();
        moe
    }

    /// Gives the block the stored weights and bias.
    fn fill(&self, moe: &Moe, device: &Device) -> Result<()> {
        moe.materialize(device, 1)?;
        for param in moe.params() {
            let stored = self.tensor(device, &names_of(param.name()), param.shape());
            ops::copy_into(&stored, &param.value()?.local())?;
        }
        for buffer in moe.buffers() {
            let stored = self.tensor(device, &[buffer.name().to_owned()], buffer.shape());
            ops::copy_into(&stored, &buffer.value()?.local())?;
        }
        Ok(())
    }

    fn pass(&self, moe: &Moe, device: &Device) -> Parts {
        self.fill(moe, device).unwrap();
        pass(moe, self.x(device)).unwrap()
    }

    /// As [`Fixture::pass`], with the experts on a mesh of their own, so that tokens are dispatched.
    fn pass_dispatched(&self, moe: &Moe) -> Parts {
        let [mesh, own] = ["dp", "ep"].map(|axis| Mesh::new(&[1], &[axis]).unwrap());
        let parts = Local::new(1).launch(|rank| {
            Redistributor::new(rank).run_on(&mesh, || {
                ModelPlan::new(&mesh)
                    .place_on(&own, "*.experts.*_proj", [("ep", Placement::shard(0))])
                    .apply(moe, rank.rank())?;
                self.fill(moe, rank.device())?;
                let x = self.x(rank.device()).as_replicated()?;
                pass(moe, redistribute(&x, [("dp", Placement::shard(0))])?)
            })
        });
        parts.unwrap().remove(0)
    }
}

/// The CPU, and the emulated GPU if it is built.
fn devices() -> Vec<Device> {
    let gpu = Device::emulator_is_built().then(|| Device::emulator(0).unwrap());
    [Some(Device::cpu()), gpu].into_iter().flatten().collect()
}

#[test]
fn results_and_gradients_match_transformers() {
    for fixture in ["deepseek-moe/groups", "deepseek-moe/plain"].map(Fixture::open) {
        for device in devices() {
            let differing = fixture.differing(&fixture.pass(&fixture.block(), &device), TOLERANCE);
            assert_eq!(differing, [""; 0], "{device}");
        }
        let dispatched = fixture.pass_dispatched(&fixture.block());
        assert_eq!(fixture.differing(&dispatched, TOLERANCE), [""; 0]);
    }
}

/// Adds the bias to the weights, too.
struct BiasedWeights(Buffer);

impl Dispatcher for BiasedWeights {
    type Sent = (Var, ExpertOrder);

    fn dispatch(&self, tokens: RoutedTokens, _: &ExpertPeers) -> Result<(ExpertRows, Self::Sent)> {
        let slots = ops::reshape(&tokens.experts_nk, &[tokens.experts_nk.elements()])?;
        let biases = ops::index_select(&self.0.value()?.local(), 0, &slots)?;
        let biases_nk = ops::reshape(&biases, tokens.experts_nk.shape())?;
        let weights = (&tokens.weights_nk + &Var::constant(biases_nk))?;
        let x_cd = tracked::permute_tokens(&tokens.x_nd, &tokens.order)?;
        let offsets = tokens.order.offsets.clone();
        Ok((ExpertRows { x_cd, offsets }, (weights, tokens.order)))
    }

    fn combine(&self, y_cd: &Var, sent: Self::Sent, _: &ExpertPeers) -> Result<Var> {
        tracked::unpermute_tokens(y_cd, &sent.0, &sent.1)
    }
}

#[test]
fn planted_faults_differ_from_transformers() {
    let (fixture, device) = (Fixture::open("deepseek-moe/groups"), Device::cpu());
    let faulty = |change: fn(&mut Moe)| {
        let mut moe = fixture.block();
        change(&mut moe);
        fixture.pass(&moe, &device)
    };
    let mut biased_weights = fixture.block();
    biased_weights.dispatch_with(BiasedWeights(biased_weights.router.bias.clone().unwrap()));
    for (fault, parts) in [
        ("no bias", faulty(|moe| moe.router.bias = None)),
        ("no normalization", faulty(|moe| moe.router.normalize = false)),
        ("no scale", faulty(|moe| moe.router.scale = 1.0)),
        ("no groups", faulty(|moe| moe.router.groups = 1)),
        ("no shared experts", faulty(|moe| moe.shared = None)),
        ("bias in the weights", fixture.pass_dispatched(&biased_weights)),
    ] {
        let differing = fixture.differing(&parts, TOLERANCE);
        for name in ["y", "dx", "mlp.gate.weight"] {
            let is_seen = differing.iter().any(|it| it == name);
            assert!(is_seen, "{fault} is not seen in {name}: {differing:?}");
        }
    }
}

/// The indices of the `count` largest values; of equal ones, the first.
fn best(values: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
    order.truncate(count);
    order
}

/// The experts that DeepSeek-V3 chooses.
fn chosen(scores: &[f32], [groups, top_groups, k]: [usize; 3]) -> Vec<usize> {
    let size = scores.len() / groups;
    let best_two = |group: &[f32]| best(group, 2).iter().map(|at| group[*at]).sum::<f32>();
    let of_groups: Vec<f32> = scores.chunks(size).map(best_two).collect();
    let allowed = best(&of_groups, top_groups);
    let masked =
        scores.iter().enumerate().map(|(at, score)| match allowed.contains(&(at / size)) {
            true => *score,
            false => f32::NEG_INFINITY,
        });
    best(&masked.collect::<Vec<_>>(), k)
}

/// The gate is zero, so that scores are 0.5 and the bias decides. Biases are multiples of a quarter, so
/// most are equal to others.
#[test]
fn ties_go_to_the_lowest_index_of_the_best_groups() {
    for device in devices() {
        for options in [[1, 1, 5], [2, 1, 6], [3, 2, 4], [4, 2, 3], [6, 3, 4], [6, 6, 12]] {
            let [groups, top_groups, k] = options;
            let mut moe = block();
            in_groups(&mut moe, [groups, top_groups], 1.0);
            moe.router.top_k = k;
            moe.add_router_bias();
            moe.materialize(&device, 1).unwrap();
            ops::fill_into(&moe.router.gate.value().unwrap(), 0.0).unwrap();
            let x = tokens(&device, 2, Routing::Random).unwrap();
            for seed in 0..20 {
                let quarter = |at: u32| (at + 12 * seed).wrapping_mul(2_654_435_769) >> 29;
                let bias: Vec<f32> = (0..12).map(|at| quarter(at) as f32 / 4.0 - 1.0).collect();
                let tensor = Tensor::from_slice(&device, &[12], &bias).unwrap();
                moe.router.bias.as_ref().unwrap().set(&tensor).unwrap();

                let (_, routing) = moe.forward(&Var::constant(x.clone())).unwrap();
                let mut expected = [0.0; 12];
                let scores: Vec<f32> = bias.iter().map(|bias| 0.5 + bias).collect();
                chosen(&scores, options).iter().for_each(|expert| expected[*expert] = 2.0);
                let counts = routing.counts.to_vec::<f32>().unwrap();
                assert_eq!(counts, expected, "{device}, {options:?}, {bias:?}");
            }
        }
    }
}

#[test]
fn groups_that_do_not_fit_are_an_error() {
    let device = Device::cpu();
    let x = Var::constant(tokens(&device, 2, Routing::Random).unwrap());
    for (groups, top_groups, expected) in [
        (5, 1, "12 experts cannot be divided into 5 groups of at least two"),
        (12, 4, "12 experts cannot be divided into 12 groups of at least two"),
        (4, 5, "2 experts cannot be chosen in 5 of 4 groups of 3 experts"),
        (3, 0, "2 experts cannot be chosen in 0 of 3 groups of 4 experts"),
    ] {
        let mut moe = block();
        in_groups(&mut moe, [groups, top_groups], 1.0);
        moe.materialize(&device, 1).unwrap();
        let error = moe.forward(&x).map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// The auxiliary loss gets the scores as shares of their sum (DeepSeek-V3, equation 19).
#[test]
fn probabilities_are_the_normalized_scores() {
    let device = Device::cpu();
    let mut moe = block();
    moe.router.sigmoid = true;
    moe.materialize(&device, 1).unwrap();
    let x = tokens(&device, 9, Routing::Random).unwrap();
    let (_, routing) = moe.forward(&Var::constant(x)).unwrap();
    let [logits, found] = [&routing.logits_ne, &routing.probabilities_ne]
        .map(|it| it.value().to_vec::<f32>().unwrap());
    for (logits, found) in logits.chunks(12).zip(found.chunks(12)) {
        let scores: Vec<f32> = logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
        let sum: f32 = scores.iter().sum();
        let expected: Vec<f32> = scores.iter().map(|score| score / sum).collect();
        assert!(distance(found, &expected) < 1e-6);
    }
}

/// Sigmoid scores, of experts in `groups`.
fn in_groups(moe: &mut Moe, [groups, top_groups]: [usize; 2], scale: f64) {
    let router = &mut moe.router;
    (router.sigmoid, router.groups, router.top_groups) = (true, groups, top_groups);
    router.scale = scale;
}

/// DeepSeek-V3's form, with a random bias.
fn deepseek_block() -> Moe {
    let mut moe = block().shared_experts(2);
    in_groups(&mut moe, [4, 2], 2.5);
    let name = "mlp.gate.e_score_correction_bias";
    moe.router.bias = Some(Buffer::new(name, [12], Init::Normal { std: 0.2 }));
    moe
}

/// A meta device has no values that a choice could read.
#[test]
fn meta_devices_choose_experts() {
    for device in devices() {
        let (device, moe) = (Device::meta(device.properties()), deepseek_block());
        moe.materialize(&device, 1).unwrap();
        let x = Var::input(tokens(&device, 9, Routing::Random).unwrap());
        let ((y, _), tape) = Tape::record(|| moe.forward(&x)).unwrap();
        let mut grads = Grads::new(&moe.params()).unwrap();
        tape.backward_from(&[(&y, y.value().clone())], &mut grads).unwrap();
        assert_eq!(grads.all().unwrap().len(), moe.params().len());
    }
}

#[test]
fn three_ranks_have_the_results_of_one() {
    for sizes in [[5, 0, 8], [4, 3, 6]] {
        for routing in ROUTINGS {
            check_ranks(&sizes, routing, deepseek_block);
        }
    }
}

/// Replaying a router's own choices changes results by rounding only; with others, the weights are those
/// of the experts that are replayed.
#[test]
fn choices_are_replayed() {
    let device = Device::cpu();
    let x = tokens(&device, 9, Routing::Random).unwrap();
    for (kind, moe) in [("softmax", block()), ("DeepSeek-V3", deepseek_block())] {
        moe.materialize(&device, 1).unwrap();
        let pass = |replayed: Option<&Tensor>| -> (Tensor, Vec<Vec<f32>>) {
            let record = || moe.forward_with(&Var::constant(x.clone()), replayed);
            let ((y, routing), tape) = Tape::record(record).unwrap();
            let mut grads = Grads::new(&moe.params()).unwrap();
            tape.backward_from(&[(&y, y.value().clone())], &mut grads).unwrap();
            let mut values = vec![y.value().to_vec().unwrap(), routing.counts.to_vec().unwrap()];
            values.extend(grads.all().unwrap().iter().map(|(_, grad)| grad.to_vec().unwrap()));
            (routing.experts_nk, values)
        };
        let (chosen, expected) = pass(None);
        let (same, replayed) = pass(Some(&chosen));
        assert_eq!(same.to_vec::<i32>().unwrap(), chosen.to_vec::<i32>().unwrap());
        for (expected, replayed) in expected.iter().zip(&replayed) {
            assert!(distance(expected, replayed) <= 1e-6 * norm(expected), "{kind}");
        }

        let others: Vec<i32> = (0..18).map(|at| (at * 5 + 1) % 12).collect();
        let others = Tensor::from_slice(&device, &[3, 3, 2], &others).unwrap();
        let (_, other) = pass(Some(&others));
        assert!(distance(&expected[0], &other[0]) > 0.1 * norm(&expected[0]), "{kind}");
        assert_eq!(other[1].iter().sum::<f32>(), 18.0);
        let short = others.slice(0, 0..2).unwrap();
        let error = moe.forward_with(&Var::constant(x.clone()), Some(&short)).map(drop);
        let expected = "`mlp.gate.weight`: replayed experts of [6, 2] (tokens, experts per token), not \
                        [9, 2]";
        assert_eq!(error.unwrap_err().to_string(), expected);
    }
}
