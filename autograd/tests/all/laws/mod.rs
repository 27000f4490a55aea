//! Laws of the backward pass, for any ops.

mod attention;
mod errors;
mod gradients;
mod parameters;
mod saving;
mod shapes;

use meshgrad_autograd::{Grads, Init, Param, Result, Tape, Var, checkpoint, ops};
use meshgrad_runtime::{Device, Tensor};

/// Parameters of a small network.
struct Net {
    device: Device,
    a: Param,
    b: Param,
}

impl Net {
    fn new() -> Net {
        let device = Device::cpu();
        let param = |name: &str| {
            let param = Param::new(name, [6, 6], Init::Normal { std: 0.4 });
            param.materialize(&device, 3).unwrap();
            param
        };
        let (a, b) = (param("a"), param("b"));
        Net { device, a, b }
    }

    fn params(&self) -> Vec<Param> {
        vec![self.a.clone(), self.b.clone()]
    }

    fn input(&self, salt: usize) -> Tensor {
        numbers(&self.device, &[4, 6], salt)
    }

    /// Uses `a` twice, once through a function of the weight only, and `b` once.
    fn forward(&self, x: &Var) -> Result<Var> {
        forward(&self.a, &self.b, x)
    }
}

fn forward(a: &Param, b: &Param, x: &Var) -> Result<Var> {
    let h = ops::silu(&ops::linear(x, &a.var()?)?)?;
    let scaled = ops::affine(&a.var()?, 0.5, 0.1)?;
    let h = ops::add(&ops::linear(&h, &scaled)?, x)?;
    ops::linear(&h, &b.var()?)
}

fn numbers(device: &Device, shape: &[usize], salt: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..count).map(|i| ((i * 3 + salt * 17) as f32 * 0.7).sin()).collect();
    Tensor::from_slice(device, shape, &numbers).unwrap()
}

fn bits(grads: &mut Grads) -> Vec<u32> {
    let all = grads.all().unwrap();
    all.iter().flat_map(|(_, g)| g.to_vec::<f32>().unwrap()).map(f32::to_bits).collect()
}

type Block = fn(&Net, &Var) -> Result<Var>;

#[derive(Clone, Copy, PartialEq)]
enum Backward {
    Full,
    WithInputs,
    Split,
    SplitOnAnotherThread,
}

/// Gradients of parameters and inputs over a few microbatches.
fn gradients(how: Backward, block: Block) -> (Vec<u32>, Vec<u32>) {
    let net = Net::new();
    let mut grads = Grads::new(&net.params()).unwrap();
    let mut of_inputs = Vec::new();
    for microbatch in 0..3 {
        let dy = net.input(9);
        let ((x, y), tape) = Tape::record(|| {
            let x = Var::input(net.input(microbatch));
            let y = block(&net, &x)?;
            Ok((x, y))
        })
        .unwrap();
        let dx = match how {
            Backward::Full => {
                tape.backward_from(&[(&y, dy)], &mut grads).unwrap();
                continue;
            }
            Backward::WithInputs => tape.backward_with(&[(&y, dy)], &[&x], &mut grads).unwrap(),
            Backward::Split => {
                let (dx, weights) = tape.backward_inputs(&[(&y, dy)], &[&x]).unwrap();
                weights.run(&mut grads).unwrap();
                dx
            }
            Backward::SplitOnAnotherThread => {
                let (dx, weights) = tape.backward_inputs(&[(&y, dy)], &[&x]).unwrap();
                std::thread::scope(|scope| {
                    scope.spawn(|| weights.run(&mut grads).unwrap()).join().unwrap();
                });
                dx
            }
        };
        of_inputs.extend(dx[0].to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()));
    }
    (bits(&mut grads), of_inputs)
}

fn plain(net: &Net, x: &Var) -> Result<Var> {
    net.forward(x)
}

fn checkpointed(net: &Net, x: &Var) -> Result<Var> {
    let (a, b) = (net.a.clone(), net.b.clone());
    let [y] = checkpoint([x], move |[x]| Ok([forward(&a, &b, &x)?]))?;
    Ok(y)
}

/// As [`plain`], but the function of the weight is computed first.
fn scaled_first(net: &Net, x: &Var) -> Result<Var> {
    let scaled = ops::affine(&net.a.var()?, 0.5, 0.1)?;
    let h = ops::silu(&ops::linear(x, &net.a.var()?)?)?;
    let h = ops::add(&ops::linear(&h, &scaled)?, x)?;
    ops::linear(&h, &net.b.var()?)
}

/// As [`scaled_first`], as nested checkpoints with two inputs, one of them computed from a weight.
fn nested(net: &Net, x: &Var) -> Result<Var> {
    let (a, b) = (net.a.clone(), net.b.clone());
    let scaled = ops::affine(&net.a.var()?, 0.5, 0.1)?;
    let [y] = checkpoint([x, &scaled], move |[x, scaled]| {
        let a = a.clone();
        let inner_x = x.clone();
        let [h] =
            checkpoint([&inner_x], move |[x]| Ok([ops::silu(&ops::linear(&x, &a.var()?)?)?]))?;
        let h = ops::add(&ops::linear(&h, &scaled)?, &x)?;
        Ok([ops::linear(&h, &b.var()?)?])
    })?;
    Ok(y)
}
