//! Signatures of ops: the parser of texts such as `x: F[.. i], w: F[o i] -> y: F[.. o]`.
//!
//! The runtime checks shapes and dtypes with the parsed signature, and
//! [`ShardingRule`](crate::ShardingRule) derives shardings from it. The parser keeps dtypes as
//! text; the runtime interprets them.

use meshgrad_error::{Result, error};

/// A parsed signature: operands, results and the dims that have names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedSignature<'a> {
    /// The tensors left of `->`, at least one.
    pub operands: Vec<TensorSpec<'a>>,
    /// The tensors right of `->`.
    pub results: Vec<TensorSpec<'a>>,
    /// The named dims, in order of first appearance.
    pub dims: Vec<NamedDim<'a>>,
}

/// An operand or result of a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// The dtype; `None` for `x[i]`.
    pub dtype: Option<&'a str>,
    /// The dims.
    pub dims: Vec<DimSpec>,
}

/// One dim of a tensor in a signature, or the notation for several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DimSpec {
    /// A name such as `i` or `i!`, as an index into [`ParsedSignature::dims`].
    Named(usize),
    /// A number: a dim of exactly this extent.
    Fixed(usize),
    /// `..`: any leading dims.
    Leading,
    /// `~`: all dims, broadcast against those of other tensors.
    Broadcast,
    /// `*`: any dims, related to no other tensor's.
    Any,
}

/// A dim with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedDim<'a> {
    /// Its name, without `!`.
    pub name: &'a str,
    /// Whether it is written with `!` anywhere: the op needs it whole.
    pub whole: bool,
}

impl<'a> ParsedSignature<'a> {
    /// Parses a text such as `x: F[.. i], w: F[o i] -> y: F[.. o]`. Dtypes are optional.
    ///
    /// # Errors
    /// For malformed text, for a signature without operands, and for `..` or `~` in a result when no
    /// operand has it.
    pub fn parse(text: &'a str) -> Result<ParsedSignature<'a>> {
        parse(text).map_err(|problem| error!(Invalid, "`{text}` is not a signature: {problem}"))
    }
}

fn parse(text: &str) -> Result<ParsedSignature<'_>, String> {
    let (left, right) = text.split_once("->").ok_or("it has no `->`")?;
    let mut dims = Vec::new();
    let operands = tensors(left, &mut dims)?;
    let results = tensors(right, &mut dims)?;

    if operands.is_empty() {
        return Err("it has no operand".to_owned());
    }
    for (dim, text) in [(DimSpec::Leading, ".."), (DimSpec::Broadcast, "~")] {
        let has = |tensors: &[TensorSpec]| tensors.iter().any(|tensor| tensor.dims.contains(&dim));
        if has(&results) && !has(&operands) {
            return Err(format!("a result has `{text}` but no operand does"));
        }
    }
    Ok(ParsedSignature { operands, results, dims })
}

fn tensors<'a>(side: &'a str, dims: &mut Vec<NamedDim<'a>>) -> Result<Vec<TensorSpec<'a>>, String> {
    let written = side.split(',').map(str::trim);
    let written = written.filter(|tensor| !tensor.is_empty());
    written.map(|text| tensor(text, dims)).collect()
}

/// `x: F[.. i]` or `x[.. i]`.
fn tensor<'a>(text: &'a str, named: &mut Vec<NamedDim<'a>>) -> Result<TensorSpec<'a>, String> {
    let malformed = || format!("`{text}` is malformed, expected a tensor like `x: F[.. i]`");
    let rest = text.strip_suffix(']').ok_or_else(malformed)?;
    let (head, dims) = rest.split_once('[').ok_or_else(malformed)?;
    let (name, dtype) = match head.split_once(':') {
        Some((name, dtype)) => (name.trim(), Some(dtype.trim())),
        None => (head.trim(), None),
    };
    if name.is_empty() {
        return Err(malformed());
    }

    let dims = dims.split_whitespace();
    let dims: Vec<DimSpec> = dims.map(|dim| dim_spec(dim, named)).collect();
    let out_of_order = dims.iter().enumerate().any(|(at, dim)| match dim {
        DimSpec::Leading => at > 0,
        DimSpec::Broadcast | DimSpec::Any => dims.len() > 1,
        DimSpec::Named(_) | DimSpec::Fixed(_) => false,
    });
    match out_of_order {
        true => {
            Err(format!("in `{text}`, `..` must come first, and `~` and `*` must be the only dim"))
        }
        false => Ok(TensorSpec { name, dtype, dims }),
    }
}

fn dim_spec<'a>(text: &'a str, named: &mut Vec<NamedDim<'a>>) -> DimSpec {
    match text {
        ".." => return DimSpec::Leading,
        "~" => return DimSpec::Broadcast,
        "*" => return DimSpec::Any,
        _ => {}
    }
    if let Ok(extent) = text.parse() {
        return DimSpec::Fixed(extent);
    }

    let name = text.strip_suffix('!').unwrap_or(text);
    let at = named.iter().position(|known| known.name == name);
    let at = at.unwrap_or_else(|| {
        named.push(NamedDim { name, whole: false });
        named.len() - 1
    });
    named[at].whole |= name != text;
    DimSpec::Named(at)
}
