//! Syntax to code: names to registers, labels to positions, scopes to nothing.

use std::collections::HashMap;
use std::sync::Arc;

use super::calls::{Calls, STACK_BYTES, Signature};
use super::decode;
use super::functions::{Functions, is_call};
use super::kernel::{Constant, Kernel, KernelParameter, Special};
use super::names::{Names, Symbol};
use super::op::{Address, Instruction, Op, PredicateSource, Space};
use super::opcode::Type;
use crate::machine::registers::Slot;
use crate::numerics::Approximation;
use crate::ptx::PtxError;
use crate::ptx::syntax::{self, Base, Operand, Parameter, Statement, Variable};

/// What all kernels of a module share.
pub(crate) struct ModuleNames<'a> {
    pub(crate) source: &'a str,
    pub(crate) text: Arc<str>,
    pub(crate) syntax: &'a syntax::Module,
    /// Addresses of the module's variables in global and constant memory.
    pub(crate) globals: &'a HashMap<String, u64>,
    /// What approximate functions give.
    pub(crate) approximation: Approximation,
    /// The module's functions.
    pub(crate) functions: Functions<'a>,
    /// Shared variables of the module.
    pub(crate) shared: Vec<&'a Variable>,
}

/// Lowers one kernel with all functions that it calls.
pub(crate) fn lower(
    module: &ModuleNames<'_>,
    entry: &syntax::Function,
) -> Result<Kernel, PtxError> {
    let mut lowering = Lowering::new(module);
    lowering.declare_module()?;
    let parameters = lowering.declare_kernel_parameters(entry);
    let body = entry.body.as_deref().unwrap_or_default();
    lowering.body(body)?;
    lowering.push(entry.line, Op::Exit);
    lowering.called_functions()?;
    lowering.resolve_labels()?;
    Ok(lowering.finish(entry, parameters))
}

/// The state of lowering one kernel.
pub(crate) struct Lowering<'a> {
    pub(super) module: &'a ModuleNames<'a>,
    pub(crate) names: Names,
    pub(super) code: Vec<Instruction>,
    pub(super) source: Option<(u32, u32)>,
    line: u32,
    /// Where labels lie, by number.
    pub(super) labels: Vec<Option<u32>>,
    static_shared: u32,
    pub(super) local_bytes: u32,
    pub(super) calls: Calls,
    carry: Option<Slot>,
    pub(crate) communicates: bool,
    pub(crate) copies: bool,
}

pub(super) type Result<T, E = String> = std::result::Result<T, E>;

impl<'a> Lowering<'a> {
    fn new(module: &'a ModuleNames<'a>) -> Lowering<'a> {
        Lowering {
            module,
            names: Names::default(),
            code: Vec::new(),
            source: None,
            line: 1,
            labels: Vec::new(),
            static_shared: 0,
            local_bytes: 0,
            calls: Calls::default(),
            carry: None,
            communicates: false,
            copies: false,
        }
    }

    fn declare_module(&mut self) -> Result<(), PtxError> {
        self.names.open();
        for (name, address) in self.module.globals {
            let symbol = Symbol::Variable {
                space: Space::Global,
                address: Constant::Bits(*address),
            };
            self.names.declare(name, symbol);
        }
        for variable in self.module.shared.clone() {
            self.declare_variable(variable)
                .map_err(|error| self.error(variable.line, error))?;
        }
        Ok(())
    }

    fn declare_kernel_parameters(&mut self, entry: &syntax::Function) -> Vec<KernelParameter> {
        let mut end = 0;
        let mut parameters = Vec::new();
        for parameter in &entry.parameters {
            let Parameter::Memory(variable) = parameter else {
                continue;
            };
            let offset = usize::next_multiple_of(end, variable.align.max(1));
            end = offset + variable.bytes();
            let symbol = Symbol::Variable {
                space: Space::Param,
                address: Constant::Bits(offset as u64),
            };
            self.names.declare(&variable.name, symbol);
            parameters.push(KernelParameter {
                name: variable.name.clone(),
                offset,
                bytes: variable.bytes(),
            });
        }
        parameters
    }

    fn finish(self, entry: &syntax::Function, parameters: Vec<KernelParameter>) -> Kernel {
        let last = parameters.last();
        let parameter_bytes = last.map_or(0, |last| last.offset + last.bytes);
        let threads = entry.max_threads.or(entry.required_threads);
        let given = self.names.finish();
        let frames = self.calls.frames(&given.constants);
        let moving = frames.iter().any(|frame| frame.local_bytes > 0);
        // Behind all that has a fixed place.
        let (static_local, stack) = match moving {
            true => (self.local_bytes.next_multiple_of(16), STACK_BYTES),
            false => (self.local_bytes, 0),
        };
        let files = self.module.syntax.files.values().cloned().collect();
        Kernel {
            name: entry.name.clone(),
            parameters,
            parameter_bytes,
            static_shared: self.static_shared,
            max_threads: threads.map_or(1024, |threads| threads.iter().product()),
            required_threads: entry.required_threads,
            registers: (given.planes as u32).clamp(1, 255),
            local_bytes: static_local + stack,
            static_local,
            frames,
            code: self.code,
            files,
            text: self.module.text.clone(),
            planes: given.planes,
            predicates: given.predicates,
            constants: given.constants,
            specials: given.specials,
            communicates: self.communicates,
            copies: self.copies,
        }
    }

    pub(super) fn error(&self, line: u32, message: impl Into<String>) -> PtxError {
        PtxError::new(self.module.source, line, message)
    }

    pub(super) fn push(&mut self, line: u32, op: Op) {
        self.code.push(Instruction {
            guard: None,
            op,
            line,
            source: self.source,
        });
    }

    /// The statements of one scope.
    pub(super) fn body(&mut self, statements: &[Statement]) -> Result<(), PtxError> {
        self.names.open();
        for statement in statements {
            if let Statement::Label(name) = statement {
                let label = self.new_label();
                self.names.declare(name, Symbol::Label(label));
            }
            if let Statement::BranchTargets { name, labels } = statement {
                let symbol = Symbol::Targets(labels.clone());
                self.names.declare(name, symbol);
            }
            if let Statement::CallPrototype {
                name,
                returns,
                parameters,
            } = statement
            {
                let symbol = Symbol::Prototype(Signature::new(returns, parameters));
                self.names.declare(name, symbol);
            }
        }
        for statement in statements {
            self.statement(statement)?;
        }
        self.names.close();
        Ok(())
    }

    fn statement(&mut self, statement: &Statement) -> Result<(), PtxError> {
        match statement {
            Statement::Label(name) => {
                if let Some(Symbol::Label(label)) = self.names.find(name) {
                    self.labels[*label] = Some(self.code.len() as u32);
                }
            }
            Statement::Instruction(instruction) => {
                self.line = instruction.line;
                self.instruction(instruction)
                    .map_err(|message| self.error(instruction.line, message))?;
            }
            Statement::Registers { kind, names, line } => {
                for (name, count) in names {
                    self.registers(kind, name, *count)
                        .map_err(|message| self.error(*line, message))?;
                }
            }
            Statement::Variable(variable) => {
                self.declare_variable(variable)
                    .map_err(|message| self.error(variable.line, message))?;
            }
            Statement::BranchTargets { .. } | Statement::CallPrototype { .. } => {}
            Statement::Block(statements) => self.body(statements)?,
            Statement::Location([file, line, _]) => {
                let files = &self.module.syntax.files;
                let index = files.keys().position(|number| number == file);
                self.source = index.map(|index| (index as u32, *line as u32));
            }
        }
        Ok(())
    }

    fn registers(&mut self, kind: &str, name: &str, count: Option<u64>) -> Result<()> {
        match count {
            None => self.names.declare_register(name, kind),
            Some(count) if count > 1 << 20 => Err(format!("{count} registers")),
            Some(count) => (0..count)
                .try_for_each(|index| self.names.declare_register(&format!("{name}{index}"), kind)),
        }
    }

    pub(super) fn declare_variable(&mut self, variable: &Variable) -> Result<()> {
        let place = |end: &mut u32| {
            let offset = end.next_multiple_of(variable.align.max(1) as u32);
            *end = offset + variable.bytes() as u32;
            offset
        };
        let (space, address) = match variable.space {
            syntax::Space::Shared if variable.count.is_none() => {
                let align = variable.align.max(1) as u32;
                (Space::Shared, Constant::DynamicShared { align, offset: 0 })
            }
            syntax::Space::Shared => {
                let offset = place(&mut self.static_shared);
                (Space::Shared, Constant::Shared(offset))
            }
            syntax::Space::Local if self.calls.is_recursive() => {
                let constant = self.calls.place_in_frame(variable);
                (Space::Local, constant)
            }
            syntax::Space::Local | syntax::Space::Param => {
                let offset = place(&mut self.local_bytes);
                (Space::Local, Constant::Bits(u64::from(offset)))
            }
            syntax::Space::Global | syntax::Space::Const => {
                let name = &variable.name;
                return Err(format!("`{name}`: global variables belong to the module"));
            }
        };
        self.names
            .declare(&variable.name, Symbol::Variable { space, address });
        Ok(())
    }

    pub(super) fn new_label(&mut self) -> usize {
        self.labels.push(None);
        self.labels.len() - 1
    }

    fn instruction(&mut self, instruction: &syntax::Instruction) -> Result<()> {
        let guard = match &instruction.guard {
            None => None,
            Some((name, negated)) => {
                let predicate = self.predicate(&Operand::Name(name.clone()))?;
                Some((predicate, !negated))
            }
        };
        let first = self.code.len();
        match instruction.opcode.as_str() {
            _ if is_call(instruction) => self.call(instruction)?,
            "ret" | "ret.uni" => self.give_back(instruction.line),
            _ => {
                let op = decode::decode(self, instruction)?;
                self.push(instruction.line, op);
            }
        }
        for instruction in &mut self.code[first..] {
            instruction.guard = guard;
        }
        Ok(())
    }

    // -- operands, for the decoders --

    /// The register that a source of `kind` is read from: a register, a constant or a special one.
    pub(crate) fn source(&mut self, operand: &Operand, kind: Type) -> Result<Slot> {
        self.source_of_bits(operand, kind.bits(), kind.is_float())
    }

    /// As [`Lowering::source`], for a type known by its size.
    pub(crate) fn source_of_bits(
        &mut self,
        operand: &Operand,
        bits: u32,
        float: bool,
    ) -> Result<Slot> {
        let wide = bits == 64;
        let constant = match operand {
            Operand::Integer(value) if float => immediate_float(*value as f64, bits)?,
            Operand::Integer(value) => truncate(*value, bits),
            Operand::Float32(value) if bits == 32 => u64::from(*value),
            Operand::Float64(value) => immediate_float(f64::from_bits(*value), bits)?,
            Operand::Name(name) => return self.named_source(name, 0, wide),
            Operand::Offset(name, offset) => return self.named_source(name, *offset, wide),
            other => return Err(format!("{other:?} is not a source of {bits} bits")),
        };
        Ok(self.names.constant(Constant::Bits(constant), wide))
    }

    fn named_source(&mut self, name: &str, offset: i64, wide: bool) -> Result<Slot> {
        match self.names.find(name) {
            Some(Symbol::Register { slot, bits }) if offset == 0 => {
                let slot = *slot;
                match (*bits == 64) == wide {
                    true => Ok(slot),
                    false => Err(format!("`{name}` has {bits} bits: a wrong size here")),
                }
            }
            Some(Symbol::Variable { address, .. }) => {
                let address = moved(*address, offset);
                Ok(self.names.constant(address, wide))
            }
            Some(_) => Err(format!("`{name}` is not a value here")),
            None if name == "WARP_SZ" => Ok(self.names.constant(Constant::Bits(32), wide)),
            None => match Special::parse(name) {
                Some(special) if special.is_wide() == wide => Ok(self.names.special(special)),
                Some(_) => Err(format!("`{name}` has a wrong size here")),
                None => match self.module.functions.address(name) {
                    Some(address) if wide && offset == 0 => {
                        Ok(self.names.constant(Constant::Bits(address), true))
                    }
                    _ => Err(format!("`{name}` is not declared")),
                },
            },
        }
    }

    /// The register that a result of `kind` goes to.
    pub(crate) fn destination(&mut self, operand: &Operand, kind: Type) -> Result<Slot> {
        let (slot, bits) = self.register(operand)?;
        match (bits == 64) == (kind.bits() == 64) {
            true => Ok(slot),
            false => Err(format!("a register of {bits} bits for {kind:?}")),
        }
    }

    /// The seed by which approximate functions are perturbed, of 31 bits; zero for none.
    pub(crate) fn perturbation(&self) -> u32 {
        match self.module.approximation {
            Approximation::Rounded => 0,
            Approximation::Perturbed { seed } => (seed as u32 & 0x7fff_ffff).max(1),
        }
    }

    /// The predicate that stands for the carry of extended-precision arithmetic.
    pub(crate) fn carry(&mut self) -> Slot {
        *self.carry.get_or_insert_with(|| self.names.new_predicate())
    }

    /// A register and its size.
    pub(crate) fn register(&self, operand: &Operand) -> Result<(Slot, u32)> {
        let Operand::Name(name) = operand else {
            return Err(format!("{operand:?} is not a register"));
        };
        match self.names.find(name) {
            Some(Symbol::Register { slot, bits }) => Ok((*slot, *bits)),
            Some(_) => Err(format!("`{name}` is not a register")),
            None => Err(format!("`{name}` is not declared")),
        }
    }

    /// A register that may be the sink `_`.
    pub(crate) fn register_or_sink(&self, operand: &Operand) -> Result<(Option<Slot>, u32)> {
        match operand {
            Operand::Name(name) if name == "_" => Ok((None, 0)),
            _ => self
                .register(operand)
                .map(|(slot, bits)| (Some(slot), bits)),
        }
    }

    pub(crate) fn predicate(&self, operand: &Operand) -> Result<Slot> {
        let Operand::Name(name) = operand else {
            return Err(format!("{operand:?} is not a predicate"));
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
            Operand::Integer(value) => Ok(PredicateSource {
                index: None,
                negated: *value == 0 || *value == u64::MAX - 1,
            }),
            _ => Ok(PredicateSource {
                index: Some(self.predicate(operand)?),
                negated: false,
            }),
        }
    }

    /// An address, and the space of the variable that it names, if it names one.
    pub(crate) fn address(&mut self, operand: &Operand) -> Result<(Address, Option<Space>)> {
        let Operand::Address { base, offset } = operand else {
            return Err(format!("{operand:?} is not an address"));
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
                let address = Address {
                    base: *slot,
                    wide: *bits == 64,
                    offset: *offset,
                };
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

    /// The number of a label, to be made a position later.
    pub(crate) fn label(&self, operand: &Operand) -> Result<u32> {
        let Operand::Name(name) = operand else {
            return Err(format!("{operand:?} is not a label"));
        };
        match self.names.find(name) {
            Some(Symbol::Label(label)) => Ok(*label as u32),
            _ => Err(format!("`{name}` is not a label")),
        }
    }

    /// The labels of a `brx.idx`.
    pub(crate) fn targets(&self, operand: &Operand) -> Result<Vec<u32>> {
        let Operand::Name(name) = operand else {
            return Err(format!("{operand:?} is not a list of labels"));
        };
        match self.names.find(name) {
            Some(Symbol::Targets(names)) => {
                let label = |name: &String| self.label(&Operand::Name(name.clone()));
                names.iter().map(label).collect()
            }
            _ => Err(format!("`{name}` is not a list of labels")),
        }
    }

    /// Replaces label numbers by positions.
    fn resolve_labels(&mut self) -> Result<(), PtxError> {
        let labels = &self.labels;
        let position = |label: &mut u32| match labels[*label as usize] {
            Some(position) => {
                *label = position;
                true
            }
            None => false,
        };
        let mut unresolved = None;
        for instruction in &mut self.code {
            let resolved = match &mut instruction.op {
                Op::Branch(label) | Op::Call(label) => position(label),
                Op::CallIndirect { functions, .. } => {
                    functions.iter_mut().all(|(_, label)| position(label))
                }
                Op::BranchIndexed { targets, .. } => targets.iter_mut().all(position),
                _ => true,
            };
            if !resolved {
                unresolved = Some(instruction.line);
            }
        }
        match unresolved {
            None => Ok(()),
            Some(line) => Err(self.error(line, "this goes to a label that lies nowhere")),
        }
    }
}

fn truncate(value: u64, bits: u32) -> u64 {
    match bits {
        64 => value,
        bits => value & ((1 << bits) - 1),
    }
}

fn immediate_float(value: f64, bits: u32) -> Result<u64> {
    match bits {
        64 => Ok(value.to_bits()),
        32 => Ok(u64::from((value as f32).to_bits())),
        _ => Err(format!("a number for {bits} bits")),
    }
}

fn moved(address: Constant, offset: i64) -> Constant {
    match address {
        Constant::Bits(bits) => Constant::Bits(bits.wrapping_add_signed(offset)),
        Constant::Shared(at) => Constant::Shared(at.wrapping_add_signed(offset as i32)),
        Constant::DynamicShared { align, offset: at } => Constant::DynamicShared {
            align,
            offset: at.wrapping_add_signed(offset as i32),
        },
        Constant::Frame { frame, offset: at } => Constant::Frame {
            frame,
            offset: at.wrapping_add_signed(offset as i32),
        },
    }
}
