//! Groups of a mesh, and the registry that shares their communicators.

use meshgrad_comm::{Collectives, Communicator, Local, Rank, Reduction};
use meshgrad_mesh::{Group, GroupOptions, Hosts, Mesh};
use meshgrad_runtime::{Result, Tensor};

/// On a 2 x 4 mesh, sums over tp and over dp equal the sums of their rank numbers, and a sum over
/// both equals the sum over the world.
#[test]
fn groups_of_a_mesh_sum_over_their_axes() {
    let mesh = Mesh::new(&[2, 4], &["dp", "tp"]).unwrap();
    let sums = Local::run(8, |rank| -> Result<[f32; 3]> {
        let x = Tensor::scalar(rank.device(), rank.rank() as f32)?;
        let group = |axis| mesh.group([axis], rank.rank());
        let connect = |axis| rank.connect(axis, &group(axis)?.expect("a member"));
        let (dp, tp) = (connect("dp")?, connect("tp")?);
        let over_tp = tp.all_reduce(&x, Reduction::Sum)?;
        let over_dp = dp.all_reduce(&x, Reduction::Sum)?.wait()?;
        let over_tp = over_tp.wait()?;
        let over_both = dp.all_reduce(&over_tp, Reduction::Sum)?.wait()?;
        Ok([over_dp.item()?, over_tp.item()?, over_both.item()?])
    });
    for (rank, sums) in sums.unwrap().into_iter().enumerate() {
        let over_dp = (2 * (rank % 4) + 4) as f32;
        let over_tp = if rank < 4 { 6.0 } else { 22.0 };
        assert_eq!(sums, [over_dp, over_tp, 28.0], "rank {rank}");
    }
}

/// Each rank is in two groups of two, in a ring, and starts with the one to its left or right.
/// Waiting for one before starting the other would deadlock; starting both does not.
#[test]
fn overlapping_groups_do_not_deadlock() {
    let ranks = 5;
    let sums = Local::run(ranks, |rank| -> Result<Vec<f32>> {
        let me = rank.rank();
        let before = (me + ranks - 1) % ranks;
        let x = Tensor::scalar(rank.device(), me as f32)?;
        let pairs = [[me, (me + 1) % ranks], [before, me]];
        let pending: Vec<_> = pairs
            .iter()
            .map(|pair| {
                let group = Group::new(*pair)?;
                let comm = rank.connect("ring", &group)?;
                comm.all_reduce(&x, Reduction::Sum)
            })
            .collect::<Result<_>>()?;
        let waited = pending.into_iter().map(|sum| sum.wait()?.item::<f32>());
        waited.collect()
    });
    for (rank, sums) in sums.unwrap().into_iter().enumerate() {
        let pair = |a: usize| (a % ranks + (a + 1) % ranks) as f32;
        assert_eq!(sums, [pair(rank), pair(rank + ranks - 1)]);
    }
}

/// Equal groups share a communicator and its numbers, whichever name requests it; other options
/// make another one.
#[test]
fn the_registry_shares_communicators() {
    let group = Group::new([0, 1]).unwrap();
    let results = Local::run(2, |rank| -> Result<()> {
        let (actor, critic) = (rank.connect("actor", &group)?, rank.connect("critic", &group)?);
        let x = Tensor::scalar(rank.device(), 1.0f32)?;
        // With one communicator per name, each rank would wait alone.
        let (first, second) = match rank.rank() {
            0 => (&actor, &critic),
            _ => (&critic, &actor),
        };
        first.all_reduce(&x, Reduction::Sum)?.wait()?;
        second.barrier()?.wait()?;

        let mut options = GroupOptions::default();
        options.timeout = Some(std::time::Duration::from_secs(60));
        let other = rank.connect("other", &group.clone().with_options(options))?;
        other.barrier()?.wait()?;

        let report = rank.registry().report(&Hosts::uniform(2)?);
        assert_eq!(report.communicators.len(), 2);
        assert!(report.to_string().contains("for `actor`, `critic`"), "{report}");
        Ok(())
    });
    results.unwrap();
}

#[test]
fn a_singleton_group_has_a_communicator_for_its_member_only() {
    let results = Local::run(2, |rank| -> Result<()> {
        let group = Group::new([1])?;
        let alone = rank.connect("alone", &group);
        if rank.rank() == 0 {
            let error = alone.err().unwrap().to_string();
            let expected =
                "rank 0 is not a member of [1]; request the communicator on members only";
            assert_eq!(error, expected);
            return Ok(());
        }
        let alone = alone?;
        assert_eq!((alone.rank(), alone.size()), (1, 1));
        let x = Tensor::scalar(rank.device(), 3.0f32)?;
        assert_eq!(alone.all_reduce(&x, Reduction::Sum)?.wait()?.item::<f32>()?, 3.0);

        let outside = Group::new([1, 2])?;
        let error = rank.connect("outside", &outside).err().unwrap();
        assert!(error.to_string().contains("rank 2"), "{error}");
        Ok(())
    });
    results.unwrap();
}
