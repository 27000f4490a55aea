//! `convert`: the output is what the map specifies, in both directions.

use std::fs;
use std::process::Stdio;

use half::bf16;
use meshgrad::ckpt::Dtype;

use crate::ckpt_tool::models::{self, Model};
use crate::ckpt_tool::plan::FUSED;
use crate::ckpt_tool::shown_without_times;
use crate::test_dir::{TestDir, signal};

fn dir() -> TestDir {
    let dir = TestDir::new();
    models::shards(&dir.path("model"), &models::qwen3());
    let config = "{\"torch_dtype\": \"float32\", \"vocab_size\": 20}\n";
    fs::write(dir.path("model/config.json"), config).unwrap();
    fs::write(dir.path("model/tokenizer.json"), "{}\n").unwrap();
    fs::write(dir.path("model/.secret.json"), "{}\n").unwrap();
    fs::write(dir.path("elsewhere.json"), "{}\n").unwrap();
    std::os::unix::fs::symlink("../elsewhere.json", dir.path("model/link.json")).unwrap();
    fs::write(dir.path("fused.map"), FUSED).unwrap();
    dir
}

#[test]
fn output() {
    let dir = dir();
    let convert = |more: &[&str]| dir.ckpt(&[&["convert"], more].concat());
    insta::assert_snapshot!(shown_without_times([
        convert(&["model", "fused", "--map", "fused.map", "--max-shard", "4kB"]),
        convert(&["fused", "back", "--map", "fused.map", "--inverse"]),
        dir.ckpt(&["diff", "model", "back", "--values"]),
        convert(&["model", "small", "--map", "fused.map", "--dtype", "bf16"]),
        dir.ckpt(&["verify", "small", "--deep"]),
    ]));
    let files = ["config.json", "manifest.json", "model.safetensors", "tokenizer.json"];
    assert_eq!(dir.names("back"), files);
    let config = fs::read_to_string(dir.path("fused/config.json")).unwrap();
    assert_eq!(config, fs::read_to_string(dir.path("model/config.json")).unwrap());
    let config = fs::read_to_string(dir.path("small/config.json")).unwrap();
    let wanted = "{\n  \"torch_dtype\": \"bfloat16\",\n  \"vocab_size\": 20,\n  \"dtype\": \"bfloat16\"\n}\n";
    assert_eq!(config, wanted);
}

/// The expected output of the example map, constructed without the map.
fn fused(mut model: Model) -> Model {
    let mut take = |name: String| model.remove(&name).unwrap();
    let mut made = Model::new();
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}.self_attn");
        let mut qkv = take(format!("{prefix}.q_proj.weight"));
        for name in ["k", "v"] {
            let other = take(format!("{prefix}.{name}_proj.weight"));
            qkv.bytes.extend(other.bytes);
            qkv.shape[0] += other.shape[0];
        }
        made.insert(format!("{prefix}.qkv_proj.weight"), qkv);

        let prefix = format!("model.layers.{layer}.mlp.experts");
        for (name, parts, shape) in [
            ("gate_up_proj", &["gate_proj", "up_proj"][..], [3, 10, 6]),
            ("down_proj", &["down_proj"][..], [3, 6, 5]),
        ] {
            let mut all = models::tensor(Dtype::F32, &[0], 0);
            all.shape = shape.to_vec();
            for expert in 0..3 {
                for part in parts {
                    let one = take(format!("{prefix}.{expert}.{part}.weight"));
                    all.bytes.extend(one.bytes);
                }
            }
            made.insert(format!("{prefix}.{name}"), all);
        }
    }
    made.extend(model);
    made
}

/// A round trip changes no byte, for several budgets and file sizes. The results are read with the
/// `safetensors` crate.
#[test]
fn a_round_trip_changes_nothing() {
    let dir = dir();
    for (at, (budget, max_shard)) in
        [("2GiB", "5GB"), ("16KiB", "1kB"), ("9KiB", "700B")].into_iter().enumerate()
    {
        let [there, back] = [format!("there-{at}"), format!("back-{at}")];
        let limits = ["--budget", budget, "--max-shard", max_shard, "--threads", "1"];
        for (source, made, more) in
            [("model", &there, &["--json"][..]), (&there, &back, &["--inverse", "--json"])]
        {
            let map = ["convert", source, made, "--map", "fused.map"];
            let output = dir.ckpt(&[&map[..], &limits, more].concat());
            assert_eq!(output.code, 0, "{}", output.shown());
            assert_eq!(output.json()["round_trip"]["proven"], true);
        }
        assert_eq!(models::read(&dir.path(&there)), fused(models::qwen3()));
        assert_eq!(models::read(&dir.path(&back)), models::qwen3());
    }
}

/// A tensor of 1 MiB is transposed within a smaller budget.
#[test]
fn a_tensor_larger_than_the_budget_is_made_by_rows() {
    let dir = TestDir::new();
    let large = models::tensor(Dtype::F32, &[256, 1024], 1);
    let model = Model::from([("w".to_owned(), large.clone())]);
    models::folder(&dir.path("model"), &model);
    fs::write(dir.path("transpose.map"), "w = transpose(w, 0, 1)").unwrap();
    let output = dir.ckpt(&[
        "convert",
        "model",
        "transposed",
        "--map",
        "transpose.map",
        "--budget",
        "400KiB",
        "--threads",
        "1",
    ]);
    assert_eq!(output.code, 0, "{}", output.shown());

    let transposed = &models::read(&dir.path("transposed"))["w"];
    assert_eq!(transposed.shape, [1024, 256]);
    let element = |bytes: &[u8], at: usize| bytes[4 * at..4 * at + 4].to_vec();
    for (row, column) in [(0, 0), (1, 0), (1023, 255), (517, 31)] {
        let [there, here] = [column * 1024 + row, row * 256 + column];
        assert_eq!(element(&transposed.bytes, here), element(&large.bytes, there));
    }
    let back = ["convert", "transposed", "back", "--map", "transpose.map", "--inverse"];
    assert_eq!(dir.ckpt(&back).code, 0);
    assert_eq!(models::read(&dir.path("back")), model);
}

/// Floats are rounded as by the `half` crate; integers are unchanged.
#[test]
fn dtype_rounds_floats_and_keeps_integers() {
    let dir = TestDir::new();
    let mut model = models::mixture();
    model.insert("ids".into(), models::tensor(Dtype::I64, &[7], 3));
    models::folder(&dir.path("model"), &model);
    fs::write(dir.path("all.map"), "{r:path} = {r:path}").unwrap();
    let convert = ["convert", "model", "small", "--map", "all.map", "--dtype", "BF16"];
    let output = dir.ckpt(&convert);
    assert_eq!(output.code, 0, "{}", output.shown());

    for tensor in model.values_mut().filter(|it| it.dtype == Dtype::F32) {
        let floats = tensor.bytes.chunks_exact(4);
        let floats = floats.map(|it| f32::from_le_bytes(it.try_into().unwrap()));
        tensor.bytes = floats.flat_map(|it| bf16::from_f32(it).to_le_bytes()).collect();
        tensor.dtype = Dtype::BF16;
    }
    assert_eq!(models::read(&dir.path("small")), model);
}

/// Mistakes in maps that could pass for a conversion. Each is an error that shows the way out.
#[test]
fn mistakes_in_maps() {
    let dir = dir();
    let heads = ["q", "k", "v"].map(|name| {
        let name = format!("model.layers.0.self_attn.{name}_proj.weight");
        (name, models::tensor(Dtype::F32, &[10, 4], 1))
    });
    models::folder(&dir.path("heads"), &Model::from(heads));
    let rest = "{r:path} = {r:path}\n";
    let layers = "[model.layerz. = model.layerz.]\n";
    for (name, map) in [
        ("layers.map", format!("{layers}{{l}}.norm = {{l}}.norm\n[=]\n{rest}")),
        ("absent.map", format!("{rest}head = lm_haed.weight")),
        ("transposed.map", format!("{rest}head = lm_head.weight.T")),
        ("empty.map", format!("{rest}head = slice(lm_head.weight, 4, 4)")),
        ("copy.map", format!("{rest}head = model.embed_tokens.weight")),
        ("optional.map", format!("{rest}head ?= lm_haed.weight")),
        ("added.map", format!("{rest}head = tied(head, lm_head.weight)")),
        ("unsplit.map", format!("{rest}all = concat(lm_head.weight, model.embed_tokens.weight)")),
    ] {
        fs::write(dir.path(name), map).unwrap();
    }
    let before = dir.names("");
    let convert = |source: &str, map: &str| dir.ckpt(&["convert", source, "out", "--map", map]);
    let mistakes = [
        convert("heads", "fused.map"),
        convert("model", "layers.map"),
        convert("model", "absent.map"),
        convert("model", "transposed.map"),
        convert("model", "empty.map"),
        convert("model", "copy.map"),
    ];
    assert!(mistakes.iter().all(|output| output.code == 1));
    assert_eq!(dir.names(""), before);
    insta::assert_snapshot!(shown_without_times(mistakes));

    let inverse_lines = ["optional.map", "added.map", "unsplit.map"].map(|map| {
        let output = convert("model", map);
        fs::remove_dir_all(dir.path("out")).unwrap();
        let line = output.stdout.lines().find(|line| line.starts_with("inverse"));
        line.unwrap().to_owned()
    });
    insta::assert_snapshot!("inverse_lines", inverse_lines.join("\n"));
}

/// Errors are reported and leave no files.
#[test]
fn errors() {
    let dir = dir();
    let write = |name: &str, text: &str| fs::write(dir.path(name), text).unwrap();
    write("broken.map", "a = a\nb = concat(c,\n  d, dim=x)");
    write("few.map", "head = lm_head.weight");
    write("absent.map", "{r:path} = {r:path}\nnew = concat(lm_head.weight, absent)");
    write("huge.map", "x = fill(0, F32, shape=100000x20000000000)\n{r:path} = {r:path}");
    write(
        "tied.map",
        "head = tied(lm_head.weight, model.embed_tokens.weight)\n{r:path} = {r:path}",
    );
    let before = dir.names("");

    let convert = |map: &str, more: &[&str]| {
        let arguments = ["convert", "model", "out", "--map", map];
        dir.ckpt(&[&arguments[..], more].concat())
    };
    let output = shown_without_times([
        convert("nowhere.map", &[]),
        convert("broken.map", &[]),
        convert("few.map", &[]),
        convert("few.map", &["--json", "--allow", "unexpected:model.layers.{r:path}"]),
        convert("few.map", &["--allow", "unexpectedly"]),
        convert("absent.map", &[]),
        convert("huge.map", &[]),
        convert("tied.map", &["--allow", "unexpected"]),
        convert("few.map", &["--inverse", "--allow", "unexpected"]),
        convert("fused.map", &["--budget", "1KiB", "--threads", "1"]),
        convert("fused.map", &["--dtype", "I8"]),
        dir.ckpt(&["convert", "model", "model", "--map", "fused.map"]),
        dir.ckpt(&["convert", "model", "..", "--map", "fused.map"]),
        dir.ckpt(&["convert", "model", "no/where", "--map", "fused.map"]),
        dir.ckpt(&["convert", "absent", "out", "--map", "fused.map"]),
        dir.ckpt(&["convert", "fused.map", "out", "--map", "fused.map"]),
        convert("fused.map", &["--renames", "fused.map"]),
    ]);
    insta::assert_snapshot!(output);
    assert_eq!(dir.names(""), before);
    let allowed = ["--allow", "unexpected", "--json"];
    let report = convert("few.map", &allowed).json();
    assert_eq!(report["allowed"].as_array().unwrap().len(), models::qwen3().len() - 1);
    assert_eq!(report["destination"]["tensors"], 1);
}

/// Finite elements that F16 cannot hold are counted; elements that were infinite before are not.
#[test]
fn overflow_is_reported() {
    let dir = TestDir::new();
    let values = [1.0, 65504.0, 65519.0, 65520.0, -1e6, f64::INFINITY, f64::NAN];
    let model = Model::from([
        ("large".to_owned(), models::tensor_of(Dtype::F32, &values)),
        ("small".to_owned(), models::tensor_of(Dtype::F32, &[1.0, f64::NEG_INFINITY])),
    ]);
    models::folder(&dir.path("model"), &model);
    fs::write(dir.path("all.map"), "{r:path} = {r:path}").unwrap();
    let convert = |to: &str, dtype: &str| {
        let map = ["convert", "model", to, "--map", "all.map", "--dtype", dtype];
        dir.ckpt(&map)
    };
    insta::assert_snapshot!(shown_without_times([
        convert("half", "F16"),
        convert("brain", "BF16")
    ]));
    let json = dir.ckpt(&["convert", "model", "j", "--map", "all.map", "--dtype", "F16", "--json"]);
    let expected = serde_json::json!([{"tensor": "large", "elements": 2}]);
    assert_eq!(json.json()["overflows"], expected);

    // Casts of a map, also of parts and of scaled elements; the infinite element of the source is
    // not counted.
    for (at, (map, elements)) in [
        ("w = cast(large, F16)", 2),
        ("w = cast(cast(large, F16), F32)", 2),
        ("w = cast(scale(large, 2), F16)", 4),
        ("w = concat(cast(large, F16), cast(small, F16))", 2),
        ("w = cast(large, BF16)", 0),
        ("w = slice(cast(large, F16), 0, 3)", 0),
    ]
    .into_iter()
    .enumerate()
    {
        fs::write(dir.path("cast.map"), map).unwrap();
        let to = format!("cast-{at}");
        let convert = ["convert", "model", &to, "--map", "cast.map", "--json"];
        let allow = ["--allow", "unexpected", "--allow", "partly-used"];
        let output = dir.ckpt(&[&convert[..], &allow].concat());
        assert_eq!(output.code, 0, "{}", output.shown());
        let expected = match elements {
            0 => serde_json::json!([]),
            elements => serde_json::json!([{"tensor": "w", "elements": elements}]),
        };
        assert_eq!(output.json()["overflows"], expected, "{map}");
    }
}

/// A map that casts or dequantizes changes the dtypes in config.json; a map that only renames
/// changes nothing in it.
#[test]
fn dtypes_of_maps_reach_the_configuration() {
    let dir = TestDir::new();
    let model = Model::from([
        ("norm".to_owned(), models::tensor(Dtype::F32, &[4], 1)),
        ("w".to_owned(), models::tensor(Dtype::F8E5M2, &[16, 16], 2)),
        ("w_scale".to_owned(), models::tensor(Dtype::F32, &[2, 2], 3)),
    ]);
    models::folder(&dir.path("model"), &model);
    let config = "{\"quantization_config\": {\"bits\": 8}, \"text_config\": {\"dtype\": \"float8\"}, \
                  \"torch_dtype\": \"float8\"}";
    fs::write(dir.path("model/config.json"), config).unwrap();
    let convert = |to: &str, map: &str| {
        fs::write(dir.path("map"), map).unwrap();
        let output = dir.ckpt(&["convert", "model", to, "--map", "map"]);
        let config = fs::read_to_string(dir.path(to).join("config.json")).unwrap();
        format!("{}\n\n{config}", shown_without_times([output]))
    };
    let dequantized = "w = dequant(w, w_scale, BF16, block=8x8)\nnorm = norm";
    insta::assert_snapshot!(convert("dequantized", dequantized));
    convert("same", "{r:path} = {r:path}");
    assert_eq!(fs::read_to_string(dir.path("same/config.json")).unwrap(), config);
}

/// After Ctrl-C, either the folder is complete or no file of it exists.
#[test]
fn an_interrupted_conversion_leaves_no_files() {
    let dir = TestDir::new();
    let rows = models::tensor(Dtype::F32, &[4096, 1024], 1);
    models::folder(&dir.path("model"), &Model::from([("w".to_owned(), rows)]));
    fs::write(dir.path("transpose.map"), "w = transpose(w, 0, 1)").unwrap();
    let before = dir.names("");
    let convert = ["ckpt", "convert", "model", "out", "--map", "transpose.map", "--budget", "1MiB"];
    let child = dir.command(&convert).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let mut runs = true;
    while runs && dir.names("") == before {
        runs = child.try_wait().unwrap().is_none();
        std::thread::yield_now();
    }
    if runs {
        assert!(signal(child.id(), "INT"));
    }
    let output = child.wait_with_output().unwrap();
    match output.status.success() {
        true => assert_eq!(dir.names("out"), ["manifest.json", "model.safetensors"]),
        false => {
            let message = String::from_utf8(output.stderr).unwrap();
            assert_eq!(message, "error: interrupted; nothing was left behind\n");
            assert_eq!(dir.names(""), before);
        }
    }
}

/// A table of renames keeps all other names, and works in both directions.
#[test]
fn tables_of_renames() {
    let dir = dir();
    let table = "# old                        new\n\
                 model.embed_tokens.weight     transformer.wte\n\n\
                 model.layers.{l}.mlp.gate.weight  h.{l+10}.router  # renumbered\n";
    fs::write(dir.path("table"), table).unwrap();
    let there = dir.ckpt(&["convert", "model", "there", "--renames", "table"]);
    assert_eq!(there.code, 0, "{}", there.shown());
    let names = models::read(&dir.path("there"));
    let found = |name: &str| names.contains_key(name);
    assert!(
        ["transformer.wte", "h.10.router", "h.11.router", "lm_head.weight"].map(found) == [true; 4]
    );
    assert_eq!(names.len(), models::qwen3().len());
    let back = dir.ckpt(&["convert", "there", "back", "--renames", "table", "--inverse"]);
    assert_eq!(back.code, 0, "{}", back.shown());
    assert_eq!(models::read(&dir.path("back")), models::qwen3());

    fs::write(dir.path("typo"), "model.embed_token.weight wte\n").unwrap();
    fs::write(dir.path("three"), "\na b c\n").unwrap();
    insta::assert_snapshot!(shown_without_times([
        there,
        dir.ckpt(&["convert", "model", "out", "--renames", "typo"]),
        dir.ckpt(&["convert", "model", "out", "--renames", "three"]),
        dir.ckpt(&["convert", "model", "out", "--renames", "typo", "--map", "fused.map"]),
    ]));
}
