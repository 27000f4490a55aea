//! Models that PyTorch wrote as sources, links in folders, and the metadata of files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use meshgrad::ckpt::{Dtype, TensorFile};

use crate::ckpt_tool::models::{self, Model};
use crate::ckpt_tool::shown_without_times;
use crate::test_dir::{Output, TestDir};
use crate::zips::{Style, zip};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ckpt/tests/all/torch/fixtures")
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
    for name in ["views", "sharded", "dcp", "nested", "expanded"] {
        copy(&dir, name);
    }
    let complex = fixtures().join("wrong/complex128.bin");
    fs::copy(complex, dir.path("complex128.bin")).unwrap();
    let legacy = fixtures().join("wrong/legacy.bin");
    fs::copy(legacy, dir.path("legacy.bin")).unwrap();
    fs::write(dir.path("tp"), "{r:path}.weight = tp:0\n").unwrap();
    fs::write(dir.path("tied.map"), "w = tied(matrix, tied)\nx = transposed").unwrap();
    let all = "unexpected";
    let output = shown_without_times([
        dir.ckpt(&["convert", "dcp", "of-dcp"]),
        dir.ckpt(&["convert", "sharded", "of-sharded"]),
        dir.ckpt(&["reshard", "sharded", "split", "--mesh", "tp=2", "--placements", "tp"]),
        dir.ckpt(&["plan", "dcp", "--threads", "1"]),
        dir.ckpt(&["convert", "views", "tied", "--map", "tied.map", "--allow", all]),
        dir.ckpt(&["convert", "views/pytorch_model.bin", "of-file"]),
        dir.ckpt(&["convert", "legacy.bin", "of-legacy"]),
        dir.ckpt(&["inspect", "sharded", "--stats"]),
        dir.ckpt(&["inspect", "nested"]),
        dir.ckpt(&["inspect", "dcp"]),
        dir.ckpt(&["inspect", "complex128.bin"]),
        dir.ckpt(&["diff", "views", "expanded"]),
    ]);
    insta::assert_snapshot!(output);
}

/// The path of a safetensors file with the tensors that PyTorch loads from the fixture `name`.
fn expected(name: &str) -> String {
    let path = fixtures().join(name).join("expected.safetensors");
    path.to_str().unwrap().to_owned()
}

/// `inspect` and `diff` read the tensors that PyTorch loads, in any budget: the same statistics,
/// and no difference in any element. A changed element is a difference.
#[test]
fn listings_and_values_equal_what_pytorch_loads() {
    let dir = TestDir::new();
    for name in ["dtypes", "views", "module", "sharded", "dcp", "nested", "expanded"] {
        copy(&dir, name);
        let expected = expected(name);
        for budget in ["192KiB", "64MiB"] {
            let diff = ["diff", name, &expected, "--values", "--budget", budget];
            let output = dir.ckpt(&diff);
            assert_eq!(output.code, 0, "{}", output.shown());

            let tensors = |path: &str| {
                let inspect = ["inspect", path, "--stats", "--json", "--budget", budget];
                let output = dir.ckpt(&inspect);
                assert_eq!(output.code, 0, "{}", output.shown());
                output.json()["tensors"].take()
            };
            assert_eq!(tensors(name), tensors(&expected), "{name}");
        }
    }

    let path = dir.path("sharded/pytorch_model-00002-of-00002.bin");
    let mut bytes = fs::read(&path).unwrap();
    // Change the bias 3.0.
    let three = 3f32.to_le_bytes();
    let at = bytes.windows(4).rposition(|it| it == three).unwrap();
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let output = dir.ckpt(&["diff", "sharded", &expected("sharded"), "--values"]);
    assert_eq!(output.code, 1);
    assert!(output.stdout.contains("d.bias"), "{}", output.shown());

    let output = dir.ckpt(&["verify", "sharded"]);
    assert_eq!(output.code, 0, "{}", output.shown());
    let output = dir.ckpt(&["verify", "sharded", "--deep"]);
    assert_eq!(output.code, 1, "{}", output.shown());
    assert!(output.stdout.contains("it stores `d.bias`"), "{}", output.shown());
}

/// A range of a large tensor is read through views and chunks as through one file.
#[test]
fn segments_of_views_are_read_in_any_budget() {
    let dir = TestDir::new();
    copy(&dir, "views");
    let stats = |budget: &str| {
        let inspect = ["inspect", "views", "--stats", "--json", "--budget", budget];
        dir.ckpt(&[&inspect[..], &["--threads", "3"]].concat()).json()
    };
    assert_eq!(stats("128KiB"), stats("1GiB"));
}

/// `verify` compares sizes and structure; with `--deep`, also the CRC-32 of zip entries. It reports
/// what has no checksum.
#[test]
fn verify_says_what_it_cannot_check() {
    let dir = TestDir::new();
    for name in ["sharded", "dcp", "without-crc"] {
        copy(&dir, name);
    }
    copy(&dir, "nested");
    let path = dir.path("nested/pytorch_model.bin");
    let bytes = fs::read(&path).unwrap();
    let verify = |path: &str| dir.ckpt(&["verify", path, "--deep"]);
    let intact = verify("nested");
    fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
    let truncated = dir.ckpt(&["verify", "nested"]);
    let whole_module = fixtures().join("wrong/whole-module.bin");
    fs::copy(whole_module, dir.path("module.bin")).unwrap();
    let output = crate::ckpt_tool::shown([
        dir.ckpt(&["verify", "sharded"]),
        verify("sharded"),
        verify("dcp"),
        verify("without-crc"),
        intact,
        truncated,
        verify("module.bin"),
    ]);
    insta::assert_snapshot!(output);

    let json = dir.ckpt(&["verify", "dcp", "--deep", "--json"]).json();
    assert_eq!(json["status"], "ok");
    assert!(json["checked"][0]["checksums"].as_u64().unwrap() > 50);
}

/// `verify` tells damage (exit code 1) from sound files that are not supported (exit code 2).
#[test]
fn sound_files_are_not_called_damaged() {
    let dir = TestDir::new();
    copy(&dir, "nested");
    let bytes = fs::read(dir.path("nested/pytorch_model.bin")).unwrap();
    let pickle = bytes.windows(8).position(|it| it == b"data.pkl").unwrap();
    let mut flipped = bytes.clone();
    flipped[pickle + 100] ^= 1;
    fs::write(dir.path("flipped.bin"), flipped).unwrap();
    fs::write(dir.path("truncated.bin"), &bytes[..bytes.len() - 9]).unwrap();
    for name in ["legacy.bin", "overlapping.bin", "no-tensors.bin"] {
        fs::copy(fixtures().join("wrong").join(name), dir.path(name)).unwrap();
    }
    let list: &[(&str, &[u8])] = &[("a/data.pkl", b"\x80\x02].")];
    fs::write(dir.path("list.bin"), zip(list, Style::default())).unwrap();
    let names = [
        "flipped.bin",
        "truncated.bin",
        "legacy.bin",
        "overlapping.bin",
        "no-tensors.bin",
        "list.bin",
    ];
    insta::assert_snapshot!(crate::ckpt_tool::shown(names.map(|name| dir.ckpt(&["verify", name]))));
    let json = dir.ckpt(&["verify", "list.bin", "--json"]).json();
    assert_eq!(json["status"], "unsupported");
}

/// A model of PyTorch in the folder of a run, or beside other safetensors files, is read alone. A
/// warning names the files that are not read.
#[test]
fn safetensors_files_beside_a_model_are_named() {
    let dir = TestDir::new();
    copy(&dir, "views");
    models::checkpoint(&dir.path("views"), 7, &models::qwen3());
    models::file_with(&dir.path("views/adapter.safetensors"), &models::qwen3(), &[]);
    let expected = "warning: views also contains files that do not belong to the model: \
                    `adapter.safetensors`, `step-000007/model.safetensors`; pass their own paths \
                    to read them\n";
    for command in
        [&["inspect", "views"][..], &["convert", "views", "of-views"], &["plan", "views"]]
    {
        let output = dir.ckpt(command);
        assert_eq!(output.code, 0, "{}", output.shown());
        assert_eq!(output.stderr, expected, "{}", output.shown());
    }
}

/// `bench` times loads of the assembled tensors, resident and streamed, and also saves.
#[test]
fn loads_are_timed() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("disk")).unwrap();
    for (name, tensors) in [("views", 15), ("dcp", 6)] {
        copy(&dir, name);
        let bench = ["bench", name, "--samples", "1", "--threads", "1", "--write", "disk"];
        let output = dir.ckpt(&[&bench[..], &["--json"]].concat());
        assert_eq!(output.code, 0, "{}", output.shown());
        let report = output.json();
        assert_eq!(report["source"]["tensors"], tensors);
        assert_eq!(dir.names("disk"), [""; 0]);
    }
}

/// Converting each fixture gives the tensors that PyTorch loads, even if it converts groups of
/// rows.
#[test]
fn conversions_equal_what_pytorch_loads() {
    let dir = TestDir::new();
    for name in ["dtypes", "views", "module", "sharded", "dcp"] {
        let source = fixtures().join(name);
        let source = source.to_str().unwrap();
        for (budget, made) in [("2GiB", format!("{name}-all")), ("9KiB", format!("{name}-rows"))] {
            let convert = ["convert", source, &made, "--budget", budget, "--threads", "1"];
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
        dir.ckpt(&["convert", source, to, "--map", "map", "--allow", "unexpected"])
    };
    let equal = convert("equal", "w = tied(matrix, tied)");
    assert_eq!(equal.code, 0, "{}", equal.shown());
    let different = convert("different", "w = tied(one_column, inner)");
    assert_eq!(different.code, 1, "{}", different.shown());
}

/// A link is an error that names the flag `--follow-links`, which every command that reads a folder
/// has. Links of the Hugging Face cache are followed without the flag.
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

    let shown = |output: Output| {
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
    for folder in ["linked", "sharded"] {
        for (command, refused_code) in [
            (&["inspect", folder][..], 1),
            (&["diff", folder, folder], 2),
            (&["verify", folder, "--deep"], 2),
            (&["plan", folder], 1),
            (&["bench", folder, "--samples", "1"], 1),
        ] {
            let refused = dir.ckpt(command);
            assert_eq!(refused.code, refused_code, "{}", refused.shown());
            assert!(refused.stderr.contains("pass --follow-links"), "{}", refused.shown());
            let followed = dir.ckpt(&[command, &["--follow-links"]].concat());
            assert_eq!(followed.code, 0, "{}", followed.shown());
        }
    }

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
    all.map(|(key, value)| (key.clone(), value.clone())).collect()
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
    run(&["reshard", "converted", "split", "--mesh", "x=2", "--placements", "rows"]);
    run(&["reshard", "split", "again", "--mesh", "x=3", "--placements", "rows"]);
    run(&["reshard", "again", "merged", "--merge"]);
    let expected = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
    for path in ["converted", "merged"] {
        assert_eq!(metadata(&dir.path(path).join("model.safetensors")), expected);
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
        models::file_with(&dir.path("several").join(shard(number)), &model(name), &pairs);
    }
    let index = format!("{{\"weight_map\": {{\"a\": \"{}\", \"b\": \"{}\"}}}}", shard(1), shard(2));
    fs::write(dir.path("several/model.safetensors.index.json"), index).unwrap();
    let output = dir.ckpt(&["convert", "several", "one"]);
    insta::assert_snapshot!(shown_without_times([output]));
    let expected = [("format", "pt"), ("license", "mit"), ("only", "here")];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(metadata(&dir.path("one/model.safetensors")), expected);
}
