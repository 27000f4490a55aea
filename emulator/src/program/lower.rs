//! Lowers syntax to code: names to registers, labels to positions.

use std::collections::HashMap;
use std::sync::Arc;

use super::calls::{Calls, STACK_BYTES};
use super::decode;
use super::functions::{Functions, is_call};
use super::grammar;
use super::kernel::{Constant, Kernel, KernelParameter};
use super::names::{Names, Symbol};
use super::op::{Instruction, Op, Space};
use super::signature::Signature;
use super::touches;
use crate::machine::registers::Slot;
use crate::numerics::Approximation;
use crate::ptx::PtxError;
use crate::ptx::syntax::{self, Operand, Parameter, Statement, Variable};

/// Maximum static shared memory of a kernel, the same on all current GPUs (CUDA C++ Programming
/// Guide, "Technical Specifications per Compute Capability").
const MAX_STATIC_SHARED: u32 = 48 << 10;

/// The context that all kernels of a module share.
pub(crate) struct ModuleContext<'a> {
    pub(crate) source: &'a str,
    pub(crate) text: Arc<str>,
    pub(crate) syntax: &'a syntax::Module,
    /// Addresses of the module's variables in global and constant memory.
    pub(crate) globals: &'a HashMap<String, u64>,
    /// The architecture of `.target`, such as 80.
    pub(crate) target: u32,
    /// Whether `.target` is `sm_90a`.
    pub(crate) is_sm90a: bool,
    /// The results of approximate instructions.
    pub(crate) approximation: Approximation,
    /// The module's functions.
    pub(crate) functions: Functions<'a>,
    /// Shared variables of the module.
    pub(crate) shared: Vec<&'a Variable>,
}

/// Lowers one kernel with all functions that it calls.
pub(crate) fn lower(
    module: &ModuleContext<'_>,
    entry: &syntax::Function,
) -> Result<Kernel, PtxError> {
    let mut lowering = Lowering::new(module);
    if let Some(directive) = &entry.cluster {
        let reason = grammar::reason(directive);
        let message = format!("the directive `{directive}` is not supported{reason}");
        return Err(lowering.error(entry.line, message));
    }
    lowering.place_module(entry)?;
    lowering.declare_module();
    let parameters = lowering.declare_kernel_parameters(entry);
    let body = entry.body.as_deref().unwrap_or_default();
    lowering.body(body)?;
    let end = lowering.code.len();
    lowering.push(entry.line, Op::Exit);
    lowering.called_functions()?;
    lowering.resolve_labels()?;
    lowering.check_shared(entry)?;
    Ok(lowering.finish(entry, parameters, end))
}

/// The state of lowering one kernel.
pub(crate) struct Lowering<'a> {
    pub(super) module: &'a ModuleContext<'a>,
    pub(crate) names: Names,
    pub(super) code: Vec<Instruction>,
    pub(super) source: Option<(u32, u32)>,
    line: u32,
    /// Positions of labels, by number.
    pub(super) labels: Vec<Option<u32>>,
    /// The module's variables and their addresses.
    of_module: Vec<(String, Symbol)>,
    static_shared: u32,
    pub(super) local_bytes: u32,
    pub(super) calls: Calls,
    pub(super) carry: Option<Slot>,
    pub(crate) communicates: bool,
    pub(crate) copies: bool,
    pub(crate) products: bool,
}

pub(super) type Result<T, E = String> = std::result::Result<T, E>;

impl<'a> Lowering<'a> {
    fn new(module: &'a ModuleContext<'a>) -> Lowering<'a> {
        Lowering {
            module,
            names: Names::default(),
            code: Vec::new(),
            source: None,
            line: 1,
            labels: Vec::new(),
            of_module: Vec::new(),
            static_shared: 0,
            local_bytes: 0,
            calls: Calls::default(),
            carry: None,
            communicates: false,
            copies: false,
            products: false,
        }
    }

    /// Assigns offsets to the module's shared variables that this kernel can reach.
    fn place_module(&mut self, entry: &syntax::Function) -> Result<(), PtxError> {
        for (name, address) in self.module.globals {
            let symbol =
                Symbol::Variable { space: Space::Global, address: Constant::Bits(*address) };
            self.of_module.push((name.clone(), symbol));
        }
        let reachable_names = self.module.functions.reachable_names(entry);
        for variable in &self.module.shared {
            if reachable_names.contains(variable.name.as_str()) {
                let symbol =
                    self.placed(variable).map_err(|error| self.error(variable.line, error))?;
                self.of_module.push((variable.name.clone(), symbol));
            }
        }
        Ok(())
    }

    /// Opens the scope of the module.
    pub(super) fn declare_module(&mut self) {
        self.names.open();
        for (name, symbol) in &self.of_module {
            self.names.declare(name, symbol.clone());
        }
    }

    /// Checks that static shared memory is within the limit.
    fn check_shared(&self, entry: &syntax::Function) -> Result<(), PtxError> {
        let (name, bytes) = (&entry.name, self.static_shared);
        if bytes <= MAX_STATIC_SHARED {
            return Ok(());
        }
        let words = format!(
            "kernel `{name}` has {bytes} bytes of static shared memory, but the maximum is \
             {MAX_STATIC_SHARED}; declare variables `.extern .shared` without a size and use \
             dynamic shared memory"
        );
        Err(self.error(entry.line, words))
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
            let symbol =
                Symbol::Variable { space: Space::Param, address: Constant::Bits(offset as u64) };
            self.names.declare(&variable.name, symbol);
            parameters.push(KernelParameter {
                name: variable.name.clone(),
                offset,
                bytes: variable.bytes(),
            });
        }
        parameters
    }

    fn finish(
        self,
        entry: &syntax::Function,
        parameters: Vec<KernelParameter>,
        end: usize,
    ) -> Kernel {
        let last = parameters.last();
        let parameter_bytes = last.map_or(0, |last| last.offset + last.bytes);
        let threads = entry.max_threads.or(entry.required_threads);
        let given = self.names.finish();
        let frames = self.calls.frames(&given.constants);
        let moving = frames.iter().any(|frame| frame.local_bytes > 0);
        // The stack is above everything with a fixed offset.
        let (static_local, stack) = match moving {
            true => (self.local_bytes.next_multiple_of(16), STACK_BYTES),
            false => (self.local_bytes, 0),
        };
        let touches = match self.products {
            true => touches::of_products(&self.code),
            false => Vec::new(),
        };
        let files = self.module.syntax.files.values().cloned().collect();
        Kernel {
            name: entry.name.clone(),
            parameters,
            parameter_bytes,
            static_shared: self.static_shared,
            max_threads: threads.map_or(1024, max_threads_of),
            required_threads: entry.required_threads,
            registers: (given.planes as u32).clamp(1, 255),
            local_bytes: static_local + stack,
            static_local,
            frames,
            code: self.code,
            end,
            files,
            text: self.module.text.clone(),
            planes: given.planes,
            predicates: given.predicates,
            constants: given.constants,
            specials: given.specials,
            communicates: self.communicates,
            copies: self.copies,
            products: self.products,
            touches,
        }
    }

    pub(super) fn error(&self, line: u32, message: impl Into<String>) -> PtxError {
        PtxError::new(self.module.source, line, message)
    }

    pub(super) fn push(&mut self, line: u32, op: Op) {
        self.code.push(Instruction { guard: None, op, line, source: self.source });
    }

    /// Inserts an operation before the instruction being decoded, and with the same predicate.
    pub(crate) fn push_before(&mut self, op: Op) {
        self.push(self.line, op);
    }

    /// Lowers the statements of one scope.
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
            if let Statement::CallPrototype { name, returns, parameters } = statement {
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
            Some(count) if count > 1 << 20 => {
                Err(format!("cannot declare {count} registers; the maximum is {}", 1 << 20))
            }
            Some(count) => (0..count)
                .try_for_each(|index| self.names.declare_register(&format!("{name}{index}"), kind)),
        }
    }

    pub(super) fn declare_variable(&mut self, variable: &Variable) -> Result<()> {
        let symbol = self.placed(variable)?;
        self.names.declare(&variable.name, symbol);
        Ok(())
    }

    /// Assigns an offset to a variable.
    fn placed(&mut self, variable: &Variable) -> Result<Symbol> {
        let (space, address) = match variable.space {
            syntax::Space::Shared if variable.count.is_none() => {
                let align = variable.align as u32;
                (Space::Shared, Constant::DynamicShared { align, offset: 0 })
            }
            syntax::Space::Shared => {
                let offset = assign_offset(variable, &mut self.static_shared)?;
                (Space::Shared, Constant::Shared(offset))
            }
            syntax::Space::Local if self.calls.is_recursive() => {
                let constant = self.calls.place_in_frame(variable)?;
                (Space::Local, constant)
            }
            syntax::Space::Local | syntax::Space::Param => {
                let offset = assign_offset(variable, &mut self.local_bytes)?;
                (Space::Local, Constant::Bits(u64::from(offset)))
            }
            syntax::Space::Global | syntax::Space::Const => {
                let name = &variable.name;
                return Err(format!(
                    "`{name}`: a global variable must be declared at module scope"
                ));
            }
        };
        Ok(Symbol::Variable { space, address })
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
            "ret" | "ret.uni" if !instruction.operands.is_empty() => {
                return Err("`ret` takes no operands".into());
            }
            "ret" | "ret.uni" => self.lower_return(instruction.line),
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
            Some(line) => Err(self.error(line, "branch to an undefined label")),
        }
    }
}

/// Allocates a variable at `end` and advances `end`.
pub(super) fn assign_offset(variable: &Variable, end: &mut u32) -> Result<u32> {
    let offset = end.checked_next_multiple_of(variable.align as u32);
    let bytes = u32::try_from(variable.bytes()).ok();
    let placed = offset.zip(bytes);
    let after = placed.and_then(|(offset, bytes)| offset.checked_add(bytes));
    match placed.zip(after.filter(|after| *after <= i32::MAX as u32)) {
        Some(((offset, _), after)) => {
            *end = after;
            Ok(offset)
        }
        None => Err(format!("no space left for `{}`", variable.name)),
    }
}

fn max_threads_of(extents: [u32; 3]) -> u32 {
    extents.into_iter().fold(1, u32::saturating_mul)
}
