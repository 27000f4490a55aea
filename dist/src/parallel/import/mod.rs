//! Readers of configurations: meshgrad's TOML, and the files and arguments of torchtitan,
//! Megatron-LM and DeepSpeed.
//!
//! Each reader returns [`Settings`] in which every value has its line or key as source. Errors are
//! stored there as violations, so that a configuration reports all of them together.
//! [`Settings::merge`] combines the settings of several readers. A key that affects the assignment
//! of ranks and is not supported is a violation.

mod deepspeed;
mod megatron;
mod nccl;
mod scalar;
mod toml_file;
mod torchtitan;
mod tree;

use std::fs;
use std::path::Path;

use meshgrad_error::{Result, error};

pub use deepspeed::{deepspeed, deepspeed_file};
pub use megatron::megatron_arguments;
pub use nccl::{megatron_nccl, megatron_nccl_file};
pub use toml_file::{toml, toml_file};
pub use torchtitan::{torchtitan, torchtitan_file};

use self::tree::Tree;
use super::Settings;

/// Reads a file of any of these kinds: TOML with a section `[parallel]` (meshgrad) or
/// `[parallelism]` (torchtitan), JSON (DeepSpeed), YAML (Megatron's NCCL options).
pub fn file(path: impl AsRef<Path>) -> Settings {
    let path = path.as_ref();
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension {
        Some("toml") => of_file(path, |text, name| match Tree::of_toml(text, name) {
            Ok(file) if file.get("parallelism").is_some() => torchtitan(text, name),
            _ => toml(text, name),
        }),
        Some("json") => deepspeed_file(path),
        Some("yaml" | "yml") => megatron_nccl_file(path),
        _ => {
            let mut settings = Settings::new();
            settings.add_violation(error!(
                Invalid,
                "{}: unknown file type: use .toml (meshgrad, torchtitan), .json (DeepSpeed) or \
                 .yaml (Megatron's NCCL options)",
                path.display()
            ));
            settings
        }
    }
}

/// Passes the text of a file to `read`. An unreadable file is a violation.
fn of_file(path: &Path, read: impl FnOnce(&str, &str) -> Settings) -> Settings {
    let name = path.display().to_string();
    match fs::read_to_string(path) {
        Ok(text) => read(&text, &name),
        Err(source) => {
            let mut settings = Settings::new();
            let violation = error!(System, "{name}: cannot be read: {source}").caused_by(source);
            settings.add_violation(violation);
            settings
        }
    }
}

/// Passes a tree to `read`.
fn of_tree(tree: Result<Tree>, read: impl FnOnce(&Tree, &mut Settings)) -> Settings {
    let mut settings = Settings::new();
    match tree {
        Ok(tree) => read(&tree, &mut settings),
        Err(violation) => {
            settings.add_violation(violation);
        }
    }
    settings
}

/// Passes a section of a TOML text to `read`. A missing section is a violation.
fn of_section(
    text: &str,
    path: &str,
    name: &str,
    read: impl FnOnce(&Tree, &mut Settings),
) -> Settings {
    of_tree(Tree::of_toml(text, path), |file, settings| match file.get(name) {
        Some(section) if section.is_table() => read(section, settings),
        Some(other) => other.scalar().reject(settings, "a section", &other.location),
        None => {
            settings.add_violation(error!(Invalid, "{path}: has no section [{name}]"));
        }
    })
}
