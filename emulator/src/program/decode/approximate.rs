//! Approximate floating-point functions.
use super::{Decoding, Result};
use crate::program::op::Op;
use crate::program::opcode::Type;
impl Decoding<'_, '_, '_> {
    pub(super) fn approximate_division(&mut self) -> Result<Op> {
        self.opcode.wrong_type(Type::F32)
    }
    pub(super) fn approximation(&mut self) -> Result<Op> {
        self.opcode.wrong_type(Type::F32)
    }
}
