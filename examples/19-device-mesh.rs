//! The scripts of PyTorch's recipe "Getting Started with DeviceMesh", on eight ranks of any launcher.
//!
//! ```text
//! cargo run --example 19-device-mesh                              # all of them, on eight threads
//! cargo run --example 19-device-mesh -- hsdp --device emulator    # on emulated GPUs
//! torchrun --no-python --nproc_per_node=8 --rdzv_id=100 --rdzv_endpoint=localhost:29400 \
//!     target/debug/examples/19-device-mesh 2d_setup
//! meshgrad launch -n 8 -- target/debug/examples/19-device-mesh 2d_setup_with_device_mesh
//! mpirun -n 8 target/debug/examples/19-device-mesh 3d_slice
//! ```

use meshgrad::collectives::full_tensor;
use meshgrad::comm::{Collectives, Local, Reduction};
use meshgrad::mesh::Group;
use meshgrad::prelude::*;
use meshgrad::train::config::Algorithm;
use meshgrad::train::optim::SgdConfig;

/// What a rank prints.
type Lines = Result<String, Box<dyn std::error::Error + Send + Sync>>;
type Script = (&'static str, fn(&dyn Rank) -> Lines);

const SCRIPTS: [Script; 4] = [
    ("2d_setup", setup_by_hand),
    ("2d_setup_with_device_mesh", setup_with_mesh),
    ("hsdp", hsdp),
    ("3d_slice", slice),
];

const ROWS: usize = 16; // of the batch of all ranks
/// The largest difference of a weight from one rank's: each of five steps rounds by at most 3e-8.
const TOLERANCE: f32 = 1.5e-7;

/// A rank's groups, and the sums of their ranks.
fn sums(rank: &dyn Rank, groups: &[(&str, Option<Group>)]) -> Lines {
    let mut line = format!("rank {}", rank.rank());
    for (name, group) in groups {
        let group = group.as_ref().ok_or("this rank is not in the mesh")?;
        let x = Tensor::scalar(rank.device(), rank.rank() as f32)?;
        let sum = rank.connect(name, group)?.all_reduce(&x, Reduction::Sum)?.wait()?;
        line += &format!("  {name} {group} sum {}", sum.item::<f32>()?);
    }
    Ok(line)
}

/// Groups by arithmetic on ranks.
fn setup_by_hand(rank: &dyn Rank) -> Lines {
    let (this, world) = (rank.rank(), rank.world_size());
    let shards = (world / 2).max(1);
    let first = this / shards * shards;
    let shard = Group::new((first..first + shards).collect::<Vec<_>>())?;
    let replicate = Group::new((this % shards..world).step_by(shards).collect::<Vec<_>>())?;
    let sums = sums(rank, &[("replicate", Some(replicate)), ("shard", Some(shard))])?;
    Ok(format!("Running example on rank={this} in a world with world_size={world}\n{sums}"))
}

/// The same groups by the names of axes.
fn setup_with_mesh(rank: &dyn Rank) -> Lines {
    let mesh_2d = Mesh::new(&[2, 4], &["replicate", "shard"])?;
    let group = |axis| mesh_2d.group([axis], rank.rank());
    sums(rank, &[("replicate", group("replicate")?), ("shard", group("shard")?)])
}

/// Groups of meshes that are selected from one of three axes.
fn slice(rank: &dyn Rank) -> Lines {
    let mesh_3d = Mesh::new(&[2, 2, 2], &["replicate", "shard", "tp"])?;
    let hsdp_mesh = mesh_3d.select(["replicate", "shard"])?;
    let tp_mesh = mesh_3d.select(["tp"])?;
    let group = |mesh: &Mesh, axes: &[&str]| mesh.group(axes, rank.rank());
    let hsdp = group(&hsdp_mesh, &["replicate", "shard"])?;
    let replicate = group(&hsdp_mesh, &["replicate"])?;
    let shard = group(&hsdp_mesh, &["shard"])?;
    let tp = group(&tp_mesh, &["tp"])?;
    sums(rank, &[("hsdp", hsdp), ("replicate", replicate), ("shard", shard), ("tp", tp)])
}

#[derive(Module)]
struct ToyModel {
    net1: Linear,
    net2: Linear,
}

impl ToyModel {
    fn new(device: &Device) -> Result<ToyModel> {
        let linear = |name, outputs| Linear::new(name, 10, outputs).bias(true);
        let model = ToyModel { net1: linear("net1", 10), net2: linear("net2", 5) };
        for param in model.params() {
            param.set(&numbers(device, param.shape(), 7)?)?;
        }
        Ok(model)
    }

    fn forward(&self, x: &Var) -> Result<Var> {
        self.net2.forward(&ops::relu(&self.net1.forward(x)?)?)
    }
}

/// Multiples of 1/16, which any program can compute again.
fn numbers(device: &Device, shape: &[usize], stride: usize) -> Result<Tensor> {
    let number = |at: usize| (stride * at % 13) as f32 / 16.0 - 0.375;
    let values: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_slice(device, shape, &values)
}

/// A tensor of the batch; a rank keeps some of its rows.
fn batch(device: &Device, features: usize, stride: usize) -> Result<Var> {
    let whole = numbers(device, &[ROWS, features], stride)?.as_replicated()?;
    let rows = ["dp_replicate", "dp_shard"].map(|axis| (axis, Placement::shard(0)));
    Ok(Var::constant(ops::redistribute(&whole, rows)?))
}

/// Returns the mean squared error of each step, and all weights after the last.
fn train(model: &ToyModel, device: &Device) -> Result<(Vec<f32>, Vec<f32>)> {
    let sgd = Algorithm::Sgd(SgdConfig::default());
    let config = OptimizerConfig { max_grad_norm: 0.0, ..OptimizerConfig::new(sgd, 0.1) };
    let mut optimizer = Optimizer::new(model, device, &config, 0)?;
    let (x, target, count) = (batch(device, 10, 3)?, batch(device, 5, 5)?, ROWS * 5);
    let weight = ops::full(device, &[], DType::F32, count as f64)?;
    let mut losses = Vec::new();
    for step in 1..=5 {
        let (squares, tape) = Tape::record(|| {
            let error = (&model.forward(&x)? - &target)?;
            ops::sum(&ops::square(&error)?, &[0, 1])
        })?;
        tape.backward(&squares, optimizer.grads())?;
        optimizer.step(&weight, step, config.learning_rate)?;
        losses.push(full_tensor(squares.value())?.item::<f32>()? / count as f32);
    }
    let weights = |param: &Param| full_tensor(param.var()?.value())?.to_vec::<f32>();
    let weights: Result<Vec<_>> = model.params().iter().map(weights).collect();
    Ok((losses, weights?.concat()))
}

/// A model that is sharded over one axis and copied over the other trains as on one rank.
fn hsdp(rank: &dyn Rank) -> Lines {
    let (mesh_2d, cpu) = (Mesh::new(&[2, 4], &["dp_replicate", "dp_shard"])?, Device::cpu());
    let model = ToyModel::new(rank.device())?;
    let strategy = Strategy::hsdp(["dp_shard"], ["dp_replicate"]);
    DataParallel::new(rank, &mesh_2d, strategy).apply(&model)?;
    let trained = Redistributor::new(rank).run_on(&mesh_2d, || train(&model, rank.device()));
    let ((losses, weights), (_, expected)) = (trained?, train(&ToyModel::new(&cpu)?, &cpu)?);

    let is_apart = |(a, b): &(&f32, &f32)| (*a - *b).abs().total_cmp(&TOLERANCE).is_gt();
    if let Some((weight, expected)) = weights.iter().zip(&expected).find(is_apart) {
        return Err(format!("a weight is {weight}, but {expected} on one rank").into());
    }
    let mut lines = format!("rank {0}  losses {losses:.4?}\nrank {0} keeps", rank.rank());
    for param in model.params() {
        let kept = param.kept();
        lines += &format!("  {} {:?} of {}", param.name(), kept.rows(), kept.count_of_all());
    }
    Ok(lines)
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_script = |argument: &&str| SCRIPTS.iter().any(|(name, _)| name == argument);
    let (chosen, options): (Vec<&str>, Vec<&str>) =
        arguments.iter().map(String::as_str).partition(is_script);
    let run = |rank: &dyn Rank| -> Lines {
        let scripts = SCRIPTS.iter().filter(|(name, _)| chosen.is_empty() || chosen.contains(name));
        let lines: Result<Vec<String>, _> = scripts.map(|(_, script)| script(rank)).collect();
        Ok(lines?.join("\n"))
    };
    let gpus = || (0..8).map(|_| Device::emulator(0)).collect::<Result<_>>();
    let lines = match options[..] {
        ["--ranks", threads] => ranks::run(threads.parse()?, run)?,
        ["--device", "emulator"] => Local::new(8).devices(gpus()?).launch(|rank| run(rank))?,
        [] => ranks::run(8, run)?,
        _ => {
            let names = SCRIPTS.map(|(name, _)| name).join("|");
            return Err(
                format!("usage: 19-device-mesh [{names}] [--ranks 8|--device emulator]").into()
            );
        }
    };
    println!("{}", lines.join("\n"));
    Ok(())
}
