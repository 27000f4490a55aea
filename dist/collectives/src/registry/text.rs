//! Lists in messages.

/// `rank 3`, `ranks [0, 1]`; long lists are abbreviated.
pub(super) fn ranks(ranks: &[usize]) -> String {
    let join = |ranks: &[usize]| {
        let texts: Vec<String> = ranks.iter().map(usize::to_string).collect();
        texts.join(", ")
    };
    match ranks {
        [rank] => format!("rank {rank}"),
        [head @ .., last] if ranks.len() > 16 => {
            format!("{} ranks [{}, ..., {last}]", ranks.len(), join(&head[..8]))
        }
        _ => format!("ranks [{}]", join(ranks)),
    }
}

/// A verb for one or several ranks.
pub(super) fn verb(
    ranks: &[usize],
    of_one: &'static str,
    of_several: &'static str,
) -> &'static str {
    match ranks.len() {
        1 => of_one,
        _ => of_several,
    }
}

/// `` `actor.tp`, `critic.tp` ``.
pub(super) fn names(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.is_empty() {
        true => "no remaining requester".to_owned(),
        false => quoted.join(", "),
    }
}
