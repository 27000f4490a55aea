//! Load balancing of experts: two losses, and router biases, which need no loss.

use meshgrad_autograd::{Result, Var, Vars, ops};
use meshgrad_collectives::full_concat;
use meshgrad_runtime::{Function, Number, Signature, Tensor, ops as runtime_ops};

use crate::model::Metrics;
use crate::moe::Routing;

/// How the load of experts is balanced. Zero disables a term; all are zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Balancing {
    /// The weight of the load-balancing loss.
    pub auxiliary: f64,
    /// The weight of the router z-loss.
    pub z: f64,
    /// The rate of [`update_router_bias`] for layers with a router bias.
    pub bias_update_rate: f64,
}

/// What the losses of balancing need of the routings of sparse layers, pooled over layers. All are
/// sums over tokens: with sharded tokens, partial sums.
#[derive(Clone, Debug, Default)]
pub struct PooledRouting {
    /// The layers.
    layers: usize,
    /// The tokens of each layer, of all ranks.
    tokens: usize,
    /// Assignments to each expert, \[e\] f32.
    counts: Option<Var>,
    /// Probabilities of each expert, \[e\] f32.
    probabilities: Option<Var>,
    /// The squared log-sum-exp of the router logits, f32 \[\].
    squared_lse: Option<Var>,
}

impl Vars for PooledRouting {
    fn each_var(&mut self, f: &mut dyn FnMut(&mut Var)) {
        self.counts.each_var(f);
        self.probabilities.each_var(f);
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
            let probabilities = ops::sum(&layer.probabilities_ne, &[0])?;
            self.probabilities = Some(added(self.probabilities.as_ref(), probabilities)?);
            let counts = Var::constant(layer.counts.clone());
            self.counts = Some(added(self.counts.as_ref(), counts)?);
        }
        if balancing.z > 0.0 {
            self.squared_lse = Some(added(self.squared_lse.as_ref(), squared_lse(layer)?)?);
        }
        Ok(())
    }

    /// The losses of `balancing`, weighted: a scalar, f32, and a partial sum with sharded tokens;
    /// `None` without terms. `weight` is that of the cross-entropy of this rank's tokens. All ranks
    /// call this: one collective carries the counts and the weight of all of them.
    ///
    /// # Errors
    /// Errors of the ops and of the communication.
    pub fn losses(&self, balancing: &Balancing, weight: &Tensor) -> Result<Option<Var>> {
        if self.probabilities.is_none() && self.squared_lse.is_none() {
            return Ok(None);
        }
        let counts = self.counts.as_ref().map(Var::value);
        let all = full_concat(&[weight].into_iter().chain(counts).collect::<Vec<_>>())?;
        let weight = Var::constant(ops::reshape(&all.slice(0, 0..1)?, &[])?);
        let mut total: Option<Var> = None;
        let auxiliary = self.probabilities.as_ref().map(|it| self.load_balancing(it, &all));
        let z = self.squared_lse.as_ref().map(|it| self.mean(it, 1.0));
        for (loss, factor) in [(auxiliary, balancing.auxiliary), (z, balancing.z)] {
            if let Some(loss) = loss {
                let weighted = ops::affine(&ops::mul(&loss?, &weight)?, factor, 0.0)?;
                total = Some(added(total.as_ref(), weighted)?);
            }
        }
        Ok(total)
    }

    /// The load-balancing loss of the Switch Transformer (Fedus et al. 2021), with statistics
    /// pooled over layers as in Hugging Face: E sum_e f_e P_e, where f_e is the number of
    /// assignments to expert e per token and P_e its mean probability. It equals `top_k` when the
    /// load is balanced. Gradients flow through the probabilities only.
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

/// Load and shares of experts, from the tokens per expert of each layer; with several `ranks` that have
/// the experts between them, also `rank_load`, that of the busiest rank.
pub fn expert_metrics(layers: &[Vec<f32>], ranks: usize) -> Metrics {
    let layers: Vec<Vec<f64>> =
        layers.iter().map(|counts| counts.iter().copied().map(f64::from).collect()).collect();
    Metrics {
        expert_load: layers.iter().map(|counts| load(counts)).reduce(f64::max),
        expert_shares: shares(&layers),
        extra: match ranks {
            1 => Vec::new(),
            _ => {
                let by_rank = layers.iter().map(|counts| load(&of_ranks(counts, ranks)));
                by_rank
                    .reduce(f64::max)
                    .map(|load| ("rank_load".to_owned(), load))
                    .into_iter()
                    .collect()
            }
        },
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
        let opposite = [vec![8.0, 4.0, 2.0, 2.0], vec![0.0, 4.0, 6.0, 6.0]];
        let metrics = expert_metrics(&opposite, 1);
        assert_eq!(metrics.expert_shares, [0.25; 4]);
        assert_eq!((metrics.expert_load, metrics.extra), (Some(2.0), Vec::new()));
        let metrics = expert_metrics(&opposite, 2);
        assert_eq!(metrics.extra, [("rank_load".to_owned(), 1.5)]);

        assert_eq!(expert_metrics(&[vec![3.0; 4]], 1).expert_load, Some(1.0));
        assert_eq!(expert_metrics(&[], 2), Metrics::default());
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
