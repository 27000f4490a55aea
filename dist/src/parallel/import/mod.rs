//! Settings from what people have: meshgrad's own TOML, and the configurations of torchtitan,
//! Megatron-LM and DeepSpeed.
//!
//! Each reader gives [`Settings`] in which every value knows the line or the key that it came from.
//! What is wrong is kept in them too, so that a configuration reports everything at once; several
//! readers' settings are put together with [`Settings::merge`]. Nothing is lost in silence: a key that
//! would change the ranks' work and is not understood is a violation.

mod deepspeed;
mod megatron;
mod nccl;
mod scalar;
mod toml_file;
mod torchtitan;
mod tree;

use std::fs;
use std::path::Path;

pub use deepspeed::{deepspeed, deepspeed_file};
pub use megatron::megatron_arguments;
pub use nccl::{megatron_nccl, megatron_nccl_file};
pub use toml_file::{toml, toml_file};
pub use torchtitan::{torchtitan, torchtitan_file};

use self::tree::Tree;
use super::{Settings, Source, Violation};

/// Settings of a file of any of these kinds: TOML with a section `[parallel]` (ours) or
/// `[parallelism]` (torchtitan's), JSON (DeepSpeed's), YAML (Megatron's NCCL options).
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
            settings.add_violation(Violation::Unreadable {
                location: Source::file(path.display().to_string()),
                problem: "is of no known kind: a name ends with .toml (ours, torchtitan's), .json \
                          (DeepSpeed's) or .yaml (Megatron's NCCL options)"
                    .to_owned(),
            });
            settings
        }
    }
}

/// Reads a file and gives its text to `read`, or notes why it cannot be read.
fn of_file(path: &Path, read: impl FnOnce(&str, &str) -> Settings) -> Settings {
    let name = path.display().to_string();
    match fs::read_to_string(path) {
        Ok(text) => read(&text, &name),
        Err(error) => {
            let mut settings = Settings::new();
            settings.add_violation(Violation::Unreadable {
                location: Source::file(name),
                problem: format!("cannot be read: {error}"),
            });
            settings
        }
    }
}

/// Settings of a tree, or why there is none.
fn of_tree(
    tree: Result<Tree, Box<Violation>>,
    read: impl FnOnce(&Tree, &mut Settings),
) -> Settings {
    let mut settings = Settings::new();
    match tree {
        Ok(tree) => read(&tree, &mut settings),
        Err(violation) => {
            settings.add_violation(*violation);
        }
    }
    settings
}

/// Settings of a section of a TOML text, which must be there.
fn of_section(
    text: &str,
    path: &str,
    name: &str,
    read: impl FnOnce(&Tree, &mut Settings),
) -> Settings {
    of_tree(Tree::of_toml(text, path), |file, settings| {
        match file.get(name) {
            Some(section) if section.is_table() => read(section, settings),
            Some(other) => other
                .scalar()
                .reject(settings, "a section", &other.location),
            None => {
                settings.add_violation(Violation::Unreadable {
                    location: Source::file(path),
                    problem: format!("has no section [{name}]"),
                });
            }
        }
    })
}
