//! `#[derive(Module)]` visits every field in order. `params()` and `buffers()` list each parameter
//! and buffer once.

use std::sync::Arc;

use meshgrad_autograd::{Buffer, Init, Module, ModulePath, Param, Visitor};
use meshgrad_runtime::{DType, Device, Kind, Tensor};

fn param(name: &str) -> Param {
    Param::new(name, [2], Init::Ones)
}

fn buffer(name: &str) -> Buffer {
    Buffer::new(name, [3], Init::Zeros)
}

fn names(module: &impl Module) -> (Vec<String>, Vec<String>) {
    let params = module.params();
    let buffers = module.buffers();
    (
        params.iter().map(|it| it.name().to_owned()).collect(),
        buffers.iter().map(|it| it.name().to_owned()).collect(),
    )
}

#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Block<T> {
    first: T,
    second: Option<Param>,
    count: Buffer,
}

#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Pair(Param, #[module(skip)] Param, Box<Param>);

#[derive(Module)]
#[module(crate = meshgrad_autograd)]
enum Either {
    Nothing,
    One(Param),
    Named {
        many: Vec<Param>,
        shared: Arc<Buffer>,
        #[module(skip)]
        _unused: Param,
    },
}

#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Model {
    scale: f64,
    name: &'static str,
    dtype: DType,
    path: ModulePath,
    blocks: [Block<Pair>; 2],
    choices: Vec<Either>,
    tied: Param,
    unit: Unit,
}

#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Unit;

fn model() -> Model {
    let tied = param("tied");
    let block = |at: ModulePath, second: bool| Block {
        first: Pair(
            param(&at.sub("0").to_string()),
            param("skipped"),
            Box::new(param(&at.sub("1").to_string())),
        ),
        second: second.then(|| tied.clone()),
        count: buffer(&at.sub("count").to_string()),
    };
    let blocks = ModulePath::from("blocks");
    Model {
        scale: 2.0,
        name: "model",
        dtype: DType::F32,
        path: ModulePath::root(),
        blocks: [block(blocks.index(0), false), block(blocks.index(1), true)],
        choices: vec![
            Either::Nothing,
            Either::One(param("one")),
            Either::Named {
                many: vec![param("a"), param("b")],
                shared: Arc::new(buffer("shared")),
                _unused: param("skipped"),
            },
        ],
        tied,
        unit: Unit,
    }
}

#[test]
fn every_field_is_visited_in_order_and_tied_parameters_once() {
    let (params, buffers) = names(&model());
    assert_eq!(
        params,
        ["blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1", "tied", "one", "a", "b"]
    );
    assert_eq!(buffers, ["blocks.0.count", "blocks.1.count", "shared"]);
}

/// `visit` itself passes a tied parameter once for each field that has it.
#[test]
fn a_visitor_sees_tied_parameters_twice() {
    #[derive(Default)]
    struct Count(usize, usize);

    impl Visitor for Count {
        fn param(&mut self, param: &Param) {
            self.0 += usize::from(param.name() == "tied");
        }

        fn buffer(&mut self, _: &Buffer) {
            self.1 += 1;
        }
    }

    let mut count = Count::default();
    model().visit(&mut count);
    assert_eq!((count.0, count.1), (2, 3));
}

#[test]
fn frozen_parameters_are_not_trained() {
    let model = model();
    assert_eq!(model.trained().len(), 8);
    model.blocks[0].freeze();
    let trained: Vec<String> = model.trained().iter().map(|it| it.name().to_owned()).collect();
    assert_eq!(trained, ["blocks.1.0", "blocks.1.1", "tied", "one", "a", "b"]);
    model.freeze();
    assert!(model.trained().is_empty());
}

/// Existing values are kept.
#[test]
fn materialize_missing_sets_only_parameters_without_a_value() {
    let (model, device) = (model(), Device::cpu());
    let kept = Tensor::from_slice(&device, &[2], &[5.0f32, 6.0]).unwrap();
    model.tied.set(&kept).unwrap();
    model.materialize_missing(&device, 1).unwrap();
    assert_eq!(model.tied.value().unwrap().to_vec::<f32>().unwrap(), [5.0, 6.0]);
    for param in model.params().iter().filter(|it| it.name() != "tied") {
        assert_eq!(param.value().unwrap().to_vec::<f32>().unwrap(), [1.0, 1.0]);
    }
    for buffer in model.buffers() {
        assert_eq!(buffer.value().unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
    }
}

/// `set` shares a tensor of `Kind::Parameter` and copies any other.
#[test]
fn a_value_is_shared_or_copied() {
    let (param, device) = (param("p"), Device::cpu());
    let own = Tensor::zeros(&device, &[2], DType::F32, Kind::Parameter).unwrap();
    param.set(&own).unwrap();
    assert_eq!(param.value().unwrap().storage_id(), own.storage_id());
    let other = Tensor::from_slice(&device, &[2], &[1.0f32, 2.0]).unwrap();
    param.set(&other).unwrap();
    let value = param.value().unwrap();
    assert_ne!(value.storage_id(), other.storage_id());
    assert_eq!(value.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(value.kind(), Kind::Parameter);
}

#[test]
fn a_value_of_another_shape_or_dtype_is_refused() {
    let (param, device) = (param("p"), Device::cpu());
    for (shape, dtype) in [([3], DType::F32), ([2], DType::BF16)] {
        let value = Tensor::zeros(&device, &shape, dtype, Kind::Parameter).unwrap();
        let error = param.set(&value).unwrap_err().to_string();
        assert!(error.contains(&format!("{dtype}[{}]", shape[0])), "{error}");
    }
    assert!(param.value().is_err());
}

#[test]
fn a_buffer_has_a_name_a_shape_and_a_value() {
    let buffer = buffer("count");
    assert_eq!(format!("{buffer:?}"), "`count` f32[3]");
    assert_eq!(format!("{:?}", param("weight")), "`weight` f32[2]");
    assert_eq!(**buffer.shape(), [3]);
    let value = Tensor::from_slice(&Device::cpu(), &[3], &[1.0f32, 2.0, 3.0]).unwrap();
    buffer.set(&value).unwrap();
    assert_eq!(buffer.value().unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
}

#[test]
fn uniform_values_have_both_signs_and_a_bound() {
    let param = Param::new("u", [1000], Init::Uniform { bound: 0.5 });
    param.materialize(&Device::cpu(), 3).unwrap();
    let values = param.value().unwrap().to_vec::<f32>().unwrap();
    let within = |low: f32, high: f32| values.iter().filter(|x| (low..high).contains(*x)).count();
    assert_eq!(within(-0.5, 0.5), 1000);
    assert!(within(-0.5, -0.25) > 150 && within(0.25, 0.5) > 150);
}

#[test]
fn a_reference_is_visited_as_its_module() {
    let model = model();
    assert_eq!(names(&&model), names(&model));
}

#[test]
fn module_paths_convert_from_and_to_strings() {
    let path = ModulePath::from("model").sub("head");
    assert_eq!(ModulePath::from(&path), path);
    assert_eq!(ModulePath::from("model.head".to_owned()), path);
    assert_eq!(String::from(path), "model.head");
}

#[test]
fn materialize_sets_parameters_and_buffers_but_no_skipped_fields() {
    let (model, device) = (model(), Device::cpu());
    model.materialize(&device, 1).unwrap();
    for param in model.params() {
        assert_eq!(param.value().unwrap().to_vec::<f32>().unwrap(), [1.0; 2]);
    }
    for buffer in model.buffers() {
        assert_eq!(buffer.value().unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
    }
    assert!(model.blocks[0].first.1.value().is_err());
    assert_eq!((model.scale, model.name, model.dtype), (2.0, "model", DType::F32));
    assert_eq!(model.path, ModulePath::root());
}

#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Network {
    up: Param,
    #[module(skip)]
    _skipped: Param,
    blocks: Vec<Linear>,
    r#gate: Option<Buffer>,
}

#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Linear(Param, [Buffer; 2]);

#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Outer {
    model: Network,
}

/// A network whose tensors have these names, in the order of `visit`.
fn network(names: [&str; 8]) -> Outer {
    let [up, w0, a0, b0, w1, a1, b1, gate] = names;
    let linear = |w, a, b| Linear(param(w), [buffer(a), buffer(b)]);
    let blocks = vec![linear(w0, a0, b0), linear(w1, a1, b1)];
    Outer {
        model: Network { up: param(up), _skipped: param("up"), blocks, r#gate: Some(buffer(gate)) },
    }
}

/// Two parameters or buffers with one name are an error that names both fields, before any value
/// exists. One parameter in two fields is not.
#[test]
fn names_are_unique() {
    let fields = [
        "model.up",
        "model.blocks.0.0",
        "model.blocks.0.1.0",
        "model.blocks.0.1.1",
        "model.blocks.1.0",
        "model.blocks.1.1.0",
        "model.blocks.1.1.1",
        "model.gate",
    ];
    let (device, names) = (Device::cpu(), ["up", "1", "2", "3", "4", "5", "6", "7"]);
    network(names).materialize(&device, 1).unwrap();
    for first in 0..names.len() {
        for second in first + 1..names.len() {
            let mut names = names;
            names[second] = names[first];
            let network = network(names);
            let expected = format!(
                "`{}` and `{}` are two parameters or buffers named `{}`",
                fields[first], fields[second], names[first]
            );
            for result in [network.materialize(&device, 1), network.materialize_missing(&device, 1)]
            {
                let error = result.unwrap_err().to_string();
                assert!(error.starts_with(&expected), "{error}");
            }
            assert!(network.params().iter().all(|param| !param.has_value()));
        }
    }

    let mut tied = network(names);
    tied.model.blocks[1].0 = tied.model.up.clone();
    tied.materialize(&device, 1).unwrap();
}

/// A module that implements `visit` itself need not name its fields.
#[test]
fn names_are_unique_without_fields() {
    struct Own([Param; 3]);

    impl Module for Own {
        fn visit(&self, visitor: &mut dyn Visitor) {
            self.0.iter().for_each(|param| visitor.param(param));
        }
    }

    let own = Own(["a", "b", "a"].map(param));
    let error = own.materialize(&Device::cpu(), 1).unwrap_err().to_string();
    let expected = "number 1 of `visit` and number 3 of `visit` are two parameters";
    assert!(error.starts_with(expected), "{error}");
}
