//! `inspect`: agrees with the safetensors crate and with plain arithmetic.

use std::collections::BTreeMap;
use std::fs;

use half::{bf16, f16};
use meshgrad::ckpt::Dtype;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::ckpt_tool::models::{self, Model, Tensor, tensor, tensor_of};
use crate::ckpt_tool::shown;
use crate::test_dir::TestDir;

/// One tensor for each kind of dtype, with special values.
fn special() -> Model {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let all = [
        ("f64", tensor_of(Dtype::F64, &[1e300, -1e300, 0.0, -0.0])),
        ("f32", tensor_of(Dtype::F32, &[1.0, nan, inf, -inf, 3.0])),
        ("f16", tensor_of(Dtype::F16, &[65504.0, 6e-8, nan])),
        ("bf16", tensor(Dtype::BF16, &[30, 40], 3)),
        ("bf16.nan", tensor_of(Dtype::BF16, &[nan, nan])),
        ("f8_e5m2", tensor(Dtype::F8E5M2, &[64, 3], 4)),
        ("i64", tensor_of(Dtype::I64, &[i64::MAX as f64, -1.0, 0.0])),
        ("u8", tensor(Dtype::U8, &[100], 5)),
        ("bool", tensor(Dtype::Bool, &[100], 6)),
        ("empty", tensor(Dtype::F32, &[0, 7], 7)),
        ("scalar", tensor(Dtype::F32, &[], 8)),
        ("f4", Tensor { dtype: Dtype::F4, shape: vec![4], bytes: vec![0x12, 0x34] }),
    ];
    all.map(|(name, tensor)| (name.to_owned(), tensor)).into()
}

#[test]
fn output() {
    let dir = TestDir::new();
    models::shards(&dir.path("mixture"), &models::mixture());
    models::file(&dir.path("special.safetensors"), &special());
    for step in [100, 200] {
        models::checkpoint(&dir.path("run"), step, &models::mixture());
    }
    fs::create_dir(dir.path("run/step-000300")).unwrap();
    let loose = dir.path("pipeline/unet");
    fs::create_dir_all(&loose).unwrap();
    models::file(&loose.join("diffusion.safetensors"), &special());
    models::folder(&dir.path("pipeline/text_encoder"), &models::mixture());

    let output = shown([
        dir.ckpt(&["inspect", "mixture"]),
        dir.ckpt(&["inspect", "mixture", "--stats"]),
        dir.ckpt(&["inspect", "special.safetensors", "--stats"]),
        dir.ckpt(&["inspect", "run"]),
        dir.ckpt(&["inspect", "run/step-000100", "--tensors", "*.2.*", "--tensors", "trainer/*"]),
        dir.ckpt(&["inspect", "pipeline", "--tensors", "unet/f*"]),
        dir.ckpt(&["inspect", "run", "--tensors", "lm_head*", "--stats", "--json"]),
    ]);
    insta::assert_snapshot!(output);
}

/// Names cannot send control characters to the terminal.
#[test]
fn control_characters_in_names_are_escaped() {
    let dir = TestDir::new();
    let name = "w\u{1b}[2J\u{1b}]0;owned\u{7}\n\u{202e}x";
    let model = Model::from([(name.to_owned(), tensor(Dtype::F32, &[2], 1))]);
    models::file(&dir.path("hostile.safetensors"), &model);

    for arguments in [
        &["inspect", "hostile.safetensors"][..],
        &["inspect", "hostile.safetensors", "--tensors", "v"],
    ] {
        let output = dir.ckpt(arguments);
        let text = output.stdout + &output.stderr;
        assert!(text.contains("w\\u{1b}[2J\\u{1b}]0;owned\\u{7}\\n\\u{202e}x"), "{text}");
        let harmless = |c: char| c == '\n' || !c.is_control();
        assert!(text.chars().all(harmless), "{text:?}");
    }
}

/// Names, dtypes, shapes and sizes equal those of the reference implementation.
#[test]
fn agrees_with_the_safetensors_crate() {
    let dir = TestDir::new();
    for (name, model) in [("mixture", models::mixture()), ("special", special())] {
        let file = format!("{name}.safetensors");
        models::file(&dir.path(&file), &model);
        let report = dir.ckpt(&["inspect", &file, "--json"]).json();

        let bytes = fs::read(dir.path(&file)).unwrap();
        let reference = SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors = BTreeMap::new();
        for (name, view) in reference.iter() {
            let dtype = format!("{}", view.dtype());
            tensors.insert(name.to_owned(), (dtype, view.shape().to_vec(), view.data().len()));
        }

        let ours = report["tensors"].as_array().unwrap().iter().map(|tensor| {
            let text = |key: &str| tensor[key].as_str().unwrap().to_owned();
            let shape = serde_json::from_value(tensor["shape"].clone()).unwrap();
            let bytes = tensor["bytes"].as_u64().unwrap() as usize;
            (text("name"), (text("dtype"), shape, bytes))
        });
        let ours: BTreeMap<String, (String, Vec<usize>, usize)> = ours.collect();
        assert_eq!(ours, tensors);

        let data: usize = tensors.values().map(|(_, _, bytes)| bytes).sum();
        let elements: usize = tensors.values().map(|(_, s, _)| s.iter().product::<usize>()).sum();
        assert_eq!(report["total"]["tensors"], tensors.len());
        assert_eq!(report["total"]["bytes"], data);
        assert_eq!(report["total"]["elements"], elements);
        assert_eq!(report["parameters"], elements);
        assert_eq!(report["file_bytes"], bytes.len());
    }
}

/// The elements of a tensor, decoded independently of the program.
fn plain_values(tensor: &Tensor) -> Vec<f64> {
    let size = tensor.dtype.bits() / 8;
    let value = |b: &[u8]| match tensor.dtype {
        Dtype::F64 => f64::from_le_bytes(b.try_into().unwrap()),
        Dtype::F32 => f32::from_le_bytes(b.try_into().unwrap()).into(),
        Dtype::F16 => f16::from_le_bytes(b.try_into().unwrap()).to_f64(),
        Dtype::BF16 => bf16::from_le_bytes(b.try_into().unwrap()).to_f64(),
        Dtype::F8E5M2 => f16::from_le_bytes([0, b[0]]).to_f64(),
        Dtype::I64 => i64::from_le_bytes(b.try_into().unwrap()) as f64,
        Dtype::U8 | Dtype::Bool => b[0].into(),
        other => panic!("unexpected dtype {other}"),
    };
    tensor.bytes.chunks_exact(size).map(value).collect()
}

#[test]
fn stats_equal_those_of_plain_sums() {
    let dir = TestDir::new();
    let mut model = special();
    model.remove("f4");
    // Far from zero, where a plain sum of squares cancels.
    let shifted: Vec<f64> = (0..10_000).map(|at| 1e8 + (at % 7) as f64).collect();
    model.insert("shifted".into(), tensor_of(Dtype::F64, &shifted));
    models::file(&dir.path("x.safetensors"), &model);

    let report = dir.ckpt(&["inspect", "x.safetensors", "--stats", "--json"]).json();
    for found in report["tensors"].as_array().unwrap() {
        let name = found["name"].as_str().unwrap();
        let (values, stats) = (plain_values(&model[name]), &found["stats"]);
        let finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        let count = |is: &dyn Fn(f64) -> bool| values.iter().filter(|v| is(**v)).count();
        assert_eq!(stats["zeros"], count(&|v| v == 0.0), "{name}");
        assert_eq!(stats["nan"], count(&f64::is_nan), "{name}");
        assert_eq!(stats["infinite"], count(&f64::is_infinite), "{name}");

        if finite.is_empty() {
            assert_eq!([&stats["min"], &stats["mean"], &stats["std"]], [&Value::Null; 3]);
            continue;
        }
        let number = |key: &str| stats[key].as_f64().unwrap_or(f64::INFINITY);
        // The JSON parser may be off by one unit in the last place.
        let is = |key: &str, wanted: f64| (number(key) - wanted).abs() <= 3e-16 * wanted.abs();
        assert!(is("min", finite.iter().copied().reduce(f64::min).unwrap()), "{name}");
        assert!(is("max", finite.iter().copied().reduce(f64::max).unwrap()), "{name}");
        let n = finite.len() as f64;
        let mean = finite.iter().map(|v| v / n).sum::<f64>();
        let std = (finite.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
        assert!((number("mean") - mean).abs() <= 1e-12 * mean.abs(), "{name}");
        assert!(number("std") == std || (number("std") - std).abs() <= 1e-9 * std, "{name}");
    }
    let tensors = report["tensors"].as_array().unwrap();
    let integers = tensors.iter().find(|tensor| tensor["name"] == "i64").unwrap();
    assert_eq!(integers["stats"]["max"].as_i64(), Some(i64::MAX));
}

/// The statistics are bit-identical for any number of threads and any budget.
#[test]
fn stats_depend_only_on_the_data() {
    let dir = TestDir::new();
    let model = Model::from([
        // More than one segment, and not a whole number of blocks.
        ("large".to_owned(), tensor(Dtype::U8, &[4099, 1031], 1)),
        ("small".to_owned(), tensor(Dtype::BF16, &[333, 77], 2)),
    ]);
    models::file(&dir.path("x.safetensors"), &model);

    let arguments = ["inspect", "x.safetensors", "--stats", "--json"];
    let wanted = dir.ckpt(&arguments).stdout;
    for more in [["--threads", "1"], ["--threads", "7"], ["--budget", "64KiB"], ["--budget", "3MB"]]
    {
        assert_eq!(dir.ckpt(&[&arguments[..], &more].concat()).stdout, wanted, "{more:?}");
    }
}

/// A very long name does not make other lines long, and no command fails on it.
#[test]
fn long_names_are_shortened() {
    let dir = TestDir::new();
    let scalar = || tensor_of(Dtype::U8, &[1.0]);
    let mut model: Model = (0..300).map(|at| (format!("{at}.w"), scalar())).collect();
    model.insert("n".repeat(200_000), scalar());
    models::folder(&dir.path("a"), &model);
    model.insert("m".repeat(200_000), tensor_of(Dtype::U8, &[1.0, 2.0]));
    model.insert("0.w".to_owned(), tensor_of(Dtype::U8, &[3.0]));
    models::folder(&dir.path("b"), &model);
    let outputs = [
        dir.ckpt(&["inspect", "a"]),
        dir.ckpt(&["inspect", "a", "--stats"]),
        dir.ckpt(&["diff", "a", "b", "--values"]),
        dir.ckpt(&["inspect", "a", "--tensors", "absent"]),
        dir.ckpt(&["verify", "a"]),
        dir.ckpt(&["plan", "a"]),
    ];
    let codes = outputs.each_ref().map(|output| output.code);
    assert_eq!(codes, [0, 0, 1, 1, 0, 0]);
    for output in outputs {
        let text = output.stdout.clone() + &output.stderr;
        assert!(text.len() < 100_000, "{} has {} bytes", output.arguments, text.len());
    }
}
