//! Transfers between two meshes of one world.

use std::collections::BTreeMap;
use std::time::Duration;

use meshgrad_collectives::Peer;
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Plan, Rank, Redistributor, Transferred, check_logs};
use meshgrad_mesh::{Mesh, Placement, Reduction, Sharding, Transfer, TransferTensor};
use meshgrad_runtime::{DType, Device, Error, Kind, Result, Tensor, ops};

use crate::parts::part;
use crate::redistribution::recorder::{Deviation, Executed, Recorder, logged};
use crate::redistribution::{shardings, whole};

const SHAPE: [usize; 2] = [7, 5];

/// The shardings without partial values on meshes of one and two axes over ranks 0 to 5.
fn all() -> Vec<Sharding> {
    let meshes = [
        Mesh::new(&[2, 2], &["dp", "tp"]),
        Mesh::from_ranks(&[5, 1, 4], &[3], &["tp"]),
        Mesh::from_ranks(&[4, 5], &[2], &["tp"]),
        Mesh::new(&[2, 3], &["dp", "tp"]),
    ];
    let all = meshes.into_iter().flat_map(|mesh| shardings(&mesh.unwrap(), &SHAPE));
    all.filter(|sharding| sharding.partials().is_empty()).collect()
}

fn pairs() -> Vec<[Sharding; 2]> {
    let all = all();
    let pairs = all.iter().flat_map(|from| all.iter().map(move |to| [from.clone(), to.clone()]));
    pairs.collect()
}

/// This rank's part of the whole; zeros on a meta device.
fn own_part(rank: &dyn Rank, sharding: &Sharding) -> Option<Tensor> {
    let shape = sharding.local_shape(rank.rank())?;
    if rank.device().computes() {
        return Some(part(&whole(rank.device(), &SHAPE), sharding, rank.rank()));
    }
    let x = Tensor::zeros(rank.device(), &shape, DType::F32, Kind::Value).unwrap();
    Some(x.with_sharding(sharding, rank.rank()).unwrap())
}

/// Whether the results are the ranks' parts of the whole.
fn are_correct([from, to]: &[Sharding; 2], results: &[Option<Tensor>]) -> bool {
    let correct = |(rank, result): (usize, &Option<Tensor>)| {
        let Some(result) = result else {
            return !to.mesh().contains(rank);
        };
        let expected = part(&whole(&Device::cpu(), from.shape()), to, rank);
        let values = |x: &Tensor| x.local().to_vec::<f32>().unwrap();
        result.sharding() == Some(to) && values(result) == values(&expected)
    };
    results.iter().enumerate().all(correct)
}

/// The messages of all ranks: sender, receiver and bytes.
fn messages(executed: &[Executed], rank: usize) -> Vec<(usize, usize, u64)> {
    let sent = executed.iter().filter_map(|call| match call.request.peer {
        Some(Peer::To(to)) => Some((rank, call.group.ranks()[to], call.bytes)),
        Some(Peer::From(_)) => None,
        None => panic!("a collective"),
    });
    sent.collect()
}

fn planned(tensors: &[TransferTensor<'_>]) -> Vec<(usize, usize, u64)> {
    let plan = Transfer::plan(tensors).unwrap();
    let messages = plan.messages().iter();
    messages.map(|message| (message.sender, message.receiver, message.bytes)).collect()
}

/// Each rank gets its part, the messages are those of the plan, and `Plan` logs them.
#[test]
fn every_pair_of_shardings_on_two_meshes() {
    let pairs = pairs();
    assert!(pairs.len() > 1500, "{}", pairs.len());
    let transfer = |rank: &dyn Rank| -> Result<Vec<(Option<Tensor>, Vec<Executed>)>> {
        let recorder = Recorder::default();
        let redistributor = Redistributor::new(&recorder.on(rank, Deviation::None));
        let each = pairs.iter().map(|[from, to]| {
            let x = own_part(rank, from);
            let y = redistributor.transfer(x.as_ref(), DType::F32, from, to)?;
            Ok((y, recorder.take()))
        });
        each.collect()
    };
    let results = Local::run(6, |rank| transfer(rank)).unwrap();
    let logs = Plan::new(6).unwrap().trace_all(|rank| {
        let redistributor = Redistributor::new(rank);
        for [from, to] in &pairs {
            let x = own_part(rank, from);
            redistributor.transfer(x.as_ref(), DType::F32, from, to)?;
        }
        Ok::<_, Error>(())
    });
    let logs = logs.unwrap();
    check_logs(&logs).unwrap();

    for (at, pair) in pairs.iter().enumerate() {
        let [from, to] = pair;
        let of_ranks = results.iter().map(|result| result[at].0.clone());
        assert!(are_correct(pair, &of_ranks.collect::<Vec<_>>()), "{from:?} to {to:?}");
        let sent = results.iter().enumerate();
        let sent: Vec<_> = sent.flat_map(|(rank, result)| messages(&result[at].1, rank)).collect();
        let tensor = TransferTensor { from, to, element_bits: 32 };
        assert_eq!(sent, planned(&[tensor]), "{from:?} to {to:?}");
    }
    for (log, result) in logs.iter().zip(&results) {
        let executed: Vec<&Executed> = result.iter().flat_map(|(_, calls)| calls).collect();
        assert_eq!(logged(log).iter().collect::<Vec<_>>(), executed);
    }
}

/// The weights of a model go from 2 x 2 ranks to three others, of which one trains too, in one
/// message per pair of ranks and dtype. The results do not change with the weights.
#[test]
fn weights_of_a_model_are_transferred_together() {
    let training = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    let inference = Mesh::from_ranks(&[3, 4, 5], &[3], &["tp"]).unwrap();
    let weights: Vec<([usize; 2], DType, usize)> = (0..12)
        .map(|at| match at % 3 {
            0 => ([7, 5], DType::F32, 0),
            1 => ([4, 9], DType::F32, 1),
            _ => ([1, 6], DType::BF16, 1),
        })
        .collect();
    let shardings = weights.iter().map(|(shape, _, dim)| {
        let on = |mesh| Sharding::new(mesh, [("tp", Placement::shard(*dim))], shape).unwrap();
        [on(&training), on(&inference)]
    });
    let shardings: Vec<[Sharding; 2]> = shardings.collect();
    let value = |device: &Device, at: usize| {
        let (shape, dtype, _) = weights[at];
        ops::cast(&ops::affine(&whole(device, &shape), 1.0, at as f64).unwrap(), dtype).unwrap()
    };

    let results = Local::run(6, |rank| -> Result<_> {
        let recorder = Recorder::default();
        let redistributor = Redistributor::new(&recorder.on(rank, Deviation::None));
        let own = shardings.iter().enumerate().map(|(at, [from, _])| {
            let is_member = from.mesh().contains(rank.rank());
            is_member.then(|| {
                let x = part(&value(rank.device(), at), from, rank.rank());
                let weight =
                    Tensor::zeros(rank.device(), x.shape(), x.dtype(), Kind::Parameter).unwrap();
                ops::copy_into(&x.local(), &weight).unwrap();
                weight.with_sharding(from, rank.rank()).unwrap()
            })
        });
        let own: Vec<Option<Tensor>> = own.collect();
        let tensors = own.iter().zip(&shardings).zip(&weights);
        let tensors: Vec<Transferred<'_>> = tensors
            .map(|((value, [from, to]), (_, dtype, _))| Transferred {
                value: value.as_ref(),
                dtype: *dtype,
                from,
                to,
            })
            .collect();
        let moved = redistributor.transfer_all(&tensors)?;
        for weight in own.iter().flatten() {
            let zeros = Tensor::zeros(rank.device(), weight.shape(), weight.dtype(), Kind::Value)?;
            ops::copy_into(&zeros, &weight.local())?;
        }
        Ok((moved, recorder.take()))
    })
    .unwrap();

    for (rank, (moved, _)) in results.iter().enumerate() {
        for (at, moved) in moved.iter().enumerate() {
            let to = &shardings[at][1];
            assert_eq!(moved.is_some(), to.mesh().contains(rank));
            let Some(moved) = moved else { continue };
            let expected = part(&value(&Device::cpu(), at), to, rank);
            let values = |x: &Tensor| ops::cast(&x.local(), DType::F64).unwrap().to_vec::<f64>();
            assert_eq!(values(moved), values(&expected), "weight {at} of rank {rank}");
        }
    }
    let mut sent: BTreeMap<(usize, usize), (usize, u64)> = BTreeMap::new();
    for (rank, (_, executed)) in results.iter().enumerate() {
        for (from, to, bytes) in messages(executed, rank) {
            let sent = sent.entry((from, to)).or_default();
            *sent = (sent.0 + 1, sent.1 + bytes);
        }
    }
    let tensors = shardings
        .iter()
        .zip(&weights)
        .map(|([from, to], (_, dtype, _))| TransferTensor { from, to, element_bits: dtype.bits() });
    let planned = planned(&tensors.collect::<Vec<_>>());
    assert!(sent.values().all(|(count, _)| *count <= 2), "{sent:?}");
    let sent: Vec<_> = sent.into_iter().map(|((from, to), (_, bytes))| (from, to, bytes)).collect();
    assert_eq!(sent, planned);
}

/// A message of zeros, a scaled one, and swapped ranks give wrong results or errors.
#[test]
fn planted_faults_are_found() {
    let on = |ranks: &[usize], dim| {
        let mesh = Mesh::from_ranks(ranks, &[3], &["tp"]).unwrap();
        Sharding::new(&mesh, [("tp", Placement::shard(dim))], &[6, 3]).unwrap()
    };
    let pair = [on(&[0, 1, 2], 0), on(&[3, 4, 5], 1)];
    for fault in [Fault::None, Fault::Dropped, Fault::Scaled, Fault::Swapped] {
        let local = Local::new(6).threads(1).deadline(Duration::from_secs(20));
        let results = local.launch(|rank| -> Result<_> {
            let [from, to] = &pair;
            let x = from.mesh().contains(rank.rank());
            let x = x.then(|| part(&whole(rank.device(), &[6, 3]), from, rank.rank()));
            let redistributor = Redistributor::new(&RewiredRank::faulty(rank, fault));
            redistributor.transfer(x.as_ref(), DType::F32, from, to)
        });
        let correct = results.is_ok_and(|results| are_correct(&pair, &results));
        assert_eq!(correct, fault == Fault::None, "{fault:?}");
    }
}

#[test]
fn invalid_transfers_are_errors() {
    let training = Mesh::new(&[2], &["tp"]).unwrap();
    let inference = Mesh::from_ranks(&[2], &[1], &["tp"]).unwrap();
    let on = |mesh, placement| Sharding::new(mesh, [("tp", placement)], &[4]).unwrap();
    let to = on(&inference, Placement::Replicate);
    Local::run(3, |rank| -> Result<()> {
        let redistributor = Redistributor::new(rank);
        let message = |x: Option<&Tensor>, dtype, from: &Sharding| {
            let error = redistributor.transfer(x, dtype, from, &to).err().unwrap();
            error.to_string()
        };
        let x = whole(rank.device(), &[4]);
        let partial = on(&training, Placement::Partial(Reduction::Sum));
        if rank.rank() == 2 {
            let from = on(&training, Placement::Replicate);
            assert!(message(Some(&x), DType::F32, &from).contains("no sharding"));
            let stated = x.with_sharding(&to, 2)?;
            assert!(message(Some(&stated), DType::F32, &from).contains("not in the mesh"));
            assert!(message(None, DType::F32, &partial).contains("first"));
            return Ok(());
        }
        let sum = x.with_sharding(&partial, rank.rank())?;
        assert!(message(Some(&sum), DType::F32, &partial).contains("replicate or shard"));
        let from = on(&training, Placement::Replicate);
        let x = x.with_sharding(&from, rank.rank())?;
        assert!(message(None, DType::F32, &from).contains("passes no value"));
        assert!(message(Some(&x), DType::BF16, &from).contains("bf16"));
        assert!(message(Some(&x.local()), DType::F32, &from).contains("no sharding"));
        let rows = on(&training, Placement::shard(0));
        message(Some(&x), DType::F32, &rows);
        Ok(())
    })
    .unwrap();
}
