//! SIMD on bytes and halfwords (PTX ISA, "SIMD Video Instructions"), without part selectors and
//! masks.

use super::{Decoding, Result};
use crate::machine::lanes::lanes;
use crate::numerics::simd_video::{Form, average};
use crate::program::op::Op;
use crate::program::opcode::Type;

/// The operation on all parts of the operands.
macro_rules! each_part {
    (|$a:ident, $b:ident| $operation:expr) => {
        lanes!(modifier = form; |a: u32, b: u32, c: u32| -> u32 {
            Form::from_bits(form).each_part([a, b, c], |$a, $b| $operation)
        })
    };
}

impl Decoding<'_, '_, '_> {
    pub(super) fn simd_video(&mut self) -> Result<Op> {
        let (name, halves) = match self.opcode.name.strip_suffix('2') {
            Some(name) => (name, true),
            None => (self.opcode.name.trim_end_matches('4'), false),
        };
        // The result of a comparison has no type.
        let signed_result = name != "vset" && self.is_signed()?;
        let form = Form::default()
            .with(Form::HALVES, halves)
            .with(Form::SIGNED_RESULT, signed_result)
            .with(Form::SIGNED_A, self.is_signed()?)
            .with(Form::SIGNED_B, self.is_signed()?);
        let compute = match name {
            "vadd" => each_part!(|a, b| a + b),
            "vsub" => each_part!(|a, b| a - b),
            "vavrg" => each_part!(|a, b| average(a, b)),
            "vabsdiff" => each_part!(|a, b| (a - b).abs()),
            "vmin" => each_part!(|a, b| a.min(b)),
            "vmax" => each_part!(|a, b| a.max(b)),
            _ => self.opcode.choose(&[
                ("eq", each_part!(|a, b| i32::from(a == b))),
                ("ne", each_part!(|a, b| i32::from(a != b))),
                ("lt", each_part!(|a, b| i32::from(a < b))),
                ("le", each_part!(|a, b| i32::from(a <= b))),
                ("gt", each_part!(|a, b| i32::from(a > b))),
                ("ge", each_part!(|a, b| i32::from(a >= b))),
            ])?,
        };
        let accumulates = self.opcode.take("add");
        let saturates = name != "vset" && !accumulates && self.opcode.take("sat");
        let form = form.with(Form::ACCUMULATES, accumulates).with(Form::SATURATES, saturates);
        self.uniform(compute, Type::U32, form.bits(), 0)
    }

    fn is_signed(&mut self) -> Result<bool> {
        match self.opcode.kind()? {
            Type::S32 => Ok(true),
            Type::U32 => Ok(false),
            other => self.opcode.wrong_type(other),
        }
    }
}
