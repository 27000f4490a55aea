//! The crates that compute, save and describe models do not use parallel configurations.

use std::fs;
use std::path::{Path, PathBuf};

const CRATES: [&str; 5] = ["runtime", "autograd", "models", "kernels", "ckpt"];
const TYPES: [&str; 2] = ["ParallelConfig", "ParallelState"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.file_name().is_some_and(|name| name == "target") => {}
            true => files(&path, ending, found),
            false if path.extension().is_some_and(|it| it == ending) => found.push(path),
            false => {}
        }
    }
}

#[test]
fn ops_and_models_do_not_mention_configurations() {
    for name in CRATES {
        let mut sources = Vec::new();
        files(&root().join(name), "rs", &mut sources);
        assert!(!sources.is_empty(), "{name}");
        for source in sources {
            let text = fs::read_to_string(&source).unwrap();
            for kind in TYPES {
                assert!(!text.contains(kind), "{} mentions {kind}", source.display());
            }
        }
    }
}

#[test]
fn ops_and_models_do_not_depend_on_dist() {
    for name in CRATES {
        let manifest = fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        for (section, dependencies) in
            manifest.iter().filter(|(key, _)| key.contains("dependencies"))
        {
            let dependencies = dependencies.as_table().unwrap();
            assert!(!dependencies.contains_key("meshgrad-dist"), "{section} of {name}");
        }
        let toml::Value::Table(package) = &manifest["package"] else { panic!("{name}") };
        assert!(package["name"].as_str().unwrap().starts_with("meshgrad"), "{name}");
    }
}

#[test]
fn the_mesh_depends_on_no_meshgrad_crate_but_the_error() {
    let manifest = fs::read_to_string(root().join("dist/mesh/Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let dependencies = manifest["dependencies"].as_table().unwrap();
    let mut ours = dependencies.keys().filter(|name| name.starts_with("meshgrad"));
    assert!(ours.all(|name| name == "meshgrad-error"));
}
