//! What a caller chooses for a unit.

use meshgrad_runtime::DType;

/// Where the parameters of a unit live, and when they are gathered and their gradients reduced.
///
/// Axes are those of the mesh on which the model computes;
/// [`DataParallel::mesh`](crate::DataParallel::mesh) names those of other meshes. A parameter's own
/// sharding, such as that of tensor parallelism, uses other axes: its rows are those of the rank's
/// part.
#[derive(Clone, Debug, PartialEq)]
pub struct Strategy {
    pub(crate) shard: Vec<String>,
    pub(crate) replicate: Vec<String>,
    pub(crate) reshard: Reshard,
    pub(crate) reduces_each_pass: bool,
    pub(crate) compute: Option<DType>,
    pub(crate) reduction: Option<DType>,
    pub(crate) whole_matrices: bool,
}

/// How long the gathered values of a unit stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reshard {
    /// Until the forward pass has left the unit. Backward gathers again. A rank holds about two
    /// units at a time.
    AfterForward,
    /// Until the unit's gradients are complete; if it has none, until the backward pass ends.
    AfterBackward,
    /// Until the parameters change: one gather per step.
    AfterStep,
}

impl Strategy {
    /// Each rank keeps all rows. Gradients accumulate on each rank over the passes of a step, and
    /// are reduced in the last.
    pub fn replicate<S: AsRef<str>>(axes: impl AsRef<[S]>) -> Strategy {
        Strategy {
            shard: Vec::new(),
            replicate: names(axes),
            reshard: Reshard::AfterStep,
            reduces_each_pass: false,
            compute: None,
            reduction: None,
            whole_matrices: false,
        }
    }

    /// Values and optimizer state are divided over `axes`, and gathered once per step (ZeRO stage
    /// 1, Rajbhandari et al. 2020). Whole gradients accumulate over the passes of a step, and are
    /// reduced in the last.
    pub fn zero1<S: AsRef<str>>(axes: impl AsRef<[S]>) -> Strategy {
        Strategy { shard: names(axes), ..Strategy::replicate::<&str>([]) }
    }

    /// Values, gradients and optimizer state are divided over `axes`. Values are gathered for each
    /// use of the unit in forward and backward, and gradients are reduced in each pass (fully
    /// sharded data parallelism; ZeRO stage 3).
    pub fn fsdp<S: AsRef<str>>(axes: impl AsRef<[S]>) -> Strategy {
        Strategy {
            reshard: Reshard::AfterForward,
            reduces_each_pass: true,
            ..Strategy::zero1(axes)
        }
    }

    /// As [`Strategy::fsdp`] over `shard`, with copies over `replicate`. Gradients are reduced over
    /// `shard` in each pass, and over `replicate` in the last.
    pub fn hsdp<S: AsRef<str>, R: AsRef<str>>(
        shard: impl AsRef<[S]>,
        replicate: impl AsRef<[R]>,
    ) -> Strategy {
        Strategy { replicate: names(replicate), ..Strategy::fsdp(shard) }
    }

    /// How long gathered values stay.
    #[must_use]
    pub fn reshard(self, reshard: Reshard) -> Strategy {
        Strategy { reshard, ..self }
    }

    /// Whether gradients are reduced in each backward pass. If not, whole gradients of the unit, 4
    /// bytes per parameter, stay in memory from the first pass of a step to the last; if so, only
    /// until they are reduced.
    #[must_use]
    pub fn reduce_each_pass(self, reduces_each_pass: bool) -> Strategy {
        Strategy { reduces_each_pass, ..self }
    }

    /// The dtype in which the unit is gathered. The default is that of the first use. A parameter
    /// that is used in another dtype is gathered on its own, from its value and not from a rounded
    /// copy.
    #[must_use]
    pub fn compute_dtype(self, dtype: DType) -> Strategy {
        Strategy { compute: Some(dtype), ..self }
    }

    /// The dtype in which gradients are reduced, such as bf16. The default is theirs. Sums over
    /// passes, and over `replicate` axes, stay in the gradients' dtype.
    #[must_use]
    pub fn reduction_dtype(self, dtype: DType) -> Strategy {
        Strategy { reduction: Some(dtype), ..self }
    }

    /// Divides the unit between matrices and not between rows, for optimizers that update whole
    /// matrices, such as Muon. A matrix is the last two dims. This sends nothing more, but divides
    /// less evenly: the largest share has up to one matrix more than the mean.
    #[must_use]
    pub fn whole_matrices(self) -> Strategy {
        Strategy { whole_matrices: true, ..self }
    }
}

impl Strategy {
    /// This strategy over other axes, of another mesh.
    pub(crate) fn over(&self, shard: &[String], replicate: &[String]) -> Strategy {
        Strategy { shard: shard.to_vec(), replicate: replicate.to_vec(), ..self.clone() }
    }

    /// The axes over which rows are divided, then those over which they are copied.
    pub(crate) fn axes(&self) -> impl Iterator<Item = &String> {
        self.shard.iter().chain(&self.replicate)
    }
}

pub(crate) fn names<S: AsRef<str>>(axes: impl AsRef<[S]>) -> Vec<String> {
    let axes = axes.as_ref().iter();
    axes.map(|axis| axis.as_ref().to_owned()).collect()
}
