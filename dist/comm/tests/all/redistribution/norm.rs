//! The norm of gradients with different shardings.

use std::sync::Arc;

use approx::assert_relative_eq;
use meshgrad_autograd::ops;
use meshgrad_collectives::with_redistribution;
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::{Mesh, Placement, Reduction, Sharding};
use meshgrad_runtime::{Device, Result, Tensor};

use crate::parts::part;

fn mesh() -> Mesh {
    Mesh::new(&[2, 3], &["dp", "tp"]).unwrap()
}

/// Gradients that one axis shards, both, or none, with uneven and empty shards.
fn shardings() -> Vec<Sharding> {
    let (rows, columns) = (Placement::shard(0), Placement::shard(1));
    let lists = [
        (vec![("tp", rows.clone())], vec![7, 2]),
        (vec![("dp", rows.clone()), ("tp", columns)], vec![5, 4]),
        (vec![("tp", rows.clone()), ("dp", rows.clone())], vec![4]),
        (vec![("dp", rows)], vec![3, 3]),
        (Vec::new(), vec![6]),
    ];
    let sharding = |(placements, shape): (Vec<(&str, Placement)>, Vec<usize>)| {
        Sharding::new(&mesh(), placements, &shape).unwrap()
    };
    lists.into_iter().map(sharding).collect()
}

/// The gradients of `shardings`, or the parts of a rank.
fn gradients(
    (shardings, scale): (&[Sharding], f32),
    device: &Device,
    rank: Option<usize>,
) -> Vec<Tensor> {
    let gradient = |(at, sharding): (usize, &Sharding)| {
        let count: usize = sharding.shape().iter().product();
        let values: Vec<f32> = (0..count).map(|i| scale * ((i + 7 * at) as f32).sin()).collect();
        let whole = Tensor::from_slice(device, sharding.shape(), &values).unwrap();
        match rank {
            Some(rank) => part(&whole, sharding, rank),
            None => whole,
        }
    };
    shardings.iter().enumerate().map(gradient).collect()
}

/// The norm, and the factor that clips it to 1.
fn norm(gradients: &[Tensor], weight: &Tensor) -> Result<[Tensor; 2]> {
    let norm = ops::global_norm(&gradients.iter().collect::<Vec<_>>())?;
    let (scale, _) = ops::clip_scale(&norm, weight, 1.0)?;
    Ok([norm, scale])
}

/// What all ranks compute.
fn on_ranks(of: (&[Sharding], f32), fault: Fault) -> Vec<[f32; 2]> {
    let all = Local::run(6, |rank| -> Result<[f32; 2]> {
        let rank = RewiredRank::faulty(rank, fault);
        let weight = Sharding::replicated(&mesh(), &[]).unwrap();
        let weight = Tensor::scalar(rank.device(), 2.0f32)?.with_sharding(&weight, rank.rank())?;
        with_redistribution(Arc::new(Redistributor::new(&rank)), || {
            let [norm, scale] = norm(&gradients(of, rank.device(), Some(rank.rank())), &weight)?;
            Ok([norm.item()?, scale.item()?])
        })
    });
    all.unwrap()
}

/// Each element counts once, however the gradients are sharded and however small or large they are.
#[test]
fn the_norm_of_sharded_gradients_is_that_of_the_whole() {
    let all = shardings();
    let lists = [&all[..], &all[..1], &all[3..], &all[4..]];
    let cases = lists.map(|shardings| (shardings, 1.0)).into_iter();
    for of in cases.chain([(&all[..], 1e-25), (&all[..], 1e25)]) {
        let device = Device::cpu();
        let weight = Tensor::scalar(&device, 2.0f32).unwrap();
        let expected = norm(&gradients(of, &device, None), &weight).unwrap();
        let expected = expected.map(|x| x.item::<f32>().unwrap());
        for actual in on_ranks(of, Fault::None) {
            assert_relative_eq!(actual[..], expected[..], epsilon = 0.0, max_relative = 1e-6);
        }
    }
    let sound = on_ranks((&all, 1.0), Fault::None);
    for fault in [Fault::Dropped, Fault::Scaled] {
        assert_ne!(on_ranks((&all, 1.0), fault), sound, "{fault:?}");
    }
}

#[test]
fn partial_gradients_have_no_norm() {
    let partial = [("tp", Placement::Partial(Reduction::Sum))];
    let partial = Sharding::new(&mesh(), partial, &[4]).unwrap();
    let messages = Local::run(6, |rank| -> Result<String> {
        let x =
            &gradients((std::slice::from_ref(&partial), 1.0), rank.device(), Some(rank.rank()))[0];
        Ok(ops::global_norm(&[x]).unwrap_err().to_string())
    });
    let message = &messages.unwrap()[0];
    assert!(message.contains("`x` is partial(sum)"), "{message}");
    assert!(message.contains("all_reduce(sum) `x`"), "{message}");
}
