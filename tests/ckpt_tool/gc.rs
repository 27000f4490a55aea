//! `gc`: removes what it says, and nothing that is not ours.

use std::fs;

use meshgrad::ckpt::Staging;
use serde_json::Value;

use crate::models;
use crate::{Workplace, shown};

/// A run with five checkpoints, leftovers, and what belongs to others.
fn run(place: &Workplace) {
    let run = place.path("run");
    for step in [1, 2, 3, 10, 20] {
        models::checkpoint(&run, step, &models::mixture());
    }
    fs::remove_file(run.join("step-000010/manifest.json")).unwrap();
    for (folder, bytes) in [
        (".step-000030.tmp-0123456789abcdef", 2000),
        (".step-000000.trash-0123456789abcdef", 3000),
        (".step-000031.tmp-of-mine", 10),
        ("step-4", 10),
        ("notes", 10),
    ] {
        fs::create_dir(run.join(folder)).unwrap();
        fs::write(run.join(folder).join("x"), vec![0; bytes]).unwrap();
    }
}

#[test]
fn what_it_says() {
    let place = Workplace::new();
    run(&place);
    let said = shown([
        place.ckpt(&["gc", "run", "--dry-run"]),
        place.ckpt(&["gc", "run", "--keep", "2", "--dry-run"]),
        place.ckpt(&["gc", "run", "--keep", "2"]),
        place.ckpt(&["gc", "run", "--keep", "2"]),
        place.ckpt(&["gc", "run", "--keep", "1", "--json"]),
    ]);
    insta::assert_snapshot!(said);
}

/// A dry run changes nothing and says what the real one then does; the rest stays.
#[test]
fn a_dry_run_tells_the_truth() {
    let place = Workplace::new();
    run(&place);
    let before = place.names("run");

    let dry = place
        .ckpt(&["gc", "run", "--keep", "2", "--dry-run", "--json"])
        .json();
    assert_eq!(place.names("run"), before);
    let real = place.ckpt(&["gc", "run", "--keep", "2", "--json"]).json();
    let removed = |report: &Value| -> Vec<String> {
        let items = report["removed"].as_array().unwrap().iter();
        let paths = items.map(|item| item["path"].as_str().unwrap());
        let mut names: Vec<String> = paths
            .map(|path| path.trim_start_matches("run/").to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(removed(&dry), removed(&real));
    assert_eq!(
        (&dry["bytes"], &dry["kept"]),
        (&real["bytes"], &real["kept"])
    );

    let mut all = place.names("run");
    all.extend(removed(&real));
    all.sort();
    assert_eq!(all, before);
    let left = [
        ".step-000031.tmp-of-mine",
        "notes",
        "step-000003",
        "step-000010",
        "step-000020",
        "step-4",
    ];
    assert_eq!(place.names("run"), left);
}

/// A save that is going on in another process is not disturbed.
#[test]
fn a_running_save_is_left_alone() {
    let place = Workplace::new();
    let mut staging = Staging::new(place.path(""), "step-000001").unwrap();
    staging.write("x", b"data").unwrap();

    for arguments in [
        &["gc", ".", "--dry-run", "--json"][..],
        &["gc", ".", "--json"],
    ] {
        let report = place.ckpt(arguments).json();
        assert_eq!(report["removed"], Value::Array(Vec::new()));
        assert_eq!(report["left_alone"][0]["why"], "it is being written");
    }
    staging.commit().unwrap();
    assert_eq!(place.ckpt(&["verify", ".", "--deep"]).code, 0);
}
