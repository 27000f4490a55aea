//! What QK-norm fused with RoPE and its gradients read and write.

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::column_sums::{SumPartials, SumPartialsArguments, rows_per_partial};
use meshgrad_kernels::norm_rope::{
    NormRope, NormRopeArguments, NormRopeGradInput, NormRopeGradInputArguments, NormRopeGradWeight,
    NormRopeGradWeightArguments,
};
use meshgrad_kernels::rope::{Heads, Style};
use meshgrad_kernels::{Dtype, In, Out, Variant};

use crate::device::{Device, values};
use crate::rope::{Strided, Tables, moves_whole_sectors};
use crate::traffic::{assert_moved, assert_whole_sectors};

const EPS: f32 = 1e-5;

/// Operands on a device.
struct Problem {
    dtype: Dtype,
    style: Style,
    heads: Heads,
    x: Strided,
    dy: Strided,
    w: u64,
    tables: Tables,
}

impl Problem {
    fn new(device: &Device, dtype: Dtype, style: Style, heads: Heads, others: u32) -> Problem {
        Problem {
            dtype,
            style,
            heads,
            x: Strided::new(device, dtype, &heads, others, 3),
            dy: Strided::new(device, dtype, &heads, 0, 4),
            w: device.put_floats(dtype, &values(dtype, heads.features as usize, 5)),
            tables: Tables::new(device, &heads, others > 0),
        }
    }

    /// Bytes of all heads.
    fn bytes(&self) -> usize {
        (self.heads.rows * self.heads.features * self.dtype.size()) as usize
    }

    /// Runs the forward kernel. Returns y and the address of inv_rms.
    fn forward(&self, device: &Device, aligned: bool) -> (Vec<u8>, u64) {
        let (bytes, rows) = (self.bytes(), self.heads.rows as usize);
        let (y, inv_rms) = (device.room(bytes), device.room(4 * rows));
        let arguments = NormRopeArguments {
            x: In(self.x.address),
            w: In(self.w),
            cos: In(self.tables.on_device[0]),
            sin: In(self.tables.on_device[1]),
            y: Out(y),
            inv_rms: Out(inv_rms),
            heads: self.heads,
            eps: EPS,
            of_x: self.x.strides,
            of_cos: self.tables.strides,
            of_sin: self.tables.strides,
        };
        let variant = NormRope::new(self.dtype, self.style, &self.heads, aligned);
        let launch = variant.launch(&self.heads).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        self.assert_traffic(&counters, 1, bytes + 4 * rows);
        (device.bytes(y, bytes), inv_rms)
    }

    fn grad_input(&self, device: &Device, inv_rms: u64, aligned: bool) -> Vec<u8> {
        let bytes = self.bytes();
        let dx = device.room(bytes);
        let arguments = NormRopeGradInputArguments {
            dy: In(self.dy.address),
            x: In(self.x.address),
            w: In(self.w),
            inv_rms: In(inv_rms),
            cos: In(self.tables.on_device[0]),
            sin: In(self.tables.on_device[1]),
            dx: Out(dx),
            heads: self.heads,
            of_dy: self.dy.strides,
            of_x: self.x.strides,
            of_cos: self.tables.strides,
            of_sin: self.tables.strides,
        };
        let variant = NormRopeGradInput::new(self.dtype, self.style, &self.heads, aligned);
        let launch = variant.launch(&self.heads).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        self.assert_traffic(&counters, 2, bytes);
        device.bytes(dx, bytes)
    }

    fn grad_weight(&self, device: &Device, inv_rms: u64, aligned: bool) -> Vec<f32> {
        let (rows, features) = (u64::from(self.heads.rows), self.heads.features);
        let lines = rows.div_ceil(rows_per_partial(rows));
        let bytes = 4 * lines as usize * features as usize;
        let (partials, dw) = (device.room(bytes), device.room(4 * features as usize));
        let arguments = NormRopeGradWeightArguments {
            dy: In(self.dy.address),
            x: In(self.x.address),
            inv_rms: In(inv_rms),
            cos: In(self.tables.on_device[0]),
            sin: In(self.tables.on_device[1]),
            partials: Out(partials),
            heads: self.heads,
            rows_per_partial: rows_per_partial(rows) as u32,
            of_dy: self.dy.strides,
            of_x: self.x.strides,
            of_cos: self.tables.strides,
            of_sin: self.tables.strides,
        };
        let variant = NormRopeGradWeight::new(self.dtype, self.style, &self.heads, aligned);
        let launch = variant.launch(&self.heads).unwrap();
        let counters = device.run(&variant, launch, &arguments);
        if !variant.entry().ends_with("loop") {
            let unique = counters.unique_bytes_read as usize;
            let tables = 8 * self.tables.elements;
            assert_eq!(unique, 2 * self.bytes() + tables + 4 * rows as usize);
            let (heads, scalars) = (2 * self.bytes(), self.scalars());
            let tables = 8 * (self.heads.rows * self.heads.pairs) as usize;
            assert_moved(&counters, [heads + tables + scalars, bytes], [unique, bytes]);
            self.assert_sectors(&counters);
        }
        assert_eq!(counters.total.bytes_written as usize, bytes);

        let sum = SumPartials::new(false);
        let arguments =
            SumPartialsArguments { partials: In(partials), to: Out(dw), rows: lines, features };
        let launch = sum.launch(features).unwrap();
        device.run(&sum, launch, &arguments);
        device.floats(Dtype::F32, dw, features as usize)
    }

    /// Bytes of inv_rms that the lanes of all heads read.
    fn scalars(&self) -> usize {
        let vectors = self.heads.pairs / self.dtype.per_vector();
        let lanes = vectors.min(32).next_power_of_two();
        (4 * self.heads.rows * lanes) as usize
    }

    /// Asserts that `operands` tensors are read and `written` bytes are written. Kernels that keep
    /// rows in registers read each head once; w and the tables come from caches.
    #[track_caller]
    fn assert_traffic(&self, counters: &Counters, operands: usize, written: usize) {
        let size = self.dtype.size() as usize;
        let (features, rows) = (self.heads.features as usize, self.heads.rows as usize);
        let saved = if operands > 1 { 4 * rows } else { 0 };
        let unique = operands * self.bytes() + features * size + 8 * self.tables.elements + saved;
        assert_eq!(counters.unique_bytes_read as usize, unique);
        assert_eq!(counters.total.bytes_written as usize, written);
        assert_eq!(counters.unique_bytes_written as usize, written);
        assert_eq!(counters.total.wavefronts, counters.total.ideal_wavefronts);
        if !counters.kernel.ends_with("loop") {
            let tables = 8 * self.heads.pairs as usize * rows;
            let scalars = if operands > 1 { self.scalars() } else { 0 };
            let all = (operands + 1) * self.bytes() + tables + scalars;
            assert_moved(counters, [all, written], [unique, written]);
            self.assert_sectors(counters);
        }
    }

    #[track_caller]
    fn assert_sectors(&self, counters: &Counters) {
        if moves_whole_sectors(self.dtype, self.style, &self.heads) {
            assert_whole_sectors(counters);
        }
    }

    /// Runs all kernels; returns the bytes of their results.
    fn run(&self, device: &Device, aligned: bool) -> Vec<u8> {
        let (y, at) = self.forward(device, aligned);
        let dx = self.grad_input(device, at, aligned);
        let dw = self.grad_weight(device, at, aligned);
        let dw = dw.iter().flat_map(|dw| dw.to_le_bytes());
        y.into_iter().chain(dx).chain(dw).collect()
    }
}

/// Covers register and loop kernels in every style; heads of several blocks; dense heads and heads
/// interleaved with others; one table for all sequences and one per sequence.
#[test]
fn heads_in_registers_are_read_once() {
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for style in Style::ALL {
            for extents in [[128, 64], [320, 160], [120, 24], [9, 3], [2, 1], [5, 0]] {
                let heads = catalogue::heads(extents);
                for others in [0, 1] {
                    let problem = Problem::new(&device, dtype, style, heads, others);
                    problem.run(&device, true);
                    problem.run(&device, false);
                }
            }
        }
        // Three blocks of heads, with two heads in the last.
        let heads = Heads { rows: 130, positions: 65, ..catalogue::heads([64, 32]) };
        let problem = Problem::new(&device, dtype, Style::Half, heads, 0);
        problem.run(&device, true);
        problem.run(&device, false);
    }
}

/// Runs every kernel of the catalogue, with more heads than one CTA processes.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for dtype in Dtype::ALL {
        for style in Style::ALL {
            for extents in catalogue::HEADS {
                let heads = catalogue::heads(extents);
                let problem = Problem::new(device, dtype, style, heads, 1);
                bits.extend(problem.run(device, true));
            }
        }
    }
    bits
}
