//! Control flow (PTX ISA 9.7.12). Calls and returns are lowered with
//! the functions that they belong to.

use super::{Decoding, Result};
use crate::program::op::Op;
use crate::program::opcode::Type;

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
            "exit" => Ok(Op::Exit),
            "trap" | "brkpt" => Ok(Op::Trap),
            "nanosleep" => {
                self.opcode.kind()?;
                Ok(Op::Sleep)
            }
            _ => Ok(Op::Nothing),
        }
    }
}
