//! Damage of a checkpoint on disk: all of it is detected, and none of it causes a panic.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use meshgrad_ckpt::{
    Committed, Digest, Dtype, Error, FolderWriter, Incomplete, IntegrityError, Staging, discover,
    newest, step_name,
};

/// A sharded model with an index, a large file of several blocks and many small ones.
fn save(run: &Path, step: u64) -> Committed {
    let mut staging = Staging::new(run, &step_name(step)).unwrap().block_bytes(4096);
    let mut model = FolderWriter::new().max_shard_bytes(4096);
    for name in ["a", "b", "c"] {
        model.add(name, Dtype::U8, &[4000]).unwrap();
    }
    let tensor = |name: &str| vec![name.as_bytes()[0] + step as u8; 4000];
    model.write::<Error>(&mut staging, "", |info, out| out.append(&tensor(&info.name))).unwrap();

    let large: Vec<u8> = (0..50_000u64).map(|at| (at * step / 7) as u8).collect();
    staging.write("trainer/large.bin", &large).unwrap();
    for at in 0..60 {
        let path = format!("trainer/state-{at}.json");
        staging.write(&path, format!("{{\"step\":{step}}}").as_bytes()).unwrap();
    }
    staging.commit().unwrap()
}

/// Pseudorandom numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 += 1;
        Digest::of(&self.0.to_le_bytes()).0 % bound
    }
}

/// All problems, or the reason why it is not a checkpoint.
fn problems(folder: &Path) -> Vec<IntegrityError> {
    match Committed::open(folder).map(|found| found.find_damage(2, |_| {})) {
        Ok(problems) => problems.unwrap(),
        Err(error) => match error.details::<Incomplete>() {
            Some(Incomplete { problem, .. }) => vec![problem.clone()],
            None => panic!("{error}"),
        },
    }
}

/// Any flipped bit is detected in its file and block.
#[test]
fn bit_flips_are_located() {
    const SEED: u64 = 5 << 32;
    let run = tempfile::tempdir().unwrap();
    let committed = save(run.path(), 1);
    let mut files: Vec<_> = committed.files().map(|(path, _)| path.to_owned()).collect();
    files.push("manifest.json".to_owned());
    let mut random = Random(SEED);

    for flip in 0..2000 {
        let name = &files[random.below(files.len() as u64) as usize];
        let path = committed.path().join(name);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let at = random.below(file.metadata().unwrap().len());
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        let flipped = byte[0] ^ (1 << random.below(8));
        file.write_all_at(&[flipped], at).unwrap();

        let found = problems(committed.path());
        let context = format!("flip {flip} of seed {SEED}: byte {at} of {name}: {found:?}");
        assert_eq!(found.len(), 1, "{context}");
        match &found[0] {
            IntegrityError::WrongDigest { file, range, .. } => {
                assert!(file == name && range.contains(&at), "{context}");
            }
            IntegrityError::BrokenSeal { .. } | IntegrityError::BadManifest { .. } => {
                assert_eq!(name, "manifest.json", "{context}");
            }
            _ => panic!("{context}"),
        }
        file.write_all_at(&byte, at).unwrap();
    }
    committed.verify().unwrap();
}

/// Truncates the manifest and a shard to every length up to about 4096, and a larger file to a
/// thousand lengths. Also extends each of them by a byte.
#[test]
fn truncated_and_extended_files_are_detected() {
    const SEED: u64 = 6 << 32;
    let run = tempfile::tempdir().unwrap();
    let committed = save(run.path(), 1);
    let mut random = Random(SEED);

    let large: Vec<u64> = (0..1000).map(|_| random.below(50_000)).collect();
    for (name, lengths) in [
        ("manifest.json", (0..4096).collect()),
        ("model-00001-of-00003.safetensors", (0..4064).collect()),
        ("trainer/large.bin", large),
    ] {
        let path = committed.path().join(name);
        let whole = fs::read(&path).unwrap();
        let last = *lengths.iter().max().unwrap() as usize;
        assert!(whole.len() > last, "{name} has only {} bytes", whole.len());

        // In descending order, so that the file can be truncated instead of being written again.
        let mut lengths = lengths;
        lengths.sort_unstable();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for len in lengths.into_iter().rev() {
            file.set_len(len).unwrap();
            let error = newest(run.path()).unwrap();
            assert!(error.committed.is_none(), "{name} truncated to {len}");
            assert_eq!(error.skipped.len(), 1);
        }
        fs::write(&path, [whole.as_slice(), b"\n"].concat()).unwrap();
        assert!(discover(run.path()).unwrap().is_empty(), "{name} extended by one byte");
        fs::write(&path, whole).unwrap();
    }
    committed.verify().unwrap();
}

/// Detects files that have the right size but the content of another file.
#[test]
fn swapped_and_stale_files_are_detected() {
    let run = tempfile::tempdir().unwrap();
    let (old, new) = (save(run.path(), 1), save(run.path(), 2));
    let shard = |at| format!("model-0000{at}-of-00003.safetensors");
    let [one, two] = [1, 2].map(|at| new.path().join(shard(at)));

    fs::rename(&one, run.path().join("aside")).unwrap();
    fs::rename(&two, &one).unwrap();
    fs::rename(run.path().join("aside"), &two).unwrap();
    assert_eq!(newest(run.path()).unwrap().committed.unwrap(), new, "sizes are right");
    let found = new.find_damage(2, |_| {}).unwrap();
    for name in [shard(1), shard(2)] {
        let is_named = |problem: &IntegrityError| {
            problem.to_string().starts_with(&format!("{name} is damaged"))
        };
        assert!(found.iter().any(is_named), "{name}: {found:?}");
    }

    // Replaces each file by the file of the older step.
    let new = save(run.path(), 3);
    for (name, bytes) in old.files() {
        let path = new.path().join(name);
        let whole = fs::read(&path).unwrap();
        let stale = fs::read(old.path().join(name)).unwrap();
        assert_eq!(stale.len() as u64, bytes);
        if stale == whole {
            assert_eq!(name, "model.safetensors.index.json", "the same in both");
            continue;
        }
        fs::write(&path, stale).unwrap();
        assert!(!problems(new.path()).is_empty(), "{name}");
        fs::write(&path, whole).unwrap();
    }
    fs::copy(old.path().join("manifest.json"), new.path().join("manifest.json")).unwrap();
    assert!(!problems(new.path()).is_empty());
}

/// Links are reported as missing files, although they have the size of their targets.
#[test]
fn links_are_not_files_of_a_checkpoint() {
    let run = tempfile::tempdir().unwrap();
    let committed = save(run.path(), 1);
    for name in ["trainer/large.bin", "manifest.json"] {
        let (path, temporary) = (committed.path().join(name), run.path().join("aside"));
        fs::rename(&path, &temporary).unwrap();
        std::os::unix::fs::symlink(&temporary, &path).unwrap();
        let found = &problems(committed.path())[0];
        let is_absent =
            matches!(found, IntegrityError::MissingFiles { .. } | IntegrityError::NoManifest);
        assert!(is_absent, "{found}");
        fs::remove_file(&path).unwrap();
        fs::rename(&temporary, &path).unwrap();
    }
    committed.verify().unwrap();
}
