//! The kernel under construction: collects instructions, registers and parameters, and writes the
//! PTX text.

use std::cell::RefCell;
use std::fmt::{Display, Write};
use std::panic::Location;

use super::register::Class;
use super::shared::SharedLayout;
use super::{Operand, Parameter, Ptx, Register, Scalar, Target, U32};

/// A kernel under construction.
///
/// [`Kernel::new`] creates it, operators and methods of its registers add instructions, and
/// [`Kernel::finish`] returns the text. Registers borrow the kernel; hence
/// `let k = &Kernel::new(..)`.
pub struct Kernel {
    entry: String,
    target: Target,
    threads: u32,
    ctas_per_sm: Option<u32>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    body: String,
    registers: [u32; Class::ALL.len()],
    labels: u32,
    barriers: u32,
    parameters: Vec<Parameter>,
    shared: SharedLayout,
    source: Source,
}

/// The Rust files referenced so far, and the file and line of the last `.loc` directive.
#[derive(Default)]
struct Source {
    files: Vec<&'static str>,
    last: (usize, u32),
}

impl Source {
    /// The `.loc` directive for `location`, or `None` if the line has not changed.
    fn directive(&mut self, location: &'static Location<'static>) -> Option<String> {
        let known = self.files.iter().position(|file| *file == location.file());
        let index = known.unwrap_or_else(|| {
            self.files.push(location.file());
            self.files.len() - 1
        });

        let here = (index + 1, location.line());
        if std::mem::replace(&mut self.last, here) == here {
            return None;
        }
        Some(format!(".loc {} {} {}", here.0, here.1, location.column()))
    }
}

/// A branch target.
#[derive(Clone, Copy)]
pub(super) struct Label(u32);

impl Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "$L{}", self.0)
    }
}

impl Kernel {
    /// An empty kernel with one-dimensional CTAs of `threads` threads.
    ///
    /// # Panics
    /// If `threads` is 0 or more than 1024.
    #[track_caller]
    pub fn new(entry: impl Into<String>, target: Target, threads: u32) -> Kernel {
        assert!(
            (1..=1024).contains(&threads),
            "a CTA of {threads} threads: the limit is 1 to 1024"
        );
        Kernel {
            entry: entry.into(),
            target,
            threads,
            ctas_per_sm: None,
            state: RefCell::default(),
        }
    }

    /// Limits registers so that `ctas` CTAs fit on one multiprocessor (`.minnctapersm`).
    #[must_use]
    pub fn ctas_per_sm(mut self, ctas: u32) -> Kernel {
        self.ctas_per_sm = Some(ctas);
        self
    }

    /// Lets each of 1024 threads per multiprocessor use 64 registers. Without this hint, ptxas
    /// saves registers by delaying loads until earlier ones are used.
    #[must_use]
    pub fn reserve_load_registers(self) -> Kernel {
        let ctas = (1024 / self.threads).max(1);
        self.ctas_per_sm(ctas)
    }

    /// Threads per CTA.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// Emits one instruction, given without its semicolon. This is for instructions that have no
    /// method.
    #[track_caller]
    pub fn emit(&self, instruction: impl Display) {
        let mut state = self.state.borrow_mut();
        if let Some(directive) = state.source.directive(Location::caller()) {
            push_line(&mut state.body, format_args!("\t{directive}"));
        }
        push_line(&mut state.body, format_args!("\t{instruction};"));
    }

    /// Emits one instruction whose result is a new register: `opcode result, operands`.
    #[track_caller]
    pub fn compute<T: Scalar>(&self, opcode: &str, operands: &[&dyn Display]) -> Register<'_, T> {
        let result = self.register();
        let operands: String = operands.iter().map(|x| format!(", {x}")).collect();
        self.emit(format_args!("{opcode} {result}{operands}"));
        result
    }

    /// A new, unwritten register.
    pub fn register<T: Scalar>(&self) -> Register<'_, T> {
        let next = &mut self.state.borrow_mut().registers[T::CLASS as usize];
        *next += 1;
        Register::new(self, *next)
    }

    /// A constant in a register.
    #[track_caller]
    pub fn constant<T: Scalar>(&self, value: T) -> Register<'_, T> {
        self.copy(value)
    }

    /// Copies a value to a new register.
    #[track_caller]
    pub(super) fn copy<T: Scalar>(&self, value: impl Operand<T>) -> Register<'_, T> {
        self.compute(&format!("mov.{}", T::BITS), &[&value.written()])
    }

    /// The index of the thread in its CTA.
    #[track_caller]
    pub fn thread(&self) -> U32<'_> {
        self.compute("mov.u32", &[&"%tid.x"])
    }

    /// The index of the thread in its warp.
    #[track_caller]
    pub fn lane(&self) -> U32<'_> {
        self.thread() & 31
    }

    /// The index of the warp in its CTA.
    #[track_caller]
    pub fn warp(&self) -> U32<'_> {
        self.thread() >> 5
    }

    /// The index of the CTA in the grid's first dimension.
    #[track_caller]
    pub fn cta(&self) -> U32<'_> {
        self.compute("mov.u32", &[&"%ctaid.x"])
    }

    /// The index of the CTA in the grid's second dimension.
    #[track_caller]
    pub fn cta_y(&self) -> U32<'_> {
        self.compute("mov.u32", &[&"%ctaid.y"])
    }

    /// The number of CTAs in the grid's first dimension.
    #[track_caller]
    pub fn ctas(&self) -> U32<'_> {
        self.compute("mov.u32", &[&"%nctaid.x"])
    }

    pub(super) fn add_parameter(&self, parameter: Parameter) {
        self.state.borrow_mut().parameters.push(parameter);
    }

    pub(super) fn shared_layout<R>(&self, change: impl FnOnce(&mut SharedLayout) -> R) -> R {
        change(&mut self.state.borrow_mut().shared)
    }

    pub(super) fn label(&self) -> Label {
        let mut state = self.state.borrow_mut();
        state.labels += 1;
        Label(state.labels)
    }

    /// The number of a new barrier, counted from 1.
    pub(super) fn count_barrier(&self) -> u32 {
        let mut state = self.state.borrow_mut();
        state.barriers += 1;
        state.barriers
    }

    pub(super) fn place(&self, label: Label) {
        push_line(&mut self.state.borrow_mut().body, format_args!("{label}:"));
    }

    /// The text of the kernel and its launch geometry.
    pub fn finish(&self) -> Ptx {
        let state = self.state.borrow();
        Ptx {
            entry: self.entry.clone(),
            text: self.text(&state),
            target: self.target,
            block: [self.threads, 1, 1],
            dynamic_shared: state.shared.dynamic_bytes(),
            parameters: state.parameters.clone(),
        }
    }

    fn text(&self, state: &State) -> String {
        let mut text = String::with_capacity(state.body.len() + 1024);
        let mut line = |args: std::fmt::Arguments<'_>| push_line(&mut text, args);

        line(format_args!(".version {}", self.target.ptx_version()));
        line(format_args!(".target {}", self.target.name()));
        line(format_args!(".address_size 64"));
        for (index, file) in state.source.files.iter().enumerate() {
            line(format_args!(".file {} \"{file}\"", index + 1));
        }
        let dynamic = state.shared.dynamic_declaration();
        if let Some(declaration) = &dynamic {
            line(format_args!("{declaration}"));
        }

        line(format_args!(".visible .entry {}(", self.entry));
        let last = state.parameters.len().saturating_sub(1);
        for (index, parameter) in state.parameters.iter().enumerate() {
            let (kind, name) = (parameter.kind.ptx_type(), &parameter.name);
            let comma = if index == last { "" } else { "," };
            line(format_args!("\t.param .{kind} {name}{comma}"));
        }
        line(format_args!(")"));
        line(format_args!(".reqntid {}, 1, 1", self.threads));
        if let Some(ctas) = self.ctas_per_sm {
            line(format_args!(".minnctapersm {ctas}"));
        }

        line(format_args!("{{"));
        for class in Class::ALL {
            let (prefix, kind) = class.names();
            let count = state.registers[class as usize];
            if count > 0 {
                line(format_args!("\t.reg .{kind} {prefix}<{}>;", count + 1));
            }
        }
        if let Some(declaration) = state.shared.static_declaration() {
            line(format_args!("\t{declaration}"));
        }
        text.push_str(&state.body);
        text.push_str("\tret;\n}\n");
        text
    }
}

fn push_line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a String takes any text");
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{ArgumentFor, In};
    use super::*;

    /// The instructions of a kernel without directives.
    pub(in crate::assembler) fn body(k: &Kernel) -> Vec<String> {
        let text = k.finish().text;
        let (_, body) = text.split_once("{\n").expect("a body");
        body.lines()
            .map(str::trim)
            .filter(|line| !line.starts_with('.'))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn parameters_are_declared_in_order() {
        let k = &Kernel::new("parameters", Target::Sm90a, 64).ctas_per_sm(3);
        In::declare(k, "x", &());
        u32::declare(k, "n", &());
        i64::declare(k, "stride", &());
        f32::declare(k, "eps", &());
        let ptx = k.finish();

        let head = ".version 8.3\n.target sm_90a\n.address_size 64\n";
        assert!(ptx.text.starts_with(head), "{}", ptx.text);
        let declared = ".visible .entry parameters(\n\t.param .u64 x,\n\t.param .u32 n,\n\
                        \t.param .s64 stride,\n\t.param .f32 eps\n)\n\
                        .reqntid 64, 1, 1\n.minnctapersm 3\n";
        assert!(ptx.text.contains(declared), "{}", ptx.text);
        assert_eq!(ptx.parameter_bytes(), 28);
        assert_eq!(ptx.block, [64, 1, 1]);
    }

    #[test]
    #[should_panic(expected = "a CTA of 1025 threads")]
    fn the_threads_of_a_cta_are_limited() {
        Kernel::new("large", Target::Sm80, 1025);
    }

    /// A class of registers is declared once, with room for all its names.
    #[test]
    fn registers_are_declared() {
        let k = &Kernel::new("registers", Target::Sm80, 32);
        let x = k.constant(1.0_f32) + k.constant(2.0_f32);
        let _signed = x.to_bits().signed();
        let text = k.finish().text;
        assert!(text.contains("\t.reg .f32 %f<4>;\n"), "{text}");
        assert!(text.contains("\t.reg .b32 %r<2>;\n"), "{text}");
        assert!(!text.contains(".reg .pred"), "{text}");
    }
}
