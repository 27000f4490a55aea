//! Heads, for all kernels that rotate them. A head is a [`Row`]: in the registers of a few lanes
//! ([`HeadTile`]), or read in loops by a warp.

use super::form::{Form, Shape, Strides, StridesOfTable};
use super::{Direction, HeadTile, Style};
use crate::assembler::{F32, GlobalAddress, Kernel, Pred, S64, U32};
use crate::dtype::Dtype;
use crate::row::{Access, First, Index, Place, Row, Step, Values, element};

/// Threads per CTA that loops over heads: one head per warp.
pub(super) const LOOP_THREADS: u32 = 128;

/// The coordinates of a head.
#[derive(Clone, Copy)]
pub(crate) struct HeadCoordinates<'k> {
    index: U32<'k>,
    batch: S64<'k>,
    position: S64<'k>,
    head: S64<'k>,
}

impl<'k> HeadCoordinates<'k> {
    /// Head `index`, counted in row-major order.
    #[track_caller]
    pub(crate) fn new(shape: &Shape<'k>, index: U32<'k>) -> HeadCoordinates<'k> {
        let token = index / shape.heads;
        let head = index - token * shape.heads;
        let batch = token / shape.positions;
        let position = token - batch * shape.positions;
        let signed = |x: U32<'k>| x.wide().signed();
        HeadCoordinates {
            index,
            batch: signed(batch),
            position: signed(position),
            head: signed(head),
        }
    }

    /// The address of the head in a strided tensor.
    #[track_caller]
    pub(crate) fn strided(
        &self,
        dtype: Dtype,
        tensor: GlobalAddress<'k>,
        strides: &Strides<'k>,
    ) -> GlobalAddress<'k> {
        let row = self.of_position(strides.batch, strides.position);
        let element = self.head.mad(strides.head, row).unsigned();
        tensor.byte_add(element * u64::from(dtype.size()))
    }

    /// The address of the head's row in a table of f32.
    #[track_caller]
    pub(crate) fn in_table(
        &self,
        table: GlobalAddress<'k>,
        strides: &StridesOfTable<'k>,
    ) -> GlobalAddress<'k> {
        let element = self.of_position(strides.batch, strides.position).unsigned();
        table.byte_add(element * 4u64)
    }

    #[track_caller]
    fn of_position(&self, batch: S64<'k>, position: S64<'k>) -> S64<'k> {
        self.batch.mad(batch, self.position * position)
    }

    /// The address of the head's element in a dense vector with one f32 per head.
    #[track_caller]
    pub(crate) fn scalar(&self, vector: GlobalAddress<'k>) -> GlobalAddress<'k> {
        vector.element::<f32>(self.index)
    }
}

/// A head, and the thread's part of it.
pub(crate) struct Head<'k> {
    /// The head as a row of a dense tensor.
    pub(crate) row: Row<'k>,
    coordinates: HeadCoordinates<'k>,
    /// If the head is in registers: its tile, and the first element of each of the thread's vectors
    /// in lane 0, and whether the vector exists.
    held: Option<(HeadTile, Vec<(u32, Pred<'k>)>)>,
}

/// Cosines and sines for a head.
pub(crate) enum Angles<'k> {
    /// Of each pair of the thread.
    Loaded(HeadTile, Vec<[F32<'k>; 2]>),
    /// The rows of both tables, which loops read.
    InTables([GlobalAddress<'k>; 2]),
}

impl<'k> Head<'k> {
    /// The head of this thread in a kernel of [`Form::threads`] threads.
    #[track_caller]
    pub(crate) fn of_thread(k: &'k Kernel, form: Form, shape: &Shape<'k>) -> Head<'k> {
        match form {
            Form::Tile(tile) => {
                let (thread, bits) = (k.thread(), tile.lanes().trailing_zeros());
                let index = k.cta().mad(tile.rows(), thread >> bits);
                let lane = thread & (tile.lanes() - 1);
                Head::new(k, tile, shape, [index, lane], index.lt(shape.rows))
            }
            Form::Loop(dtype, style) => Head::in_a_loop(k, dtype, style, shape),
        }
    }

    /// Head `index` in registers, if it `exists`, in lane `lane` of the lanes that share it.
    #[track_caller]
    pub(crate) fn new(
        k: &'k Kernel,
        tile: HeadTile,
        shape: &Shape<'k>,
        [index, lane]: [U32<'k>; 2],
        exists: Pred<'k>,
    ) -> Head<'k> {
        let (dtype, column) = (tile.dtype, lane * tile.per_vector());
        let vectors = tile.vectors_at(column, exists);
        let accesses = vectors.iter().map(|(first, exists)| Access {
            first: First::Offset(*first),
            width: tile.per_vector(),
            exists: *exists,
        });
        let row = Row {
            k,
            dtype,
            exists,
            leads: exists & lane.equals(0),
            lanes: tile.lanes(),
            place: Place::Registers {
                index: Index::Narrow(index),
                features: tile.features(),
                first: Index::Narrow(column),
                all: Step { dtype, accesses: accesses.collect(), pair: None },
            },
        };
        Head { row, coordinates: HeadCoordinates::new(shape, index), held: Some((tile, vectors)) }
    }

    /// The head of this warp. A pass loops over its pairs, and then over the features that are not
    /// rotated.
    #[track_caller]
    fn in_a_loop(k: &'k Kernel, dtype: Dtype, style: Style, shape: &Shape<'k>) -> Head<'k> {
        let index = k.cta().mad(LOOP_THREADS / 32, k.warp());
        let (lane, exists) = (k.lane(), index.lt(shape.rows));
        let half = shape.pairs;
        let [pairs, features] = [half, shape.features].map(|count| exists.select(count, 0));
        let pass = move |body: &dyn Fn(&Step<'k>)| {
            let step = |features: &[U32<'k>], pair| {
                let accesses = features.iter().map(|feature| Access {
                    first: First::Index(*feature),
                    width: 1,
                    exists,
                });
                body(&Step { dtype, accesses: accesses.collect(), pair });
            };
            k.for_range(lane, pairs, 32, |pair| {
                let elements = match style {
                    Style::Half => [pair, pair + half],
                    Style::Interleaved => [pair << 1, (pair << 1) + 1],
                };
                step(&elements, Some(pair));
            });
            k.for_range((half << 1) + lane, features, 32, |feature| step(&[feature], None));
        };
        let row = Row {
            k,
            dtype,
            exists,
            leads: exists & lane.equals(0),
            lanes: 32,
            place: Place::Loop { index, features: shape.features, pass: Box::new(pass) },
        };
        Head { row, coordinates: HeadCoordinates::new(shape, index), held: None }
    }

    /// Loads this head from a strided tensor.
    #[track_caller]
    pub(crate) fn load(&self, tensor: GlobalAddress<'k>, strides: &Strides<'k>) -> Values<'k> {
        let start = self.coordinates.strided(self.row.dtype, tensor, strides);
        self.row.load_from(start)
    }

    /// Loads the angles of this head's position from both tables.
    #[track_caller]
    pub(crate) fn angles(
        &self,
        tables: [(GlobalAddress<'k>, StridesOfTable<'k>); 2],
    ) -> Angles<'k> {
        let tables = tables.map(|(table, strides)| self.coordinates.in_table(table, &strides));
        let Some((tile, vectors)) = &self.held else {
            return Angles::InTables(tables);
        };
        // The angles of a vector of features.
        let (size, count) = match tile.style {
            Style::Half => (4, tile.per_vector()),
            Style::Interleaved => (2, tile.per_vector() / 2),
        };
        let [cos, sin] = tables.map(|table| {
            let start = self.row.own(table, size);
            let load = |(first, exists): &(u32, Pred<'k>)| {
                load_angles(*exists, start.offset(i64::from(size * first)), count)
            };
            let vectors = vectors.iter().filter(|(first, _)| tile.has_angles(*first));
            vectors.flat_map(load).collect::<Vec<_>>()
        });
        let pairs = cos.into_iter().zip(sin).map(|(cos, sin)| [cos, sin]);
        Angles::Loaded(*tile, pairs.collect())
    }

    /// The values after rotation by the angles; features that are not rotated are unchanged.
    pub(crate) fn rotated(
        &self,
        direction: Direction,
        values: &Values<'k>,
        angles: Angles<'k>,
    ) -> Values<'k> {
        let values = values.clone();
        self.row.values(move |step| {
            let values = values.of(step);
            match (&angles, step.pair) {
                (Angles::Loaded(tile, angles), _) => tile.rotated(direction, &values, angles),
                (Angles::InTables(tables), Some(pair)) => {
                    let angle = tables.map(|table| element(Dtype::F32, table, pair).load());
                    direction.rotate([values[0], values[1]], angle).to_vec()
                }
                (Angles::InTables(_), None) => values,
            }
        })
    }
}

/// Loads 2, 4 or 8 consecutive f32.
#[track_caller]
fn load_angles<'k>(exists: Pred<'k>, from: GlobalAddress<'k>, count: u32) -> Vec<F32<'k>> {
    match count {
        2 => from.load_vector_if::<f32, 2>(exists).to_vec(),
        _ => {
            let fours = 0..i64::from(count / 4);
            fours.flat_map(|i| from.offset(16 * i).load_vector_if::<f32, 4>(exists)).collect()
        }
    }
}
