//! Arithmetic on f16 and bf16.
use super::{Decoding, Result};
use crate::program::op::Op;
use crate::program::opcode::Type;
impl Decoding<'_, '_, '_> {
    pub(super) fn half_arithmetic(&mut self, kind: Type, _saturate: bool) -> Result<Op> {
        self.opcode.wrong_type(kind)
    }
    pub(super) fn approximate_division(&mut self) -> Result<Op> {
        self.opcode.wrong_type(Type::F32)
    }
    pub(super) fn approximation(&mut self) -> Result<Op> {
        self.opcode.wrong_type(Type::F32)
    }
    pub(super) fn conversion(&mut self) -> Result<Op> {
        self.opcode.wrong_type(Type::F32)
    }
    pub(super) fn matrix(&mut self) -> Result<Op> {
        self.opcode.wrong_type(Type::F32)
    }
}
