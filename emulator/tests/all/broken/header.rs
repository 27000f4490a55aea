//! The header of a kernel file, as defined in `emulator/broken/README.md`.

/// A parsed header.
#[derive(Debug, Default)]
pub(crate) struct Header {
    /// Expected kinds; any one of them must be reported.
    kinds: Vec<String>,
    /// Expected lines of the file; empty if any line is accepted.
    lines: Vec<u32>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
    pub(crate) buffers: Vec<Described>,
    pub(crate) freed: Option<String>,
    pub(crate) kept: Option<String>,
    /// A buffer and its expected first words after the launch.
    pub(crate) result: Option<(String, Vec<u32>)>,
}

/// A buffer of the header, in the order of the kernel's parameters.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) bytes: usize,
    pub(crate) content: Content,
}

/// The content of a buffer before the launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    Uninitialized,
    Zero,
    /// Word i is i.
    Filled,
}

impl Header {
    pub(crate) fn parse(text: &str) -> Result<Header, String> {
        let mut header = Header::default();
        let comments = text.lines().map_while(|line| line.strip_prefix("//"));
        for (key, value) in comments.filter_map(|line| line.trim().split_once(": ")) {
            let understood = match key {
                "expect" => header.set_kinds(value),
                "line" => header.set_lines(value),
                "launch" => header.set_launch(value),
                "buffers" => header.set_buffers(value),
                "free-before-launch" => set(&mut header.freed, value),
                "keep" => set(&mut header.kept, value),
                "result" => header.set_result(value),
                // Prose that contains a colon.
                _ if key.contains(' ') => Some(()),
                _ => None,
            };
            understood.ok_or_else(|| format!("`{key}: {value}` is not a valid header line"))?;
        }
        match header.kinds.is_empty() || header.block == [0; 3] {
            true => Err("`expect` or `launch` is missing".to_owned()),
            false => Ok(header),
        }
    }

    /// Fails unless `report` has one of the expected kinds and lines.
    pub(crate) fn check_report(&self, report: &str) -> Result<(), String> {
        let kinds = self.kinds.join(" or ");
        if !self.kinds.iter().any(|kind| is_of_kind(report, kind)) {
            return Err(format!("expected {kinds}, but the report is:\n{report}"));
        }
        let line = line_of(report);
        let is_expected = |line| self.lines.contains(&line);
        match self.lines.is_empty() || line.is_some_and(is_expected) {
            true => Ok(()),
            false => {
                Err(format!("expected {kinds} at {:?}, but the report is:\n{report}", self.lines))
            }
        }
    }

    /// Fails unless `words` are the expected result.
    pub(crate) fn check_result(&self, words: &[u32]) -> Result<(), String> {
        let Some((name, expected)) = &self.result else {
            return Err("the header has no `result`".to_owned());
        };
        match expected == words {
            true => Ok(()),
            false => Err(format!("`{name}` begins with {words:?} instead of {expected:?}")),
        }
    }

    fn set_kinds(&mut self, value: &str) -> Option<()> {
        self.kinds = alternatives(value);
        Some(())
    }

    fn set_lines(&mut self, value: &str) -> Option<()> {
        let lines = alternatives(value);
        self.lines = lines.iter().map(|line| line.parse().ok()).collect::<Option<_>>()?;
        Some(())
    }

    fn set_launch(&mut self, value: &str) -> Option<()> {
        for part in value.split(", ") {
            match part.split_once(' ')? {
                ("grid", extent) => self.grid = three(extent)?,
                ("block", extent) => self.block = three(extent)?,
                ("shared", bytes) => self.dynamic_shared = bytes.parse().ok()?,
                _ => return None,
            }
        }
        Some(())
    }

    fn set_buffers(&mut self, value: &str) -> Option<()> {
        for part in value.split(", ") {
            let words: Vec<&str> = part.split(' ').collect();
            let [name, bytes, content] = words[..] else {
                return None;
            };
            self.buffers.push(Described {
                name: name.to_owned(),
                bytes: bytes.parse().ok()?,
                content: match content {
                    "uninitialized" => Content::Uninitialized,
                    "zero" => Content::Zero,
                    "filled" => Content::Filled,
                    _ => return None,
                },
            });
        }
        Some(())
    }

    fn set_result(&mut self, value: &str) -> Option<()> {
        let (name, words) = value.split_once(' ')?;
        let words = words.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
        self.result = Some((name.to_owned(), words));
        Some(())
    }
}

fn set(place: &mut Option<String>, value: &str) -> Option<()> {
    *place = Some(value.to_owned());
    Some(())
}

fn alternatives(value: &str) -> Vec<String> {
    value.split(" or ").map(str::to_owned).collect()
}

/// `4`, `4x2` or `4x2x3`.
fn three(extent: &str) -> Option<[u32; 3]> {
    let mut three = [1; 3];
    for (i, part) in extent.split('x').enumerate() {
        *three.get_mut(i)? = part.parse().ok()?;
    }
    Some(three)
}

/// Whether a report is of this kind.
fn is_of_kind(report: &str, kind: &str) -> bool {
    match kind {
        // A driver error with the compiler's log.
        "load-error" => report.contains("CUDA_ERROR_INVALID_PTX"),
        "wrong-device" => report.contains("CUDA_ERROR_NO_BINARY_FOR_GPU"),
        "unknown-version" => report.contains("CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        "leak" => report.contains("still held"),
        _ => report.contains(&format!("{kind} in kernel")),
    }
}

/// The first PTX line number in a report.
fn line_of(report: &str) -> Option<u32> {
    let (_, after) = report.split_once("ptx line ")?;
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    after[..digits].parse().ok()
}

#[test]
fn headers_are_parsed() {
    let text = "// A tile: too small.\n//\n// expect: shared-race or trap\n// line: 9 or 12\n\
        // launch: grid 4, block 32x2, shared 64\n// buffers: in 8 filled, out 16 zero\n\
        // free-before-launch: in\n// result: out 5 6\n\n.version 8.0\n";
    let header = Header::parse(text).unwrap();
    assert_eq!((header.grid, header.block), ([4, 1, 1], [32, 2, 1]));
    assert_eq!((header.dynamic_shared, header.buffers.len()), (64, 2));
    assert_eq!(header.freed.as_deref(), Some("in"));
    assert!(header.check_result(&[5, 6]).is_ok());
    assert!(header.check_result(&[5, 7]).is_err());

    let report =
        |kind, line| format!("{kind} in kernel `k`: words\n    at  ptx line {line}: bra L;");
    assert!(header.check_report(&report("trap", 12)).is_ok());
    assert!(header.check_report(&report("trap", 1)).is_err());
    assert!(header.check_report(&report("deadlock", 9)).is_err());

    let wrong = Header::parse("// expects: trap\n").unwrap_err();
    assert_eq!(wrong, "`expects: trap` is not a valid header line");
}
