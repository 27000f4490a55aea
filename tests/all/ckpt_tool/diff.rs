//! `diff`: reports exactly the changes.

use half::bf16;
use meshgrad::ckpt::Dtype;
use serde_json::Value;

use crate::ckpt_tool::models::{self, Model, Tensor, tensor, tensor_of};
use crate::ckpt_tool::shown;
use crate::test_dir::{Output, TestDir};

fn pair(dir: &TestDir, a: &Model, b: &Model, arguments: &[&str]) -> Output {
    models::file(&dir.path("a.safetensors"), a);
    models::file(&dir.path("b.safetensors"), b);
    dir.ckpt(&[&["diff", "a.safetensors", "b.safetensors"], arguments].concat())
}

/// The model with changed names, shapes, dtypes and values.
fn edited() -> Model {
    let mut model = models::mixture();
    for expert in 0..4 {
        model.remove(&format!("model.layers.2.mlp.experts.{expert}.down_proj.weight"));
        let name = format!("model.layers.2.mlp.experts.{expert}.up_proj.weight");
        model.insert(name, tensor(Dtype::BF16, &[4, 8], 1));
    }
    for layer in 0..3 {
        let norm = format!("model.layers.{layer}.input_layernorm.weight");
        model.insert(norm, tensor(Dtype::BF16, &[8], 2));
    }
    model.insert("lm_head.weight".into(), tensor(Dtype::BF16, &[64, 8], 3));

    let embedding = &mut model.get_mut("model.embed_tokens.weight").unwrap().bytes;
    let element = |at: usize| at * 2..at * 2 + 2;
    let old = bf16::from_le_bytes(embedding[element(11)].try_into().unwrap());
    let next = bf16::from_bits(old.to_bits() + 1);
    embedding[element(11)].copy_from_slice(&next.to_le_bytes());
    embedding[element(20)].copy_from_slice(&bf16::NAN.to_le_bytes());
    embedding[element(30)].copy_from_slice(&bf16::from_f32(100.0).to_le_bytes());
    model
}

#[test]
fn output() {
    let dir = TestDir::new();
    models::folder(&dir.path("a"), &models::mixture());
    models::shards(&dir.path("same"), &models::mixture());
    models::folder(&dir.path("b"), &edited());
    models::checkpoint(&dir.path("run"), 7, &models::mixture());

    let output = shown([
        dir.ckpt(&["diff", "a", "same"]),
        dir.ckpt(&["diff", "a", "same", "--values"]),
        dir.ckpt(&["diff", "a", "b"]),
        dir.ckpt(&["diff", "a", "b", "--values"]),
        dir.ckpt(&["diff", "a", "run"]),
        dir.ckpt(&["diff", "a", "run", "--values", "--tensors", "model.*"]),
        dir.ckpt(&["diff", "a", "b", "--values", "--tensors", "*embed*", "--json"]),
    ]);
    insta::assert_snapshot!(output);
}

/// A model equals itself, including NaN, even if it is stored in other files.
#[test]
fn a_model_equals_itself() {
    let dir = TestDir::new();
    let mut model = models::mixture();
    model.insert("nan".into(), tensor_of(Dtype::F32, &[f64::NAN, -0.0]));
    let output = pair(&dir, &model, &model, &["--values"]);
    assert_eq!(output.code, 0, "{}", output.shown());

    models::shards(&dir.path("shards"), &model);
    assert_eq!(dir.ckpt(&["diff", "shards", "a.safetensors", "--values"]).code, 0);
}

/// Compares two f32 tensors by a plain loop.
fn plain(a: &[f64], b: &[f64]) -> (usize, Option<usize>, f64, f64) {
    let differing = || a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b);
    let distances = || differing().map(|(_, (a, b))| ((a - b).abs(), a.abs().max(b.abs())));
    (
        differing().count(),
        differing().next().map(|(at, _)| at),
        distances().map(|(distance, _)| distance).fold(0.0, f64::max),
        distances().map(|(distance, largest)| distance / largest).fold(0.0, f64::max),
    )
}

/// Counts and distances equal those of a plain loop, for any threads and budget, for equal and
/// different dtypes, and in both orders.
#[test]
fn differences_equal_those_of_a_plain_loop() {
    let dir = TestDir::new();
    // More than one segment, and more than a buffer.
    let count = (4 << 20) + 12_345;
    let values: Vec<f64> = (0..count).map(|at| f64::from(at % 251) - 100.0).collect();
    let mut others = values.clone();
    for at in (40_000..count as usize).step_by(99_991) {
        others[at] += 1.0 + at as f64 / f64::from(count);
    }
    // The values as f32.
    let rounded: Vec<f64> = others.iter().map(|&value| f64::from(value as f32)).collect();
    let (differing, first, max_abs, max_relative) = plain(&values, &rounded);
    assert!(differing > 30 && first == Some(40_000));

    let one = |dtype, values: &[f64]| Model::from([("w".to_owned(), tensor_of(dtype, values))]);
    let a = one(Dtype::F32, &values);
    for (b, has_ulps) in [(one(Dtype::F32, &others), true), (one(Dtype::F64, &rounded), false)] {
        for arguments in [["--budget", "128KiB"], ["--threads", "3"]] {
            let arguments = [&["--values", "--json"], &arguments[..]].concat();
            for output in [pair(&dir, &a, &b, &arguments), pair(&dir, &b, &a, &arguments)] {
                let report = output.json();
                let found = &report["values"]["differing"][0];
                assert_eq!(found["differing"], differing);
                assert_eq!(found["first"], first.unwrap());
                assert_eq!(found["max_abs"], max_abs);
                assert_eq!(found["max_relative"], max_relative);
                let ulps = found["ulps"].as_array();
                let counted = ulps.map(|u| u.iter().map(|n| n.as_u64().unwrap()).sum::<u64>());
                assert_eq!(counted, has_ulps.then_some(differing as u64));
                assert_eq!(output.code, 1);
            }
        }
    }
}

/// Values that all dtypes represent are equal across dtypes; the dtypes are still reported.
#[test]
fn equal_values_of_different_dtypes_are_equal() {
    let dir = TestDir::new();
    let values = [0.0, 1.0, -2.0, 0.5, f64::NAN, f64::INFINITY];
    for dtype in [Dtype::F64, Dtype::F16, Dtype::BF16, Dtype::F8E5M2] {
        let one = |dtype| Model::from([("w".to_owned(), tensor_of(dtype, &values))]);
        let output = pair(&dir, &one(Dtype::F32), &one(dtype), &["--values", "--json"]);
        let report = output.json();
        assert_eq!(report["values"]["equal"], 1, "{dtype}");
        assert_eq!(report["mismatched"][0]["b"]["dtype"], dtype.name());
        assert_eq!((output.code, &report["same"]), (1, &Value::Bool(false)));
    }
}

/// Dtypes that are not decoded are compared by bytes, with the right element index.
#[test]
fn elements_of_less_than_a_byte_are_compared_by_bytes() {
    let dir = TestDir::new();
    let of = |bytes: [u8; 3]| {
        let tensor = Tensor { dtype: Dtype::F4, shape: vec![2, 3], bytes: bytes.to_vec() };
        Model::from([("w".to_owned(), tensor)])
    };
    let output = pair(&dir, &of([1, 2, 3]), &of([1, 2, 4]), &["--values", "--json"]);
    let found = &output.json()["values"]["differing"][0];
    assert_eq!((&found["first"], &found["differing"]), (&4.into(), &1.into()));
    assert!(found["max_abs"].is_null() && found["ulps"].is_null());

    let floats = Model::from([("w".to_owned(), tensor(Dtype::F32, &[2, 3], 1))]);
    let output = pair(&dir, &of([1, 2, 3]), &floats, &["--values", "--json"]);
    assert_eq!(output.json()["values"]["not_comparable"][0], "w");
}
