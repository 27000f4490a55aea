//! Models that PyTorch wrote as sources, links in folders, and the metadata of files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use meshgrad::ckpt::{Dtype, TensorFile};

use crate::models::{self, Model};
use crate::{TestDir, shown_without_times};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ckpt/tests/torch/fixtures")
}

/// Copies a fixture.
fn copy(dir: &TestDir, name: &str) {
    fs::create_dir(dir.path(name)).unwrap();
    for entry in fs::read_dir(fixtures().join(name)).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "expected.safetensors" {
            fs::copy(entry.path(), dir.path(name).join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn output() {
    let dir = TestDir::new();
    for name in ["views", "sharded", "dcp"] {
        copy(&dir, name);
    }
    let legacy = fixtures().join("wrong/legacy.bin");
    fs::copy(legacy, dir.path("legacy.bin")).unwrap();
    fs::write(dir.path("tp"), "{r:path}.weight = tp:0\n").unwrap();
    fs::write(
        dir.path("tied.map"),
        "w = tied(matrix, tied)\nx = transposed",
    )
    .unwrap();
    let all = "unexpected";
    let output = shown_without_times([
        dir.ckpt(&["convert", "dcp", "of-dcp"]),
        dir.ckpt(&["convert", "sharded", "of-sharded"]),
        dir.ckpt(&[
            "reshard",
            "sharded",
            "split",
            "--mesh",
            "tp=2",
            "--placements",
            "tp",
        ]),
        dir.ckpt(&["plan", "dcp", "--threads", "1"]),
        dir.ckpt(&[
            "convert", "views", "tied", "--map", "tied.map", "--allow", all,
        ]),
        dir.ckpt(&["convert", "views/pytorch_model.bin", "of-file"]),
        dir.ckpt(&["convert", "legacy.bin", "of-legacy"]),
        dir.ckpt(&["inspect", "sharded"]),
        dir.ckpt(&["bench", "sharded"]),
    ]);
    insta::assert_snapshot!(output);
}

/// Converting each fixture gives the tensors that PyTorch loads, also in groups of rows.
#[test]
fn conversions_equal_what_pytorch_loads() {
    let dir = TestDir::new();
    for name in ["dtypes", "views", "module", "sharded", "dcp"] {
        let source = fixtures().join(name);
        let source = source.to_str().unwrap();
        for (budget, made) in [
            ("2GiB", format!("{name}-all")),
            ("9KiB", format!("{name}-rows")),
        ] {
            let convert = [
                "convert",
                source,
                &made,
                "--budget",
                budget,
                "--threads",
                "1",
            ];
            let output = dir.ckpt(&convert);
            assert_eq!(output.code, 0, "{}", output.shown());
            let expected = models::read_file(&fixtures().join(name).join("expected.safetensors"));
            assert_eq!(models::read(&dir.path(&made)), expected, "{made}");
        }
    }
}

/// Ties are compared through views and chunks.
#[test]
fn ties_of_parts_are_compared() {
    let dir = TestDir::new();
    let source = fixtures().join("views");
    let source = source.to_str().unwrap();
    let convert = |to: &str, map: &str| {
        fs::write(dir.path("map"), map).unwrap();
        dir.ckpt(&[
            "convert",
            source,
            to,
            "--map",
            "map",
            "--allow",
            "unexpected",
        ])
    };
    let equal = convert("equal", "w = tied(matrix, tied)");
    assert_eq!(equal.code, 0, "{}", equal.shown());
    let different = convert("different", "w = tied(one_column, inner)");
    assert_eq!(different.code, 1, "{}", different.shown());
}

/// Links are errors that name the flag, which follows them. Links of the Hugging Face cache are
/// followed without it.
#[test]
fn links_need_a_flag() {
    let dir = TestDir::new();
    models::folder(&dir.path("real"), &models::qwen3());
    fs::write(dir.path("real/config.json"), "{}\n").unwrap();
    fs::create_dir(dir.path("linked")).unwrap();
    for name in ["model.safetensors", "config.json"] {
        symlink(dir.path("real").join(name), dir.path("linked").join(name)).unwrap();
    }
    copy(&dir, "sharded");
    let bin = "pytorch_model-00001-of-00002.bin";
    fs::rename(dir.path("sharded").join(bin), dir.path("moved.bin")).unwrap();
    symlink("../moved.bin", dir.path("sharded").join(bin)).unwrap();

    let shown = |output: crate::Output| {
        let absolute = dir.path("");
        let text = shown_without_times([output]);
        text.replace(absolute.to_str().unwrap(), "DIR/")
    };
    let convert = |from: &str, to: &str, more: &[&str]| {
        shown(dir.ckpt(&[&["convert", from, to], more].concat()))
    };
    insta::assert_snapshot!(
        [
            convert("linked", "refused", &[]),
            convert("linked", "followed", &["--follow-links"]),
            convert("sharded", "refused", &[]),
            convert("sharded", "of-sharded", &["--follow-links"]),
        ]
        .join("\n")
    );
    assert_eq!(models::read(&dir.path("followed")), models::qwen3());

    fs::write(dir.path("rows"), "{r:path} = x:0\n").unwrap();
    let layout = ["--mesh", "x=2", "--placements", "rows"];
    dir.ckpt(&[&["reshard", "real", "split"], &layout[..]].concat());
    fs::remove_file(dir.path("split/manifest.json")).unwrap();
    fs::rename(dir.path("split/rank-00001"), dir.path("moved")).unwrap();
    symlink("../moved", dir.path("split/rank-00001")).unwrap();
    let refused = dir.ckpt(&["reshard", "split", "merged", "--merge"]);
    assert_eq!(
        refused.stderr,
        "error: split/rank-00001 is a link: replace it with a copy, or follow links with --follow-links\n"
    );
    let followed = dir.ckpt(&["reshard", "split", "merged", "--merge", "--follow-links"]);
    assert_eq!(followed.code, 0, "{}", followed.shown());
    assert_eq!(models::read(&dir.path("merged")), models::qwen3());
}

fn metadata(path: &Path) -> Vec<(String, String)> {
    let file = TensorFile::open(path).unwrap();
    let all = file.metadata().iter();
    all.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// The metadata of files is kept by all conversions. A key with several values is reported.
#[test]
fn metadata_is_kept() {
    let dir = TestDir::new();
    let model =
        |name: &str| Model::from([(name.to_owned(), models::tensor(Dtype::F32, &[4, 2], 1))]);
    let pairs = [("format", "pt"), ("license", "mit")];
    models::file_with(&dir.path("one.safetensors"), &model("w"), &pairs);
    fs::write(dir.path("rows"), "w = x:0\n").unwrap();
    let run = |arguments: &[&str]| {
        let output = dir.ckpt(arguments);
        assert_eq!(output.code, 0, "{}", output.shown());
    };
    run(&["convert", "one.safetensors", "converted"]);
    run(&[
        "reshard",
        "converted",
        "split",
        "--mesh",
        "x=2",
        "--placements",
        "rows",
    ]);
    run(&[
        "reshard",
        "split",
        "again",
        "--mesh",
        "x=3",
        "--placements",
        "rows",
    ]);
    run(&["reshard", "again", "merged", "--merge"]);
    let expected = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
    for path in ["converted", "merged"] {
        assert_eq!(
            metadata(&dir.path(path).join("model.safetensors")),
            expected
        );
    }
    let split = metadata(&dir.path("again/rank-00002/model.safetensors"));
    assert_eq!(split[..2], expected);
    assert_eq!(split[2].0, "meshgrad.region");

    fs::create_dir(dir.path("several")).unwrap();
    let shard = |number: u64| format!("model-{number:05}-of-00002.safetensors");
    for (number, name, pairs) in [
        (1, "a", [("source", "first"), ("license", "mit")]),
        (2, "b", [("source", "second"), ("only", "here")]),
    ] {
        models::file_with(
            &dir.path("several").join(shard(number)),
            &model(name),
            &pairs,
        );
    }
    let index = format!(
        "{{\"weight_map\": {{\"a\": \"{}\", \"b\": \"{}\"}}}}",
        shard(1),
        shard(2)
    );
    fs::write(dir.path("several/model.safetensors.index.json"), index).unwrap();
    let output = dir.ckpt(&["convert", "several", "one"]);
    insta::assert_snapshot!(shown_without_times([output]));
    let expected = [("format", "pt"), ("license", "mit"), ("only", "here")];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(metadata(&dir.path("one/model.safetensors")), expected);
}
