//! Failures, deaths, lost and misplaced writes: all ranks report them and nothing is published.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Barrier};

use meshgrad_ckpt::FailedRank;
use meshgrad_ckpt::mapping::TensorSpec;
use meshgrad_ckpt::ranks::{Ranks, Saved, Shard};
use meshgrad_ckpt::vfs::RealFs;
use meshgrad_ckpt::{Committed, Dtype, Result};
use meshgrad_ckpt_crash::{Fault, FaultFs, Op, Rule};
use meshgrad_mesh::{Mesh, Placement, Sharding};

use crate::sharded::world::{
    Layout, Model, Rank, SIZES, Sizes, files, on_ranks, save_models, save_on, save_whole,
};

/// The same placement for tensors with names of the same length.
fn layout(ranks: usize) -> Layout {
    let mesh = Mesh::new(&[ranks], &["a"]).unwrap();
    Layout { mesh, choice: 1, divides_rows: false }
}

fn rules(rank: &mut Rank<'_>, rules: Vec<Rule>) {
    rank.vfs = Arc::new(FaultFs::new(Arc::new(RealFs), rules));
}

fn texts(saved: Vec<Result<Saved>>) -> Vec<String> {
    let texts = saved.into_iter().map(|it| it.unwrap_err().to_string());
    texts.collect()
}

fn assert_empty(run: &Path) {
    assert_eq!(files(run).len(), 0, "{:?}", files(run).keys());
    assert_eq!(std::fs::read_dir(run).unwrap().count(), 0);
}

/// In every step, all ranks return the same error with the rank that failed and its cause.
#[test]
fn all_ranks_name_the_rank_that_failed() {
    let model = Model::by_name();
    type Change = fn(&mut Rank<'_>);
    let steps: [(&str, &str, bool, Change); 7] = [
        ("plan the checkpoint", "no value", true, |rank| {
            rank.shards = Err("`w` has no value".into());
        }),
        ("write its shards", "the device is lost", true, |rank| {
            let shards = rank.shards.as_mut().unwrap();
            shards.memory.is_lost = true;
        }),
        ("write its shards", "permission denied", true, |rank| {
            rules(rank, vec![denied(Op::Write).path("-of-")]);
        }),
        ("write its shards", "permission denied", true, |rank| {
            rules(rank, vec![denied(Op::SyncData).path("-of-")]);
        }),
        ("verify the files", "permission denied", true, |rank| {
            rules(rank, vec![denied(Op::Open).path("-of-")]);
        }),
        ("create the files", "permission denied", false, |rank| {
            rules(rank, vec![denied(Op::Allocate)]);
        }),
        ("publish the checkpoint", "permission denied", false, |rank| {
            rules(rank, vec![denied(Op::RenameNoReplace)]);
        }),
    ];
    for (step, cause, on_any_rank, change) in steps {
        for failing in 0..if on_any_rank { 3 } else { 1 } {
            let run = tempfile::tempdir().unwrap();
            // Tiny blocks, so that each rank verifies some of them.
            let sizes = Sizes { block: 64, file: 600 };
            let saved =
                save_on(&model, &layout(3), (run.path(), "saved"), sizes, &|number, rank| {
                    if number == failing {
                        change(rank);
                    }
                });
            for text in texts(saved) {
                let start = format!("rank {failing} failed to {step}: ");
                assert!(text.starts_with(&start), "{text}, expected {start}");
                assert!(text.to_lowercase().contains(cause), "{text}, expected {cause}");
            }
            assert_empty(run.path());
        }
    }
}

fn denied(op: Op) -> Rule {
    Rule::new(Fault::Fail(io::ErrorKind::PermissionDenied)).op(op)
}

/// A rank that exits before an exchange, after `left` others.
fn dying(ranks: Ranks<'static>, mut left: usize) -> Ranks<'static> {
    let (rank, world_size) = (ranks.rank(), ranks.world_size());
    let mut ranks = Some(ranks);
    Ranks::new(rank, world_size, move |mine| {
        if left == 0 {
            ranks = None;
        }
        left = left.saturating_sub(1);
        match &mut ranks {
            Some(ranks) => ranks.all_gather(mine),
            None => Err("killed".into()),
        }
    })
}

/// If a rank exits, the others do not wait for it. The checkpoint exists completely or not at all;
/// before the last exchange it does not exist.
#[test]
fn the_exit_of_a_rank_is_reported() {
    let model = Model::by_name();
    let whole = tempfile::tempdir().unwrap();
    save_whole(&model, whole.path(), "saved", SIZES[0]);
    for left in 0..5 {
        for killed in 0..3 {
            let run = tempfile::tempdir().unwrap();
            let place = (run.path(), "saved");
            let ranks = |number, ranks| match number == killed {
                false => ranks,
                true => dying(ranks, left),
            };
            let saved = on_ranks(&[&model; 3], &layout(3), place, SIZES[0], &ranks, &|_, _| {});
            for (number, text) in texts(saved).into_iter().enumerate() {
                let cause = match number == killed {
                    true => "killed".to_owned(),
                    false => format!("rank {killed} has exited"),
                };
                assert!(text.ends_with(&cause), "{text}, expected {cause}");
            }
            match left {
                0..4 => assert_empty(run.path()),
                _ => assert!(files(run.path()) == files(whole.path())),
            }
        }
    }
}

/// Writes that never reach the file are found before the checkpoint is published, if the block
/// belongs to several ranks, and otherwise when the checkpoint is verified.
#[test]
fn lost_writes_are_found() {
    let model = Model::by_name();
    let mut found = [0, 0];
    for sizes in [SIZES[0], SIZES[2]] {
        for losing in 0..3 {
            let run = tempfile::tempdir().unwrap();
            let place = (run.path(), "saved");
            let saved = save_on(&model, &layout(3), place, sizes, &|number, rank| {
                if number == losing {
                    let lost = Rule::new(Fault::Skip).op(Op::Write).path(".safetensors");
                    rules(rank, vec![lost]);
                }
            });
            match saved.into_iter().next().unwrap() {
                Err(error) => {
                    let text = error.to_string();
                    let expected = format!("the bytes that rank {losing} wrote in ");
                    assert!(text.contains(&expected), "{text}");
                    assert_empty(run.path());
                    found[0] += 1;
                }
                Ok(saved) => {
                    saved.committed.verify().unwrap_err();
                    found[1] += 1;
                }
            }
        }
    }
    assert!(found[0] >= 3, "{found:?}");
}

/// Two ranks' bytes that are exchanged in the file are found, as lost ones are.
#[test]
fn misplaced_writes_are_found() {
    let rows = Model::of_rows(2, 50);
    let layout = Layout::of_rows(2, "rows");
    for (block, is_shared) in [(16 << 20, true), (2, false)] {
        let run = tempfile::tempdir().unwrap();
        let (path, barrier) = (run.path().to_owned(), Arc::new(Barrier::new(2)));
        let sizes = Sizes { block, file: u64::MAX };
        let saved = save_on(&rows, &layout, (run.path(), "saved"), sizes, &|number, rank| {
            let (path, barrier) = (path.clone(), Arc::clone(&barrier));
            let swap = move || {
                barrier.wait(); // both ranks have written
                if number == 0 {
                    swap_rows(&path);
                }
                barrier.wait();
            };
            let after = Rule::new(Fault::After(Arc::new(swap)));
            rules(rank, vec![after.op(Op::SyncData).path(".safetensors")]);
        });
        match saved.into_iter().next().unwrap() {
            Err(error) if is_shared => {
                let FailedRank { reason, .. } = error.details().expect("the rank that failed");
                assert!(reason.contains("does not have the bytes that rank 0 wrote"), "{reason}");
                assert_empty(run.path());
            }
            Ok(Saved { committed, .. }) if !is_shared => {
                committed.verify().unwrap_err();
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Exchanges the last two rows of 50 bytes of the file that is being written.
fn swap_rows(run: &Path) {
    let name = files(run).into_keys().find(|name| name.ends_with(".safetensors"));
    let path = run.join(name.unwrap());
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let start = file.metadata().unwrap().len() - 100;
    let mut rows = [0; 100];
    file.read_exact_at(&mut rows, start).unwrap();
    rows.rotate_left(50);
    file.write_all_at(&rows, start).unwrap();
}

/// Shards that do not form the tensors are refused by all ranks before anything is written.
#[test]
fn shards_that_do_not_fit_are_refused() {
    let mesh = Mesh::new(&[3], &["a"]).unwrap();
    let shard = |dim, dtype, shape: &[usize], rank| {
        let sharding = Sharding::new(&mesh, [("a", Placement::shard(dim))], shape).unwrap();
        let shape: Vec<u64> = shape.iter().map(|it| *it as u64).collect();
        Shard::new(TensorSpec::new("w", dtype, &shape), &sharding.region(rank).unwrap())
    };
    let fits = |rank| vec![shard(0, Dtype::F32, &[6, 4], rank)];
    type Change<'c> = &'c (dyn Fn() -> Vec<Shard> + Sync);
    let cases: [(Change<'_>, &str); 9] = [
        (
            &Vec::new,
            "`w`: ranks [0, 1] have 16 of the 24 elements of [6, 4]; save with all ranks of its mesh",
        ),
        (
            &|| vec![shard(0, Dtype::F32, &[6, 4], 1)],
            "`w`: ranks [0, 1, 2] have 16 of the 24 elements of [6, 4]; save with all ranks of its mesh",
        ),
        (
            &|| vec![shard(1, Dtype::F32, &[6, 4], 0)],
            "`w`: rank 0 has [0..2, 0..4] and rank 2 has [0..6, 0..2], which overlap; use one sharding \
             on all ranks",
        ),
        (
            &|| vec![shard(0, Dtype::F32, &[9, 4], 2)],
            "`w`: it is F32 [6, 4] on rank 0 but F32 [9, 4] on rank 2; all ranks must hold shards of one \
             tensor",
        ),
        (
            &|| vec![shard(0, Dtype::BF16, &[6, 4], 2)],
            "`w`: it is F32 [6, 4] on rank 0 but BF16 [6, 4] on rank 2; all ranks must hold shards of one \
             tensor",
        ),
        (
            &|| vec![fits(2).remove(0).of_rows(0..1)],
            "`w`: ranks [0, 1, 2] have 20 of the 24 elements of [6, 4]; save with all ranks of its mesh",
        ),
        (
            &|| vec![fits(1).remove(0).of_rows(1..2)],
            "`w`: rank 1 has rows 0..2 and rank 2 has rows 1..2 of [2..4, 0..4], which overlap; divide \
             the rows in one way on all ranks",
        ),
        (
            &|| vec![fits(2).remove(0).of_rows(1..3)],
            "`w`: rank 2 has rows 1..3 of [4..6, 0..4], which has 2 rows",
        ),
        (&|| [fits(2), fits(2)].concat(), "`w`: rank 2 has two shards; a rank has one"),
    ];
    let model = Model::by_name();
    for (third, message) in cases {
        let run = tempfile::tempdir().unwrap();
        let saved =
            save_on(&model, &layout(3), (run.path(), "saved"), SIZES[0], &|number, rank| {
                let shards = rank.shards.as_mut().unwrap();
                shards.shards = if number == 2 { third() } else { fits(number) };
                let any_change =
                    Rule::new(Fault::Before(Arc::new(|| panic!("nothing is written"))));
                rules(rank, vec![any_change.op(Op::MakeDir)]);
            });
        for text in texts(saved) {
            assert_eq!(text, message);
        }
        assert_empty(run.path());
    }
}

/// Ranks with different mappings are refused, and a mapping that would have to be computed.
#[test]
fn mappings_that_do_not_fit_are_refused() {
    let model = Model::by_name();
    let other =
        Model { mapping: "scalar = rename(number)\n{rest:path} = {rest:path}", ..model.clone() };
    let computed =
        Model { mapping: "mean(norm, norm) = both\n{rest:path} = {rest:path}", ..model.clone() };
    let run = tempfile::tempdir().unwrap();
    let place = (run.path(), "saved");
    let saved = save_models(&[&model, &other], &layout(2), place);
    for text in texts(saved) {
        assert!(
            text.starts_with("rank 1 lays out other files than rank 0; use the same "),
            "{text}"
        );
    }
    assert_empty(run.path());

    let saved = save_models(&[&computed, &computed], &layout(2), place);
    for text in texts(saved) {
        let expected = "rank 0 failed to create the files: `both` cannot be stored: the result of \
                        `mean` is not in memory; compute it first";
        assert_eq!(text, expected);
    }
    assert_empty(run.path());
}

/// A checkpoint that exists is kept.
#[test]
fn nothing_is_replaced() {
    let model = Model::by_name();
    let run = tempfile::tempdir().unwrap();
    save_whole(&model, run.path(), "saved", SIZES[0]);
    let before = files(run.path());
    let saved = save_on(&model, &layout(2), (run.path(), "saved"), SIZES[0], &|_, _| {});
    for text in texts(saved) {
        assert!(text.starts_with("rank 0 failed to create the files: "), "{text}");
        assert!(text.contains("exists"), "{text}");
    }
    assert!(files(run.path()) == before);
    Committed::open(run.path().join("saved")).unwrap().verify().unwrap();
}
