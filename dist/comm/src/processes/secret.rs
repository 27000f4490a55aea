//! The secret that admits a process to a world.

use std::fmt;
use std::sync::Arc;

use hmac_sha256::HMAC;
use meshgrad_error::{Result, bail, ensure};

/// Bytes that a secret must have at least.
const MIN_BYTES: usize = 16;

/// A secret that all processes of a world share. Over TCP it is never sent: processes prove that
/// they know it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// A secret of at least 16 bytes. It should be random: a common word can be guessed from an
    /// intercepted handshake.
    ///
    /// # Errors
    /// When it is shorter.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Secret> {
        let bytes = bytes.as_ref();
        ensure!(
            bytes.len() >= MIN_BYTES,
            Invalid,
            "the secret has {} bytes, but needs at least {MIN_BYTES}; set MESHGRAD_SECRET to a \
             longer random string",
            bytes.len()
        );
        Ok(Secret(bytes.into()))
    }

    /// 32 random bytes of the operating system, in hexadecimal digits.
    ///
    /// # Errors
    /// When there are none.
    pub fn random() -> Result<Secret> {
        let digits = random::<32>()?.map(|byte| format!("{byte:02x}"));
        Ok(Secret(digits.concat().into_bytes().into()))
    }

    /// The bytes, to hand them to other processes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// HMAC-SHA256 of the parts. The first one is a label that no other use has.
    pub(super) fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = HMAC::new(&self.0);
        for part in parts {
            mac.update((part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.finalize()
    }
}

/// Does not show the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Random bytes of the operating system.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => bail!(System, "the operating system returned no random bytes: {error}"),
    }
}

/// Whether the bytes are equal. The time does not depend on where they differ.
pub(super) fn equal(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let difference = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(difference) == 0
}
