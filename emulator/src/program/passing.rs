//! The copies of arguments and results to and from the locations of a signature's values.

use super::kernel::Constant;
use super::lower::{Lowering, Result};
use super::names::Symbol;
use super::op::{Passed, Space};
use super::signature::{CallLocations, Shape, Signature, ValueLocation};
use crate::machine::registers::Slot;
use crate::ptx::syntax::{Operand, Parameter};

impl Lowering<'_> {
    /// The copies of a call's arguments and results, and the offsets of the results and arguments in
    /// local memory.
    pub(super) fn passed_values(
        &mut self,
        signature: &Signature,
        results: &[Operand],
        arguments: &[Operand],
    ) -> Result<(Vec<Passed>, Vec<Passed>, Vec<u32>)> {
        let locations = self.call_locations(signature);
        let passed = self.pass_values(arguments, &locations.parameters, true)?;
        let returned = self.pass_values(results, &locations.returns, false)?;
        let offset = |location: &ValueLocation| match location {
            ValueLocation::Memory { offset, .. } => Some(*offset),
            ValueLocation::Register { .. } | ValueLocation::Predicate(_) => None,
        };
        let all = locations.returns.iter().chain(&locations.parameters);
        Ok((passed, returned, all.filter_map(offset).collect()))
    }

    /// The locations of a signature's values. The first call for a signature allocates them.
    pub(super) fn call_locations(&mut self, signature: &Signature) -> CallLocations {
        if let Some(call_locations) = self.calls.handovers.get(signature) {
            return call_locations.clone();
        }
        let mut locations = |shapes: &[Shape]| -> Vec<ValueLocation> {
            shapes.iter().map(|shape| self.shared_location(*shape)).collect()
        };
        let call_locations = CallLocations {
            returns: locations(&signature.returns),
            parameters: locations(&signature.parameters),
        };
        let handovers = &mut self.calls.handovers;
        handovers.insert(signature.clone(), call_locations.clone());
        call_locations
    }

    fn shared_location(&mut self, shape: Shape) -> ValueLocation {
        match shape {
            Shape::Predicate => ValueLocation::Predicate(self.names.new_predicate()),
            Shape::Register { wide } => {
                ValueLocation::Register { slot: self.names.new_register(wide), wide }
            }
            Shape::Memory { bytes } => {
                let offset = self.local_bytes;
                self.local_bytes += bytes;
                ValueLocation::Memory { offset, bytes }
            }
        }
    }

    pub(super) fn pass_values(
        &mut self,
        operands: &[Operand],
        locations: &[ValueLocation],
        inward: bool,
    ) -> Result<Vec<Passed>> {
        if operands.len() != locations.len() {
            let (given, taken) = (operands.len(), locations.len());
            return Err(format!(
                "the call lists {given} arguments or results where the function declares {taken}"
            ));
        }
        let mut passed = Vec::new();
        for (operand, location) in operands.iter().zip(locations) {
            passed.push(self.pass(operand, *location, inward)?);
        }
        Ok(passed)
    }

    fn pass(&mut self, operand: &Operand, location: ValueLocation, inward: bool) -> Result<Passed> {
        let ordered = |caller, callee| {
            if inward { (callee, caller) } else { (caller, callee) }
        };
        if let Operand::Name(name) = operand
            && let Some(Symbol::Variable { space: Space::Local, address: Constant::Bits(at) }) =
                self.names.find(name)
        {
            let at = *at as u32;
            return match location {
                ValueLocation::Memory { offset, bytes } => {
                    let (to, from) = ordered(at, offset);
                    Ok(Passed::Memory { to, from, bytes })
                }
                ValueLocation::Register { slot, wide } => {
                    let bytes = if wide { 8 } else { 4 };
                    Ok(match inward {
                        true => Passed::Load { to: slot, from: at, bytes },
                        false => Passed::Store { to: at, from: slot, bytes },
                    })
                }
                ValueLocation::Predicate(_) => Err(format!("`{name}` is not a predicate")),
            };
        }
        match location {
            ValueLocation::Predicate(index) => {
                let (to, from) = ordered(self.predicate(operand)?, index);
                Ok(Passed::Predicate { to, from })
            }
            ValueLocation::Register { slot, wide } => {
                let (to, from) = ordered(self.argument(operand, wide)?, slot);
                Ok(Passed::Register { to, from, wide })
            }
            ValueLocation::Memory { bytes, .. } if !matches!(bytes, 1 | 2 | 4 | 8) => {
                Err(format!("`{operand}` cannot be passed as {bytes} bytes; pass a variable"))
            }
            ValueLocation::Memory { offset, bytes } => {
                let slot = self.source_of_bits(operand, bytes * 8, false)?;
                Ok(match inward {
                    true => Passed::Store { to: offset, from: slot, bytes },
                    false => Passed::Load { to: slot, from: offset, bytes },
                })
            }
        }
    }

    /// The register of an argument or result.
    fn argument(&mut self, operand: &Operand, wide: bool) -> Result<Slot> {
        match self.register(operand) {
            Ok((slot, bits)) if (bits == 64) == wide => Ok(slot),
            Ok((_, bits)) => Err(format!(
                "a register of {bits} bits is passed, but the function expects another size"
            )),
            Err(_) => self.source_of_bits(operand, if wide { 64 } else { 32 }, false),
        }
    }

    /// The location of a parameter in the function's body.
    pub(super) fn location(&mut self, parameter: &Parameter) -> Result<ValueLocation> {
        let name = match parameter {
            Parameter::Register { name, kind } => {
                self.names.declare_register(name, kind)?;
                name
            }
            Parameter::Memory(variable) => {
                self.declare_variable(variable)?;
                &variable.name
            }
        };
        match (self.names.find(name), parameter) {
            (Some(Symbol::Register { slot, bits }), _) => {
                Ok(ValueLocation::Register { slot: *slot, wide: *bits == 64 })
            }
            (Some(Symbol::Predicate(index)), _) => Ok(ValueLocation::Predicate(*index)),
            (
                Some(Symbol::Variable { address: Constant::Bits(offset), .. }),
                Parameter::Memory(variable),
            ) => {
                Ok(ValueLocation::Memory { offset: *offset as u32, bytes: variable.bytes() as u32 })
            }
            _ => Err(format!("`{name}` is not a parameter")),
        }
    }
}
