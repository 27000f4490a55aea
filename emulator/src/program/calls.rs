//! Device functions: how calls hand values over, and what a function saves that may be called
//! while it runs.
//!
//! A function's registers and parameters exist once. Arguments and results go through places that
//! all functions of one [`Signature`] share, so that a caller need not know whom it calls: the
//! caller copies arguments there, and the function takes them from there when it begins; results
//! go back in the same way. A function that can be called while it runs saves its registers and
//! parameters when it begins and restores them when it returns, and its local variables lie on a
//! stack, so that pointers to those of earlier calls stay good. Addresses of its parameters do not.

use std::collections::HashMap;

use super::kernel::{Constant, Frame};
use super::lower::{Lowering, Result, place};
use super::names::Symbol;
use super::op::{Op, Passed, Space};
use crate::machine::registers::Slot;
use crate::ptx::syntax::{self, Operand, Parameter, Variable};
use crate::ptx::{PtxError, bytes_of_type};

/// Bytes a thread has for local variables of functions that call themselves.
pub(crate) const STACK_BYTES: u32 = 16 << 10;

/// What a function takes and gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Signature {
    returns: Vec<Shape>,
    parameters: Vec<Shape>,
}

/// What one parameter looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Register { wide: bool },
    Predicate,
    Memory { bytes: u32 },
}

impl Signature {
    pub(crate) fn new(returns: &[Parameter], parameters: &[Parameter]) -> Signature {
        let shapes = |parameters: &[Parameter]| parameters.iter().map(Shape::of).collect();
        Signature {
            returns: shapes(returns),
            parameters: shapes(parameters),
        }
    }
}

impl Shape {
    fn of(parameter: &Parameter) -> Shape {
        match parameter {
            Parameter::Register { kind, .. } if kind == ".pred" => Shape::Predicate,
            Parameter::Register { kind, .. } => Shape::Register {
                wide: bytes_of_type(kind) == Some(8),
            },
            Parameter::Memory(variable) => Shape::Memory {
                bytes: variable.bytes() as u32,
            },
        }
    }
}

/// Where a value is handed over.
#[derive(Clone, Copy, Debug)]
enum Place {
    Register { slot: Slot, wide: bool },
    Predicate(Slot),
    Memory { offset: u32, bytes: u32 },
}

/// Where the values of a signature are handed over.
#[derive(Clone, Debug)]
struct Handover {
    returns: Vec<Place>,
    parameters: Vec<Place>,
}

/// The calls of a kernel.
#[derive(Default)]
pub(crate) struct Calls {
    handovers: HashMap<Signature, Handover>,
    /// The labels of functions that are called.
    labels: HashMap<String, usize>,
    pending: Vec<String>,
    frames: Vec<Frame>,
    current: Current,
}

/// The function that is being lowered.
#[derive(Default)]
struct Current {
    /// How its results are handed over.
    returned: Vec<Passed>,
    /// Its frame, if it can be called while it runs.
    frame: Option<u32>,
    /// Bytes of the frame's local variables.
    local_bytes: u32,
}

impl Calls {
    /// Whether the function being lowered can be called while it runs.
    pub(crate) fn is_recursive(&self) -> bool {
        self.current.frame.is_some()
    }

    /// Gives a local variable a place in the frame of the function being lowered.
    pub(crate) fn place_in_frame(&mut self, variable: &Variable) -> Result<Constant> {
        Ok(Constant::Frame {
            frame: self.current.frame.unwrap_or_default(),
            offset: place(variable, &mut self.current.local_bytes)?,
        })
    }

    /// The frames, with the registers that hold addresses in them.
    pub(crate) fn frames(self, constants: &[(Slot, Constant, bool)]) -> Vec<Frame> {
        let mut frames = self.frames;
        for (slot, constant, wide) in constants {
            if let Constant::Frame { frame, offset } = constant {
                let addresses = &mut frames[*frame as usize].addresses;
                addresses.push((*slot, *offset, *wide));
            }
        }
        frames
    }
}

impl<'a> Lowering<'a> {
    /// `call (results), function, (arguments)`, or with a pointer and then a prototype.
    pub(super) fn call(&mut self, instruction: &syntax::Instruction) -> Result<()> {
        let (results, rest) = match instruction.operands.as_slice() {
            [Operand::List(results), rest @ ..] => (&results[..], rest),
            rest => (&[][..], rest),
        };
        let [Operand::Name(callee), rest @ ..] = rest else {
            return Err("a call of something else than a function".into());
        };
        let (arguments, rest) = match rest {
            [Operand::List(arguments), rest @ ..] => (&arguments[..], rest),
            rest => (&[][..], rest),
        };
        let (op, signature) = match (self.names.find(callee), rest) {
            (Some(Symbol::Register { slot, bits: 64 }), [Operand::Name(prototype)]) => {
                let slot = *slot;
                self.indirect(slot, prototype)?
            }
            (Some(_), _) => return Err(format!("`{callee}` is called without a prototype")),
            (None, _) => {
                let syntax = self.syntax_of(callee)?;
                let label = self.function(callee) as u32;
                let signature = Signature::new(&syntax.returns, &syntax.parameters);
                (Op::Call(label), signature)
            }
        };
        let handover = self.handover(&signature);
        let passed = self.hand_over(arguments, &handover.parameters, true)?;
        let returned = self.hand_over(results, &handover.returns, false)?;
        let line = instruction.line;
        self.push(line, Op::Pass(passed));
        self.push(line, op);
        self.push(line, Op::Pass(returned));
        Ok(())
    }

    /// A call through a pointer, of any function of the prototype's signature.
    fn indirect(&mut self, target: Slot, prototype: &str) -> Result<(Op, Signature)> {
        let Some(Symbol::Prototype(signature)) = self.names.find(prototype) else {
            return Err(format!("`{prototype}` is not a prototype"));
        };
        let signature = signature.clone();
        let mut functions = Vec::new();
        for (name, address) in self.module.functions.pointed_to() {
            let syntax = self.syntax_of(name)?;
            if Signature::new(&syntax.returns, &syntax.parameters) == signature {
                functions.push((address, self.function(name) as u32));
            }
        }
        Ok((Op::CallIndirect { target, functions }, signature))
    }

    /// `ret`.
    pub(super) fn give_back(&mut self, line: u32) {
        let (returned, frame) = (
            self.calls.current.returned.clone(),
            self.calls.current.frame,
        );
        if !returned.is_empty() {
            self.push(line, Op::Pass(returned));
        }
        self.push(line, Op::Return(frame));
    }

    /// Where the values of a signature are handed over.
    fn handover(&mut self, signature: &Signature) -> Handover {
        if let Some(handover) = self.calls.handovers.get(signature) {
            return handover.clone();
        }
        let mut places = |shapes: &[Shape]| -> Vec<Place> {
            shapes
                .iter()
                .map(|shape| self.shared_place(*shape))
                .collect()
        };
        let handover = Handover {
            returns: places(&signature.returns),
            parameters: places(&signature.parameters),
        };
        let handovers = &mut self.calls.handovers;
        handovers.insert(signature.clone(), handover.clone());
        handover
    }

    fn shared_place(&mut self, shape: Shape) -> Place {
        match shape {
            Shape::Predicate => Place::Predicate(self.names.new_predicate()),
            Shape::Register { wide } => Place::Register {
                slot: self.names.new_register(wide),
                wide,
            },
            Shape::Memory { bytes } => {
                let offset = self.local_bytes;
                self.local_bytes += bytes;
                Place::Memory { offset, bytes }
            }
        }
    }

    fn hand_over(
        &mut self,
        operands: &[Operand],
        places: &[Place],
        inward: bool,
    ) -> Result<Vec<Passed>> {
        if operands.len() != places.len() {
            let (given, taken) = (operands.len(), places.len());
            return Err(format!(
                "{given} values are handed over where {taken} are taken"
            ));
        }
        let mut passed = Vec::new();
        for (operand, place) in operands.iter().zip(places) {
            passed.push(self.pass(operand, *place, inward)?);
        }
        Ok(passed)
    }

    fn pass(&mut self, operand: &Operand, place: Place, inward: bool) -> Result<Passed> {
        let ordered = |caller, callee| {
            if inward {
                (callee, caller)
            } else {
                (caller, callee)
            }
        };
        if let Operand::Name(name) = operand
            && let Some(Symbol::Variable {
                space: Space::Local,
                address: Constant::Bits(at),
            }) = self.names.find(name)
        {
            let at = *at as u32;
            return match place {
                Place::Memory { offset, bytes } => {
                    let (to, from) = ordered(at, offset);
                    Ok(Passed::Memory { to, from, bytes })
                }
                Place::Register { slot, wide } => {
                    let bytes = if wide { 8 } else { 4 };
                    Ok(match inward {
                        true => Passed::Load {
                            to: slot,
                            from: at,
                            bytes,
                        },
                        false => Passed::Store {
                            to: at,
                            from: slot,
                            bytes,
                        },
                    })
                }
                Place::Predicate(_) => Err(format!("`{name}` is not a predicate")),
            };
        }
        match place {
            Place::Predicate(index) => {
                let (to, from) = ordered(self.predicate(operand)?, index);
                Ok(Passed::Predicate { to, from })
            }
            Place::Register { slot, wide } => {
                let (to, from) = ordered(self.argument(operand, wide)?, slot);
                Ok(Passed::Register { to, from, wide })
            }
            Place::Memory { bytes, .. } if !matches!(bytes, 1 | 2 | 4 | 8) => Err(format!(
                "{operand:?} as an argument of {bytes} bytes, which only a variable can be"
            )),
            Place::Memory { offset, bytes } => {
                let slot = self.source_of_bits(operand, bytes * 8, false)?;
                Ok(match inward {
                    true => Passed::Store {
                        to: offset,
                        from: slot,
                        bytes,
                    },
                    false => Passed::Load {
                        to: slot,
                        from: offset,
                        bytes,
                    },
                })
            }
        }
    }

    /// The register of an argument or result.
    fn argument(&mut self, operand: &Operand, wide: bool) -> Result<Slot> {
        match self.register(operand) {
            Ok((slot, bits)) if (bits == 64) == wide => Ok(slot),
            Ok((_, bits)) => Err(format!(
                "a register of {bits} bits is handed over for another"
            )),
            Err(_) => self.source_of_bits(operand, if wide { 64 } else { 32 }, false),
        }
    }

    /// The label of a function that is called.
    fn function(&mut self, name: &str) -> usize {
        if let Some(label) = self.calls.labels.get(name) {
            return *label;
        }
        let label = self.new_label();
        self.calls.labels.insert(name.to_owned(), label);
        self.calls.pending.push(name.to_owned());
        label
    }

    fn syntax_of(&self, name: &str) -> Result<&'a syntax::Function> {
        self.module
            .functions
            .syntax(name)
            .ok_or_else(|| match name {
                "vprintf" => "printf is not supported: write to memory instead".to_owned(),
                _ => format!("the function `{name}` is not defined in this module"),
            })
    }

    /// A parameter as the function's body knows it.
    fn place(&mut self, parameter: &Parameter) -> Result<Place> {
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
            (Some(Symbol::Register { slot, bits }), _) => Ok(Place::Register {
                slot: *slot,
                wide: *bits == 64,
            }),
            (Some(Symbol::Predicate(index)), _) => Ok(Place::Predicate(*index)),
            (
                Some(Symbol::Variable {
                    address: Constant::Bits(offset),
                    ..
                }),
                Parameter::Memory(variable),
            ) => Ok(Place::Memory {
                offset: *offset as u32,
                bytes: variable.bytes() as u32,
            }),
            _ => Err(format!("`{name}` is not a parameter")),
        }
    }

    /// Appends the code of every function that was called.
    pub(super) fn called_functions(&mut self) -> Result<(), PtxError> {
        while let Some(name) = self.calls.pending.pop() {
            let module = self.module;
            let Some(syntax) = module.functions.syntax(&name) else {
                continue;
            };
            self.function_body(syntax)?;
        }
        Ok(())
    }

    fn function_body(&mut self, syntax: &syntax::Function) -> Result<(), PtxError> {
        let signature = Signature::new(&syntax.returns, &syntax.parameters);
        let handover = self.handover(&signature);
        let first_register = self.names.registers().len();
        let (first_predicate, memory) = (self.names.predicates(), self.local_bytes);
        self.labels[self.calls.labels[&syntax.name]] = Some(self.code.len() as u32);
        self.source = None;
        self.names.enter_function();
        self.declare_module();
        self.calls.current = Current::default();
        if self.module.functions.is_recursive(&syntax.name) {
            let frame = self.calls.frames.len() as u32;
            self.calls.current.frame = Some(frame);
            self.calls.frames.push(Frame {
                function: syntax.name.clone(),
                registers: Vec::new(),
                predicates: 0..0,
                memory: 0..0,
                local_bytes: 0,
                addresses: Vec::new(),
            });
            self.push(syntax.line, Op::Enter(frame));
        }
        let taken = self
            .parameters(syntax, &handover)
            .map_err(|message| self.error(syntax.line, message))?;
        self.push(syntax.line, Op::Pass(taken));
        self.body(syntax.body.as_deref().unwrap_or_default())?;
        self.give_back(syntax.line);

        if let Some(frame) = self.calls.current.frame {
            let frame = &mut self.calls.frames[frame as usize];
            frame.registers = self.names.registers()[first_register..].to_vec();
            frame.predicates = first_predicate..self.names.predicates();
            frame.memory = memory..self.local_bytes;
            frame.local_bytes = self.calls.current.local_bytes.next_multiple_of(16);
        }
        Ok(())
    }

    /// Declares a function's parameters and results; how it takes the parameters.
    fn parameters(
        &mut self,
        syntax: &syntax::Function,
        handover: &Handover,
    ) -> Result<Vec<Passed>> {
        let mut taken = Vec::new();
        for (parameter, from) in syntax.parameters.iter().zip(&handover.parameters) {
            taken.push(copied(self.place(parameter)?, *from)?);
        }
        for (parameter, to) in syntax.returns.iter().zip(&handover.returns) {
            let returned = copied(*to, self.place(parameter)?)?;
            self.calls.current.returned.push(returned);
        }
        Ok(taken)
    }
}

/// A copy between places of one shape.
fn copied(to: Place, from: Place) -> Result<Passed> {
    match (to, from) {
        (Place::Register { slot: to, wide }, Place::Register { slot: from, .. }) => {
            Ok(Passed::Register { to, from, wide })
        }
        (Place::Predicate(to), Place::Predicate(from)) => Ok(Passed::Predicate { to, from }),
        (Place::Memory { offset: to, bytes }, Place::Memory { offset: from, .. }) => {
            Ok(Passed::Memory { to, from, bytes })
        }
        _ => Err(format!("{from:?} is handed over as {to:?}")),
    }
}
