//! A rule with the shapes of one call: which dim of which tensor is which.

use super::{Dim, Rule, RuleError, Written};
use crate::Reduction;

/// What is cut at one stroke: a dim, in whichever tensors it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Label {
    /// An index into the rule's names.
    Name(usize),
    /// Of the leading dims.
    Leading(usize),
    /// Of the dims that broadcast, counted from the back.
    Broadcast(usize),
}

/// A dim of a tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    /// None if it cannot be cut.
    pub(super) label: Option<Label>,
    /// What a rank has of it, of the axes that were looked at before.
    pub(super) extent: usize,
}

/// The dims of a tensor.
pub(super) type Slots = Vec<Slot>;

#[derive(Clone)]
pub(super) struct Bound<'a> {
    pub(super) rule: &'a Rule,
    pub(super) operands: Vec<Slots>,
    /// None where the signature does not say what the dims are.
    pub(super) results: Vec<Option<Slots>>,
    /// What was cut into parts that are not equal.
    pub(super) uneven: Vec<Label>,
}

/// A dim that is cut along an axis, and whether the parts are equal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) label: Label,
    pub(super) equal: bool,
}

impl<'a> Bound<'a> {
    pub(super) fn new(rule: &'a Rule, shapes: &[&[usize]]) -> Result<Bound<'a>, RuleError> {
        let extents = Extents::of(rule, shapes)?;
        let operands = rule.operands.iter().zip(shapes);
        let operands = operands.map(|(operand, shape)| extents.of_operand(operand, shape));
        let results = rule.results.iter().map(|result| extents.of_result(result));
        Ok(Bound {
            rule,
            operands: operands.collect(),
            results: results.collect(),
            uneven: Vec::new(),
        })
    }

    /// Takes over that a dim was cut into `ranks` parts.
    pub(super) fn cut(&mut self, Cut { label, equal }: Cut, ranks: usize) {
        if !equal {
            self.uneven.push(label);
        }
        let results = self.results.iter_mut().flatten();
        for slot in self.operands.iter_mut().chain(results).flatten() {
            if slot.label == Some(label) {
                slot.extent = slot.extent.div_ceil(ranks);
            }
        }
    }

    /// Where `label` stands in a tensor, and the extent there.
    pub(super) fn position(slots: &Slots, label: Label) -> Option<(usize, usize)> {
        let dim = slots.iter().position(|slot| slot.label == Some(label))?;
        Some((dim, slots[dim].extent))
    }

    /// All dims that could be cut, as they first appear.
    pub(super) fn labels(&self) -> Vec<Label> {
        let mut labels: Vec<Label> = Vec::new();
        for label in self.operands.iter().flatten().filter_map(|slot| slot.label) {
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
        labels
    }

    /// What makes one of the parts of a result that does not have a dim.
    pub(super) fn reduction(&self, label: Label) -> Reduction {
        match label {
            Label::Name(name) => self.rule.names[name].reduction,
            Label::Leading(_) | Label::Broadcast(_) => Reduction::Sum,
        }
    }

    /// The other name of what is cut together.
    pub(super) fn beside(&self, label: Label) -> Option<&'a str> {
        let Label::Name(name) = label else {
            return None;
        };
        let names = &self.rule.names;
        names[name].groups.map(|other| names[other].text.as_str())
    }

    /// Dim `at` of an operand as the signature writes it, where it has a name.
    pub(super) fn written(&self, operand: usize, at: usize) -> Option<&'a str> {
        let rule = self.rule;
        let dims = &rule.operands[operand].dims;
        let from_the_back = self.operands[operand].len().checked_sub(at)?;
        match dims.len().checked_sub(from_the_back).map(|dim| dims[dim]) {
            Some(Dim::Name(name)) => Some(&rule.names[name].text),
            _ => None,
        }
    }
}

/// What names, leading dims and dims that broadcast stand for.
struct Extents<'a> {
    rule: &'a Rule,
    /// With the operand that said it.
    names: Vec<Option<(usize, usize)>>,
    leading: Option<(&'a [usize], usize)>,
    broadcast: Vec<usize>,
}

impl<'a> Extents<'a> {
    fn of(rule: &'a Rule, shapes: &[&'a [usize]]) -> Result<Extents<'a>, RuleError> {
        if shapes.len() != rule.operands.len() {
            return Err(RuleError::Count {
                op: rule.op.clone(),
                what: "operands",
                names: rule.operand_names(),
                given: shapes.len(),
            });
        }
        let mut extents = Extents {
            rule,
            names: rule
                .names
                .iter()
                .map(|name| Some((name.extent?, 0)))
                .collect(),
            leading: None,
            broadcast: Vec::new(),
        };
        for (at, shape) in shapes.iter().enumerate() {
            extents.bind(at, shape)?;
        }
        Ok(extents)
    }

    fn bind(&mut self, at: usize, shape: &'a [usize]) -> Result<(), RuleError> {
        let dims = &self.rule.operands[at].dims;
        match dims.first() {
            Some(Dim::Anything) => return Ok(()),
            Some(Dim::Broadcast) => return self.bind_broadcast(at, shape),
            _ => {}
        }
        let named = match dims.first() {
            Some(Dim::Leading) => &dims[1..],
            _ => &dims[..],
        };
        let leading = shape.len().checked_sub(named.len());
        let leading = leading.filter(|count| *count == 0 || named.len() < dims.len());
        let Some(leading) = leading else {
            return Err(self.wrong_dims(at, named.len(), shape));
        };
        if named.len() < dims.len() {
            self.bind_leading(at, &shape[..leading])?;
        }
        for (dim, extent) in named.iter().zip(&shape[leading..]) {
            self.bind_dim(at, *dim, *extent)?;
        }
        Ok(())
    }

    fn bind_dim(&mut self, at: usize, dim: Dim, extent: usize) -> Result<(), RuleError> {
        let (bound, from, name) = match dim {
            Dim::Fixed(wanted) => (wanted, at, wanted.to_string()),
            Dim::Name(name) => {
                let (bound, from) = *self.names[name].get_or_insert((extent, at));
                (bound, from, self.rule.names[name].text.clone())
            }
            Dim::Leading | Dim::Broadcast | Dim::Anything => return Ok(()),
        };
        match bound == extent {
            true => Ok(()),
            false => Err(self.disagree(at, format!("{name} = {extent}"), from, bound.to_string())),
        }
    }

    fn bind_leading(&mut self, at: usize, dims: &'a [usize]) -> Result<(), RuleError> {
        let (bound, from) = *self.leading.get_or_insert((dims, at));
        match bound == dims {
            true => Ok(()),
            false => {
                let (has, other) = (format!("leading dims {dims:?}"), format!("{bound:?}"));
                Err(self.disagree(at, has, from, other))
            }
        }
    }

    fn bind_broadcast(&mut self, at: usize, shape: &[usize]) -> Result<(), RuleError> {
        for (place, extent) in shape.iter().rev().enumerate() {
            match self.broadcast.get_mut(place) {
                None => self.broadcast.push(*extent),
                Some(common) if *common == 1 => *common = *extent,
                Some(common) if *extent != 1 && *extent != *common => {
                    let common: Vec<usize> = self.broadcast.iter().rev().copied().collect();
                    let (has, other) = (format!("shape {shape:?}"), format!("{common:?}"));
                    return Err(self.disagree(at, has, 0, other));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn wrong_dims(&self, at: usize, needed: usize, shape: &[usize]) -> RuleError {
        RuleError::Dims {
            op: self.rule.op.clone(),
            tensor: self.rule.operands[at].name.clone(),
            needed,
            shape: shape.to_vec(),
        }
    }

    fn disagree(&self, at: usize, has: String, from: usize, other_has: String) -> RuleError {
        RuleError::Extents {
            op: self.rule.op.clone(),
            operand: self.rule.operands[at].name.clone(),
            has,
            other: self.rule.operands[from].name.clone(),
            other_has,
        }
    }

    fn of_operand(&self, operand: &Written, shape: &[usize]) -> Slots {
        let labels = match operand.dims.first() {
            Some(Dim::Anything) => vec![None; shape.len()],
            Some(Dim::Broadcast) => self.broadcasting(shape),
            _ => self.labels(operand),
        };
        let slots = labels.into_iter().zip(shape);
        slots
            .map(|(label, extent)| Slot {
                label,
                extent: *extent,
            })
            .collect()
    }

    /// None where the signature leaves the dims open.
    fn of_result(&self, result: &Written) -> Option<Slots> {
        let labels = match result.dims.first() {
            Some(Dim::Anything) => return None,
            Some(Dim::Broadcast) => (0..self.broadcast.len())
                .rev()
                .map(|at| Some(Label::Broadcast(at)))
                .collect(),
            _ => self.labels(result),
        };
        let extents = self.extents(result);
        let slots = labels.into_iter().zip(extents);
        Some(
            slots
                .map(|(label, extent)| Slot { label, extent })
                .collect(),
        )
    }

    fn labels(&self, tensor: &Written) -> Vec<Option<Label>> {
        let leading = self.leading.map_or(0, |(dims, _)| dims.len());
        let labels = tensor.dims.iter().flat_map(|dim| match dim {
            Dim::Leading => (0..leading).map(|at| Some(Label::Leading(at))).collect(),
            Dim::Name(name) => vec![self.label_of(*name)],
            Dim::Fixed(_) | Dim::Broadcast | Dim::Anything => vec![None],
        });
        labels.collect()
    }

    /// The extents of a result; 1 where only the op knows.
    fn extents(&self, result: &Written) -> Vec<usize> {
        let extents = result.dims.iter().flat_map(|dim| match dim {
            Dim::Leading => self.leading.map_or(Vec::new(), |(dims, _)| dims.to_vec()),
            Dim::Broadcast => self.broadcast.iter().rev().copied().collect(),
            Dim::Name(name) => vec![self.names[*name].map_or(1, |(extent, _)| extent)],
            Dim::Fixed(extent) => vec![*extent],
            Dim::Anything => Vec::new(),
        });
        extents.collect()
    }

    fn label_of(&self, name: usize) -> Option<Label> {
        let (extent, _) = self.names[name]?;
        let names = &self.rule.names;
        let label = match names.iter().position(|many| many.groups == Some(name)) {
            Some(_) if extent == 1 => return None,
            Some(many) => many,
            None => name,
        };
        let whole = names[name].whole || names[label].whole;
        (!whole).then_some(Label::Name(label))
    }

    /// An operand that has one element where others have more cannot be cut there.
    fn broadcasting(&self, shape: &[usize]) -> Vec<Option<Label>> {
        let label = |dim: usize| {
            let place = shape.len() - 1 - dim;
            let is_common = self.broadcast.get(place) == Some(&shape[dim]);
            is_common.then_some(Label::Broadcast(place))
        };
        (0..shape.len()).map(label).collect()
    }
}
