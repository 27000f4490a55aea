//! The transports that a launched process can join through.

use meshgrad_error::Result;

use super::environment::Environment;
use crate::processes::{ProcessRank, Tcp};

/// A transport between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// MPI if its launcher started the process and the feature `mpi` is on, otherwise TCP.
    #[default]
    Auto,
    /// [`Tcp`], over TCP.
    Tcp,
    /// `Mpi`, with the feature `mpi`.
    Mpi,
}

impl Transport {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Tcp => "tcp",
            Transport::Mpi => "mpi",
        }
    }

    /// The transport that [`ProcessRank::from_env_over`] uses in an environment.
    pub fn choose(self, environment: Option<&Environment>) -> Transport {
        let is_mpi = cfg!(feature = "mpi") && environment.is_some_and(Environment::is_mpi);
        match self {
            Transport::Auto if is_mpi => Transport::Mpi,
            Transport::Auto => Transport::Tcp,
            other => other,
        }
    }
}

impl ProcessRank {
    /// Joins as the rank that the launcher's variables specify. Without a launcher, the process is
    /// the only rank of a world.
    ///
    /// # Errors
    /// As [`Environment::read`] and [`Tcp::join`].
    pub fn from_env() -> Result<ProcessRank> {
        ProcessRank::from_env_over(Transport::Auto)
    }

    /// [`ProcessRank::from_env`] over a given transport.
    ///
    /// # Errors
    /// As [`ProcessRank::from_env`], and for a transport whose feature is off.
    pub fn from_env_over(transport: Transport) -> Result<ProcessRank> {
        let environment = Environment::read()?;
        Ok(match (transport.choose(environment.as_ref()), &environment) {
            (Transport::Mpi, environment) => join_mpi(environment.as_ref())?,
            (_, Some(environment)) => environment.tcp()?.join()?,
            (_, None) => Tcp::alone()?.join()?,
        })
    }
}

#[cfg(feature = "mpi")]
fn join_mpi(environment: Option<&Environment>) -> Result<ProcessRank> {
    let mpi = crate::processes::Mpi::new();
    match environment {
        Some(environment) => mpi.expect_world(environment.world_size()).join(),
        None => mpi.join(),
    }
}

#[cfg(not(feature = "mpi"))]
fn join_mpi(_environment: Option<&Environment>) -> Result<ProcessRank> {
    meshgrad_error::bail!(
        Unsupported,
        "MPI cannot be used: this program was built without the feature `mpi`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpi_is_chosen_only_under_its_launcher() {
        let under = |rank: &str, world: &str| {
            let variables = [
                (rank, "0"),
                (world, "2"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", "1"),
                ("MESHGRAD_SECRET", "a secret of 16 bytes"),
            ];
            let read = Environment::from_variables(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            });
            Transport::Auto.choose(read.unwrap().as_ref())
        };
        let with_feature = match cfg!(feature = "mpi") {
            true => Transport::Mpi,
            false => Transport::Tcp,
        };
        assert_eq!(under("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), with_feature);
        assert_eq!(under("RANK", "WORLD_SIZE"), Transport::Tcp);
        assert_eq!(Transport::Auto.choose(None), Transport::Tcp);
    }

    /// mpirun on two hosts, inside a job of SLURM whose variables are those of its first process.
    #[test]
    fn mpirun_needs_no_meeting_point() {
        let variables = [
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "8"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "8"),
        ];
        let environment = Environment::from_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        let environment = environment.unwrap().unwrap();
        assert_eq!((environment.rank(), environment.world_size()), (3, 8));
        let error = environment.tcp().unwrap_err().to_string();
        assert!(error.contains("MASTER_ADDR"), "{error}");
    }
}
