//! CONTRIBUTING has an error of each crate.

use meshgrad::autograd::{Init, Param};
use meshgrad::collectives::current_redistribution;
use meshgrad::comm::{Local, Plan, Rank, Result};
use meshgrad::data_parallel::{DataParallel, Strategy};
use meshgrad::dist::parallel::{ParallelConfig, Parallelism, Settings, Source};
use meshgrad::kernels::copies::Format;
use meshgrad::kernels::tree_reduce::{TreeOp, TreeReduce};
use meshgrad::mesh::Mesh;
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::opcheck::cases::Case;
use meshgrad::opcheck::{Closeness, compare};
use meshgrad::pipeline::Named;
use meshgrad::runtime::{DType, Device, Tensor};
use meshgrad::train::config::Config;
use meshgrad::train::decoder::Tables;
use meshgrad::{ckpt, load, runtime};

type Example = fn() -> Result<()>;

const EXAMPLES: [(&str, Example); 14] = [
    ("mesh", || Mesh::new(&[2, 2], &["dp", "tp"])?.size("pt").map(drop)),
    ("dist", || {
        let mut settings = Settings::new();
        settings.world(8, Source::flag("--ranks"));
        settings.set(Parallelism::Tp, 3, Source::file("job.toml").at_line(4));
        Ok(ParallelConfig::new(&settings).map(drop)?)
    }),
    ("collectives", || current_redistribution().map(drop)),
    ("comm", || {
        let failing = |rank: &dyn Rank| match rank.rank() {
            0 => Ok(()),
            _ => Err("the disk is full"),
        };
        Local::run(2, |rank| failing(rank)).map(drop)
    }),
    ("data_parallel", || {
        let mesh = Mesh::new(&[1], &["dp"])?;
        let replicate = || Strategy::replicate(["dp"]);
        Plan::new(1)?.trace(0, |rank| {
            let homes = DataParallel::new(rank, &mesh, replicate()).unit("layers.*", replicate());
            homes.apply(&Param::new("weight", [2], Init::Ones))
        })?;
        Ok(())
    }),
    ("pipeline", || "1f2b".parse::<Named>().map(drop)),
    ("kernels", || TreeReduce::new(TreeOp::Sum, Format::F32, 0).map(drop)),
    ("runtime", || {
        let x = runtime::ops::full(&Device::cpu(), &[2, 3], DType::F32, 0.0)?;
        runtime::ops::matmul(&x, &x).map(drop)
    }),
    ("autograd", || Param::new("w", [2], Init::Ones).value().map(drop)),
    ("opcheck", || {
        let case = |value: f32| -> Result<Case> {
            let x = Tensor::from_slice(&Device::cpu(), &[1], &[value])?;
            Ok(Case::new("copy", vec![x], |x| Ok(x.to_vec())))
        };
        compare(&case(1.0)?, &case(2.0)?, Closeness::Elements(1e-3))
    }),
    ("ckpt", || ckpt::Folder::open("runs/step-000100").map(drop)),
    ("load", || load::stored_dtype(DType::I64).map(drop)),
    ("models", || Qwen3Config::from_json(r#"{"model_type": "llama"}"#).map(drop)),
    ("train", || Config::parse::<Tables>("[train]\nstep = 10", "tiny.toml", &[]).map(drop)),
];

#[test]
fn contributing_has_an_error_of_each_crate() {
    let lines = EXAMPLES.map(|(name, example)| {
        let error = example().unwrap_err();
        format!("{name} ({:?}): {error}\n", error.kind())
    });
    let printed = include_str!("../../CONTRIBUTING.md").replace("\n  ", " ");
    assert!(printed.contains(&lines.concat()), "{}", lines.concat());
}
