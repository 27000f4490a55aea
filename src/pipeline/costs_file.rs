//! The file of `--durations`.

use std::path::Path;

use anyhow::{Context, anyhow};
use meshgrad::pipeline::Costs;
use serde::Deserialize;

use crate::table::display_path;

/// All fields are optional. B takes as long as I and W by default.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CostsFile {
    forward: Option<PerStage>,
    backward: Option<PerStage>,
    input: Option<PerStage>,
    weight: Option<PerStage>,
    send: Option<PerStage>,
    overlap: Option<f64>,
    activation: Option<PerStage>,
    pending: Option<PerStage>,
}

/// One number for all stages, or one per stage.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, or a list with a number per stage")]
enum PerStage {
    All(f64),
    Each(Vec<f64>),
}

pub(crate) fn read(path: &Path, stages: usize) -> anyhow::Result<Costs> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", display_path(path)))?;
    let is_json = path.extension().is_some_and(|it| it == "json");
    let file = match is_json {
        true => serde_json::from_str(&text).map_err(anyhow::Error::from),
        false => toml::from_str(&text).map_err(|error| on_one_line(&error, &text)),
    };
    let file: CostsFile = file.with_context(|| display_path(path))?;
    let costs = file.costs(stages);
    costs.check(stages).with_context(|| display_path(path))?;
    Ok(costs)
}

/// The line and the problem, without the excerpt of the file.
fn on_one_line(error: &toml::de::Error, text: &str) -> anyhow::Error {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.unwrap_or_default().matches('\n').count() + 1;
    anyhow!("line {line}: {}", error.message())
}

impl CostsFile {
    fn costs(self, stages: usize) -> Costs {
        let default = Costs::uniform(stages);
        let list = |given: Option<PerStage>, default: Vec<f64>| match given {
            None => default,
            Some(PerStage::All(value)) => vec![value; stages],
            Some(PerStage::Each(values)) => values,
        };
        let input = list(self.input, default.input);
        let weight = list(self.weight, default.weight);
        let both = input.iter().zip(&weight).map(|(input, weight)| input + weight);
        let activation = list(self.activation, default.activation);
        Costs {
            forward: list(self.forward, default.forward),
            backward: list(self.backward, both.collect()),
            send: list(self.send, default.send),
            overlap: self.overlap.unwrap_or(default.overlap),
            pending: list(self.pending, activation.clone()),
            input,
            weight,
            activation,
            ..Costs::uniform(stages)
        }
    }
}
