//! Cache hints, which have no effect here (PTX ISA, "prefetch", "applypriority", "createpolicy").
//! Their operands are checked like those of other instructions.

use super::{Decoding, Result};
use crate::program::op::Op;
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

impl Decoding<'_, '_, '_> {
    pub(super) fn advice(&mut self) -> Result<Op> {
        if self.opcode.name == "createpolicy" {
            return self.policy();
        }
        // The grammar has checked the combination.
        self.opcode.take_where(|_| true);
        match self.opcode.name {
            "applypriority" => {
                let [address, bytes] = self.exactly()?;
                self.lowering.address(address)?;
                match bytes {
                    Operand::Integer(128) => Ok(Op::Nothing),
                    _ => Err("the size of `applypriority` must be 128".into()),
                }
            }
            _ => {
                let [address] = self.exactly()?;
                self.lowering.address(address)?;
                Ok(Op::Nothing)
            }
        }
    }

    /// A policy is an opaque number.
    fn policy(&mut self) -> Result<Op> {
        let to = if self.opcode.take("cvt") {
            let [to, property] = self.exactly()?;
            self.lowering.source(property, Type::B64)?;
            to
        } else if self.opcode.take("range") {
            let [to, address, primary, total] = self.exactly()?;
            self.lowering.address(address)?;
            self.lowering.source(primary, Type::U32)?;
            self.lowering.source(total, Type::U32)?;
            to
        } else if let [to] = self.operands {
            to
        } else {
            let [to, fraction] = self.exactly()?;
            self.fraction(fraction)?;
            to
        };
        self.opcode.take_where(|_| true);
        let to = self.lowering.destination(to, Type::B64)?;
        let from = self.lowering.source(&Operand::Integer(0), Type::B64)?;
        Ok(Op::Move { to, from, wide: true })
    }

    fn fraction(&mut self, operand: &Operand) -> Result<()> {
        self.lowering.source(operand, Type::F32)?;
        let fraction = match operand {
            Operand::Float32(bits) => f64::from(f32::from_bits(*bits)),
            Operand::Float64(bits) => f64::from_bits(*bits),
            _ => return Ok(()),
        };
        match fraction > 0.0 && fraction <= 1.0 {
            true => Ok(()),
            false => Err(format!("the fraction {fraction} must be above 0 and at most 1")),
        }
    }
}
