//! A single safetensors file of any name in place of a folder.

use std::fs;

use crate::ckpt_tool::models;
use crate::ckpt_tool::shown_without_times;
use crate::test_dir::TestDir;

const PLACEMENTS: &str = "{rest:path} = x:0\n";
const MAP: &str = "renamed.{r:path} = model.{r:path}\nlm_head.weight = lm_head.weight\n";

/// The same tensors in a folder and in a file with other files next to it.
fn dir() -> TestDir {
    let dir = TestDir::new();
    models::folder(&dir.path("folder"), &models::qwen3());
    models::file(&dir.path("weights.safetensors"), &models::qwen3());
    fs::write(dir.path("config.json"), "{}\n").unwrap();
    fs::write(dir.path("tokenizer.json"), "{}\n").unwrap();
    fs::write(dir.path("renamed.map"), MAP).unwrap();
    fs::write(dir.path("rows"), PLACEMENTS).unwrap();
    dir
}

#[test]
fn output() {
    let dir = dir();
    fs::write(dir.path("cut.safetensors"), "not much").unwrap();
    let file = "weights.safetensors";
    let layout = ["--mesh", "x=2", "--placements", "rows"];
    insta::assert_snapshot!(shown_without_times([
        dir.ckpt(&["plan", file, "--threads", "1"]),
        dir.ckpt(&["convert", file, "out", "--map", "renamed.map"]),
        dir.ckpt(&[&["reshard", file, "split"], &layout[..]].concat()),
        dir.ckpt(&["export", file, "--hf", "hub"]),
        dir.ckpt(&["plan", "cut.safetensors"]),
        dir.ckpt(&["plan", "rows"]),
        dir.ckpt(&["reshard", file, "merged", "--merge"]),
    ]));
}

/// A file converts like a folder with the same tensors, and files next to it are not copied.
#[test]
fn a_file_converts_like_a_folder() {
    let dir = dir();
    let sources = [("folder", "of-folder"), ("weights.safetensors", "of-file")];
    for (source, made) in sources {
        let convert = ["convert", source, made, "--map", "renamed.map"];
        let output = dir.ckpt(&convert);
        assert_eq!(output.code, 0, "{}", output.shown());

        let split = format!("{made}-split");
        let layout = ["--mesh", "x=3", "--placements", "rows"];
        let output = dir.ckpt(&[&["reshard", source, &split], &layout[..]].concat());
        assert_eq!(output.code, 0, "{}", output.shown());
    }
    let read = |name: &str| models::read(&dir.path(name));
    assert_eq!(read("of-file"), read("of-folder"));
    assert_eq!(dir.names("of-file"), ["manifest.json", "model.safetensors"]);
    assert_eq!(dir.names("of-file-split"), dir.names("of-folder-split"));
    for rank in 0..3 {
        let file = format!("rank-{rank:05}/model.safetensors");
        let [one, other] = ["of-file-split", "of-folder-split"]
            .map(|split| fs::read(dir.path(split).join(&file)).unwrap());
        assert!(one == other, "{file}");
    }
}

/// A link on the command line is followed.
#[test]
fn links_on_the_command_line_are_followed() {
    let dir = dir();
    std::os::unix::fs::symlink("weights.safetensors", dir.path("linked")).unwrap();
    let bytes = |source: &str| {
        let report = dir.ckpt(&["plan", source, "--json"]).json();
        report["ranks"][0]["needed_bytes"].clone()
    };
    assert_eq!(bytes("linked"), bytes("weights.safetensors"));
    assert_eq!(bytes("linked"), bytes("folder"));
}
