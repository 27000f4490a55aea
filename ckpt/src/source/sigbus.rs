//! The guard over memory maps: a page that a file lost becomes a page of zeros and a mark, instead
//! of the end of the process.
//!
//! An access to a mapped page behind the end of its file raises SIGBUS. The handler here looks the
//! address up in a table of guarded maps. If it is in one, it puts an anonymous page there, marks
//! the map and returns: the access is repeated and finds zeros. Whoever copied asks for the mark
//! before using them. Any other SIGBUS goes to the handler that was installed before, or has its
//! default effect. The handler uses atomics and system calls only, so that it may interrupt
//! anything.

use std::io;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The most maps at once. A handler cannot allocate, so the table has a fixed size.
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

/// What the handler has to know besides: bytes of a page, and what was there before.
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
        // The same beginning before and after: the end belongs to it.
        inside && self.start.load(Ordering::Acquire) == start
    }
}

/// Guards a map until it is dropped.
#[derive(Debug)]
pub(super) struct Guard {
    slot: usize,
}

impl Guard {
    /// Guards so many bytes from an address on.
    ///
    /// # Errors
    /// Why not, for the user.
    pub(super) fn over(start: usize, len: usize) -> Result<Guard, String> {
        static GUARDED: OnceLock<Result<(), String>> = OnceLock::new();
        let failed = |error| format!("maps cannot be guarded: {error}");
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

    /// Whether a page of the map was lost. It stays so.
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

/// Puts the handler before the one that is installed. Done once, never undone.
fn install() -> io::Result<()> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only, into memory of the right type.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: asks for a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    INSTALLED.get_or_init(|| Installed {
        page: page.max(1) as usize,
        // SAFETY: filled by the call above; all zeros would be a valid value too.
        before: unsafe { before.assume_init() },
    });

    // SAFETY: zeros are a valid value of this plain struct.
    let mut ours: libc::sigaction = unsafe { mem::zeroed() };
    ours.sa_sigaction = on_sigbus as *const () as usize;
    // On the alternative stack, where a thread has one, as the handler before may need it.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `on_sigbus` has the signature that SA_SIGINFO demands and does nothing that is not
    // allowed in a handler.
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
    // SAFETY: the system gives a valid siginfo to a handler with SA_SIGINFO.
    let (address, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    // Sent by a program, the signal has no address.
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

/// Puts a page of zeros in the place of another.
fn put_zeros(page: usize, len: usize) -> bool {
    // SAFETY: the thread's own error number; the interrupted code may be about to read it.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the page is inside a map of this process that is guarded, hence alive and used by
    // nothing but copies from it; replacing its content is what the guard promises.
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

/// Does what would have been done without us.
fn pass_on(
    before: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    type Plain = extern "C" fn(libc::c_int);
    type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

    match before.sa_sigaction {
        // To ignore a fault would repeat it for ever: the system does not either.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: both are allowed in a handler; the signal is delivered when this one ends.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was installed with SA_SIGINFO, hence has this signature.
            let handler = unsafe { mem::transmute::<usize, WithInfo>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: it was installed without SA_SIGINFO, hence has this signature.
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
        // SAFETY: inside of the map.
        unsafe { map.as_ptr().read_volatile() }
    }

    #[test]
    fn a_lost_page_is_zeros_and_a_mark() {
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

    /// A fault in a map that nobody guards ends the process as ever. Seen from outside: the test
    /// runs itself.
    #[test]
    fn other_faults_are_what_they_were() {
        const INSIDE: &str = "MESHGRAD_TEST_FAULT";
        if env::var_os(INSIDE).is_some() {
            let (map, other) = (lost(), lost());
            let _guard = Guard::over(map.as_ptr().addr(), map.len()).unwrap();
            assert_eq!(first_byte(&map), 0);
            first_byte(&other);
            return;
        }
        let name = "source::sigbus::tests::other_faults_are_what_they_were";
        let ended = Command::new(env::current_exe().unwrap())
            .args([name, "--exact", "--test-threads=1"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
    }
}
