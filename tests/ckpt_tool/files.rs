//! A single safetensors file, of any name, where a folder is taken.

use std::fs;

use crate::models;
use crate::{Workplace, shown_without_times};

const PLACES: &str = "{rest:path} = x:0\n";
const MAP: &str = "renamed.{r:path} = model.{r:path}\nlm_head.weight = lm_head.weight\n";

/// The same tensors in a folder and in a file that lies among others.
fn place() -> Workplace {
    let place = Workplace::new();
    models::folder(&place.path("folder"), &models::qwen3());
    models::file(&place.path("weights.safetensors"), &models::qwen3());
    fs::write(place.path("config.json"), "{}\n").unwrap();
    fs::write(place.path("tokenizer.json"), "{}\n").unwrap();
    fs::write(place.path("renamed.map"), MAP).unwrap();
    fs::write(place.path("rows"), PLACES).unwrap();
    place
}

#[test]
fn what_it_says() {
    let place = place();
    fs::write(place.path("cut.safetensors"), "not much").unwrap();
    let file = "weights.safetensors";
    let layout = ["--mesh", "x=2", "--places", "rows"];
    insta::assert_snapshot!(shown_without_times([
        place.ckpt(&["plan", file, "--threads", "1"]),
        place.ckpt(&["convert", file, "out", "--map", "renamed.map"]),
        place.ckpt(&[&["reshard", file, "split"], &layout[..]].concat()),
        place.ckpt(&["export", file, "--hf", "hub"]),
        place.ckpt(&["plan", "cut.safetensors"]),
        place.ckpt(&["plan", "rows"]),
        place.ckpt(&["reshard", file, "merged", "--merge"]),
    ]));
}

/// What is made of a file is what is made of a folder with the same tensors, and nothing that
/// happens to lie beside the file comes with it.
#[test]
fn a_file_is_a_folder_of_its_tensors() {
    let place = place();
    let sources = [("folder", "of-folder"), ("weights.safetensors", "of-file")];
    for (source, made) in sources {
        let convert = ["convert", source, made, "--map", "renamed.map"];
        let said = place.ckpt(&convert);
        assert_eq!(said.code, 0, "{}", said.shown());

        let split = format!("{made}-split");
        let layout = ["--mesh", "x=3", "--places", "rows"];
        let said = place.ckpt(&[&["reshard", source, &split], &layout[..]].concat());
        assert_eq!(said.code, 0, "{}", said.shown());
    }
    let read = |name: &str| models::read(&place.path(name));
    assert_eq!(read("of-file"), read("of-folder"));
    assert_eq!(
        place.names("of-file"),
        ["manifest.json", "model.safetensors"]
    );
    assert_eq!(place.names("of-file-split"), place.names("of-folder-split"));
    for rank in 0..3 {
        let file = format!("rank-{rank:05}/model.safetensors");
        let [one, other] = ["of-file-split", "of-folder-split"]
            .map(|split| fs::read(place.path(split).join(&file)).unwrap());
        assert!(one == other, "{file}");
    }
}

/// A link to a file is followed: it is the user who named it.
#[test]
fn links_that_the_user_named_are_followed() {
    let place = place();
    std::os::unix::fs::symlink("weights.safetensors", place.path("linked")).unwrap();
    let bytes = |source: &str| {
        let report = place.ckpt(&["plan", source, "--json"]).json();
        report["ranks"][0]["needed_bytes"].clone()
    };
    assert_eq!(bytes("linked"), bytes("weights.safetensors"));
    assert_eq!(bytes("linked"), bytes("folder"));
}
