//! Resolution of operands to registers, predicates, addresses and labels.

use super::grammar;
use super::kernel::{Constant, Special};
use super::lower::{Lowering, Result};
use super::names::Symbol;
use super::op::{Address, PredicateSource, Space};
use super::opcode::Type;
use crate::machine::registers::Slot;
use crate::numerics::Approximation;
use crate::ptx::syntax::{Base, Operand};

impl Lowering<'_> {
    /// The register that holds a source of type `kind`: a declared register, a constant or a
    /// special register.
    pub(crate) fn source(&mut self, operand: &Operand, kind: Type) -> Result<Slot> {
        self.source_of_bits(operand, kind.bits(), kind.is_float())
    }

    /// [`Lowering::source`] for a type given by its size.
    pub(crate) fn source_of_bits(
        &mut self,
        operand: &Operand,
        bits: u32,
        float: bool,
    ) -> Result<Slot> {
        let wide = bits == 64;
        match operand {
            Operand::Name(name) => self.named_source(name, 0, bits),
            Operand::Offset(name, offset) => self.named_source(name, *offset, bits),
            number => {
                let constant = immediate(number, bits, float)?;
                Ok(self.names.constant(Constant::Bits(constant), wide))
            }
        }
    }

    fn named_source(&mut self, name: &str, offset: i64, wanted: u32) -> Result<Slot> {
        let wide = wanted == 64;
        match self.names.find(name) {
            Some(Symbol::Register { slot, bits }) if offset == 0 => match *bits == wanted {
                true => Ok(*slot),
                false => Err(format!("`{name}` has {bits} bits; the instruction needs {wanted}")),
            },
            Some(Symbol::Variable { address, .. }) => {
                let address = moved(*address, offset);
                Ok(self.names.constant(address, wide))
            }
            Some(_) => Err(format!("`{name}` cannot be used as a value")),
            None if name == "WARP_SZ" => Ok(self.names.constant(Constant::Bits(32), wide)),
            None => match Special::parse(name) {
                Some(special) if special.is_wide() == wide => Ok(self.names.special(special)),
                Some(_) => {
                    Err(format!("the special register `{name}` does not have {wanted} bits"))
                }
                None => match self.module.functions.address(name) {
                    Some(address) if wide && offset == 0 => {
                        Ok(self.names.constant(Constant::Bits(address), true))
                    }
                    _ => {
                        let reason = grammar::reason(name);
                        Err(format!("`{name}` is not declared{reason}"))
                    }
                },
            },
        }
    }

    /// The register for a result of type `kind`.
    pub(crate) fn destination(&mut self, operand: &Operand, kind: Type) -> Result<Slot> {
        let (slot, bits) = self.register(operand)?;
        match bits == kind.bits() {
            true => Ok(slot),
            false => Err(format!("a register of {bits} bits cannot hold {kind}")),
        }
    }

    /// The seed that perturbs approximate functions, of 31 bits; zero for none.
    pub(crate) fn perturbation(&self) -> u32 {
        match self.module.approximation {
            Approximation::Rounded => 0,
            Approximation::Perturbed { seed } => (seed as u32 & 0x7fff_ffff).max(1),
        }
    }

    /// The architecture that the module is written for, such as 80.
    pub(crate) fn target(&self) -> u32 {
        self.module.target
    }

    /// Whether the module is written for sm_90a.
    pub(crate) fn is_sm90a(&self) -> bool {
        self.module.is_sm90a
    }

    /// The predicate that holds the carry flag.
    pub(crate) fn carry(&mut self) -> Slot {
        *self.carry.get_or_insert_with(|| self.names.new_predicate())
    }

    /// A register and its size.
    pub(crate) fn register(&self, operand: &Operand) -> Result<(Slot, u32)> {
        let Operand::Name(name) = operand else {
            return Err(format!("`{operand}` is not a register"));
        };
        match self.names.find(name) {
            Some(Symbol::Register { slot, bits }) => Ok((*slot, *bits)),
            Some(_) => Err(format!("`{name}` is not a register")),
            None => Err(format!("`{name}` is not declared")),
        }
    }

    /// A register or the sink `_`.
    pub(crate) fn register_or_sink(&self, operand: &Operand) -> Result<(Option<Slot>, u32)> {
        match operand {
            Operand::Name(name) if name == "_" => Ok((None, 0)),
            _ => self.register(operand).map(|(slot, bits)| (Some(slot), bits)),
        }
    }

    pub(crate) fn predicate(&self, operand: &Operand) -> Result<Slot> {
        let Operand::Name(name) = operand else {
            return Err(format!("`{operand}` is not a predicate"));
        };
        match self.names.find(name) {
            Some(Symbol::Predicate(index)) => Ok(*index),
            Some(_) => Err(format!("`{name}` is not a predicate")),
            None => Err(format!("`{name}` is not declared")),
        }
    }

    pub(crate) fn predicate_source(&self, operand: &Operand) -> Result<PredicateSource> {
        match operand {
            Operand::Not(name) => Ok(PredicateSource {
                index: Some(self.predicate(&Operand::Name(name.clone()))?),
                negated: true,
            }),
            Operand::Integer(value) => {
                Ok(PredicateSource { index: None, negated: *value == 0 || *value == u64::MAX - 1 })
            }
            _ => Ok(PredicateSource { index: Some(self.predicate(operand)?), negated: false }),
        }
    }

    /// An address, and the space of the variable that it refers to, if any.
    pub(crate) fn address(&mut self, operand: &Operand) -> Result<(Address, Option<Space>)> {
        let Operand::Address { base, offset } = operand else {
            return Err(format!("`{operand}` is not an address"));
        };
        let constant = |lowering: &mut Self, constant, space| {
            let address = Address {
                base: lowering.names.constant(constant, true),
                wide: true,
                offset: *offset,
            };
            (address, space)
        };
        let name = match base {
            Base::Absolute => return Ok(constant(self, Constant::Bits(0), None)),
            Base::Name(name) => name,
        };
        match self.names.find(name) {
            Some(Symbol::Register { slot, bits }) => {
                let address = Address { base: *slot, wide: *bits == 64, offset: *offset };
                Ok((address, None))
            }
            Some(Symbol::Variable { space, address }) => {
                let (space, address) = (*space, *address);
                Ok(constant(self, address, Some(space)))
            }
            Some(_) => Err(format!("`{name}` is not an address")),
            None => Err(format!("`{name}` is not declared")),
        }
    }

    /// The number of a label; `resolve_labels` replaces it by a position.
    pub(crate) fn label(&self, operand: &Operand) -> Result<u32> {
        let Operand::Name(name) = operand else {
            return Err(format!("`{operand}` is not a label"));
        };
        match self.names.find(name) {
            Some(Symbol::Label(label)) => Ok(*label as u32),
            _ => Err(format!("`{name}` is not a label")),
        }
    }

    /// The labels of a `brx.idx`.
    pub(crate) fn targets(&self, operand: &Operand) -> Result<Vec<u32>> {
        let Operand::Name(name) = operand else {
            return Err(format!("`{operand}` is not a list of labels"));
        };
        match self.names.find(name) {
            Some(Symbol::Targets(names)) => {
                let label = |name: &String| self.label(&Operand::Name(name.clone()));
                names.iter().map(label).collect()
            }
            _ => Err(format!("`{name}` is not a list of labels")),
        }
    }
}

/// The bits of a numeric operand (PTX ISA 4.5). As in ptxas, an integer is not a valid float, and
/// there are no 16-bit float literals.
fn immediate(operand: &Operand, bits: u32, float: bool) -> Result<u64> {
    match (operand, bits, float) {
        (Operand::Integer(value), 64, false) => Ok(*value),
        (Operand::Integer(value), 8 | 16 | 32, false) => Ok(value & ((1 << bits) - 1)),
        (Operand::Float32(value), 32, _) => Ok(u64::from(*value)),
        (Operand::Float64(value), 64, _) => Ok(*value),
        (Operand::Float64(value), 32, true) => {
            Ok(u64::from((f64::from_bits(*value) as f32).to_bits()))
        }
        (Operand::Integer(value), 32 | 64, true) => Err(format!(
            "expected a float of {bits} bits, got the integer {}; write {0}.0",
            *value as i64
        )),
        (other, ..) => {
            let what = if float { "float" } else { "value" };
            Err(format!("`{other}` is not a {what} of {bits} bits"))
        }
    }
}

fn moved(address: Constant, offset: i64) -> Constant {
    match address {
        Constant::Bits(bits) => Constant::Bits(bits.wrapping_add_signed(offset)),
        Constant::Shared(at) => Constant::Shared(at.wrapping_add_signed(offset as i32)),
        Constant::DynamicShared { align, offset: at } => {
            Constant::DynamicShared { align, offset: at.wrapping_add_signed(offset as i32) }
        }
        Constant::Frame { frame, offset: at } => {
            Constant::Frame { frame, offset: at.wrapping_add_signed(offset as i32) }
        }
    }
}
