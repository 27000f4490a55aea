//! Legal and illegal PTX, instruction by instruction, compared with NVIDIA's assembler if it is
//! available, and randomly damaged texts.

mod lists;
mod values;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use lists::{ILLEGAL, ILLEGAL_SM_90A, LEGAL, LEGAL_SM_90A, REGISTERS};
use meshgrad_emulator::Options;
use meshgrad_emulator::memory::AddressSpace;
use meshgrad_emulator::program::Module;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// A module with one kernel of these instructions, each on its own line and in its own scope.
fn module(instructions: &[&str]) -> String {
    let scopes = instructions.iter().map(|it| format!("{{ {it} }}\n"));
    format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n\
         .visible .entry k(.param .u64 out)\n{{\n{REGISTERS}\n{}ret;\n}}\n",
        scopes.collect::<String>()
    )
}

/// A module for sm_90a.
fn module_sm_90a(instructions: &[&str]) -> String {
    module(instructions).replace("sm_90\n", "sm_90a\n")
}

fn load(text: &str) -> Result<(), String> {
    let space = AddressSpace::new();
    let loaded = Module::load(text, &space, 0, &Options::default());
    loaded.map(drop).map_err(|error| error.to_string())
}

#[test]
fn legal_instructions_load_and_illegal_ones_do_not() {
    let refused = LEGAL.iter().filter_map(|it| load(&module(&[it])).err());
    let refused: Vec<String> = refused.collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert_eq!(load(&module(LEGAL)), Ok(()));

    let accepted = ILLEGAL.iter().filter(|it| load(&module(&[it])).is_ok());
    let accepted: Vec<_> = accepted.collect();
    assert!(accepted.is_empty(), "{accepted:#?}");
}

#[test]
fn instructions_of_sm_90a() {
    assert_eq!(load(&module_sm_90a(LEGAL_SM_90A)), Ok(()));
    for legal in LEGAL_SM_90A {
        assert!(load(&module(&[legal])).is_err(), "{legal} for sm_90");
    }
    for wrong in ILLEGAL_SM_90A {
        assert!(load(&module_sm_90a(&[wrong])).is_err(), "{wrong}");
    }
}

#[test]
fn errors_name_the_line() {
    for wrong in ILLEGAL {
        let error = load(&module(&["add.u32 a, b, c;", wrong])).unwrap_err();
        assert!(error.contains("ptx line 9:") && error.contains(wrong), "{error}");
    }
}

/// ptxas confirms the lists.
#[test]
fn ptxas_agrees_with_the_lists() {
    let Some(ptxas) = ptxas() else {
        eprintln!("skipped: ptxas is available only for Linux on x86-64, from PyPI");
        return;
    };
    type Wrap = fn(&[&str]) -> String;
    let sm_90 = ("sm_90", module as Wrap, LEGAL, ILLEGAL);
    let sm_90a = ("sm_90a", module_sm_90a as Wrap, LEGAL_SM_90A, ILLEGAL_SM_90A);
    for (target, module, legal, illegal) in [sm_90, sm_90a] {
        let assemble = |name: &str, text: &str| assemble(&ptxas, target, name, text);
        assert_eq!(assemble("legal", &module(legal)), Ok(()));
        for (index, wrong) in illegal.iter().enumerate() {
            let outcome = assemble(&format!("illegal-{index}"), &module(&[wrong]));
            assert!(outcome.is_err(), "ptxas accepts `{wrong}`");
        }
    }
}

fn assemble(ptxas: &Path, target: &str, name: &str, text: &str) -> Result<(), String> {
    let file = env::temp_dir().join(format!("meshgrad-{}-{name}", process::id()));
    let (source, object) = (file.with_extension("ptx"), file.with_extension("cubin"));
    fs::write(&source, text).expect("a temporary file");
    let mut command = Command::new(ptxas);
    command.arg(format!("-arch={target}")).arg("-O0").arg(&source);
    let done = command.arg("-o").arg(&object).output().expect("ptxas starts");
    for file in [source, object] {
        // No object file is written for an error.
        let _ = fs::remove_file(file);
    }
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}

/// The path of ptxas; `None` if PyPI does not have it or is unreachable.
fn ptxas() -> Option<PathBuf> {
    const UNREACHABLE: i32 = 3;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let mut script = Command::new(root.join("scripts/cuda-tools"));
    let done = script.arg("ptxas").output().expect("scripts/cuda-tools starts");
    if done.status.code() == Some(UNREACHABLE) {
        return None;
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "scripts/cuda-tools ptxas: {errors}");
    let path = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    Some(PathBuf::from(path))
}

/// Splits a text into tokens: words, numbers, signs, and the rest.
fn tokens(text: &str) -> Vec<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_$%".contains(c);
    let mut tokens: Vec<String> = Vec::new();
    let mut in_word = false;
    for c in text.chars() {
        match tokens.last_mut() {
            Some(last) if in_word && is_word(c) => last.push(c),
            _ => tokens.push(c.into()),
        }
        in_word = is_word(c);
    }
    tokens
}

/// Other declarations: variables, functions, attributes.
const DECLARATIONS: &str = ".version 8.3\n.target sm_90, debug\n.address_size 64\n
    .file 1 \"kernel.cu\"\n.section .debug { .b8 0, 1 }\n
    .visible .const .align 4 .f32 table[2][2] = {{-1.0, 0f40000000}, {1.5e3}};
    .global .v2 .u32 pair[2] = {{1, 2}, {3, 4}}; .global .u64 pointer = generic(table)+4;
    .extern .shared .align 16 .b8 dynamic[]; .shared .b8 kept[64];
    .func (.param .b32 out) twice(.param .b32 n, .reg .b32 m)
    { .reg .b32 v; .local .align 8 .b8 depot[16]; ld.param.b32 v, [n]; st.local.b32 [depot], v;
      add.s32 v, v, m; st.param.b32 [out], v; ret; }
    .visible .entry k(.param .u64 .ptr .global .align 16 x, .param .align 4 .b8 s[12])
    .maxntid 128, 2, 1 .minnctapersm 1
    { .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<2>; .loc 1 7 3, function_name k, \
    inlined_at 1 20 5\n mov.u32 %r1, kept; mov.u64 %rd0, twice;
      { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1;
        call (b), twice, (a, 4); ld.param.b32 %r2, [b]; }
      P: .callprototype (.param .b32 _) _ (.param .b32 _, .reg .b32 _);
      T: .branchtargets DONE, DONE; @!%p1 brx.idx.uni %r1, T;
    DONE: ret; }\n";

#[test]
fn the_declarations_are_legal() {
    assert_eq!(load(DECLARATIONS), Ok(()));
}

/// Replacements for a token.
const STRANGE: [&str; 30] = [
    "",
    ";",
    ",",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "-",
    "+",
    "@",
    "|",
    ":",
    ".",
    "<",
    ">",
    "\"",
    "0",
    "1.5e",
    "0f",
    "18446744073709551615",
    "4294967296",
    ".align",
    ".b64",
    ".f16",
    "_",
    "%tid",
    "é",
    "/*",
];

/// A change at a position of a text.
#[derive(Clone, Debug)]
enum Damage {
    Delete(Index),
    Double(Index),
    Replace(Index, &'static str),
    Swap(Index, Index),
    Cut(Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        any::<Index>().prop_map(Damage::Delete),
        any::<Index>().prop_map(Damage::Double),
        (any::<Index>(), select(&STRANGE[..])).prop_map(|(at, by)| Damage::Replace(at, by)),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Damage::Swap(a, b)),
        any::<Index>().prop_map(Damage::Cut),
    ]
}

fn damaged(text: &str, damages: &[Damage]) -> String {
    let mut tokens = tokens(text);
    for damage in damages {
        let length = tokens.len();
        match damage {
            Damage::Delete(at) if length > 1 => drop(tokens.remove(at.index(length))),
            Damage::Double(at) => {
                let at = at.index(length);
                tokens.insert(at, tokens[at].clone());
            }
            Damage::Replace(at, by) => tokens[at.index(length)] = (*by).to_owned(),
            Damage::Swap(a, b) => tokens.swap(a.index(length), b.index(length)),
            Damage::Cut(at) => tokens.truncate(1 + at.index(length)),
            Damage::Delete(_) => {}
        }
    }
    tokens.concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// A damaged text loads or is rejected; nothing else happens.
    #[test]
    fn no_damaged_text_crashes_the_loader(
        instruction in select(LEGAL),
        in_declarations: bool,
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        let text = match in_declarations {
            true => DECLARATIONS.to_owned(),
            false => module(&[instruction]),
        };
        if let Err(error) = load(&damaged(&text, &damages)) {
            prop_assert!(error.contains("line") || error.contains("memory"), "{}", error);
        }
    }
}

/// Removes each token, and replaces each token by a strange one.
#[test]
fn no_single_token_crashes_the_loader() {
    for text in [DECLARATIONS.to_owned(), module(LEGAL)] {
        let tokens = tokens(&text);
        let places = (0..tokens.len()).filter(|at| !tokens[*at].trim().is_empty());
        for at in places {
            let strange = STRANGE[at % STRANGE.len()];
            for by in ["", strange] {
                let mut changed = tokens.clone();
                changed[at] = by.to_owned();
                // Loading and rejecting are both fine.
                let _ = load(&changed.concat());
            }
        }
    }
}
