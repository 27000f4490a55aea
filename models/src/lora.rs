//! Low-rank adaptation (Hu et al. 2021): a small trained update of a weight that is not trained.
//!
//! Legend: r rank.

use std::collections::BTreeSet;

use glob::Pattern;
use meshgrad_autograd::{Init, Module, ModulePath, Param, Result, Var, ops};
use meshgrad_error::{bail, ensure, error};
use meshgrad_runtime::Tensor;

/// Which projections of a model have a [`Lora`], and of which size: what PEFT's `LoraConfig` says.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// r.
    pub rank: usize,
    /// An update is multiplied by alpha / r.
    pub alpha: f64,
    /// Multiplies by alpha / sqrt(r) instead (Kalajdzievski 2023).
    pub rslora: bool,
    /// Names of projections, such as `q_proj` or `layers.0.*.down_proj`. A pattern matches a path or the end
    /// of one, after a `.`; `*` matches any characters.
    pub targets: Vec<String>,
    /// The folder with the weights that are updated, which are then not saved with the adapter. `None`: they
    /// are saved in the same folder.
    pub base: Option<String>,
}

impl LoraConfig {
    /// The factor of an update.
    pub fn scale(&self) -> f64 {
        match self.rslora {
            true => self.alpha / (self.rank as f64).sqrt(),
            false => self.alpha / self.rank as f64,
        }
    }

    /// Checks rank, alpha and the syntax of the patterns.
    ///
    /// # Errors
    /// With the first that is invalid.
    pub fn check(&self) -> Result<()> {
        let LoraConfig { rank, alpha, targets, .. } = self;
        ensure!(*rank > 0, Invalid, "an adapter has rank 0, but must have at least 1");
        ensure!(alpha.is_finite(), Invalid, "an adapter has alpha {alpha}, which is not finite");
        for target in targets {
            Pattern::new(target).map_err(|problem| {
                error!(Invalid, "`{target}` is not a pattern of projections: {}", problem.msg)
            })?;
        }
        Ok(())
    }
}

/// A place in a model for a [`Lora`].
pub(crate) struct LoraSlot<'m> {
    pub(crate) path: ModulePath,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) lora: &'m mut Option<Lora>,
}

impl LoraSlot<'_> {
    /// Fills the slot; the parameters have no values yet.
    pub(crate) fn fill(self, config: &LoraConfig) {
        let LoraSlot { path, inputs, outputs, lora } = self;
        let mut new = Lora::new(&path, inputs, outputs, config.rank, config.alpha);
        new.scale = config.scale();
        *lora = Some(new);
    }
}

/// Fills the slots that the targets of `config` match. Returns the names that PEFT needs to find them: the
/// last parts of their paths, or whole paths if other projections have these names too.
///
/// # Errors
/// As [`LoraConfig::check`]; when a target matches no slot.
pub(crate) fn fill_targets(slots: Vec<LoraSlot<'_>>, config: &LoraConfig) -> Result<Vec<String>> {
    config.check()?;
    let matches = |target: &str, path: &str| {
        let pattern = [target.to_owned(), format!("*.{target}")];
        pattern.iter().any(|it| Pattern::new(it).is_ok_and(|it| it.matches(path)))
    };
    let paths: Vec<String> = slots.iter().map(|slot| slot.path.to_string()).collect();
    for target in &config.targets {
        if !paths.iter().any(|path| matches(target, path)) {
            let mut names: Vec<&str> = paths.iter().map(|path| last_name(path)).collect();
            names.sort_unstable();
            names.dedup();
            bail!(
                Invalid,
                "the target `{target}` of the adapter matches no projection of the model, which has {}",
                names.join(", ")
            );
        }
    }
    let is_target = |path: &&String| config.targets.iter().any(|target| matches(target, path));
    let filled: Vec<String> = paths.iter().filter(is_target).cloned().collect();
    for (slot, path) in slots.into_iter().zip(&paths) {
        if is_target(&path) {
            slot.fill(config);
        }
    }
    let names: BTreeSet<&str> = filled.iter().map(|path| last_name(path)).collect();
    let count = paths.iter().filter(|path| names.contains(last_name(path))).count();
    Ok(match count == filled.len() {
        true => names.into_iter().map(str::to_owned).collect(),
        false => filled,
    })
}

fn last_name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Whether a parameter of this name belongs to a [`Lora`].
pub fn is_lora(name: &str) -> bool {
    [".lora_A.weight", ".lora_B.weight"].iter().any(|end| name.ends_with(end))
}

/// scale x a^T b^T, added to the result of a [`Linear`](crate::layers::Linear). Zero at first,
/// because `b` is.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Lora {
    /// [r, in].
    pub a: Param,
    /// [out, r].
    pub b: Param,
    /// [`LoraConfig::scale`].
    pub scale: f64,
}

impl Lora {
    /// An update of a projection from `inputs` to `outputs` features at the path `at`, under the
    /// names that PEFT uses: `lora_A.weight`, `lora_B.weight`.
    pub fn new(at: &ModulePath, inputs: usize, outputs: usize, rank: usize, alpha: f64) -> Lora {
        let bound = (inputs as f64).sqrt().recip();
        Lora {
            a: Param::new(at.sub("lora_A.weight"), [rank, inputs], Init::Uniform { bound }),
            b: Param::new(at.sub("lora_B.weight"), [outputs, rank], Init::Zeros),
            scale: alpha / rank.max(1) as f64,
        }
    }

    /// Maps `x` [.., in] to [.., out].
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let inside = ops::linear(x, &self.a.var_as(x.dtype())?)?;
        let y = ops::linear(&inside, &self.b.var_as(x.dtype())?)?;
        ops::affine(&y, self.scale, 0.0)
    }

    /// `weight`, [out, in], with the update, rounded once to its dtype.
    ///
    /// # Errors
    /// When a parameter has no value.
    pub(crate) fn merged(&self, weight: &Tensor) -> Result<Tensor> {
        let update = self.matrix()?;
        let sum = ops::add(&ops::cast(weight, update.dtype())?, &update)?;
        ops::cast(&sum, weight.dtype())
    }

    /// The update as a matrix, scale b a, [out, in] in the parameters' dtype.
    ///
    /// # Errors
    /// When a parameter has no value.
    pub fn matrix(&self) -> Result<Tensor> {
        ops::affine(&ops::matmul(&self.b.value()?, &self.a.value()?)?, self.scale, 0.0)
    }
}
