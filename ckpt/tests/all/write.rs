//! We write the same bytes as the reference crate, and both crates read them.

use std::collections::HashMap;
use std::fs;

use meshgrad_ckpt::{Dtype, FileWriter, TensorFile};
use proptest::prelude::*;
use safetensors::tensor::TensorView;

/// Bytes that differ between tensors.
fn data(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 17 + 5) as u8).collect()
}

fn tensors() -> impl Strategy<Value = Vec<(String, Dtype, Vec<usize>)>> {
    let dtype = prop::sample::select(Dtype::all().collect::<Vec<_>>());
    let shape = prop::collection::vec(0..4usize, 0..3);

    // A last dim of 8 elements gives whole bytes for every dtype.
    let tensor = (dtype, shape).prop_map(|(dtype, mut shape)| {
        shape.push(8);
        (dtype, shape)
    });
    let named = prop::collection::btree_map("[a-c.\"\\\\é\n]{1,6}", tensor, 0..8);
    named.prop_map(|map| {
        map.into_iter()
            .filter(|(name, _)| !name.split('\\').any(|part| part == ".."))
            .map(|(name, (dtype, shape))| (name, dtype, shape))
            .collect()
    })
}

/// Failures are printed, not kept in a file.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, cases, ..Default::default() }
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn files_match_the_reference(tensors in tensors(), metadata in any::<Option<String>>()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");

        let mut writer = FileWriter::new();
        let mut contents = HashMap::new();
        // Tensors are added in an order that differs from the file's.
        for (at, (name, dtype, shape)) in tensors.iter().rev().enumerate() {
            writer.add(name, *dtype, shape).unwrap();
            let len = shape.iter().product::<usize>() * dtype.bits() / 8;
            contents.insert(name.clone(), data(at, len));
        }
        if let Some(value) = &metadata {
            writer.set_metadata("key", value);
        }
        writer.save(&path, |tensor, out| {
            contents[&tensor.name].chunks(5).try_for_each(|piece| out.append(piece))
        }).unwrap();

        let views = tensors.iter().map(|(name, dtype, shape)| {
            let dtype = serde_json::from_str(&format!("\"{dtype}\"")).unwrap();
            (name.clone(), TensorView::new(dtype, shape.clone(), &contents[name]).unwrap())
        });
        let metadata = metadata.map(|value| HashMap::from([("key".to_owned(), value)]));
        let theirs = safetensors::serialize(views, metadata.clone()).unwrap();
        prop_assert_eq!(fs::read(&path).unwrap(), theirs);

        let file = TensorFile::open(&path).unwrap();
        prop_assert_eq!(file.tensors().len(), tensors.len());
        prop_assert_eq!(file.metadata().get("key"), metadata.as_ref().map(|map| &map["key"]));
        for (name, dtype, shape) in &tensors {
            let tensor = file.get(name).unwrap();
            prop_assert_eq!((tensor.dtype, &tensor.shape), (*dtype, shape));
            prop_assert_eq!(tensor.range.start % (dtype.bits() / 8).max(1) as u64, 0);
            prop_assert_eq!(&file.read(name).unwrap(), &contents[name]);
        }
    }
}
