//! Lists in messages.

/// `[0, 1, 4, 5]`; long lists are abbreviated.
pub(crate) fn ranks(ranks: &[usize]) -> String {
    let join = |ranks: &[usize]| {
        let texts: Vec<String> = ranks.iter().map(usize::to_string).collect();
        texts.join(", ")
    };
    match ranks {
        [head @ .., last] if ranks.len() > 16 => {
            format!("[{}, ..., {last}] ({} ranks)", join(&head[..8]), ranks.len())
        }
        _ => format!("[{}]", join(ranks)),
    }
}

/// `dp 2 x tp 4`.
pub(crate) fn sizes<'a>(axes: impl IntoIterator<Item = (&'a str, usize)>) -> String {
    let texts: Vec<String> =
        axes.into_iter().map(|(name, size)| format!("{name} {size}")).collect();
    match texts.is_empty() {
        true => "no axes".to_owned(),
        false => texts.join(" x "),
    }
}

/// The name of `names` that is most similar to `name`, or `None` if none is similar enough to
/// suggest.
pub fn nearest_name<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    names
        .into_iter()
        .map(|other| (strsim::damerau_levenshtein(name, other), other))
        .filter(|(distance, other)| *distance <= 1 + other.len() / 4)
        .min()
        .map(|(_, other)| other.to_owned())
}
