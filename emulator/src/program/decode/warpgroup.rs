//! Asynchronous products of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix
//! Instructions").

use super::{Decoding, Result};
use crate::machine::registers::Slot;
use crate::numerics::fragment::Operand as Element;
use crate::program::op::{FactorA, Op, SharedFactor, WarpgroupMultiply};
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

impl<'i> Decoding<'_, '_, 'i> {
    pub(super) fn warpgroup(&mut self) -> Result<Op> {
        self.require_sm90a()?;
        for needed in ["sync", "aligned"] {
            if !self.opcode.take(needed) {
                return Err(format!("`wgmma` needs `.{needed}`"));
            }
        }
        if self.opcode.take("fence") {
            let [] = self.exactly()?;
            return Ok(Op::WarpgroupFence);
        }
        if self.opcode.take("commit_group") {
            let [] = self.exactly()?;
            return Ok(Op::CommitProducts);
        }
        if self.opcode.take("wait_group") {
            let [Operand::Integer(groups)] = self.exactly()? else {
                return Err("the operand of `wgmma.wait_group` must be a number".into());
            };
            return Ok(Op::WaitProducts((*groups).min(u64::from(u32::MAX)) as u32));
        }
        self.opcode.choose(&[("mma_async", ())])?;
        self.lowering.products = true;
        self.multiply_in_warpgroup()
    }

    fn multiply_in_warpgroup(&mut self) -> Result<Op> {
        let shape = self.opcode.take_first(|it| it.starts_with("m64n"));
        let columns = shape.and_then(columns).ok_or_else(|| {
            let text = self.opcode.text;
            format!("`{text}` needs a shape m64nNk16, where N is a multiple of 8 up to 256")
        })?;
        let [d, a, b] = [self.opcode.kind()?, self.opcode.kind()?, self.opcode.kind()?];
        let element = match (d, a, b) {
            (Type::F32, Type::BF16, Type::BF16) => Element::Bf16,
            (Type::F32, Type::F16, Type::F16) => Element::F16,
            _ => return self.opcode.wrong_type(if d == Type::F32 { a } else { d }),
        };
        let [d, a, b, accumulates, rest @ ..] = self.operands else {
            return Err("expected D, A, B and the predicate that adds D".into());
        };
        let d = self.distinct_registers(d, columns / 2, "D")?;
        let numbers = rest.iter().map(immediate).collect::<Result<Vec<_>>>()?;
        let in_registers = matches!(a, Operand::Vector(_));
        let (signs, transposed) = match (numbers.as_slice(), in_registers) {
            ([x, y, a, b], false) => ([*x, *y], [*a, *b]),
            ([x, y, b], true) => ([*x, *y], [0, *b]),
            (given, _) => {
                let expected = if in_registers { 3 } else { 4 };
                let given = given.len();
                return Err(format!(
                    "`wgmma.mma_async` has {given} numbers after the predicate; expected {expected}"
                ));
            }
        };
        let [x, y] = signs;
        let [negates_a, negates_b] = [one_of(x, [1, -1], "scale")?, one_of(y, [1, -1], "scale")?];
        let [a_transposed, b_transposed] = transposed;
        let a = match in_registers {
            true => {
                let registers = self.distinct_registers(a, 4, "A")?;
                FactorA::Registers(std::array::from_fn(|index| registers[index]))
            }
            false => FactorA::Shared(self.shared_factor(a, a_transposed)?),
        };
        Ok(Op::WarpgroupMultiply(WarpgroupMultiply {
            element,
            d,
            a,
            b: self.shared_factor(b, b_transposed)?,
            accumulates: self.lowering.predicate_source(accumulates)?,
            negates: negates_a != negates_b,
        }))
    }

    fn shared_factor(&mut self, operand: &Operand, transposed: i64) -> Result<SharedFactor> {
        Ok(SharedFactor {
            descriptor: self.lowering.source(operand, Type::B64)?,
            transposed: one_of(transposed, [0, 1], "transposition")?,
        })
    }

    /// The registers of a fragment, all different.
    fn distinct_registers(
        &mut self,
        operand: &Operand,
        expected: usize,
        name: &str,
    ) -> Result<Vec<Slot>> {
        let registers = self.registers_of(operand, Type::B32)?;
        let given = registers.len();
        if given != expected {
            return Err(format!("{name} has {given} registers; expected {expected}"));
        }
        let mut sorted = registers.clone();
        sorted.sort_unstable();
        match sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            true => Err(format!("{name} uses a register twice")),
            false => Ok(registers),
        }
    }

    /// `setmaxnreg` has no effect here, because the emulator has no register limit.
    pub(super) fn set_register_limit(&mut self) -> Result<Op> {
        self.require_sm90a()?;
        self.opcode.choose(&[("inc", ()), ("dec", ())])?;
        for needed in ["sync", "aligned"] {
            self.opcode.choose(&[(needed, ())])?;
        }
        self.opcode.kind()?;
        let [Operand::Integer(count)] = self.exactly()? else {
            return Err("the operand of `setmaxnreg` must be a number".into());
        };
        match *count {
            24..=256 if count.is_multiple_of(8) => Ok(Op::Nothing),
            _ => Err(format!(
                "`setmaxnreg` sets {count} registers; the count must be a multiple of 8 from 24 to \
                 256"
            )),
        }
    }

    fn require_sm90a(&self) -> Result<()> {
        match self.lowering.is_sm90a() {
            true => Ok(()),
            false => Err(format!(
                "`{}` requires `.target sm_90a`; the module's target is sm_{}",
                self.opcode.text,
                self.lowering.target()
            )),
        }
    }
}

/// N of a shape `m64nNk16`.
fn columns(shape: &str) -> Option<usize> {
    let columns = shape.strip_prefix("m64n")?.strip_suffix("k16")?;
    let columns = columns.parse().ok()?;
    (matches!(columns, 8..=256) && columns % 8 == 0).then_some(columns)
}

fn immediate(operand: &Operand) -> Result<i64> {
    match operand {
        Operand::Integer(bits) => Ok(*bits as i64),
        other => Err(format!("`{other}` must be a number")),
    }
}

/// Whether a number is the second of two possible values.
fn one_of(number: i64, [first, second]: [i64; 2], what: &str) -> Result<bool> {
    match number {
        _ if number == first => Ok(false),
        _ if number == second => Ok(true),
        _ => Err(format!("the {what} {number} must be {first} or {second}")),
    }
}
