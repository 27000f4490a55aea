//! CRC-32 as zip archives use it: polynomial 0x04c11db7, reflected (PKWARE APPNOTE 4.4.7).
//! Eight bytes per step, by eight tables ("slicing by 8", Kounavis and Berry 2005).

const POLYNOMIAL: u32 = 0xedb8_8320;

/// `TABLES[n][byte]`: the CRC of `byte` followed by `n` zero bytes.
static TABLES: [[u32; 256]; 8] = tables();

/// The CRC-32 of bytes that are given in parts.
pub(super) struct Crc32(u32);

impl Crc32 {
    pub(super) fn new() -> Crc32 {
        Crc32(!0)
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            let mixed = u64::from_le_bytes(*word) ^ u64::from(self.0);
            let of_each = mixed.to_le_bytes().into_iter().zip(TABLES.iter().rev());
            self.0 = of_each.fold(0, |crc, (byte, table)| crc ^ table[usize::from(byte)]);
        }
        for byte in rest {
            self.0 = self.0 >> 8 ^ TABLES[0][usize::from(self.0 as u8 ^ byte)];
        }
    }

    pub(super) fn finish(&self) -> u32 {
        !self.0
    }
}

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut number = 1;
    while number < 8 {
        let mut byte = 0;
        while byte < 256 {
            let crc = tables[number - 1][byte];
            tables[number][byte] = crc >> 8 ^ tables[0][(crc & 0xff) as usize];
            byte += 1;
        }
        number += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parts: &[&[u8]]) -> u32 {
        let mut crc = Crc32::new();
        parts.iter().for_each(|part| crc.update(part));
        crc.finish()
    }

    #[test]
    fn the_check_value_is_that_of_the_standard() {
        assert_eq!(of(&[b"123456789"]), 0xcbf4_3926);
        assert_eq!(of(&[]), 0);
    }

    /// Bytes in parts of any length give the same CRC as one byte at a time.
    #[test]
    fn parts_equal_the_whole() {
        let bytes: Vec<u8> = (0..100u32).map(|at| (at * at * 7 + at) as u8).collect();
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        for end in 0..=bytes.len() {
            let expected = of(&single[..end]);
            for split in 0..=end {
                assert_eq!(of(&[&bytes[..split], &bytes[split..end]]), expected);
            }
        }
    }
}
