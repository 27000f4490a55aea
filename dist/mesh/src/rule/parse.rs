//! Signatures as rules. The language is that of the runtime's signatures, of which only the dims
//! matter here.

use super::{Dim, Name, Rule, RuleError, Written};
use crate::Reduction;

pub(super) fn rule(op: &str, text: &str) -> Result<Rule, RuleError> {
    parse(op, text).map_err(|problem| RuleError::Text {
        text: text.to_owned(),
        problem,
    })
}

fn parse(op: &str, text: &str) -> Result<Rule, String> {
    let (operands, results) = text.split_once("->").ok_or("it has no `->`")?;
    let mut names = Vec::new();
    let mut side = |side: &str| -> Result<Vec<Written>, String> {
        let written = side.split(',').map(str::trim);
        let written = written.filter(|tensor| !tensor.is_empty());
        written
            .map(|tensor| self::written(tensor, &mut names))
            .collect()
    };
    let (operands, results) = (side(operands)?, side(results)?);

    if operands.is_empty() {
        return Err("it has no operand".to_owned());
    }
    for tensor in operands.iter().chain(&results) {
        for (at, dim) in tensor.dims.iter().enumerate() {
            if let Dim::Name(name) = dim {
                // Twice in one tensor, as a diagonal: a cut of one is no cut of the other.
                names[*name].whole |= tensor.dims[..at].contains(dim);
            }
        }
    }
    let needs = |dim: Dim| results.iter().any(|result| result.dims.contains(&dim));
    let has = |dim: Dim| operands.iter().any(|operand| operand.dims.contains(&dim));
    for (dim, text) in [(Dim::Leading, ".."), (Dim::Broadcast, "~")] {
        if needs(dim) && !has(dim) {
            return Err(format!("no operand says what `{text}` is"));
        }
    }
    Ok(Rule {
        op: op.to_owned(),
        operands,
        results,
        names,
        passes: Vec::new(),
    })
}

/// `x: F[.. i]`, or `x[.. i]`.
fn written(text: &str, names: &mut Vec<Name>) -> Result<Written, String> {
    let malformed = || format!("`{text}` is not like `x[.. i]`");
    let rest = text.strip_suffix(']').ok_or_else(malformed)?;
    let (head, dims) = rest.split_once('[').ok_or_else(malformed)?;
    let name = head.split(':').next().unwrap_or(head).trim();
    if name.is_empty() {
        return Err(malformed());
    }

    let dims: Vec<Dim> = dims
        .split_whitespace()
        .map(|dim| self::dim(dim, names))
        .collect();
    let misplaced = dims.iter().enumerate().any(|(at, dim)| match dim {
        Dim::Leading => at > 0,
        Dim::Broadcast | Dim::Anything => dims.len() > 1,
        Dim::Name(_) | Dim::Fixed(_) => false,
    });
    match misplaced {
        true => Err(format!(
            "in `{text}`, `..` comes first, and `~` and `*` stand alone"
        )),
        false => Ok(Written {
            name: name.to_owned(),
            dims,
        }),
    }
}

fn dim(text: &str, names: &mut Vec<Name>) -> Dim {
    match text {
        ".." => return Dim::Leading,
        "~" => return Dim::Broadcast,
        "*" => return Dim::Anything,
        _ => {}
    }
    if let Ok(extent) = text.parse() {
        return Dim::Fixed(extent);
    }

    let name = text.strip_suffix('!').unwrap_or(text);
    let at = names.iter().position(|known| known.text == name);
    let at = at.unwrap_or_else(|| {
        names.push(Name {
            text: name.to_owned(),
            whole: false,
            reduction: Reduction::Sum,
            groups: None,
            extent: None,
        });
        names.len() - 1
    });
    names[at].whole |= name != text;
    Dim::Name(at)
}
