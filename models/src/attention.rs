//! Attention of queries to the keys and values that [projections](Projections) make of tokens.
//!
//! Legend: b batch, t queries, s keys, d hidden size, h query heads, g key-value heads, c features
//! per head of queries and keys.

mod grouped;
mod latent;
mod rotary;

use meshgrad_autograd::{Init, Module, ModulePath, Result, Seam, Var, ops};
use meshgrad_collectives::redistribute;
use meshgrad_mesh::Placement;
use meshgrad_runtime::Tensor;
use meshgrad_runtime::ops::{AttentionMask, AttentionSequences};

pub use self::grouped::{AttentionSizes, GroupedProjections};
pub use self::latent::{LatentProjections, LatentSizes};
pub use self::rotary::Rotary;
use crate::by_document::RowOrder;
use crate::cache::LayerCache;
use crate::layers::Linear;
use crate::norms::RmsNorm;
use crate::ring::{Rings, Seen};

/// The positions of the tokens, shared by all layers of a forward pass.
#[derive(Clone)]
pub struct Positions {
    /// Cosines and sines of the rotary angles, each [b, t, c/2], f32, of each rotation of the model.
    pub rotations: Vec<(Tensor, Tensor)>,
    /// The numbers of the positions, i64 [b, t], for embeddings that depend on them.
    pub(crate) numbers: Option<Tensor>,
    /// Which keys queries see, if their rank has all that they may see.
    pub sequences: AttentionSequences,
    /// The words of all tokens of a row ([`ops::visible_keys`]), if ranks have parts of rows in documents.
    pub(crate) words: Option<Tensor>,
    /// Of keys whose ranks have all, if rows are divided by document.
    pub(crate) order: Option<RowOrder>,
    pub(crate) rings: Rings,
}

/// The attention block of a layer.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Attention {
    /// Before the projections to heads.
    pub input: Seam,
    /// Of tokens to queries, keys and values.
    pub projections: Projections,
    /// Of queries, before attention.
    pub queries: Seam,
    /// Of keys and values, before attention.
    pub keys: Seam,
    /// Of the result of attention.
    pub attended: Seam,
    /// From the values of h heads to d features.
    pub o_proj: Linear,
    /// After `o_proj`.
    pub output: Seam,
    /// The factor of scores, 1 / sqrt(c) at first.
    pub scale: f64,
    /// The number of its rotation among those of the model, 0 at first; `None` for none.
    pub rotation: Option<usize>,
    /// The number of keys that a query attends to, up to its own position; `None` for all.
    pub window: Option<usize>,
}

/// How queries, keys and values are made of tokens.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub enum Projections {
    /// By a projection each.
    Grouped(GroupedProjections),
    /// Through narrow latents.
    Latent(LatentProjections),
}

impl Attention {
    /// A block at the path `at` with grouped queries, without biases, norms and a window.
    pub fn new(at: &ModulePath, sizes: AttentionSizes, init: Init) -> Attention {
        let projections = GroupedProjections::new(at, sizes, init);
        let values = sizes.heads * sizes.head_dim;
        Attention::of(at, Projections::Grouped(projections), [values, sizes.inputs], init)
    }

    /// A block at the path `at` with latents, without biases and a window. Norms of latents have this `eps`.
    pub fn latent(at: &ModulePath, sizes: LatentSizes, eps: f64, init: Init) -> Attention {
        let projections = LatentProjections::new(at, sizes, eps, init);
        let values = sizes.heads * sizes.values;
        Attention::of(at, Projections::Latent(projections), [values, sizes.inputs], init)
    }

    fn of(
        at: &ModulePath,
        projections: Projections,
        [values, outputs]: [usize; 2],
        init: Init,
    ) -> Attention {
        let head_dim = projections.sizes().head_dim;
        Attention {
            input: Seam::new(at.sub("input")),
            projections,
            queries: Seam::new(at.sub("queries")),
            keys: Seam::new(at.sub("keys")),
            attended: Seam::new(at.sub("attended")),
            o_proj: Linear::new(at.sub("o_proj"), values, outputs).init(init),
            output: Seam::new(at.sub("output")),
            scale: (head_dim as f64).sqrt().recip(),
            rotation: Some(0),
            window: None,
        }
    }

    /// Its sizes.
    pub fn sizes(&self) -> AttentionSizes {
        self.projections.sizes()
    }

    /// Features per head of values.
    pub(crate) fn value_features(&self) -> usize {
        self.o_proj.weight.shape()[1] / self.sizes().heads
    }

    /// Its projections.
    pub(crate) fn linears(&mut self) -> Vec<&mut Linear> {
        self.projections.linears().into_iter().chain([&mut self.o_proj]).collect()
    }

    /// With biases of the projections from tokens, and of the one of the result.
    #[must_use]
    pub fn biases(mut self, of_tokens: bool, of_output: bool) -> Attention {
        for projection in self.projections.of_tokens() {
            *projection = projection.clone().bias(of_tokens);
        }
        self.o_proj = self.o_proj.bias(of_output);
        self
    }

    /// With norms of each head of grouped queries and keys. `norm` makes one of its name and features.
    #[must_use]
    pub fn head_norms(mut self, norm: impl Fn(&str, usize) -> RmsNorm) -> Attention {
        if let Projections::Grouped(grouped) = &mut self.projections {
            let features = grouped.head_dim;
            grouped.q_norm = Some(norm("q_norm", features));
            grouped.k_norm = Some(norm("k_norm", features));
        }
        self
    }

    /// With norms of all heads of grouped queries, and of all of keys, together (OLMo et al. 2024).
    #[must_use]
    pub fn joint_norms(mut self, norm: impl Fn(&str, usize) -> RmsNorm) -> Attention {
        if let Projections::Grouped(grouped) = &mut self.projections {
            let AttentionSizes { heads, kv_heads, head_dim, .. } = grouped.sizes();
            grouped.q_norm = Some(norm("q_norm", heads * head_dim));
            grouped.k_norm = Some(norm("k_norm", kv_heads * head_dim));
        }
        self
    }

    /// Of which queries see at most `window` keys.
    #[must_use]
    pub fn window(mut self, window: Option<usize>) -> Attention {
        self.window = window;
        self
    }

    /// Maps `x_btd` to the same shape. With a `cache`, new keys and values are appended to it, and
    /// queries attend to all of it.
    ///
    /// # Errors
    /// When shapes do not match or the cache is full.
    pub fn forward(&self, x_btd: &Var, at: &Positions, cache: Option<&LayerCache>) -> Result<Var> {
        let tables = self.rotation.map(|number| &at.rotations[number]);
        let [q_bthc, k_btgc, v_btgc] = match &self.projections {
            Projections::Grouped(grouped) => grouped.forward(&self.input, x_btd, tables)?,
            Projections::Latent(latent) => latent.forward(&self.input, x_btd, tables)?,
        };
        let (k_bsgc, v_bsgc) = match cache {
            Some(cache) => cache.extend(&k_btgc, &v_btgc)?,
            None => (k_btgc, v_btgc),
        };

        let mask =
            AttentionMask { causal: true, window: self.window, sequences: at.sequences.clone() };
        let shards = head_shards(q_bthc.value());
        let q_bthc = self.queries.redistribute(&q_bthc)?;
        let divides_heads = head_shards(q_bthc.value()) > shards;
        let [k_bsgc, v_bsgc] = [k_bsgc, v_bsgc].map(|x| {
            let x = if divides_heads { with_heads_for(&q_bthc, &x)? } else { x };
            let x = self.keys.redistribute(&x)?;
            match &at.order {
                Some(order) => order.of(&x),
                None => Ok(x),
            }
        });
        let (k_bsgc, v_bsgc) = (k_bsgc?, v_bsgc?);
        let tokens = k_bsgc.value().sharding().filter(|it| !it.axes_of_dim(1).is_empty());
        let out_bthc = match tokens {
            Some(tokens) => {
                let seen = Seen { tokens, words: at.words.as_ref(), window: self.window };
                at.rings.attention([&q_bthc, &k_bsgc, &v_bsgc], &seen, self.scale)?
            }
            None => ops::attention(&q_bthc, &k_bsgc, &v_bsgc, &mask, self.scale)?,
        };
        let out_bthc = self.attended.redistribute(&out_bthc)?;
        let out_bthc = match &self.projections {
            Projections::Grouped(_) => out_bthc,
            Projections::Latent(latent) => latent.values(&out_bthc)?,
        };
        self.o_proj.forward_before(&ops::merge_last(&out_bthc)?, &self.output)
    }

    /// `at` for tokens with these words ([`ops::visible_keys`], [b, t]), which were at `places`: a range
    /// of keys for each query that attention has, or, where keys go around, the words of whole rows.
    pub(crate) fn in_documents(
        &self,
        at: Positions,
        words: &Tensor,
        places: Option<&Tensor>,
    ) -> Result<Positions> {
        let whole_along = |seam: &Seam, x: &Tensor| {
            let axes = seam.placements();
            let axes = axes.iter().map(|(axis, _)| (axis.as_str(), Placement::Replicate));
            redistribute(x, axes.collect::<Vec<_>>())
        };
        let of_keys = whole_along(&self.keys, words)?;
        let around = of_keys.sharding().map(|it| it.axes_of_dim(1)).unwrap_or_default();
        if !around.is_empty() {
            let around = around.into_iter().map(|axis| (axis, Placement::Replicate));
            let words = redistribute(&of_keys, around.collect::<Vec<_>>())?;
            return Ok(Positions { words: Some(words), ..at });
        }
        let order = places.map(|places| RowOrder::new(whole_along(&self.keys, places)?));
        let order = order.transpose()?;
        let of_keys = order.as_ref().map_or(Ok(of_keys.clone()), |order| order.of(&of_keys))?;
        let ranges = ops::visible_keys(&whole_along(&self.queries, words)?, &of_keys, None)?;
        Ok(Positions { sequences: AttentionSequences::Ranges(ranges), order, ..at })
    }
}

impl Projections {
    fn sizes(&self) -> AttentionSizes {
        match self {
            Projections::Grouped(grouped) => grouped.sizes(),
            Projections::Latent(latent) => latent.attention_sizes(),
        }
    }

    /// Those of the tokens themselves, not of latents.
    fn of_tokens(&mut self) -> Vec<&mut Linear> {
        match self {
            Projections::Grouped(it) => vec![&mut it.q_proj, &mut it.k_proj, &mut it.v_proj],
            Projections::Latent(it) => it.of_tokens(),
        }
    }

    fn linears(&mut self) -> Vec<&mut Linear> {
        match self {
            Projections::Grouped(_) => self.of_tokens(),
            Projections::Latent(it) => it.linears(),
        }
    }
}

/// The number of shards of the heads of `x` [b, t, heads, c].
fn head_shards(x: &Tensor) -> usize {
    let axes =
        x.sharding().map(|it| it.axes_of_dim(2).into_iter().map(|axis| it.mesh().size(axis)));
    axes.map_or(1, |sizes| sizes.flatten().product())
}

/// `x` [b, s, g, c] with each head as often as is needed for as many shards of heads as `q` has.
fn with_heads_for(q: &Var, x: &Var) -> Result<Var> {
    let [b, s, g, c] = x.global_shape()[..] else { unreachable!("keys and values have four dims") };
    let shards = head_shards(q.value());
    let copies = (1..shards).find(|copies| (g * copies).is_multiple_of(shards)).unwrap_or(shards);
    if copies == 1 {
        return Ok(x.clone());
    }
    let each = ops::reshape(x, &[b, s, g, 1, c])?;
    let repeated = ops::broadcast_to(&each, &[b, s, g, copies, c])?;
    ops::reshape(&repeated, &[b, s, g * copies, c])
}
