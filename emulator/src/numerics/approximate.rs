#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approximation {
    Rounded,
    Perturbed { seed: u32 },
}
