//! A training whose memory moves to the host between steps, on the CPU, a GPU, and several ranks.

use meshgrad_autograd::Module;
use meshgrad_collectives::redistribute;
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_data_parallel::{DataParallel, Reshard, Strategy};
use meshgrad_mesh::{Mesh, Placement};
use meshgrad_models::families::qwen3::Qwen3Config;
use meshgrad_models::{Compute, Decoder, Model, TokenBatch};
use meshgrad_runtime::{DType, Device, Tensor, ops};
use meshgrad_train::Error;
use meshgrad_train::config::{Config, NoTables};
use meshgrad_train::sleep::Kept;
use meshgrad_train::trainer::Trainer;

use crate::gpu::gpu;

const MODEL: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 37
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 2
    num_experts = 4
    num_experts_per_tok = 2
    moe_intermediate_size = 24
"#;

const STEPS: u64 = 6;
const ROWS: usize = 7;
const TOKENS: usize = 8;

type Values = Vec<(String, Vec<f32>)>;

fn config() -> Config {
    let sets = ["train.dtype=bf16", "optimizer.ema_decay=0.9"];
    let sets = sets.map(|set| set.parse().unwrap());
    Config::parse::<NoTables>("", "the test", &sets).unwrap()
}

fn model() -> Decoder {
    let mut model = Decoder::new(&toml::from_str::<Qwen3Config>(MODEL).unwrap()).unwrap();
    model.add_router_biases();
    model
}

/// This rank's rows of a batch.
fn batch(device: &Device, step: u64) -> Result<TokenBatch, Error> {
    let count = ROWS * TOKENS;
    let ids = |by: usize| -> Result<Tensor, Error> {
        let id = |at: usize| ((at * by + at * at + step as usize) % 37) as i64;
        let ids: Vec<i64> = (0..count).map(id).collect();
        let whole = Tensor::from_slice(device, &[ROWS, TOKENS], &ids)?.as_replicated()?;
        match whole.sharding() {
            Some(_) => Ok(redistribute(&whole, &[("dp", Placement::shard(0))])?),
            None => Ok(whole),
        }
    };
    Ok(TokenBatch::new(&ids(11)?, &ids(17)?))
}

fn step(trainer: &mut Trainer<Decoder>, device: &Device, step: u64) -> Result<f64, Error> {
    let done = trainer.step(step, [batch(device, step), batch(device, step + 100)])?;
    Ok(done.wait(&trainer.model)?.loss)
}

/// What the training keeps, and its losses.
fn outcome(trainer: &Trainer<Decoder>, losses: Vec<f64>) -> Result<Values, Error> {
    let mut tensors = Vec::new();
    for param in trainer.model.params() {
        tensors.push((param.name().to_owned(), param.kept_value()?));
    }
    for buffer in trainer.model.buffers() {
        tensors.push((buffer.name().to_owned(), buffer.value()?));
    }
    for state in trainer.optimizer.state() {
        let name = |of: String| format!("{} of {of}", state.name);
        tensors.extend(state.tensors.into_iter().map(|(of, it)| (name(of), it)));
    }
    let losses = losses.into_iter().map(|loss| loss as f32).collect();
    let mut values = vec![("losses".to_owned(), losses)];
    for (name, tensor) in tensors {
        values.push((name, ops::cast(&tensor.local(), DType::F32)?.to_vec()?));
    }
    Ok(values)
}

/// Trains `model`, and calls `between` before each step but the first.
fn train(
    model: Decoder,
    device: &Device,
    mut between: impl FnMut(&mut Trainer<Decoder>) -> Result<(), Error>,
) -> Result<Values, Error> {
    model.materialize(device, 3)?;
    let mut trainer = Trainer::new(model, &config(), device)?;
    let mut losses = Vec::new();
    for at in 1..=STEPS {
        if at > 1 {
            between(&mut trainer)?;
        }
        losses.push(step(&mut trainer, device, at)?);
    }
    outcome(&trainer, losses)
}

/// Uses memory that others may have used before.
fn overwrite_free_memory(device: &Device) -> Result<(), Error> {
    let sizes = [64, 256, 1024, 4096, 16384].repeat(40).into_iter();
    let filled = sizes.map(|size| ops::full(device, &[size], DType::F32, 9.0));
    filled.collect::<Result<Vec<_>, _>>()?;
    Ok(())
}

fn is_asleep(error: &Error) -> bool {
    error.to_string().contains("the tensor is asleep")
}

/// Each part may sleep alone. What sleeps has no memory on a GPU.
#[test]
fn a_training_continues_with_the_same_bits() {
    for device in [Device::cpu(), gpu()] {
        let expected = train(model(), &device, |_| Ok(())).unwrap();
        let rest = [Kept::Gradients, Kept::Optimizer];
        let naps = [&Kept::ALL[..], &rest, &rest[..1], &rest[1..], &[Kept::Model]];
        let mut naps = naps.into_iter();
        let actual = train(model(), &device, |trainer| {
            let nap = naps.next().unwrap();
            let awake = device.memory_stats().live;
            trainer.sleep(nap)?;
            trainer.sleep(nap)?;
            if device.is_gpu() && nap == Kept::ALL {
                let asleep = device.memory_stats().live;
                assert!(asleep * 50 < awake, "{asleep} of {awake}");
            }
            overwrite_free_memory(&device)?;
            let refused = step(trainer, &device, 9).unwrap_err();
            assert!(is_asleep(&refused), "{refused}");
            if nap == rest {
                // The model computes, with its own weights.
                let compute = Compute::new(DType::F32);
                let loss = trainer.model.loss(&batch(&device, 3)?, compute)?;
                assert!(loss.sum.to_vec::<f32>()?[0] > 0.0);
                // A step needs everything awake.
                trainer.wake(&rest[..1])?;
                assert!(is_asleep(&step(trainer, &device, 9).unwrap_err()));
            }
            trainer.wake(&Kept::ALL)
        });
        assert_eq!(actual.unwrap(), expected, "{device}");
    }
}

/// A tensor that wakes without its values changes the result.
#[test]
fn a_lost_value_is_found() {
    let device = gpu();
    let expected = train(model(), &device, |_| Ok(())).unwrap();
    let lost = train(model(), &device, |trainer| {
        let (_, moment) = trainer.optimizer.state()[0].tensors.remove(2);
        moment.sleep_without_values()?;
        trainer.sleep(&Kept::ALL)?;
        overwrite_free_memory(&device)?;
        trainer.wake(&Kept::ALL)
    });
    assert_ne!(lost.unwrap(), expected);
}

fn on_rank(
    rank: &dyn Rank,
    home: &Strategy,
    between: impl FnMut(&mut Trainer<Decoder>) -> Result<(), Error>,
) -> Result<Values, Error> {
    let mesh = Mesh::new(&[rank.world_size()], &["dp"]).unwrap();
    Redistributor::new(rank).run_on(&mesh, || {
        let model = model();
        let homes = DataParallel::new(rank, &mesh, home.clone());
        homes.unit("model.layers.*", home.clone()).apply(&model)?;
        train(model, rank.device(), between)
    })
}

/// Gathered values are freed, and gathered again.
#[test]
fn all_ranks_sleep() {
    let gathered_once = Strategy::fsdp(["dp"]).reshard(Reshard::AfterStep);
    let homes = [Strategy::fsdp(["dp"]), gathered_once, Strategy::replicate(["dp"])];
    for home in homes {
        let expected = Local::run(3, |rank| on_rank(rank, &home, |_| Ok(()))).unwrap();
        let actual = Local::run(3, |rank| {
            on_rank(rank, &home, |trainer| {
                trainer.sleep(&Kept::ALL)?;
                for param in trainer.model.params() {
                    let error = ops::copy(&param.kept_value()?).unwrap_err().to_string();
                    assert!(error.contains(": the tensor is asleep; call `wake`"), "{error}");
                }
                trainer.wake(&Kept::ALL)
            })
        });
        assert!(actual.unwrap() == expected, "{home:?}");
    }
}
