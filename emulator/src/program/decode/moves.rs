//! Moves between registers, and between address spaces (PTX ISA 9.7.9.1 to 9.7.9.7).

use super::{Decoding, Result};
use crate::machine::lanes::{Compute, Operands, lanes};
use crate::machine::shadow::{Rule, Shadow};
use crate::machine::windows;
use crate::program::op::{Op, PredicateSource};
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

/// The state spaces with a window in the generic address space.
const WINDOWS: [(&str, u64); 3] =
    [("shared", windows::SHARED), ("shared::cta", windows::SHARED), ("local", windows::LOCAL)];

/// A half of a 64-bit clock.
#[derive(Clone, Copy, PartialEq)]
enum Half {
    Low,
    High,
}

/// The clock registers (PTX ISA 10) and the half that they read; all read the same clock.
const CLOCKS: [(&str, Option<Half>); 6] = [
    ("%clock", Some(Half::Low)),
    ("%clock_hi", Some(Half::High)),
    ("%clock64", None),
    ("%globaltimer", None),
    ("%globaltimer_lo", Some(Half::Low)),
    ("%globaltimer_hi", Some(Half::High)),
];

impl Decoding<'_, '_, '_> {
    pub(super) fn moves(&mut self) -> Result<Op> {
        match self.opcode.name {
            "mov" => self.mov(),
            "cvta" => self.convert_address(),
            _ => self.is_space(),
        }
    }

    fn mov(&mut self) -> Result<Op> {
        let kind = self.opcode.kind()?;
        let [to, from] = self.exactly()?;
        if kind == Type::Predicate {
            let from = self.lowering.predicate_source(from)?;
            let to = self.lowering.predicate(to)?;
            let always = PredicateSource { index: None, negated: false };
            return Ok(Op::Predicates { to, from: [from, always], table: 0b1010 });
        }
        match (to, from) {
            (Operand::Vector(parts), from) => self.split(parts, from, kind),
            (to, Operand::Vector(parts)) => self.join(to, parts, kind),
            (to, Operand::Name(name)) if CLOCKS.iter().any(|(clock, _)| clock == name) => {
                self.clock(to, name, kind)
            }
            _ => {
                let wide = kind.bits() == 64;
                let from = self.lowering.source(from, kind)?;
                let to = self.lowering.destination(to, kind)?;
                Ok(Op::Move { to, from, wide })
            }
        }
    }

    fn clock(&mut self, to: &Operand, name: &str, kind: Type) -> Result<Op> {
        let clock = CLOCKS.iter().find(|(clock, _)| *clock == name);
        let half = clock.and_then(|(_, half)| *half);
        if kind.bits() != if half.is_some() { 32 } else { 64 } {
            return self.opcode.wrong_type(kind);
        }
        let to = self.lowering.destination(to, kind)?;
        let Some(Half::High) = half else {
            let wide = half.is_none();
            return Ok(Op::Clock { to, wide });
        };
        let now = self.lowering.names.new_register(true);
        self.lowering.push_before(Op::Clock { to: now, wide: true });
        Ok(Op::Split { to: vec![None, Some(to)], from: now, bits: 32 })
    }

    fn split(&mut self, parts: &[Operand], from: &Operand, kind: Type) -> Result<Op> {
        let from = self.lowering.source(from, kind)?;
        let bits = self.part_bits(kind, parts.len())?;
        let slots = parts.iter().map(|part| match self.lowering.register_or_sink(part)? {
            (Some(_), other) if other != bits => {
                Err(format!("a register of {other} bits cannot hold a part of {bits} bits"))
            }
            (slot, _) => Ok(slot),
        });
        let to = slots.collect::<Result<Vec<_>>>()?;
        Ok(Op::Split { to, from, bits })
    }

    fn join(&mut self, to: &Operand, parts: &[Operand], kind: Type) -> Result<Op> {
        let to = self.lowering.destination(to, kind)?;
        let bits = self.part_bits(kind, parts.len())?;
        let slots = parts.iter().map(|part| self.lowering.source_of_bits(part, bits, false));
        let from = slots.collect::<Result<Vec<_>>>()?;
        Ok(Op::Join { to, from, bits })
    }

    fn part_bits(&self, kind: Type, parts: usize) -> Result<u32> {
        match (kind, parts) {
            (Type::B16, 2) | (Type::B32 | Type::B64, 2 | 4) => Ok(kind.bits() / parts as u32),
            _ => self.opcode.wrong_type(kind),
        }
    }

    /// `cvta`: global, constant and parameter addresses are already generic.
    fn convert_address(&mut self) -> Result<Op> {
        let to_space = self.opcode.take("to");
        let window = self.opcode.take_any(&WINDOWS);
        let global = [("global", ()), ("const", ()), ("param", ())];
        if window.is_none() {
            self.opcode.choose(&global)?;
        }
        let kind = self.opcode.kind()?;
        let [to, from] = self.exactly()?;
        let source = self.lowering.source(from, kind)?;
        let destination = self.lowering.destination(to, kind)?;
        let Some(window) = window else {
            return Ok(Op::Move { to: destination, from: source, wide: kind.bits() == 64 });
        };
        if kind != Type::U64 {
            return self.opcode.wrong_type(kind);
        }
        let compute: Compute = match (window, to_space) {
            (windows::SHARED, true) => lanes!(|a: u64| -> u64 { a.wrapping_sub(windows::SHARED) }),
            (windows::SHARED, false) => lanes!(|a: u64| -> u64 { a.wrapping_add(windows::SHARED) }),
            (_, true) => lanes!(|a: u64| -> u64 { a.wrapping_sub(windows::LOCAL) }),
            (_, false) => lanes!(|a: u64| -> u64 { a.wrapping_add(windows::LOCAL) }),
        };
        Ok(Op::Compute {
            compute,
            operands: Operands {
                destination,
                sources: [source, 0, 0, 0],
                count: 1,
                ..Operands::default()
            },
            shadow: Shadow::new(Rule::Upward, [64, 64]),
            flops: 0,
        })
    }

    fn is_space(&mut self) -> Result<Op> {
        let space = self.opcode.choose(&[
            ("global", 0),
            ("shared", 1),
            ("shared::cta", 1),
            ("local", 2),
            ("const", 3),
        ])?;
        let [to, from] = self.exactly()?;
        let from = self.lowering.source(from, Type::U64)?;
        let to = self.lowering.predicate(to)?;
        Ok(Op::IsSpace { to, from, space })
    }
}
