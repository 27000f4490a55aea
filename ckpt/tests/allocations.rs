//! Limits the memory that parsing untrusted bytes allocates. This is a separate test program,
//! because it counts allocations.
//!
//! The fuzzers of `ckpt/fuzz` look for panics at the same entry points; this test needs no fuzzer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use meshgrad_ckpt::{Header, fuzzing};
use proptest::prelude::*;

struct Counting;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(taken: usize, given_back: usize) {
    LARGEST.set(LARGEST.get().max(taken));
    HELD.set(HELD.get() + taken as isize - given_back as isize);
    PEAK.set(PEAK.get().max(HELD.get()));
}

// SAFETY: delegates to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller fulfills the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(address, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The largest single allocation of `work`, and its peak of allocated bytes.
fn cost(work: impl FnOnce()) -> (usize, usize) {
    LARGEST.set(0);
    HELD.set(0);
    PEAK.set(0);
    work();
    (LARGEST.get(), PEAK.get() as usize)
}

/// Returns whether the bytes are accepted.
type Read = fn(&[u8]) -> bool;

/// Everything that parses untrusted bytes.
const ENTRY_POINTS: [(&str, Read); 4] = [
    ("header", |json| {
        let start = [&(json.len() as u64).to_le_bytes(), json].concat();
        Header::parse(&start, start.len() as u64).is_ok()
    }),
    ("file", |bytes| Header::parse(bytes, u64::MAX).is_ok()),
    ("index", fuzzing::is_index),
    ("manifest", fuzzing::is_manifest),
];

/// Checks that no allocation is larger than 64 MiB plus four times the input.
fn check_cost(bytes: &[u8]) -> Result<(), TestCaseError> {
    for (name, read) in ENTRY_POINTS {
        let (largest, _) = cost(|| _ = read(bytes));
        let limit = (64 << 20) + 4 * bytes.len();
        prop_assert!(largest <= limit, "{name}: {largest} bytes");
    }
    Ok(())
}

/// Holds even for inputs that are expensive for their size, because each repetition becomes an
/// object.
#[test]
fn memory_is_proportional_to_the_input() {
    const LEN: usize = 8 << 20;
    let repeat = |before: &str, unit: &str, after: &str| {
        format!("{before}{}{after}", unit.repeat(LEN / unit.len()))
    };
    let numbered = |before: &str, rest: &str, after: &str| {
        let entry = |at: usize| format!("\"{at}\":{rest}");
        let count = LEN / (entry(100_000).len() + 1);
        let entries: Vec<String> = (0..count).map(entry).collect();
        format!("{before}{}{after}", entries.join(","))
    };

    let tensor = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let inputs = [
        numbered("{", tensor, "}"),
        repeat("{", &format!(r#""w":{tensor},"#), r#""v":{}}"#),
        numbered(r#"{"__metadata__":{"#, r#""""#, "}}"),
        repeat(r#"{"__metadata__":{"#, r#""":"","#, r#""":""}}"#),
        repeat(r#"{"w":{"dtype":"U8","shape":["#, "1,", r#"1],"data_offsets":[0,1]}}"#),
        repeat(r#"{"w":{"dtype":""#, r"\n", r#"","shape":[],"data_offsets":[0,1]}}"#),
        repeat(r#"{"w":{"x":["#, "{},", "{}]}}"),
        repeat(r#"{"w":"#, "[", ""),
        numbered(r#"{"weight_map":{"#, r#""x""#, "}}"),
        repeat(r#"{"weight_map":{"#, r#""w":"x","#, r#""v":"x"}}"#),
        repeat(r#"{"x":["#, "[],", "[]]}"),
        repeat(r#"{"format":"meshgrad-checkpoint","files":["#, "0,", "0]}"),
    ];

    for input in inputs {
        let input = input.as_bytes();
        let shown = input[..60].escape_ascii();
        check_cost(input).unwrap();

        for (name, read) in ENTRY_POINTS {
            let (_, peak) = cost(|| _ = read(input));
            let limit = 10 * input.len();
            assert!(peak <= limit, "{name}: {peak} bytes allocated for {shown}");
        }
    }
}

/// A false length costs nothing: memory is allocated only for bytes that exist.
#[test]
fn false_lengths_cost_nothing() {
    for len in [9, 1 << 20, 100_000_000, 100_000_001, 1 << 40, u64::MAX] {
        let start = [&len.to_le_bytes()[..], b"{\"w\":"].concat();
        let (largest, _) = cost(|| assert!(Header::parse(&start, u64::MAX).is_err()));
        assert!(largest < 1 << 10, "{len}: {largest} bytes");
    }
}

/// Parts of all three formats, valid often enough to reach every check.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\u0000",
        "\\ud800",
        " ",
        "0",
        "1",
        "-1",
        "1e9",
        "é",
        "null",
        "\"w\":",
        "\"__metadata__\":",
        "\"dtype\":\"F32\"",
        "\"shape\":[",
        "[1,2]",
        "[0,8]",
        "\"data_offsets\":[0,8]",
        "\"weight_map\":{",
        "\"metadata\":{",
        "\"total_size\":",
        "\"..\"",
        "\"format\":\"meshgrad-checkpoint\"",
        "\"version\":1",
        "\"files\":[",
        "\"seal\":\"",
        "\"path\":",
    ]);
    let bytes = prop::collection::vec(any::<u8>(), 0..4);

    let part = prop_oneof![
        9 => piece.prop_map(|text| text.as_bytes().to_vec()),
        1 => bytes,
    ];
    prop::collection::vec(part, 0..60).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 20_000,
        ..Default::default()
    })]

    #[test]
    fn arbitrary_input_neither_panics_nor_exhausts_memory(bytes in pieces(), object in any::<bool>()) {
        let bytes = if object { [b"{", &bytes[..], b"}"].concat() } else { bytes };
        check_cost(&bytes)?;
    }
}
