//! Valid names of tensors and files.
//!
//! Tensor names never become paths here, but other programs use them as paths, so names that could
//! lead out of a folder are rejected on input. File names come from an untrusted index or manifest
//! and must stay inside their folder.

use std::fmt;
use std::path::{Component, Path};

/// The header's key for metadata; no tensor can have this name.
pub(crate) const METADATA_KEY: &str = "__metadata__";

/// The result of checking a name; an error says what is wrong with it.
type Checked = Result<(), &'static str>;

// What is wrong with the name of a tensor or a file.
const EMPTY: &str = "it is empty";
const NUL: &str = "it contains a NUL character";
const PARENT_FOLDER: &str = "it has a component `..`";
const NOT_PLAIN: &str = "it refers to another folder";
pub(crate) const TAKEN: &str = "this name is used by the checkpoint itself";

/// Checks the name of a tensor.
pub(crate) fn check_tensor_name(name: &str) -> Checked {
    if name.is_empty() {
        return Err(EMPTY);
    }
    if name.contains('\0') {
        return Err(NUL);
    }
    // Two consecutive dots are rare; checking each component takes longer.
    if name.contains("..") && name.split(['/', '\\']).any(|part| part == "..") {
        return Err(PARENT_FOLDER);
    }
    if name == METADATA_KEY {
        return Err("`__metadata__` is reserved for the header");
    }
    Ok(())
}

/// Checks the name of a file directly in a folder.
pub(crate) fn check_file_name(name: &str) -> Checked {
    check_relative_path(name)?;
    if name.contains('/') { Err(NOT_PLAIN) } else { Ok(()) }
}

/// Checks a path below a folder: plain names separated by single `/`.
pub(crate) fn check_relative_path(path: &str) -> Checked {
    if path.is_empty() {
        return Err(EMPTY);
    }
    if path.contains('\0') {
        return Err(NUL);
    }
    // Messages and listings would send control characters to a terminal.
    if path.contains(char::is_control) {
        return Err("it contains a control character");
    }
    // Backslashes are separators on other systems.
    if path.contains('\\') {
        return Err(NOT_PLAIN);
    }

    for part in path.split('/') {
        // File systems have no longer names.
        if part.len() > 255 {
            return Err("it has more than 255 bytes");
        }
        match Path::new(part).components().next() {
            Some(Component::Normal(_)) => {}
            Some(Component::ParentDir) => return Err(PARENT_FOLDER),
            _ => return Err(NOT_PLAIN),
        }
    }
    Ok(())
}

/// A list of names in a message: the first ten, quoted and escaped, and the number of the others.
///
/// ```
/// use meshgrad_ckpt::Listed;
///
/// assert_eq!(Listed(&["a", "b\n"]).to_string(), "`a`, `b\\n`");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a, T>(pub &'a [T]);

impl<T: AsRef<str>> fmt::Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 10;

        for (at, name) in self.0.iter().take(SHOWN).enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}`{}`", name.as_ref().escape_debug())?;
        }

        match self.0.len().checked_sub(SHOWN) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_names_that_could_leave_a_folder_are_rejected() {
        for name in ["..", "../x", "a/../b", "a\\..\\b", "x/.."] {
            assert_eq!(check_tensor_name(name), Err(PARENT_FOLDER), "{name}");
        }
        for name in ["a", "model.layers.0.w", "a..b", "...", "a/b", "ü", "a b"] {
            assert_eq!(check_tensor_name(name), Ok(()), "{name}");
        }
        assert_eq!(check_tensor_name(""), Err(EMPTY));
        assert_eq!(check_tensor_name("a\0"), Err(NUL));
        assert_eq!(
            check_tensor_name("__metadata__"),
            Err("`__metadata__` is reserved for the header")
        );
    }

    #[test]
    fn file_names_stay_in_their_folder() {
        for name in ["/etc/passwd", "a/b", "a//b", "a/", "./a", ".", "C:\\x", "a\\b"] {
            assert_eq!(check_file_name(name), Err(NOT_PLAIN), "{name}");
        }
        for name in ["..", "../a", "a/../../b"] {
            assert_eq!(check_file_name(name), Err(PARENT_FOLDER), "{name}");
        }
        assert_eq!(check_file_name("model-00001-of-00002.safetensors"), Ok(()));
        assert_eq!(check_relative_path("model/config.json"), Ok(()));
        assert_eq!(check_relative_path("model/./config.json"), Err(NOT_PLAIN));
    }

    #[test]
    fn long_lists_are_truncated_and_escaped() {
        let names: Vec<String> = (0..12).map(|at| format!("w{at}\n")).collect();
        let text = Listed(&names).to_string();
        assert!(text.starts_with("`w0\\n`, `w1\\n`"), "{text}");
        assert!(text.ends_with("`w9\\n` and 2 more"), "{text}");
    }
}
