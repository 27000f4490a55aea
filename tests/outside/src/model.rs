//! A model with a loss of its own, and its tables in a configuration.

use meshgrad::models::layers::Linear;
use meshgrad::prelude::*;
use meshgrad::train::config::ModelTables;
use serde::{Deserialize, Serialize};

use crate::activation::squared_relu;

/// The tables of a [`Bigram`].
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tables {
    model: Sizes,
    loss: Smoothing,
}

/// `[model]`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sizes {
    width: usize,
}

/// `[loss]`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Smoothing {
    smoothing: f64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { width: 64 }
    }
}

impl Default for Smoothing {
    fn default() -> Smoothing {
        Smoothing { smoothing: 0.1 }
    }
}

impl ModelTables for Tables {}

/// Predicts a token from the one before it. Legend: b batch, t tokens, d features, v vocabulary.
#[derive(Module)]
pub struct Bigram {
    embedding: Param,
    inside: Linear,
    head: Linear,
    smoothing: f64,
}

impl Bigram {
    /// A model of `v` tokens.
    pub fn new(v: usize, tables: &Tables) -> Bigram {
        let d = tables.model.width;
        Bigram {
            embedding: Param::new("embedding", [v, d], Init::Normal { std: 0.3 }),
            inside: Linear::new("inside", d, d),
            head: Linear::new("head", d, v),
            smoothing: tables.loss.smoothing,
        }
    }

    fn logits(&self, ids_bt: &Tensor, dtype: DType) -> Result<Var> {
        let x_btd = ops::embedding(&self.embedding.var_as(dtype)?, ids_bt)?.as_activation()?;
        let x_btd = (&x_btd + &squared_relu(&self.inside.forward(&x_btd)?)?)?;
        self.head.forward(&x_btd)
    }
}

/// Cross-entropy with labels smoothed over the vocabulary (Szegedy et al. 2016), summed over the labels
/// that are not [`IGNORE_INDEX`], and their number.
fn smoothed_cross_entropy(
    logits_btv: &Var,
    labels_bt: &Tensor,
    smoothing: f64,
) -> Result<(Var, Tensor)> {
    let of = |number: f32| Tensor::scalar(labels_bt.device(), number);
    let number_bt = ops::cast(labels_bt, DType::F32)?;
    let is_ignored_bt = ops::eq(&number_bt, &of(IGNORE_INDEX as f32)?)?;
    let counts_bt = ops::where_(&is_ignored_bt, &of(0.0)?, &of(1.0)?)?;
    let label_bt = ops::cast(&ops::mul(&number_bt, &counts_bt)?, DType::I64)?;

    let log_p_btv = ops::log_softmax(logits_btv)?;
    let of_label_bt1 = ops::gather(&log_p_btv, -1, &label_bt.unsqueeze(2)?)?;
    let of_label_bt = ops::sum(&of_label_bt1, &[2])?;
    let of_all_bt = ops::mean(&log_p_btv, &[-1])?;
    let of_label_bt = ops::affine(&of_label_bt, smoothing - 1.0, 0.0)?;
    let loss_bt = (&of_label_bt - &ops::affine(&of_all_bt, smoothing, 0.0)?)?;
    let loss_bt = ops::mul(&loss_bt, &Var::constant(counts_bt.clone()))?;
    Ok((ops::sum(&loss_bt, &[0, 1])?, ops::sum(&counts_bt, &[0, 1])?))
}

impl Model for Bigram {
    type Batch = TokenBatch;
    type Stream = ();

    fn loss(&self, batch: &TokenBatch, compute: Compute) -> Result<Loss> {
        let logits_btv = self.logits(&batch.ids, compute.dtype)?;
        let (loss, count) = smoothed_cross_entropy(&logits_btv, &batch.labels, self.smoothing)?;
        Ok(Loss::new(loss, count))
    }
}

impl Generate for Bigram {
    type Cache = ();

    fn vocab_size(&self) -> usize {
        self.embedding.shape()[0]
    }

    fn cache(&self, _: &Device, _: DType, _: usize) -> Result<()> {
        Ok(())
    }

    fn next_logits(&self, ids_bt: &Tensor, _: &mut (), dtype: DType) -> Result<Tensor> {
        let last = ids_bt.extent(-1)? - 1;
        let logits_b1v = self.logits(&ids_bt.slice(1, last..last + 1)?, dtype)?;
        ops::reshape(logits_b1v.value(), &[ids_bt.extent(0)?, self.vocab_size()])
    }
}
