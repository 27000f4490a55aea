//! `verify`: detects damage by file sizes, and with `--deep` by digests.

use std::fs;
use std::path::Path;

use crate::ckpt_tool::models;
use crate::ckpt_tool::shown;
use crate::on_disk::flip;
use crate::test_dir::TestDir;

type Damage = fn(&Path);

fn truncate(path: &Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
}

#[test]
fn output() {
    let dir = TestDir::new();
    let model = models::mixture();
    for step in [100, 200, 300] {
        models::checkpoint(&dir.path("run"), step, &model);
        models::checkpoint(&dir.path("bad"), step, &model);
    }
    models::shards(&dir.path("model"), &model);

    flip(&dir.path("bad/step-000100/trainer/state.json"), 0, 0);
    truncate(&dir.path("bad/step-000200/model.safetensors"));
    models::checkpoint(&dir.path("bad"), 400, &model);
    fs::remove_file(dir.path("bad/step-000400/trainer/state.json")).unwrap();
    fs::remove_file(dir.path("bad/step-000300/manifest.json")).unwrap();

    let output = shown([
        dir.ckpt(&["verify", "run"]),
        dir.ckpt(&["verify", "run", "--deep"]),
        dir.ckpt(&["verify", "run/step-000200"]),
        dir.ckpt(&["verify", "model", "--deep"]),
        dir.ckpt(&["verify", "bad"]),
        dir.ckpt(&["verify", "bad", "--deep"]),
        dir.ckpt(&["verify", "bad/step-000200", "--json"]),
    ]);
    insta::assert_snapshot!(output);
}

/// A deep check detects a change of any byte in any file.
#[test]
fn every_changed_byte_is_detected() {
    let dir = TestDir::new();
    models::checkpoint(&dir.path("run"), 1, &models::mixture());
    assert_eq!(dir.ckpt(&["verify", "run", "--deep"]).code, 0);

    let files = [
        "model.safetensors",
        "trainer/exp_avg/model.safetensors",
        "trainer/state.json",
        "manifest.json",
    ];
    for file in files {
        let path = dir.path("run/step-000001").join(file);
        let len = fs::metadata(&path).unwrap().len() as usize;
        for at in [0, len / 3, len / 2, len - 1] {
            flip(&path, at, 0);
            let output = dir.ckpt(&["verify", "run", "--deep"]);
            // The final line break of the manifest is not significant.
            let harmless =
                file == "manifest.json" && fs::read(&path).unwrap()[at].is_ascii_whitespace();
            assert_eq!(output.code, i32::from(!harmless), "{file} {at}: {}", output.shown());
            flip(&path, at, 0);
        }
    }
    assert_eq!(dir.ckpt(&["verify", "run", "--deep"]).code, 0);
}

/// Without a manifest, damage of headers and index is detected.
#[test]
fn damaged_headers_and_indexes_are_detected_without_a_manifest() {
    let dir = TestDir::new();
    let damages: [(&str, &str, Damage); 4] = [
        ("truncated", "model-00001-of-00004.safetensors", truncate),
        ("header", "model-00001-of-00004.safetensors", |file| flip(file, 8, 0)),
        ("shard", "model-00002-of-00004.safetensors", |file| fs::remove_file(file).unwrap()),
        ("index", "model.safetensors.index.json", |file| flip(file, 0, 0)),
    ];
    for (name, file, damage) in damages {
        let model = dir.path(name);
        models::shards(&model, &models::mixture());
        assert_eq!(dir.ckpt(&["verify", name]).code, 0);
        damage(&model.join(file));
        let output = dir.ckpt(&["verify", name]);
        assert_eq!(output.code, 1, "{}", output.shown());
        assert!(output.stdout.contains("DAMAGED"), "{}", output.shown());
    }
}
