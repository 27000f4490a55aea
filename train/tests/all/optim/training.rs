//! Training with the parameters and gradients of the fixtures.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::LazyLock;

use meshgrad_autograd::{Init, Param, Spec};
use meshgrad_runtime::ops::StepScalars;
use meshgrad_runtime::{DType, Device, Shape, Tensor, ops};
use meshgrad_train::optim::{OptimizerPart, OptimizerState, UpdateRule};
use safetensors::SafeTensors;

/// The parameters of `make_fixtures.py`.
pub(crate) const NAMES: [&str; 4] = ["wide", "tall", "experts", "bias"];
pub(crate) const MATRICES: [&str; 3] = ["wide", "tall", "experts"];
pub(crate) const STEPS: u32 = 20;
/// Factor of the gradients.
pub(crate) const SCALE: f32 = 0.5;

/// A tensor of the fixtures.
pub(crate) struct Fixture {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

static FIXTURES: LazyLock<BTreeMap<String, Fixture>> = LazyLock::new(|| {
    let file = SafeTensors::deserialize(include_bytes!("optimizers.safetensors")).unwrap();
    let fixture = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let words = view.data().chunks_exact(4);
        let values = words.map(|word| f32::from_le_bytes(word.try_into().unwrap()));
        let fixture = Fixture { shape: view.shape().to_vec(), values: values.collect() };
        (name, fixture)
    };
    file.tensors().into_iter().map(fixture).collect()
});

pub(crate) fn fixture(name: &str) -> &'static Fixture {
    FIXTURES.get(name).unwrap_or_else(|| panic!("no fixture {name}"))
}

pub(crate) fn learning_rate(step: u32) -> f32 {
    (0.01 * (1.0 - f64::from(step) / 40.0)) as f32
}

/// A parameter of the fixtures, or some of its rows.
#[derive(Clone)]
pub(crate) struct Choice {
    pub(crate) name: &'static str,
    pub(crate) rows: Option<Range<usize>>,
    pub(crate) dtype: DType,
}

impl Choice {
    pub(crate) fn whole(name: &'static str) -> Choice {
        Choice { name, rows: None, dtype: DType::F32 }
    }

    /// Its shape and its values in the fixture `of`.
    fn values(&self, of: &str) -> (Vec<usize>, Vec<f32>) {
        let Fixture { shape, values } = fixture(&format!("{of}/{}", self.name));
        let Some(rows) = &self.rows else {
            return (shape.clone(), values.clone());
        };
        let columns = *shape.last().unwrap();
        let elements = rows.start * columns..rows.end * columns;
        (vec![rows.len(), columns], values[elements].to_vec())
    }

    fn part(&self, device: &Device) -> OptimizerPart {
        let Fixture { shape, values } = fixture(&format!("start/{}", self.name));
        let start = Tensor::from_slice(device, shape, values).unwrap();
        let shape = Shape::new(shape).unwrap();
        let spec = Spec { shape, dtype: self.dtype, ..Spec::new([], Init::Zeros) };
        let param = Param::with_spec(self.name, spec);
        param.set(&ops::cast(&start, self.dtype).unwrap()).unwrap();
        match &self.rows {
            Some(rows) => OptimizerPart::of_rows(&param, rows.clone()).unwrap(),
            None => OptimizerPart::of(&param),
        }
    }
}

pub(crate) fn whole(names: &[&'static str]) -> Vec<Choice> {
    names.iter().copied().map(Choice::whole).collect()
}

/// The scalars of a step.
pub(crate) struct Scalars([Tensor; 3]);

impl Scalars {
    pub(crate) fn new(device: &Device, step: u32, scale: f32) -> Scalars {
        let values = [learning_rate(step), step as f32, scale];
        Scalars(values.map(|value| Tensor::scalar(device, value).unwrap()))
    }

    pub(crate) fn lend(&self) -> StepScalars<'_> {
        let [learning_rate, step, scale] = &self.0;
        StepScalars { learning_rate, step, scale }
    }
}

/// An update rule with its parts.
pub(crate) struct Training {
    device: Device,
    choices: Vec<Choice>,
    pub(crate) parts: Vec<OptimizerPart>,
    pub(crate) rule: Box<dyn UpdateRule>,
}

impl Training {
    pub(crate) fn new(
        device: &Device,
        choices: Vec<Choice>,
        make: &dyn Fn(&[OptimizerPart]) -> Box<dyn UpdateRule>,
    ) -> Training {
        let parts: Vec<OptimizerPart> = choices.iter().map(|choice| choice.part(device)).collect();
        Training { device: device.clone(), choices, rule: make(&parts), parts }
    }

    pub(crate) fn gradients(&self, step: u32) -> Vec<Tensor> {
        let of = |choice: &Choice| {
            let (shape, values) = choice.values(&format!("gradient/{step}"));
            Tensor::from_slice(&self.device, &shape, &values).unwrap()
        };
        self.choices.iter().map(of).collect()
    }

    pub(crate) fn step_with(&mut self, step: u32, scale: f32) {
        let (gradients, scalars) = (self.gradients(step), Scalars::new(&self.device, step, scale));
        self.rule.step(&gradients, scalars.lend()).unwrap();
    }

    pub(crate) fn run(&mut self, steps: Range<u32>) {
        steps.for_each(|step| self.step_with(step, SCALE));
    }

    /// `param/NAME` and `STATE/NAME` with their tensors.
    pub(crate) fn tensors(&self) -> Vec<(String, Tensor)> {
        let params = self.parts.iter();
        let params = params.map(|part| (format!("param/{}", part.name()), part.value().unwrap()));
        let of_state = |OptimizerState { name: state, tensors }: OptimizerState| {
            let tensors = tensors.into_iter();
            tensors.map(move |(name, tensor)| (format!("{state}/{name}"), tensor))
        };
        let states = self.rule.state().into_iter().flat_map(of_state);
        params.chain(states).collect()
    }

    /// The values of [`Training::tensors`].
    pub(crate) fn values(&self) -> Vec<(String, Vec<f32>)> {
        let tensors = self.tensors().into_iter();
        tensors.map(|(name, tensor)| (name, f32s(&tensor))).collect()
    }
}

pub(crate) fn f32s(x: &Tensor) -> Vec<f32> {
    ops::cast(x, DType::F32).unwrap().to_vec().unwrap()
}

/// The largest difference, relative to the largest expected value.
pub(crate) fn distance(actual: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let differences =
        actual.iter().zip(expected).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
    let largest = expected.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max);
    // NaN is further than anything.
    let far = |a: f64, b: f64| if b.is_nan() { f64::INFINITY } else { a.max(b) };
    differences.fold(0.0, far) / largest
}
