//! Rank, world and meeting point from the variables that launchers set.

use std::fmt;

use meshgrad_error::{Result, bail};

use super::meeting::MeetingPoint;
use super::variables::{Variables, contradiction, gap};
use crate::processes::Tcp;

/// A launcher's environment variables.
struct Names {
    rank: &'static str,
    world: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

/// torchrun and `meshgrad launch`. Both may run under a scheduler, whose variables describe the
/// launcher instead of the ranks.
const TORCHRUN: Names = Names {
    rank: "RANK",
    world: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_size: "LOCAL_WORLD_SIZE",
};

/// All launchers, the most specific first.
const LAUNCHERS: [Names; 4] = [
    TORCHRUN,
    Names {
        rank: "OMPI_COMM_WORLD_RANK",
        world: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Names {
        rank: "PMI_RANK",
        world: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
    },
    Names {
        rank: SLURM_RANK,
        world: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_STEP_TASKS_PER_NODE",
    },
];

/// The rank in a step of Slurm. The shell of a job has it too, but is not a rank.
const SLURM_RANK: &str = "SLURM_PROCID";
/// The number of tasks of a step, which may be less than that of its job.
const SLURM_STEP_TASKS: &str = "SLURM_STEP_NUM_TASKS";
/// Slurm's own steps have ids from here on, such as those of batch scripts and interactive shells.
const SLURM_RESERVED_STEPS: usize = 4_294_967_290;

/// What the launchers of MPI libraries set.
const MPI: [&str; 2] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"];

/// A process's place in its world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    rank: usize,
    world: usize,
    local_rank: usize,
    local_size: usize,
    /// Whether an MPI library's launcher started it.
    is_mpi: bool,
    /// May be an error if ranks meet over MPI.
    meeting: Result<MeetingPoint>,
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// Whether torchrun, `meshgrad launch` or mpirun started the process. An outer launcher's
    /// variables then describe the launcher process.
    fn is_innermost(&self, names: &Names) -> bool {
        let started = ["TORCHELASTIC_RUN_ID", "MESHGRAD_RUN"];
        let is_started = started.iter().any(|name| self.text(name).is_some());
        MPI.contains(&names.rank) || (names.rank == TORCHRUN.rank && is_started)
    }

    /// Rank and world from one launcher.
    fn place(&self, names: &Names) -> Result<Option<(usize, usize)>> {
        let is_slurm = names.rank == SLURM_RANK;
        if is_slurm && !self.is_slurm_step()? {
            return Ok(None);
        }
        let world_name = match is_slurm && self.text(SLURM_STEP_TASKS).is_some() {
            true => SLURM_STEP_TASKS,
            false => names.world,
        };
        let (rank, world) = (self.number(names.rank)?, self.number(world_name)?);
        match (rank, world) {
            (Some(rank), Some(world)) if rank < world => Ok(Some((rank, world))),
            (Some(rank), Some(world)) => bail!(
                Invalid,
                "{name} is {rank}, but {world_name} is {world}; {name} must be below {world_name}",
                name = names.rank
            ),
            (Some(_), None) => Err(gap(names.rank, world_name)),
            (None, Some(_)) => Err(gap(world_name, names.rank)),
            (None, None) => Ok(None),
        }
    }

    /// Whether srun started the process. Batch scripts and interactive shells are the only process
    /// of their step.
    fn is_slurm_step(&self) -> Result<bool> {
        let step = self.number("SLURM_STEP_ID")?;
        Ok(self.text(SLURM_RANK).is_some() && step.is_some_and(|id| id < SLURM_RESERVED_STEPS))
    }

    /// PMIx has no variable for the number of ranks, so it is not enough.
    fn check_pmix(&self) -> Result<Option<Environment>> {
        // Slurm may start interactive shells with PMIx.
        let is_shell = self.text(SLURM_RANK).is_some();
        match self.text("PMIX_RANK").filter(|_| !is_shell) {
            Some(_) => Err(gap("PMIX_RANK", "WORLD_SIZE")),
            None => Ok(None),
        }
    }
}

impl Environment {
    /// The place of this process; `None` if no launcher started it.
    ///
    /// # Errors
    /// When variables contradict each other, or some are missing.
    pub fn read() -> Result<Option<Environment>> {
        Environment::from_variables(|name| std::env::var(name).ok())
    }

    /// [`Environment::read`] with other variables.
    ///
    /// # Errors
    /// As [`Environment::read`].
    pub fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Environment>> {
        let variables = Variables(variable);
        let mut found: Option<(&Names, usize, usize)> = None;
        for names in &LAUNCHERS {
            let Some((rank, world)) = variables.place(names)? else {
                continue;
            };
            match found {
                None => found = Some((names, rank, world)),
                Some((first, first_rank, first_world)) => {
                    check_equal((first.world, first_world), (names.world, world))?;
                    check_equal((first.rank, first_rank), (names.rank, rank))?;
                }
            }
            if variables.is_innermost(names) {
                break;
            }
        }
        let Some((names, rank, world)) = found else {
            return variables.check_pmix();
        };
        let hosts = variables.hosts(names.local_size, names.world, world)?;
        let local_rank = variables.number(names.local_rank)?;
        let is_mpi = MPI.contains(&names.rank);
        let meeting = match variables.meeting(world, hosts.is_one) {
            Err(error) if !is_mpi => return Err(error),
            meeting => meeting,
        };
        Ok(Some(Environment {
            rank,
            world,
            local_rank: local_rank.unwrap_or(rank % hosts.local_size),
            local_size: hosts.local_size,
            is_mpi,
            meeting,
        }))
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.world
    }

    /// The number of this rank on its host.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// The number of ranks on this host, as far as it is known.
    pub fn local_size(&self) -> usize {
        self.local_size
    }

    /// Whether the launcher of an MPI library started this process.
    pub fn is_mpi(&self) -> bool {
        self.is_mpi
    }

    /// This rank on the TCP transport. Its device uses the rank's share of the cores.
    ///
    /// # Errors
    /// Under mpirun, if the variables say nothing about a meeting point.
    pub fn tcp(&self) -> Result<Tcp> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let tcp = match self.meeting.as_ref().map_err(Clone::clone)? {
            MeetingPoint::At { address, secret } => {
                Tcp::new(self.rank, self.world, address.clone(), secret.clone())
            }
            MeetingPoint::File(path) => Tcp::through_file(self.rank, self.world, path.clone()),
        };
        Ok(tcp.threads((cores / self.local_size).max(1)))
    }
}

/// `rank 3 of 8, meeting at node1:29500`
impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}, meeting ", self.rank, self.world)?;
        match &self.meeting {
            Ok(MeetingPoint::At { address, .. }) => write!(f, "at {address}"),
            Ok(MeetingPoint::File(path)) => write!(f, "through {}", path.display()),
            Err(_) => f.write_str("over MPI"),
        }
    }
}

fn check_equal(first: (&str, usize), second: (&str, usize)) -> Result<()> {
    match first.1 == second.1 {
        true => Ok(()),
        false => Err(contradiction(first, second)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "a secret of 16 bytes";

    fn read(variables: &[(&str, &str)]) -> Result<Option<Environment>> {
        Environment::from_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn at(variables: &[(&str, &str)]) -> String {
        read(variables).unwrap().unwrap().to_string()
    }

    #[test]
    fn every_launcher_is_recognized() {
        assert_eq!(read(&[]), Ok(None));
        let meeting = [
            ("MASTER_ADDR", "n1"),
            ("MASTER_PORT", "29500"),
            ("MESHGRAD_SECRET", LONG),
            ("SLURM_STEP_ID", "0"),
        ];
        for names in &LAUNCHERS {
            let place = [
                (names.rank, "3"),
                (names.world, "8"),
                (names.local_rank, "1"),
                (names.local_size, "2"),
            ];
            let found = read(&[place.as_slice(), &meeting].concat()).unwrap().unwrap();
            assert_eq!(found.to_string(), "rank 3 of 8, meeting at n1:29500");
            assert_eq!((found.local_rank(), found.local_size()), (1, 2));
        }
    }

    /// The shell of an allocation, a batch script, and interactive shells: the variables of the job
    /// are set, but no ranks are started.
    #[test]
    fn shells_of_slurm_are_not_ranks() {
        let job = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_LOCALID", "0")];
        let read = |more: &[(&'static str, &'static str)]| read(&[job.as_slice(), more].concat());
        assert_eq!(super::tests::read(&job[1..]), Ok(None));
        assert_eq!(read(&[]), Ok(None));
        for reserved in ["4294967290", "4294967291", "4294967292", "4294967295"] {
            assert_eq!(read(&[("SLURM_STEP_ID", reserved)]), Ok(None));
            assert_eq!(read(&[("SLURM_STEP_ID", reserved), ("PMIX_RANK", "0")]), Ok(None));
        }
        // A step with fewer tasks than its job.
        let meeting = [("SLURM_STEP_ID", "2"), ("MASTER_ADDR", "n1"), ("MASTER_PORT", "5")];
        let step = |tasks| {
            let more = [("SLURM_STEP_NUM_TASKS", tasks), ("MESHGRAD_SECRET", LONG)];
            read(&[meeting.as_slice(), &more].concat()).unwrap().unwrap().world_size()
        };
        assert_eq!((step("1"), step("2"), step("4")), (1, 2, 4));
        let outside =
            [("SLURM_PROCID", "2"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_ID", "2")];
        let error = super::tests::read(&outside).unwrap_err().to_string();
        assert!(error.contains("SLURM_PROCID is 2, but SLURM_STEP_NUM_TASKS is 2"), "{error}");
    }

    #[test]
    fn slurm_counts_the_tasks_of_each_node() {
        let local_size = |tasks: &str| {
            let place = [
                ("SLURM_STEP_ID", "0"),
                ("SLURM_PROCID", "5"),
                ("SLURM_NTASKS", "8"),
                ("SLURM_LOCALID", "1"),
                ("SLURM_STEP_TASKS_PER_NODE", tasks),
                ("SLURM_STEP_NODELIST", "n[1-2]"),
                ("SLURM_JOB_ID", "1"),
                ("MESHGRAD_SECRET", LONG),
            ];
            read(&place).unwrap().unwrap().local_size()
        };
        assert_eq!(local_size("4(x2)"), 4);
        assert_eq!(local_size("8"), 8);
        assert_eq!(local_size("6,2"), 1); // unknown
    }

    #[test]
    fn the_meeting_point_depends_on_the_launcher() {
        let place = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MESHGRAD_SECRET", LONG)];
        let with = |more: &[(&'static str, &'static str)]| at(&[place.as_slice(), more].concat());
        let store = [
            ("MASTER_ADDR", "::1"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ];
        assert_eq!(with(&store), "rank 1 of 2, meeting at [::1]:29501");
        let own = [store.as_slice(), &[("MESHGRAD_PORT", "7")]].concat();
        assert_eq!(with(&own), "rank 1 of 2, meeting at [::1]:7");
        let slurm = [("SLURM_JOB_ID", "123456"), ("SLURM_STEP_NODELIST", "gpu[07-12,20]-x,login1")];
        assert_eq!(with(&slurm), "rank 1 of 2, meeting at gpu07-x:23456");
        let step = [slurm.as_slice(), &[("SLURM_STEP_ID", "1")]].concat();
        assert_eq!(with(&step), "rank 1 of 2, meeting at gpu07-x:21375");

        let file = at(&[
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "prte/7@1"),
        ]);
        assert!(file.contains("-prte_7_1.meeting"), "{file}");
    }

    /// MPICH sets no name of the run, so the parent's process id is used.
    #[test]
    fn runs_without_a_name_do_not_share_a_file() {
        let file = at(&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")]);
        let parent = std::os::unix::process::parent_id();
        assert!(file.contains(&format!("-parent-{parent}.meeting")), "{file}");
    }

    #[test]
    fn missing_and_contradictory_variables_are_named() {
        let error = |variables: &[(&str, &str)]| {
            let error = read(variables).unwrap_err();
            assert_eq!(format!("{error:?}"), error.to_string());
            error.to_string()
        };
        let cases: [(&[(&str, &str)], &str); 10] = [
            (
                &[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")],
                "2 ranks of one host need a name for their run; set MESHGRAD_RUN",
            ),
            (&[("PMIX_RANK", "1")], "PMIX_RANK is set, but WORLD_SIZE is not"),
            (&[("RANK", "1")], "RANK is set, but WORLD_SIZE is not"),
            (&[("WORLD_SIZE", "2")], "WORLD_SIZE is set, but RANK is not"),
            (&[("RANK", "x"), ("WORLD_SIZE", "2")], "RANK is `x`, which is not a number"),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK is 2, but WORLD_SIZE is 2"),
            (
                &[("RANK", "1"), ("WORLD_SIZE", "2"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")],
                "RANK is 1, but PMI_RANK is 0",
            ),
            (
                &[
                    ("RANK", "1"),
                    ("WORLD_SIZE", "2"),
                    ("LOCAL_WORLD_SIZE", "1"),
                    ("MASTER_ADDR", "n1"),
                    ("MASTER_PORT", "1"),
                ],
                "set MESHGRAD_SECRET",
            ),
            (
                &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "n1")],
                "MASTER_ADDR is set, but MASTER_PORT is not",
            ),
            (&[("RANK", "1"), ("WORLD_SIZE", "2")], "set MASTER_ADDR and MASTER_PORT"),
        ];
        for (variables, expected) in cases {
            let error = error(variables);
            assert!(error.contains(expected), "{error}");
        }
    }

    /// torchrun under SLURM: the variables of SLURM are those of torchrun's own process.
    #[test]
    fn the_innermost_launcher_is_used() {
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_ID", "0")];
        let torchrun = [
            ("RANK", "9"),
            ("WORLD_SIZE", "16"),
            ("TORCHELASTIC_RUN_ID", "r"),
            ("MASTER_ADDR", "n1"),
            ("MASTER_PORT", "5"),
            ("MESHGRAD_SECRET", LONG),
        ];
        let all = [slurm.as_slice(), &torchrun].concat();
        assert_eq!(at(&all), "rank 9 of 16, meeting at n1:5");
    }
}
