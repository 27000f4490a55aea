//! Saves from the arena, and the cost of a checksum.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use meshgrad::ckpt::{Dtype, Error, FolderWriter, Staging};
use meshgrad_harness::{PAGE, open_direct, timed};
use safetensors::tensor::TensorView;
use twox_hash::XxHash3_64;

use super::files::{PARTS, Sizes};
use super::loads::{Arena, in_blocks};
use super::rounds::Contestant;

pub(super) const OURS: &str = "meshgrad Staging + FolderWriter + commit";
pub(super) const LIKE_DD: &str = "O_DIRECT as dd writes, and fsync, 1 thread";
pub(super) const CHECKSUM: &str = "xxh3-64 over the arena, 2 threads";

/// The contestants that save the blocks in this process into `folder`, which is emptied before each
/// sample.
pub(super) fn contestants<'a>(
    folder: &'a Path,
    sizes: &'a Sizes,
    arena: &'a Arena,
) -> Vec<Contestant<'a>> {
    vec![
        contestant(OURS, "disk", folder, || save(folder, sizes, &arena.borrow())),
        contestant(LIKE_DD, "disk", folder, || like_dd(folder, &arena.borrow())),
        contestant("safetensors crate serialize_to_file (no fsync)", "page cache", folder, || {
            safetensors_crate(folder, sizes, &arena.borrow())
        }),
    ]
}

/// Digests the whole arena once.
pub(super) fn checksum<'a>(folder: &'a Path, arena: &'a Arena) -> Contestant<'a> {
    contestant(CHECKSUM, "-", folder, || {
        in_blocks(&mut arena.borrow_mut(), |_, block| {
            std::hint::black_box(XxHash3_64::oneshot(block));
            Ok(())
        })
    })
}

fn contestant<'a>(
    name: &str,
    destination: &'static str,
    folder: &'a Path,
    act: impl Fn() -> anyhow::Result<()> + 'a,
) -> Contestant<'a> {
    Contestant {
        name: name.to_owned(),
        destination,
        files: Vec::new(),
        before: Box::new(|| empty(folder)),
        sample: Box::new(move || timed(&act)),
    }
}

/// Removes saved files and syncs the folder.
pub(super) fn empty(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir(folder)?;
    File::open(folder)?.sync_all()?;
    Ok(())
}

fn name(number: usize) -> String {
    format!("blocks.{}.parts.{}.weight", number / PARTS, number % PARTS)
}

fn save(folder: &Path, sizes: &Sizes, arena: &[u8]) -> anyhow::Result<()> {
    let mut staging = Staging::new(folder, "saved")?;
    let mut model = FolderWriter::new();
    for number in 0..sizes.blocks * PARTS {
        model.add(&name(number), Dtype::BF16, &sizes.tensor)?;
    }
    let mut tensors = arena.chunks_exact(sizes.tensor_bytes());
    model.write::<Error>(&mut staging, "", |_, data| {
        data.append(tensors.next().unwrap_or_default())
    })?;
    staging.commit()?;
    Ok(())
}

fn like_dd(folder: &Path, arena: &[u8]) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true);
    let file = open_direct(options, &folder.join("saved"))?;
    let whole = arena.len() / PAGE * PAGE;
    for (block, number) in arena[..whole].chunks(8 << 20).zip(0..) {
        file.write_all_at(block, number * (8 << 20))?;
    }
    Ok(file.sync_all()?)
}

fn safetensors_crate(folder: &Path, sizes: &Sizes, arena: &[u8]) -> anyhow::Result<()> {
    let tensors = arena.chunks_exact(sizes.tensor_bytes()).zip(0..);
    let views = tensors.map(|(bytes, number)| {
        let view = TensorView::new(safetensors::Dtype::BF16, sizes.tensor.to_vec(), bytes)?;
        Ok((name(number), view))
    });
    let views = views.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(safetensors::serialize_to_file(views, None, &folder.join("saved"))?)
}
