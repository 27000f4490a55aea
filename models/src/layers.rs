//! A projection.

use meshgrad_autograd::{Init, Module, ModulePath, Param, Result, Seam, Var, ops};

use crate::lora::{Lora, LoraSlot};

/// y = x w^T, plus a bias and a low-rank update if it has them.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Linear {
    /// [out, in].
    pub weight: Param,
    /// \[out\].
    pub bias: Option<Param>,
    /// A low-rank update of the weight.
    pub lora: Option<Lora>,
    path: ModulePath,
}

impl Linear {
    /// A projection at the path `at` from `inputs` to `outputs` features, without a bias. The
    /// weight is uniform in ±1 / sqrt(inputs), as in PyTorch.
    pub fn new(at: impl Into<ModulePath>, inputs: usize, outputs: usize) -> Linear {
        let path = at.into();
        let bound = (inputs as f64).sqrt().recip();
        Linear {
            weight: Param::new(path.sub("weight"), [outputs, inputs], Init::Uniform { bound }),
            bias: None,
            lora: None,
            path,
        }
    }

    /// Sets whether the projection has a bias, which is zero at first.
    #[must_use]
    pub fn bias(mut self, has_bias: bool) -> Linear {
        let bias = || Param::new(self.path.sub("bias"), [self.weight.shape()[0]], Init::Zeros);
        self.bias = has_bias.then(bias);
        self
    }

    /// Sets the initial value of the weight.
    #[must_use]
    pub fn init(mut self, init: Init) -> Linear {
        let shape = self.weight.shape();
        self.weight = Param::new(self.path.sub("weight"), [shape[0], shape[1]], init);
        self
    }

    /// The path of the projection in the model.
    pub fn path(&self) -> &ModulePath {
        &self.path
    }

    /// Adds a [`Lora`] of rank `rank`, whose parameters have no values yet. To train only these
    /// parameters, freeze the model first.
    pub fn add_lora(&mut self, rank: usize, alpha: f64) {
        let (outputs, inputs) = (self.weight.shape()[0], self.weight.shape()[1]);
        self.lora = Some(Lora::new(&self.path, inputs, outputs, rank, alpha));
    }

    /// Its place for a low-rank update.
    pub(crate) fn lora_slot(&mut self) -> LoraSlot<'_> {
        let [outputs, inputs] = [0, 1].map(|dim| self.weight.shape()[dim]);
        LoraSlot { path: self.path.clone(), inputs, outputs, lora: &mut self.lora }
    }

    /// Adds the update of the [`Lora`] to the weight, and removes the [`Lora`]. Earlier clones keep
    /// their [`Lora`] and share the weight, so they would count the update twice.
    ///
    /// # Errors
    /// When a parameter has no value.
    pub fn merge_lora(&mut self) -> Result<()> {
        let Some(lora) = &self.lora else {
            return Ok(());
        };
        self.weight.set(&lora.merged(&self.weight.value()?)?)?;
        self.lora = None;
        Ok(())
    }

    /// Maps `x` [.., in] to [.., out], in `x`'s dtype. With columns of the weight sharded (row
    /// parallel) the result is a partial sum, in which a replicated bias counts once.
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let y = self.with_bias(ops::linear(x, &self.weight.var_as(x.dtype())?)?)?;
        match &self.lora {
            Some(lora) => &y + &lora.forward(x)?,
            None => Ok(y),
        }
    }

    /// Maps `x`, redistributed at `seam`, by several projections. With chunks, the communication
    /// overlaps with the products, unless a projection has a [`Lora`].
    ///
    /// # Errors
    /// As [`Linear::forward`] and [`Seam::redistribute`].
    pub fn forward_after<const N: usize>(
        seam: &Seam,
        x: &Var,
        linears: [&Linear; N],
    ) -> Result<[Var; N]> {
        if linears.iter().any(|linear| linear.lora.is_some()) {
            let x = seam.redistribute(x)?;
            return all(linears.map(|linear| linear.forward(&x)));
        }
        let weights = all(linears.map(|linear| linear.weight.var_as(x.dtype())))?;
        let ys = seam.redistribute_linear(x, weights.each_ref())?;
        let mut linears = linears.into_iter();
        all(ys.map(|y| linears.next().map_or(Ok(y.clone()), |linear| linear.with_bias(y))))
    }

    /// Maps `x` and redistributes the result at `seam`; a bias is added after that. With chunks, the
    /// communication overlaps with the product, unless the projection has a [`Lora`].
    ///
    /// # Errors
    /// As [`Linear::forward`] and [`Seam::redistribute`].
    pub fn forward_before(&self, x: &Var, seam: &Seam) -> Result<Var> {
        match &self.lora {
            None => self.with_bias(seam.linear_redistribute(x, &self.weight.var_as(x.dtype())?)?),
            Some(_) => seam.redistribute(&self.forward(x)?),
        }
    }

    fn with_bias(&self, y: Var) -> Result<Var> {
        match &self.bias {
            Some(bias) => ops::add_bias(&y, &bias.var_as(y.dtype())?),
            None => Ok(y),
        }
    }
}

fn all<T, const N: usize>(results: [Result<T>; N]) -> Result<[T; N]> {
    let results: Vec<T> = results.into_iter().collect::<Result<_>>()?;
    let results = results.try_into();
    Ok(results.unwrap_or_else(|_| unreachable!("the number is the same")))
}
