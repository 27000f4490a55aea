//! Builds zip archives without compression, in the ways that the format allows.

/// How an archive is written.
#[derive(Clone, Copy, Default)]
pub(crate) struct Style {
    /// Sizes and offsets in zip64 fields, as for files above 4 GiB.
    pub(crate) wide: bool,
    /// Bytes of a comment at the end.
    pub(crate) comment: usize,
    pub(crate) flags: u16,
    pub(crate) method: u16,
}

/// An archive with these entries.
pub(crate) fn zip(entries: &[(&str, &[u8])], style: Style) -> Vec<u8> {
    let (mut all, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in entries {
        let header = all.len() as u64;
        let sizes = [content.len() as u64; 2];
        let narrow = |number: u64| if style.wide { u32::MAX } else { number as u32 };
        let extra = |numbers: &[u64]| -> Vec<u8> {
            if !style.wide {
                return Vec::new();
            }
            // A foreign field comes first.
            let mut extra = vec![0x42, 0x46, 2, 0, 9, 9, 1, 0, 8 * numbers.len() as u8, 0];
            extra.extend(numbers.iter().flat_map(|it| it.to_le_bytes()));
            extra
        };
        let common = |to: &mut Vec<u8>, extra: &[u8]| {
            to.extend([45, 0]);
            for number in [style.flags, style.method, 0, 0] {
                to.extend(number.to_le_bytes());
            }
            to.extend([0; 4]);
            to.extend(sizes.map(|it| narrow(it).to_le_bytes()).concat());
            to.extend((name.len() as u16).to_le_bytes());
            to.extend((extra.len() as u16).to_le_bytes());
        };
        let own = extra(&sizes);
        all.extend(b"PK\x03\x04");
        common(&mut all, &own);
        all.extend(name.as_bytes());
        all.extend(&own);
        all.extend(*content);

        let own = extra(&[sizes[0], sizes[1], header]);
        directory.extend(b"PK\x01\x02\x2d\x00");
        common(&mut directory, &own);
        directory.extend([0; 10]);
        directory.extend(narrow(header).to_le_bytes());
        directory.extend(name.as_bytes());
        directory.extend(&own);
    }
    let (start, bytes) = (all.len() as u64, directory.len() as u64);
    let count = entries.len() as u64;
    all.extend(&directory);
    if style.wide {
        let end = all.len() as u64;
        all.extend(b"PK\x06\x06");
        all.extend(44u64.to_le_bytes());
        all.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        all.extend([count, count, bytes, start].map(u64::to_le_bytes).concat());
        all.extend(b"PK\x06\x07\0\0\0\0");
        all.extend(end.to_le_bytes());
        all.extend(1u32.to_le_bytes());
    }
    let narrow = |number: u64, full: u64| if style.wide { full } else { number };
    all.extend(b"PK\x05\x06\0\0\0\0");
    for _ in 0..2 {
        all.extend((narrow(count, 0xffff) as u16).to_le_bytes());
    }
    all.extend((narrow(bytes, 0xffff_ffff) as u32).to_le_bytes());
    all.extend((narrow(start, 0xffff_ffff) as u32).to_le_bytes());
    all.extend((style.comment as u16).to_le_bytes());
    all.extend(vec![b'c'; style.comment]);
    all
}
