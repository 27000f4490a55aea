//! Sharding of tensors over ranks: the region of each tensor that a rank owns.
//!
//! A layout is written by hand, for tools and tests: `ep=8,tp=2` names the axes of a mesh. A
//! placement lists the dims that axes split, for all tensors with matching names:
//!
//! ```
//! use meshgrad_ckpt::layout::Layout;
//!
//! let layout = Layout::parse("ep=8,tp=2", "
//!     ## experts by expert and by feature
//!     model.layers.{l}.mlp.experts.gate_up_proj = ep:0 tp:1
//!     model.layers.{l}.mlp.experts.down_proj    = ep:0 tp:2
//!     {rest:path}.weight                        = tp:0
//! ")?;
//! assert_eq!(layout.ranks(), 16);
//! layout.check_matches(&[
//!     "model.layers.0.mlp.experts.gate_up_proj",
//!     "model.layers.0.mlp.experts.down_proj",
//!     "lm_head.weight",
//! ])?;
//! let region = layout.region("model.layers.7.mlp.experts.down_proj", &[128, 2048, 768], 3)?;
//! assert_eq!(region, [16..32, 0..2048, 384..768]);
//! # Ok::<(), meshgrad_ckpt::Error>(())
//! ```

use std::ops::Range;

use meshgrad_error::{Result, bail, ensure, error};
use meshgrad_mesh::{MAX_RANKS, Mesh, Placement, Sharding};

use crate::mapping::Template;

/// Mesh axes, and the dims that they split.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    mesh: Mesh,
    /// The first match counts.
    splits: Vec<Splits>,
}

/// The axes that split dims of the tensors with matching names.
#[derive(Clone, Debug, PartialEq)]
struct Splits {
    names: Template,
    line: usize,
    /// Written with `?=`: no tensor need match.
    optional: bool,
    /// Axis and dim. If several axes split one dim, the first is the outermost.
    dims: Vec<(String, usize)>,
}

impl Layout {
    /// One rank that owns everything.
    pub fn single() -> Layout {
        Layout { mesh: Mesh::new(&[], &[]).expect("one rank is a mesh"), splits: Vec::new() }
    }

    /// Parses axes, as in `ep=8,tp=2`, and placements, one per line. The first axis is the slowest:
    /// ranks that are adjacent along the last axis have adjacent numbers.
    ///
    /// # Errors
    /// For axes or placements of another form, repeated or unknown axes, and too many ranks.
    pub fn parse(axes: &str, placements: &str) -> Result<Layout> {
        let mut layout = Layout { mesh: read_axes(axes)?, splits: Vec::new() };
        let lines = (1..).zip(placements.lines());
        for (line, text) in lines {
            let text = text.split('#').next().unwrap_or_default().trim();
            if !text.is_empty() {
                let splits = layout.parse_placement(line, text)?;
                layout.splits.push(splits);
            }
        }
        Ok(layout)
    }

    /// Checks that each placement applies to one of `names`. A placement that is optional, or a
    /// catch-all to which earlier placements leave no name, may apply to none.
    ///
    /// # Errors
    /// For any other placement that applies to none.
    pub fn check_matches(&self, names: &[&str]) -> Result<()> {
        let first_match = |name: &str| {
            let mut splits = self.splits.iter();
            splits.position(|it| it.names.matches(name).is_some())
        };
        let mut applies = vec![false; self.splits.len()];
        for at in names.iter().filter_map(|name| first_match(name)) {
            applies[at] = true;
        }
        for (splits, applies) in self.splits.iter().zip(applies) {
            if applies || splits.optional {
                continue;
            }
            let (line, text) = (splits.line, splits.names.to_string());
            let matching = names.iter().find(|name| splits.names.matches(name).is_some());
            match matching.and_then(|name| first_match(name)) {
                None if splits.names.is_whole() => {}
                None => bail!(
                    Invalid,
                    "line {line}: no tensor matches `{text}`: correct the name, or write `?=` if \
                     the line is optional"
                ),
                Some(_) if splits.names.has_path() => {}
                Some(earlier) => {
                    let earlier = self.splits[earlier].line;
                    bail!(
                        Invalid,
                        "line {line}: every tensor that `{text}` matches is matched by line \
                         {earlier}, and the first match counts: move the line up"
                    );
                }
            }
        }
        Ok(())
    }

    /// The axes.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u64 {
        self.mesh.len() as u64
    }

    /// The placement of a tensor. A dim of n elements is split over k ranks into chunks of ceil(n /
    /// k), as in `torch.chunk` and DTensor.
    ///
    /// # Errors
    /// When an axis splits a dim that the tensor does not have.
    pub fn sharding(&self, name: &str, shape: &[u64]) -> Result<Sharding> {
        let dims = self.splits_of(name);
        if let Some((axis, dim)) = dims.iter().find(|(_, dim)| *dim >= shape.len()) {
            let name = name.escape_debug();
            bail!(
                Invalid,
                "`{name}` of shape {shape:?} has no dim {dim}, but axis `{axis}` splits it"
            );
        }
        let shape: Vec<usize> = shape.iter().map(|extent| *extent as usize).collect();
        let placements: Vec<_> =
            dims.iter().map(|(axis, dim)| (axis, Placement::shard(*dim))).collect();
        Sharding::new(&self.mesh, placements, &shape).map_err(|problem| {
            problem.context(format_args!("`{}` cannot be split", name.escape_debug()))
        })
    }

    /// The region of a tensor that a rank owns: a range per dim, possibly empty.
    ///
    /// # Errors
    /// For a rank that does not exist; as [`Layout::sharding`].
    pub fn region(&self, name: &str, shape: &[u64], rank: u64) -> Result<Vec<Range<u64>>> {
        let sharding = self.sharding(name, shape)?;
        let region = usize::try_from(rank).ok().and_then(|rank| sharding.region(rank)?.as_box());
        let in_file = |range: Range<usize>| range.start as u64..range.end as u64;
        let region = region.map(|region| region.into_iter().map(in_file).collect());
        region.ok_or_else(|| {
            let ranks = self.ranks();
            error!(Invalid, "invalid rank {rank}: {self} has {ranks} ranks, numbered from 0")
        })
    }

    /// Whether a rank is the first of the ranks that own the same region of a tensor. This rank
    /// writes the region.
    pub fn is_primary_replica(&self, name: &str, rank: u64) -> bool {
        let coordinate = self.mesh.coordinate(rank as usize).unwrap_or_default();
        let dims = self.splits_of(name);
        let splits = |axis: &str| dims.iter().any(|(other, _)| other == axis);
        let mut axes = self.mesh.axes().iter().zip(coordinate);
        axes.all(|(axis, at)| at == 0 || splits(axis.name()))
    }

    fn splits_of(&self, name: &str) -> &[(String, usize)] {
        let splits = self.splits.iter().find(|it| it.names.matches(name).is_some());
        splits.map_or(&[], |splits| &splits.dims)
    }

    fn parse_placement(&self, line: usize, text: &str) -> Result<Splits> {
        let bad = || {
            error!(
                Invalid,
                "line {line}: `{}` is not a placement: write TEMPLATE = AXIS:DIM .., as in \
                 {{r:path}}.weight = tp:0",
                text.escape_debug()
            )
        };
        let (names, splits) = text.split_once('=').ok_or_else(bad)?;
        let (names, optional) = match names.strip_suffix('?') {
            Some(names) => (names, true),
            None => (names, false),
        };
        let names = self::names(names.trim());
        let names = names.map_err(|problem| problem.context(format_args!("line {line}")))?;
        let mut dims: Vec<(String, usize)> = Vec::new();
        for split in splits.split_whitespace() {
            let (axis, dim) = split.split_once(':').ok_or_else(bad)?;
            let dim = dim.parse().map_err(|_| bad())?;
            ensure!(
                self.mesh.axis(axis).is_ok(),
                Invalid,
                "line {line}: unknown axis `{}`; the axes are {self}",
                axis.escape_debug()
            );
            ensure!(
                dims.iter().all(|(other, _)| other != axis),
                Invalid,
                "line {line}: axis `{axis}` splits the same tensor twice"
            );
            dims.push((axis.to_owned(), dim));
        }
        Ok(Splits { names, line, optional, dims })
    }
}

impl std::fmt::Display for Layout {
    /// The axes in the syntax of [`Layout::parse`].
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let axes = self.mesh.axes().iter();
        let axes: Vec<String> =
            axes.map(|axis| format!("{}={}", axis.name(), axis.size())).collect();
        f.write_str(if axes.is_empty() { "none" } else { "" })?;
        f.write_str(&axes.join(","))
    }
}

/// Parses a name template, as in placements, to select tensors.
///
/// # Errors
/// When the text is not a template.
pub fn names(text: &str) -> Result<Template> {
    Template::parse(text, &Default::default())
}

fn read_axes(text: &str) -> Result<Mesh> {
    let (mut names, mut sizes): (Vec<&str>, Vec<usize>) = Default::default();
    for axis in text.split(',').filter(|_| !text.trim().is_empty()) {
        let bad = || {
            error!(
                Invalid,
                "`{}` is not an axis: write NAME=SIZE, separated by commas, as in ep=8,tp=2",
                axis.escape_debug()
            )
        };
        let (name, size) = axis.trim().split_once('=').ok_or_else(bad)?;
        let size = size.parse().ok().filter(|size| *size > 0).ok_or_else(bad)?;
        let plain = |it: char| it.is_ascii_alphanumeric() || it == '_';
        if name.is_empty() || !name.chars().all(plain) {
            return Err(bad());
        }
        ensure!(!names.contains(&name), Invalid, "axis `{name}` is listed twice");
        names.push(name);
        sizes.push(size);
    }
    Mesh::new(&sizes, &names)
        .map_err(|_| error!(Invalid, "the axes {text} have more than {MAX_RANKS} ranks"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// For any axes and any uneven tensor, the primary replicas together own every element exactly
    /// once.
    #[test]
    fn primary_replicas_cover_a_tensor_once() {
        let placements = ["", "w = a:0", "w = b:1 a:1", "w = c:0 a:1", "w = c:1 b:1 a:0"];
        for axes in ["a=1,b=1,c=1", "a=2,b=3,c=2", "c=4,b=1,a=3", "a=7,b=2,c=1"] {
            for placement in placements {
                let layout = Layout::parse(axes, placement).unwrap();
                let mut held: BTreeMap<(u64, u64), u64> = BTreeMap::new();
                for rank in (0..layout.ranks()).filter(|rank| layout.is_primary_replica("w", *rank))
                {
                    let region = layout.region("w", &[5, 9], rank).unwrap();
                    for row in region[0].clone() {
                        for column in region[1].clone() {
                            *held.entry((row, column)).or_default() += 1;
                        }
                    }
                }
                assert_eq!(held.len(), 45, "{axes} {placement}");
                assert!(held.values().all(|times| *times == 1), "{axes} {placement}");
            }
        }
    }

    /// Dims are split into the sizes of `torch.chunk`. The last ranks may have empty regions.
    #[test]
    fn uneven_dims_are_split_as_torch_does() {
        let layout = Layout::parse("x=4", "w = x:0").unwrap();
        let starts = |extent: u64| -> Vec<Range<u64>> {
            let region = |rank| layout.region("w", &[extent], rank).unwrap().remove(0);
            (0..4).map(region).collect()
        };
        assert_eq!(starts(8), [0..2, 2..4, 4..6, 6..8]);
        assert_eq!(starts(9), [0..3, 3..6, 6..9, 9..9]);
        assert_eq!(starts(5), [0..2, 2..4, 4..5, 5..5]);
        assert_eq!(starts(0), [0..0, 0..0, 0..0, 0..0]);
    }

    /// A line that applies to no tensor is an error, unless it is optional or a catch-all.
    #[test]
    fn lines_that_match_no_tensor_are_errors() {
        let check = |placements: &str| {
            let layout = Layout::parse("x=2", placements).unwrap();
            let checked = layout.check_matches(&["w.0", "w.1", "norm"]);
            checked.map_err(|error| error.to_string())
        };
        let fine = [
            "w.{l} = x:0\nnorm = x:0\n{r:path} = x:0",
            "w.0 = x:0\nw.{l} = x:0",
            "w.{l} = x:0\nw.{r:path} = x:1",
            "v.{l} ?= x:0",
            "",
        ];
        assert!(fine.iter().all(|placements| check(placements).is_ok()));
        let rejected = [
            (
                "norm = x:0\nv.{l} = x:0",
                "line 2: no tensor matches `v.{l}`: correct the name, or write `?=` if the line is \
                 optional",
            ),
            (
                "v.{r:path} = x:0",
                "line 1: no tensor matches `v.{r}`: correct the name, or write `?=` if the line is \
                 optional",
            ),
            (
                "w.{l} = x:0\nw.1 = x:1",
                "line 2: every tensor that `w.1` matches is matched by line 1, and the first match \
                 counts: move the line up",
            ),
        ];
        for (placements, message) in rejected {
            assert_eq!(check(placements).unwrap_err(), message);
        }
    }

    #[test]
    fn invalid_layouts_are_explained() {
        let cases = [
            (
                "tp",
                "",
                "`tp` is not an axis: write NAME=SIZE, separated by commas, as in ep=8,tp=2",
            ),
            (
                "tp=0",
                "",
                "`tp=0` is not an axis: write NAME=SIZE, separated by commas, as in ep=8,tp=2",
            ),
            ("tp=2,tp=4", "", "axis `tp` is listed twice"),
            (
                "a=99999999999,b=99999999999",
                "",
                "the axes a=99999999999,b=99999999999 have more than 16777216 ranks",
            ),
            (
                "tp=2",
                "w",
                "line 1: `w` is not a placement: write TEMPLATE = AXIS:DIM .., as in {r:path}.weight = \
                 tp:0",
            ),
            (
                "tp=2",
                "\nw = tp:x",
                "line 2: `w = tp:x` is not a placement: write TEMPLATE = AXIS:DIM .., as in \
                 {r:path}.weight = tp:0",
            ),
            ("tp=2", "w = ep:0", "line 1: unknown axis `ep`; the axes are tp=2"),
            ("", "w = ep:0", "line 1: unknown axis `ep`; the axes are none"),
            ("tp=2", "w = tp:0 tp:1", "line 1: axis `tp` splits the same tensor twice"),
            ("tp=2", "w.{l = tp:0", "line 1: unbalanced `{` and `}`"),
        ];
        for (axes, placements, message) in cases {
            let error = Layout::parse(axes, placements).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
        let layout = Layout::parse("tp=2", "w = tp:1").unwrap();
        let errors = [layout.region("w", &[4], 0), layout.region("w", &[4, 4], 2)];
        assert_eq!(
            errors.map(|error| error.unwrap_err().to_string()),
            [
                "`w` of shape [4] has no dim 1, but axis `tp` splits it",
                "invalid rank 2: tp=2 has 2 ranks, numbered from 0",
            ]
        );
    }
}
