//! The operations of a map and their arguments.

use std::str::FromStr;

use meshgrad_error::{Error, Result, bail, ensure, error};

use super::term::{Action, Call, Term};
use crate::Dtype;
use crate::graph::Real;

/// The arguments in the parentheses of an operation.
#[derive(Default)]
pub(super) struct Arguments {
    /// In order. A name comes with its text, because it may turn out to be a number or a dtype.
    pub(super) positional: Vec<(Term, Option<String>)>,
    pub(super) named: Vec<(String, String)>,
}

/// The syntax of an operation.
struct Usage {
    name: &'static str,
    usage: &'static str,
    build: fn(&mut Reader) -> Result<Action>,
}

const FLOATS: &str = "a dtype: F64, F32, F16 or BF16";

const DTYPES: &str = "a dtype: F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, I16, I8, U64, U32, \
                      U16, U8 or BOOL";

/// All operations, in the order of the documentation.
const OPERATIONS: [Usage; 23] = [
    Usage {
        name: "concat",
        usage: "concat(x, y, dim=0, shares=8:1:1) or concat(x.{e}, each=e)",
        build: |args| {
            let dim = args.dim()?;
            let shares = args.named("shares", "parts such as 8:1:1", |text| list(text, ':'))?;
            args.all_tensors();
            Ok(Action::Concat { dim, shares })
        },
    },
    Usage {
        name: "stack",
        usage: "stack(x, y, dim=0) or stack(x.{e}, each=e)",
        build: |args| {
            let dim = args.dim()?;
            args.all_tensors();
            Ok(Action::Stack { dim })
        },
    },
    Usage {
        name: "interleave",
        usage: "interleave(x, y, dim=0)",
        build: |args| {
            let dim = args.dim()?;
            args.all_tensors();
            Ok(Action::Interleave { dim })
        },
    },
    Usage {
        name: "transpose",
        usage: "transpose(x, 0, 1)",
        build: |args| {
            args.tensors(1)?;
            Ok(Action::Transpose(args.number("a dim")?, args.number("a dim")?))
        },
    },
    Usage {
        name: "permute",
        usage: "permute(x, 2, 0, 1)",
        build: |args| {
            args.tensors(1)?;
            let mut dims = Vec::new();
            while args.has_more() {
                dims.push(args.number("a dim")?);
            }
            Ok(Action::Permute(dims))
        },
    },
    Usage {
        name: "slice",
        usage: "slice(x, 0, 4096, dim=0, step=1): start and exclusive end",
        build: |args| {
            args.tensors(1)?;
            let (start, end) = (args.number("the first index")?, args.number("the end index")?);
            ensure!(
                start < end,
                Invalid,
                "slice must be a range of at least one element, with the end after the start, not \
                 `{start}, {end}`"
            );
            Ok(Action::Slice {
                dim: args.dim()?,
                start,
                end,
                step: args.named("step", "a number of at least 1", positive)?.unwrap_or(1),
            })
        },
    },
    Usage {
        name: "select",
        usage: "select(x, 3, dim=0)",
        build: |args| {
            args.tensors(1)?;
            let (dim, index) = (args.dim()?, args.number("an index")?);
            Ok(Action::Select { dim, index })
        },
    },
    Usage {
        name: "chunk",
        usage: "chunk(x, 0, of=2, dim=0)",
        build: |args| {
            args.tensors(1)?;
            let count = args.named("of", "a number of at least 1", positive)?;
            Ok(Action::Chunk {
                dim: args.dim()?,
                index: args.number("the index of the part, from 0")?,
                count: count.ok_or_else(|| args.missing("of=, the number of parts"))?,
            })
        },
    },
    Usage {
        name: "unflatten",
        usage: "unflatten(x, 128, dim=0): 128 is the number of rows",
        build: |args| {
            args.tensors(1)?;
            let (dim, rows) = (args.dim()?, args.number("the number of rows")?);
            Ok(Action::Unflatten { dim, rows })
        },
    },
    Usage {
        name: "flatten",
        usage: "flatten(x, dim=0, rows=128): merges dims 0 and 1; only the inverse needs rows=",
        build: |args| {
            args.tensors(1)?;
            let rows = args.named("rows", "a number of at least 1", positive)?;
            Ok(Action::Flatten { dim: args.dim()?, rows })
        },
    },
    Usage {
        name: "unsqueeze",
        usage: "unsqueeze(x, dim=0)",
        build: |args| {
            args.tensors(1)?;
            Ok(Action::Unsqueeze { dim: args.dim()? })
        },
    },
    Usage {
        name: "squeeze",
        usage: "squeeze(x, dim=0)",
        build: |args| {
            args.tensors(1)?;
            Ok(Action::Squeeze { dim: args.dim()? })
        },
    },
    Usage {
        name: "pad",
        usage: "pad(x, 152064, dim=0, value=0, from=151936); only the inverse needs from=",
        build: |args| {
            args.tensors(1)?;
            let value = args.named("value", "a number", real)?;
            Ok(Action::Pad {
                dim: args.dim()?,
                to: args.number("the target extent")?,
                from: args.named("from", "a number", parsed)?,
                value: value.unwrap_or(Real(0.0)),
            })
        },
    },
    Usage {
        name: "fill",
        usage: "fill(0, F32, shape=4x8)",
        build: |args| {
            let value = args.scalar("a number", real)?;
            let dtype = args.scalar(DTYPES, parsed)?;
            let shape = args.named("shape", "extents such as 4x8", |text| list(text, 'x'))?;
            Ok(Action::Fill { value, dtype, shape: shape.ok_or_else(|| args.missing("shape="))? })
        },
    },
    Usage {
        name: "cast",
        usage: "cast(x, BF16)",
        build: |args| {
            args.tensors(1)?;
            Ok(Action::Cast(args.scalar(FLOATS, parsed)?))
        },
    },
    Usage {
        name: "scale",
        usage: "scale(x, 0.5)",
        build: |args| {
            args.tensors(1)?;
            Ok(Action::Scale(args.scalar("a number", real)?))
        },
    },
    Usage {
        name: "add",
        usage: "add(x, 1)",
        build: |args| {
            args.tensors(1)?;
            Ok(Action::Add(args.scalar("a number", real)?))
        },
    },
    Usage {
        name: "first",
        usage: "first(x, y): x if it exists, else y",
        build: |args| {
            args.all_tensors();
            Ok(Action::First { tied: false })
        },
    },
    Usage {
        name: "tied",
        usage: "tied(x, y): like first, but all that exist must be equal",
        build: |args| {
            args.all_tensors();
            Ok(Action::First { tied: true })
        },
    },
    Usage {
        name: "rename",
        usage: "rename(x): x, whose other name is given up",
        build: |args| {
            args.tensors(1)?;
            Ok(Action::Rename)
        },
    },
    Usage {
        name: "mean",
        usage: "mean(x, y, z)",
        build: |args| {
            args.all_tensors();
            Ok(Action::Mean)
        },
    },
    Usage {
        name: "lora",
        usage: "lora(weight, a, b, scale=2): weight + scale * b @ a",
        build: |args| {
            args.tensors(3)?;
            let scale = args.named("scale", "a number", real)?;
            let scale = scale.ok_or_else(|| args.missing("scale="))?;
            Ok(Action::Lora { scale })
        },
    },
    Usage {
        name: "dequant",
        usage: "dequant(weight, scale, BF16, block=128x128)",
        build: |args| {
            args.tensors(2)?;
            let block = args.named("block", "extents such as 128x128", |text| list(text, 'x'))?;
            Ok(Action::Dequant {
                dtype: args.scalar(FLOATS, parsed)?,
                block: block.ok_or_else(|| args.missing("block="))?,
            })
        },
    },
];

/// Builds the call of the operation with this name.
pub(super) fn call(name: &str, arguments: Arguments) -> Result<Term> {
    let Some(usage) = OPERATIONS.iter().find(|usage| usage.name == name) else {
        let known: Vec<&str> = OPERATIONS.iter().map(|usage| usage.name).collect();
        bail!(Invalid, "unknown operation `{name}`; the operations are {}", known.join(", "));
    };
    let mut reader = Reader {
        usage,
        positional: arguments.positional.into_iter().collect(),
        named: arguments.named,
        of: Vec::new(),
    };
    let each = reader.named("each", "the name of a capture", |text| Some(text.into()))?;
    let action = (usage.build)(&mut reader)?;
    reader.finish(each.is_some())?;
    let of = reader.of;
    Ok(Term::Call(Call { action, of, each }))
}

/// Consumes the arguments of one operation.
struct Reader {
    usage: &'static Usage,
    positional: std::collections::VecDeque<(Term, Option<String>)>,
    named: Vec<(String, String)>,
    of: Vec<Term>,
}

impl Reader {
    fn all_tensors(&mut self) {
        self.of.extend(self.positional.drain(..).map(|(term, _)| term));
    }

    fn tensors(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            let tensor = self.positional.pop_front();
            let (term, _) = tensor.ok_or_else(|| self.missing("a tensor"))?;
            self.of.push(term);
        }
        Ok(())
    }

    fn has_more(&self) -> bool {
        !self.positional.is_empty()
    }

    fn number<T: FromStr>(&mut self, what: &'static str) -> Result<T> {
        self.scalar(what, parsed)
    }

    /// The next argument, as a value that is not a tensor.
    fn scalar<T>(&mut self, what: &'static str, read: fn(&str) -> Option<T>) -> Result<T> {
        let next = self.positional.pop_front();
        let (_, text) = next.ok_or_else(|| self.missing(what))?;
        let text = text.unwrap_or_else(|| "an operation".to_owned());
        read(&text).ok_or_else(|| wrong_value(self.usage.name, what, &text))
    }

    fn named<T>(
        &mut self,
        name: &'static str,
        expected: &'static str,
        read: fn(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(at) = self.named.iter().position(|(it, _)| it == name) else {
            return Ok(None);
        };
        let (_, text) = self.named.remove(at);
        let value = read(&text).ok_or_else(|| wrong_value(name, expected, &text))?;
        Ok(Some(value))
    }

    fn dim(&mut self) -> Result<i64> {
        Ok(self.named("dim", "a number", parsed)?.unwrap_or(0))
    }

    fn missing(&self, what: &'static str) -> Error {
        let Usage { name: op, usage, .. } = *self.usage;
        error!(Invalid, "{op} needs {what}: {usage}")
    }

    /// Checks that no arguments are left, and that there is an operand.
    fn finish(&self, has_each: bool) -> Result<()> {
        let left = self.named.iter().map(|(name, _)| format!("`{name}=`"));
        let more = self.positional.iter().map(|_| "further argument".to_owned());
        let joins = matches!(self.usage.name, "concat" | "stack" | "interleave" | "mean");
        let each = (has_each && !(joins && self.of.len() == 1))
            .then(|| "`each=` except with a single operand".to_owned());
        if let Some(what) = left.chain(more).chain(each).next() {
            let Usage { name: op, usage, .. } = *self.usage;
            bail!(Invalid, "{op} takes no {what}: {usage}");
        }
        match self.of.is_empty() && self.usage.name != "fill" {
            true => Err(self.missing("a tensor")),
            false => Ok(()),
        }
    }
}

fn wrong_value(what: &str, expected: &str, found: &str) -> Error {
    error!(Invalid, "{what} must be {expected}, not `{}`", found.escape_debug())
}

fn parsed<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn positive(text: &str) -> Option<u64> {
    parsed(text).filter(|number| *number > 0)
}

fn real(text: &str) -> Option<Real> {
    parsed(text).filter(|it: &f64| it.is_finite()).map(Real)
}

/// Parses a list of numbers of at least 1.
fn list(text: &str, separator: char) -> Option<Vec<u64>> {
    text.split(separator).map(positive).collect()
}

/// `Dtype` is parsed from its name in a file: `BF16`.
const _: fn(&str) -> Option<Dtype> = parsed;
