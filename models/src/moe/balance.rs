//! Load balancing of experts: two losses, and router biases, which need no loss.

use meshgrad_autograd::{Result, Var, Vars, ops};
use meshgrad_collectives::{full_concat, redistribute};
use meshgrad_mesh::{Placement, Sharding};
use meshgrad_runtime::{DType, Function, Number, Signature, Tensor, ops as runtime_ops};
use serde::{Deserialize, Serialize};

use crate::model::Metrics;
use crate::moe::Routing;

/// How the load of experts is balanced. Zero disables a term; all are zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Balancing {
    /// The weight of the load-balancing loss.
    pub auxiliary: f64,
    /// Of what that loss is a mean.
    pub balance: Balance,
    /// The weight of the router z-loss.
    pub z: f64,
    /// The rate of [`update_router_bias`] for layers with a router bias.
    pub bias_update_rate: f64,
}

/// Over which tokens the load-balancing loss (Fedus et al. 2021) balances experts. It is E sum_e f_e P_e,
/// where f_e is the number of assignments to expert e per token and P_e its mean probability: `top_k` if
/// the load is even.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Balance {
    /// The tokens of a microbatch in all layers together, as in transformers.
    #[default]
    Pooled,
    /// The tokens of a microbatch in each layer, as in Megatron, averaged over layers.
    Layer,
    /// The tokens of each sequence in each layer, averaged over both: `top_k` times the loss of
    /// DeepSeek-V3 (equation 17).
    Sequence,
}

/// What the losses of balancing need of the routings of sparse layers. All are sums over tokens: with
/// sharded tokens, partial sums.
#[derive(Clone, Debug, Default)]
pub struct PooledRouting {
    /// The layers.
    layers: usize,
    /// The tokens of each layer, of all ranks.
    tokens: usize,
    /// With [`Balance::Pooled`], the assignments to each expert, \[e\] f32.
    counts: Option<Var>,
    /// With [`Balance::Pooled`], the probabilities of each expert, \[e\] f32.
    probabilities: Option<Var>,
    /// Otherwise the load-balancing losses of layers times their tokens, f32 \[\].
    by_layer: Option<Var>,
    /// The squared log-sum-exp of the router logits, f32 \[\].
    squared_lse: Option<Var>,
}

impl Vars for PooledRouting {
    fn each_var(&mut self, f: &mut dyn FnMut(&mut Var)) {
        self.counts.each_var(f);
        self.probabilities.each_var(f);
        self.by_layer.each_var(f);
        self.squared_lse.each_var(f);
    }
}

impl PooledRouting {
    /// Whether no layer was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.layers == 0
    }

    /// Adds a layer, for the terms that `balancing` has.
    ///
    /// # Errors
    /// When the layers have different numbers of experts.
    pub fn add(&mut self, layer: &Routing, balancing: &Balancing) -> Result<()> {
        self.layers += 1;
        self.tokens = layer.logits_ne.global_shape()[0];
        if balancing.auxiliary > 0.0 {
            match balancing.balance {
                Balance::Pooled => self.pool(layer)?,
                Balance::Layer => {
                    let probabilities = ops::sum(&layer.probabilities_ne, &[0])?;
                    self.balance_layer(&probabilities, &layer.counts)?;
                }
                Balance::Sequence => {
                    let [probabilities_be, counts_be] = by_sequence(layer)?;
                    self.balance_layer(&probabilities_be, counts_be.value())?;
                }
            }
        }
        if balancing.z > 0.0 {
            self.squared_lse = Some(added(self.squared_lse.as_ref(), squared_lse(layer)?)?);
        }
        Ok(())
    }

    fn pool(&mut self, layer: &Routing) -> Result<()> {
        let probabilities = ops::sum(&layer.probabilities_ne, &[0])?;
        self.probabilities = Some(added(self.probabilities.as_ref(), probabilities)?);
        let counts = Var::constant(layer.counts.clone());
        self.counts = Some(added(self.counts.as_ref(), counts)?);
        Ok(())
    }

    /// Adds the loss of a layer, from the sums of probabilities and assignments of equally many tokens,
    /// [.., e]. With sharded tokens, one collective completes the assignments.
    fn balance_layer(&mut self, probabilities: &Var, counts: &Tensor) -> Result<()> {
        let partials = counts.sharding().map(Sharding::partials).unwrap_or_default();
        let whole: Vec<_> =
            partials.iter().map(|(axis, _)| (*axis, Placement::Replicate)).collect();
        let counts = Var::constant(redistribute(counts, whole)?);
        let shape = probabilities.global_shape();
        let elements = shape.iter().product::<usize>() as f64;
        let dims: Vec<isize> = (0..shape.len() as isize).collect();
        let sum = ops::sum(&ops::mul(probabilities, &counts)?, &dims)?;
        let loss = ops::affine(&sum, elements / self.tokens as f64, 0.0)?;
        self.by_layer = Some(added(self.by_layer.as_ref(), loss)?);
        Ok(())
    }

    /// The losses of `balancing`, weighted: a scalar, f32, and a partial sum with sharded tokens;
    /// `None` without terms. `weight` is that of the cross-entropy of this rank's tokens. All ranks
    /// call this: one collective carries the counts and the weight of all of them.
    ///
    /// # Errors
    /// Errors of the ops and of the communication.
    pub fn losses(&self, balancing: &Balancing, weight: &Tensor) -> Result<Option<Var>> {
        if [&self.probabilities, &self.by_layer, &self.squared_lse].iter().all(|it| it.is_none()) {
            return Ok(None);
        }
        let counts = self.counts.as_ref().map(Var::value);
        let all = full_concat(&[weight].into_iter().chain(counts).collect::<Vec<_>>())?;
        let weight = Var::constant(ops::reshape(&all.slice(0, 0..1)?, &[])?);
        let mut total: Option<Var> = None;
        let pooled = self.probabilities.as_ref().map(|it| self.load_balancing(it, &all));
        let by_layer = self.by_layer.as_ref().map(|it| self.mean(it, 1.0));
        let z = self.squared_lse.as_ref().map(|it| self.mean(it, 1.0));
        let auxiliary = balancing.auxiliary;
        for (loss, factor) in [(pooled, auxiliary), (by_layer, auxiliary), (z, balancing.z)] {
            if let Some(loss) = loss {
                let weighted = ops::affine(&ops::mul(&loss?, &weight)?, factor, 0.0)?;
                total = Some(added(total.as_ref(), weighted)?);
            }
        }
        Ok(total)
    }

    /// The load-balancing loss of all layers. Gradients flow through the probabilities only.
    fn load_balancing(&self, probabilities: &Var, all: &Tensor) -> Result<Var> {
        let experts = probabilities.global_shape()[0];
        let counts = all.slice(0, 1..1 + experts)?;
        let shares = Var::constant(ops::affine(&counts, 1.0 / self.assignments(), 0.0)?);
        let total = ops::sum(&ops::mul(probabilities, &shares)?, &[0])?;
        self.mean(&total, experts as f64)
    }

    /// `sum` per token and layer, times `factor`. Of [`squared_lse`], this is the router z-loss (Zoph et
    /// al. 2022), which keeps the logits small.
    fn mean(&self, sum: &Var, factor: f64) -> Result<Var> {
        ops::affine(sum, factor / self.assignments(), 0.0)
    }

    fn assignments(&self) -> f64 {
        (self.layers * self.tokens) as f64
    }
}

/// The sums of probabilities and assignments over each sequence, [b, e] f32.
fn by_sequence(layer: &Routing) -> Result<[Var; 2]> {
    let Routing { sequences, probabilities_ne, experts_nk, .. } = layer;
    let [experts, k] = [probabilities_ne.global_shape()[1], experts_nk.global_shape()[1]];
    let t = probabilities_ne.global_shape()[0] / sequences;
    let probabilities_bte = ops::reshape(probabilities_ne, &[*sequences, t, experts])?;
    let experts_bs = ops::reshape(experts_nk, &[*sequences, t * k])?;
    let ones = ops::affine(&ops::cast(&experts_bs, DType::F32)?, 0.0, 1.0)?;
    let counts_be = ops::scatter_add(&[*sequences, experts], 1, &experts_bs, &ones)?;
    Ok([ops::sum(&probabilities_bte, &[1])?, Var::constant(counts_be)])
}

/// The squared log-sum-exp of a layer's router logits, summed over its tokens.
fn squared_lse(layer: &Routing) -> Result<Var> {
    // ln sum e^x = x_0 - log_softmax(x)_0, which never overflows.
    let logits = &layer.logits_ne;
    let first = ops::slice(logits, -1, 0..1)?;
    let log_probability = ops::slice(&ops::log_softmax(logits)?, -1, 0..1)?;
    ops::sum(&ops::square(&ops::sub(&first, &log_probability)?)?, &[0, 1])
}

fn added(sum: Option<&Var>, x: Var) -> Result<Var> {
    match sum {
        Some(sum) => ops::add(sum, &x),
        None => Ok(x),
    }
}

/// Raises the bias of experts with fewer tokens than the mean and lowers that of experts with more:
/// b_e += rate sign(mean_e(c_e) - c_e) (Wang et al. 2024, algorithm 1; DeepSeek-V3, section 2.1.2).
/// The bias does not affect gradients.
///
/// `bias` \[E\] f32, of a mutable kind; `counts` \[E\] f32, integers: the tokens per expert of a
/// step. If `scale`, f32 \[\], is not finite, nothing changes.
///
/// # Errors
/// When `bias` and `counts` differ in shape, or `bias` is immutable.
pub fn update_router_bias(bias: &Tensor, counts: &Tensor, rate: f64, scale: &Tensor) -> Result<()> {
    // E (mean - c_e) is an integer, so clamping it to [-1, 1] gives its sign.
    let experts = counts.global_extent(0)? as f64;
    let missing = ops::sub(&ops::sum(counts, &[0])?, &ops::affine(counts, experts, 0.0)?)?;
    let sign = ops::clamp(&missing, -1.0, 1.0)?;

    let scale = scale.broadcast_to(&bias.global_shape())?;
    let inputs = [bias, &sign, &scale];
    let mut call = BIAS.call(&inputs)?;
    let mut changed = call.output(0)?;
    runtime_ops::map(&call, &Bias { rate }, inputs, &mut changed)?;
    ops::copy_into(&changed.finish(), bias)
}

static BIAS: Signature =
    Signature::new("router_bias", "bias: F[~], sign: F[~], scale: F[~] -> bias: F[~]", 3);

struct Bias {
    rate: f64,
}

impl Function<3> for Bias {
    #[inline(always)]
    fn value<W: Number>(&self, [bias, sign, scale]: [W; 3]) -> W {
        scale.if_finite(bias + W::constant(self.rate) * sign, bias)
    }
}

/// Load and shares of `experts`, from the sums of [`Routing::statistics`] of layers. With several `ranks`
/// that have the experts between them, also `rank_load`, that of the busiest rank, and what all ranks
/// send in forward passes of all layers: `sent_rows` and, by a built-in dispatcher, `sent_bytes`.
pub fn expert_metrics(statistics: &[Vec<f32>], experts: usize, ranks: usize) -> Metrics {
    let wide = |of_layer: &[f32]| of_layer.iter().copied().map(f64::from).collect();
    let layers: Vec<Vec<f64>> = statistics.iter().map(|it| wide(&it[..experts])).collect();
    let by_rank = layers.iter().filter(|_| ranks > 1).map(|counts| of_ranks(counts, ranks));
    let rank_load = by_rank.map(|counts| load(&counts)).reduce(f64::max);
    let sent = |at: usize| -> Option<f64> {
        let of_layers = statistics.iter().filter_map(|it| it.get(experts + at).copied());
        of_layers.map(f64::from).reduce(|sum, it| sum + it)
    };
    let extra = [("rank_load", rank_load), ("sent_rows", sent(0)), ("sent_bytes", sent(1))];
    let extra = extra.into_iter();
    Metrics {
        expert_load: layers.iter().map(|counts| load(counts)).reduce(f64::max),
        expert_shares: shares(&layers),
        extra: extra.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect(),
    }
}

/// The tokens of each rank.
fn of_ranks(counts: &[f64], ranks: usize) -> Vec<f64> {
    counts.chunks(counts.len().div_ceil(ranks)).map(|held| held.iter().sum()).collect()
}

/// Each expert's share of the tokens over all layers.
fn shares(layers: &[Vec<f64>]) -> Vec<f64> {
    let all: f64 = layers.iter().flatten().sum();
    let experts = layers.first().map_or(0, Vec::len);
    let count = |expert: usize| layers.iter().map(|counts| counts[expert]).sum::<f64>();
    (0..experts).map(|expert| count(expert) / all).collect()
}

/// The load of the busiest expert: its tokens divided by the mean tokens per expert.
fn load(counts: &[f64]) -> f64 {
    let largest = counts.iter().copied().fold(0.0, f64::max);
    largest * counts.len() as f64 / counts.iter().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use meshgrad_runtime::{DType, Device, Kind};

    use super::*;

    fn tensor(device: &Device, shape: &[usize], values: &[f32]) -> Tensor {
        Tensor::from_slice(device, shape, values).unwrap()
    }

    #[test]
    fn a_bias_changes_by_the_rate_towards_the_mean() {
        let device = Device::cpu();
        let bias = Tensor::zeros(&device, &[4], DType::F32, Kind::OptimizerState).unwrap();
        let mut expected = [0.0; 4];
        // In the second case the mean is not an integer. In the third, the counts exceed the range
        // in which f32 represents every integer.
        for (counts, signs) in [
            ([4.0, 0.0, 2.0, 2.0], [-1.0, 1.0, 0.0, 0.0]),
            ([2.0, 1.0, 1.0, 1.0], [-1.0, 1.0, 1.0, 1.0]),
            ([3e8, 1e8, 1e8, 3e8], [-1.0, 1.0, 1.0, -1.0]),
        ] {
            let counts = tensor(&device, &[4], &counts);
            for scale in [f32::NAN, f32::INFINITY] {
                let scale = Tensor::scalar(&device, scale).unwrap();
                update_router_bias(&bias, &counts, 0.25, &scale).unwrap();
                assert_eq!(bias.to_vec::<f32>().unwrap(), expected);
            }
            let scale = Tensor::scalar(&device, 0.5f32).unwrap();
            update_router_bias(&bias, &counts, 0.25, &scale).unwrap();
            for (expected, sign) in expected.iter_mut().zip(signs) {
                *expected += 0.25 * sign;
            }
            assert_eq!(bias.to_vec::<f32>().unwrap(), expected);
        }
    }

    /// Load is measured per layer: two layers that prefer opposite experts do not cancel out.
    #[test]
    fn expert_load_is_that_of_the_least_balanced_layer() {
        let opposite = [vec![8.0, 4.0, 2.0, 2.0, 9.0, 80.0], vec![0.0, 4.0, 6.0, 6.0, 3.0, 40.0]];
        let on_one_rank = opposite.each_ref().map(|it| it[..4].to_vec());
        let metrics = expert_metrics(&on_one_rank, 4, 1);
        assert_eq!(metrics.expert_shares, [0.25; 4]);
        assert_eq!((metrics.expert_load, metrics.extra), (Some(2.0), Vec::new()));
        let metrics = expert_metrics(&opposite, 4, 2);
        let extra = [("rank_load", 1.5), ("sent_rows", 12.0), ("sent_bytes", 120.0)];
        assert_eq!(metrics.extra, extra.map(|(name, value)| (name.to_owned(), value)));

        assert_eq!(expert_metrics(&[vec![3.0; 4]], 4, 1).expert_load, Some(1.0));
        assert_eq!(expert_metrics(&[], 4, 2), Metrics::default());
    }

    /// Each scope of balancing has the loss of its formula, computed in f64.
    #[test]
    fn load_balancing_losses_equal_their_formula() {
        let device = Device::cpu();
        let (layers, sequences, tokens, experts, k) = (3, 2, 5, 4, 2);
        let score = |at: usize| (1.7 * (at * at % 23) as f64).sin();
        let n = sequences * tokens;
        let mut routings = Vec::new();
        // Of each layer, sequence and expert: the mean probability and the assignments per token.
        let mut means = vec![[0.0, 0.0]; layers * sequences * experts];
        for layer in 0..layers {
            let scores: Vec<f64> = (0..n * experts).map(|at| score(at + layer * 100)).collect();
            let mut chosen = Vec::new();
            for (token, scores) in scores.chunks(experts).enumerate() {
                let sum: f64 = scores.iter().map(|score| score.exp()).sum();
                let mut best: Vec<usize> = (0..experts).collect();
                best.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
                let place = (layer * sequences + token / tokens) * experts;
                for expert in 0..experts {
                    means[place + expert][0] += scores[expert].exp() / sum / tokens as f64;
                }
                for expert in &best[..k] {
                    means[place + expert][1] += 1.0 / tokens as f64;
                    chosen.push(*expert as i32);
                }
            }
            let scores: Vec<f32> = scores.iter().map(|score| *score as f32).collect();
            let logits_ne = Var::constant(tensor(&device, &[n, experts], &scores));
            let experts_nk = Tensor::from_slice(&device, &[n, k], &chosen).unwrap();
            let count = |expert| chosen.iter().filter(|own| **own == expert).count() as f32;
            let counts: Vec<f32> = (0..experts as i32).map(count).collect();
            let counts = tensor(&device, &[experts], &counts);
            routings.push(Routing {
                sequences,
                experts_nk,
                probabilities_ne: ops::softmax(&logits_ne).unwrap(),
                logits_ne,
                statistics: counts.clone(),
                counts,
            });
        }
        let over = |parts: usize| -> f64 {
            let of_part = |part: &[[f64; 2]]| {
                let rows = part.len() / experts;
                let mean = |expert: usize, of: usize| -> f64 {
                    part.chunks(experts).map(|row| row[expert][of]).sum::<f64>() / rows as f64
                };
                (0..experts).map(|expert| mean(expert, 0) * mean(expert, 1)).sum::<f64>()
            };
            let parted = means.chunks(means.len() / parts).map(of_part);
            experts as f64 * parted.sum::<f64>() / parts as f64
        };
        let cases = [
            (Balance::Pooled, over(1)),
            (Balance::Layer, over(layers)),
            (Balance::Sequence, over(layers * sequences)),
        ];
        for (balance, expected) in cases {
            let balancing = Balancing { auxiliary: 0.5, balance, ..Balancing::default() };
            let mut pooled = PooledRouting::default();
            routings.iter().for_each(|layer| pooled.add(layer, &balancing).unwrap());
            let weight = tensor(&device, &[], &[3.0]);
            let loss = pooled.losses(&balancing, &weight).unwrap().unwrap();
            let loss = f64::from(loss.value().item::<f32>().unwrap()) / 1.5;
            assert!((loss / expected - 1.0).abs() < 1e-5, "{balance:?}: {loss}, not {expected}");
        }
    }

    /// The z-loss is the mean of (ln sum e^x)^2 over tokens and layers, even where e^x overflows.
    #[test]
    fn the_z_loss_equals_its_formula() {
        let device = Device::cpu();
        let layers =
            [[[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]], [[300.0, 299.0, -300.0], [-4.0, 1.0, 1.5]]];
        let routing = |scores: &[[f32; 3]; 2]| {
            let logits_ne = Var::constant(tensor(&device, &[2, 3], scores.as_flattened()));
            Routing {
                sequences: 1,
                experts_nk: tensor(&device, &[2, 0], &[]),
                probabilities_ne: ops::softmax(&logits_ne).unwrap(),
                logits_ne,
                counts: tensor(&device, &[3], &[0.0; 3]),
                statistics: tensor(&device, &[3], &[0.0; 3]),
            }
        };
        let balancing = Balancing { z: 0.5, ..Balancing::default() };
        let mut pooled = PooledRouting::default();
        for layer in &layers {
            pooled.add(&routing(layer), &balancing).unwrap();
        }
        let weight = Tensor::scalar(&device, 2.0f32).unwrap();
        let loss = pooled.losses(&balancing, &weight).unwrap().unwrap();
        let loss = loss.value().item::<f32>().unwrap();

        let rows = layers.as_flattened().iter().map(|row| {
            let row = row.map(f64::from);
            let largest = row.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = row.iter().map(|score| (score - largest).exp()).sum();
            (largest + sum.ln()).powi(2)
        });
        let expected = rows.sum::<f64>() / 4.0;
        assert!((f64::from(loss) / expected - 1.0).abs() < 1e-6);
    }
}
