//! Models compute with global shapes, so that their source serves a rank's part of a tensor, too.

use std::fs;
use std::path::Path;

/// A number from the local shape of a tensor would be wrong for a sharded one. The shapes of
/// parameters are global: those of fields (`self.weight.shape()`), and of `param` and `buffer`.
#[test]
fn models_use_no_local_shape() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut checked = 0;
    // The folders inside read and write files, with whole tensors, or are for bodies of `local`.
    let paths = fs::read_dir(&sources).unwrap().map(|entry| entry.unwrap().path());
    let paths = paths.chain([sources.join("moe/balance.rs")]);
    for path in paths.filter(|path| path.is_file()) {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        checked += code.matches("shape()").count();
        let found = local_shapes(code);
        assert!(found.is_empty(), "{} uses local shapes: {found:?}", path.display());
    }
    assert!(checked > 10, "the sources have moved");
}

/// The places of `code` that use the shape of something other than a parameter.
fn local_shapes(code: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_alphanumeric() || "_.".contains(c);
    let mut found = Vec::new();
    for call in [".shape()", ".extent(", ".elements()"] {
        for (at, _) in code.match_indices(call) {
            let before = &code[..at];
            let start = before.rfind(|c| !is_name(c)).map_or(0, |end| end + 1);
            let receiver = &before[start..];
            let is_parameter =
                receiver.starts_with("self.") || ["param", "buffer"].contains(&receiver);
            // The call before, of `.shape()`, is checked itself.
            let is_chained = before.ends_with(".shape()");
            if !is_parameter && !is_chained {
                found.push(&code[start..at + call.len()]);
            }
        }
    }
    found
}

#[test]
fn a_local_shape_is_found() {
    assert_eq!(local_shapes("let b = x.shape()[0];"), ["x.shape()"]);
    assert_eq!(local_shapes("let t = x.value().extent(-1)?;"), [".extent("]);
    assert!(local_shapes("[self.weight.shape()[0], x.global_shape()[1]]").is_empty());
    assert!(local_shapes("param.shape().elements()").is_empty());
}
