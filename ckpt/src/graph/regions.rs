//! Regions that are not one box, as expressions.

use std::ops::Range;

use meshgrad_error::{Result, bail};
use meshgrad_mesh::Region;

use super::{Expr, Graph};

impl Graph {
    /// The elements of a region of `of`, in row-major order of its indices: what a rank stores of a
    /// sharded tensor.
    ///
    /// ```
    /// use meshgrad_ckpt::Dtype;
    /// use meshgrad_ckpt::graph::Graph;
    /// use meshgrad_mesh::{Mesh, Placement, Sharding};
    ///
    /// // Each rank has half of each block of four rows.
    /// let mesh = Mesh::new(&[2], &["tp"])?;
    /// let sharding = Sharding::new(&mesh, [("tp", Placement::in_blocks(0, 4))], &[8, 16])?;
    /// let region = sharding.region(1).ok_or("rank 1 is in the mesh")?;
    ///
    /// let mut graph = Graph::new();
    /// let weight = graph.source("weight", Dtype::BF16, &[8, 16])?;
    /// let part = graph.region(weight, &region)?;
    /// assert_eq!(graph.shape(part), [4, 16]);
    /// let offsets = graph.copies(part, &[0..4, 0..16])?.into_iter().map(|copy| copy.source_offset);
    /// assert_eq!(offsets.collect::<Vec<_>>(), [2 * 16, 6 * 16]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// For a region with another number of dims, and for one outside of the expression.
    pub fn region(&mut self, of: Expr, region: &Region) -> Result<Expr> {
        let dims = region.dims().iter().map(|dim| {
            let ranges = dim.ranges().iter();
            let ranges = ranges.map(|range| range.start as u64..range.end as u64);
            ranges.collect::<Vec<Range<u64>>>()
        });
        let dims: Vec<Vec<Range<u64>>> = dims.collect();
        if dims.len() != self.shape(of).len() {
            let hull = |ranges: &Vec<Range<u64>>| ranges[0].start..ranges[ranges.len() - 1].end;
            let (region, shape) = (dims.iter().map(hull).collect::<Vec<_>>(), self.shape(of));
            bail!(
                Invalid,
                "{region:?} is not a region of shape {shape:?}: pass a range inside each dim"
            );
        }
        let mut part = of;
        for (dim, ranges) in dims.iter().enumerate() {
            part = self.take(part, dim, ranges)?;
        }
        Ok(part)
    }

    /// The indices of a dim in these ranges, one range after the other.
    ///
    /// # Errors
    /// For a range outside of the dim, and without ranges.
    pub(crate) fn take(&mut self, of: Expr, dim: usize, ranges: &[Range<u64>]) -> Result<Expr> {
        let whole = 0..self.shape(of)[dim];
        if *ranges == [whole] {
            return Ok(of);
        }
        let mut slices = Vec::with_capacity(ranges.len());
        for range in ranges {
            let count = range.end.saturating_sub(range.start);
            slices.push(self.slice(of, dim, (range.start, count, 1))?);
        }
        match slices[..] {
            [only] => Ok(only),
            _ => self.concat(&slices, dim),
        }
    }
}
