//! Learning rates and weight decays by parameter name.

use glob::Pattern;
use meshgrad_error::{bail, error};

use super::ranges::Ranges;
use super::{Group, OptimizerPart};
use crate::Result;

/// An ordered list of [`Group`]s. The first whose pattern matches a parameter applies to it.
///
/// A parameter without a group has learning-rate factor 1. Its weight decay is the optimizer's, or
/// 0 if the parameter has fewer than two dims, such as a norm or bias.
#[derive(Clone, Debug, Default)]
pub struct Groups(Vec<(Pattern, Group)>);

/// The settings of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Factor of the learning rate.
    pub learning_rate_factor: f64,
    /// Weight decay per step, relative to the learning rate.
    pub weight_decay: f64,
}

impl Groups {
    /// Groups for a model whose parameters are named `names`. These are the names of the whole
    /// model, even if this rank has only a part of it.
    ///
    /// # Errors
    /// When a pattern is invalid or applies to no parameter; when a number is negative or not finite.
    pub fn new(groups: Vec<Group>, names: &[&str]) -> Result<Groups> {
        let mut list: Vec<(Pattern, Group)> = Vec::with_capacity(groups.len());
        for group in groups {
            Ranges::default()
                .not_negative("learning_rate_factor", group.learning_rate_factor)
                .not_negative("weight_decay", group.weight_decay.unwrap_or(0.0))
                .check("groups")?;
            let pattern = parse(&group.pattern)?;
            let example = matched(&pattern, names)?;

            let taken = |name: &str| list.iter().any(|(earlier, _)| earlier.matches(name));
            let applies = |name: &&str| pattern.matches(name) && !taken(name);
            if !names.iter().any(applies) {
                bail!(
                    Invalid,
                    "pattern `{pattern}` never applies: earlier patterns match all of its parameters, \
                     such as `{example}`; move it before them"
                );
            }
            list.push((pattern, group));
        }
        Ok(Groups(list))
    }

    /// The settings of `part` in an optimizer with `weight_decay`.
    pub fn settings(&self, part: &OptimizerPart, weight_decay: f64) -> Settings {
        let group = self.0.iter().find(|(pattern, _)| pattern.matches(part.name()));
        let group = group.map(|(_, group)| group);
        let default = match part.global_shape().len() > 1 {
            true => weight_decay,
            false => 0.0,
        };
        Settings {
            learning_rate_factor: group.map_or(1.0, |group| group.learning_rate_factor),
            weight_decay: group.and_then(|group| group.weight_decay).unwrap_or(default),
        }
    }
}

/// Parses a pattern over names.
pub(crate) fn parse(pattern: &str) -> Result<Pattern> {
    Pattern::new(pattern).map_err(|problem| {
        error!(
            Invalid,
            "pattern `{pattern}` is invalid: {problem}; use `*` and `?`, as in `*.norm*`"
        )
    })
}

/// The first of `names` that `pattern` matches.
pub(crate) fn matched<'a>(pattern: &Pattern, names: &[&'a str]) -> Result<&'a str> {
    let found = names.iter().find(|name| pattern.matches(name));
    found.copied().ok_or_else(|| {
        let similarity = |name: &&&str| strsim::jaro(name, pattern.as_str());
        let nearest = names.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        let example = nearest.copied().unwrap_or_default();
        error!(
            Invalid,
            "pattern `{pattern}` matches no parameter; the most similar name is `{example}`"
        )
    })
}

#[cfg(test)]
mod tests {
    use meshgrad_autograd::{Init, Param, Spec};
    use meshgrad_runtime::Shape;

    use super::*;

    const NAMES: [&str; 3] = ["embed.weight", "layers.0.norm.weight", "layers.0.up.weight"];

    fn group(pattern: &str, learning_rate_factor: f64, weight_decay: Option<f64>) -> Group {
        Group { pattern: pattern.into(), learning_rate_factor, weight_decay }
    }

    fn settings(groups: &Groups, name: &str, shape: &[usize]) -> (f64, f64) {
        let spec = Spec { shape: Shape::new(shape).unwrap(), ..Spec::new([], Init::Zeros) };
        let part = OptimizerPart::of(&Param::with_spec(name, spec));
        let Settings { learning_rate_factor, weight_decay } = groups.settings(&part, 0.1);
        (learning_rate_factor, weight_decay)
    }

    #[test]
    fn the_first_match_counts() {
        let list = vec![group("*.norm*", 0.5, Some(0.2)), group("layers.*", 2.0, None)];
        let groups = Groups::new(list, &NAMES).unwrap();
        assert_eq!(settings(&groups, NAMES[0], &[4, 2]), (1.0, 0.1));
        assert_eq!(settings(&groups, NAMES[1], &[4]), (0.5, 0.2));
        assert_eq!(settings(&groups, NAMES[2], &[4, 2]), (2.0, 0.1));
        assert_eq!(settings(&groups, "layers.0.bias", &[4]), (2.0, 0.0));
        assert_eq!(settings(&Groups::default(), "scale", &[]), (1.0, 0.0));
    }

    #[test]
    fn patterns_without_effect_are_errors() {
        let message = |list: Vec<Group>| Groups::new(list, &NAMES).unwrap_err().to_string();
        assert_eq!(
            message(vec![group("embd.*", 1.0, None)]),
            "pattern `embd.*` matches no parameter; the most similar name is `embed.weight`"
        );
        assert_eq!(
            message(vec![group("*.0.*", 1.0, None), group("*.up.*", 2.0, None)]),
            "pattern `*.up.*` never applies: earlier patterns match all of its parameters, such as \
             `layers.0.up.weight`; move it before them"
        );
        assert!(message(vec![group("[", 1.0, None)]).starts_with("pattern `[` is invalid"));
        assert_eq!(
            message(vec![group("*", -1.0, None)]),
            "groups: learning_rate_factor is -1, but must be finite and at least 0"
        );
        assert!(Groups::new(vec![group("*", 1.0, Some(f64::NAN))], &NAMES).is_err());
    }
}
