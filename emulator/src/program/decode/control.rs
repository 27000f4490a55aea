//! Control flow (PTX ISA 9.7.12). Calls and returns are lowered with
//! the functions that they belong to.

use super::{Decoding, Result};
use crate::program::op::Op;
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

impl Decoding<'_, '_, '_> {
    pub(super) fn control(&mut self) -> Result<Op> {
        // A hint that all lanes go the same way; they are asked anyway.
        self.opcode.take("uni");
        match self.opcode.name {
            "bra" => {
                let [label] = self.exactly()?;
                Ok(Op::Branch(self.lowering.label(label)?))
            }
            "brx" => {
                self.opcode.take("idx");
                let [index, targets] = self.exactly()?;
                Ok(Op::BranchIndexed {
                    index: self.lowering.source(index, Type::U32)?,
                    targets: self.lowering.targets(targets)?,
                })
            }
            "exit" => {
                let [] = self.exactly()?;
                Ok(Op::Exit)
            }
            "trap" | "brkpt" => {
                let [] = self.exactly()?;
                Ok(Op::Trap)
            }
            "nanosleep" => {
                let kind = self.opcode.kind()?;
                let [time] = self.exactly()?;
                self.lowering.source(time, kind)?;
                Ok(Op::Sleep)
            }
            // `pmevent`: nobody counts them.
            _ => match self.exactly()? {
                [Operand::Integer(0..=15)] => Ok(Op::Nothing),
                [other] => Err(format!("{other:?} is no event; they are 0 to 15")),
            },
        }
    }
}
