//! The commands that `meshgrad train` suggests at its end.

use std::path::Path;

use meshgrad::train::config::Config;
use meshgrad::train::session::Summary;

/// How the ranks of a run were started.
#[derive(Clone, Copy)]
pub(crate) enum StartedAs {
    /// The only rank.
    OneRank,
    /// Threads of this process.
    Threads(usize),
    /// Processes.
    Processes(usize),
}

/// One command per line, to be copied into a shell.
pub(crate) fn commands(
    summary: &Summary,
    run: &Path,
    config: &Config,
    started_as: StartedAs,
) -> String {
    // The configuration of a run belongs to its folder, so --run-dir is not needed.
    let config_file = quoted(&run.join("config.toml"));
    let resume = match started_as {
        StartedAs::OneRank => format!("meshgrad train {config_file}"),
        StartedAs::Threads(ranks) => format!("meshgrad train {config_file} --ranks {ranks}"),
        StartedAs::Processes(ranks) => {
            format!("meshgrad launch -n {ranks} -- meshgrad train {config_file}")
        }
    };
    let prompt = match summary.has_conversations {
        true => "--chat --prompt 'Who are you?'",
        false => "--prompt 'fn main'",
    };
    let mut lines = vec![format!("meshgrad sample {} {prompt}", quoted(run))];
    if summary.step < summary.steps {
        lines.push(format!("{resume}    # resumes with the remaining steps"));
    } else {
        let mut longer = config.clone();
        longer.train.steps = summary.steps.saturating_mul(2);
        // A schedule of phases may fit this number of steps only.
        if longer.check().is_ok() {
            let steps = longer.train.steps;
            lines.push(format!("{resume} --set train.steps={steps}    # continues training"));
        }
    }
    lines.push("meshgrad train --set 'data.paths=[\"YOUR/TEXT\"]' --run-dir runs/mine".to_owned());
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

/// A path as a word of a shell.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/=,:+@%".contains(&byte);
    match text.bytes().all(is_plain) && !text.starts_with('-') && !text.is_empty() {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A shell reads each path as one word.
    #[test]
    fn quoted_paths_are_words_of_a_shell() {
        assert_eq!(quoted(Path::new("runs/default,a.b=1e-3")), "runs/default,a.b=1e-3");
        for path in ["runs/my run", "it's", "$HOME/`x`", "a\"b\\c", "*", "a;b", "~/x", "#x"] {
            let command = format!("printf %s {}", quoted(Path::new(path)));
            let output = Command::new("sh").args(["-c", &command]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), path);
        }
    }
}
