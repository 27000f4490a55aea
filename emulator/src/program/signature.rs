//! The signatures of functions, and the locations in which their values are passed.

use super::op::Passed;
use crate::machine::registers::Slot;
use crate::ptx::bytes_of_type;
use crate::ptx::syntax::Parameter;

/// The types of a function's parameters and results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Signature {
    pub(super) returns: Vec<Shape>,
    pub(super) parameters: Vec<Shape>,
}

/// The type of one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    Register { wide: bool },
    Predicate,
    Memory { bytes: u32 },
}

impl Signature {
    /// The signature of a function with these sizes of results and parameters, all in memory.
    pub(super) fn of_memory(returns: &[u32], parameters: &[u32]) -> Signature {
        let shape = |bytes: &u32| Shape::Memory { bytes: *bytes };
        Signature {
            returns: returns.iter().map(shape).collect(),
            parameters: parameters.iter().map(shape).collect(),
        }
    }

    pub(crate) fn new(returns: &[Parameter], parameters: &[Parameter]) -> Signature {
        let shapes = |parameters: &[Parameter]| parameters.iter().map(Shape::of).collect();
        Signature { returns: shapes(returns), parameters: shapes(parameters) }
    }
}

impl Shape {
    fn of(parameter: &Parameter) -> Shape {
        match parameter {
            Parameter::Register { kind, .. } if kind == ".pred" => Shape::Predicate,
            Parameter::Register { kind, .. } => {
                Shape::Register { wide: bytes_of_type(kind) == Some(8) }
            }
            Parameter::Memory(variable) => Shape::Memory { bytes: variable.bytes() as u32 },
        }
    }
}

/// The location in which a value is passed.
#[derive(Clone, Copy, Debug)]
pub(super) enum ValueLocation {
    Register { slot: Slot, wide: bool },
    Predicate(Slot),
    Memory { offset: u32, bytes: u32 },
}

impl ValueLocation {
    fn name(self) -> &'static str {
        match self {
            ValueLocation::Register { .. } => "a register",
            ValueLocation::Predicate(_) => "a predicate",
            ValueLocation::Memory { .. } => "memory",
        }
    }
}

/// The locations in which the values of a signature are passed.
#[derive(Clone, Debug)]
pub(super) struct CallLocations {
    pub(super) returns: Vec<ValueLocation>,
    pub(super) parameters: Vec<ValueLocation>,
}

/// A copy between locations of the same type.
pub(super) fn copied(to: ValueLocation, from: ValueLocation) -> Result<Passed, String> {
    match (to, from) {
        (
            ValueLocation::Register { slot: to, wide },
            ValueLocation::Register { slot: from, .. },
        ) => Ok(Passed::Register { to, from, wide }),
        (ValueLocation::Predicate(to), ValueLocation::Predicate(from)) => {
            Ok(Passed::Predicate { to, from })
        }
        (
            ValueLocation::Memory { offset: to, bytes },
            ValueLocation::Memory { offset: from, .. },
        ) => Ok(Passed::Memory { to, from, bytes }),
        _ => Err(format!("{} cannot be passed as {}", from.name(), to.name())),
    }
}
