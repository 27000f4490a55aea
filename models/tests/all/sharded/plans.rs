//! Plans: what they say, and the errors of those that do not fit.

use meshgrad_autograd::{Init, Module, ModulePath, Param, Seam};
use meshgrad_mesh::{Mesh, Placement, Reduction};
use meshgrad_models::{Decoder, Model, ModelParallelism, ModelPlan};
use meshgrad_runtime::Device;

use crate::sharded::cases::{CASES, Case};

#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Mlp {
    up: Param,
    down: Param,
    output: Seam,
}

fn mlp() -> Mlp {
    let at = ModulePath::from("mlp");
    Mlp {
        up: Param::new(at.sub("up"), [8, 4], Init::Zeros),
        down: Param::new(at.sub("down"), [4, 8], Init::Zeros),
        output: Seam::new(at.sub("output")),
    }
}

#[test]
fn a_plan_places_parameters_and_seams() {
    let mesh = Mesh::new(&[3], &["tp"]).unwrap();
    let plan = ModelPlan::new(&mesh)
        .place("mlp.up", [("tp", Placement::shard(0))])
        .place("*.down", [("tp", Placement::shard(1))])
        .place("*.output", [("tp", Placement::Replicate)]);
    let mlp = mlp();
    plan.apply(&mlp, 2).unwrap();
    mlp.materialize(&Device::cpu(), 0).unwrap();
    assert_eq!(mlp.up.value().unwrap().shape().to_vec(), [2, 4]);
    assert_eq!(mlp.down.value().unwrap().shape().to_vec(), [4, 2]);
    assert_eq!(mlp.output.placements()[..], [("tp".to_owned(), Placement::Replicate)]);
    let late = plan.apply(&mlp, 2).unwrap_err().to_string();
    assert!(late.contains("before `materialize`"), "{late}");
}

#[test]
fn a_plan_that_does_not_fit_is_an_error_with_all_problems() {
    let mesh = Mesh::new(&[2], &["tp"]).unwrap();
    let plan = ModelPlan::new(&mesh)
        .place("mlp.up", [("tp", Placement::shard(2))])
        .place("mlp.dwn", [("tp", Placement::shard(1))])
        .place("*.down", [("tp", Placement::Partial(Reduction::Sum))])
        .place("*.output", [("dp", Placement::Replicate)])
        .place("[", [("tp", Placement::Replicate)]);
    let twice = ModelPlan::new(&mesh)
        .place("*", [("tp", Placement::shard(0))])
        .place("mlp.up", [("tp", Placement::shard(1))]);
    let mlp = mlp();
    let errors = [plan, twice].map(|plan| plan.apply(&mlp, 0).unwrap_err().to_string());
    insta::assert_snapshot!(errors.join("\n"));
    assert!(mlp.output.placements().is_empty());
}

fn plan_of(case: &Case, ranks: usize) -> Result<ModelPlan, String> {
    let mesh = Mesh::new(&[ranks], &["tp"]).unwrap();
    let parallelism = ModelParallelism::new(&mesh).tensor(["tp"]).unwrap();
    let plan = Decoder::new(&case.config()).unwrap().plan(&parallelism);
    plan.map_err(|error| error.to_string())
}

fn case(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.to_string().starts_with(name)).unwrap()
}

#[test]
fn key_value_heads_limit_the_ranks() {
    let messages = [4, 3, 5].map(|ranks| plan_of(case("tied"), ranks).unwrap_err());
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn a_plan_is_a_table() {
    let sparse = CASES.iter().find(|case| case.sequence && case.experts).unwrap();
    let plan = Decoder::new(&sparse.config()).unwrap().plan(&sparse.parallelism(&sparse.mesh()));
    insta::assert_snapshot!(plan.unwrap());
}
