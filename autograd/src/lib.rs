//! The tape: parameters, variables, and backward.
//!
//! Ops are recorded only while a [`Tape`] records; otherwise they save nothing. A backward closure
//! captures what it needs through [`Var::save`], and gets a [`Slot`] for each input:
//!
//! ```
//! use meshgrad_autograd::{Param, Result, Tape, Track, Var, Init, Grads, Module};
//! use meshgrad_runtime::{DType, Device, ops};
//!
//! /// x * x as a custom op.
//! fn squared(x: &Var) -> Result<Var> {
//!     let y = ops::square(x.value())?;
//!     let saved_x = x.save();
//!     y.tracked([x], move |dy, [dx]| dx.add(|| ops::square_grad(&saved_x.get()?, dy)))
//! }
//!
//! # fn main() -> Result<()> {
//! let device = Device::cpu();
//! let w = Param::new("w", [3], Init::Ones);
//! w.materialize(&device, 0)?;
//!
//! let (y, tape) = Tape::record(|| squared(&w.var()?))?;
//! let mut grads = Grads::new(&[w.clone()])?;
//! tape.backward_from(&[(&y, ops::full(&device, &[3], DType::F32, 1.0)?)], &mut grads)?;
//! assert_eq!(grads.get(&w)?.to_vec::<f32>()?, [2.0; 3]);
//! # Ok(())
//! # }
//! ```

mod backward;
mod beside;
mod checkpoint;
mod computed_once;
mod gathered;
mod gradcheck;
mod grads;
mod home;
mod kept;
mod local;
mod module;
mod nested;
mod norm;
mod operand;
mod operators;
pub mod ops;
mod param;
mod saved;
mod seam;
mod slot;
mod spec;
mod tape;
mod track;
mod values;
mod var;

pub use backward::WeightBackward;
pub use beside::beside;
pub use checkpoint::{Vars, checkpoint};
pub use gathered::{GatheredStorage, Regather};
pub use gradcheck::{Tolerance, gradcheck, weighted_roots};
pub use grads::Grads;
pub use home::{Home, HomeGradients, HomeUnit};
pub use kept::KeptRows;
pub use local::{LocalOperand, LocalResult, local};
pub use meshgrad_runtime::{Error, ErrorKind, Result};
pub use module::{Module, ModulePath, Visitor};
pub use operand::Operand;
pub use param::{Buffer, Param, end_pass};
pub use saved::{Packed, Packing, Save, Saved, ToBf16, ToDevice, packing};
pub use seam::Seam;
pub use slot::Slot;
pub use spec::{Init, ParamId, Spec};
pub use tape::{Tape, is_recording, precedes_backward};
pub use track::{Track, tracked_list_linear, tracked_many};
pub use values::Values;
pub use var::Var;

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/autograd.md")]
#[doc = include_str!("../../docs/sharding.md")]
struct Guide;
