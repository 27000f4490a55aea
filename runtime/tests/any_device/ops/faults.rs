//! Out-of-range indices on a GPU. The kernel records the error, and the next synchronization
//! returns it.

use crate::devices::gpu;
use meshgrad_kernels::assembler::Kernel;
use meshgrad_kernels::faults::FaultSite;
use meshgrad_kernels::{In, Launch, Out, Ptx, Target, Variant, params};
use meshgrad_runtime::{
    DType, Device, IndexOutOfRange, Kind, Result, Signature, Tensor, with_stream,
};

params! {
    struct PickArguments {
        x: In,
        ids: In,
        y: Out,
        extent: u64,
        count: u32,
        faults: FaultSite,
    }
}

/// y\[i\] = x\[ids\[i\]\], one thread per element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pick;

impl Variant for Pick {
    type Arguments = PickArguments;

    fn entry(&self) -> String {
        "pick".into()
    }

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, 32);
        let p = self.parameters(k);

        let i = k.cta().mad(32, k.thread());
        k.if_(i.lt(p.count), || {
            let id = p.ids.element::<i64>(i).load::<i64>();
            let inside = p.faults.check(id, p.extent);
            let from = p.x.element_wide::<f32>(id.unsigned());
            p.y.element::<f32>(i).store(from.load_if::<f32>(inside));
        });
        k.finish()
    }
}

static PICK: Signature = Signature::new("pick", "x: f32[v!], ids: i64[n] -> y: f32[n]", 0);

fn pick(x: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let mut call = PICK.call(&[x, ids])?;
    let y = call.output(0)?;
    call.launch(|gpu| {
        let count = ids.elements() as u32;
        let arguments = PickArguments {
            x: gpu.ptr(x)?,
            ids: gpu.ptr(ids)?,
            y: gpu.uninit_ptr(&y)?,
            extent: x.elements() as u64,
            count,
            faults: gpu.fault_site(x.elements()),
        };
        let launch = Launch::new([count.div_ceil(32), 1, 1], 32);
        gpu.launch(&Pick, launch, &arguments)
    })?;
    Ok(y.finish())
}

/// Ten numbers, and 100 ids. `invalid` are (position, id) pairs to set.
fn operands(gpu: &Device, invalid: &[(usize, i64)]) -> [Tensor; 2] {
    let mut ids: Vec<i64> = (0..100).map(|i| i * 7 % 10).collect();
    for (at, id) in invalid {
        ids[*at] = *id;
    }
    let numbers: Vec<f32> = (0..10).map(|i| i as f32 + 1.0).collect();
    let x = Tensor::from_slice(gpu, &[10], &numbers).unwrap();
    [x, Tensor::from_slice(gpu, &[100], &ids).unwrap()]
}

#[track_caller]
fn assert_met<T>(result: Result<T>, index: i64) {
    let error = result.err().unwrap();
    let met = error.details::<IndexOutOfRange>().unwrap();
    assert_eq!((met.op, met.extent, met.index), ("pick", 10, index));
}

/// The next copy to the host returns the error once. The error names the op, the index, the extent
/// and the remedy. The output is zero at these positions.
#[test]
fn the_next_read_returns_the_error() {
    let Some(gpu) = gpu() else { return };
    let [x, ids] = operands(&gpu, &[(3, 10), (77, 12), (78, 11)]);
    let y = pick(&x, &ids).unwrap();
    let message = x.to_vec::<f32>().unwrap_err().to_string();
    let expected = format!(
        "pick: index 12 is outside of 0..10. {gpu} detected this after the op had returned; it read \
         zeros for the index and wrote nothing. Correct the indices, or run the op on a CPU device, \
         which also reports the position"
    );
    assert_eq!(message, expected);

    let y = y.to_vec::<f32>().unwrap();
    let ids = ids.to_vec::<i64>().unwrap();
    for (y, id) in y.iter().zip(ids) {
        assert_eq!(*y, if id < 10 { id as f32 + 1.0 } else { 0.0 });
    }
}

/// An async read returns errors of earlier work once, and none of later work.
#[test]
fn async_reads_return_errors_of_earlier_work() {
    let Some(gpu) = gpu() else { return };
    let [x, ids] = operands(&gpu, &[(5, 13)]);
    let before = x.read_async::<f32>().unwrap();
    pick(&x, &ids).unwrap();
    let after = x.read_async::<f32>().unwrap();
    assert_eq!(before.wait().unwrap().len(), 10);
    assert_met(after.wait(), 13);
    assert_eq!(x.read_async::<f32>().unwrap().wait().unwrap().len(), 10);
}

/// An empty read, `item` and `synchronize` return the error as well. The largest index is reported,
/// and negative indices count as larger than all others.
#[test]
fn every_synchronization_returns_the_error() {
    let Some(gpu) = gpu() else { return };
    let [x, ids] = operands(&gpu, &[(0, 1 << 60), (99, -1)]);
    let none = Tensor::zeros(&gpu, &[0], DType::F32, Kind::Cache).unwrap();
    for _ in 0..2 {
        pick(&x, &ids).unwrap();
        assert_met(none.to_vec::<f32>(), -1);
        pick(&x, &ids).unwrap();
        assert_met(x.slice(0, 0..1).unwrap().item::<f32>(), -1);
        pick(&x, &ids).unwrap();
        assert_met(gpu.synchronize(), -1);
        gpu.synchronize().unwrap();
    }
    let [x, ids] = operands(&gpu, &[(0, 1 << 60)]);
    pick(&x, &ids).unwrap();
    assert_met(gpu.synchronize(), (1 << 39) - 1);
}

#[test]
fn work_on_other_streams_reports() {
    let Some(gpu) = gpu() else { return };
    let [x, ids] = operands(&gpu, &[(50, -7)]);
    let side = gpu.stream().unwrap();
    let pending = with_stream(&side, || pick(&x, &ids)).unwrap();
    assert_met(side.synchronize(), -7);
    let y = pending.wait().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap()[50], 0.0);
}

/// Each launch of a graph reports invalid indices in its current inputs.
#[test]
fn graph_launches_report_errors() {
    let Some(gpu) = gpu() else { return };
    let [x, wrong] = operands(&gpu, &[(9, 10)]);
    let [_, right] = operands(&gpu, &[]);
    let ids = Tensor::zeros(&gpu, &[100], DType::I64, Kind::Cache).unwrap();
    let mut graph = gpu.capture(|| pick(&x, &ids)).unwrap();
    gpu.synchronize().unwrap();
    for (given, index) in [(&wrong, Some(10)), (&right, None), (&wrong, Some(10))] {
        fill(&ids, given);
        graph.launch().unwrap();
        let read = graph.results().to_vec::<f32>();
        match index {
            Some(index) => assert_met(read, index),
            None => assert_eq!(read.unwrap()[..3], [1.0, 8.0, 5.0]),
        }
    }
}

fn fill(ids: &Tensor, from: &Tensor) {
    let bytes: Vec<u8> =
        from.to_vec::<i64>().unwrap().into_iter().flat_map(i64::to_ne_bytes).collect();
    let mut buffer = meshgrad_runtime::PinnedBuffer::new(ids.device(), bytes.len()).unwrap();
    buffer.as_mut().copy_from_slice(&bytes);
    ids.fill_from_pinned(0..bytes.len(), buffer).unwrap().synchronize().unwrap();
}

/// Without ops that check indices, a synchronization reads no error word and needs no pinned
/// memory. A meta device counts such an op as one launch.
#[test]
fn other_ops_have_no_overhead() {
    let Some(gpu) = gpu() else { return };
    gpu.synchronize().unwrap();
    assert_eq!(gpu.pinned_memory_stats().live, 0);

    let meta = Device::meta(gpu.properties());
    let x = Tensor::zeros(&meta, &[10], DType::F32, Kind::Cache).unwrap();
    let ids = Tensor::zeros(&meta, &[100], DType::I64, Kind::Cache).unwrap();
    pick(&x, &ids).unwrap();
    assert_eq!(meta.work().kernel_launches, 1);
}
