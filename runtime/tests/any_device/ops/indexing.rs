//! Indexing ops on every device, compared with the CPU.

use crate::devices::{devices, exact, gpu, numbered, part, reference, values};
use meshgrad_mesh::{Mesh, Placement, Sharding};
use meshgrad_runtime::{
    Accumulator, DType, Device, IndexOutOfRange, Shape, ShardedShape, Tensor, ops,
};

const IDS: [DType; 3] = [DType::I64, DType::I32, DType::U32];

/// Indices below `extent`, some of them repeated.
fn ids(device: &Device, shape: &[usize], extent: usize, dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<i64> = (0..count).map(|i| ((i * i * 7 + i / 2) % extent) as i64).collect();
    let values = Tensor::from_slice(reference(), shape, &values).unwrap();
    ops::to_device(&ops::cast(&values, dtype).unwrap(), device).unwrap()
}

fn on_cpu(x: &Tensor) -> Tensor {
    ops::to_device(x, reference()).unwrap()
}

#[test]
fn embeddings_are_rows() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for (features, ids_dtype) in [(64, IDS[0]), (20, IDS[1]), (7, IDS[2])] {
                let table = numbered(&device, &[11, features], dtype, 1.0);
                let ids = ids(&device, &[3, 5], 11, ids_dtype);
                let y = ops::embedding(&table, &ids).unwrap();
                let expected = ops::embedding(&exact(&table), &on_cpu(&ids)).unwrap();
                assert_eq!(y.shape()[..], [3, 5, features]);
                assert_eq!(values(&y), values(&expected), "{features} {dtype} on {device}");

                let transposed =
                    numbered(&device, &[features, 11], dtype, 1.0).transpose(0, 1).unwrap();
                let y = ops::embedding(&transposed, &ids.transpose(0, 1).unwrap()).unwrap();
                let ids = on_cpu(&ids).transpose(0, 1).unwrap();
                let expected = ops::embedding(&exact(&transposed), &ids).unwrap();
                assert_eq!(values(&y), values(&expected), "transposed on {device}");
            }
            let table = numbered(&device, &[11, 8], dtype, 1.0);
            let none = ops::embedding(&table, &ids(&device, &[0, 2], 11, DType::I64)).unwrap();
            assert_eq!(none.shape()[..], [0, 2, 8]);
        }
    }
}

#[test]
fn index_select_along_any_dim() {
    for device in devices() {
        let dtypes = [DType::F32, DType::BF16, DType::I64, DType::Bool].into_iter();
        for (dtype, inner) in dtypes.flat_map(|dtype| [16, 3].map(|inner| (dtype, inner))) {
            let x = ops::cast(&numbered(&device, &[5, 6, inner], DType::F32, 9.0), dtype).unwrap();
            for (dim, ids_dtype) in IDS.into_iter().enumerate() {
                let ids = ids(&device, &[13], x.shape()[dim], ids_dtype);
                for view in [x.clone(), x.transpose(0, 2).unwrap()] {
                    if view.shape()[dim] < x.shape()[dim] {
                        continue;
                    }
                    let y = ops::index_select(&view, dim as isize, &ids).unwrap();
                    let view = exact(&view);
                    let expected = ops::index_select(&view, dim as isize, &on_cpu(&ids)).unwrap();
                    assert_eq!(values(&y), values(&expected), "{dtype} {dim} on {device}");
                }
            }
        }
    }
}

#[test]
fn elements_are_gathered() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16, DType::U8, DType::I64] {
            let x = ops::cast(&numbered(&device, &[5, 6, 7], DType::F32, 99.0), dtype).unwrap();
            for (dim, ids_dtype) in IDS.into_iter().enumerate() {
                let mut extents = [4, 5, 6];
                extents[dim] = 9;
                let index = ids(&device, &extents, x.shape()[dim], ids_dtype);
                let y = ops::gather(&x, dim as isize, &index).unwrap();
                let expected = ops::gather(&exact(&x), dim as isize, &on_cpu(&index)).unwrap();
                assert_eq!(values(&y), values(&expected), "{dtype} {dim} on {device}");
            }
            let transposed = x.transpose(0, 2).unwrap();
            let index = ids(&device, &[6, 3, 2], 5, DType::I64).transpose(0, 2).unwrap();
            let index = index.slice(0, 0..2).unwrap();
            let y = ops::gather(&transposed, 2, &index).unwrap();
            let expected = ops::gather(&exact(&transposed), 2, &on_cpu(&index)).unwrap();
            assert_eq!(values(&y), values(&expected), "transposed on {device}");
        }
    }
}

/// Each rank has the rows of its ids, and zeros for the ids of others. Each sums its own gradients.
#[test]
fn the_rows_of_a_table_can_be_sharded() {
    let mesh = Mesh::new(&[3], &["tp"]).unwrap();
    for device in devices() {
        for (features, ids_dtype) in [(16, IDS[0]), (7, IDS[1]), (8, IDS[2])] {
            let table = numbered(&device, &[19, features], DType::F32, 1.0);
            let ids = ids(&device, &[4, 5], 19, ids_dtype);
            let dy = numbered(&device, &[4, 5, features], DType::F32, 2.0);
            let mut sum = accumulator(&device, &[19, features]);
            ops::embedding_grad_into(&dy, &ids, &mut sum).unwrap();
            let (y, dtable) = (ops::embedding(&table, &ids).unwrap(), sum.total().unwrap());

            let (mut sum_of_y, mut rows) = (vec![0.0; y.elements()], Vec::new());
            for rank in 0..3 {
                let whole =
                    |x: &Tensor| part(x, &Sharding::replicated(&mesh, x.shape()).unwrap(), rank);
                let by_rows = [("tp", Placement::shard(0))];
                let by_rows = Sharding::new(&mesh, by_rows, table.shape()).unwrap();
                let own = ops::embedding(&part(&table, &by_rows, rank), &whole(&ids)).unwrap();
                assert_eq!(own.sharding().unwrap().to_string(), "tp: partial(sum)");
                let own = values(&own.local());
                sum_of_y.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);

                let shape = ShardedShape::new(&by_rows, rank).unwrap();
                let mut sum = Accumulator::new(&device, shape, DType::F32).unwrap();
                ops::embedding_grad_into(&whole(&dy), &whole(&ids), &mut sum).unwrap();
                assert_eq!(sum.buffer().sharding(), Some(&by_rows));
                rows.extend(values(&sum.total().unwrap().local()));
            }
            assert_eq!(sum_of_y, values(&y), "{ids_dtype} on {device}");
            assert_eq!(rows, values(dtable), "{ids_dtype} on {device}");
        }
    }
}

/// Sums are in the same order as on the CPU, so they have the same bits.
#[test]
fn gradients_of_embeddings_add_up() {
    for device in devices() {
        for (dtype, features) in [(DType::F32, 64), (DType::BF16, 24), (DType::F32, 7)] {
            let dy = numbered(&device, &[41, 3, features], dtype, 1.0);
            let ids = ids(&device, &[41, 3], 19, DType::I32);
            let mut sum = accumulator(&device, &[21, features]);
            let mut expected = accumulator(reference(), &[21, features]);
            for _ in 0..2 {
                ops::embedding_grad_into(&dy, &ids, &mut sum).unwrap();
                ops::embedding_grad_into(&on_cpu(&dy), &on_cpu(&ids), &mut expected).unwrap();
                let found = values(sum.total().unwrap());
                assert_eq!(found, values(expected.total().unwrap()), "{dtype} on {device}");
            }
            let none = dy.slice(0, 0..0).unwrap();
            let mut sum = accumulator(&device, &[21, features]);
            ops::embedding_grad_into(&none, &ids.slice(0, 0..0).unwrap(), &mut sum).unwrap();
            assert_eq!(values(sum.total().unwrap()), vec![0.0; 21 * features]);
        }
    }
}

fn accumulator(device: &Device, shape: &[usize]) -> Accumulator {
    Accumulator::new(device, Shape::new(shape).unwrap(), DType::F32).unwrap()
}

#[test]
fn gradients_of_selections_add_up() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for (dim, ids_dtype) in IDS.into_iter().enumerate() {
                let mut extents = [4, 5, 16];
                extents[dim] = 33;
                let dy = numbered(&device, &extents, dtype, 1.0);
                let ids = ids(&device, &[33], 6, ids_dtype);
                let dim = dim as isize;
                let dx = ops::index_select_grad(&dy, dim, &ids, 7).unwrap();
                let expected = ops::index_select_grad(&on_cpu(&dy), dim, &on_cpu(&ids), 7).unwrap();
                assert_eq!(values(&dx), values(&expected), "{dtype} {dim} on {device}");
            }
        }
    }
}

#[test]
fn elements_are_scattered() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for (dim, ids_dtype) in IDS.into_iter().enumerate() {
                let mut extents = [4, 5, 6];
                extents[dim] = 29;
                let src = numbered(&device, &extents, dtype, 1.0);
                let index = ids(&device, &extents, 5, ids_dtype);
                let dim = dim as isize;
                let y = ops::scatter_add(&[5, 6, 7], dim, &index, &src).unwrap();
                let (index, src) = (on_cpu(&index), on_cpu(&src));
                let expected = ops::scatter_add(&[5, 6, 7], dim, &index, &src).unwrap();
                assert_eq!(values(&y), values(&expected), "{dtype} {dim} on {device}");
            }
        }
    }
}

/// There are more positions than one CTA sorts, and more rows than fit into one radix digit.
#[test]
fn many_positions_keep_their_order() {
    for device in devices() {
        let src = numbered(&device, &[5000], DType::F32, 1.0);
        let index = ids(&device, &[5000], 300, DType::I64);
        let y = ops::scatter_add(&[301], 0, &index, &src).unwrap();
        let expected = ops::scatter_add(&[301], 0, &on_cpu(&index), &on_cpu(&src)).unwrap();
        assert_eq!(values(&y), values(&expected), "on {device}");
    }
}

#[track_caller]
fn assert_told(gpu: &Device, op: &str, index: i64, extent: usize) {
    let error = gpu.synchronize().unwrap_err();
    let told = error.details::<IndexOutOfRange>().unwrap();
    assert_eq!((told.op, told.index, told.extent), (op, index, extent));
    gpu.synchronize().unwrap();
}

/// On a GPU, an out-of-range index selects zeros, and the next synchronization reports it.
#[test]
fn out_of_range_indices_are_reported() {
    let Some(gpu) = gpu() else { return };
    let x = ops::full(&gpu, &[4, 6], DType::F32, 2.0).unwrap();
    let wrong = Tensor::from_slice(&gpu, &[3], &[1i64, 6, 2]).unwrap();
    let y = ops::embedding(&x, &wrong).unwrap();
    assert_told(&gpu, "embedding", 6, 4);
    assert_eq!(values(&y)[..12], [[2.0; 6], [0.0; 6]].concat());

    ops::index_select(&x, 1, &wrong).unwrap();
    assert_told(&gpu, "index_select", 6, 6);
    let index = Tensor::from_slice(&gpu, &[1, 2], &[-4i32, 3]).unwrap();
    let y = ops::gather(&x, 0, &index).unwrap();
    assert_told(&gpu, "gather", -4, 4);
    assert_eq!(values(&y), [0.0, 2.0]);

    let src = ops::full(&gpu, &[1, 2], DType::F32, 3.0).unwrap();
    let y =
        ops::scatter_add(&[2, 2], 0, &Tensor::from_slice(&gpu, &[1, 2], &[2u32, 1]).unwrap(), &src);
    assert_told(&gpu, "scatter_add", 2, 2);
    assert_eq!(values(&y.unwrap()), [0.0, 0.0, 0.0, 3.0]);
}
