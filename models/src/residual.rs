//! The residual stream of a transformer.

use std::cell::OnceCell;
use std::ops::Add;

use meshgrad_autograd::{Result, Var, Vars, ops};

use crate::norms::{Norm, RmsNorm};

/// A running sum of the results of blocks: `x = (&x + block(&norm.of(&x)?)?)?`.
///
/// An addition is deferred to the next norm, which computes the sum and its norm in one pass
/// ([`ops::add_rms_norm`]). A stream that starts with a sum, as in a checkpointed layer, has the
/// same bits and gradients ([`ops::residual_rms_norm`]).
#[derive(Clone)]
pub struct Residual {
    base: Var,
    added: Option<Var>,
    /// `base + added`, once it is computed.
    sum: OnceCell<Var>,
}

impl Residual {
    /// A stream that starts with `x`.
    pub fn new(x: Var) -> Residual {
        Residual { base: x, added: None, sum: OnceCell::new() }
    }

    /// The sum.
    ///
    /// # Errors
    /// When shapes do not match.
    pub fn sum(&self) -> Result<Var> {
        if let Some(sum) = self.sum.get() {
            return Ok(sum.clone());
        }
        let sum = match &self.added {
            Some(added) => ops::add(&self.base, added)?,
            None => self.base.clone(),
        };
        Ok(self.sum.get_or_init(|| sum).clone())
    }
}

impl Vars for Residual {
    fn each_var(&mut self, f: &mut dyn FnMut(&mut Var)) {
        f(&mut self.base);
        self.added.each_var(f);
        self.sum = OnceCell::new();
    }
}

impl Norm {
    /// The norm of the sum of `x`.
    ///
    /// # Errors
    /// When shapes do not match.
    pub fn of(&self, x: &Residual) -> Result<Var> {
        match self {
            Norm::Rms(norm) => norm.of(x),
            Norm::Layer(norm) => norm.forward(&x.sum()?),
        }
    }
}

impl RmsNorm {
    /// The norm of the sum of `x`.
    ///
    /// # Errors
    /// When shapes do not match.
    pub fn of(&self, x: &Residual) -> Result<Var> {
        if let Some(sum) = x.sum.get() {
            return self.forward(sum);
        }
        let (sum, normed) = match &x.added {
            Some(added) => self.forward_sum(&x.base, added)?,
            None => self.forward_residual(&x.base)?,
        };
        x.sum.get_or_init(|| sum);
        Ok(normed)
    }
}

impl Add<Var> for &Residual {
    type Output = Result<Residual>;

    fn add(self, added: Var) -> Result<Residual> {
        Ok(Residual { base: self.sum()?, added: Some(added), sum: OnceCell::new() })
    }
}

#[cfg(test)]
mod tests {
    use meshgrad_autograd::{Grads, Module, Tape};
    use meshgrad_runtime::{DType, Device, Key, Tensor};

    use super::*;

    /// A stream gives the same sums, norms and gradients as separate additions and norms, whether
    /// the sum or the norm is computed first.
    #[test]
    fn a_residual_stream_equals_additions_and_norms() {
        let device = Device::cpu();
        let draw =
            |key| ops::normal(&device, &[3, 5], DType::F64, Key::new(key), 0.0, 1.0).unwrap();
        let norm = RmsNorm::new("norm", 5, 1e-6);
        norm.materialize(&device, 1).unwrap();
        let run = |body: &dyn Fn(Var, Var) -> Result<Var>| -> (Vec<f64>, Vec<Vec<f64>>) {
            let ((x, added, y), tape) = Tape::record(|| {
                let (x, added) = (Var::input(draw(1)), Var::input(draw(2)));
                let y = body(x.clone(), added.clone())?;
                Ok((x, added, y))
            })
            .unwrap();
            let mut grads = Grads::new(&norm.params()).unwrap();
            let (dx, weights) = tape.backward_inputs(&[(&y, draw(3))], &[&x, &added]).unwrap();
            weights.run(&mut grads).unwrap();
            let values = |tensor: &Tensor| tensor.to_vec::<f64>().unwrap();
            let dw = grads.get(&norm.weight).unwrap();
            let dw = ops::cast(&dw, DType::F64).unwrap();
            (values(y.value()), vec![values(&dx[0]), values(&dx[1]), values(&dw)])
        };

        let plain = run(&|x, added| {
            let first = (&x + &norm.forward(&x)?)?;
            let second = (&first + &added)?;
            &second + &norm.forward(&second)?
        });
        let stream = run(&|x, added| {
            let x = Residual::new(x);
            let x = (&x + norm.of(&x)?)?;
            let x = (&x + added)?;
            (&x + norm.of(&x)?)?.sum()
        });
        let sum_first = run(&|x, added| {
            let x = Residual::new(x);
            let x = (&x + norm.of(&x)?)?;
            let x = (&x + added)?;
            x.sum()?;
            (&x + norm.of(&x)?)?.sum()
        });
        for other in [stream, sum_first] {
            let all =
                |(y, gradients): &(Vec<f64>, Vec<Vec<f64>>)| [&y[..], &gradients.concat()].concat();
            for (plain, other) in all(&plain).into_iter().zip(all(&other)) {
                // Weights have gradients in f32.
                assert!((plain - other).abs() <= 1e-6 * plain.abs().max(1.0), "{plain}, {other}");
            }
        }
    }
}
