//! Which processes have ended, in the order of their ends.
//!
//! On Linux the kernel lists descriptors in the order in which they become readable. Threads that
//! each wait for one process may be woken in another order.

#[cfg(target_os = "linux")]
pub(super) use pidfds::Ends;
#[cfg(not(target_os = "linux"))]
pub(super) use polled::Ends;

#[cfg(target_os = "linux")]
mod pidfds {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::buffer::spare_capacity;
    use rustix::event::{Timespec, epoll};
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    /// The most ends that one call returns.
    const AT_ONCE: usize = 64;

    pub(in super::super) struct Ends {
        epoll: OwnedFd,
        /// Readable once their process has ended.
        processes: Vec<OwnedFd>,
    }

    impl Ends {
        pub(in super::super) fn new() -> io::Result<Ends> {
            Ok(Ends { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, processes: Vec::new() })
        }

        /// Adds the process of the next rank, right after its start.
        pub(in super::super) fn push(&mut self, pid: Pid) -> io::Result<()> {
            let process = pidfd_open(pid, PidfdFlags::empty())?;
            let rank = epoll::EventData::new_u64(self.processes.len() as u64);
            let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
            epoll::add(&self.epoll, &process, rank, once)?;
            self.processes.push(process);
            Ok(())
        }

        /// The ranks that have ended since the last call. Waits for the first one, but no longer
        /// than `limit`.
        pub(in super::super) fn next(&mut self, limit: Duration) -> io::Result<Vec<usize>> {
            let mut events = Vec::with_capacity(AT_ONCE);
            let limit = Timespec::try_from(limit).map_err(|_| Errno::INVAL)?;
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&limit)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ended = events.iter().map(|event: &epoll::Event| event.data.u64());
            Ok(ended.map(|rank| rank as usize).collect())
        }
    }
}

/// Polls, where processes have no descriptors: ends between two polls are in rank order.
#[cfg(not(target_os = "linux"))]
mod polled {
    use std::io;
    use std::time::Duration;

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    pub(in super::super) struct Ends(Vec<Option<Pid>>);

    impl Ends {
        pub(in super::super) fn new() -> io::Result<Ends> {
            Ok(Ends(Vec::new()))
        }

        pub(in super::super) fn push(&mut self, pid: Pid) -> io::Result<()> {
            self.0.push(Some(pid));
            Ok(())
        }

        pub(in super::super) fn next(&mut self, limit: Duration) -> io::Result<Vec<usize>> {
            std::thread::sleep(limit);
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            let mut ended = Vec::new();
            for (rank, process) in self.0.iter_mut().enumerate() {
                if let Some(pid) = *process
                    && waitid(WaitId::Pid(pid), options)?.is_some()
                {
                    *process = None;
                    ended.push(rank);
                }
            }
            Ok(ended)
        }
    }
}
