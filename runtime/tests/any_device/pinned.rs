//! Pinned host memory, the source of asynchronous copies.

use crate::devices::{assert_error, devices, gpu, numbered};
use crate::processes;
use half::bf16;
use meshgrad_runtime::{DType, Device, Error, Kind, PinnedBuffer, Tensor, ops, with_stream};

fn buffer(device: &Device, bytes: &[u8]) -> PinnedBuffer {
    let mut buffer = PinnedBuffer::new(device, bytes.len()).unwrap();
    assert!(buffer.as_ref().iter().all(|byte| *byte == 0));
    buffer.as_mut().copy_from_slice(bytes);
    buffer
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|it| it.to_le_bytes()).collect()
}

/// The bytes are copied to a range of a tensor or view, other bytes do not change, and the buffer
/// is returned unchanged.
#[test]
fn bytes_are_copied_to_their_range() {
    for device in devices() {
        let x = Tensor::zeros(&device, &[4, 2], DType::F32, Kind::Parameter).unwrap();
        let upload = x.fill_from_pinned(4..12, buffer(&device, &bytes(&[1.0, 2.0, 3.0])));
        let back = upload.unwrap().synchronize().unwrap();
        assert_eq!(back.as_ref(), bytes(&[1.0, 2.0, 3.0]));
        let rows = x.slice(0, 2..4).unwrap();
        let upload = rows.fill_from_pinned(8..16, back).unwrap();
        // Later work on the stream reads the new values.
        assert_eq!(x.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 1.0, 2.0]);
        assert_eq!(x.version(), 2);
        drop(upload);

        let y = Tensor::zeros(&device, &[3], DType::BF16, Kind::Cache).unwrap();
        let value = bf16::from_f32(-1.5);
        let upload = y.fill_from_pinned(2..4, buffer(&device, &value.to_le_bytes()));
        drop(upload.unwrap());
        let zero = bf16::from_f32(0.0);
        assert_eq!(y.to_vec::<bf16>().unwrap(), [zero, value, zero]);

        let nothing = PinnedBuffer::new(&device, 0).unwrap();
        drop(x.fill_from_pinned(32..32, nothing).unwrap());
    }
}

/// A returned buffer may be overwritten, because its copy is complete.
#[test]
fn a_buffer_is_reused() {
    for device in devices() {
        let x = Tensor::zeros(&device, &[1000], DType::U32, Kind::Cache).unwrap();
        let mut buffer = PinnedBuffer::new(&device, 4).unwrap();
        for at in 0..1000u32 {
            buffer.as_mut().copy_from_slice(&at.to_le_bytes());
            let place = at as usize * 4..at as usize * 4 + 4;
            let upload = x.fill_from_pinned(place, buffer).unwrap();
            buffer = upload.synchronize().unwrap();
        }
        assert_eq!(x.to_vec::<u32>().unwrap(), (0..1000).collect::<Vec<_>>());
    }
}

/// As [`a_buffer_is_reused`], while the emulator delays copies as long as events allow.
#[test]
fn a_buffer_is_reused_after_a_delayed_copy() {
    if gpu().is_none_or(|gpu| gpu.to_string().starts_with("cuda")) {
        return;
    }
    for seed in 1..6 {
        let interleaving = ("MESHGRAD_EMULATOR_STREAMS", &*format!("random:{seed}"));
        processes::assert_pass(&["pinned::a_buffer_is_reused"], &[interleaving]);
    }
}

#[test]
fn invalid_ranges_are_rejected() {
    for device in devices() {
        let x = Tensor::zeros(&device, &[2, 3], DType::F32, Kind::Parameter).unwrap();
        let rejected = |x: &Tensor, range: std::ops::Range<usize>, bytes: usize| {
            let buffer = PinnedBuffer::new(&device, bytes).unwrap();
            x.fill_from_pinned(range, buffer).unwrap_err()
        };
        let of = |error: Error| error.to_string();
        assert_eq!(
            of(rejected(&x, 20..28, 8)),
            format!("fill_from_pinned: bytes 20..28 are outside of the 24 bytes of {x}")
        );
        assert_eq!(
            of(rejected(&x, 0..8, 4)),
            "fill_from_pinned: bytes 0..8 need a buffer of 8 bytes, but it has 4"
        );
        let transposed = x.transpose(0, 1).unwrap();
        assert!(of(rejected(&transposed, 0..4, 4)).contains("not contiguous"));
        let value = numbered(&device, &[4], DType::F32, 1.0);
        let error = rejected(&value, 0..4, 4);
        assert!(of(error).contains("the tensor is a value, which is immutable"));

        let other = PinnedBuffer::new(&Device::cpu(), 4).unwrap();
        let error = x.fill_from_pinned(0..4, other).unwrap_err();
        assert!(of(error).contains("operands are on different devices"));
        assert_eq!(x.version(), 0, "a rejected write does not bump the version");

        let meta = PinnedBuffer::new(&Device::meta(device.properties()), 4);
        assert_error(meta, "have shapes but no values");
    }
}

/// Pinned memory of a GPU is counted, and freed when its owner is dropped.
#[test]
fn pinned_memory_is_counted() {
    let Some(gpu) = gpu() else { return };
    let [a, b] = [1000, 24].map(|bytes| PinnedBuffer::new(&gpu, bytes).unwrap());
    assert_eq!(gpu.pinned_memory_stats().live, 1024);
    drop(a);
    assert_eq!(gpu.pinned_memory_stats().live, 24);
    assert_eq!(gpu.pinned_memory_stats().peak, 1024);

    let x = Tensor::zeros(&gpu, &[6], DType::F32, Kind::Cache).unwrap();
    let upload = x.fill_from_pinned(0..24, b).unwrap();
    assert_eq!(gpu.pinned_memory_stats().live, 24, "the upload owns the buffer");
    drop(upload);
    gpu.reset_peak();
    assert_eq!(gpu.pinned_memory_stats().peak, 0);

    let cpu = Device::cpu();
    let _ordinary = PinnedBuffer::new(&cpu, 1000).unwrap();
    assert_eq!(cpu.pinned_memory_stats().peak, 0);
}

/// An upload is enqueued on the current stream and follows the aliasing rules of writes.
#[test]
fn streams_and_graphs() {
    let Some(gpu) = gpu() else { return };
    let x = Tensor::zeros(&gpu, &[2], DType::F32, Kind::Cache).unwrap();
    let side = gpu.stream().unwrap();
    let pending =
        with_stream(&side, || x.fill_from_pinned(0..8, buffer(&gpu, &bytes(&[1.0, 2.0]))));
    let pending = pending.unwrap();
    let busy = x.fill_from_pinned(0..8, buffer(&gpu, &[0; 8]));
    assert_error(busy, "the storage is in use");
    pending.wait().unwrap().synchronize().unwrap();
    assert_eq!(ops::neg(&x).unwrap().to_vec::<f32>().unwrap(), [-1.0, -2.0]);

    let pinned = buffer(&gpu, &[0; 8]);
    let captured = gpu.capture(|| x.fill_from_pinned(0..8, pinned).map(|_| x.clone()));
    assert_error(captured, " during Device::capture: ");
}
