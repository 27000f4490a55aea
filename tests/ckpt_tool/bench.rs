//! `bench`: its figures are its own, so what is tested is what they are about, and that nothing of
//! it stays.

use std::fs;
use std::process::{Command, Stdio};

use meshgrad::ckpt::Dtype;
use serde_json::Value;

use crate::models::{self, Model};
use crate::{Said, Workplace, shown};

/// Some MB, more than the least that a load takes.
fn model() -> Model {
    let shape = |at| if at == 0 { vec![7] } else { vec![300, 1000] };
    let tensor = |at| models::tensor(Dtype::F32, &shape(at), at);
    (0..6).map(|at| (format!("w{at}"), tensor(at))).collect()
}

fn place() -> Workplace {
    let place = Workplace::new();
    models::folder(&place.path("model"), &model());
    fs::create_dir(place.path("disk")).unwrap();
    place
}

/// What it says without figures and without the machine. Whether there is O_DIRECT is the disk's
/// affair.
fn redacted(said: &Said) -> String {
    let mut text = String::new();
    for line in shown([said.clone()]).lines() {
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
fn what_it_says() {
    let place = place();
    let bench = |more: &[&str]| {
        let always = ["bench", "model", "--samples", "2", "--threads", "2"];
        redacted(&place.ckpt(&[&always, more].concat()))
    };
    insta::assert_snapshot!(
        [
            bench(&["--backend", "pread,mmap"]),
            bench(&["--backend", "auto", "--write", "disk"]),
            bench(&["--backend", "mmap", "--budget", "3MiB"]),
        ]
        .join("\n")
    );
    assert!(place.names("disk").is_empty());
}

#[test]
fn refusals() {
    let place = place();
    fs::create_dir(place.path("nothing")).unwrap();
    let bench = |more: &[&str]| place.ckpt(&[&["bench"], more].concat());
    insta::assert_snapshot!(shown([
        bench(&["absent"]),
        bench(&["nothing"]),
        bench(&["model", "--samples", "0"]),
        bench(&["model", "--backend", "pwrite"]),
        bench(&["model", "--write", "absent"]),
        bench(&["model", "--write", "model/model.safetensors"]),
    ]));
}

/// The budget that a refusal names is enough.
#[test]
fn the_way_out_is_one() {
    let place = place();
    let bench = |budget: &str| {
        let arguments = [
            "bench",
            "model",
            "--samples",
            "1",
            "--threads",
            "2",
            "--budget",
        ];
        place.ckpt(&[&arguments[..], &[budget]].concat())
    };
    let refused = bench("100KiB");
    assert_eq!(refused.code, 1, "{}", refused.shown());
    let (_, wanted) = refused.stderr.split_once(" it takes ").unwrap();
    let mut words = wanted.split(' ');
    let (number, unit) = (words.next().unwrap(), words.next().unwrap());
    // One decimal is shown, and none is read.
    let number = 1024.0 * number.parse::<f64>().unwrap();
    let smaller = if unit == "MiB" { "KiB" } else { "B" };
    let enough = bench(&format!("{number:.0}{smaller}"));
    assert_eq!(enough.code, 0, "{}", enough.shown());
}

fn files_of(place: &Workplace, folder: &str) -> Vec<(String, Vec<u8>)> {
    let names = place.names(folder).into_iter();
    let read = |name: String| {
        let bytes = fs::read(place.path(folder).join(&name)).unwrap();
        (name, bytes)
    };
    names.map(read).collect()
}

/// All bytes, each sample, and what they are compared with; the checkpoint is as it was.
#[test]
fn what_is_counted() {
    let place = place();
    let before = files_of(&place, "model");
    let is_data = |name: &str| name.ends_with(".safetensors");
    let data = before.iter().filter(|(name, _)| is_data(name));
    let file_bytes: usize = data.map(|(_, bytes)| bytes.len()).sum();
    let tensors = model();
    let tensor_bytes: usize = tensors.values().map(|tensor| tensor.bytes.len()).sum();

    for (budget, holds_all) in [("2GiB", true), ("3MiB", false)] {
        let arguments = [
            "bench",
            "model",
            "--json",
            "--samples",
            "3",
            "--write",
            "disk",
        ];
        let more = ["--threads", "2", "--budget", budget];
        let report = place.ckpt(&[&arguments[..], &more].concat()).json();
        assert_eq!(report["memory"]["holds_all"], holds_all);
        assert_eq!(report["file_bytes"], file_bytes);
        let groups = [
            &report["opening"],
            &report["reading"],
            &report["writing"]["contestants"],
        ];
        for (group, count) in groups.into_iter().zip([2, 7, 3]) {
            let group = group.as_array().unwrap();
            assert_eq!(group.len(), count);
            for contestant in group {
                check(contestant, [file_bytes, tensor_bytes]);
            }
        }
    }
    assert_eq!(files_of(&place, "model"), before);
    assert!(place.names("disk").is_empty());
}

/// A file of any name is opened, planned and loaded as what it is.
#[test]
fn a_file_is_enough() {
    let place = place();
    let mut names = place.names("model").into_iter();
    let file = names.find(|name| name.ends_with(".safetensors"));
    let file = place.path("model").join(file.unwrap());
    fs::rename(file, place.path("alone.st")).unwrap();

    let arguments = ["bench", "alone.st", "--json", "--samples", "1"];
    let report = place.ckpt(&arguments).json();
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
        assert!(
            (rate * sorted[1] / bytes as f64 - 1.0).abs() < 1e-9,
            "{name}"
        );
    }
}

/// Pages that were dropped come back: all samples are taken.
#[cfg(target_os = "linux")]
#[test]
fn cold_samples_are_taken() {
    let place = place();
    let arguments = ["bench", "model", "--cold", "--json", "--samples", "1"];
    let report = place.ckpt(&arguments).json();
    assert_eq!(report["cold"], true);
    assert_eq!(report["reading"][0]["samples"].as_array().unwrap().len(), 1);
}

/// Ctrl-C in the middle of writing: an error, and nothing stays.
#[test]
fn an_interrupted_bench_leaves_nothing() {
    let place = place();
    let arguments = ["bench", "model", "--samples", "100000", "--write", "disk"];
    let mut command = place.command(&arguments);
    let child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
    let child = child.unwrap();
    while place.names("disk").is_empty() {
        std::thread::yield_now();
    }
    let mut kill = Command::new("kill");
    let killed = kill.args(["-INT", &child.id().to_string()]).status();
    assert!(killed.unwrap().success());

    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message, "error: interrupted; nothing was left behind\n");
    assert!(place.names("disk").is_empty());
}
