//! A macro-assembler for PTX: kernels are Rust functions that write instructions.
//!
//! A register is a small `Copy` value ([`F32`], [`U32`], [`Pred`], ...) with a type and a reference
//! to its [`Kernel`]. Operators and methods on it emit one instruction each and return the register
//! that holds the result:
//!
//! ```
//! use meshgrad_kernels::assembler::{ArgumentFor, Kernel, Out, Target};
//!
//! meshgrad_kernels::params! {
//!     struct ScaleArguments => Scale {
//!         x: Out,
//!         n: u32,
//!     }
//! }
//!
//! let k = &Kernel::new("scale", Target::Sm80, 128);
//! let Scale { x, n } = ScaleArguments::declare(k, "", &());
//!
//! let i = k.cta() * 128 + k.thread();
//! k.if_(i.lt(n), || {
//!     let element = x.element::<f32>(i);
//!     element.store(element.load::<f32>() * 2.0);
//! });
//!
//! let ptx = k.finish();
//! assert!(ptx.text.contains("mul.rn.f32"));
//! ```
//!
//! What runs when:
//!
//! - Rust's `for` and `if` run while the kernel is written: they unroll and specialize.
//! - [`Kernel::if_`], [`Kernel::for_range`] and [`Kernel::while_`] run on the GPU.
//! - A register is written once. A value that changes in a loop is a [`Variable`], created by
//!   [`Kernel::var`].
//! - A macro is a plain function: [`warp_sum`] and [`block_sum`] are examples.
//!
//! Every instruction carries the Rust line that emitted it (`.loc`), so that a profiler, a debugger
//! and the emulator point at the Rust source. For a function marked `#[track_caller]`, this is the
//! caller's line.
//!
//! The assembler checks only types. `ptxas` checks that instructions are legal, allocates registers
//! and schedules instructions.
//!
//! Format and instructions: PTX ISA 7.8 and 8.3 (docs.nvidia.com/cuda/parallel-thread-execution).

mod async_copy;
mod barrier;
mod block;
mod control;
mod conversions;
mod kernel;
mod lanes;
mod launch;
mod memory;
mod operators;
mod pairs;
mod params;
mod register;
mod shared;
mod tensor_core;
mod warpgroup;

pub use barrier::Barrier;
pub use block::{
    Shuffle, block_exclusive_scan, block_prefix_sum, block_reduce, block_sum, group_max,
    group_reduce, group_sum, sum_across_groups, swap_with_neighbor, warp_sum,
};
pub use control::Variable;
pub use kernel::Kernel;
pub use launch::{Arguments, Launch, Parameter, ParameterKind, Ptx, Target};
pub use memory::{AddressVariable, GlobalAddress, Stored};
pub use operators::{Bits, Float, Integer, Number, Signed};
#[doc(hidden)]
pub use params::nested;
pub use params::{Argument, ArgumentFor, In, List, Out, Registers, Variant};
pub use register::{
    B16, Bf16, Bf16x2, F32, F64, Operand, Pair, Pred, Register, S32, S64, Scalar, U32, U64,
};
pub use shared::{STATIC_LIMIT, SharedAddress};
pub use tensor_core::{MatrixRow, mma_bf16};
pub use warpgroup::{GroupOperand, OPERAND_ALIGNMENT, Rows64, warpgroup_mma_bf16};
