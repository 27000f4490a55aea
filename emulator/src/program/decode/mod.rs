//! Decodes opcodes with operands to an [`Op`], by instruction family in the order of PTX ISA
//! chapter 9.

mod advice;
mod approximate;
mod arithmetic;
mod asynchronous;
mod barrier;
mod compare;
mod control;
mod convert;
mod float;
mod half;
mod logic;
mod matrix;
mod mbarrier;
mod memory;
mod moves;
mod rounding;
mod shadows;
mod simd_video;
mod warp;
mod warp_matrix;
mod warpgroup;

use super::grammar;
use super::lower::Lowering;
use super::op::Op;
use super::opcode::{Opcode, Type};
use crate::machine::lanes::{Compute, Operands};
use crate::ptx::syntax::{Instruction, Operand};

type Result<T> = std::result::Result<T, String>;

/// Decodes one instruction. The error message has no line.
pub(super) fn decode(lowering: &mut Lowering<'_>, instruction: &Instruction) -> Result<Op> {
    grammar::check(&instruction.opcode)?;
    let mut decoding = Decoding {
        lowering,
        opcode: Opcode::new(&instruction.opcode),
        operands: &instruction.operands,
    };
    let op = decoding.decode()?;
    decoding.opcode.finish()?;
    Ok(op)
}

/// An instruction being decoded.
struct Decoding<'d, 'm, 'i> {
    lowering: &'d mut Lowering<'m>,
    opcode: Opcode<'i>,
    operands: &'i [Operand],
}

impl<'i> Decoding<'_, '_, 'i> {
    fn decode(&mut self) -> Result<Op> {
        match self.opcode.name {
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "min" | "max" | "neg"
            | "abs" | "addc" | "subc" | "madc" | "mul24" | "mad24" | "sad" | "dp4a" | "dp2a" => {
                self.arithmetic()
            }
            "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" | "copysign" => {
                self.float_function()
            }
            "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "shf" | "bfe" | "bfi"
            | "bfind" | "brev" | "popc" | "clz" | "lop3" | "prmt" | "fns" | "bmsk" | "szext" => {
                self.logic()
            }
            "vadd2" | "vsub2" | "vavrg2" | "vabsdiff2" | "vmin2" | "vmax2" | "vset2" | "vadd4"
            | "vsub4" | "vavrg4" | "vabsdiff4" | "vmin4" | "vmax4" | "vset4" => self.simd_video(),
            "setp" | "set" | "selp" | "slct" | "testp" => self.comparison(),
            "mov" | "cvta" | "isspacep" => self.moves(),
            "cvt" => self.conversion(),
            "ld" | "ldu" | "st" => self.access(),
            "atom" | "red" => self.atomic(),
            "prefetch" | "prefetchu" | "applypriority" | "createpolicy" => self.advice(),
            "shfl" | "vote" | "match" | "redux" | "activemask" => self.warp(),
            "bra" | "brx" | "exit" | "trap" | "nanosleep" | "brkpt" | "pmevent" => self.control(),
            "bar" | "barrier" | "membar" | "fence" => self.barrier(),
            "mbarrier" => self.mbarrier(),
            "cp" => self.asynchronous(),
            "wgmma" => self.warpgroup(),
            "setmaxnreg" => self.set_register_limit(),
            "ldmatrix" | "movmatrix" | "mma" | "wmma" => self.matrix(),
            other => {
                let reason = grammar::reason(other);
                Err(format!("the instruction `{other}` is not supported{reason}"))
            }
        }
    }

    /// The operands. Fails unless there are `N`.
    fn exactly<const N: usize>(&self) -> Result<[&'i Operand; N]> {
        let all: Vec<_> = self.operands.iter().collect();
        let given = all.len();
        let name = self.opcode.name;
        all.try_into().map_err(|_| format!("`{name}` has {given} operands; expected {N}"))
    }

    /// The operands without the policy that `.L2::cache_hint` appends. The policy has no effect
    /// here, but must be present.
    fn without_policy(&mut self) -> Result<&'i [Operand]> {
        if !self.opcode.take("L2::cache_hint") {
            return Ok(self.operands);
        }
        let Some((policy, operands)) = self.operands.split_last() else {
            return Err("the policy of `.L2::cache_hint` is missing".into());
        };
        self.lowering.source(policy, Type::B64)?;
        Ok(operands)
    }

    /// Arithmetic whose result and sources all have one type.
    fn compute(&mut self, compute: Compute, kind: Type, flops: u8) -> Result<Op> {
        self.uniform(compute, kind, 0, flops)
    }

    /// [`Decoding::compute`] with a modifier.
    fn uniform(&mut self, compute: Compute, kind: Type, modifier: u32, flops: u8) -> Result<Op> {
        let kinds = vec![kind; 1 + usize::from(compute.sources)];
        self.compute_of(compute, &kinds, modifier, flops)
    }

    /// Arithmetic with the types of the result and of each source, and a modifier.
    fn compute_of(
        &mut self,
        compute: Compute,
        kinds: &[Type],
        modifier: u32,
        flops: u8,
    ) -> Result<Op> {
        if self.operands.len() != kinds.len() {
            let (name, given, expected) = (self.opcode.name, self.operands.len(), kinds.len());
            return Err(format!("`{name}` has {given} operands; expected {expected}"));
        }
        let mut operands = Operands {
            destination: self.lowering.destination(&self.operands[0], kinds[0])?,
            count: (kinds.len() - 1) as u8,
            modifier,
            ..Operands::default()
        };
        for (index, kind) in kinds.iter().enumerate().skip(1) {
            operands.sources[index - 1] = self.lowering.source(&self.operands[index], *kind)?;
        }
        Ok(Op::Compute { compute, operands, shadow: self.shadow(kinds), flops })
    }
}

/// The same arithmetic for every integer type: `integers!(kind, |a, b| ..)` is a [`Compute`] whose
/// body gets operands of the Rust type (`u16`, `i32`, ...). `None` for other types.
macro_rules! integers {
    ($kind:expr, |$($a:ident),+| $body:expr) => {
        match $kind {
            Type::U16 | Type::B16 => Some(integers!(@lanes u32 u16 u16, |$($a),+| $body)),
            Type::S16 => Some(integers!(@lanes u32 i16 u16, |$($a),+| $body)),
            Type::U32 | Type::B32 => Some(integers!(@lanes u32 u32 u32, |$($a),+| $body)),
            Type::S32 => Some(integers!(@lanes u32 i32 u32, |$($a),+| $body)),
            Type::U64 | Type::B64 => Some(integers!(@lanes u64 u64 u64, |$($a),+| $body)),
            Type::S64 => Some(integers!(@lanes u64 i64 u64, |$($a),+| $body)),
            _ => None,
        }
    };
    (@lanes $L:ty as $T:ty, $($rest:tt)*) => { integers!(@lanes $L $T $T, $($rest)*) };
    (@lanes $L:ident $T:ident $U:ident, |$($a:ident),+| $body:expr) => {
        $crate::machine::lanes::lanes!(|$($a: $L),+| -> $L {
            $(let $a = $a as $T;)+
            let out: $T = $body;
            <$L>::from(out as $U)
        })
    };
}

use integers;
