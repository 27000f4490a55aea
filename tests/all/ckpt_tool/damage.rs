//! Damage to files that a manifest lists: every command that reads such a file reports the damage,
//! and no command writes a new manifest for it.

use std::fs;
use std::path::Path;

use crate::ckpt_tool::models;
use crate::ckpt_tool::shown_without_times;
use crate::on_disk::{files, flip};
use crate::test_dir::TestDir;

const MAP: &str = "{r:path} = {r:path}";
const PLACEMENTS: &str = "{r:path}.weight = tp:0\n";

/// A run with one checkpoint.
fn dir() -> TestDir {
    let dir = TestDir::new();
    models::checkpoint(&dir.path("run"), 1, &models::qwen3());
    fs::write(dir.path("all.map"), MAP).unwrap();
    fs::write(dir.path("placements"), PLACEMENTS).unwrap();
    dir
}

/// No command that copies data accepts a changed byte.
#[test]
fn damage_gets_no_new_manifest() {
    let dir = dir();
    let model = dir.path("run/step-000001/model.safetensors");
    flip(&model, fs::metadata(&model).unwrap().len() as usize - 5, 3);
    let before = dir.names("");
    let layout = ["--mesh", "tp=2", "--placements", "placements"];
    let outputs = [
        dir.ckpt(&["convert", "run", "out", "--map", "all.map"]),
        dir.ckpt(&["convert", "run/step-000001", "out", "--map", "all.map"]),
        dir.ckpt(&["convert", "run/step-000001/model.safetensors", "out", "--map", "all.map"]),
        dir.ckpt(&[&["reshard", "run", "out"], &layout[..]].concat()),
    ];
    assert!(outputs.iter().all(|output| output.code == 1));
    assert_eq!(dir.names(""), before);
    insta::assert_snapshot!(shown_without_times(outputs));

    // Without the manifest, damage cannot be detected.
    fs::remove_file(dir.path("run/step-000001/manifest.json")).unwrap();
    let output = dir.ckpt(&["convert", "run/step-000001", "out", "--map", "all.map"]);
    assert_eq!(output.code, 0, "{}", output.shown());
}

/// Configurations are compared too. A file that was added is copied.
#[test]
fn changed_configurations_are_damage() {
    let dir = dir();
    let convert =
        |source: &str, made: &str| dir.ckpt(&["convert", source, made, "--map", "all.map"]);
    fs::remove_file(dir.path("run/step-000001/manifest.json")).unwrap();
    fs::write(dir.path("run/step-000001/config.json"), "{\"a\": 1}\n").unwrap();
    assert_eq!(convert("run/step-000001", "made").code, 0);
    fs::write(dir.path("made/modeling.py"), "pass\n").unwrap();
    let added = convert("made", "again");
    assert_eq!(added.code, 0, "{}", added.shown());
    assert!(dir.path("again/modeling.py").exists());

    flip(&dir.path("made/config.json"), 3, 0);
    let changed = convert("made", "third");
    fs::write(dir.path("made/config.json"), "{}\n").unwrap();
    let other_size = convert("made", "third");
    insta::assert_snapshot!(shown_without_times([changed, other_size]));
    assert!(!dir.path("third").exists());
}

/// A merge compares files with the manifest or, without one, replicas with each other.
#[test]
fn merging_detects_damage() {
    let dir = dir();
    let layout = ["--mesh", "dp=2,tp=2", "--placements", "placements"];
    let output = dir.ckpt(&[&["reshard", "run", "split"], &layout[..]].concat());
    assert_eq!(output.code, 0, "{}", output.shown());
    let merge = || dir.ckpt(&["reshard", "split", "merged", "--merge"]);
    let file = dir.path("split/rank-00002/model.safetensors");
    flip(&file, fs::metadata(&file).unwrap().len() as usize - 2, 0);
    let sealed = merge();
    fs::remove_file(dir.path("split/manifest.json")).unwrap();
    let replicas = merge();
    assert!(!dir.path("merged").exists());
    fs::copy(dir.path("split/rank-00000/model.safetensors"), &file).unwrap();
    let repaired = merge();
    insta::assert_snapshot!(shown_without_times([sealed, replicas, repaired]));
}

/// Pseudorandom numbers.
fn number(seed: u64) -> u64 {
    let mixed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
}

/// Runs the commands on damaged files: `verify --deep` must find all damage, and a conversion must
/// refuse all damage in a file that it reads.
fn expect_damage(dir: &TestDir, file: &Path, what: &str) {
    let what = format!("{what} of {}", file.display());
    let verify = dir.ckpt(&["verify", "run", "--deep"]);
    assert_eq!(verify.code, 1, "{what}: {}", verify.shown());
    if !file.components().any(|it| it.as_os_str() == "trainer") {
        let convert = dir.ckpt(&["convert", "run/step-000001", "out", "--map", "all.map"]);
        assert_eq!(convert.code, 1, "{what}: {}", convert.shown());
        assert!(!dir.path("out").exists(), "{what}");
    }
}

/// Each of 200 flipped bits at random places of a checkpoint is detected.
#[test]
fn flipped_bits_are_detected() {
    let dir = dir();
    let checkpoint = dir.path("run/step-000001");
    let (files, contents): (Vec<_>, Vec<_>) = files(&checkpoint).into_iter().unzip();
    let sizes: Vec<u64> = contents.iter().map(|it| it.len() as u64).collect();
    for seed in 0..200 {
        // Every second flip is in a random file, so that small ones are hit too.
        let file = (number(3 * seed) % files.len() as u64) as usize;
        let largest = (0..files.len()).max_by_key(|at| sizes[*at]).unwrap();
        let file = if seed % 2 == 0 { largest } else { file };
        let (path, bit) = (checkpoint.join(&files[file]), (number(3 * seed + 1) % 8) as u32);
        let at = (number(3 * seed + 2) % sizes[file]) as usize;
        flip(&path, at, bit);
        expect_damage(&dir, &path, &format!("bit {bit} of byte {at}"));
        flip(&path, at, bit);
    }
    let intact = dir.ckpt(&["verify", "run", "--deep"]);
    assert_eq!(intact.code, 0, "{}", intact.shown());
}

/// Truncating any file to nothing, by half or by a byte, and removing it, is detected.
#[test]
fn truncated_files_are_detected() {
    let dir = dir();
    let checkpoint = dir.path("run/step-000001");
    for (name, bytes) in files(&checkpoint) {
        let path = checkpoint.join(name);
        for length in [0, bytes.len() / 2, bytes.len() - 1] {
            fs::write(&path, &bytes[..length]).unwrap();
            expect_damage(&dir, &path, &format!("truncation to {length}"));
        }
        // Without its manifest a folder is not a checkpoint, so nothing can be verified.
        if path.file_name().unwrap() != "manifest.json" {
            fs::remove_file(&path).unwrap();
            expect_damage(&dir, &path, "removal");
        }
        fs::write(&path, &bytes).unwrap();
    }
    let intact = dir.ckpt(&["verify", "run", "--deep"]);
    assert_eq!(intact.code, 0, "{}", intact.shown());
}
