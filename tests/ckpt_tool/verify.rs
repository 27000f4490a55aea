//! `verify`: damage is found, by sizes at once and by digests on request.

use std::fs;
use std::path::Path;

use crate::models;
use crate::{Workplace, shown};

type Damage = fn(&Path);

/// Changes one byte of a file.
fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn truncate(path: &Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
}

#[test]
fn what_it_says() {
    let place = Workplace::new();
    let model = models::mixture();
    for step in [100, 200, 300] {
        models::checkpoint(&place.path("run"), step, &model);
        models::checkpoint(&place.path("bad"), step, &model);
    }
    models::shards(&place.path("model"), &model);

    flip(&place.path("bad/step-000100/trainer/state.json"), 0);
    truncate(&place.path("bad/step-000200/model.safetensors"));
    models::checkpoint(&place.path("bad"), 400, &model);
    fs::remove_file(place.path("bad/step-000400/trainer/state.json")).unwrap();
    fs::remove_file(place.path("bad/step-000300/manifest.json")).unwrap();

    let said = shown([
        place.ckpt(&["verify", "run"]),
        place.ckpt(&["verify", "run", "--deep"]),
        place.ckpt(&["verify", "run/step-000200"]),
        place.ckpt(&["verify", "model", "--deep"]),
        place.ckpt(&["verify", "bad"]),
        place.ckpt(&["verify", "bad", "--deep"]),
        place.ckpt(&["verify", "bad/step-000200", "--json"]),
    ]);
    insta::assert_snapshot!(said);
}

/// Whatever byte of whatever file is changed: a deep check finds it.
#[test]
fn every_flipped_byte_is_found() {
    let place = Workplace::new();
    models::checkpoint(&place.path("run"), 1, &models::mixture());
    assert_eq!(place.ckpt(&["verify", "run", "--deep"]).code, 0);

    let files = [
        "model.safetensors",
        "trainer/exp_avg/model.safetensors",
        "trainer/state.json",
        "manifest.json",
    ];
    for file in files {
        let path = place.path("run/step-000001").join(file);
        let len = fs::metadata(&path).unwrap().len() as usize;
        for at in [0, len / 3, len / 2, len - 1] {
            flip(&path, at);
            let said = place.ckpt(&["verify", "run", "--deep"]);
            // The manifest ends with a line break that may as well be another space.
            let harmless =
                file == "manifest.json" && fs::read(&path).unwrap()[at].is_ascii_whitespace();
            assert_eq!(
                said.code,
                i32::from(!harmless),
                "{file} {at}: {}",
                said.shown()
            );
            flip(&path, at);
        }
    }
    assert_eq!(place.ckpt(&["verify", "run", "--deep"]).code, 0);
}

/// Without a manifest headers and index must be right at least.
#[test]
fn damage_of_other_folders_is_found_where_it_can_be() {
    let place = Workplace::new();
    let damages: [(&str, &str, Damage); 4] = [
        ("truncated", "model-00001-of-00004.safetensors", truncate),
        ("header", "model-00001-of-00004.safetensors", |file| {
            flip(file, 8)
        }),
        ("shard", "model-00002-of-00004.safetensors", |file| {
            fs::remove_file(file).unwrap()
        }),
        ("index", "model.safetensors.index.json", |file| {
            flip(file, 0)
        }),
    ];
    for (name, file, damage) in damages {
        let model = place.path(name);
        models::shards(&model, &models::mixture());
        assert_eq!(place.ckpt(&["verify", name]).code, 0);
        damage(&model.join(file));
        let said = place.ckpt(&["verify", name]);
        assert_eq!(said.code, 1, "{}", said.shown());
        assert!(said.stdout.contains("DAMAGED"), "{}", said.shown());
    }
}
