//! Where the ranks of a world meet, from the variables of their launcher.

use std::path::PathBuf;

use meshgrad_error::{Result, bail, ensure};

use super::variables::{Variables, contradiction, gap};
use crate::processes::Secret;

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MeetingPoint {
    /// At an address, with the secret of the environment.
    At { address: String, secret: Secret },
    /// Through a file of this host.
    File(PathBuf),
}

/// What is known about the hosts of a world.
pub(super) struct HostCount {
    pub(super) is_one: bool,
    pub(super) local_size: usize,
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// `local` and `total` are the variables with the number of ranks of this host and of all.
    pub(super) fn hosts(
        &self,
        local: &'static str,
        total: &'static str,
        world: usize,
    ) -> Result<HostCount> {
        let local_size = match local.starts_with("SLURM_") {
            true => self.text(local).and_then(|it| tasks_of_each_node(&it)),
            false => self.number(local)?,
        };
        if let Some(size) = local_size
            && size > world
        {
            return Err(contradiction((local, size), (total, world)));
        }
        let address = self.text("MASTER_ADDR");
        let is_loopback = address.as_deref().is_some_and(is_loopback);
        let is_one = world == 1 || local_size == Some(world) || is_loopback;
        Ok(HostCount {
            is_one,
            local_size: local_size.unwrap_or(if is_one { world } else { 1 }).max(1),
        })
    }

    pub(super) fn meeting(&self, world: usize, is_one_host: bool) -> Result<MeetingPoint> {
        let secret = self.text("MESHGRAD_SECRET").map(Secret::new).transpose()?;
        let address = self.address(world)?;
        match (address, secret) {
            (Some(address), Some(secret)) => Ok(MeetingPoint::At { address, secret }),
            (_, _) if is_one_host => Ok(MeetingPoint::File(self.file(world)?)),
            (None, _) => bail!(
                Invalid,
                "{world} ranks on several hosts need a meeting point; set MASTER_ADDR and \
                 MASTER_PORT to an address of rank 0's host and a free port"
            ),
            (Some(_), None) => bail!(
                Invalid,
                "{world} ranks on several hosts need a secret; set MESHGRAD_SECRET to the same \
                 random string on all hosts"
            ),
        }
    }

    /// Where rank 0 listens, if the variables say so.
    fn address(&self, world: usize) -> Result<Option<String>> {
        let own_port = self.number("MESHGRAD_PORT")?;
        let (name, port) = (self.text("MASTER_ADDR"), self.number("MASTER_PORT")?);
        let (name, port) = match (name, own_port.or(port)) {
            (Some(name), Some(port)) => (name, port),
            (None, None) => return Ok(self.slurm_address()),
            (Some(_), None) => return Err(gap("MASTER_ADDR", "MASTER_PORT")),
            (None, Some(_)) if world == 1 => return Ok(None),
            (None, Some(_)) => return Err(gap("MASTER_PORT", "MASTER_ADDR")),
        };
        // torchrun's agent listens on MASTER_PORT itself.
        let agent = self.text("TORCHELASTIC_USE_AGENT_STORE");
        let is_taken =
            own_port.is_none() && agent.is_some_and(|it| it.eq_ignore_ascii_case("true"));
        let port = match (is_taken, port) {
            (false, port) => port,
            (true, 65_535..) => 65_534,
            (true, port) => port + 1,
        };
        let name = if name.contains(':') && !name.starts_with('[') {
            format!("[{name}]") // an IPv6 address
        } else {
            name
        };
        Ok(Some(format!("{name}:{port}")))
    }

    /// The first host of a SLURM step, and a port named by the job and the step.
    fn slurm_address(&self) -> Option<String> {
        let number = |name| self.text(name)?.parse::<u32>().ok();
        let job = u64::from(number("SLURM_JOB_ID")?);
        let step = u64::from(number("SLURM_STEP_ID").unwrap_or(0));
        let hosts = self.text("SLURM_STEP_NODELIST")?;
        let host = first_host(&hosts)?;
        // Steps of a job, and jobs one after another, get different ports.
        Some(format!("{host}:{}", 20_000 + (job + 7919 * step) % 10_000))
    }

    /// The path of the meeting file, which is the same in all processes of the run.
    fn file(&self, world: usize) -> Result<PathBuf> {
        let names = [
            "MESHGRAD_RUN",
            "TORCHELASTIC_RUN_ID",
            "PMIX_NAMESPACE",
            "OMPI_MCA_ess_base_jobid",
            "PMI_JOBID",
            "SLURM_JOB_ID",
            "SLURM_STEP_ID",
            "MASTER_PORT",
        ];
        let mut known: Vec<String> = names.iter().filter_map(|name| self.text(name)).collect();
        if known.is_empty() {
            known.push(self.unnamed_run(world)?);
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let run: String =
            known.join("-").chars().map(|c| if is_plain(c) { c } else { '_' }).take(120).collect();
        let folder = self.text("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|it| it.is_dir());
        let user = rustix::process::geteuid().as_raw();
        let folder = folder.unwrap_or_else(std::env::temp_dir);
        Ok(folder.join(format!("meshgrad-{user}-{run}.meeting")))
    }

    /// A name for a run that its launcher does not name: the id of the parent process, because one
    /// process of MPICH starts all ranks of a host.
    fn unnamed_run(&self, world: usize) -> Result<String> {
        ensure!(
            world == 1 || self.text("PMI_RANK").is_some(),
            Invalid,
            "{world} ranks of one host need a name for their run; set MESHGRAD_RUN to the same \
             name on all ranks, or MASTER_ADDR, MASTER_PORT and MESHGRAD_SECRET"
        );
        Ok(format!("parent-{}", std::os::unix::process::parent_id()))
    }
}

fn is_loopback(name: &str) -> bool {
    let address = name.parse::<std::net::IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The tasks of each node from a SLURM list such as `4` or `4(x2)`; `None` if nodes differ.
fn tasks_of_each_node(list: &str) -> Option<usize> {
    let (tasks, nodes) = list.split_once("(x").unwrap_or((list, "1)"));
    nodes.strip_suffix(')')?.parse::<usize>().ok()?;
    tasks.parse().ok()
}

/// The first host of a SLURM list such as `node[07-12,20],login1`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let Some(range) = rest.strip_prefix('[') else {
        return (!name.is_empty()).then(|| name.to_owned());
    };
    let (inside, after) = range.split_once(']')?;
    let first = inside.split([',', '-']).next()?;
    let after = after.split(',').next()?;
    Some(format!("{name}{first}{after}"))
}
