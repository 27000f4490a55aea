//! Hugging Face folders: round trips, and agreement of index and files.

use std::fs;
use std::path::Path;

use meshgrad_ckpt::{Committed, Dtype, Folder, FolderWriter, Kind, Staging};

use crate::on_disk::{data_of, names_in, write_shard};

const INDEX: &str = "model.safetensors.index.json";

fn write_index(folder: &Path, total_size: u64, entries: &[(&str, &str)]) {
    let entries: Vec<String> =
        entries.iter().map(|(tensor, file)| format!("{tensor:?}: {file:?}")).collect();
    let json = format!(
        "{{\"metadata\": {{\"total_size\": {total_size}}}, \"weight_map\": {{{}}}}}",
        entries.join(", ")
    );
    fs::write(folder.join(INDEX), json).unwrap();
}

/// A folder with `a` and `b` in one file and `c` in another.
fn two_shards(folder: &Path) {
    write_shard(&folder.join("x.safetensors"), &["a", "b"]);
    write_shard(&folder.join("y.safetensors"), &["c"]);
    write_index(
        folder,
        24,
        &[("a", "x.safetensors"), ("b", "x.safetensors"), ("c", "y.safetensors")],
    );
}

fn publish(parent: &Path, name: &str, max_shard_bytes: u64) -> Committed {
    let mut staging = Staging::new(parent, name).unwrap();
    let mut model = FolderWriter::new().max_shard_bytes(max_shard_bytes);
    for (name, rows) in [("embed", 4), ("layers.0.w", 2), ("layers.1.w", 2), ("norm", 1)] {
        model.add(name, Dtype::BF16, &[rows, 2]).unwrap();
    }

    model
        .write(&mut staging, "model", |tensor, out| {
            out.append(&data_of(&tensor.name, tensor.byte_len()))
        })
        .unwrap();
    staging.commit().unwrap()
}

/// Any split into files contains the same tensors, and the same call twice gives the same bytes.
#[test]
fn any_split_into_files_round_trips() {
    let parent = tempfile::tempdir().unwrap();

    for (max_bytes, files) in [(1 << 20, 1), (36, 1), (35, 2), (16, 3), (1, 4)] {
        let first = publish(parent.path(), &format!("first-{max_bytes}"), max_bytes);
        let second = publish(parent.path(), &format!("second-{max_bytes}"), max_bytes);

        let folder = Folder::open(first.path().join("model")).unwrap();
        assert_eq!(folder.files().len(), files);
        assert_eq!(folder.size_mismatch(), None);

        let found: Vec<_> = folder
            .tensors()
            .map(|tensor| (tensor.name.as_str(), tensor.dtype, tensor.shape.clone()))
            .collect();
        let expected = [("embed", 4), ("layers.0.w", 2), ("layers.1.w", 2), ("norm", 1)];
        assert_eq!(found, expected.map(|(name, rows)| (name, Dtype::BF16, vec![rows, 2])));

        for (name, rows) in expected {
            assert_eq!(folder.read(name).unwrap(), data_of(name, rows * 4));
            assert_eq!(folder.get(name), folder.file_of(name).unwrap().get(name));
        }
        for file in folder.files() {
            assert_eq!(file.metadata()["format"], "pt");
        }

        for (path, _) in first.files() {
            let read = |published: &Committed| fs::read(published.path().join(path)).unwrap();
            assert_eq!(read(&first), read(&second), "{path}");
        }
    }
}

#[test]
fn files_are_named_as_hugging_face_does() {
    let parent = tempfile::tempdir().unwrap();

    let one = publish(parent.path(), "one", 1 << 20);
    assert_eq!(names_in(&one.path().join("model")), ["model.safetensors"]);

    let two = publish(parent.path(), "two", 35);
    assert_eq!(
        names_in(&two.path().join("model")),
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", INDEX]
    );
    let index = fs::read_to_string(two.path().join("model").join(INDEX)).unwrap();
    let expected = concat!(
        "{\n  \"metadata\": {\n    \"total_size\": 36\n  },\n  \"weight_map\": {\n",
        "    \"embed\": \"model-00001-of-00002.safetensors\",\n",
        "    \"layers.0.w\": \"model-00001-of-00002.safetensors\",\n",
        "    \"layers.1.w\": \"model-00001-of-00002.safetensors\",\n",
        "    \"norm\": \"model-00002-of-00002.safetensors\"\n  }\n}\n"
    );
    assert_eq!(index, expected);
}

#[test]
fn a_wrong_total_size_is_reported_but_not_an_error() {
    let folder = tempfile::tempdir().unwrap();
    two_shards(folder.path());
    write_index(
        folder.path(),
        32,
        &[("a", "x.safetensors"), ("b", "x.safetensors"), ("c", "y.safetensors")],
    );

    let opened = Folder::open(folder.path()).unwrap();
    let mismatch = opened.size_mismatch().unwrap();
    assert_eq!((mismatch.declared, mismatch.found), (32, 24));
    assert_eq!(opened.read("c").unwrap(), data_of("c", 8));
}

#[test]
fn a_folder_has_exactly_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let error = Folder::open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::Missing);
    assert!(error.to_string().contains("contains neither model.safetensors nor"), "{error}");

    two_shards(folder.path());
    write_shard(&folder.path().join("model.safetensors"), &["a"]);
    let error = Folder::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("an index that does not name it"), "{error}");

    // An index of the single file is not a second model.
    write_index(folder.path(), 8, &[("a", "model.safetensors")]);
    assert_eq!(Folder::open(folder.path()).unwrap().tensors().len(), 1);

    let error = Folder::open(folder.path().join("none")).unwrap_err();
    assert_eq!(error.kind(), Kind::Missing);
    assert!(error.to_string().starts_with("cannot open "), "{error}");
}

#[test]
fn index_and_files_must_agree() {
    let folder = tempfile::tempdir().unwrap();
    two_shards(folder.path());
    let open = || Folder::open(folder.path()).unwrap_err();
    let (x, y) = ("x.safetensors", "y.safetensors");

    write_index(folder.path(), 24, &[("a", x), ("b", x), ("c", "z.safetensors"), ("d", "w")]);
    let error = open();
    assert_eq!(error.kind(), Kind::Malformed);
    assert!(error.to_string().contains("names missing files: `w`, `z.safetensors`;"), "{error}");

    write_index(folder.path(), 24, &[("a", x), ("b", x), ("c", y), ("d", x), ("e", x)]);
    let error = open().to_string();
    assert!(error.contains(" lacks tensors that "), "{error}");
    assert!(error.contains(" lists for it: `d`, `e`; "), "{error}");

    write_index(folder.path(), 24, &[("a", x), ("c", y)]);
    let (error, shard) = (open().to_string(), folder.path().join(x));
    assert!(error.starts_with(&format!("{} contains tensors", shard.display())), "{error}");
    assert!(error.contains(" does not list for it: `b`; "), "{error}");

    // The same tensor in two files: the index can refer to only one.
    write_shard(&folder.path().join(y), &["a", "c"]);
    write_index(folder.path(), 24, &[("a", x), ("b", x), ("c", y)]);
    let error = open();
    assert!(error.to_string().contains(" does not list for it: `a`; "), "{error}");
}

#[test]
fn unknown_names_suggest_the_nearest() {
    let folder = tempfile::tempdir().unwrap();
    write_shard(&folder.path().join("model.safetensors"), &["layers.0.weight", "norm.weight"]);

    let error = Folder::open(folder.path()).unwrap().read("layer.0.weight").unwrap_err();
    let text = error.to_string();
    assert!(text.contains(" has 2 tensors, but no `layer.0.weight`; did you mean `"), "{text}");
    assert!(text.ends_with("did you mean `layers.0.weight`?"), "{text}");
}
