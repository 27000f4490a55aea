//! Shards of several ranges of a dim: in blocks, and head and tail.

use meshgrad_mesh::{Division, Mesh, Placement, Sharding};
use meshgrad_runtime::{DType, Key, Tensor, ops};

use crate::sharding::call::{CPU, numbers};

fn sharding(ranks: usize, dim: usize, division: &Division, shape: &[usize]) -> Sharding {
    let mesh = Mesh::new(&[ranks], &["tp"]).unwrap();
    let placement = Placement::Shard(dim, division.clone());
    Sharding::new(&mesh, [("tp", placement)], shape).unwrap()
}

/// The part of `x` that `rank` holds.
fn part(x: &Tensor, sharding: &Sharding, rank: usize) -> Tensor {
    let mut part = x.clone();
    for (dim, own) in sharding.region(rank).unwrap().dims().iter().enumerate() {
        let indices = own.ranges().iter().cloned().flatten();
        let ids: Vec<i64> = indices.map(|index| index as i64).collect();
        let ids = Tensor::from_slice(x.device(), &[ids.len()], &ids).unwrap();
        part = ops::index_select(&part, dim as isize, &ids).unwrap();
    }
    part.with_sharding(sharding, rank).unwrap()
}

fn assert_part(actual: &Tensor, whole: &Tensor, sharding: &Sharding, rank: usize) {
    assert_eq!(actual.sharding(), Some(sharding));
    let values = |x: &Tensor| ops::cast(&x.local(), DType::F64).unwrap().to_vec::<f64>();
    let expected = part(whole, sharding, rank);
    assert_eq!(values(actual).unwrap(), values(&expected).unwrap(), "rank {rank} of {sharding}");
}

/// Equal shards of equal tensors become shards in blocks, and splitting undoes it.
#[test]
fn concatenated_shards_are_in_blocks() {
    let wholes = [1, 2, 3].map(|salt| numbers(&[2, 7, 3], salt));
    let joined = ops::concat(&wholes.each_ref(), 1).unwrap();
    for division in [Division::Even, Division::Ragged([0, 6, 1].into()), Division::HeadAndTail] {
        let of_part = sharding(3, 1, &division, &[2, 7, 3]);
        let of_joined = sharding(3, 1, &Division::in_blocks(7, division), &[2, 21, 3]);
        for rank in 0..3 {
            let parts = wholes.each_ref().map(|whole| part(whole, &of_part, rank));
            let y = ops::concat(&parts.each_ref(), 1).unwrap();
            assert_part(&y, &joined, &of_joined, rank);
            for (whole, x) in wholes.iter().zip(ops::split(&y, &[7; 3], 1).unwrap()) {
                assert_part(&x, whole, &of_part, rank);
            }
            assert!(ops::split(&y, &[14, 7], 1).is_err());
        }
    }
    let even = sharding(3, 1, &Division::Even, &[2, 21, 3]);
    let y = part(&joined, &even, 0);
    let error = ops::split(&y, &[7; 3], 1).unwrap_err().to_string();
    assert!(error.contains("slice on axis `tp`"), "{error}");
    let longer = part(&numbers(&[2, 8, 3], 1), &sharding(3, 1, &Division::Even, &[2, 8, 3]), 0);
    let shorter = part(&wholes[0], &sharding(3, 1, &Division::Even, &[2, 7, 3]), 0);
    assert!(ops::concat(&[&longer, &shorter], 1).is_err());
}

/// A rank draws the values that the whole tensor has in its ranges, in every dtype.
#[test]
fn random_values_are_those_of_the_whole() {
    let shape = [4, 12, 5];
    let key = Key::new(3);
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        let ones = ops::full(&CPU, &shape, dtype, 1.0).unwrap();
        let normal = ops::normal(&CPU, &shape, dtype, key, 1.0, 2.0).unwrap();
        let dropped = ops::dropout(&ones, key, 0.4).unwrap();
        for division in [
            Division::in_blocks(6, Division::Even),
            Division::in_blocks(3, Division::Ragged([1, 0, 2].into())),
            Division::HeadAndTail,
            // Ranges of different lengths: one layout does not describe them.
            Division::in_blocks(4, Division::HeadAndTail),
        ] {
            let own = sharding(3, 1, &division, &shape);
            for rank in 0..3 {
                let x = ops::copy(&part(&ones, &own, rank)).unwrap();
                assert_part(&ops::dropout(&x, key, 0.4).unwrap(), &dropped, &own, rank);
                let strided = x.transpose(0, 2).unwrap().local();
                let strided = ops::copy(&strided).unwrap().transpose(0, 2).unwrap();
                let x = strided.with_sharding(&own, rank).unwrap();
                assert_part(&ops::dropout(&x, key, 0.4).unwrap(), &dropped, &own, rank);

                let into = Tensor::zeros(&CPU, x.shape(), dtype, meshgrad_runtime::Kind::Parameter);
                let into = into.unwrap().with_sharding(&own, rank).unwrap();
                ops::normal_into(&into, key, 1.0, 2.0).unwrap();
                assert_part(&into, &normal, &own, rank);
            }
        }
    }
}

#[test]
fn ops_that_need_one_range_refuse_several() {
    let table = numbers(&[8, 3], 1);
    let own = sharding(2, 0, &Division::HeadAndTail, &[8, 3]);
    let ids = Tensor::from_slice(&CPU, &[2], &[1i64, 5]).unwrap();
    let whole = Sharding::replicated(own.mesh(), &[2]).unwrap();
    for rank in 0..2 {
        let ids = ids.with_sharding(&whole, rank).unwrap();
        let table = part(&table, &own, rank);
        for refused in [ops::embedding(&table, &ids), ops::index_select(&table, 0, &ids)] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("ranks have several ranges of dim 0 ("), "{error}");
        }
    }
    let ids = ids.with_sharding(&whole, 0).unwrap();
    let error = ops::embedding(&part(&table, &own, 0), &ids).unwrap_err();
    insta::assert_snapshot!(error);
}
