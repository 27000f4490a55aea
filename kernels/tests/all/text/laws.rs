//! Laws over the text of every kernel of the catalogue: the width of row accesses, loads in flight,
//! and no float atomics.

use std::collections::{BTreeSet, HashMap, HashSet};

use meshgrad_kernel_catalogue::families;
use meshgrad_kernels::Ptx;

use super::instructions::{Instruction, blocks};

/// Families whose kernels load each row once, from memory to registers.
const ROWS: &[&str] = &[
    "elementwise",
    "copies",
    "indexing",
    "gemm_parts",
    "cross_entropy",
    "swiglu",
    "token_permute",
    "rope",
    "random",
    "norm_rope",
    "router",
    "adamw",
    "softmax",
    "reduce",
    "add_rms_norm",
    "top_k",
    "global_norm",
    "tree_reduce",
    "row_map",
    "column_sums",
    "argsort",
];

/// The other families. Matrix products and attention load tiles into shared memory, several ahead.
/// The counting sort by expert only has indices, which it counts in shared memory. Cumulative sums are
/// bound by their scans.
const TILES: &[&str] = &["gemm_f32", "gemm_bf16", "grouped", "expert_order", "attention", "cumsum"];

/// Parameters that vectorized kernels access in fewer than 16 bytes: prefix of the kernel names,
/// parameters, and the reason.
const NARROW: &[(&str, &[&str], &str)] = &[
    ("", &["inv_rms", "lse", "dloss", "max", "sum_exp"], "one per row"),
    ("", &["labels", "label_logit", "indices", "dweights"], "one per row or choice"),
    ("row_map", &["given0", "numbers0", "numbers1"], "one per row"),
    ("column_sums", &["numbers0", "numbers1"], "one per row"),
    ("", &["ids", "order", "row_of_slot", "starts", "keys", "positions"], "indices"),
    ("", &["weights", "end", "faults_word", "end_faults_word"], "one per row, or a single value"),
    ("", &["to_keys", "to_values", "to_indices"], "scattered by index"),
    ("reduce", &["y"], "one per row, or four columns"),
    ("sum_squares", &["partials"], "one per CTA"),
    ("norm_rope_grad_weight", &["partials"], "one column per thread, from shared memory"),
    ("gemm_split_k_reduce_bf16", &["c"], "four rounded sums"),
    ("rope", &["cos", "sin"], "one angle per two features"),
    ("norm_rope", &["cos", "sin"], "one angle per two features"),
    ("sort_tiles", &["to_x"], "sorted elements reloaded by index"),
    ("fill_", &["y"], "the rest is stored in the same block"),
    ("router_top_k", &["probabilities"], "chosen scores reloaded from the cache"),
];

fn of_rows() -> impl Iterator<Item = Ptx> {
    let families = families().into_iter();
    let rows = families.filter(|(family, _)| ROWS.contains(family));
    rows.flat_map(|(_, kernels)| kernels)
}

/// Every family is listed in exactly one of the two tables.
#[test]
fn every_family_is_listed_once() {
    let known: BTreeSet<&str> = ROWS.iter().chain(TILES).copied().collect();
    let families: BTreeSet<&str> = families().into_iter().map(|(family, _)| family).collect();
    assert_eq!(known, families);
    assert_eq!(known.len(), ROWS.len() + TILES.len());
}

/// The first operand of a `wgmma` in registers is computed in the same iteration of its loop. ptxas 13.0
/// overwrites registers that were computed before the loop, without a warning.
#[test]
fn operands_of_warpgroup_products_are_computed_in_their_loop() {
    let mut products = 0;
    for ptx in families().into_iter().flat_map(|(_, kernels)| kernels) {
        let lines: Vec<&str> = ptx.text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let lists: Vec<&str> = line.split('{').skip(1).collect();
            let (true, [_, operand]) = (line.starts_with("wgmma.mma_async"), &lists[..]) else {
                continue;
            };
            let iteration = &lines[loop_start(&lines, at)..at];
            let registers = operand.split('}').next().unwrap().split(", ");
            for register in registers {
                let is_computed = iteration.iter().any(|line| destination(line) == Some(register));
                assert!(is_computed, "{}: {register} in {line}", ptx.entry);
            }
            products += 1;
        }
    }
    assert!(products > 0);
}

/// The line after the head of the innermost loop around line `at`.
fn loop_start(lines: &[&str], at: usize) -> usize {
    let returns_to = |label: &str| {
        let branch = format!("bra {label};");
        lines[at..].iter().any(|line| line.ends_with(&branch))
    };
    let heads = lines[..at].iter().rposition(|line| line.strip_suffix(':').is_some_and(returns_to));
    heads.map_or(0, |head| head + 1)
}

/// The register that an instruction writes first.
fn destination(line: &str) -> Option<&str> {
    line.split_whitespace().nth(1).map(|operand| operand.trim_end_matches(','))
}

/// Every run must give the same bits, so only integers use atomics: their order does not matter.
#[test]
fn there_are_no_float_atomics() {
    let is_float = |part: &str| part.starts_with('f') || part.starts_with("bf");
    for (_, kernels) in families() {
        for ptx in kernels {
            for instruction in blocks(&ptx.text).iter().flatten() {
                let mut parts = instruction.opcode.split('.');
                let atomic = matches!(parts.next(), Some("atom" | "red" | "redux"));
                let of_floats = atomic && parts.any(is_float);
                assert!(!of_floats, "{}: {}", ptx.entry, instruction.text);
            }
        }
    }
}

/// Whether a kernel moves 16 bytes per access, according to its name.
fn in_vectors(entry: &str) -> bool {
    let words = ["vectors", "contiguous", "blocks", "aligned", "b16", "loop4", "w4", "w8"];
    let features = |part: &str| {
        let digits = part.strip_prefix('d').unwrap_or("");
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_one = |part: &str| words.contains(&part) || features(part);
    // An access to bools has as many elements as one to wider operands, so it is narrower.
    entry.split('_').any(is_one) && !entry.contains("bool")
}

/// Rows are accessed 16 bytes at a time. Narrower accesses handle the remainder of a row, in a
/// separate basic block.
#[test]
fn rows_move_in_accesses_of_16_bytes() {
    let mut seen = 0;
    // AdamW reads its pointers from a table; its own tests check its accesses.
    let kernels = of_rows().filter(|ptx| !ptx.entry.starts_with("adamw"));
    for ptx in kernels.filter(|ptx| in_vectors(&ptx.entry)) {
        let excused = NARROW.iter().filter(|(start, ..)| ptx.entry.starts_with(start));
        let excused: HashSet<&str> = excused.flat_map(|(_, names, _)| *names).copied().collect();
        let mut wide = HashSet::new();
        let mut all = HashSet::new();
        for accesses in accesses_by_block(&ptx.text) {
            let accesses = accesses.iter().filter(|it| !excused.contains(it.parameter));
            let accesses: Vec<&Access<'_>> = accesses.collect();
            let is_body = accesses.iter().any(|it| it.bytes == 16);
            for it in accesses {
                let narrow = is_body && it.bytes != 16;
                assert!(!narrow, "{}: {} of `{}`", ptx.entry, it.text, it.parameter);
                all.insert(it.parameter);
                wide.extend((it.bytes == 16).then_some(it.parameter));
            }
        }
        assert_eq!(wide, all, "{}: operands that are never moved in vectors", ptx.entry);
        seen += 1;
    }
    assert!(seen > 100, "only {seen} kernels are vectorized");
}

/// A global memory access, and the pointer parameter that its address is derived from.
struct Access<'t> {
    text: &'t str,
    parameter: &'t str,
    bytes: u32,
}

fn accesses_by_block(ptx: &str) -> Vec<Vec<Access<'_>>> {
    let (mut parameters, mut pointers) = (HashMap::new(), HashMap::new());
    let mut found = Vec::new();
    for block in blocks(ptx) {
        let mut accesses = Vec::new();
        for it in &block {
            if let Some((_, name)) = it.text.split_once("ld.param.u64") {
                let (register, name) = name.split_once(", ").expect("a register and a name");
                parameters.insert(register.trim(), name.trim_matches(['[', ']']));
                continue;
            }
            let known = if it.opcode.starts_with("cvta") { &parameters } else { &pointers };
            let from = it.read.iter().find_map(|register| known.get(register)).copied();
            if let Some(bytes) = it.global_bytes() {
                accesses.push(Access {
                    text: it.text,
                    parameter: from.expect("an address derived from a pointer parameter"),
                    bytes,
                });
            } else if let (Some(name), [to]) = (from, &it.written[..]) {
                pointers.insert(to, name);
            }
        }
        found.push(accesses);
    }
    found
}

/// All loads of a basic block are issued before the first is used, except loads whose addresses
/// depend on loaded values.
#[test]
fn all_loads_are_in_flight() {
    let in_units = ["copy_", "transpose_", "index_select_", "gather_", "index_keys_", "tree_"];
    for ptx in of_rows() {
        let whole = in_units.iter().any(|start| ptx.entry.starts_with(start));
        for block in blocks(&ptx.text) {
            let vectors =
                |it: &Instruction<'_>| it.is_global_load() && it.global_bytes() == Some(16);
            if whole || block.iter().any(vectors) {
                assert_in_flight(&ptx.entry, &block);
            }
        }
    }
}

/// Kernels that keep a row in registers.
const IN_REGISTERS: &[&str] =
    &["row_map_", "add_rms_norm_", "softmax_", "log_softmax_", "rope_", "norm_rope_"];

/// The kernel that has too few registers to load all operands of its row in one step.
const IN_TWO_READS: &str = "add_rms_norm_grad_input_f32_d8192_t512";

/// A row in registers is loaded in a single step.
#[test]
fn rows_in_registers_are_loaded_in_one_step() {
    for ptx in of_rows().filter(|ptx| in_vectors(&ptx.entry)) {
        let in_registers = |start: &&str| ptx.entry.starts_with(*start);
        if ptx.entry.contains("_d") && IN_REGISTERS.iter().any(in_registers) {
            let blocks = blocks(&ptx.text);
            let reads = blocks.iter().filter(|block| block.iter().any(Instruction::is_global_load));
            let expected = if ptx.entry == IN_TWO_READS { 2 } else { 1 };
            assert_eq!(reads.count(), expected, "{}", ptx.entry);
        }
    }
}

/// Loads by depth. The depth of a load is the length of the chain of loads that its address and
/// predicate depend on.
#[derive(Default)]
struct Flight<'t> {
    /// Length of the chain of loads that a register depends on.
    behind: HashMap<&'t str, usize>,
    /// The length of the chain of loads that data in shared memory depends on.
    shared: usize,
    /// Depth of the load that wrote a register.
    loaded: HashMap<&'t str, usize>,
    /// The first instruction that waits for a load at each depth.
    waits: HashMap<usize, &'t str>,
}

fn assert_in_flight(entry: &str, block: &[Instruction<'_>]) {
    let mut flight = Flight::default();
    for it in block {
        let behind = it.read.iter().filter_map(|register| flight.behind.get(register));
        let mut behind = behind.max().copied().unwrap_or(0);
        for depth in it.read.iter().filter_map(|register| flight.loaded.get(register)) {
            flight.waits.entry(*depth).or_insert(it.text);
        }
        if it.is_global_load() {
            let wait = flight.waits.get(&behind);
            assert!(wait.is_none(), "{entry}: `{}` waits for `{}`", it.text, wait.unwrap());
            for register in &it.written {
                flight.loaded.insert(register, behind);
                flight.behind.insert(register, behind + 1);
            }
            continue;
        }
        match it.opcode {
            opcode if opcode.starts_with("st.shared") => flight.shared = flight.shared.max(behind),
            opcode if opcode.starts_with("ld.shared") => behind = behind.max(flight.shared),
            _ => {}
        }
        for register in &it.written {
            flight.loaded.remove(register);
            flight.behind.insert(register, behind);
        }
    }
}
