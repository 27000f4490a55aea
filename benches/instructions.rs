//! Counts the machine instructions that CPU ops execute per element, on one thread, and compares
//! them with a table. Unlike a time, a count hardly varies between runs. It rises when the last
//! columns of a row are no longer computed in vectors, or when sums no longer stay in registers.
//!
//! ```text
//! cargo bench --bench instructions [-- [--update] [--only NAME]]
//! ```
//!
//! A second process runs each op with few and with many rows, and this one executes it instruction
//! by instruction (`ptrace`). The difference of the two counts, per element of the additional rows,
//! does not include the cost of a call. The table, `benches/instructions.toml`, has a section for
//! each level of vector instructions. The bench fails if an op executes over a tenth more
//! instructions than the table says.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("instructions are counted on Linux only");
}

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<std::process::ExitCode> {
    linux::main()
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::process::{Command, ExitCode};

    use anyhow::{Context, bail, ensure};
    use clap::Parser;
    use meshgrad::prelude::*;
    use meshgrad::runtime::op_cases::{self, OpCase, Source, Written};
    use meshgrad::runtime::ops::RopeStyle;
    use meshgrad::runtime::{Key, Result as ValueResult, ops};
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::sys::ptrace;
    use nix::sys::signal::{Signal, raise};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::Pid;

    /// Rows of the two calls of an op.
    const ROWS: [usize; 2] = [8, 16];
    /// Elements per row: not a multiple of any vector.
    const FEATURES: usize = 519;
    /// Heads and features per head of rotations, which have these in place of [`FEATURES`].
    const HEADS: [usize; 2] = [8, 64];
    /// The tolerated ratio to the table.
    const TOLERANCE: f64 = 1.1;

    /// The instructions per element of each case, for each level of vector instructions.
    type Table = BTreeMap<String, BTreeMap<String, f64>>;

    /// Counts the instructions of CPU ops.
    #[derive(Parser)]
    struct Cli {
        /// Write the counts to the table.
        #[arg(long)]
        update: bool,
        /// Only cases whose name contains this.
        #[arg(long, default_value = "")]
        only: String,
        /// Be the process whose instructions are counted.
        #[arg(long, hide = true)]
        counted: bool,
        /// Passed by cargo.
        #[arg(long, hide = true)]
        bench: bool,
    }

    pub(super) fn main() -> anyhow::Result<ExitCode> {
        let cli = Cli::parse();
        let device = Device::cpu_with_threads(1)?;
        let counted = Counted::new(&device, &cli.only)?;
        if cli.counted {
            counted.run()?;
            return Ok(ExitCode::SUCCESS);
        }

        if counted.cases.is_empty() {
            bail!("no case has {:?} in its name", cli.only);
        }
        let counts = count(&cli, &counted)?;
        let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.toml"));
        let at_path = || path.display().to_string();
        let text = std::fs::read_to_string(&path).with_context(at_path)?;
        let mut table: Table = toml::from_str(&text).with_context(at_path)?;
        let known = table.entry(device.properties().simd.to_owned()).or_default();
        let worse = report(&counts, known);
        if cli.update {
            known.extend(counts);
            std::fs::write(&path, toml::to_string(&table)?).with_context(at_path)?;
        } else if worse {
            println!(
                "\nmore instructions than in benches/instructions.toml; --update accepts them"
            );
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints the counts beside those of the table. Returns whether one is too large.
    fn report(counts: &BTreeMap<String, f64>, known: &BTreeMap<String, f64>) -> bool {
        println!("instructions per element\n\n| | now | table |\n|---|---|---|");
        let mut worse = false;
        for (name, count) in counts {
            let (before, mark) = match known.get(name) {
                Some(before) if *count > TOLERANCE * before => {
                    (format!("{before:.2}"), " **more**")
                }
                Some(before) => (format!("{before:.2}"), ""),
                None => (String::new(), ""),
            };
            worse |= !mark.is_empty();
            println!("| {name} | {count:.2} | {before}{mark} |");
        }
        worse
    }

    /// Starts the counted process and follows it through all cases.
    fn count(cli: &Cli, counted: &Counted) -> anyhow::Result<BTreeMap<String, f64>> {
        share_one_core()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--counted", "--only", &cli.only]);
        let mut child = command.spawn()?;
        let traced = Traced(Pid::from_raw(child.id().try_into()?));
        traced.run_to_stop().context("the counted process cannot be traced")?;
        ptrace::setoptions(traced.0, ptrace::Options::PTRACE_O_EXITKILL)?;
        let mut counts = BTreeMap::new();
        for (name, _) in &counted.cases {
            let mut of_rows = [0; 2];
            for count in &mut of_rows {
                ptrace::cont(traced.0, None)?;
                traced.run_to_stop()?;
                *count = traced.count_to_stop()?;
            }
            let [few, many] = of_rows.map(|count: u64| count as f64);
            let elements = (ROWS[1] - ROWS[0]) * FEATURES;
            let per_element = (many - few) / elements as f64;
            counts.insert(name.clone(), (100.0 * per_element).round() / 100.0);
        }
        ptrace::cont(traced.0, None)?;
        let status = child.wait()?;
        ensure!(status.success(), "the counted process failed: {status}");
        Ok(counts)
    }

    /// Restricts this process, and those that it starts, to one core. A step then needs no signal
    /// between cores.
    fn share_one_core() -> anyhow::Result<()> {
        let allowed = sched_getaffinity(Pid::from_raw(0))?;
        let mut cores = 0..CpuSet::count();
        let core = cores.find(|core| allowed.is_set(*core) == Ok(true));
        let mut one = CpuSet::new();
        one.set(core.context("this process may run on no core")?)?;
        Ok(sched_setaffinity(Pid::from_raw(0), &one)?)
    }

    /// A process that stops itself before and after what is counted.
    struct Traced(Pid);

    impl Traced {
        fn run_to_stop(&self) -> anyhow::Result<()> {
            match waitpid(self.0, None)? {
                WaitStatus::Stopped(_, Signal::SIGSTOP) => Ok(()),
                other => bail!("expected the counted process to stop, got {other:?}"),
            }
        }

        /// The number of instructions until it stops itself.
        fn count_to_stop(&self) -> anyhow::Result<u64> {
            for count in 0.. {
                ptrace::step(self.0, None)?;
                match waitpid(self.0, None)? {
                    WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
                    WaitStatus::Stopped(_, Signal::SIGSTOP) => return Ok(count),
                    other => bail!("after {count} instructions: {other:?}"),
                }
            }
            bail!("the count is too large")
        }
    }

    /// The cases whose instructions are counted: names, and the case for each number of rows.
    struct Counted {
        cases: Vec<(String, [OpCase; 2])>,
    }

    impl Counted {
        fn new(device: &Device, only: &str) -> anyhow::Result<Counted> {
            let mut cases = Vec::new();
            for dtype in [DType::F32, DType::BF16] {
                let inputs = Inputs { device, dtype };
                let [few, many] = ROWS.map(|rows| all(&inputs, rows));
                for (few, many) in few?.into_iter().zip(many?) {
                    let name = format!("{}, {}", few.name, dtype.name());
                    if name.contains(only) {
                        cases.push((name, [few, many]));
                    }
                }
            }
            Ok(Counted { cases })
        }

        /// Runs each case twice, the second time between two stops.
        fn run(&self) -> anyhow::Result<()> {
            ptrace::traceme()?;
            raise(Signal::SIGSTOP)?;
            for case in self.cases.iter().flat_map(|(_, cases)| cases) {
                let operands = case.whole(Written::InPlace);
                case.run(&operands)?;
                raise(Signal::SIGSTOP)?;
                let results = case.run(&operands);
                raise(Signal::SIGSTOP)?;
                results?;
            }
            Ok(())
        }
    }

    /// The cases with `rows` rows. No two have the same name.
    fn all(inputs: &Inputs<'_>, rows: usize) -> ValueResult<Vec<OpCase>> {
        let shape = [rows, FEATURES];
        let [heads, features] = HEADS;
        let families = [
            op_cases::unary(inputs, &shape)?,
            op_cases::binary(inputs, &shape, &shape)?,
            op_cases::swiglu(inputs, rows, FEATURES)?,
            op_cases::norms(inputs, &[rows], FEATURES)?,
            op_cases::softmaxes(inputs, &shape)?,
            reduced(inputs, shape, &[1], "rows")?,
            reduced(inputs, shape, &[0], "columns")?,
            op_cases::positions(inputs, [1, rows, heads, features], features / 2, RopeStyle::Half)?,
            op_cases::linear(inputs, &[rows], [FEATURES, 96])?,
        ];
        Ok(families.into_iter().flatten().collect())
    }

    fn reduced(
        inputs: &Inputs<'_>,
        shape: [usize; 2],
        dims: &'static [isize],
        what: &str,
    ) -> ValueResult<Vec<OpCase>> {
        let mut cases = op_cases::reductions(inputs, &shape, dims)?;
        for case in &mut cases {
            case.name = format!("{} of {what}", case.name);
        }
        Ok(cases)
    }

    /// Random operands.
    struct Inputs<'d> {
        device: &'d Device,
        dtype: DType,
    }

    impl Inputs<'_> {
        fn uniform(&self, name: &str, shape: &[usize], low: f64) -> ValueResult<Tensor> {
            let key = Key::new(1).fold_name(name);
            ops::uniform(self.device, shape, self.dtype, key, low, 1.0)
        }
    }

    impl Source for Inputs<'_> {
        fn device(&self) -> &Device {
            self.device
        }

        fn numbers(&self, name: &str, shape: &[usize]) -> ValueResult<Tensor> {
            self.uniform(name, shape, -1.0)
        }

        fn positive(&self, name: &str, shape: &[usize]) -> ValueResult<Tensor> {
            self.uniform(name, shape, 0.0)
        }

        fn indices(&self, _: &str, shape: &[usize], below: usize) -> ValueResult<Tensor> {
            let count: usize = shape.iter().product();
            let indices: Vec<i64> = (0..count).map(|at| ((at * 7919) % below) as i64).collect();
            Tensor::from_slice(self.device, shape, &indices)
        }
    }
}
