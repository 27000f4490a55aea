//! Calls of the functions that the driver provides: `vprintf` and `__assertfail`.

use super::lower::{Lowering, Result};
use super::op::{Op, SystemCall};
use super::signature::Signature;
use crate::ptx::syntax::Operand;

impl Lowering<'_> {
    /// Lowers a call of a driver function. Returns false if the driver has no such function.
    pub(super) fn system_call(
        &mut self,
        callee: &str,
        results: &[Operand],
        arguments: &[Operand],
        line: u32,
    ) -> Result<bool> {
        let (returns, parameters): (&[u32], &[u32]) = match callee {
            "vprintf" => (&[4], &[8, 8]),
            "__assertfail" => (&[], &[8, 8, 4, 8, 8]),
            _ => return Ok(false),
        };
        let signature = Signature::of_memory(returns, parameters);
        let (passed, returned, places) = self.passed_values(&signature, results, arguments)?;
        let call = match places[..] {
            [result, format, values] => SystemCall::Print { format, values, result },
            [message, file, line, function, _] => {
                SystemCall::Fail { message, file, line, function }
            }
            _ => return Ok(false),
        };
        self.push(line, Op::Pass(passed));
        self.push(line, Op::System(call));
        self.push(line, Op::Pass(returned));
        Ok(true)
    }
}
