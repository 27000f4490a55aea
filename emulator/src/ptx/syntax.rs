//! The syntax tree of a module, with unresolved names.

use std::collections::BTreeMap;
use std::fmt;

/// A whole module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Module {
    /// Paths by their number in `.loc`.
    pub(crate) files: BTreeMap<u64, String>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) functions: Vec<Function>,
}

/// The heading of a module: version and target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heading {
    /// From `.version`: major and minor.
    pub(crate) version: (u32, u32),
    pub(crate) version_line: u32,
    /// From `.target`, such as `sm_80` or `debug`.
    pub(crate) targets: Vec<String>,
    pub(crate) target_line: u32,
}

/// The state space of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// A variable of the module or of a function, or a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) space: Space,
    pub(crate) align: usize,
    /// Bytes of one element.
    pub(crate) element: usize,
    /// Number of elements; `None` for `name[]`, as dynamic shared memory is declared.
    pub(crate) count: Option<usize>,
    pub(crate) initial: Vec<PlacedValue>,
    pub(crate) line: u32,
}

impl Variable {
    pub(crate) fn bytes(&self) -> usize {
        self.element * self.count.unwrap_or(0)
    }
}

/// A value of an initializer and its position in the variable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlacedValue {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) value: Initial,
}

/// An initial value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Initial {
    Bits(u64),
    /// The address of a variable plus an offset. Generic and global addresses are equal.
    Address {
        name: String,
        offset: i64,
    },
}

/// An entry or a device function.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) entry: bool,
    pub(crate) returns: Vec<Parameter>,
    pub(crate) parameters: Vec<Parameter>,
    /// Required CTA extents, from `.reqntid`.
    pub(crate) required_threads: Option<[u32; 3]>,
    /// Maximum CTA extents, from `.maxntid`.
    pub(crate) max_threads: Option<[u32; 3]>,
    /// A directive that requests clusters.
    pub(crate) cluster: Option<String>,
    /// `None` for a declaration.
    pub(crate) body: Option<Vec<Statement>>,
    pub(crate) line: u32,
}

/// A parameter: in the `.param` space, or a register of a device function.
#[derive(Clone, Debug)]
pub(crate) enum Parameter {
    Memory(Variable),
    Register { name: String, kind: String },
}

/// A statement of a function body.
#[derive(Clone, Debug)]
pub(crate) enum Statement {
    Label(String),
    Instruction(Instruction),
    /// `.reg .b32 %r<5>;` declares five registers, `.reg .pred p, q;` one each.
    Registers {
        kind: String,
        names: Vec<(String, Option<u64>)>,
        line: u32,
    },
    Variable(Variable),
    /// The labels of a `brx.idx`.
    BranchTargets {
        name: String,
        labels: Vec<String>,
    },
    /// The signature of an indirect call.
    CallPrototype {
        name: String,
        returns: Vec<Parameter>,
        parameters: Vec<Parameter>,
    },
    Block(Vec<Statement>),
    /// File, line and column of the following instructions.
    Location([u64; 3]),
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// The predicate and whether it is negated.
    pub(crate) guard: Option<(String, bool)>,
    /// The opcode with all its modifiers.
    pub(crate) opcode: String,
    pub(crate) operands: Vec<Operand>,
    pub(crate) line: u32,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    /// A register, label, variable or function.
    Name(String),
    /// `!%p`.
    Not(String),
    Integer(u64),
    Float32(u32),
    Float64(u64),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `[base+offset]`.
    Address {
        base: Base,
        offset: i64,
    },
    /// `[a, {x, y}]`: a texture or a tensor with coordinates.
    Coordinates(Vec<Operand>),
    /// `a|b`.
    Pair(Box<Operand>, Box<Operand>),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
    /// `name+offset`: an address within a variable.
    Offset(String, i64),
}

/// The base of an address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Base {
    Name(String),
    Absolute,
}

/// As in PTX.
impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |operands: &[Operand]| {
            let texts: Vec<String> = operands.iter().map(Operand::to_string).collect();
            texts.join(", ")
        };
        match self {
            Operand::Name(name) => f.write_str(name),
            Operand::Not(name) => write!(f, "!{name}"),
            Operand::Integer(value) => write!(f, "{}", *value as i64),
            Operand::Float32(bits) => write!(f, "0f{bits:08X}"),
            Operand::Float64(bits) => write!(f, "{:?}", f64::from_bits(*bits)),
            Operand::Vector(lanes) => write!(f, "{{{}}}", list(lanes)),
            Operand::Address { base, offset } => match (base, offset) {
                (Base::Absolute, offset) => write!(f, "[{offset}]"),
                (Base::Name(name), 0) => write!(f, "[{name}]"),
                (Base::Name(name), offset) => write!(f, "[{name}{offset:+}]"),
            },
            Operand::Coordinates(parts) => write!(f, "[{}]", list(parts)),
            Operand::Pair(first, second) => write!(f, "{first}|{second}"),
            Operand::List(values) => write!(f, "({})", list(values)),
            Operand::Offset(name, offset) => write!(f, "{name}{offset:+}"),
        }
    }
}
