//! What statistics of tiles of logits, their gradients, and the sum of losses read and write.

use meshgrad_emulator::Counters;
use meshgrad_kernels::cross_entropy::{
    Classes, CrossEntropyGradient, CrossEntropyGradientArguments, CrossEntropyStatistics,
    CrossEntropyStatisticsArguments, CrossEntropySum, CrossEntropySumArguments, Label, Lanes,
};
use meshgrad_kernels::faults::{Fault, FaultSite};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, encoded, values};
use crate::traffic::{assert_moved, assert_once, assert_whole_sectors};

/// The label of ignored rows.
const IGNORE: i64 = 77;

/// The first class of a tile, which is a part of the vocabulary.
const FIRST_CLASS: i64 = 1000;

/// Rows and classes: one, few, whole vectors, ragged ends, what a warp or a CTA handles; none.
const EXTENTS: [[usize; 2]; 9] =
    [[1, 1], [5, 8], [6, 31], [3, 136], [2, 512], [2, 517], [3, 1003], [1, 4096], [3, 0]];

/// A tile of logits, and a label per row: in the tile, in another tile, ignored, or outside the
/// vocabulary.
struct Tile {
    rows: usize,
    classes: usize,
    leading: usize,
    logits: Vec<f32>,
    labels: Vec<i64>,
    on_device: [u64; 2],
    /// The fault word for labels outside the vocabulary.
    faults: u64,
}

impl Tile {
    fn new(device: &Device, label: Label, [rows, classes]: [usize; 2], seed: u64) -> Tile {
        let leading = classes.next_multiple_of(16) + 16;
        let logits: Vec<f32> =
            values(Dtype::F32, rows * leading, seed).into_iter().map(|x| 8.0 * x).collect();
        let of_row = |row: usize| match row % 5 {
            0 => FIRST_CLASS + (row * 37 % classes.max(1)) as i64,
            1 => FIRST_CLASS + classes as i64 + 7,
            2 => IGNORE,
            3 => FIRST_CLASS + classes as i64 - 1,
            _ => FIRST_CLASS + classes as i64 * (row as i64 % 2) - 1,
        };
        let labels: Vec<i64> = (0..rows).map(of_row).collect();
        let on_device =
            [device.put_floats(Dtype::F32, &logits), put_labels(device, label, &labels)];
        Tile { rows, classes, leading, logits, labels, on_device, faults: device.put(&[0; 8]) }
    }

    fn vocabulary(&self) -> Classes {
        Classes {
            first: FIRST_CLASS,
            total: FIRST_CLASS as u64 + self.classes as u64 + 1,
            ignore_index: IGNORE,
            faults: FaultSite::new(self.faults, 3),
        }
    }

    /// Asserts that a label outside the vocabulary was reported, if there is one.
    fn assert_told(&self, device: &Device) {
        let word = device.bytes(self.faults, 8).try_into().unwrap();
        let reported = Fault::from_word(u64::from_le_bytes(word));
        let outside = (self.rows > 1)
            .then(|| Fault { site: 3, index: FIRST_CLASS + self.classes as i64 + 7 });
        assert_eq!(reported, outside);
    }

    fn row(&self, row: usize) -> impl Iterator<Item = f64> + Clone {
        let logits = &self.logits[row * self.leading..][..self.classes];
        logits.iter().map(|logit| f64::from(*logit))
    }

    /// Index of a row's label among the classes of the tile; `None` if it is ignored or elsewhere.
    fn label(&self, row: usize) -> Option<usize> {
        let at = usize::try_from(self.labels[row] - FIRST_CLASS).ok()?;
        (self.labels[row] != IGNORE && at < self.classes).then_some(at)
    }

    fn within(&self) -> usize {
        (0..self.rows).filter(|row| self.label(*row).is_some()).count()
    }

    fn lanes(&self) -> Lanes {
        Lanes::choose(self.classes as u32).unwrap()
    }

    /// Asserts the bytes moved, no bank conflicts, and that rows of whole sectors move in whole
    /// sectors.
    #[track_caller]
    fn assert_traffic(&self, counters: &Counters, all: [usize; 2], different: [usize; 2]) {
        // A report reads and writes the word.
        let fault_bytes = 8 * (0..self.rows).filter(|row| row % 5 == 1).count();
        let all = all.map(|bytes| bytes + fault_bytes);
        assert_moved(counters, all, different.map(|bytes| bytes + fault_bytes.min(8)));
        if self.classes.is_multiple_of(16) {
            assert_whole_sectors(counters);
        }
    }
}

fn put_labels(device: &Device, label: Label, labels: &[i64]) -> u64 {
    let bytes = |it: &i64| match label {
        Label::I64 => it.to_le_bytes().to_vec(),
        Label::I32 => (*it as i32).to_le_bytes().to_vec(),
        Label::U32 => (*it as u32).to_le_bytes().to_vec(),
    };
    device.put(&labels.iter().flat_map(bytes).collect::<Vec<u8>>())
}

/// Merges a tile into the statistics at these addresses.
fn statistics(device: &Device, label: Label, tile: &Tile, out: [u64; 3], first: bool) {
    let [logits, labels] = tile.on_device;
    let [max, sum_exp, label_logit] = out;
    let variant = CrossEntropyStatistics { lanes: tile.lanes(), label, first };
    let arguments = CrossEntropyStatisticsArguments {
        logits: In(logits),
        labels: In(labels),
        max: Out(max),
        sum_exp: Out(sum_exp),
        label_logit: Out(label_logit),
        leading: tile.leading as u64,
        vocabulary: tile.vocabulary(),
        rows: tile.rows as u32,
        classes: tile.classes as u32,
    };
    let launch = variant.launch(tile.rows as u32).unwrap();
    let counters = device.run(&variant, launch, &arguments);
    tile.assert_told(device);

    // Each logit is read once, that of the label twice.
    let (within, rows) = (4 * tile.within(), tile.rows);
    let of_rows = rows * label.size() as usize + if first { 0 } else { 8 * rows };
    let read = 4 * rows * tile.classes + of_rows;
    let written = 8 * rows + if first { 4 * rows } else { within };
    tile.assert_traffic(&counters, [read + within, written], [read, written]);
}

/// Computes the statistics of two tiles. Both use the same class numbers.
fn both_tiles(device: &Device, label: Label, extents: [usize; 2]) -> Vec<f32> {
    let tiles = [1, 2].map(|seed| Tile::new(device, label, extents, seed));
    let rows = extents[0];
    let out = [(); 3].map(|()| device.room(4 * rows));
    for (tile, first) in tiles.iter().zip([true, false]) {
        statistics(device, label, tile, out, first);
    }

    out.map(|from| device.floats(Dtype::F32, from, rows)).concat()
}

#[test]
fn logits_are_read_once() {
    let device = Device::plain();
    for (extents, label) in EXTENTS.into_iter().zip(Label::ALL.into_iter().cycle()) {
        both_tiles(&device, label, extents);
        for dtype in Dtype::ALL.into_iter().filter(|_| extents[1] > 0) {
            gradient(&device, dtype, label, extents);
        }
    }
}

/// Computes the gradient of a tile. Returns its bytes.
fn gradient(device: &Device, dtype: Dtype, label: Label, extents: [usize; 2]) -> Vec<u8> {
    let tile = Tile::new(device, label, extents, 3);
    let (rows, classes, leading) = (tile.rows, tile.classes, tile.leading);
    let lse: Vec<f32> =
        (0..rows).map(|row| tile.row(row).map(f64::exp).sum::<f64>().ln() as f32).collect();
    let dloss = values(Dtype::F32, rows, 4);
    let [logits, labels] = tile.on_device;
    let dlogits = match dtype {
        Dtype::F32 => logits,
        Dtype::Bf16 => device.room(rows * leading * 2),
    };
    let variant = CrossEntropyGradient { dtype, lanes: tile.lanes(), label };
    let arguments = CrossEntropyGradientArguments {
        logits: In(logits),
        labels: In(labels),
        lse: In(device.put_floats(Dtype::F32, &lse)),
        dloss: In(device.put_floats(Dtype::F32, &dloss)),
        dlogits: Out(dlogits),
        leading: leading as u64,
        vocabulary: tile.vocabulary(),
        rows: rows as u32,
        classes: classes as u32,
    };
    let launch = variant.launch(rows as u32).unwrap();
    let counters = device.run(&variant, launch, &arguments);
    tile.assert_told(device);

    // Every thread of a row reads the row's label, lse and dloss.
    let threads = match variant.lanes {
        Lanes::Warp => 32,
        Lanes::Cta => 256,
    };
    let (count, of_row) = (rows * classes, 8 + label.size() as usize);
    let written = count * dtype.size() as usize;
    let all = 4 * count + threads * rows * of_row;
    tile.assert_traffic(&counters, [all, written], [4 * count + rows * of_row, written]);

    let size = dtype.size() as usize;
    let row = |row: usize| device.bytes(dlogits + (row * leading * size) as u64, classes * size);
    (0..rows).flat_map(row).collect()
}

/// Computes the sum of `rows` losses and their count. Returns the bytes of both.
fn sum(device: &Device, dtype: Dtype, label: Label, rows: usize) -> Vec<u8> {
    let [lse, label_logit] = [5, 6].map(|seed| values(dtype, rows, seed));
    let of_row = |row: usize| {
        if row.is_multiple_of(3) { IGNORE } else { row as i64 }
    };
    let labels: Vec<i64> = (0..rows).map(of_row).collect();
    let [loss, count] = [(); 2].map(|()| device.room(4));
    let variant = CrossEntropySum { dtype, label };
    let arguments = CrossEntropySumArguments {
        lse: In(device.put_floats(dtype, &lse)),
        label_logit: In(device.put_floats(dtype, &label_logit)),
        labels: In(put_labels(device, label, &labels)),
        loss: Out(loss),
        count: Out(count),
        ignore_index: IGNORE,
        rows: rows as u64,
    };
    let launch = variant.launch().unwrap();
    let counters = device.run(&variant, launch, &arguments);
    let read = rows * (2 * dtype.size() + label.size()) as usize;
    assert_once(&counters, [read, 2 * dtype.size() as usize]);
    assert_whole_sectors(&counters);

    [loss, count].map(|from| device.bytes(from, dtype.size() as usize)).concat()
}

#[test]
fn losses_are_read_once() {
    let device = Device::plain();
    for (rows, dtype) in [0, 1, 511, 5000].into_iter().zip(Dtype::ALL.into_iter().cycle()) {
        sum(&device, dtype, Label::I64, rows);
    }
}

/// Runs every kernel of the catalogue, on rows that are whole vectors and on rows that are not.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for label in Label::ALL {
        let extents = [[6, 60], [2, 1003]];
        let few = if label == Label::I64 { 2 } else { 1 };
        for extents in extents.into_iter().take(few) {
            bits.extend(encoded(Dtype::F32, &both_tiles(device, label, extents)));
            for dtype in Dtype::ALL {
                bits.extend(gradient(device, dtype, label, extents));
            }
        }
        for dtype in Dtype::ALL {
            bits.extend(sum(device, dtype, label, 700));
        }
    }
    bits
}
