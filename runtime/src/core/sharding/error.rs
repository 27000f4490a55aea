//! Errors of tensors that are parts of global tensors.

/// An error of a sharded tensor.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardedTensorError {
    /// The shardings of the operands do not fit the op, or the sharding is invalid.
    #[error(transparent)]
    Mesh(#[from] meshgrad_mesh::Error),

    /// Some operands of an op have a sharding, and others have none.
    #[error(
        "{op}: `{sharded}` is sharded ({sharding}), but `{unsharded}` has no sharding; state it with \
         Tensor::with_sharding, or create the tensor inside with_mesh"
    )]
    Mixed {
        /// The op.
        op: &'static str,
        /// An operand with a sharding.
        sharded: String,
        /// Its sharding.
        sharding: String,
        /// An operand without one.
        unsharded: String,
    },

    /// Operands of different ranks.
    #[error("{op}: `{first}` belongs to rank {first_rank}, but `{other}` to rank {other_rank}")]
    Ranks {
        /// The op.
        op: &'static str,
        /// An operand.
        first: String,
        /// Its rank.
        first_rank: usize,
        /// Another operand.
        other: String,
        /// Its rank.
        other_rank: usize,
    },

    /// A tensor that does not have the local shape of a sharding.
    #[error(
        "{op}: the shape is {shape:?}, but the part of rank {rank} in {global:?} ({sharding}) has \
         shape {expected:?}"
    )]
    LocalShape {
        /// The op.
        op: &'static str,
        /// The shape.
        shape: Vec<usize>,
        /// The rank.
        rank: usize,
        /// The sharding.
        sharding: String,
        /// The global shape.
        global: Vec<usize>,
        /// The local shape.
        expected: Vec<usize>,
    },

    /// A sharding stated for a tensor that has another one.
    #[error(
        "with_sharding: the tensor already has the sharding {sharding}, not {stated}; redistribute it, \
         or call with_sharding on Tensor::local"
    )]
    OtherSharding {
        /// The tensor's sharding.
        sharding: String,
        /// The stated one.
        stated: String,
    },

    /// Partial values of a dtype that they cannot be reduced in.
    #[error(
        "with_sharding: a tensor of dtype {dtype} cannot be partial({reduction}) on axis `{axis}`; cast \
         it to {needed} before"
    )]
    PartialDType {
        /// The dtype.
        dtype: String,
        /// The axis.
        axis: String,
        /// The reduction.
        reduction: String,
        /// The dtypes that support it.
        needed: &'static str,
    },

    /// Stochastic rounding of a parameter of which some rank has unequal ranges.
    #[error(
        "{op}: some rank has several ranges of a dim that are not equally long or not equally far apart \
         ({sharding}), which stochastic rounding does not support; choose an extent that the ranks divide"
    )]
    UnequalRanges {
        /// The op.
        op: &'static str,
        /// The sharding.
        sharding: String,
    },

    /// An op that needs one range of indices of a dim.
    #[error(
        "{op}: ranks have several ranges of dim {dim} ({sharding}), but the op needs one per rank; \
         redistribute the tensor to shard({dim}) first"
    )]
    SeveralRanges {
        /// The op.
        op: &'static str,
        /// The dim.
        dim: usize,
        /// The sharding.
        sharding: String,
    },

    /// A reshape of a sharded tensor to another number of elements.
    #[error(
        "reshape: {given:?} does not have as many elements as the global shape {global:?} ({sharding}); \
         pass a global shape, with extents from Tensor::global_extent"
    )]
    GlobalShape {
        /// The sharding.
        sharding: String,
        /// The global shape.
        global: Vec<usize>,
        /// The requested shape.
        given: Vec<usize>,
    },

    /// A tensor without a sharding, among ranks.
    #[error(
        "{op}: {tensor} has no sharding; state it with Tensor::with_sharding, or call {op} outside of \
         with_redistribution on a single rank"
    )]
    NoSharding {
        /// The function.
        op: &'static str,
        /// The tensor's dtype and shape.
        tensor: String,
    },

    /// A redistribution outside of `with_redistribution`.
    #[error("redistribute: no ranks to communicate with; call it inside of with_redistribution")]
    NoRedistribution,

    /// An operand of `local` with another sharding than the stated one.
    #[error(
        "local: an operand is {operand} on the mesh {mesh}, but {stated} is stated; redistribute it \
         before, or state its own placements"
    )]
    LocalOperand {
        /// The operand's dtype, shape and sharding.
        operand: String,
        /// The operand's mesh.
        mesh: String,
        /// The stated sharding and mesh.
        stated: String,
    },

    /// A partial gradient of a result of `local`.
    #[error(
        "local: the gradient of result {result} ({sharding}) is partial: {gradient}; write \
         redistribute(&result, [{remedy}]) after `local`, which reduces the gradient"
    )]
    LocalGradient {
        /// The index of the result.
        result: usize,
        /// The result's sharding.
        sharding: String,
        /// The gradient's dtype, shape and sharding.
        gradient: String,
        /// The placements to redistribute to.
        remedy: String,
    },

    /// Different values on ranks that should have the same.
    #[error(
        "{name} is {tensor}, but ranks {ranks:?} have other values than rank {first}; before it, a \
         redistribution is missing, or the ranks computed different values"
    )]
    Replicas {
        /// The tensor's name or use.
        name: String,
        /// The tensor's dtype, shape and sharding.
        tensor: String,
        /// The first of the ranks that have the same part.
        first: usize,
        /// Those of them with other values.
        ranks: Vec<usize>,
    },

    /// Different tensors compared in strict mode.
    #[error(
        "rank {first} compares {first_tensor}, but rank {rank} compares {tensor}; in strict mode, all \
         ranks must run the same backward passes with the same parameters in the same order"
    )]
    ReplicaTensors {
        /// The first of the ranks.
        first: usize,
        /// What it compares.
        first_tensor: String,
        /// A rank that compares another tensor.
        rank: usize,
        /// What that rank compares.
        tensor: String,
    },

    /// A rank that is not in the mesh.
    #[error("rank {rank} is not in the mesh {mesh}")]
    NotInMesh {
        /// The rank.
        rank: usize,
        /// The mesh.
        mesh: String,
    },

    /// A read of a tensor of which this rank has only a part, or only partial values.
    #[error(
        "{op}: this rank has only a part of the tensor, or partial values ({sharding}); redistribute \
         it to replicate, or use the rank's part (Tensor::local)"
    )]
    Part {
        /// The op.
        op: &'static str,
        /// The sharding.
        sharding: String,
    },
}
