//! Tensors that carry a sharding: the uses that are errors, and the shardings of results.

use approx::assert_relative_eq;
use meshgrad_mesh::{Incompatible, Mesh, Placement, Reduction, Sharding};
use meshgrad_runtime::ops::{AttentionMask, AttentionSequences};
use meshgrad_runtime::{
    Accumulator, DType, Error, Key, Kind, Region, Result, Shape, ShardedShape, Tensor, ops,
    with_mesh,
};

use crate::sharding::call::{CPU, numbers};

/// 7 rows over three ranks: 3, 3 and 1.
fn rows(shape: &[usize]) -> Sharding {
    Sharding::new(&mesh(), [("dp", Placement::shard(0))], shape).unwrap()
}

fn mesh() -> Mesh {
    Mesh::new(&[3], &["dp"]).unwrap()
}

fn whole(shape: &[usize]) -> Sharding {
    Sharding::replicated(&mesh(), shape).unwrap()
}

/// The part of `x` that `rank` holds.
fn part(x: &Tensor, sharding: &Sharding, rank: usize) -> Tensor {
    let ranges = sharding.region(rank).unwrap().as_box().unwrap().into_iter().enumerate();
    let mut ranges = ranges.map(|(dim, range)| (dim as isize, range));
    let part = ranges.try_fold(x.clone(), |x, (dim, range)| x.slice(dim, range));
    part.unwrap().with_sharding(sharding, rank).unwrap()
}

fn refusal<T>(result: Result<T>) -> Error {
    result.err().expect("it is accepted")
}

fn values(x: &Tensor) -> Vec<f64> {
    x.local().to_vec().unwrap()
}

#[test]
fn sharded_and_unsharded_operands_do_not_mix() {
    let x = part(&numbers(&[7, 2], 1), &rows(&[7, 2]), 0);
    let other = numbers(&[3, 2], 2);
    let error = refusal(ops::add(&x, &other));
    insta::assert_snapshot!(error);
    assert!(ops::add(&x, &x.local()).is_err());

    let of_rank_1 = part(&numbers(&[7, 2], 1), &rows(&[7, 2]), 1);
    insta::assert_snapshot!(refusal(ops::add(&x, &of_rank_1)));
}

#[test]
fn parts_are_not_read_sliced_or_reshaped_as_if_they_were_whole() {
    let x = part(&numbers(&[7, 2], 1), &rows(&[7, 2]), 1);
    let part_error = |result: Result<Vec<f64>>| {
        let error = refusal(result).to_string();
        assert!(error.contains(": this rank has only a part of the tensor, or partial"), "{error}");
    };
    part_error(x.to_vec());
    part_error(x.read_async::<f64>().map(|_| Vec::new()));
    insta::assert_snapshot!(refusal(x.slice(0, 0..1)));
    insta::assert_snapshot!(refusal(ops::reshape(&x, &[6])));
    insta::assert_snapshot!(refusal(x.with_sharding(&rows(&[8, 2]), 2)));
    assert!(x.slice(0, 0..3).is_err(), "the range is another one on another rank");
    assert_eq!(x.slice(1, 0..2).unwrap().sharding(), x.sharding());
    let flat = ops::reshape(&x, &[14]).unwrap();
    assert_eq!(flat.sharding().unwrap().to_string(), "dp: shard(0: 6 + 6 + 2)");
    assert_eq!((x.global_extent(0).unwrap(), x.extent(0).unwrap()), (7, 3));

    let mean = ops::mean(&part(&numbers(&[6, 2], 1), &rows(&[6, 2]), 1), &[0, 1]).unwrap();
    assert_eq!(mean.sharding().unwrap().to_string(), "dp: partial(avg)");
    assert!(mean.item::<f64>().is_err());
}

#[test]
fn replicated_tensors_are_read_like_any_other() {
    let x = numbers(&[2, 2], 1);
    let same = x.with_sharding(&whole(&[2, 2]), 2).unwrap();
    assert_eq!(same.to_vec::<f64>().unwrap(), x.to_vec::<f64>().unwrap());
    assert!(x.with_sharding(&whole(&[2, 2]), 3).is_err());
    assert!(same.with_sharding(&whole(&[2, 2]), 2).is_ok());
    let partial = Placement::Partial(Reduction::Sum);
    let partial = Sharding::new(&mesh(), [("dp", partial)], &[2, 2]).unwrap();
    insta::assert_snapshot!(refusal(same.with_sharding(&partial, 2)));
}

/// What no reduction can compute is refused where it is stated.
#[test]
fn dtypes_that_cannot_be_reduced_are_not_partial() {
    let partial = |reduction| {
        let placement = [("dp", Placement::Partial(reduction))];
        Sharding::new(&mesh(), placement, &[2]).unwrap()
    };
    let numbers = Tensor::from_slice(&CPU, &[2], &[1i64, 0]).unwrap();
    let stated = |dtype, reduction| {
        let x = ops::cast(&numbers, dtype).unwrap();
        x.with_sharding(&partial(reduction), 1)
    };
    for (dtype, reduction) in
        [(DType::Bool, Reduction::Max), (DType::I64, Reduction::Sum), (DType::BF16, Reduction::Avg)]
    {
        stated(dtype, reduction).unwrap();
    }
    let refused = [
        stated(DType::Bool, Reduction::Sum),
        stated(DType::Bool, Reduction::Avg),
        stated(DType::I64, Reduction::Avg),
    ];
    let refused = refused.map(|result| refusal(result).to_string());
    insta::assert_snapshot!(refused.join("\n"));
}

#[test]
fn global_norm_does_not_mix_sharded_and_unsharded_tensors() {
    let x = numbers(&[7, 2], 1).with_sharding(&whole(&[7, 2]), 0).unwrap();
    let (other, rank_1) = (numbers(&[3], 2), part(&numbers(&[7, 2], 1), &rows(&[7, 2]), 1));
    assert!(ops::global_norm(&[&x, &x]).unwrap().sharding().is_some());
    for mixed in [[&x, &other], [&other, &x], [&x, &rank_1]] {
        let refused = refusal(ops::global_norm(&mixed)).to_string();
        assert!(refused.contains("sharding") || refused.contains(" rank 1"), "{refused}");
    }
    let sharded = refusal(ops::global_norm(&[&rank_1, &rank_1]));
    assert!(sharded.details::<Incompatible>().is_some(), "{sharded}");

    let elsewhere = Mesh::new(&[2], &["tp"]).unwrap();
    let elsewhere = Sharding::replicated(&elsewhere, &[7, 2]).unwrap();
    let elsewhere = numbers(&[7, 2], 1).with_sharding(&elsewhere, 0).unwrap();
    let refused = [[&x, &other], [&other, &x], [&x, &rank_1], [&x, &elsewhere]];
    let refused = refused.map(|mixed| refusal(ops::sum_of_squares(&mixed)).to_string());
    insta::assert_snapshot!(refused.join("\n"));
    ops::sum_of_squares(&[&rank_1, &rank_1]).unwrap();
}

/// Squares of numbers that f32 represents are beyond the range of f32.
#[test]
fn sums_of_squares_neither_underflow_nor_overflow() {
    for scale in [1e-25f32, 1e25] {
        let numbers = [3.0, 1.0, 4.0, 1.0].map(|x| x * scale);
        let x = Tensor::from_slice(&CPU, &[4], &numbers).unwrap();
        let x = part(&x, &rows(&[4]), 0);
        let sum = ops::sum_of_squares(&[&x]).unwrap();
        assert_eq!(sum.sharding().unwrap().to_string(), "dp: partial(sum)");
        let sum = sum.local().item::<f64>().unwrap();
        let expected = 10.0 * f64::from(scale).powi(2);
        assert_relative_eq!(sum, expected, max_relative = 1e-6, epsilon = 0.0);
    }
}

/// A buffer without a sharding has the shape of the rank's part, and a shape without one is global.
#[test]
fn buffers_and_shapes_without_a_sharding_are_checked() {
    let (dy, ids) = (numbers(&[5, 2], 1), [0i64, 6, 2, 3, 6]);
    let ids = Tensor::from_slice(&CPU, &[5], &ids).unwrap();
    let buffer = |shape: &[usize]| Tensor::zeros(&CPU, shape, DType::F64, Kind::Gradient).unwrap();
    let with_shape = |buffer: Tensor| {
        let shape = ShardedShape::new(&rows(&[7, 2]), 1).unwrap();
        Accumulator::over(buffer).unwrap().with_shape(shape)
    };
    let mut refused = vec![
        with_shape(buffer(&[7, 2])).unwrap_err(),
        with_shape(buffer(&[3, 2]).with_sharding(&whole(&[3, 2]), 1).unwrap()).unwrap_err(),
    ];
    with_shape(buffer(&[3, 2]).with_sharding(&rows(&[7, 2]), 1).unwrap()).unwrap();

    // `dtable` has the rows of rank 1, so `dy` and `ids` need a sharding too.
    let mut dtable = with_shape(buffer(&[3, 2])).unwrap();
    refused.push(ops::embedding_grad_into(&dy, &ids, &mut dtable).unwrap_err());
    let [of_dy, of_ids] = [&dy, &ids].map(|x| part(x, &whole(x.shape()), 1));
    ops::embedding_grad_into(&of_dy, &of_ids, &mut dtable).unwrap();
    assert_eq!(dtable.buffer().sharding(), Some(&rows(&[7, 2])));

    let shape = |extents: &[usize]| ShardedShape::from(Shape::new(extents).unwrap());
    ops::index_select_grad_to(&dy, 0, &ids, &shape(&[7, 2])).unwrap();
    for to in [shape(&[7, 3]), shape(&[7]), shape(&[7, 2, 1])] {
        refused.push(ops::index_select_grad_to(&dy, 0, &ids, &to).unwrap_err());
        refused.push(ops::index_select_grad_to(&of_dy, 0, &of_ids, &to).unwrap_err());
    }
    let other = ShardedShape::new(&rows(&[7, 3]), 1).unwrap();
    refused.push(ops::index_select_grad_to(&of_dy, 0, &of_ids, &other).unwrap_err());
    let index = ids.unsqueeze(1).unwrap();
    let src = dy.slice(1, 0..1).unwrap();
    refused.push(ops::scatter_add_to(&shape(&[7]), 1, &index, &src).unwrap_err());
    let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(refused.join("\n"));
}

/// If only some experts are local, they differ from rank to rank, so the order has no sharding.
#[test]
fn the_order_of_some_experts_has_no_sharding() {
    let chosen = Tensor::from_slice(&CPU, &[2, 1], &[0i64, 3]).unwrap();
    let chosen = chosen.with_sharding(&whole(&[2, 1]), 0).unwrap();
    assert!(ops::expert_order(&chosen, 4, 0, 4).is_ok());
    assert!(ops::expert_order(&chosen, 4, 2, 2).is_err());
    assert!(ops::expert_order(&chosen.local(), 4, 2, 2).is_ok());
}

#[test]
fn rope_tables_are_repeated_for_the_ranks_part_of_the_batch() {
    let x = part(&numbers(&[7, 5, 1, 4], 1), &rows(&[7, 5, 1, 4]), 2);
    let table = ops::cast(&numbers(&[5, 2], 2), DType::F32).unwrap();
    let of = |mesh: &Mesh, rank| {
        let sharding = Sharding::replicated(mesh, &[5, 2]).unwrap();
        table.with_sharding(&sharding, rank).unwrap()
    };
    let rotate = |table: Tensor| ops::rope(&x, &table, &table, ops::RopeStyle::Half);
    let y = rotate(of(&mesh(), 2)).unwrap();
    assert_eq!(y.sharding(), x.sharding());
    let expected = ops::rope(&x.local(), &table, &table, ops::RopeStyle::Half).unwrap();
    assert_eq!(values(&y), values(&expected));

    let reversed = Mesh::from_ranks(&[2, 1, 0], &[3], &["dp"]).unwrap();
    insta::assert_snapshot!(refusal(rotate(of(&reversed, 2))));
    let other_rank = refusal(rotate(of(&mesh(), 1))).to_string();
    assert!(other_rank.contains("but the table to rank 1 on the mesh"), "{other_rank}");
}

#[test]
fn tensors_that_ops_fill_are_replicated_inside_of_with_mesh() {
    let create = || -> Result<Vec<Tensor>> {
        let key = Key::new(1);
        Ok(vec![
            ops::full(&CPU, &[7, 2], DType::F64, 1.0)?,
            ops::arange(&CPU, 7, DType::I64)?,
            ops::normal(&CPU, &[7, 2], DType::F64, key, 0.0, 1.0)?,
            ops::uniform(&CPU, &[7, 2], DType::F64, key, 0.0, 1.0)?,
            ops::dropout_mask(&CPU, &[7, 2], key, 0.5)?,
        ])
    };
    for tensor in with_mesh(&mesh(), 1, create).unwrap() {
        assert_eq!(tensor.sharding(), Some(&whole(tensor.shape())));
    }
    let is_whole = |tensor: &Tensor| tensor.sharding().is_none();
    assert!(create().unwrap().iter().all(is_whole));

    let stated = with_mesh(&mesh(), 1, || {
        Ok::<_, Error>([
            Tensor::scalar(&CPU, 1.0f32)?,
            Tensor::zeros(&CPU, &[7, 2], DType::F64, Kind::Cache)?,
        ])
    });
    assert!(stated.unwrap().iter().all(is_whole));
    assert!(with_mesh(&mesh(), 3, create).is_err());
}

/// An element has the same value on any mesh.
#[test]
fn random_ops_draw_the_region_of_the_sharding() {
    type Fill = fn(&Tensor) -> Result<Tensor>;
    let fills: [Fill; 3] = [
        |x| ops::normal_into(x, Key::new(3), 0.0, 1.0).map(|()| x.clone()),
        |x| ops::uniform_into(x, Key::new(3), 0.0, 1.0).map(|()| x.clone()),
        |x| ops::dropout(&ops::affine(x, 1.0, 1.0)?, Key::new(3), 0.5),
    ];
    let zeros = |shape: &[usize]| Tensor::zeros(&CPU, shape, DType::F64, Kind::Cache).unwrap();
    for fill in fills {
        let expected = fill(&zeros(&[7, 2])).unwrap();
        for rank in 0..3 {
            let shape = rows(&[7, 2]).local_shape(rank).unwrap();
            let own = zeros(&shape).with_sharding(&rows(&[7, 2]), rank).unwrap();
            let expected = part(&expected, &rows(&[7, 2]), rank);
            assert_eq!(values(&fill(&own).unwrap()), values(&expected));
        }
    }
    let own = zeros(&[3, 2]).with_sharding(&rows(&[7, 2]), 1).unwrap();
    let key = Key::new(3).within(&Region::whole(&[3, 2]).unwrap());
    insta::assert_snapshot!(ops::dropout(&own, key, 0.5).unwrap_err());
}

#[test]
fn an_accumulator_keeps_the_sharding_of_its_first_writer() {
    let (dy, x) = (numbers(&[7, 2], 1), numbers(&[7, 3], 2));
    let (dy, x) = (part(&dy, &rows(&[7, 2]), 0), part(&x, &rows(&[7, 3]), 0));
    let new = || Accumulator::new(&CPU, Shape::new(&[2, 3]).unwrap(), DType::F64).unwrap();
    let partial = Placement::Partial(Reduction::Sum);
    let partial = Sharding::new(&mesh(), [("dp", partial)], &[2, 3]).unwrap();

    let mut sum = new();
    ops::linear_grad_weight_into(&dy, &x, &mut sum).unwrap();
    assert_eq!(sum.buffer().sharding(), Some(&partial));
    ops::linear_grad_weight_into(&dy, &x, &mut sum).unwrap();
    sum.clear();
    assert_eq!(values(sum.total().unwrap()), [0.0; 6]);
    sum.clear();
    ops::linear_grad_weight_into(&dy, &x, &mut sum).unwrap();
    // A reshaped buffer keeps its own global shape.
    let column = Tensor::zeros(&CPU, &[6], DType::F64, Kind::Gradient).unwrap();
    let mut column = Accumulator::over(column).unwrap();
    let shape = whole(&[2, 3]);
    let shape = ShardedShape::new(&shape, 0).unwrap();
    for _ in 0..2 {
        let add = |sum: &mut Accumulator| ops::linear_grad_weight_into(&dy, &x, sum);
        column.viewed(&Shape::of([6]), &shape, add).unwrap();
    }
    let sharding = column.buffer().sharding().unwrap();
    assert_eq!(sharding.to_string(), "dp: partial(sum)");
    assert_eq!(sharding.shape(), [6]);

    // Adding a tensor with another sharding would give a wrong sum.
    let replicated = numbers(&[2, 3], 3).with_sharding(&whole(&[2, 3]), 0).unwrap();
    insta::assert_snapshot!(refusal(ops::add_into(&replicated, &mut sum)));
    let mut unsharded = new();
    ops::add_into(&numbers(&[2, 3], 3), &mut unsharded).unwrap();
    assert!(ops::linear_grad_weight_into(&dy, &x, &mut unsharded).is_err());
}

#[test]
fn gradients_of_broadcasts_are_sums_over_global_dims() {
    // Each rank has one row, so the local shape alone does not show that the rows were broadcast.
    let dy = numbers(&[3, 2], 1);
    let own = part(&dy, &rows(&[3, 2]), 1);
    let sums = ops::sum_to(&own, &[1, 2]).unwrap();
    assert_eq!(sums.sharding().unwrap().to_string(), "dp: partial(sum)");
    assert_eq!(sums.global_shape().to_vec(), [1, 2]);
    assert_eq!(values(&sums), values(&own));
}

#[test]
fn the_classes_of_a_vocabulary_shard_follow_from_its_sharding() {
    let (x, w) = (numbers(&[4, 2], 1), numbers(&[7, 2], 2));
    let shard = |x: &Tensor, sharding: Sharding| part(x, &sharding, 1);
    let labels = Tensor::from_slice(&CPU, &[4], &[0i64, 1, 5, 6]).unwrap();
    let of_rows = numbers(&[4], 3);
    let (x, w) = (shard(&x, whole(&[4, 2])), shard(&w, rows(&[7, 2])));
    let (labels, of_rows) = (shard(&labels, whole(&[4])), shard(&of_rows, whole(&[4])));
    let gradient = |vocab_start| {
        let targets =
            ops::Targets { labels: &labels, ignore_index: -100, vocab_start, vocab_total: 7 };
        ops::linear_cross_entropy_grad_input(&x, &w, targets, &of_rows, &of_rows)
    };
    let dx = gradient(3).unwrap();
    assert_eq!(dx.sharding().unwrap().to_string(), "dp: partial(sum)");
    insta::assert_snapshot!(gradient(0).unwrap_err());
}

/// One element per row and shard of the vocabulary, also for empty shards.
#[test]
fn statistics_of_a_sharded_vocabulary_are_those_of_its_shards() {
    let (x, w) = (numbers(&[4, 2], 1), numbers(&[4, 2], 2));
    let labels = Tensor::from_slice(&CPU, &[4], &[0i64, 1, -100, 3]).unwrap();
    for rank in 0..3 {
        let (x, w) = (part(&x, &whole(&[4, 2]), rank), part(&w, &rows(&[4, 2]), rank));
        let labels = part(&labels, &whole(&[4]), rank);
        let shards = ops::linear_cross_entropy_shards(&x, &w, &labels, -100).unwrap();
        let targets = ops::Targets {
            labels: &labels.local(),
            ignore_index: -100,
            vocab_start: (2 * rank).min(4),
            vocab_total: 4,
        };
        let own = ops::linear_cross_entropy(&x.local(), &w.local(), targets).unwrap();
        for (shards, own) in [(shards.0, own.0), (shards.1, own.1), (shards.2, own.2)] {
            assert_eq!(shards.global_shape().to_vec(), [4, 3]);
            assert_eq!(shards.sharding().unwrap().to_string(), "dp: shard(1)");
            assert_eq!(values(&shards), values(&own));
        }
    }
}

/// Values per row are sharded like the batch, ranges like the queries.
#[test]
fn the_tensors_of_an_attention_mask_fit_the_sharding_of_the_queries() {
    let [batch, sequence] = [0, 1].map(|dim| {
        let placement = [("dp", Placement::shard(dim))];
        Sharding::new(&mesh(), placement, &[3, 6, 1, 2]).unwrap()
    });
    let x = numbers(&[3, 6, 1, 2], 1);
    let keys = |sharding: &Sharding| part(&x, sharding, 1);
    let list = |values: &[i64], sharding: &Sharding| {
        let list = Tensor::from_slice(&CPU, &[values.len()], values).unwrap();
        part(&list, sharding, 1)
    };
    let attend = |q: &Sharding, k: &Sharding, sequences: AttentionSequences| {
        let (q, k) = (part(&x, q, 1), keys(k));
        let mask = AttentionMask { sequences, ..AttentionMask::causal() };
        ops::attention(&q, &k, &k, &mask, 0.5)
    };
    let cached =
        |q_offset: Tensor| AttentionSequences::Cached { k_len: q_offset.clone(), q_offset };
    let (all, of_three) = (whole(&[3, 6, 1, 2]), [0, 1, 2]);
    let per_row = |sharding: &Sharding| cached(list(&of_three, sharding));
    attend(&batch, &batch, per_row(&rows(&[3]))).unwrap();
    attend(&sequence, &all, per_row(&whole(&[3]))).unwrap();
    attend(&batch, &batch, cached(list(&[1], &whole(&[1])))).unwrap();
    let ranges = |sharding: &Sharding| {
        let causal = (0..3 * 6).flat_map(|at| [0, at % 6 + 1]).collect::<Vec<i32>>();
        let causal = Tensor::from_slice(&CPU, &[3, 6, 2], &causal).unwrap();
        AttentionSequences::Ranges(part(&causal, sharding, 1))
    };
    let along = |dim| {
        let placement = [("dp", Placement::shard(dim))];
        Sharding::new(&mesh(), placement, &[3, 6, 2]).unwrap()
    };
    for (sharding, keys, dim) in [(&batch, &batch, 0), (&sequence, &all, 1)] {
        let (by_range, _) = attend(sharding, keys, ranges(&along(dim))).unwrap();
        let (causal, _) = attend(sharding, keys, AttentionSequences::Rows).unwrap();
        assert_eq!(values(&by_range), values(&causal));
    }
    let refused = [
        attend(&batch, &batch, per_row(&whole(&[3]))),
        attend(&sequence, &all, per_row(&rows(&[3]))),
        attend(&batch, &batch, cached(list(&[1], &whole(&[1])).local())),
        attend(&sequence, &all, ranges(&whole(&[3, 6, 2]))),
    ];
    let refused = refused.map(|result| refusal(result).to_string());
    insta::assert_snapshot!(refused.join("\n"));

    // The errors of the gradients name the gradient.
    let dout = part(&x, &batch, 1);
    let mask = AttentionMask { sequences: per_row(&rows(&[3])), ..AttentionMask::causal() };
    let (_, lse) = ops::attention(&dout, &dout, &dout, &mask, 0.5).unwrap();
    let mask = AttentionMask { sequences: per_row(&whole(&[3])), ..mask };
    let refused = ops::attention_grad(&dout, &dout, &dout, &dout, &lse, &dout, &mask, 0.5);
    insta::assert_snapshot!(refusal(refused));

    // A matrix with as many values as this rank has rows is neither one value nor a value per row.
    let batch = Sharding::new(&mesh(), [("dp", Placement::shard(0))], &[4, 6, 1, 2]).unwrap();
    let x = part(&numbers(&[4, 6, 1, 2], 1), &batch, 1);
    let matrix = Tensor::from_slice(&CPU, &[1, 2], &[0i64, 1]).unwrap();
    let matrix = matrix.with_sharding(&whole(&[1, 2]), 1).unwrap();
    let mask = AttentionMask { sequences: cached(matrix), ..AttentionMask::causal() };
    assert!(ops::attention(&x, &x, &x, &mask, 0.5).is_err());
}
