//! What copies, transposes, casts and fills read and write.

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue::CASTS;
use meshgrad_kernels::copies::{
    Arange, ArangeArguments, At, Cast, CastArguments, Copy, CopyArguments, Fill, Format, Transpose,
    Unit,
};
use meshgrad_kernels::elementwise::IterationSpace;
use meshgrad_kernels::faults::FaultSite;
use meshgrad_kernels::{In, Out};

use crate::device::Device;
use crate::traffic::{assert_once, assert_whole_sectors};

/// Bytes that differ from each other.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7 + i / 256 * 13) as u8).collect()
}

/// The offset of each element of `extents`, in row-major order.
fn offsets(extents: &[usize], strides: &[isize]) -> Vec<usize> {
    let mut offsets = vec![0isize];
    for (extent, stride) in extents.iter().zip(strides) {
        let along = |start: isize| (0..*extent as isize).map(move |i| start + i * stride);
        offsets = offsets.into_iter().flat_map(along).collect();
    }
    offsets.into_iter().map(|offset| offset as usize).collect()
}

fn dense(extents: &[usize]) -> Vec<isize> {
    let inner = |dim: usize| extents[dim + 1..].iter().product::<usize>() as isize;
    (0..extents.len()).map(inner).collect()
}

/// Copies strided elements into a dense result, in the largest possible units, or through tiles if
/// `tiles`. Returns the bytes of the result.
fn copied(
    device: &Device,
    unit: Unit,
    extents: &[usize],
    strides: &[isize],
    tiles: bool,
) -> (Vec<u8>, Counters) {
    let size = unit.bytes() as usize;
    let of_x = offsets(extents, strides);
    let x = bytes((of_x.iter().max().unwrap() + 1) * size);
    let (at_x, at_y) = (device.put(&x), device.room(of_x.len() * size));

    let space = IterationSpace::new(extents, &dense(extents), &[strides]).unwrap();
    let counters = if tiles {
        let (variant, transposed) = Transpose::new(unit, &space).unwrap();
        let arguments = variant.arguments(In(at_x), Out(at_y), &transposed);
        let launch = variant.launch(&transposed).unwrap();
        device.run(&variant, launch, &arguments)
    } else {
        let (unit, space) = unit.largest(&space, 0);
        copy(device, unit, &space, [at_x, at_y], None)
    };

    (device.bytes(at_y, of_x.len() * size), counters)
}

fn copy(
    device: &Device,
    unit: Unit,
    space: &IterationSpace,
    [x, y]: [u64; 2],
    at: Option<At>,
) -> Counters {
    let variant = Copy::new(unit, space, at.is_some());
    let arguments = CopyArguments { x: In(x), y: Out(y), space: *space, at };
    let launch = variant.launch(space.elements()).unwrap();
    device.run(&variant, launch, &arguments)
}

/// Asserts that every element is read and written once, in whole sectors, without bank conflicts.
#[track_caller]
fn assert_copied(counters: &Counters, bytes: usize, whole_sectors: bool) {
    assert_once(counters, [bytes; 2]);
    if whole_sectors {
        assert_whole_sectors(counters);
    }
}

#[test]
fn copies_move_every_element_once() {
    let device = Device::plain();
    for unit in [Unit::B1, Unit::B2, Unit::B4, Unit::B8] {
        let size = unit.bytes() as usize;
        for (extents, strides, whole) in [
            (&[1][..], &[1][..], false),
            (&[7, 33], &[40, 1], false),
            (&[6, 32], &[64, 1], true),
            (&[2, 3, 70], &[0, 210, 2], false),
            (&[4, 2, 3, 1, 2, 16], &[16, 640, 128, 1, 64, 1], false),
        ] {
            let (y, counters) = copied(&device, unit, extents, strides, false);
            let repeated = strides.contains(&0);
            if !repeated {
                assert_copied(&counters, y.len(), whole && size >= 4);
            }
        }
    }
}

/// Contiguous rows are copied 16 bytes at a time, whatever their dtype.
#[test]
fn rows_are_copied_in_vectors() {
    let device = Device::plain();
    for unit in [Unit::B1, Unit::B2, Unit::B4, Unit::B8] {
        let row = 256 / unit.bytes() as usize;
        let (_, counters) = copied(&device, unit, &[32, row], &[2 * row as isize, 1], false);
        assert_eq!(counters.kernel, "copy_b16_strided2");
        assert_copied(&counters, 32 * 256, true);
    }
}

/// Tiled transposes move whole sectors on both sides, without bank conflicts.
#[test]
fn transposes_move_whole_sectors() {
    let device = Device::plain();
    for unit in [Unit::B1, Unit::B2, Unit::B4, Unit::B8] {
        let (y, counters) = copied(&device, unit, &[64, 128], &[1, 64], true);
        assert_copied(&counters, y.len(), true);
        let (y, counters) = copied(&device, unit, &[9, 70], &[1, 9], true);
        assert_copied(&counters, y.len(), false);
    }
}

/// Copies [5, 4, 10] to a position along the second dim of [5, 4 + 3, 10]; returns the bytes of the
/// destination.
fn positioned(device: &Device, position: i64) -> Vec<u8> {
    let x = bytes(4 * 200);
    let (at_x, at_y) = (device.put(&x), device.put(&[0xee; 4 * 350]));
    let word = device.put(&[0; 8]);
    let at = At {
        position: In(device.put(&position.to_le_bytes())),
        stride: 40,
        extent: 4,
        faults: FaultSite::new(word, 5),
    };
    let space = IterationSpace::new(&[5, 40], &[70, 1], &[&[40, 1]]).unwrap();
    copy(device, Unit::B4, &space, [at_x, at_y], Some(at));

    device.bytes(at_y, 4 * 350)
}

#[test]
fn fills_write_every_element_and_no_other() {
    let device = Device::plain();
    for unit in [Unit::B1, Unit::B2, Unit::B4, Unit::B8] {
        for count in [1, 3, 16, 517] {
            fill(&device, unit, count, true);
            fill(&device, unit, count, false);
        }
    }
}

fn fill(device: &Device, unit: Unit, count: usize, aligned: bool) -> Vec<u8> {
    let size = unit.bytes() as usize;
    let bits: u64 = match unit {
        Unit::B1 => 0x0101_0101_0101_0101 * 0x5a,
        Unit::B2 => 0x0001_0001_0001_0001 * 0x5a21,
        Unit::B4 => 0x0000_0001_0000_0001 * 0x5a21_8733,
        _ => 0x5a21_8733_9911_6622,
    };
    let skipped = if aligned { 0 } else { size };
    let y = device.put(&vec![0xee; skipped + count * size + 8]);
    let variant = Fill::new(unit, aligned);
    let arguments = variant.arguments(Out(y + skipped as u64), count as u64, bits);
    let launch = variant.launch(count as u64).unwrap();
    let counters = device.run(&variant, launch, &arguments);
    assert_eq!(counters.total.bytes_written, (count * size) as u64);

    let found = device.bytes(y, skipped + count * size + 8);
    let (before, rest) = found.split_at(skipped);
    let (filled, after) = rest.split_at(count * size);
    assert!(before.iter().chain(after).all(|byte| *byte == 0xee));
    let expected = bits.to_le_bytes()[..size].repeat(count);
    assert_eq!(filled, expected);
    found
}

#[test]
fn aranges_write_every_element_and_no_other() {
    let device = Device::plain();
    for count in [1, 2, 3, 4, 515, 2049] {
        arange(&device, false, count);
        arange(&device, true, count);
    }
}

fn arange(device: &Device, wide: bool, count: usize) -> Vec<u8> {
    let size = if wide { 8 } else { 4 };
    let y = device.put(&vec![0xee; (count + 4) * size]);
    let variant = Arange::new(wide);
    let arguments = ArangeArguments { y: Out(y), elements: count as u64 };
    let launch = variant.launch(count as u64).unwrap();
    let counters = device.run(&variant, launch, &arguments);
    assert_eq!(counters.total.bytes_written, (count * size) as u64);

    let found = device.bytes(y, (count + 4) * size);
    let counted = (0..count as u64).flat_map(|i| i.to_le_bytes()[..size].to_vec());
    let expected: Vec<u8> = counted.chain(vec![0xee; 4 * size]).collect();
    assert_eq!(found, expected);
    found
}

/// Elements of a format: small, large and negative values, values that are out of range in other
/// formats, and special values.
fn elements(format: Format) -> Vec<u8> {
    let whole = [0i64, 1, -1, 3, 255, 256, -70_000, 1 << 31, i64::MAX, i64::MIN, 5 << 33];
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        0.49,
        255.9,
        256.0,
        1e10,
        -1e20,
        65_519.0,
        65_520.0,
        1e-7,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    let floats = floats.iter().chain([1.001_953_125, 2.5e-8].iter());
    match format {
        Format::F64 => floats.flat_map(|x| x.to_le_bytes()).collect(),
        Format::F32 => floats.flat_map(|x| (*x as f32).to_le_bytes()).collect(),
        Format::Bf16 => {
            floats.flat_map(|x| half::bf16::from_f32(*x as f32).to_le_bytes()).collect()
        }
        Format::F16 => floats.flat_map(|x| half::f16::from_f32(*x as f32).to_le_bytes()).collect(),
        _ => {
            let size = format.size() as usize;
            let bytes = |x: &i64| x.to_le_bytes()[..size].to_vec();
            whole.iter().flat_map(bytes).collect()
        }
    }
}

/// Casts two columns of elements. Returns the bytes of the result.
fn cast(device: &Device, from: Format, to: Format) -> Vec<u8> {
    let x = elements(from);
    let (size, count) = (from.size() as usize, x.len() / from.size() as usize);
    // Both columns have all elements.
    let twice: Vec<u8> = x.chunks(size).flat_map(|x| [x, x].concat()).collect();
    let room = 2 * count * to.size() as usize;
    let (at_x, at_y) = (device.put(&twice), device.room(room));
    let space = IterationSpace::new(&[2, count], &[count as isize, 1], &[&[1, 2]]).unwrap();
    let variant = Cast::new(from, to, &space);
    let arguments = CastArguments { x: In(at_x), y: Out(at_y), space };
    let launch = variant.launch(space.elements()).unwrap();
    let counters = device.run(&variant, launch, &arguments);
    let moved = [counters.total.bytes_read, counters.total.bytes_written];
    assert_eq!(moved, [twice.len() as u64, room as u64], "each element is moved once");

    device.bytes(at_y, room)
}

/// Runs the kernel for large strides with small ones.
fn wide(device: &Device) -> Vec<u8> {
    let far = IterationSpace::new(&[5, 70], &[70, 1], &[&[1 << 40, 1]]).unwrap();
    let near = IterationSpace::new(&[5, 70], &[70, 1], &[&[100, 1]]).unwrap();
    let variant = Copy::new(Unit::B4, &far, false);
    let (x, y) = (device.put(&bytes(2000)), device.room(1400));
    let arguments = CopyArguments { x: In(x), y: Out(y), space: near, at: None };
    let launch = variant.launch(near.elements()).unwrap();
    device.run(&variant, launch, &arguments);
    device.bytes(y, 1400)
}

/// Runs every kernel of the catalogue.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for unit in Unit::ALL {
        let space = IterationSpace::new(&[5, 70], &[70, 1], &[&[100, 1]]).unwrap();
        let size = unit.bytes() as usize;
        let (x, y) = (device.put(&bytes(500 * size)), device.room(350 * size));
        copy(device, unit, &space, [x, y], None);
        bits.extend(device.bytes(y, 350 * size));
    }
    bits.extend(wide(device));
    for position in [2, 9] {
        bits.extend(positioned(device, position));
    }
    for unit in [Unit::B1, Unit::B2, Unit::B4, Unit::B8] {
        bits.extend(copied(device, unit, &[40, 70], &[1, 40], true).0);
        bits.extend(fill(device, unit, 37, true));
        bits.extend(fill(device, unit, 37, false));
        bits.extend(arange(device, unit == Unit::B8, 37));
    }
    bits.extend(copied(device, Unit::B2, &[2, 40, 3, 70], &[40, 1, 80, 240], true).0);
    for [from, to] in CASTS {
        bits.extend(cast(device, from, to));
    }
    bits
}
