//! The legal combinations of modifiers and types (PTX ISA 9.7, the syntax of each instruction).
//! Decoders define what an opcode does. This grammar defines what is legal PTX, so that a decoder
//! cannot overlook an illegal modifier.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::opcode::Type;

/// Names for common groups of alternatives.
const CLASSES: [(&str, &str); 19] = [
    ("INT", "u16|s16|u32|s32|u64|s64"),
    ("INT8", "u8|s8|u16|s16|u32|s32|u64|s64"),
    ("BITS", "b16|b32|b64"),
    ("VALUE", "b16|b32|b64|u16|s16|u32|s32|u64|s64|f32|f64"),
    ("CELL", "b8|u8|s8|b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64"),
    ("ROUND", "rn|rz|rm|rp"),
    ("WHOLE", "rni|rzi|rmi|rpi"),
    ("ORDER", "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"),
    ("COMBINE", "and|or|xor"),
    ("SEMANTICS", "relaxed|acquire|release|acq_rel"),
    ("SCOPE", "cta|cluster|gpu|sys"),
    (
        "SPACE",
        "global|const|local|param|param::entry|param::func|shared|shared::cta|shared::cluster",
    ),
    ("STORED", "global|local|param|param::entry|param::func|shared|shared::cta|shared::cluster"),
    ("SHARED", "global|shared|shared::cta|shared::cluster"),
    (
        "EVICTION",
        "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate",
    ),
    ("PREFETCH", "L2::64B|L2::128B|L2::256B"),
    ("PRIORITY", "L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged"),
    ("OWN", "shared|shared::cta"),
    ("VECTOR", "v2|v4|v8"),
];

/// Each line holds instruction names, modifiers (optional ones in brackets) and types. `|`
/// separates alternatives. An opcode must have the types in the line's order, and may have the
/// modifiers in any order. Instructions without a line are checked by their decoders.
const SYNTAX: &[&str] = &[
    // Integers.
    "add|sub|div|rem|min|max|sad INT",
    "add|sub cc|sat s32",
    "add|sub cc u32|u64|s64",
    "addc|subc [cc] u32|s32|u64|s64",
    "mul|mad lo|hi|wide u16|s16|u32|s32",
    "mul|mad lo|hi u64|s64",
    "mad lo|hi cc u32|s32|u64|s64",
    "mad hi sat s32",
    "madc lo|hi [cc] u32|s32|u64|s64",
    "mul24|mad24 lo|hi u32|s32",
    "min|max relu s32",
    "neg|abs s16|s32|s64",
    "dp4a u32|s32 u32|s32",
    "dp2a lo|hi u32|s32 u32|s32",
    // Floats.
    "add|sub|mul [ROUND] [ftz] [sat] f32",
    "add|sub|mul [ROUND] f64",
    "add|sub|mul [rn] [ftz] [sat] f16|f16x2",
    "add|sub|mul [rn] bf16|bf16x2",
    "mad|fma ROUND [ftz] [sat] f32",
    "mad|fma ROUND f64",
    "fma rn [ftz] [sat|relu] f16|f16x2",
    "fma ROUND [relu] bf16|bf16x2",
    "div approx|full|ROUND [ftz] f32",
    "div ROUND f64",
    "min|max f64",
    "min|max [ftz] [NaN] f32|f16|f16x2",
    "min|max [ftz] [NaN] xorsign abs f32|f16|f16x2",
    "min|max [NaN] bf16|bf16x2",
    "min|max [NaN] xorsign abs bf16|bf16x2",
    "neg|abs [ftz] f32|f16|f16x2",
    "neg|abs f64|bf16|bf16x2",
    "copysign f32|f64",
    "rcp|sqrt ROUND [ftz] f32",
    "rcp|sqrt ROUND f64",
    "rcp|sqrt|rsqrt|ex2|lg2|sin|cos approx [ftz] f32",
    "rcp approx ftz f64",
    "rsqrt approx [ftz] f64",
    "ex2 approx f16|f16x2",
    "ex2 approx ftz bf16|bf16x2",
    "tanh approx f32|f16|f16x2|bf16|bf16x2",
    // Bits.
    "and|or|xor|not BITS|pred",
    "cnot|shl BITS",
    "shr BITS|INT",
    "shf l|r wrap|clamp b32",
    "lop3|fns b32",
    "prmt b32 [f4e|b4e|rc8|ecl|ecr|rc16]",
    "popc|clz|brev b32|b64",
    "bfind [shiftamt] u32|s32|u64|s64",
    "bfe u32|s32|u64|s64",
    "bfi b32|b64",
    "bmsk wrap|clamp b32",
    "szext wrap|clamp u32|s32",
    // Comparison and selection.
    "setp eq|ne [COMBINE] BITS",
    "setp eq|ne|lt|le|gt|ge [COMBINE] s16|s32|s64",
    "setp eq|ne|lt|le|gt|ge|lo|ls|hi|hs [COMBINE] u16|u32|u64",
    "setp ORDER [COMBINE] [ftz] f32|f16|f16x2",
    "setp ORDER [COMBINE] f64|bf16|bf16x2",
    "set eq|ne [COMBINE] u32|s32|f32|f16|bf16 BITS",
    "set eq|ne|lt|le|gt|ge [COMBINE] u32|s32|f32|f16|bf16 s16|s32|s64",
    "set eq|ne|lt|le|gt|ge|lo|ls|hi|hs [COMBINE] u32|s32|f32|f16|bf16 u16|u32|u64",
    "set ORDER [COMBINE] [ftz] u32|s32|f32|f16|bf16 f32",
    "set ORDER [COMBINE] u32|s32|f32|f16|bf16 f64",
    "set ORDER [COMBINE] [ftz] u16|s16|u32|s32|f16 f16",
    "set ORDER [COMBINE] u16|s16|u32|s32|bf16 bf16",
    "set ORDER [COMBINE] [ftz] u32|s32|f16x2 f16x2",
    "set ORDER [COMBINE] u32|s32|bf16x2 bf16x2",
    "selp VALUE",
    "slct VALUE s32",
    "slct [ftz] VALUE f32",
    "testp finite|infinite|number|notanumber|normal|subnormal f32|f64",
    // Moves and conversions.
    "mov VALUE|pred",
    "cvta [to] global|const|param|local|shared|shared::cta|shared::cluster u32|u64",
    "isspacep global|const|local|param|shared|shared::cta|shared::cluster",
    "cvt [sat] INT8 INT8",
    "cvt WHOLE [ftz] [sat] INT8 f32",
    "cvt WHOLE [sat] INT8 f16|bf16|f64",
    "cvt ROUND [ftz] [sat] f32 INT8|f64",
    "cvt ROUND [sat] f16|f64 INT8",
    "cvt ROUND bf16 INT8|f64",
    "cvt [WHOLE] [ftz] [sat] f32 f32",
    "cvt [WHOLE] [sat] f16 f16",
    "cvt [WHOLE] [sat] f64 f64",
    "cvt [WHOLE] bf16 bf16",
    "cvt [ftz] [sat] f32 f16",
    "cvt [ftz] [sat] f64 f32",
    "cvt [sat] f64 f16",
    "cvt [ftz] f32 bf16",
    "cvt [ROUND] f16|f64 bf16",
    "cvt [ROUND] bf16 f16",
    "cvt ROUND [ftz] [sat] f16 f32",
    "cvt ROUND [sat] f16 f64",
    "cvt ROUND [ftz] bf16 f32",
    "cvt rn|rz [relu] [satfinite] f16|bf16|f16x2|bf16x2 f32",
    "cvt rn [relu] satfinite e4m3x2|e5m2x2 f32|f16x2",
    "cvt rn [relu] f16x2 e4m3x2|e5m2x2",
    "cvt rn|rz [relu] tf32 f32",
    "cvt rna [satfinite] tf32 f32",
    // Memory.
    "ld [weak] [SPACE] [ca|cg|cs|lu|cv] [VECTOR] CELL",
    "ld [weak] [global] [ca|cg|cs|lu|cv] [L2::cache_hint] [PREFETCH] [VECTOR] CELL",
    "ld [weak] [global] [EVICTION] [L2::cache_hint] [PREFETCH] [VECTOR] CELL",
    "ld nc global [ca|cg|cs] [EVICTION] [L2::cache_hint] [PREFETCH] [VECTOR] CELL",
    "ld volatile [SHARED] [VECTOR] CELL",
    "ld volatile [global] [PREFETCH] [VECTOR] CELL",
    "ld relaxed|acquire SCOPE [SHARED] [VECTOR] CELL",
    "ld relaxed|acquire SCOPE [global] [EVICTION] [L2::cache_hint] [PREFETCH] [VECTOR] CELL",
    "ldu [global] [VECTOR] CELL",
    "st [weak] [STORED] [wb|cg|cs|wt] [VECTOR] CELL",
    "st [weak] [global] [wb|cg|cs|wt] [L2::cache_hint] [VECTOR] CELL",
    "st [weak] [global] [EVICTION] [L2::cache_hint] [VECTOR] CELL",
    "st volatile [SHARED] [VECTOR] CELL",
    "st relaxed|release SCOPE [SHARED] [VECTOR] CELL",
    "st relaxed|release SCOPE [global] [EVICTION] [L2::cache_hint] [VECTOR] CELL",
    "ld|st mmio relaxed sys [global] CELL",
    "atom [SEMANTICS] [SCOPE] [SHARED] exch [L2::cache_hint] b32|b64",
    "atom [SEMANTICS] [SCOPE] [SHARED] cas [L2::cache_hint] b16|b32|b64",
    "atom [SEMANTICS] [SCOPE] [SHARED] add [L2::cache_hint] u32|s32|u64|f32|f64",
    "atom [SEMANTICS] [SCOPE] [SHARED] add noftz [L2::cache_hint] f16|f16x2|bf16|bf16x2",
    "atom [SEMANTICS] [SCOPE] [SHARED] min|max [L2::cache_hint] u32|s32|u64|s64",
    "atom [SEMANTICS] [SCOPE] [SHARED] and|or|xor [L2::cache_hint] b32|b64",
    "atom [SEMANTICS] [SCOPE] [SHARED] inc|dec [L2::cache_hint] u32",
    "red [relaxed|release] [SCOPE] [SHARED] add [L2::cache_hint] u32|s32|u64|f32|f64",
    "red [relaxed|release] [SCOPE] [SHARED] add noftz [L2::cache_hint] f16|f16x2|bf16|bf16x2",
    "red [relaxed|release] [SCOPE] [SHARED] min|max [L2::cache_hint] u32|s32|u64|s64",
    "red [relaxed|release] [SCOPE] [SHARED] and|or|xor [L2::cache_hint] b32|b64",
    "red [relaxed|release] [SCOPE] [SHARED] inc|dec [L2::cache_hint] u32",
    "prefetch [global|local] L1|L2",
    "prefetch global L2::evict_last|L2::evict_normal",
    "prefetchu L1",
    "applypriority [global] L2::evict_normal",
    "createpolicy fractional PRIORITY [L2::evict_first|L2::evict_unchanged] b64",
    "createpolicy range [global] PRIORITY [L2::evict_first|L2::evict_unchanged] b64",
    "createpolicy cvt L2 b64",
    "cp async ca|cg shared|shared::cta global [L2::cache_hint] [PREFETCH]",
    "cp async commit_group|wait_group|wait_all",
    "cp async mbarrier arrive [noinc] [OWN] b64",
    // Warp-level, CTA-level and synchronization instructions.
    "activemask b32",
    "shfl sync up|down|bfly|idx b32",
    "vote sync all|any|uni pred",
    "vote sync ballot b32",
    "match sync any|all b32|b64",
    "redux sync add|min|max u32|s32",
    "redux sync and|or|xor b32",
    "bar [cta] sync|arrive",
    "bar [cta] red popc u32",
    "bar [cta] red and|or pred",
    "bar warp sync",
    "barrier [cta] sync|arrive [aligned]",
    "barrier [cta] red popc [aligned] u32",
    "barrier [cta] red and|or [aligned] pred",
    "membar cta|gl|sys",
    "fence [sc|acq_rel|acquire|release] SCOPE",
    "fence proxy async [global|shared::cta]",
    "mbarrier init|inval [OWN] b64",
    "mbarrier arrive|arrive_drop [release|relaxed] [cta] [noComplete] [OWN] b64",
    "mbarrier arrive|arrive_drop expect_tx [release|relaxed] [cta] [OWN] b64",
    "mbarrier expect_tx|complete_tx [relaxed] [cta] [OWN] b64",
    "mbarrier test_wait|try_wait [parity] [acquire|relaxed] [cta] [OWN] b64",
    "mbarrier pending_count b64",
    // Control.
    "bra [uni]",
    "brx idx [uni]",
    "exit|trap|brkpt|pmevent",
    "nanosleep u32",
];

/// One element of a line.
struct Part {
    choices: Vec<&'static str>,
    optional: bool,
    is_type: bool,
}

/// The lines of one instruction, with their text.
type Lines = Vec<(&'static str, Vec<Part>)>;

fn lines_of(name: &str) -> Option<&'static Lines> {
    static TABLE: OnceLock<HashMap<&'static str, Lines>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut table: HashMap<&str, Lines> = HashMap::new();
        for line in SYNTAX {
            let (names, rest) = line.split_once(' ').unwrap_or((line, ""));
            for name in names.split('|') {
                let parts = rest.split_whitespace().map(part).collect();
                table.entry(name).or_default().push((line, parts));
            }
        }
        table
    });
    table.get(name)
}

fn part(text: &'static str) -> Part {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let class = |choice| {
        let known = CLASSES.iter().find(|(name, _)| *name == choice);
        known.map_or(choice, |(_, choices)| *choices)
    };
    let choices = inner.unwrap_or(text).split('|').map(class);
    let choices: Vec<_> = choices.flat_map(|it| it.split('|')).collect();
    Part {
        is_type: choices.iter().all(|it| Type::parse(it).is_some()),
        optional: inner.is_some(),
        choices,
    }
}

/// The end of a message that refuses an instruction, modifier, register or directive: the reason,
/// if it is about clusters.
pub(super) fn reason(word: &str) -> &'static str {
    let of_clusters = matches!(word, "mapa" | "getctarank" | "mbarrier_init");
    match of_clusters || word.contains("cluster") {
        true => ": clusters of CTAs are not emulated",
        false => "",
    }
}

/// Checks that an opcode with its modifiers and types is legal PTX.
pub(super) fn check(opcode: &str) -> Result<(), String> {
    let mut words = opcode.split('.');
    let name = words.next().unwrap_or_default();
    let words: Vec<&str> = words.collect();
    let Some(lines) = lines_of(name) else {
        return Ok(());
    };
    if lines.iter().any(|(_, parts)| fits(&words, parts)) {
        return Ok(());
    }
    // Report a word that occurs in no line.
    let is_known = |word: &&&str| {
        let mut parts = lines.iter().flat_map(|(_, parts)| parts);
        parts.any(|part| part.choices.contains(word))
    };
    if let Some(word) = words.iter().find(|word| !is_known(word)) {
        let reason = reason(word);
        return Err(format!("`.{word}` of `{opcode}` is not supported{reason}"));
    }
    let known: Vec<_> = lines.iter().map(|(line, _)| *line).collect();
    Err(format!(
        "`{opcode}`: illegal combination of modifiers and types; legal forms: {}",
        known.join("; ")
    ))
}

fn fits(words: &[&str], parts: &[Part]) -> bool {
    let mut rest = words.to_vec();
    for part in parts {
        let first = match part.is_type {
            true => rest.iter().position(|word| Type::parse(word).is_some()),
            false => rest.iter().position(|word| part.choices.contains(word)),
        };
        match first.filter(|at| part.choices.contains(&rest[*at])) {
            Some(at) => drop(rest.remove(at)),
            None if part.optional => {}
            None => return false,
        }
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modifiers_are_legal_only_with_their_types() {
        for legal in [
            "add.rn.ftz.sat.f32",
            "mad.lo.cc.u32",
            "set.lt.and.ftz.u32.f32",
            "cvt.rn.f16.s8",
            "ld.global.nc.v4.b32",
            "ld.nc.global.L1::no_allocate.L2::256B.f32",
            "atom.add.release.gpu.global.u32",
            "something.else",
        ] {
            assert_eq!(check(legal), Ok(()), "{legal}");
        }
        for wrong in
            ["add.rn.u32", "mul.lo.f32", "mul.s32", "add.f32.f32", "cvt.f32", "setp.lt.b32"]
        {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_error_names_the_word_or_the_legal_forms() {
        let error = check("add.s32.fast").unwrap_err();
        assert!(error.contains("`.fast`"), "{error}");
        let error = check("popc.shiftamt.b32").unwrap_err();
        assert!(error.contains("`.shiftamt` of `popc.shiftamt.b32`"), "{error}");
        let error = check("shl.u32").unwrap_err();
        assert!(error.contains("`.u32`"), "{error}");
        let error = check("neg.ftz.f64").unwrap_err();
        assert!(error.contains("neg|abs f64|bf16|bf16x2"), "{error}");
    }

    /// A class that no line uses would hide a typo.
    #[test]
    fn all_classes_are_used() {
        for (class, _) in CLASSES {
            let named = |line: &&str| line.split([' ', '|', '[', ']']).any(|word| word == class);
            assert!(SYNTAX.iter().any(named), "{class}");
        }
    }
}
