//! Commands that load a folder with tensors that its model does not have, and quantized folders.

use std::fs;
use std::path::Path;

use meshgrad::ckpt::{Dtype, FileWriter};

use crate::ckpt_tool::models::{self, Model};
use crate::test_dir::TestDir;

/// A folder with `model`, which has `more` tensors, a text, ids and a configuration.
fn dir(more: &[&str]) -> TestDir {
    let config = "data.paths = ['text.txt']\n\
                  train = { steps = 1, batch_size = 2, seq_len = 16 }\n\
                  sample = { every = 0, tokens = 4 }\n";
    let dir = TestDir::with(&[("tune.toml", config)]);
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/finetune");
    let mut model = models::read(&fixture.join("model"));
    let norm = model["model.norm.weight"].clone();
    model.extend(more.iter().map(|name| ((*name).to_owned(), norm.clone())));
    models::folder(&dir.path("model"), &model);
    for file in ["config.json", "tokenizer.json"] {
        fs::copy(fixture.join("model").join(file), dir.path("model").join(file)).unwrap();
    }
    fs::copy(fixture.join("text.txt"), dir.path("text.txt")).unwrap();
    let mut ids = FileWriter::new();
    ids.add("input_ids", Dtype::I64, &[1, 2]).unwrap();
    ids.save(dir.path("ids.safetensors"), |_, sink| sink.append(&[0; 16])).unwrap();
    dir
}

/// The commands that load `model`.
const COMMANDS: [&[&str]; 4] = [
    &["forward", "model", "--input", "ids.safetensors", "--output", "out.safetensors"],
    &["eval", "model", "--data", "text.txt", "--seq-len", "16"],
    &["sample", "model", "--prompt", "a", "--tokens", "2"],
    &["train", "tune.toml", "--from", "model", "--run-dir", "run"],
];

/// All commands refuse the folder with the names of the tensors; with `--ignore-unused`, one line
/// counts them. Tensors without an effect need no option.
#[test]
fn all_commands_refuse_unused_tensors() {
    let unused = dir(&["model.layers.0.self_attn.q_proj.bias", "score.weight"]);
    let harmless = dir(&["model.layers.0.self_attn.rotary_emb.inv_freq"]);
    let plain = dir(&[]);
    for command in COMMANDS {
        let error = unused.fails(command);
        for part in ["q_proj.bias`", "`score.weight`", "--ignore-unused"] {
            assert!(error.contains(part), "{command:?}: {error}");
        }
        assert!(!unused.path("run").exists());
        let output = unused.run(&[command, &["--ignore-unused"]].concat());
        assert_eq!(output.code, 0, "{}", output.shown());
        let shown = output.shown();
        assert_eq!(shown.matches("ignored 2 tensors").count(), 1, "{command:?}: {shown}");
        let shown = harmless.run(command).shown();
        assert!(shown.contains("ignored 1 tensor "), "{command:?}: {shown}");
        assert!(!plain.run(command).shown().contains("ignored"), "{command:?}");
    }
    let values = |dir: &TestDir| fs::read(dir.path("out.safetensors")).unwrap();
    assert_eq!(values(&unused), values(&plain));
}

/// FP8 weights are refused by all commands; the command of the error makes a folder that loads.
#[test]
fn fp8_is_dequantized_by_the_command_that_the_error_names() {
    let dir = dir(&[]);
    let mut quantized = Model::new();
    for (name, tensor) in models::read(&dir.path("model")) {
        let is_quantized = name.ends_with("_proj.weight");
        if is_quantized {
            let seed = quantized.len() as u64;
            let fp8 = models::tensor(Dtype::F8E5M2, &tensor.shape, seed);
            let scale = models::tensor_of(Dtype::F32, &[0.25]);
            quantized
                .insert(format!("{name}_scale_inv"), models::Tensor { shape: vec![1, 1], ..scale });
            quantized.insert(name, fp8);
        } else {
            quantized.insert(name, tensor);
        }
    }
    models::folder(&dir.path("model"), &quantized);
    for command in COMMANDS {
        let error = dir.fails(&[command, &["--ignore-unused"]].concat());
        for part in ["quantized (fp8", "meshgrad ckpt convert DIR NEW --map qwen3-fp8.map"] {
            assert!(error.contains(part), "{command:?}: {error}");
        }
    }

    let config = dir.path("model/config.json");
    let text = fs::read_to_string(&config).unwrap();
    let method = "{\n  \"quantization_config\": { \"quant_method\": \"fp8\" },";
    fs::write(&config, text.replacen('{', method, 1)).unwrap();
    let error = dir.fails(COMMANDS[0]);
    assert!(error.contains("(fp8)") && error.contains("qwen3-fp8.map"), "{error}");

    let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/qwen3-fp8.map");
    fs::copy(map, dir.path("qwen3-fp8.map")).unwrap();
    dir.succeeds(&["ckpt", "convert", "model", "new", "--map", "qwen3-fp8.map"]);
    for command in COMMANDS {
        let on_new: Vec<&str> =
            command.iter().map(|it| if *it == "model" { "new" } else { *it }).collect();
        dir.succeeds(&on_new);
    }
    let new = models::read(&dir.path("new"));
    assert!(new.values().all(|tensor| tensor.dtype != Dtype::F8E5M2));
    assert_eq!(
        new.len(),
        quantized.len() - new.keys().filter(|it| it.ends_with("_proj.weight")).count()
    );
}
