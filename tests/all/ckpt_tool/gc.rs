//! `gc`: removes what it reports, and only checkpoints and leftovers.

use std::fs;

use meshgrad::ckpt::Staging;
use serde_json::Value;

use crate::ckpt_tool::models;
use crate::ckpt_tool::shown;
use crate::test_dir::TestDir;

/// A run with five checkpoints, leftovers, and unrelated folders.
fn run(dir: &TestDir) {
    let run = dir.path("run");
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
fn output() {
    let dir = TestDir::new();
    run(&dir);
    let output = shown([
        dir.ckpt(&["gc", "run", "--dry-run"]),
        dir.ckpt(&["gc", "run", "--keep", "2", "--dry-run"]),
        dir.ckpt(&["gc", "run", "--keep", "2"]),
        dir.ckpt(&["gc", "run", "--keep", "2"]),
        dir.ckpt(&["gc", "run", "--keep", "1", "--json"]),
    ]);
    insta::assert_snapshot!(output);
}

/// A dry run changes nothing and reports what the real run removes.
#[test]
fn a_dry_run_reports_what_the_real_run_removes() {
    let dir = TestDir::new();
    run(&dir);
    let before = dir.names("run");

    let dry = dir.ckpt(&["gc", "run", "--keep", "2", "--dry-run", "--json"]).json();
    assert_eq!(dir.names("run"), before);
    let real = dir.ckpt(&["gc", "run", "--keep", "2", "--json"]).json();
    let removed = |report: &Value| -> Vec<String> {
        let items = report["removed"].as_array().unwrap().iter();
        let paths = items.map(|item| item["path"].as_str().unwrap());
        let mut names: Vec<String> =
            paths.map(|path| path.trim_start_matches("run/").to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(removed(&dry), removed(&real));
    assert_eq!((&dry["bytes"], &dry["kept"]), (&real["bytes"], &real["kept"]));

    let mut all = dir.names("run");
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
    assert_eq!(dir.names("run"), left);
}

/// A running save of another process is not removed.
#[test]
fn a_running_save_is_left_alone() {
    let dir = TestDir::new();
    let mut staging = Staging::new(dir.path(""), "step-000001").unwrap();
    staging.write("x", b"data").unwrap();

    for arguments in [&["gc", ".", "--dry-run", "--json"][..], &["gc", ".", "--json"]] {
        let report = dir.ckpt(arguments).json();
        assert_eq!(report["removed"], Value::Array(Vec::new()));
        assert_eq!(report["left_alone"][0]["why"], "a running save");
    }
    staging.commit().unwrap();
    assert_eq!(dir.ckpt(&["verify", ".", "--deep"]).code, 0);
}
