//! `bench`: checks the report without its figures, and that all files are removed.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use approx::assert_relative_eq;
use meshgrad::ckpt::Dtype;
use serde_json::Value;

use crate::ckpt_tool::models::{self, Model};
use crate::ckpt_tool::shown;
use crate::on_disk::files;
use crate::test_dir::{Output, TestDir, signal};

/// A model of a few MB, which exceeds the minimum memory of a load.
fn model() -> Model {
    let shape = |at| if at == 0 { vec![7] } else { vec![300, 1000] };
    let tensor = |at| models::tensor(Dtype::F32, &shape(at), at);
    (0..6).map(|at| (format!("w{at}"), tensor(at))).collect()
}

fn dir() -> TestDir {
    let dir = TestDir::new();
    models::folder(&dir.path("model"), &model());
    fs::create_dir(dir.path("disk")).unwrap();
    dir
}

/// The output without the parts that depend on the machine: figures, file system, CPU, and
/// O_DIRECT.
fn redacted(output: &Output) -> String {
    let mut text = String::new();
    for line in shown([output.clone()]).lines() {
        let mut cells: Vec<String> = line.split("  ").map(|it| it.trim().to_owned()).collect();
        cells.retain(|cell| !cell.is_empty());
        match cells.first().map(String::as_str) {
            Some("on" | "machine" | "plain O_DIRECT" | "plain O_DIRECT, fsync") => {
                cells.truncate(1);
            }
            Some("source" | "samples") | None => {}
            Some(_) => cells = cells.iter().map(|cell| without_figures(cell)).collect(),
        }
        text.push_str(&cells.join("  "));
        text.push('\n');
    }
    text
}

fn without_figures(cell: &str) -> String {
    let words = cell.split(' ').map(|word| {
        let is_figure = word.trim_matches(['(', ')']).parse::<f64>().is_ok();
        if is_figure { "N" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn output() {
    let dir = dir();
    let bench = |more: &[&str]| {
        let always = ["bench", "model", "--samples", "2", "--threads", "2"];
        redacted(&dir.ckpt(&[&always, more].concat()))
    };
    insta::assert_snapshot!(
        [
            bench(&["--backend", "pread,mmap"]),
            bench(&["--backend", "auto", "--write", "disk"]),
            bench(&["--backend", "mmap", "--budget", "3MiB"]),
        ]
        .join("\n")
    );
    assert!(dir.names("disk").is_empty());
}

#[test]
fn errors() {
    let dir = dir();
    fs::create_dir(dir.path("empty")).unwrap();
    let bench = |more: &[&str]| dir.ckpt(&[&["bench"], more].concat());
    insta::assert_snapshot!(shown([
        bench(&["absent"]),
        bench(&["empty"]),
        bench(&["model", "--samples", "0"]),
        bench(&["model", "--backend", "pwrite"]),
        bench(&["model", "--write", "absent"]),
        bench(&["model", "--write", "model/model.safetensors"]),
    ]));
}

/// The budget that an error message recommends is sufficient.
#[test]
fn the_recommended_budget_suffices() {
    let dir = dir();
    let bench = |budget: &str| {
        let arguments = ["bench", "model", "--samples", "1", "--threads", "2", "--budget"];
        dir.ckpt(&[&arguments[..], &[budget]].concat())
    };
    let refused = bench("100KiB");
    assert_eq!(refused.code, 1, "{}", refused.shown());
    let (_, wanted) = refused.stderr.split_once(" needs at least ").unwrap();
    let mut words = wanted.split(' ');
    let (number, unit) = (words.next().unwrap(), words.next().unwrap());
    // The message has one decimal, but sizes are whole numbers.
    let number = 1024.0 * number.parse::<f64>().unwrap();
    let smaller = if unit == "MiB" { "KiB" } else { "B" };
    let enough = bench(&format!("{number:.0}{smaller}"));
    assert_eq!(enough.code, 0, "{}", enough.shown());
}

/// The report has all bytes and samples, and the checkpoint is unchanged.
#[test]
fn the_report_has_all_bytes_and_samples() {
    let dir = dir();
    let before = files(&dir.path("model"));
    let is_data = |name: &Path| name.extension().is_some_and(|it| it == "safetensors");
    let data = before.iter().filter(|(name, _)| is_data(name));
    let file_bytes: usize = data.map(|(_, bytes)| bytes.len()).sum();
    let tensors = model();
    let tensor_bytes: usize = tensors.values().map(|tensor| tensor.bytes.len()).sum();

    for (budget, holds_all) in [("2GiB", true), ("3MiB", false)] {
        let arguments = ["bench", "model", "--json", "--samples", "3", "--write", "disk"];
        let more = ["--threads", "2", "--budget", budget];
        let report = dir.ckpt(&[&arguments[..], &more].concat()).json();
        assert_eq!(report["memory"]["holds_all"], holds_all);
        assert_eq!(report["file_bytes"], file_bytes);
        let groups = [&report["opening"], &report["reading"], &report["writing"]["contestants"]];
        for (group, count) in groups.into_iter().zip([2, 7, 3]) {
            let group = group.as_array().unwrap();
            assert_eq!(group.len(), count);
            for contestant in group {
                check(contestant, [file_bytes, tensor_bytes]);
            }
        }
    }
    assert!(files(&dir.path("model")) == before);
    assert!(dir.names("disk").is_empty());
}

/// A safetensors file of any name can be benchmarked.
#[test]
fn a_single_file_is_accepted() {
    let dir = dir();
    let mut names = dir.names("model").into_iter();
    let file = names.find(|name| name.ends_with(".safetensors"));
    let file = dir.path("model").join(file.unwrap());
    fs::rename(file, dir.path("alone.st")).unwrap();

    let arguments = ["bench", "alone.st", "--json", "--samples", "1"];
    let report = dir.ckpt(&arguments).json();
    assert_eq!(report["source"]["files"], 1);
    assert_eq!(report["opening"][0]["samples"].as_array().unwrap().len(), 1);
}

fn check(contestant: &Value, [file_bytes, tensor_bytes]: [usize; 2]) {
    let name = contestant["name"].as_str().unwrap();
    let bytes = match name {
        "index and headers" | "plan of 6 tensors" => 0,
        name if name.contains("fsync") || name.starts_with("load") => tensor_bytes,
        _ => file_bytes,
    };
    assert_eq!(contestant["bytes"], bytes, "{name}");
    let samples = contestant["samples"].as_array().unwrap();
    if contestant["left_out"].is_string() {
        assert!(name.contains("O_DIRECT"), "{contestant}");
        assert!(samples.is_empty());
        return;
    }
    assert_eq!(samples.len(), 3);
    let mut sorted: Vec<f64> = samples.iter().map(|it| it.as_f64().unwrap()).collect();
    sorted.sort_by(f64::total_cmp);
    assert!(sorted[0] > 0.0);
    assert_eq!(contestant["seconds"]["median"], sorted[1]);
    if bytes > 0 {
        let rate = contestant["bytes_per_second"].as_f64().unwrap();
        assert_relative_eq!(rate * sorted[1], bytes as f64, max_relative = 1e-9);
    }
}

/// `--cold` takes all samples.
#[cfg(target_os = "linux")]
#[test]
fn cold_takes_all_samples() {
    let dir = dir();
    let arguments = ["bench", "model", "--cold", "--json", "--samples", "1"];
    let report = dir.ckpt(&arguments).json();
    assert_eq!(report["cold"], true);
    assert_eq!(report["reading"][0]["samples"].as_array().unwrap().len(), 1);
}

/// Ctrl-C during a write is an error and leaves no files.
#[test]
fn an_interrupted_bench_leaves_no_files() {
    let dir = dir();
    let arguments = ["ckpt", "bench", "model", "--samples", "100000", "--write", "disk"];
    let mut command = dir.command(&arguments);
    let child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
    let child = child.unwrap();
    while dir.names("disk").is_empty() {
        std::thread::yield_now();
    }
    assert!(signal(child.id(), "INT"));

    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message, "error: interrupted; nothing was left behind\n");
    assert!(dir.names("disk").is_empty());
}
