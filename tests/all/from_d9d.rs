//! The pretraining of d9d's example, at full size without data; and the commands of docs/from-d9d.md.

use std::{cell::Cell, fs, os::unix::fs::symlink, path::Path, process::Command};

use approx::assert_relative_eq;
use meshgrad::comm::{Plan, PlanRank, Rank, check_logs};
use meshgrad::prelude::*;
use meshgrad::train::{
    self, config::Config, decoder, metrics, optimizer::Optimizer, ranks::RunRanks,
};

use crate::test_dir::{MESHGRAD, Output, TestDir};

/// A step completes and fits 80 GB. Each expert is on one rank, and all else on two.
#[test]
fn the_pretraining_of_d9d_is_planned_at_full_size() {
    let (kept, file) = (Cell::new(0), "configs/qwen3-moe-d9d.toml".as_ref());
    let config = Config::read::<decoder::Tables>(Some(file), &[]).unwrap();
    let step = |rank: &PlanRank| -> train::Result<()> {
        let (device, ranks) = (rank.device(), RunRanks::new(rank, &config)?);
        ranks.on_mesh(|| {
            let (part, pipeline) = ranks.divide(&decoder::model(&config, 32768, None)?)?.unwrap();
            part.materialize(device, 1)?;
            let optimizer = Optimizer::new(&part, device, &config.optimizer, 1)?;
            let mut optimizer = optimizer.of_pipeline(&pipeline)?;
            let ids =
                ranks.own_part(&Tensor::from_slice(device, &[16, 1024], &[0i64; 16 << 10])?)?;
            let batches = (0..8).map(|_| Ok(TokenBatch::new(&ids, &ids)));
            let compute = Compute::new(DType::BF16);
            let sums = pipeline.accumulate(&part, compute, batches, optimizer.grads(), device)?;
            optimizer.step(&sums.weight, 1, 1e-3)?;
            let own: usize =
                part.params().iter().map(|it| it.kept_value().unwrap().elements()).sum();
            kept.set(kept.get() + own);
            assert!((16 * own..80_000_000_000).contains(&device.memory_stats().peak));
            Ok(())
        })
    };
    check_logs(&Plan::new(8).unwrap().trace_all(step).unwrap()).unwrap();
    let count = decoder::model(&config, 32768, None).unwrap().parameter_count();
    assert_eq!(kept.get() as u64, 2 * count.total() - count.experts);
}

/// In their order, in one folder. Eight ranks have the losses of one.
#[test]
fn the_commands_of_from_d9d_run() {
    let (dir, root) = (TestDir::new(), Path::new(env!("CARGO_MANIFEST_DIR")));
    ["configs", "docs"].iter().for_each(|it| symlink(root.join(it), dir.path(it)).unwrap());
    let page = fs::read_to_string(dir.path("docs/from-d9d.md")).unwrap();
    let is_command = |text: &&str| text.starts_with("sh\n") || text.starts_with("meshgrad ");
    let commands: Vec<_> = page.split('`').filter(is_command).collect();
    assert!(commands.len() >= 17, "{commands:?}");
    for text in commands {
        let command = text.trim_start_matches("sh\n").replace("meshgrad ", &format!("{MESHGRAD} "));
        Output::of(Command::new("sh").args(["-ec", &command]).current_dir(dir.path(""))).success();
    }
    let losses = |run| metrics::read(&dir.path(run).join("metrics.jsonl")).unwrap();
    let (eight, one) = (losses("eight"), losses("one"));
    assert_eq!((eight.len(), one.len()), (3, 3));
    for (eight, one) in eight.iter().zip(&one) {
        assert_relative_eq!(eight.loss, one.loss, max_relative = 1e-5);
        assert_relative_eq!(eight.grad_norm, one.grad_norm, max_relative = 1e-4);
    }
}
