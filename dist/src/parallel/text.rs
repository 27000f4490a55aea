//! Lists and hints in messages.

/// `; did you mean `dp`?` if a name is similar, otherwise a list of all names.
pub(super) fn nearest(name: &str, names: &[&str]) -> String {
    match meshgrad_mesh::nearest_name(name, names.iter().copied()) {
        Some(other) => format!("; did you mean `{other}`?"),
        None => format!(" (known: {})", names.join(", ")),
    }
}

/// `[0, 8, 16]`; long lists are abbreviated.
pub(super) fn ranks(ranks: &[usize]) -> String {
    let join = |ranks: &[usize]| {
        let texts: Vec<String> = ranks.iter().map(usize::to_string).collect();
        texts.join(", ")
    };
    match ranks.len() {
        0..=16 => format!("[{}]", join(ranks)),
        len => format!("[{}, ...] ({len} ranks)", join(&ranks[..8])),
    }
}
