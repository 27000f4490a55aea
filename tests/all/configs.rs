//! The configurations in `configs/` run, and `meshgrad config` prints them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use meshgrad::autograd::Module;
use meshgrad::train::config::Config;
use meshgrad::train::decoder;

use crate::test_dir::{MESHGRAD, Output};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn configurations() -> Vec<PathBuf> {
    let folder = fs::read_dir(root().join("configs")).unwrap();
    let paths = folder.map(|entry| entry.unwrap().path());
    let is_toml = |path: &PathBuf| path.extension().is_some_and(|it| it == "toml");
    let mut found: Vec<PathBuf> = paths.filter(is_toml).collect();
    found.sort();
    assert!(found.len() >= 5, "{found:?}");
    found
}

/// Runs the program in the root of the repository, which must succeed, and returns its output.
fn meshgrad(arguments: &[&str]) -> String {
    Output::of(Command::new(MESHGRAD).args(arguments).current_dir(root())).success()
}

/// Every file is valid, describes a model that can be built, is explained in the README, and is
/// printed by `meshgrad config` as the same configuration.
#[test]
fn every_configuration_is_valid() {
    let readme = fs::read_to_string(root().join("configs/README.md")).unwrap();
    for path in configurations() {
        let name = path.display();
        let config = Config::read::<decoder::Tables>(Some(&path), &[]).unwrap();
        let model = decoder::model(&config, 300, None).unwrap();
        assert!(!model.params().is_empty(), "{name}");

        let file = path.file_name().unwrap().to_str().unwrap();
        assert!(readme.contains(&format!("| `{file}` |")), "{name}");

        let printed = meshgrad(&["config", path.to_str().unwrap()]);
        let read = Config::parse::<decoder::Tables>(&printed, "printed", &[]).unwrap();
        assert_eq!(read, config, "{name}");
    }
}

#[test]
fn the_smallest_configurations_train() {
    let place = tempfile::tempdir().unwrap();
    for (file, steps) in [("tiny.toml", 100), ("chat.toml", 150)] {
        let run = place.path().join(file);
        let (config, run) = (format!("configs/{file}"), run.to_str().unwrap());
        let train = ["train", &config, "--device", "cpu", "--run-dir", run];
        let output = meshgrad(&[&train[..], &["--stop-after", "3"]].concat());
        assert!(output.contains(&format!("step   1/{steps}")), "{output}");
        assert!(Path::new(run).join("step-000003/manifest.json").exists());
    }
}
