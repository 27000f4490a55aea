//! Decoding with a cache on the ranks of a mesh.

use meshgrad_autograd::{Module, Result};
use meshgrad_collectives::{full_tensor, redistribute};
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::Placement;
use meshgrad_models::{Decoder, Generate};
use meshgrad_runtime::{DType, Device, Tensor};

use crate::sharded::cases::{CASES, Case};
use crate::sharded::run::{SEED, model, sharded};
use crate::sharded::unchanged;
use crate::small::{distance, norm};

const ROWS: usize = 2;
const PROMPT: usize = 3;
const STEPS: usize = 6;

/// The tokens of each step of greedy decoding, and their logits.
type Decoded = Vec<(Vec<i64>, Vec<f32>)>;

fn decode(case: &Case, model: &Decoder, device: &Device) -> Result<Decoded> {
    let rows = [("dp", Placement::shard(0))];
    let rows = &rows[..usize::from(case.mesh.iter().any(|(axis, _)| *axis == "dp"))];
    let given = |ids: &[i64]| {
        let ids = Tensor::from_slice(device, &[ROWS, ids.len() / ROWS], ids)?.as_replicated()?;
        redistribute(&ids, rows)
    };
    let vocabulary = model.vocab_size();
    let prompt: Vec<i64> =
        (0..ROWS * PROMPT).map(|at| ((at * 17 + 5) % vocabulary) as i64).collect();
    let mut cache = model.cache(device, DType::F32, PROMPT + STEPS)?;
    let mut ids = given(&prompt)?;
    let mut decoded = Vec::new();
    for _ in 0..STEPS {
        let logits = model.next_logits(&ids, &mut cache, DType::F32)?;
        let logits: Vec<f32> = full_tensor(&logits)?.to_vec()?;
        let of_rows = logits.chunks(vocabulary);
        let best = |row: &[f32]| (0..vocabulary).max_by(|a, b| row[*a].total_cmp(&row[*b]));
        let tokens: Vec<i64> = of_rows.filter_map(best).map(|id| id as i64).collect();
        ids = given(&tokens)?;
        decoded.push((tokens, logits));
    }
    Ok(decoded)
}

fn on_ranks(case: &Case, fault: Fault) -> std::result::Result<Vec<Decoded>, String> {
    let mesh = case.mesh();
    let decoded = Local::run(mesh.len(), |rank| {
        let rank = RewiredRank::faulty(rank, fault);
        Redistributor::new(&rank).run_on(&mesh, || {
            let model = sharded(case, &rank, unchanged)?;
            decode(case, &model, rank.device())
        })
    });
    decoded.map_err(|error| error.to_string())
}

fn check(case: &Case, fault: Fault) -> std::result::Result<(), String> {
    let device = Device::cpu();
    let model = model(case).unwrap();
    model.materialize(&device, SEED).unwrap();
    let expected = decode(case, &model, &device).unwrap();
    for decoded in on_ranks(case, fault)? {
        for ((tokens, logits), (expected, of_one_rank)) in decoded.iter().zip(&expected) {
            let (difference, size) = (distance(logits, of_one_rank), norm(of_one_rank));
            if tokens != expected || difference > 2e-5 * size {
                return Err(format!("{tokens:?}, not {expected:?}; logits differ by {difference}"));
            }
        }
    }
    Ok(())
}

/// Whether a model with the plan of a case can decode: each rank needs the new token.
fn decodes(case: &&Case) -> bool {
    !case.sequence && !case.bf16 && !case.divides_sequences()
}

/// A rank's cache has its own key-value heads, and every rank has all logits.
#[test]
fn any_mesh_decodes_the_tokens_of_one_rank() {
    let cases = CASES.iter().filter(decodes);
    let problems = cases.filter_map(|case| {
        let problem = check(case, Fault::None).err()?;
        Some(format!("{case}: {problem}"))
    });
    let problems: Vec<String> = problems.collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The second rank of each group contributes zeros or twice its values. Members that change places
/// would not matter to sums.
#[test]
fn planted_faults_change_what_is_decoded() {
    let cases = CASES.iter().filter(decodes);
    let mut found = 0;
    for case in cases.filter(|case| case.has_three_ranks()) {
        for fault in [Fault::Dropped, Fault::Scaled] {
            assert!(check(case, fault).is_err(), "{case}: {fault:?}");
            found += 1;
        }
    }
    assert!(found >= 6);
}
