//! Which axes of a mesh a model is parallel over, and how.

use meshgrad_mesh::{Mesh, Placement};

/// How a model is distributed over a mesh. Axes that are not named are data parallel.
///
/// ```
/// use meshgrad_mesh::Mesh;
/// use meshgrad_models::ModelParallelism;
///
/// let mesh = Mesh::new(&[2, 4], &["dp", "tp"])?;
/// let parallelism = ModelParallelism::new(&mesh).tensor(["tp"])?.sequence_parallel(true);
/// # Ok::<(), meshgrad_mesh::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ModelParallelism {
    /// The mesh of all tensors of the model.
    pub mesh: Mesh,
    /// The axes of tensor parallelism with their sizes, the outermost first.
    pub tensor: Vec<(String, usize)>,
    /// The axes over which sequences are sharded by head and tail, the outermost first.
    pub(crate) context: Vec<String>,
    /// Whether keys and values go around the ranks of `context`, instead of being gathered.
    pub(crate) ring: bool,
    /// The axes over which sequences are sharded, and within attention its heads, with their sizes.
    pub(crate) ulysses: Vec<(String, usize)>,
    /// Whether activations between blocks are sharded along the sequence.
    pub sequence_parallel: bool,
    /// Whether the vocabulary is sharded, in the embedding and in the loss.
    pub loss_parallel: bool,
    /// Whether tensor parallelism shards the inner features of each expert; otherwise experts are
    /// replicated, unless they are on a mesh of their own.
    pub shard_experts: bool,
    /// A mesh of the same ranks for the parameters of experts, with the placements of dim 0 (experts)
    /// and of inner features on its axes.
    pub(crate) experts: Option<(Mesh, [Vec<String>; 2])>,
    /// The chunks in which communication overlaps with matrix products; 1 for no overlap.
    pub overlap_chunks: usize,
}

/// Placements on several axes, the outermost first.
pub(crate) type Placements = Vec<(String, Placement)>;

impl ModelParallelism {
    /// Data parallelism on all axes of `mesh`. Once tensor parallelism is added, the vocabulary is
    /// sharded, and sequences and experts are not.
    pub fn new(mesh: &Mesh) -> ModelParallelism {
        ModelParallelism {
            mesh: mesh.clone(),
            tensor: Vec::new(),
            context: Vec::new(),
            ring: false,
            ulysses: Vec::new(),
            sequence_parallel: false,
            loss_parallel: true,
            shard_experts: false,
            experts: None,
            overlap_chunks: 1,
        }
    }

    /// Adds tensor parallelism over these axes, the outermost first. Several axes are for models
    /// with fewer key-value heads than ranks: the outer axes shard these heads, the inner ones
    /// replicate them.
    ///
    /// # Errors
    /// When the mesh does not have the axis.
    pub fn tensor<S: AsRef<str>>(
        mut self,
        axes: impl AsRef<[S]>,
    ) -> meshgrad_mesh::Result<ModelParallelism> {
        self.tensor = self.sized(axes.as_ref())?;
        Ok(self)
    }

    /// Context parallelism over these axes, the outermost first: tokens have
    /// [`Placement::head_and_tail`] on them. For attention, each rank gathers the keys and values of all
    /// ranks.
    ///
    /// # Errors
    /// When the mesh does not have an axis.
    pub fn context<S: AsRef<str>>(
        mut self,
        axes: impl AsRef<[S]>,
    ) -> meshgrad_mesh::Result<ModelParallelism> {
        self.context = self.sized(axes.as_ref())?.into_iter().map(|(axis, _)| axis).collect();
        Ok(self)
    }

    /// Whether each rank gets the keys and values of one rank after the other, instead of gathering
    /// those of all. The default is false.
    pub fn ring(mut self, ring: bool) -> ModelParallelism {
        self.ring = ring;
        self
    }

    /// Ulysses over these axes, the outermost first (Jacobs et al. 2023): tokens are sharded over them,
    /// within those of [`ModelParallelism::context`]; for attention they are exchanged for shards of
    /// heads.
    ///
    /// # Errors
    /// When the mesh does not have an axis.
    pub fn ulysses<S: AsRef<str>>(
        mut self,
        axes: impl AsRef<[S]>,
    ) -> meshgrad_mesh::Result<ModelParallelism> {
        self.ulysses = self.sized(axes.as_ref())?;
        Ok(self)
    }

    /// The placements of the tokens of a batch [rows, tokens].
    pub fn of_tokens(&self) -> Vec<(String, Placement)> {
        let context = self.context.iter().map(|axis| (axis.clone(), Placement::head_and_tail(1)));
        let ulysses = self.ulysses.iter().map(|(axis, _)| (axis.clone(), Placement::shard(1)));
        context.chain(ulysses).collect()
    }

    fn sized<S: AsRef<str>>(&self, axes: &[S]) -> meshgrad_mesh::Result<Vec<(String, usize)>> {
        let sized = |axis: &S| Ok((axis.as_ref().to_owned(), self.mesh.size(axis.as_ref())?));
        axes.iter().map(sized).collect()
    }

    /// Sets whether activations between blocks are sharded along the sequence.
    #[must_use]
    pub fn sequence_parallel(mut self, shards_sequence: bool) -> ModelParallelism {
        self.sequence_parallel = shards_sequence;
        self
    }

    /// Sets whether the vocabulary is sharded.
    #[must_use]
    pub fn loss_parallel(mut self, shards_vocabulary: bool) -> ModelParallelism {
        self.loss_parallel = shards_vocabulary;
        self
    }

    /// Sets whether the inner features of each expert are sharded.
    #[must_use]
    pub fn shard_experts(mut self, shards_experts: bool) -> ModelParallelism {
        self.shard_experts = shards_experts;
        self
    }

    /// Expert parallelism: experts are sharded over the axes `experts` of `mesh`, and their inner
    /// features over its axes `features`. The mesh has the same ranks as that of the model; along its
    /// other axes, experts are replicated.
    ///
    /// # Errors
    /// When `mesh` does not have an axis.
    pub fn experts<S: AsRef<str>, R: AsRef<str>>(
        mut self,
        mesh: &Mesh,
        experts: impl AsRef<[S]>,
        features: impl AsRef<[R]>,
    ) -> meshgrad_mesh::Result<ModelParallelism> {
        let axes = [names(experts.as_ref()), names(features.as_ref())];
        axes.iter().flatten().try_for_each(|axis| mesh.axis(axis).map(drop))?;
        self.experts = Some((mesh.clone(), axes));
        Ok(self)
    }

    /// Sets the chunks of rows in which a redistribution before or after a matrix product runs:
    /// one chunk is communicated while another is multiplied. Results do not depend on it; 1 is no
    /// overlap.
    #[must_use]
    pub fn overlap_chunks(mut self, chunks: usize) -> ModelParallelism {
        self.overlap_chunks = chunks;
        self
    }

    /// The number of ranks that share a layer.
    pub fn tensor_ranks(&self) -> usize {
        self.tensor.iter().map(|(_, ranks)| ranks).product()
    }

    /// Shards `dim` evenly over the axes of tensor parallelism.
    pub fn shard(&self, dim: usize) -> Vec<(String, Placement)> {
        self.on_tensor_axes(&Placement::shard(dim))
    }

    /// Replicates over the axes of tensor parallelism.
    pub fn replicate(&self) -> Vec<(String, Placement)> {
        self.on_tensor_axes(&Placement::Replicate)
    }

    fn on_tensor_axes(&self, placement: &Placement) -> Placements {
        let axes = self.tensor.iter();
        axes.map(|(axis, _)| (axis.clone(), placement.clone())).collect()
    }
}

fn names<S: AsRef<str>>(axes: &[S]) -> Vec<String> {
    axes.iter().map(|axis| axis.as_ref().to_owned()).collect()
}

/// Shards `dim`, which has `units` units of `length` indices, over `axes` without dividing a unit.
/// All axes but the last must divide the units evenly; `None` otherwise.
pub(crate) fn in_units(
    axes: &[(String, usize)],
    dim: usize,
    mut units: usize,
    length: usize,
) -> Option<Placements> {
    let mut placements = Vec::new();
    for (at, (axis, ranks)) in axes.iter().enumerate() {
        let placement = match units % ranks {
            0 => Placement::shard(dim),
            _ if at + 1 < axes.len() => return None,
            _ => {
                let chunk = units.div_ceil(*ranks);
                let size = |rank| chunk.min(units.saturating_sub(rank * chunk)) * length;
                Placement::ragged(dim, (0..*ranks).map(size).collect::<Vec<_>>())
            }
        };
        placements.push((axis.clone(), placement));
        units /= ranks;
    }
    Some(placements)
}
