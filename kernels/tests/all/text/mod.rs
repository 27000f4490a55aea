//! Golden PTX of one small kernel per kind, without source line directives (`UPDATE_GOLDEN=1`
//! rewrites the files), and laws over the text of every kernel.

mod instructions;
mod laws;

use std::path::Path;
use std::{env, fs};

use meshgrad_kernel_catalogue::catalogue;

/// The kernels whose text is kept in `tests/ptx`.
const SHOWN: &[&str] = &[
    "elementwise_times_times_x0_sigmoid_x0_x1_bf16_bf16_to_bf16_contiguous",
    "elementwise_plus_x0_x1_f32_f32_to_f32_strided1",
    "row_map_f32_d128_t32_mv_given0_written_8d5fe6001ff59b45",
    "row_map_bf16_d128_t16_mm_given1_sum_x1_is_x1_to_times_x2_minus_x0_x3",
    "column_sums_bf16_w8_t16_m2_n1_of_times_x0_times_x1_x2",
    "sum_partials",
    "gemm_f32_nt_64x64x8",
    "gemm_bf16_nt_64x64x32_bf16",
];

#[test]
fn text_matches_the_golden_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ptx");
    let kernels = catalogue();
    for entry in SHOWN {
        let ptx = kernels.iter().find(|ptx| ptx.entry == *entry);
        let text = without_source_lines(&ptx.expect("a kernel of the catalogue").text);
        let path = folder.join(format!("{entry}.ptx"));
        if env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, &text).unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(golden, text, "{entry}: run with UPDATE_GOLDEN=1 if the change is intended");
    }
}

/// Equal variants give equal text, which a cache relies on.
#[test]
fn text_is_deterministic() {
    assert_eq!(catalogue(), catalogue());
}

fn without_source_lines(text: &str) -> String {
    let kept = text.lines().filter(|line| {
        let line = line.trim_start();
        !line.starts_with(".loc ") && !line.starts_with(".file ")
    });
    kept.map(|line| format!("{line}\n")).collect()
}
