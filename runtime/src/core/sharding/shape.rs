//! Global shapes with the shards of a rank.

use std::ops::{Deref, Range};

use meshgrad_error::bail;
use meshgrad_mesh::{Placement, Region, RowBox, Sharding};

use super::tag::Tag;
use super::views;
use crate::core::arguments::indexed::IndexRange;
use crate::{DType, Device, Kind, Result, Shape, Tensor};

/// The global shape of a tensor and the shards that this rank has, without partial values: the
/// shape of a parameter, and of a tensor's gradients. Along the axes of the mesh that do not shard
/// the tensor, a gradient is replicated or partial.
///
/// It dereferences to the global shape.
#[derive(Clone, Debug)]
pub struct ShardedShape {
    global: Shape,
    /// Without partial values; `None` without a sharding.
    tag: Option<Tag>,
}

impl Deref for ShardedShape {
    type Target = Shape;

    fn deref(&self) -> &Shape {
        &self.global
    }
}

/// A shape without a sharding.
impl From<Shape> for ShardedShape {
    fn from(global: Shape) -> ShardedShape {
        ShardedShape { global, tag: None }
    }
}

impl ShardedShape {
    /// The shape of `sharding`, and the shards of rank `rank`.
    ///
    /// # Errors
    /// When the rank is not in the mesh.
    pub fn new(sharding: &Sharding, rank: usize) -> Result<ShardedShape> {
        let tag = Tag::new(sharding.without_partials(), rank)?;
        Ok(ShardedShape { global: Shape::new(sharding.shape())?, tag: Some(tag) })
    }

    /// The shape of this rank's part.
    pub fn local(&self) -> &Shape {
        self.tag.as_ref().map_or(&self.global, Tag::local)
    }

    pub(crate) fn tag(&self) -> Option<&Tag> {
        self.tag.as_ref()
    }

    /// The indices of dim `dim` that this rank has.
    ///
    /// # Errors
    /// When a rank has several ranges of the dim, on all ranks alike.
    pub(crate) fn indices(&self, op: &'static str, dim: usize) -> Result<IndexRange> {
        let total = self.global[dim];
        let Some(tag) = self.tag() else {
            return Ok(IndexRange { first: 0, total });
        };
        if !tag.sharding().has_one_range(dim) {
            let sharding = tag.sharding().to_string();
            bail!(
                Invalid,
                "{op}: ranks have several ranges of dim {dim} ({sharding}), but the op needs one \
                 per rank; redistribute the tensor to shard({dim}) first"
            );
        }
        let first = tag.region().dims()[dim].ranges()[0].start;
        Ok(IndexRange { first, total })
    }

    /// Where some rows of this rank's part are in the global tensor; see
    /// [`Region::row_boxes`](meshgrad_mesh::Region::row_boxes).
    pub fn row_boxes(&self, rows: Range<usize>) -> Vec<RowBox> {
        match &self.tag {
            Some(tag) => tag.region().row_boxes(rows),
            None => Region::whole(&self.global).row_boxes(rows),
        }
    }

    /// The sharding, without partial values.
    pub fn sharding(&self) -> Option<&Sharding> {
        self.tag.as_ref().map(Tag::sharding)
    }

    /// The rank whose shards these are; `None` without a sharding.
    pub fn rank(&self) -> Option<usize> {
        self.tag.as_ref().map(Tag::rank)
    }

    /// Whether `x` has this global shape and these shards. It may be partial.
    pub fn fits(&self, x: &Tensor) -> bool {
        match (&self.tag, x.tag()) {
            (None, None) => self.global == *x.shape(),
            (Some(own), Some(other)) => own == other.shards(),
            _ => false,
        }
    }

    /// `x`, of the local shape, as this rank's part of a tensor with these shards. Copies nothing.
    ///
    /// # Errors
    /// For another local shape.
    pub fn part(&self, x: &Tensor) -> Result<Tensor> {
        let Some(tag) = &self.tag else {
            return Ok(x.clone());
        };
        tag.check("part", x.shape())?;
        Ok(x.with_tag(Some(tag.clone())))
    }

    /// `x`, of the local shape, as this rank's part of a tensor with these shards, partial along the
    /// same axes as `like`. Copies nothing.
    ///
    /// # Errors
    /// For another local shape, or if `like` is partial along an axis of the shards.
    pub fn part_like(&self, x: &Tensor, like: &Tensor) -> Result<Tensor> {
        let (Some(tag), Some(like)) = (&self.tag, like.tag()) else {
            return self.part(x);
        };
        let own = tag.sharding();
        let shards = own.placements().into_iter();
        let shards = shards.filter(|(_, at)| *at != Placement::Replicate);
        let partials = like.sharding().partials().into_iter();
        let partials = partials.map(|(axis, by)| (axis, Placement::Partial(by)));
        let placements: Vec<_> = shards.chain(partials).collect();
        let tag = Tag::new(Sharding::new(own.mesh(), placements, own.shape())?, tag.rank())?;
        tag.check("part_like", x.shape())?;
        Ok(x.with_tag(Some(tag)))
    }

    /// `x` broadcast to this shape, with these shards: adds dims in front, and repeats this shape's
    /// dims `repeated`, which have extent 1 in `x`. Copies nothing.
    ///
    /// # Errors
    /// When the shape does not broadcast; unless `x` is replicated where this shape shards a
    /// repeated dim, and has the same shards of the other dims.
    pub fn broadcast(&self, x: &Tensor, repeated: &[usize]) -> Result<Tensor> {
        match (&self.tag, x.tag()) {
            (Some(own), Some(tag)) => {
                let tag = views::broadcast_like(tag, own, repeated)?;
                Ok(x.local_broadcast_to(own.local())?.with_tag(Some(tag)))
            }
            _ => x.broadcast_to(&self.global),
        }
    }

    /// Zeros of this shape; this rank's part of them.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn zeros(&self, device: &Device, dtype: DType, kind: Kind) -> Result<Tensor> {
        let zeros = Tensor::zeros(device, self.local(), dtype, kind)?;
        Ok(zeros.with_tag(self.tag.clone()))
    }
}

impl Tensor {
    /// The global shape, and the shards of this rank.
    pub fn sharded_shape(&self) -> ShardedShape {
        ShardedShape {
            global: self.global_shape(),
            tag: self.tag().map(|tag| tag.shards().clone()),
        }
    }

    /// Zeros of the global shape `shape` for an op that also takes this tensor: of its dtype, on its
    /// device, partial along the same axes (zeros are partial values of zero), and with its shards if
    /// `shape` has as many dims.
    ///
    /// # Errors
    /// When memory runs out; when the shards do not fit `shape`.
    pub fn zeros_beside(&self, shape: &[usize]) -> Result<Tensor> {
        let Some(tag) = self.tag() else {
            return Tensor::zeros(self.device(), shape, self.dtype(), Kind::Value);
        };
        let has_dims = shape.len() == self.shape().len();
        let is_kept = |at: &Placement| at.dim().is_none() || has_dims;
        let placements = tag.sharding().placements().into_iter();
        let placements: Vec<_> = placements.filter(|(_, at)| is_kept(at)).collect();
        let sharding = Sharding::new(tag.sharding().mesh(), placements, shape)?;
        let tag = Tag::new(sharding, tag.rank())?;
        let zeros = Tensor::zeros(self.device(), tag.local(), self.dtype(), Kind::Value)?;
        Ok(zeros.with_tag(Some(tag)))
    }
}
