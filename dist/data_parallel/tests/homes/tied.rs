//! A parameter that two of three stages of a pipeline have.

use approx::assert_relative_eq;
use meshgrad_autograd::{Grads, Init, Module, Param, Tape, Var, ops as tracked};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_data_parallel::{DataParallel, Strategy};
use meshgrad_mesh::Mesh;
use meshgrad_runtime::{DType, Result, ops};

const STAGES: usize = 3;
const ROWS: usize = 2;
const ELEMENTS: usize = 12;

/// The first elements of the gradients by name, and their norm.
type Outcome = (Vec<(String, f32)>, f32);

/// Each result of stage s has the gradient s + 1.
fn on_stage(rank: &dyn Rank, mesh: &Mesh) -> Result<Outcome> {
    let (stage, device) = (rank.rank(), rank.device());
    let names: &[&str] = match stage {
        1 => &["weight"],
        _ => &["weight", "table"],
    };
    let stage_mesh = mesh.at("pp", stage)?;
    Redistributor::new(rank).run_on(&stage_mesh, || {
        let params = names.iter().map(|name| Param::new(*name, [3, 4], Init::Ones));
        let params: Vec<Param> = params.collect();
        DataParallel::of_stage(rank, mesh, "pp", Strategy::fsdp(["dp"]))?
            .tied("table", Strategy::zero1(["dp"]), &[0, 2])
            .apply(&params)?;
        params.materialize(device, 0)?;

        let x = Var::constant(ops::full(device, &[ROWS, 4], DType::F32, 1.0)?);
        let dy = ops::full(device, &[ROWS, 3], DType::F32, stage as f64 + 1.0)?;
        let (ys, tape) = Tape::record(|| {
            let ys = params.iter().map(|w| tracked::linear(&x, &w.var()?));
            ys.collect::<Result<Vec<Var>>>()
        })?;
        let roots: Vec<_> = ys.iter().map(|y| (y, dy.clone())).collect();
        let mut grads = Grads::new(&params)?;
        tape.backward_from(&roots, &mut grads)?;
        let (norm, gradients) = (grads.norm()?.item::<f32>()?, grads.all()?);
        let first = gradients.iter().map(|(param, gradient)| {
            let values = gradient.to_vec::<f32>()?;
            assert_eq!(values.len(), ELEMENTS);
            Ok((param.name().to_owned(), values[0]))
        });
        Ok((first.collect::<Result<_>>()?, norm))
    })
}

#[test]
fn copies_have_the_gradient_of_their_stages_and_count_once() {
    let mesh = Mesh::new(&[STAGES, 1], &["pp", "dp"]).unwrap();
    let outcomes = Local::run(STAGES, |rank| on_stage(rank, &mesh)).unwrap();
    let rows = ROWS as f32;
    let [table, weights] = [rows * (1.0 + 3.0), rows];
    let squares = table * table + weights * weights * (1.0 + 4.0 + 9.0);
    let norm = (ELEMENTS as f32 * squares).sqrt();
    for (stage, (gradients, of_stage)) in outcomes.into_iter().enumerate() {
        let weight = ("weight".to_owned(), weights * (stage as f32 + 1.0));
        let expected = match stage {
            1 => vec![weight],
            _ => vec![weight, ("table".to_owned(), table)],
        };
        assert_eq!(gradients, expected);
        assert_relative_eq!(of_stage, norm, max_relative = 1e-5);
    }
}
