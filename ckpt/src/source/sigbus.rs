//! The guard of memory maps: when a file loses a page, the page reads as zeros and the map is
//! marked, instead of killing the process.
//!
//! An access to a mapped page after the end of its file raises SIGBUS. The handler looks the
//! address up in a table of guarded maps. If it finds the map, it maps an anonymous page there,
//! marks the map and returns, so the access is repeated and reads zeros. After a copy, the caller
//! checks the mark before it uses the bytes. Any other SIGBUS goes to the previously installed
//! handler, or has its default effect. The handler uses only atomics and system calls, so it may
//! interrupt any code.

use std::io;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The maximum number of maps. A handler cannot allocate, so the table has a fixed size.
const MAX_MAPS: usize = 4096;

/// A guarded map. Free while `taken` is false; matches no address while `start` is [`NOWHERE`].
struct Slot {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    hit: AtomicBool,
}

const NOWHERE: usize = usize::MAX;

static SLOTS: [Slot; MAX_MAPS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(NOWHERE),
        end: AtomicUsize::new(0),
        hit: AtomicBool::new(false),
    }
}; MAX_MAPS];

/// The handler's other data: the page size and the previous handler.
static INSTALLED: OnceLock<Installed> = OnceLock::new();

struct Installed {
    page: usize,
    before: libc::sigaction,
}

impl Slot {
    /// Whether the address is in this map.
    fn holds(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Acquire);
        let inside = start <= address && address < self.end.load(Ordering::Acquire);
        // `start` is the same before and after, so `end` belongs to it.
        inside && self.start.load(Ordering::Acquire) == start
    }
}

/// Guards a map until it is dropped.
#[derive(Debug)]
pub(super) struct Guard {
    slot: usize,
}

impl Guard {
    /// Guards `len` bytes at an address.
    ///
    /// # Errors
    /// The reason, for the user.
    pub(super) fn over(start: usize, len: usize) -> Result<Guard, String> {
        static GUARDED: OnceLock<Result<(), String>> = OnceLock::new();
        let failed = |error| format!("cannot guard maps: {error}");
        GUARDED.get_or_init(|| install().map_err(failed)).clone()?;
        let free = |slot: &Slot| !slot.taken.swap(true, Ordering::AcqRel);
        let Some(at) = SLOTS.iter().position(free) else {
            return Err(format!("{MAX_MAPS} files are mapped already"));
        };
        let slot = &SLOTS[at];
        slot.hit.store(false, Ordering::Release);
        slot.end.store(start + len, Ordering::Release);
        slot.start.store(start, Ordering::Release);
        Ok(Guard { slot: at })
    }

    /// Whether the map has lost a page. Never reset.
    pub(super) fn was_hit(&self) -> bool {
        SLOTS[self.slot].hit.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let slot = &SLOTS[self.slot];
        slot.start.store(NOWHERE, Ordering::Release);
        slot.taken.store(false, Ordering::Release);
    }
}

/// Installs the handler before the existing one. Done once, never undone.
fn install() -> io::Result<()> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only a query, into memory of the right type.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: queries a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    INSTALLED.get_or_init(|| Installed {
        page: page.max(1) as usize,
        // SAFETY: initialized by the call above; all zeros would also be valid.
        before: unsafe { before.assume_init() },
    });

    // SAFETY: zeros are a valid value of this plain struct.
    let mut ours: libc::sigaction = unsafe { mem::zeroed() };
    ours.sa_sigaction = on_sigbus as *const () as usize;
    // On the alternate stack, if the thread has one, because the previous handler may need it.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `on_sigbus` has the signature that SA_SIGINFO requires and is async-signal-safe.
    match unsafe { libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let Some(installed) = INSTALLED.get() else {
        return;
    };
    // SAFETY: with SA_SIGINFO, the system passes a valid siginfo.
    let (address, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    // A signal sent by a program has no address.
    let is_fault = code > 0;
    let slot = SLOTS.iter().find(|slot| is_fault && slot.holds(address));
    if let Some(slot) = slot
        && put_zeros(address - address % installed.page, installed.page)
    {
        slot.hit.store(true, Ordering::Release);
        return;
    }
    pass_on(&installed.before, signal, info, context);
}

/// Maps a page of zeros over a lost one.
fn put_zeros(page: usize, len: usize) -> bool {
    // SAFETY: the thread's own errno; the interrupted code may be about to read it.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the page is inside a guarded map of this process, which is alive and only read by
    // copies; replacing its content is the guard's purpose.
    let placed = unsafe {
        libc::mmap(
            ptr::without_provenance_mut(page),
            len,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    placed != libc::MAP_FAILED
}

/// Does what would happen without this handler.
fn pass_on(
    before: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    type Plain = extern "C" fn(libc::c_int);
    type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

    match before.sa_sigaction {
        // Ignoring a fault would repeat it forever; the system does not ignore it either.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: both are async-signal-safe; the signal is delivered when this handler
            // returns.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was installed with SA_SIGINFO, so it has this signature.
            let handler = unsafe { mem::transmute::<usize, WithInfo>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: it was installed without SA_SIGINFO, so it has this signature.
            let handler = unsafe { mem::transmute::<usize, Plain>(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use memmap2::Mmap;

    use super::*;

    /// A map of a file that has lost all its bytes.
    fn lost() -> Mmap {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 16).unwrap();
        // SAFETY: only read through raw pointers.
        let map = unsafe { Mmap::map(&file).unwrap() };
        file.set_len(0).unwrap();
        map
    }

    fn first_byte(map: &Mmap) -> u8 {
        // SAFETY: inside the map.
        unsafe { map.as_ptr().read_volatile() }
    }

    #[test]
    fn a_lost_page_reads_as_zeros_and_is_marked() {
        let (map, other) = (lost(), lost());
        let guard = Guard::over(map.as_ptr().addr(), map.len()).unwrap();
        let untouched = Guard::over(other.as_ptr().addr(), other.len()).unwrap();
        assert!(!guard.was_hit());
        assert_eq!(first_byte(&map), 0);
        assert!(guard.was_hit() && !untouched.was_hit());

        let slot = guard.slot;
        drop(guard);
        assert!(!SLOTS[slot].holds(map.as_ptr().addr()));
    }

    /// A fault in an unguarded map ends the process as usual. The test runs itself as a child
    /// process.
    #[test]
    fn other_faults_keep_their_handler() {
        const INSIDE: &str = "MESHGRAD_TEST_FAULT";
        if env::var_os(INSIDE).is_some() {
            let (map, other) = (lost(), lost());
            let _guard = Guard::over(map.as_ptr().addr(), map.len()).unwrap();
            assert_eq!(first_byte(&map), 0);
            first_byte(&other);
            return;
        }
        let name = "source::sigbus::tests::other_faults_keep_their_handler";
        let ended = Command::new(env::current_exe().unwrap())
            .args([name, "--exact", "--test-threads=1"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
    }
}
