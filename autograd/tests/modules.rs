//! `#[derive(Module)]`: every parameter and buffer is visited, in order, once.

use std::sync::Arc;

use meshgrad_autograd::{Buffer, Init, Module, ModulePath, Param, Visitor};
use meshgrad_runtime::{DType, Device};

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
        [
            "blocks.0.0",
            "blocks.0.1",
            "blocks.1.0",
            "blocks.1.1",
            "tied",
            "one",
            "a",
            "b"
        ]
    );
    assert_eq!(buffers, ["blocks.0.count", "blocks.1.count", "shared"]);
}

/// `visit` itself passes a tied parameter at each of its places.
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
fn materialize_sets_parameters_and_buffers_but_nothing_that_is_skipped() {
    let (model, device) = (model(), Device::cpu());
    model.materialize(&device, 1).unwrap();
    for param in model.params() {
        assert_eq!(param.value().unwrap().to_vec::<f32>().unwrap(), [1.0; 2]);
    }
    for buffer in model.buffers() {
        assert_eq!(buffer.value().unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
    }
    assert!(model.blocks[0].first.1.value().is_err());
    assert_eq!(
        (model.scale, model.name, model.dtype),
        (2.0, "model", DType::F32)
    );
    assert_eq!(model.path, ModulePath::root());
}
