//! Launches of cross entropy fused with its linear layer, one tile of logits at a time. Operands
//! are contiguous.
//!
//! Legend: D features, V classes of a shard.
//!
//! A tile is at most 4096 rows by 4096 classes: 64 MiB of f32, for any batch and vocabulary. For
//! bf16, the gradient of the tile needs 32 MiB more. The bf16 dx also needs a [4096, D] f32
//! accumulator, unless one tile has all classes. dx and dw are accumulated: each tile reads and
//! writes them once. Square tiles minimize that traffic.

use std::ops::Range;

use meshgrad_error::error;
use meshgrad_kernels::Dtype;
use meshgrad_kernels::cross_entropy::{
    Classes, CrossEntropyGradient, CrossEntropyGradientArguments, CrossEntropyStatistics,
    CrossEntropyStatisticsArguments, CrossEntropySum, CrossEntropySumArguments, Label, Lanes,
    MAX_CLASSES,
};
use meshgrad_kernels::{In, Out};

use super::elementwise::{Target, cast_from};
use super::matmul::{Lines, Product, multiply};
use crate::core::arguments::cross_entropy::Targets;
use crate::launch::{Launcher, Operand, Plan, PlanError, float};
use crate::{Call, DType, Layout, Result, Shape, Tensor, UninitTensor};

/// Maximum rows per tile.
const TILE_ROWS: usize = 4096;

/// Maximum classes per tile.
const TILE_CLASSES: usize = MAX_CLASSES as usize;

/// The alignment of tile rows in elements: one 32-byte sector in bf16.
const LINE: usize = 16;

/// The tiling of [rows, classes] logits. It depends on the extents only.
#[derive(Clone, Copy, Debug)]
struct Tiles {
    rows: usize,
    classes: usize,
}

impl Tiles {
    fn of(call: &Call) -> Tiles {
        Tiles { rows: call.rows(), classes: call.extent("v") }
    }

    /// Elements between rows of a tile.
    fn leading(&self) -> usize {
        self.classes.min(TILE_CLASSES).next_multiple_of(LINE)
    }

    /// Elements of a tile, padding included.
    fn elements(&self) -> usize {
        self.rows.min(TILE_ROWS) * self.leading()
    }

    /// The row ranges of the tiles.
    fn rows(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        ranges(self.rows, TILE_ROWS)
    }

    /// The class ranges of the tiles.
    fn classes(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        ranges(self.classes, TILE_CLASSES)
    }

    /// The tile at `address`.
    fn lines(&self, address: Out, dtype: DType) -> Lines<Out> {
        Lines {
            address,
            dtype,
            columns: self.classes.min(TILE_CLASSES),
            leading: self.leading(),
            aligned: true,
        }
    }
}

/// Splits `0..extent` into ranges of at most `step`. An empty extent is one empty range, so that
/// the kernels still write the empty sums.
fn ranges(extent: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = extent.div_ceil(step).max(1);
    (0..parts).map(move |part| part * step..extent.min((part + 1) * step))
}

/// The labels as kernel parameters.
struct Labels {
    format: Label,
    address: In,
    /// The classes of the first tile, and the vocabulary.
    vocabulary: Classes,
}

impl Labels {
    fn new(gpu: &Launcher<'_>, targets: &Targets<'_>, labels: &Tensor) -> Result<Labels> {
        Ok(Labels {
            format: gpu.planned(format(labels.dtype()))?,
            address: gpu.ptr(labels)?,
            vocabulary: Classes {
                first: targets.vocab_start as i64,
                total: targets.vocab_total as u64,
                ignore_index: targets.ignore_index,
                faults: gpu.fault_site(targets.vocab_total),
            },
        })
    }

    /// The tile with these classes, and the vocabulary.
    fn vocabulary(&self, classes: &Range<usize>) -> Classes {
        Classes { first: self.vocabulary.first + classes.start as i64, ..self.vocabulary }
    }

    /// The address of the label of row `row`.
    fn from(&self, row: usize) -> In {
        self.address.byte_add(row as u64 * u64::from(self.format.size()))
    }
}

fn format(dtype: DType) -> Result<Label, PlanError> {
    match dtype {
        DType::I64 => Ok(Label::I64),
        DType::I32 => Ok(Label::I32),
        DType::U32 => Ok(Label::U32),
        other => Err(PlanError::DType(other)),
    }
}

/// Writes the logits of a tile: x\[rows\] w\[classes\]^T.
fn logits(
    gpu: &Launcher<'_>,
    call: &Call,
    [x, w]: [Lines<In>; 2],
    [rows, classes]: [&Range<usize>; 2],
    tile: Lines<Out>,
) -> Result<()> {
    let to = Product::lines(&tile, 0, false);
    multiply(gpu, call, [x.part(rows), w.part(classes).transposed()], &to)
}

/// Whether a warp or a CTA handles each row of a tile with this number of classes.
fn lanes(gpu: &Launcher<'_>, classes: u32) -> Result<Lanes> {
    gpu.planned(Lanes::choose(classes).ok_or_else(|| {
        error!(Unsupported, "cross_entropy: classes = {classes} is not in 0..={TILE_CLASSES}")
            .into()
    }))
}

/// Writes the statistics of each row of the logits x w^T to `out`: \[max, sum_exp, label_logit\].
pub(crate) fn statistics(
    gpu: &Launcher<'_>,
    call: &Call,
    [x, w, labels]: [&Tensor; 3],
    targets: Targets<'_>,
    out: [&UninitTensor; 3],
) -> Result<()> {
    gpu.planned(float(x.dtype()))?;
    let tiles = Tiles::of(call);
    let workspace = call.workspace(tiles.elements(), DType::F32)?;
    let tile = tiles.lines(gpu.uninit_ptr(&workspace)?, DType::F32);
    let labels = Labels::new(gpu, &targets, labels)?;
    let operands = [Lines::of(gpu, x)?, Lines::of(gpu, w)?];
    let [max, sum_exp, label_logit] = out;
    let out = [gpu.uninit_ptr(max)?, gpu.uninit_ptr(sum_exp)?, gpu.uninit_ptr(label_logit)?];

    for rows in tiles.rows() {
        for classes in tiles.classes() {
            logits(gpu, call, operands, [&rows, &classes], tile)?;

            fold(gpu, &labels, tile, [&rows, &classes], out)?;
        }
    }
    Ok(())
}

/// Merges a tile into the statistics of its rows. `out` are the addresses of the statistics of all
/// rows.
fn fold(
    gpu: &Launcher<'_>,
    labels: &Labels,
    tile: Lines<Out>,
    [rows, classes]: [&Range<usize>; 2],
    out: [Out; 3],
) -> Result<()> {
    let [max, sum_exp, label_logit] = out.map(|it| it.byte_add(4 * rows.start as u64));
    let arguments = CrossEntropyStatisticsArguments {
        logits: tile.address.written(),
        labels: labels.from(rows.start),
        max,
        sum_exp,
        label_logit,
        leading: tile.leading as u64,
        vocabulary: labels.vocabulary(classes),
        rows: rows.len() as u32,
        classes: classes.len() as u32,
    };
    let variant = CrossEntropyStatistics {
        lanes: lanes(gpu, arguments.classes)?,
        label: labels.format,
        first: classes.start == 0,
    };
    let launch = variant.launch(arguments.rows);
    gpu.run(&Plan { variant, launch }, &arguments)
}

/// The operands of the gradients.
pub(crate) struct Gradients<'a> {
    pub(crate) x: &'a Tensor,
    pub(crate) w: &'a Tensor,
    pub(crate) labels: &'a Tensor,
    pub(crate) lse: &'a Tensor,
    pub(crate) dloss: &'a Tensor,
    pub(crate) targets: Targets<'a>,
}

impl Gradients<'_> {
    /// Writes `dx`, and adds to `dw` (or writes it, if it is empty).
    pub(crate) fn launch(
        &self,
        gpu: &Launcher<'_>,
        call: &Call,
        dx: Option<&UninitTensor>,
        dw: Option<(&Tensor, bool)>,
    ) -> Result<()> {
        let format = gpu.planned(float(self.x.dtype()))?;
        let tiles = Tiles::of(call);
        let dtype = self.x.dtype();
        let workspace = call.workspace(tiles.elements(), DType::F32)?;
        let tile = tiles.lines(gpu.uninit_ptr(&workspace)?, DType::F32);
        // In f32 the gradient overwrites the logits.
        let narrow = match dtype {
            DType::F32 => None,
            _ => Some(call.workspace(tiles.elements(), dtype)?),
        };
        let dtile = match &narrow {
            Some(narrow) => tiles.lines(gpu.uninit_ptr(narrow)?, dtype),
            None => tile,
        };

        let labels = Labels::new(gpu, &self.targets, self.labels)?;
        let operands @ [x, w] = [Lines::of(gpu, self.x)?, Lines::of(gpu, self.w)?];
        let of_rows = [gpu.ptr(self.lse)?, gpu.ptr(self.dloss)?];
        let dx = dx.map(|dx| InputGradient::new(gpu, call, &tiles, dx));
        let dx = dx.transpose()?;
        let dw = match dw {
            Some((dw, empty)) => Some((Lines::changed(gpu, dw)?, empty)),
            None => None,
        };

        for rows in tiles.rows() {
            for classes in tiles.classes() {
                let part = [&rows, &classes];
                logits(gpu, call, operands, part, tile)?;
                differentiate(gpu, format, &labels, of_rows, part, [tile, dtile])?;

                let dlogits = dtile.written(rows.len(), classes.len());
                if let Some(dx) = &dx {
                    let to = Product::lines(&dx.sums, dx.first(&rows), classes.start > 0);
                    multiply(gpu, call, [dlogits, w.part(&classes)], &to)?;
                }
                if let Some((dw, empty)) = &dw {
                    let adds = !empty || rows.start > 0;
                    let to = Product::lines(dw, classes.start, adds);
                    multiply(gpu, call, [dlogits.transposed(), x.part(&rows)], &to)?;
                }
            }
            if let Some(dx) = &dx {
                dx.round(gpu, &rows)?;
            }
        }
        Ok(())
    }
}

/// Writes the gradient of the logits of a tile. `of_rows` are the addresses of lse and dloss of all
/// rows.
fn differentiate(
    gpu: &Launcher<'_>,
    dtype: Dtype,
    labels: &Labels,
    of_rows: [In; 2],
    [rows, classes]: [&Range<usize>; 2],
    [tile, dtile]: [Lines<Out>; 2],
) -> Result<()> {
    let [lse, dloss] = of_rows.map(|it| it.byte_add(4 * rows.start as u64));
    let arguments = CrossEntropyGradientArguments {
        logits: tile.address.written(),
        labels: labels.from(rows.start),
        lse,
        dloss,
        dlogits: dtile.address,
        leading: tile.leading as u64,
        vocabulary: labels.vocabulary(classes),
        rows: rows.len() as u32,
        classes: classes.len() as u32,
    };
    let variant =
        CrossEntropyGradient { dtype, lanes: lanes(gpu, arguments.classes)?, label: labels.format };
    let launch = variant.launch(arguments.rows);
    gpu.run(&Plan { variant, launch }, &arguments)
}

/// Where dx is accumulated over tiles: in place, or in f32 and then rounded once.
struct InputGradient {
    dx: Lines<Out>,
    sums: Lines<Out>,
    /// The memory of `sums`; `None` if dx is accumulated in place.
    workspace: Option<UninitTensor>,
}

impl InputGradient {
    fn new(
        gpu: &Launcher<'_>,
        call: &Call,
        tiles: &Tiles,
        dx: &UninitTensor,
    ) -> Result<InputGradient> {
        let features = call.extent("d");
        let lines = |address, dtype| Lines {
            address,
            dtype,
            columns: features,
            leading: features,
            aligned: true,
        };
        let dx = lines(gpu.uninit_ptr(dx)?, dx.dtype());
        let in_place = dx.dtype == DType::F32 || tiles.classes <= TILE_CLASSES;
        let workspace = match in_place {
            true => None,
            false => Some(call.workspace(tiles.rows.min(TILE_ROWS) * features, DType::F32)?),
        };
        let sums = match &workspace {
            Some(workspace) => lines(gpu.uninit_ptr(workspace)?, DType::F32),
            None => dx,
        };
        Ok(InputGradient { dx, sums, workspace })
    }

    fn in_place(&self) -> bool {
        self.workspace.is_none()
    }

    /// The row of `sums` for the first of these rows.
    fn first(&self, rows: &Range<usize>) -> usize {
        if self.in_place() { rows.start } else { 0 }
    }

    /// Rounds the sums of these rows to dx, unless they are accumulated in place.
    fn round(&self, gpu: &Launcher<'_>, rows: &Range<usize>) -> Result<()> {
        if self.in_place() {
            return Ok(());
        }
        let elements = Shape::new(&[rows.len() * self.dx.columns])?;
        let first = rows.start * self.dx.columns;
        let operand =
            |dtype, offset| Operand { dtype, layout: Layout::contiguous(elements, offset) };
        let address = self.dx.address.byte_add(self.dx.dtype.bytes(first) as u64);
        let to = Target::at(operand(self.dx.dtype, first), address);
        let sums = self.sums.address.written();
        cast_from(gpu, operand(DType::F32, 0), sums, &to)
    }
}

/// The sum of lse - label_logit over the rows that are not ignored, and the number of those rows.
pub(crate) fn sum(
    gpu: &Launcher<'_>,
    [lse, label_logit, labels]: [&Tensor; 3],
    ignore_index: i64,
    [loss, count]: [&UninitTensor; 2],
) -> Result<()> {
    let variant = CrossEntropySum {
        dtype: gpu.planned(float(lse.dtype()))?,
        label: gpu.planned(format(labels.dtype()))?,
    };
    let arguments = CrossEntropySumArguments {
        lse: gpu.ptr(lse)?,
        label_logit: gpu.ptr(label_logit)?,
        labels: gpu.ptr(labels)?,
        loss: gpu.uninit_ptr(loss)?,
        count: gpu.uninit_ptr(count)?,
        ignore_index,
        rows: lse.elements() as u64,
    };
    let launch = variant.launch();
    gpu.run(&Plan { variant, launch }, &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tiles have at most 64 MiB for any batch and vocabulary, and cover all logits.
    #[test]
    fn tiles_are_bounded() {
        for [rows, classes] in [[0, 0], [1, 7], [4096, 4096], [5000, 151_936], [1 << 20, 50_257]] {
            let tiles = Tiles { rows, classes };
            assert!(4 * tiles.elements() <= 64 << 20);
            assert!(tiles.leading() >= tiles.classes().map(|it| it.len()).max().unwrap_or(0));
            assert_eq!(tiles.rows().map(|it| it.len()).sum::<usize>(), rows);
            assert_eq!(tiles.classes().map(|it| it.len()).sum::<usize>(), classes);
        }
        assert!(ranges(0, 8).eq(std::iter::once(0..0)));
        assert_eq!(ranges(9, 8).collect::<Vec<_>>(), [0..8, 8..9]);
    }
}
