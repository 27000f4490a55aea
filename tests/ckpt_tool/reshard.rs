//! `reshard`: each rank has its regions, and all of them together are what there was.

use std::fs;

use meshgrad::ckpt::{Dtype, TensorFile, layout::Layout};
use serde_json::Value;

use crate::models::{self, Model, Tensor};
use crate::{Workplace, shown_without_times};

/// Rows, columns, both, nothing; sizes that no number of ranks divides.
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

const PLACES: &str = "
matrix = a:0 b:1
cube   = b:2 a:2   # b first, then a
vector = a:0
nothing = b:0
";

#[test]
fn what_it_says() {
    let place = Workplace::new();
    models::folder(&place.path("model"), &model());
    fs::write(place.path("model/config.json"), "{}\n").unwrap();
    fs::write(place.path("places"), PLACES).unwrap();
    fs::write(place.path("wrong"), "matrix = a:0\n\ncube = c:1\n").unwrap();
    fs::write(place.path("deep"), "vector = a:1\n").unwrap();
    let layout = |places| ["--mesh", "a=2,b=2", "--places", places];
    let split = |to: &str, more: &[&str]| place.ckpt(&[&["reshard", "model", to], more].concat());
    let merge = |from: &str, to: &str, more: &[&str]| {
        place.ckpt(&[&["reshard", from, to, "--merge"], more].concat())
    };
    let said = [
        split("split", &layout("places")),
        merge("split", "merged", &[]),
        place.ckpt(&["diff", "model", "merged", "--values"]),
        place.ckpt(&["inspect", "split"]),
        split("split", &layout("places")),
        split("other", &layout("wrong")),
        split("other", &layout("deep")),
        split("other", &layout("absent")),
        split("other", &["--mesh", "a=2"]),
        split("other", &["--mesh", "a", "--places", "places"]),
        split("other", &["--mesh", "a=1000000", "--places", "places"]),
        merge("model", "other", &[]),
        merge("split", "other", &["--budget", "50B"]),
        merge("split", "other", &["--mesh", "a=2"]),
    ];
    insta::assert_snapshot!(shown_without_times(said));
    let layout = fs::read_to_string(place.path("split/layout.json")).unwrap();
    insta::assert_snapshot!("layout", layout);
    let wanted = ["merged", "model", "places", "split", "deep", "wrong"];
    assert!(place.names("").iter().all(|name| wanted.contains(&&**name)));
}

/// The elements of a region, one by one.
fn region(tensor: &Tensor, region: &[std::ops::Range<u64>]) -> Vec<u8> {
    let mut offsets = vec![0];
    for (range, extent) in region.iter().zip(&tensor.shape) {
        let inner = |at: usize| range.clone().map(move |it| at * extent + it as usize);
        offsets = offsets.into_iter().flat_map(inner).collect();
    }
    let size = tensor.dtype.bits() / 8;
    offsets
        .iter()
        .flat_map(|at| &tensor.bytes[at * size..][..size])
        .copied()
        .collect()
}

/// For 1 to 8 ranks, whatever the budget.
#[test]
fn back_is_the_same() {
    let place = Workplace::new();
    models::folder(&place.path("model"), &model());
    fs::write(place.path("places"), PLACES).unwrap();
    for mesh in [
        "a=1,b=1", "a=2,b=1", "a=1,b=3", "a=2,b=2", "b=5,a=1", "a=3,b=2", "a=7,b=1", "a=2,b=4",
    ] {
        let [split, merged] = ["split", "merged"].map(|it| format!("{it}-{mesh}"));
        let layout = ["--mesh", mesh, "--places", "places", "--threads", "1"];
        let said = place.ckpt(&[&["reshard", "model", &split], &layout[..]].concat());
        assert_eq!(said.code, 0, "{}", said.shown());
        check_ranks(&place, &split, &Layout::parse(mesh, PLACES).unwrap());

        let small = ["--merge", "--budget", "170B", "--max-shard", "100B"];
        let said = place.ckpt(&[&["reshard", &split, &merged], &small[..]].concat());
        assert_eq!(said.code, 0, "{}", said.shown());
        assert_eq!(models::read(&place.path(&merged)), model(), "{mesh}");
    }
}

/// Each file has the regions of its rank, and says which they are.
fn check_ranks(place: &Workplace, split: &str, layout: &Layout) {
    for rank in 0..layout.ranks() {
        let folder = place.path(split).join(format!("rank-{rank:05}"));
        let kept = models::read(&folder);
        let file = TensorFile::open(folder.join("model.safetensors")).unwrap();
        let places: Value = serde_json::from_str(&file.metadata()["meshgrad.region"]).unwrap();
        assert_eq!(kept.len(), model().len());
        for (name, whole) in model() {
            let shape: Vec<u64> = whole.shape.iter().map(|it| *it as u64).collect();
            let wanted = layout.region(&name, &shape, rank).unwrap();
            assert_eq!(
                kept[&name].bytes,
                region(&whole, &wanted),
                "{name} of {rank}"
            );
            let offset: Vec<u64> = wanted.iter().map(|range| range.start).collect();
            assert_eq!(
                places[&name],
                serde_json::json!({"offset": offset, "shape": shape})
            );
        }
    }
}

/// A rank that is not what the layout says is found before anything is written.
#[test]
fn ranks_that_do_not_fit_are_named() {
    let place = Workplace::new();
    models::folder(&place.path("model"), &model());
    fs::write(place.path("places"), PLACES).unwrap();
    let layout = ["--mesh", "a=2,b=2", "--places", "places"];
    let split = || {
        let _ = fs::remove_dir_all(place.path("split"));
        place.ckpt(&[&["reshard", "model", "split"], &layout[..]].concat());
    };
    let merge = || place.ckpt(&["reshard", "split", "merged", "--merge"]);
    let file = |rank: u64| place.path(&format!("split/rank-{rank:05}/model.safetensors"));

    split();
    fs::copy(file(2), file(1)).unwrap();
    let exchanged = merge();
    models::file(&file(1), &model());
    let foreign = merge();
    fs::remove_file(file(1)).unwrap();
    let missing = merge();
    split();
    let layout_file = place.path("split/layout.json");
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
    assert!(!place.path("merged").exists());
}
