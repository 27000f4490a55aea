//! Random headers with random modifications of their structure and their bytes.
//!
//! A case depends only on its number: a failure prints the number, which reproduces it.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::catch_unwind;

use meshgrad_ckpt_crash::SplitMix64;

use crate::headers::file_of;
use crate::headers::reference::{STRICTER, Verdict, verdict};

/// 200,000 mutants take a few seconds. Miri is slow, so it runs 200.
const MUTANTS: u64 = if cfg!(miri) { 200 } else { 200_000 };

/// For any modification: the reference accepts what we accept, with the same content, and when only
/// we reject a header, the reason is listed.
#[test]
fn mutants_agree_with_the_reference() {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();

    for number in 0..MUTANTS {
        let bytes = mutant(number);
        let verdict = catch_unwind(|| verdict(&bytes))
            .unwrap_or_else(|_| panic!("mutant {number}: {}", bytes.escape_ascii()));

        let kind = match verdict {
            Verdict::Read => "read".to_owned(),
            Verdict::Rejected(_) => "rejected".to_owned(),
            Verdict::Stricter(difference) => {
                assert!(
                    STRICTER.contains(&difference.as_str()),
                    "mutant {number} shows a difference that is not listed, {difference}: {}",
                    bytes.escape_ascii()
                );
                difference
            }
        };
        *seen.entry(kind).or_default() += 1;
    }

    // Checks the test itself: all verdicts and all differences occurred.
    if !cfg!(miri) {
        let kinds: BTreeSet<&str> = seen.keys().map(String::as_str).collect();
        let all = STRICTER.into_iter().chain(["read", "rejected"]).collect();
        assert_eq!(kinds, all);
        assert!(seen["read"] > MUTANTS / 10, "{seen:?}");
        assert!(seen["rejected"] > MUTANTS / 10, "{seen:?}");
    }
}

struct Random(SplitMix64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next()
    }

    fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// A tensor's fields as JSON, in order, and its name without quotes.
#[derive(Clone)]
struct Entry {
    name: String,
    fields: Vec<(String, String)>,
    /// Whether the entry is an array of the values, without names.
    without_names: bool,
}

impl Entry {
    fn text(&self) -> String {
        let name = &self.name;
        if self.without_names {
            let values: Vec<&str> = self.fields.iter().map(|(_, value)| value.as_str()).collect();
            return format!("\"{name}\":[{}]", values.join(","));
        }

        let named = |(field, value): &(String, String)| format!("\"{field}\":{value}");
        let fields: Vec<String> = self.fields.iter().map(named).collect();
        format!("\"{name}\":{{{}}}", fields.join(","))
    }
}

fn mutant(number: u64) -> Vec<u8> {
    let random = &mut Random(SplitMix64::new(number));
    let (mut entries, mut data_len) = valid_entries(random);

    for _ in 0..random.below(3) {
        break_structure(random, &mut entries, &mut data_len);
    }

    let mut parts: Vec<String> = entries.iter().map(Entry::text).collect();
    for _ in 0..random.below(3) {
        let metadata = [
            r#""__metadata__":{"format":"pt","a":"é\n"}"#,
            r#""__metadata__":{}"#,
            r#""__metadata__":null"#,
            r#""__metadata__":{"a":"1","a":"2"}"#,
            r#""__metadata__":{"a":1}"#,
        ];
        let at = random.below(parts.len() + 1);
        parts.insert(at, random.pick(&metadata).to_owned());
    }

    let mut header = format!("{{{}}}", parts.join(",")).into_bytes();
    for _ in 0..random.below(3) {
        break_bytes(random, &mut header);
    }

    let mut file = file_of(&header, &vec![7; data_len]);
    if random.one_in(20) {
        let at = random.below(8);
        file[at] ^= 1 << random.below(8);
    }
    if random.one_in(20) {
        let len = random.below(file.len() + 1);
        file.truncate(len);
    }
    file
}

/// Consecutive tensors, and their total size in bytes.
fn valid_entries(random: &mut Random) -> (Vec<Entry>, usize) {
    let dtypes = [("U8", 8), ("BF16", 16), ("F32", 32), ("F4", 4), ("F6_E2M3", 6), ("I64", 64)];
    let mut entries = Vec::new();
    let mut offset = 0;

    for at in 0..random.below(4) {
        let (dtype, bits) = random.pick(&dtypes);
        let shape = [random.below(3), 4 * random.below(3)];
        let end = offset + shape[0] * shape[1] * bits / 8;

        let fields = [
            ("dtype", format!("\"{dtype}\"")),
            ("shape", format!("[{},{}]", shape[0], shape[1])),
            ("data_offsets", format!("[{offset},{end}]")),
        ];
        entries.push(Entry {
            name: format!("t{at}"),
            fields: fields.map(|(name, value)| (name.to_owned(), value)).into(),
            without_names: false,
        });
        offset = end;
    }

    // Entries may have any order, because offsets locate tensors.
    for at in (1..entries.len()).rev() {
        let other = random.below(at + 1);
        entries.swap(at, other);
    }
    (entries, offset)
}

/// One change of names, fields, numbers or the length of the data.
fn break_structure(random: &mut Random, entries: &mut Vec<Entry>, data_len: &mut usize) {
    if random.one_in(8) {
        *data_len = (*data_len + random.below(3)).saturating_sub(1);
        return;
    }
    if entries.is_empty() {
        return;
    }

    let at = random.below(entries.len());
    let field = random.below(entries[at].fields.len());
    let numbers = ["0", "1", "2", "4", "8", "-1", "1.0", "1e0", "01", "18446744073709551615"];
    let names =
        ["", "..", "a/../b", r"\u0000", r"\u0074\u0030", "t1", "é", r"\ud83e\udd80", r"\ud800"];

    match random.below(12) {
        0 => {
            let copy = entries[at].clone();
            entries.insert(random.below(entries.len() + 1), copy);
        }
        1 => entries[at].name = random.pick(&names).to_owned(),
        2 => entries[at].fields.rotate_left(1),
        3 => {
            let copy = entries[at].fields[field].clone();
            entries[at].fields.push(copy);
        }
        4 => {
            if entries[at].fields.len() > 1 {
                entries[at].fields.remove(field);
            }
        }
        5 => {
            let depth = random.pick(&[1, 5, 6, 7, 60, 125, 126, 127, 200]);
            let (open, close) = random.pick(&[("[", "]"), ("{\"y\":", "}")]);
            let value = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            entries[at].fields.push(("x".to_owned(), value));
        }
        6 => {
            let ones = "1,".repeat(random.pick(&[1, 60, 62, 63, 70]));
            change(&mut entries[at], "shape", |shape| shape.replace('[', &format!("[{ones}")));
        }
        7 => {
            let dtype = random.pick(&["F64", "BOOL", "F8_E8M0", "X", "u8", ""]);
            change(&mut entries[at], "dtype", |_| format!("\"{dtype}\""));
        }
        8 => change(&mut entries[at], "dtype", |dtype| format!("{{{dtype}:null}}")),
        9 => entries[at].without_names = true,
        10 => {
            let (first, second) = (random.pick(&numbers), random.pick(&numbers));
            change(&mut entries[at], "data_offsets", |_| format!("[{first},{second}]"));
        }
        _ => {
            let (first, second) = (random.pick(&numbers), random.pick(&numbers));
            change(&mut entries[at], "shape", |_| format!("[{first},{second}]"));
        }
    }
}

fn change(entry: &mut Entry, name: &str, new: impl Fn(&str) -> String) {
    for (_, value) in entry.fields.iter_mut().filter(|(field, _)| field == name) {
        *value = new(value);
    }
}

/// One change of the bytes of a header, which may no longer be text.
fn break_bytes(random: &mut Random, header: &mut Vec<u8>) {
    let tokens = [
        "{", "}", "[", "]", ",", ":", "\"", "\\", " ", "\n", "\t", "\u{b}", "\0", "-", ".", "e",
        "0", "9", "null", "true", "//", "é", "\u{feff}", "\\u0041", "\\n", "\"w\":", "NaN",
    ];
    if header.is_empty() {
        return;
    }
    let at = random.below(header.len());

    match random.below(8) {
        0 => header[at] ^= 1 << random.below(8),
        1 => header[at] = random.next() as u8,
        2 => {
            header.remove(at);
        }
        3 => insert(header, at, random.pick(&tokens).as_bytes()),
        4 => {
            // White space where the grammar allows it has no effect.
            let place = header.iter().skip(at).position(|byte| b"{}[],:".contains(byte));
            let at = at + place.unwrap_or(0);
            insert(header, at, random.pick(&[" ", "\n", "\t", "\r"]).as_bytes());
        }
        5 => {
            // An escaped letter has no effect.
            let place = header.iter().skip(at).position(u8::is_ascii_alphabetic);
            if let Some(place) = place {
                let letter = header.remove(at + place);
                insert(header, at + place, format!("\\u{letter:04x}").as_bytes());
            }
        }
        6 => {
            let end = (at + 1 + random.below(20)).min(header.len());
            let copy = header[at..end].to_vec();
            let to = random.below(header.len());
            insert(header, to, &copy);
        }
        _ => header.truncate(at),
    }
}

fn insert(header: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    header.splice(at..at, bytes.iter().copied());
}
