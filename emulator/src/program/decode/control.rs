//! Control flow (PTX ISA 9.7.12). Calls and returns are lowered together with functions.

use super::{Decoding, Result};
use crate::program::op::Op;
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

impl Decoding<'_, '_, '_> {
    pub(super) fn control(&mut self) -> Result<Op> {
        // A hint that control flow is uniform; it is not relied on.
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
            // `pmevent` has no effect.
            _ => match self.exactly()? {
                [Operand::Integer(0..=15)] => Ok(Op::Nothing),
                [other] => Err(format!("`{other}` is not an event; events are 0 to 15")),
            },
        }
    }
}
