//! `plan`: predicts what loading does.

use std::fs;

use crate::ckpt_tool::models;
use crate::ckpt_tool::shown_without_times;
use crate::test_dir::TestDir;

/// The example map.
pub(crate) const FUSED: &str = include_str!("../../../examples/qwen3-moe-fused.map");

const PLACEMENTS: &str = "
# experts by expert and by feature
model.layers.{l}.mlp.experts.gate_up_proj = ep:0 tp:1
model.layers.{l}.mlp.experts.down_proj    = ep:0 tp:2
model.layers.{l}.self_attn.o_proj.weight  = tp:1
{rest:path}.weight                        = tp:0
";

fn dir() -> TestDir {
    let dir = TestDir::new();
    models::folder(&dir.path("model"), &models::qwen3());
    fs::write(dir.path("fused.map"), FUSED).unwrap();
    fs::write(dir.path("placements"), PLACEMENTS).unwrap();
    dir
}

#[test]
fn output() {
    let dir = dir();
    let layout = ["--mesh", "ep=3,tp=2", "--placements", "placements"];
    let plan = |more: &[&str]| dir.ckpt(&[&["plan", "model"], more].concat());
    insta::assert_snapshot!(shown_without_times([
        plan(&[]),
        plan(&[&["--map", "fused.map", "--threads", "2"], &layout[..]].concat()),
        plan(&["--map", "fused.map", "--tensors", "model.layers.1.{r:path}"]),
        plan(&["--direct", "--bandwidth", "500MB/s"]),
        plan(
            &[&["--rank", "4", "--json", "--threads", "1", "--map", "fused.map"], &layout[..],]
                .concat(),
        ),
        plan(&["--map", "fused.map", "--budget", "1KiB", "--threads", "1"]),
    ]));
}

/// If tensors are fully sharded, the ranks together need each byte once. With `--gap 0` they read
/// only needed bytes.
#[test]
fn ranks_together_read_each_sharded_byte_once() {
    let dir = dir();
    fs::write(dir.path("rows"), "{rest:path} = x:0").unwrap();
    let whole: usize = models::qwen3().values().map(|it| it.bytes.len()).sum();
    for ranks in 1..8 {
        let mesh = format!("x={ranks}");
        let arguments = ["plan", "model", "--json", "--gap", "0"];
        let layout = ["--mesh", &mesh, "--placements", "rows"];
        let report = dir.ckpt(&[&arguments[..], &layout].concat()).json();
        for key in ["needed_bytes", "read_bytes"] {
            let of_ranks = report["ranks"].as_array().unwrap().iter();
            let sum: u64 = of_ranks.map(|rank| rank[key].as_u64().unwrap()).sum();
            assert_eq!(sum, whole as u64, "{key} of {ranks} ranks");
        }
    }
}

/// The digest depends on the loaded tensors, but not on the number of threads.
#[test]
fn equal_plans_have_equal_digests() {
    let dir = dir();
    let digest = |more: &[&str]| {
        let all = [&["plan", "model", "--json"], more].concat();
        dir.ckpt(&all).json()["ranks"][0]["digest"].clone()
    };
    assert_eq!(digest(&["--threads", "1"]), digest(&["--threads", "3"]));
    assert_ne!(digest(&[]), digest(&["--tensors", "lm_head.weight"]));
}
