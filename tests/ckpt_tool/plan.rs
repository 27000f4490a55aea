//! `plan`: what it says is what loading does.

use std::fs;

use crate::models;
use crate::{Workplace, shown_without_times};

/// The map of the examples.
pub(crate) const FUSED: &str = include_str!("../../examples/qwen3-moe-fused.map");

const PLACES: &str = "
# experts by expert and by feature
model.layers.{l}.mlp.experts.gate_up_proj = ep:0 tp:1
model.layers.{l}.mlp.experts.down_proj    = ep:0 tp:2
model.layers.{l}.self_attn.o_proj.weight  = tp:1
{rest:path}.weight                        = tp:0
";

fn place() -> Workplace {
    let place = Workplace::new();
    models::folder(&place.path("model"), &models::qwen3());
    fs::write(place.path("fused.map"), FUSED).unwrap();
    fs::write(place.path("places"), PLACES).unwrap();
    place
}

#[test]
fn what_it_says() {
    let place = place();
    let layout = ["--mesh", "ep=3,tp=2", "--places", "places"];
    let plan = |more: &[&str]| place.ckpt(&[&["plan", "model"], more].concat());
    insta::assert_snapshot!(shown_without_times([
        plan(&[]),
        plan(&[&["--map", "fused.map", "--threads", "2"], &layout[..]].concat()),
        plan(&["--map", "fused.map", "--want", "model.layers.1.{r:path}"]),
        plan(&["--direct", "--bandwidth", "500MB/s"]),
        plan(&[&["--rank", "4", "--json", "--threads", "1"], &layout[..]].concat()),
        plan(&["--map", "fused.map", "--budget", "1KiB", "--threads", "1"]),
    ]));
}

/// All ranks together need each byte of what no two of them keep once, and read no gap if told so.
#[test]
fn ranks_share_what_is_split() {
    let place = place();
    fs::write(place.path("rows"), "{rest:path} = x:0").unwrap();
    let whole: usize = models::qwen3().values().map(|it| it.bytes.len()).sum();
    for ranks in 1..8 {
        let mesh = format!("x={ranks}");
        let arguments = ["plan", "model", "--json", "--gap", "0"];
        let layout = ["--mesh", &mesh, "--places", "rows"];
        let report = place.ckpt(&[&arguments[..], &layout].concat()).json();
        for key in ["needed_bytes", "read_bytes"] {
            let of_ranks = report["ranks"].as_array().unwrap().iter();
            let sum: u64 = of_ranks.map(|rank| rank[key].as_u64().unwrap()).sum();
            assert_eq!(sum, whole as u64, "{key} of {ranks} ranks");
        }
    }
}

/// Threads and the machine are no part of it.
#[test]
fn the_same_plan_has_the_same_digest() {
    let place = place();
    let digest = |more: &[&str]| {
        let all = [&["plan", "model", "--json"], more].concat();
        place.ckpt(&all).json()["ranks"][0]["digest"].clone()
    };
    assert_eq!(digest(&["--threads", "1"]), digest(&["--threads", "3"]));
    assert_ne!(digest(&[]), digest(&["--want", "lm_head.weight"]));
}
