//! `reshard`: each rank has its shards, and merging them restores the model.

use std::fs;

use meshgrad::ckpt::{Dtype, TensorFile, layout::Layout};
use serde_json::Value;

use crate::ckpt_tool::models::{self, Model, Tensor};
use crate::ckpt_tool::shown_without_times;
use crate::on_disk::checkpoint_files;
use crate::test_dir::TestDir;

/// Tensors sharded by rows, columns, both, or not at all, with sizes that the ranks do not divide.
fn model() -> Model {
    let tensors = [
        ("matrix", Dtype::BF16, &[7, 5][..]),
        ("cube", Dtype::F32, &[3, 4, 5]),
        ("vector", Dtype::U8, &[11]),
        ("whole", Dtype::F64, &[2, 2]),
        ("scalar", Dtype::I64, &[]),
        ("nothing", Dtype::F32, &[0, 3]),
    ];
    let tensors = (0..).zip(tensors);
    let made = tensors
        .map(|(seed, (name, dtype, shape))| (name.to_owned(), models::tensor(dtype, shape, seed)));
    made.collect()
}

const PLACEMENTS: &str = "
matrix = a:0 b:1
cube   = b:2 a:2   # b first, then a
vector = a:0
nothing = b:0
";

#[test]
fn output() {
    let dir = TestDir::new();
    models::folder(&dir.path("model"), &model());
    fs::write(dir.path("model/config.json"), "{}\n").unwrap();
    fs::write(dir.path("placements"), PLACEMENTS).unwrap();
    fs::write(dir.path("wrong"), "matrix = a:0\n\ncube = c:1\n").unwrap();
    fs::write(dir.path("deep"), "vector = a:1\n").unwrap();
    fs::write(dir.path("typo"), "vektor = a:0\n").unwrap();
    let layout = |placements| ["--mesh", "a=2,b=2", "--placements", placements];
    let split = |to: &str, more: &[&str]| dir.ckpt(&[&["reshard", "model", to], more].concat());
    let merge = |from: &str, to: &str, more: &[&str]| {
        dir.ckpt(&[&["reshard", from, to, "--merge"], more].concat())
    };
    let output = [
        split("split", &layout("placements")),
        merge("split", "merged", &[]),
        dir.ckpt(&["diff", "model", "merged", "--values"]),
        dir.ckpt(&["inspect", "split"]),
        split("split", &layout("placements")),
        split("other", &layout("wrong")),
        split("other", &layout("deep")),
        split("other", &layout("typo")),
        dir.ckpt(&[&["plan", "model"], &layout("typo")[..]].concat()),
        split("other", &layout("absent")),
        split("other", &["--mesh", "a=2"]),
        split("other", &["--mesh", "a", "--placements", "placements"]),
        split("other", &["--mesh", "a=1000000", "--placements", "placements"]),
        merge("model", "other", &[]),
        merge("split", "other", &["--budget", "50B"]),
        merge("split", "other", &["--mesh", "a=2"]),
    ];
    insta::assert_snapshot!(shown_without_times(output));
    let layout = fs::read_to_string(dir.path("split/layout.json")).unwrap();
    insta::assert_snapshot!("layout", layout);
    let wanted = ["merged", "model", "placements", "split", "deep", "wrong", "typo"];
    assert!(dir.names("").iter().all(|name| wanted.contains(&&**name)));
}

/// The elements of a region, copied one by one.
fn region(tensor: &Tensor, region: &[std::ops::Range<u64>]) -> Vec<u8> {
    let mut offsets = vec![0];
    for (range, extent) in region.iter().zip(&tensor.shape) {
        let inner = |at: usize| range.clone().map(move |it| at * extent + it as usize);
        offsets = offsets.into_iter().flat_map(inner).collect();
    }
    let size = tensor.dtype.bits() / 8;
    offsets.iter().flat_map(|at| &tensor.bytes[at * size..][..size]).copied().collect()
}

/// Splitting and merging restores the model, for 1 to 8 ranks and a small budget.
#[test]
fn merging_restores_the_model() {
    let dir = TestDir::new();
    models::folder(&dir.path("model"), &model());
    fs::write(dir.path("placements"), PLACEMENTS).unwrap();
    for mesh in
        ["a=1,b=1", "a=2,b=1", "a=1,b=3", "a=2,b=2", "b=5,a=1", "a=3,b=2", "a=7,b=1", "a=2,b=4"]
    {
        let [split, merged] = ["split", "merged"].map(|it| format!("{it}-{mesh}"));
        let layout = ["--mesh", mesh, "--placements", "placements", "--threads", "1"];
        let output = dir.ckpt(&[&["reshard", "model", &split], &layout[..]].concat());
        assert_eq!(output.code, 0, "{}", output.shown());
        check_ranks(&dir, &split, &Layout::parse(mesh, PLACEMENTS).unwrap());

        let small = ["--merge", "--budget", "16KiB", "--max-shard", "100B"];
        let output = dir.ckpt(&[&["reshard", &split, &merged], &small[..]].concat());
        assert_eq!(output.code, 0, "{}", output.shown());
        assert_eq!(models::read(&dir.path(&merged)), model(), "{mesh}");
    }
}

/// Changing the split of ranks gives the same files as splitting the model, for all pairs of
/// layouts: uneven extents, replicas, ranks without elements, other dims.
#[test]
fn splits_of_splits_equal_splits_of_the_model() {
    let dir = TestDir::new();
    models::folder(&dir.path("model"), &model());
    fs::write(dir.path("model/config.json"), "{}\n").unwrap();
    fs::write(dir.path("rows"), PLACEMENTS).unwrap();
    fs::write(dir.path("columns"), "matrix = a:1\ncube = a:0 b:1\nwhole = b:1\n").unwrap();
    let layouts = [
        ("a=1,b=1", "rows"),
        ("a=3,b=1", "rows"),
        ("a=2,b=4", "rows"),
        ("a=3,b=2", "columns"),
        ("b=5,a=1", "columns"),
    ];
    let split = |source: &str, to: &str, (mesh, placements): (&str, &str)| {
        let layout = ["--mesh", mesh, "--placements", placements, "--budget", "9KiB"];
        let output = dir.ckpt(&[&["reshard", source, to, "--threads", "1"], &layout[..]].concat());
        assert_eq!(output.code, 0, "{}", output.shown());
    };
    let direct = |at: usize| format!("direct-{at}");
    for (at, layout) in layouts.into_iter().enumerate() {
        split("model", &direct(at), layout);
    }
    for from in 0..layouts.len() {
        for (to, layout) in layouts.into_iter().enumerate() {
            let made = format!("{from}-to-{to}");
            split(&direct(from), &made, layout);
            let [files, expected] = [&made, &direct(to)].map(|it| checkpoint_files(&dir.path(it)));
            assert!(files == expected, "{made}");
        }
        let merged = format!("merged-{from}");
        let output = dir.ckpt(&["reshard", &direct(from), &merged, "--merge"]);
        assert_eq!(output.code, 0, "{}", output.shown());
        assert_eq!(models::read(&dir.path(&merged)), model(), "{from}");
    }
}

/// A tensor larger than the budget goes from one split to another by rows.
#[test]
fn large_shards_are_split_again_by_rows() {
    let dir = TestDir::new();
    let large = models::tensor(Dtype::F32, &[301, 1024], 1);
    let model = Model::from([("w".to_owned(), large)]);
    models::folder(&dir.path("model"), &model);
    fs::write(dir.path("rows"), "w = a:0\n").unwrap();
    fs::write(dir.path("columns"), "w = a:1\n").unwrap();
    let limits = ["--budget", "300KiB", "--threads", "1"];
    let run = |arguments: &[&str]| {
        let output = dir.ckpt(&[arguments, &limits].concat());
        assert_eq!(output.code, 0, "{}", output.shown());
    };
    run(&["reshard", "model", "one", "--mesh", "a=3", "--placements", "rows"]);
    run(&["reshard", "one", "two", "--mesh", "a=5", "--placements", "columns"]);
    run(&["reshard", "two", "merged", "--merge"]);
    assert_eq!(models::read(&dir.path("merged")), model);
}

/// Damaged shards, and replicas that differ, are errors of a new split, as of a merge.
#[test]
fn splitting_again_detects_damage_and_different_replicas() {
    let dir = TestDir::new();
    models::folder(&dir.path("model"), &model());
    fs::write(dir.path("placements"), PLACEMENTS).unwrap();
    let layout = ["--mesh", "a=2,b=2", "--placements", "placements"];
    dir.ckpt(&[&["reshard", "model", "split"], &layout[..]].concat());
    let again = || {
        let other = ["--mesh", "a=1,b=3", "--placements", "placements"];
        dir.ckpt(&[&["reshard", "split", "again"], &other[..]].concat())
    };
    let flip = |name: &str, rank: u64| {
        let path = dir.path(format!("split/rank-{rank:05}/model.safetensors"));
        let tensor = TensorFile::open(&path).unwrap().get(name).unwrap().clone();
        let mut bytes = fs::read(&path).unwrap();
        bytes[tensor.range.start as usize] ^= 1;
        fs::write(&path, bytes).unwrap();
    };

    flip("matrix", 3);
    let damaged = again();
    fs::remove_file(dir.path("split/manifest.json")).unwrap();
    flip("whole", 2);
    let different = again();
    flip("whole", 2);
    flip("matrix", 3);
    let intact = again();
    insta::assert_snapshot!(shown_without_times([damaged, different, intact]));
}

/// Each file has the shards of its rank, with their regions in the metadata.
fn check_ranks(dir: &TestDir, split: &str, layout: &Layout) {
    for rank in 0..layout.ranks() {
        let folder = dir.path(split).join(format!("rank-{rank:05}"));
        let kept = models::read(&folder);
        let file = TensorFile::open(folder.join("model.safetensors")).unwrap();
        let regions: Value = serde_json::from_str(&file.metadata()["meshgrad.region"]).unwrap();
        assert_eq!(kept.len(), model().len());
        for (name, whole) in model() {
            let shape: Vec<u64> = whole.shape.iter().map(|it| *it as u64).collect();
            let wanted = layout.region(&name, &shape, rank).unwrap();
            assert_eq!(kept[&name].bytes, region(&whole, &wanted), "{name} of {rank}");
            let offset: Vec<u64> = wanted.iter().map(|range| range.start).collect();
            assert_eq!(regions[&name], serde_json::json!({"offset": offset, "shape": shape}));
        }
    }
}

/// A rank that contradicts the layout is reported before anything is written.
#[test]
fn ranks_that_contradict_the_layout_are_named() {
    let dir = TestDir::new();
    models::folder(&dir.path("model"), &model());
    fs::write(dir.path("placements"), PLACEMENTS).unwrap();
    let layout = ["--mesh", "a=2,b=2", "--placements", "placements"];
    let split = || {
        let _ = fs::remove_dir_all(dir.path("split"));
        dir.ckpt(&[&["reshard", "model", "split"], &layout[..]].concat());
        // With the manifest, any change is reported as damage.
        fs::remove_file(dir.path("split/manifest.json")).unwrap();
    };
    let merge = || dir.ckpt(&["reshard", "split", "merged", "--merge"]);
    let file = |rank: u64| dir.path(format!("split/rank-{rank:05}/model.safetensors"));

    split();
    fs::copy(file(2), file(1)).unwrap();
    let exchanged = merge();
    models::file(&file(1), &model());
    let foreign = merge();
    fs::remove_file(file(1)).unwrap();
    let missing = merge();
    split();
    let layout_file = dir.path("split/layout.json");
    let text = fs::read_to_string(&layout_file).unwrap();
    let rewrite = |from, to| fs::write(&layout_file, text.replace(from, to)).unwrap();
    rewrite("\"version\": 1", "\"version\": 9");
    let newer = merge();
    rewrite("a=2,b=2", "a=2,b=3");
    let ranks = merge();
    rewrite("\"BF16\"", "\"F16\"");
    let dtype = merge();
    rewrite("{", "[");
    let broken = merge();
    insta::assert_snapshot!(shown_without_times([
        exchanged, foreign, missing, newer, ranks, dtype, broken
    ]));
    assert!(!dir.path("merged").exists());
}
