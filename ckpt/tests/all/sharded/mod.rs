//! Ranks that save together write the files of a single rank, or nothing.

mod faults;
mod world;

use meshgrad_ckpt::ranks::Saved;
use world::{Layout, Model, SIZES, files, save_on, save_whole};

/// On any mesh, with any placement, the files, the index and the manifest equal those that one
/// process writes for the whole model. Each byte is written once.
#[test]
fn any_mesh_writes_the_files_of_one_process() {
    for model in [Model::by_name(), Model::mapped()] {
        for sizes in SIZES {
            let run = tempfile::tempdir().unwrap();
            save_whole(&model, run.path(), "whole", sizes);
            let expected = files(&run.path().join("whole"));
            let data = expected.iter().filter(|(name, _)| name.ends_with(".safetensors"));
            let data: u64 = data.map(|(_, bytes)| bytes.len() as u64).sum();

            for (number, layout) in Layout::all().iter().enumerate() {
                let name = format!("sharded-{number}");
                let saved = save_on(&model, layout, (run.path(), &name), sizes, &|_, _| {});
                let saved: Vec<Saved> = saved.into_iter().map(Result::unwrap).collect();
                let (mesh, choice, rows) = (&layout.mesh, layout.choice, layout.divides_rows);
                let found = files(&run.path().join(&name));
                assert!(
                    found == expected,
                    "{mesh}, choice {choice}, divided rows {rows}, blocks of {}",
                    sizes.block
                );
                assert_eq!(saved.iter().map(|it| it.written_bytes).sum::<u64>(), data);
                for Saved { committed, .. } in saved {
                    committed.verify().unwrap();
                }
            }
        }
    }
}

/// Only blocks that several ranks wrote are read again, and each once. On one rank there are none.
#[test]
fn only_shared_blocks_are_read_again() {
    let model = Model::by_name();
    let run = tempfile::tempdir().unwrap();
    let mut partly = 0;
    for (number, layout) in Layout::all().iter().enumerate() {
        for sizes in SIZES {
            let name = format!("{number}-{}", sizes.block);
            let saved = save_on(&model, layout, (run.path(), &name), sizes, &|_, _| {});
            let saved = saved.into_iter().map(Result::unwrap);
            let (read, written) = saved.fold((0, 0), |(read, written), it| {
                (read + it.read_bytes, written + it.written_bytes)
            });
            assert!(read <= written, "{}", layout.mesh);
            assert!(read == 0 || layout.ranks() > 1);
            partly += usize::from((1..written).contains(&read));
        }
    }
    assert!(partly > 20, "{partly} saves read some blocks");
}

/// If all ranks hold everything, they share the writing: no rank writes more than the mean plus the
/// largest tensor and the header.
#[test]
fn replicas_share_the_bytes() {
    for model in [Model::by_name(), Model::mapped()] {
        for ranks in 2..=4 {
            let mesh = meshgrad_mesh::Mesh::new(&[ranks], &["a"]).unwrap();
            let names = model.tensors.iter().map(|(spec, _)| &spec.name);
            let run = tempfile::tempdir().unwrap();
            let layout = Layout { mesh, choice: 0, divides_rows: false };
            assert!(names.len() > ranks);
            let whole = |_: usize, rank: &mut world::Rank<'_>| {
                rank.shards = Ok(world::whole(&model));
            };
            let saved = save_on(&model, &layout, (run.path(), "saved"), SIZES[0], &whole);
            let written = saved.into_iter().map(|it| it.unwrap().written_bytes);
            let written: Vec<u64> = written.collect();
            let largest = model.tensors.iter().map(|(_, bytes)| bytes.len()).max().unwrap();
            let mean = written.iter().sum::<u64>() / ranks as u64;
            let header = 1024;
            let most = mean + largest as u64 + header;
            assert!(written.iter().all(|it| *it <= most), "{written:?}");
            assert!(written.iter().all(|it| *it > 0), "{written:?}");
        }
    }
}
