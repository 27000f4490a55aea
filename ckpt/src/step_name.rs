//! The folder names of checkpoints, which contain the training step.

/// The name of the checkpoint of a step: `step-000123`.
pub fn step_name(step: u64) -> String {
    format!("step-{step:06}")
}

/// The step of a name created by [`step_name`].
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_names_round_trip() {
        for step in [0, 7, 999_999, 1_000_000, u64::MAX] {
            assert_eq!(step_of(&step_name(step)), Some(step));
        }
        for name in
            ["step-7", "step-0000007", "step-", "step-+00007", "step-00000x", "x", ".step-000007"]
        {
            assert_eq!(step_of(name), None, "{name}");
        }
    }
}
