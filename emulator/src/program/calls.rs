//! Device functions: argument passing and recursion.
//!
//! Each function has one set of registers and parameters. Arguments and results are passed in
//! locations that all functions of one [`Signature`] share, so that indirect calls work too. The
//! caller copies arguments there, and the function reads them on entry. Results return the same
//! way.
//!
//! A recursive function saves its registers and parameters on entry and restores them on return.
//! Its local variables are on a stack, so pointers to the local variables of earlier calls stay
//! valid. Pointers to their parameters do not.

use std::collections::HashMap;

use super::kernel::{Constant, Frame};
use super::lower::{Lowering, Result, assign_offset};
use super::names::Symbol;
use super::op::{Op, Passed};
use super::signature::{CallLocations, Signature, copied};
use crate::machine::registers::Slot;
use crate::ptx::PtxError;
use crate::ptx::syntax::{self, Operand, Variable};

/// Bytes per thread for local variables of recursive functions.
pub(crate) const STACK_BYTES: u32 = 16 << 10;

/// The calls of a kernel.
#[derive(Default)]
pub(crate) struct Calls {
    pub(super) handovers: HashMap<Signature, CallLocations>,
    /// The labels of called functions.
    labels: HashMap<String, usize>,
    pending: Vec<String>,
    frames: Vec<Frame>,
    current: CurrentFunction,
}

/// The function being lowered.
#[derive(Default)]
struct CurrentFunction {
    /// The copies of its results to the shared locations.
    returned: Vec<Passed>,
    /// Its frame, if it is recursive.
    frame: Option<u32>,
    /// Bytes of the frame's local variables.
    local_bytes: u32,
}

impl Calls {
    /// Whether the function being lowered is recursive.
    pub(crate) fn is_recursive(&self) -> bool {
        self.current.frame.is_some()
    }

    /// Places a local variable in the frame of the function being lowered.
    pub(crate) fn place_in_frame(&mut self, variable: &Variable) -> Result<Constant> {
        Ok(Constant::Frame {
            frame: self.current.frame.unwrap_or_default(),
            offset: assign_offset(variable, &mut self.current.local_bytes)?,
        })
    }

    /// The frames, with the registers that hold addresses of their variables.
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
    /// `call (results), function, (arguments)`, or with a pointer and a prototype.
    pub(super) fn call(&mut self, instruction: &syntax::Instruction) -> Result<()> {
        let (results, rest) = match instruction.operands.as_slice() {
            [Operand::List(results), rest @ ..] => (&results[..], rest),
            rest => (&[][..], rest),
        };
        let [Operand::Name(callee), rest @ ..] = rest else {
            return Err("the target of `call` is not a function or register".into());
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
            (Some(_), _) => {
                return Err(format!("the indirect call of `{callee}` has no prototype"));
            }
            (None, _) => {
                let is_own = self.module.functions.syntax(callee).is_some();
                if !is_own && self.system_call(callee, results, arguments, instruction.line)? {
                    return Ok(());
                }
                let syntax = self.syntax_of(callee)?;
                let label = self.function(callee) as u32;
                let signature = Signature::new(&syntax.returns, &syntax.parameters);
                (Op::Call(label), signature)
            }
        };
        let call_locations = self.call_locations(&signature);
        let passed = self.pass_values(arguments, &call_locations.parameters, true)?;
        let returned = self.pass_values(results, &call_locations.returns, false)?;
        let line = instruction.line;
        self.push(line, Op::Pass(passed));
        self.push(line, op);
        self.push(line, Op::Pass(returned));
        Ok(())
    }

    /// An indirect call of any function with the prototype's signature.
    fn indirect(&mut self, target: Slot, prototype: &str) -> Result<(Op, Signature)> {
        let Some(Symbol::Prototype(signature)) = self.names.find(prototype) else {
            return Err(format!("`{prototype}` is not a prototype"));
        };
        let signature = signature.clone();
        let mut functions = Vec::new();
        for (name, address) in self.module.functions.address_taken() {
            let syntax = self.syntax_of(name)?;
            if Signature::new(&syntax.returns, &syntax.parameters) == signature {
                functions.push((address, self.function(name) as u32));
            }
        }
        Ok((Op::CallIndirect { target, functions }, signature))
    }

    /// `ret`.
    pub(super) fn lower_return(&mut self, line: u32) {
        let (returned, frame) = (self.calls.current.returned.clone(), self.calls.current.frame);
        if !returned.is_empty() {
            self.push(line, Op::Pass(returned));
        }
        self.push(line, Op::Return(frame));
    }

    /// The label of a called function.
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
            .ok_or_else(|| format!("the function `{name}` is not defined in this module"))
    }

    /// Appends the code of every called function.
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
        let call_locations = self.call_locations(&signature);
        let first_register = self.names.registers().len();
        let (first_predicate, memory) = (self.names.predicates(), self.local_bytes);
        self.labels[self.calls.labels[&syntax.name]] = Some(self.code.len() as u32);
        self.source = None;
        self.names.enter_function();
        self.declare_module();
        self.calls.current = CurrentFunction::default();
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
            .parameters(syntax, &call_locations)
            .map_err(|message| self.error(syntax.line, message))?;
        self.push(syntax.line, Op::Pass(taken));
        self.body(syntax.body.as_deref().unwrap_or_default())?;
        self.lower_return(syntax.line);

        if let Some(frame) = self.calls.current.frame {
            let frame = &mut self.calls.frames[frame as usize];
            frame.registers = self.names.registers()[first_register..].to_vec();
            frame.predicates = first_predicate..self.names.predicates();
            frame.memory = memory..self.local_bytes;
            frame.local_bytes = self.calls.current.local_bytes.next_multiple_of(16);
        }
        Ok(())
    }

    /// Declares a function's parameters and results. Returns the copies from the shared locations
    /// to the parameters.
    fn parameters(
        &mut self,
        syntax: &syntax::Function,
        call_locations: &CallLocations,
    ) -> Result<Vec<Passed>> {
        let mut taken = Vec::new();
        for (parameter, from) in syntax.parameters.iter().zip(&call_locations.parameters) {
            taken.push(copied(self.location(parameter)?, *from)?);
        }
        for (parameter, to) in syntax.returns.iter().zip(&call_locations.returns) {
            let returned = copied(*to, self.location(parameter)?)?;
            self.calls.current.returned.push(returned);
        }
        Ok(taken)
    }
}
