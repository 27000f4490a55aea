//! Checkpoints and folders on disk, as several tests write and list them.

use std::fs;
use std::path::Path;

use meshgrad_ckpt::{Dtype, FileWriter, discover};

/// The sorted names in a folder, hidden ones too.
pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The steps of a run's checkpoints.
pub(crate) fn steps(run: &Path) -> Vec<u64> {
    let found = discover(run).unwrap();
    found.iter().map(|committed| committed.step().unwrap()).collect()
}

/// The data of a tensor, different for each name.
pub(crate) fn data_of(name: &str, len: usize) -> Vec<u8> {
    name.bytes().cycle().take(len).collect()
}

/// Writes a file with a tensor f32[2] for each name.
pub(crate) fn write_shard(path: &Path, names: &[&str]) {
    let mut writer = FileWriter::new();
    for name in names {
        writer.add(name, Dtype::F32, &[2]).unwrap();
    }
    writer.save(path, |tensor, out| out.append(&data_of(&tensor.name, tensor.byte_len()))).unwrap();
}
