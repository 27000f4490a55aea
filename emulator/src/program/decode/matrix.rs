//! Warp matrix instructions (PTX ISA 9.7.14): `mma.sync`, `ldmatrix`, `movmatrix`.

use super::{Decoding, Result};
use crate::machine::registers::Slot;
use crate::numerics::fragment::{Accumulator, MmaKind, Operand as Element};
use crate::program::op::{LoadMatrix, Multiply, Op};
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

impl Decoding<'_, '_, '_> {
    pub(super) fn matrix(&mut self) -> Result<Op> {
        for needed in ["sync", "aligned"] {
            if !self.opcode.take(needed) {
                return Err(format!("`{}` needs `.{needed}`", self.opcode.name));
            }
        }
        match self.opcode.name {
            "ldmatrix" => self.load_matrix(),
            "wmma" => self.warp_matrix(),
            "movmatrix" => {
                self.opcode.choose(&[("trans", ())])?;
                self.opcode.choose(&[("m8n8", ())])?;
                self.opcode.choose(&[("b16", ())])?;
                let [to, from] = self.exactly()?;
                let from = self.lowering.source(from, Type::B32)?;
                let to = self.lowering.destination(to, Type::B32)?;
                Ok(Op::TransposeMatrix { to, from })
            }
            _ => self.multiply(),
        }
    }

    fn load_matrix(&mut self) -> Result<Op> {
        self.opcode.choose(&[("m8n8", ())])?;
        let count = self.opcode.choose(&[("x1", 1), ("x2", 2), ("x4", 4)])?;
        let transposed = self.opcode.take("trans");
        let shared = [("shared", ()), ("shared::cta", ())];
        let generic = self.opcode.take_any(&shared).is_none();
        self.opcode.choose(&[("b16", ())])?;
        let [to, address] = self.exactly()?;
        let to = self.registers_of(to, Type::B32)?;
        if to.len() != count {
            return Err(format!("`ldmatrix` has {} registers for {count} matrices", to.len()));
        }
        Ok(Op::LoadMatrix(LoadMatrix {
            to,
            address: self.lowering.address(address)?.0,
            generic,
            transposed,
        }))
    }

    /// The registers of a vector, or a single register.
    pub(super) fn registers_of(&mut self, operand: &Operand, kind: Type) -> Result<Vec<Slot>> {
        match operand {
            Operand::Vector(parts) => {
                let slots = parts.iter().map(|it| self.lowering.destination(it, kind));
                slots.collect()
            }
            single => Ok(vec![self.lowering.destination(single, kind)?]),
        }
    }

    /// [`Decoding::registers_of`] for sources, which may be numbers.
    pub(super) fn sources_of(&mut self, operand: &Operand, kind: Type) -> Result<Vec<Slot>> {
        match operand {
            Operand::Vector(parts) => {
                let slots = parts.iter().map(|it| self.lowering.source(it, kind));
                slots.collect()
            }
            single => Ok(vec![self.lowering.source(single, kind)?]),
        }
    }

    fn multiply(&mut self) -> Result<Op> {
        let k = self.opcode.choose(&[
            ("m16n8k4", 4),
            ("m16n8k8", 8),
            ("m16n8k16", 16),
            ("m16n8k32", 32),
            ("m8n8k4", 0),
        ])?;
        self.opcode.choose(&[("row", ())])?;
        self.opcode.choose(&[("col", ())])?;
        let saturates = self.opcode.take("satfinite");
        let [d, a, b, c] =
            [self.opcode.kind()?, self.opcode.kind()?, self.opcode.kind()?, self.opcode.kind()?];
        let kind = match (k, a) {
            (0, Type::F64) if [d, b, c] == [Type::F64; 3] && !saturates => None,
            _ => match kind_of([d, a, b, c], k, saturates) {
                Some(kind) => Some(kind),
                None => return self.opcode.wrong_type(a),
            },
        };
        let register = if kind.is_some() { Type::B32 } else { Type::B64 };
        let [to, x, y, z] = self.exactly()?;
        let multiply = Multiply {
            kind,
            d: self.registers_of(to, register)?,
            a: self.sources_of(x, register)?,
            b: self.sources_of(y, register)?,
            c: self.sources_of(z, register)?,
        };
        let expected = match kind {
            None => [2, 1, 1, 2],
            Some(kind) => {
                let accumulators = kind.accumulator_registers();
                [accumulators, kind.a_registers(), kind.b_registers(), accumulators]
            }
        };
        let given = [&multiply.d, &multiply.a, &multiply.b, &multiply.c].map(Vec::len);
        if given != expected {
            return Err(format!("the operands have {given:?} registers; expected {expected:?}"));
        }
        Ok(Op::Multiply(multiply))
    }
}

fn kind_of([d, a, b, c]: [Type; 4], k: usize, saturates: bool) -> Option<MmaKind> {
    let element = |kind: Type| {
        Some(match kind {
            Type::F16 => Element::F16,
            Type::BF16 => Element::Bf16,
            Type::TF32 => Element::Tf32,
            Type::S8 => Element::S8,
            Type::U8 => Element::U8,
            _ => return None,
        })
    };
    let accumulator = match (d, c, saturates) {
        (Type::F32, Type::F32, false) => Accumulator::F32,
        (Type::F16, Type::F16, false) => Accumulator::F16,
        (Type::S32, Type::S32, false) => Accumulator::S32,
        (Type::S32, Type::S32, true) => Accumulator::SaturatedS32,
        _ => return None,
    };
    MmaKind::new(element(a)?, element(b)?, accumulator, k)
}
