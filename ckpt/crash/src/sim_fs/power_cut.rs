//! The states that a power cut may leave.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::tree::{File, FileChange, Folder, Names, Node, ROOT, Tree};
use crate::splitmix::SplitMix64;

/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;

/// The unsynced changes that reached the disk. Indices follow the order of files and folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// None of them.
    None,
    /// All of them: what a killed process leaves.
    All,
    /// Only this one.
    Only(usize),
    /// All but this one.
    AllBut(usize),
    /// A random set, with writes torn at sectors and sizes sometimes ahead of the content.
    Random(u64),
}

impl fmt::Display for Survivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Survivors::None => f.write_str("nothing"),
            Survivors::All => f.write_str("everything"),
            Survivors::Only(at) => write!(f, "only change {at}"),
            Survivors::AllBut(at) => write!(f, "everything but change {at}"),
            Survivors::Random(seed) => write!(f, "a random set (of seed {seed})"),
        }
    }
}

impl Survivors {
    /// Chooses at most `budget` sets of `pending` changes: none, all, then `Only` and `AllBut` sets
    /// for up to half of the budget, then random sets.
    pub fn choose(pending: usize, budget: usize, seed: u64) -> Vec<Survivors> {
        if pending == 0 {
            return vec![Survivors::None];
        }
        // A few changes have few states.
        let budget = budget.min(2 + 16 * pending);
        let mut random = SplitMix64::new(seed);
        // With one change, `Only` equals `All`. With two, `AllBut` one equals `Only` the other.
        let mut regular = Vec::new();
        if pending > 1 {
            regular.extend((0..pending).map(Survivors::Only));
        }
        if pending > 2 {
            regular.extend((0..pending).map(Survivors::AllBut));
        }
        random.shuffle(&mut regular);
        regular.truncate(budget / 2);

        let mut chosen = vec![Survivors::None, Survivors::All];
        chosen.extend(regular);
        while chosen.len() < budget {
            chosen.push(Survivors::Random(random.next()));
        }
        chosen.truncate(budget);
        chosen
    }
}

impl Tree {
    pub(super) fn pending(&self) -> usize {
        let of_node = |node: &Node| match node {
            Node::File(file) => file.pending.len(),
            Node::Folder(folder) => folder.pending.len(),
        };
        self.nodes.values().map(of_node).sum()
    }

    /// The tree after a power cut. Everything in it is synced, and nodes without a name are
    /// removed.
    pub(super) fn after_crash(&self, survivors: Survivors) -> Tree {
        let mut chance = Chance::new(survivors);
        let mut nodes = BTreeMap::new();

        for (&ino, node) in &self.nodes {
            let left = match node {
                Node::File(file) => Node::File(chance.left_of_file(file)),
                Node::Folder(folder) => Node::Folder(chance.left_of_folder(folder)),
            };
            nodes.insert(ino, left);
        }

        let mut named = BTreeMap::new();
        keep_named(&mut nodes, ROOT, &mut named);
        Tree { nodes: named, uniques: self.uniques }
    }
}

/// Moves a node and everything below it to `to`.
fn keep_named(from: &mut BTreeMap<u64, Node>, ino: u64, to: &mut BTreeMap<u64, Node>) {
    let Some(node) = from.remove(&ino) else {
        return;
    };
    let below: Vec<u64> = match &node {
        Node::Folder(folder) => folder.cached.values().copied().collect(),
        Node::File(_) => Vec::new(),
    };
    to.insert(ino, node);
    for ino in below {
        keep_named(from, ino, to);
    }
}

/// Decides for each change in turn whether it survives.
struct Chance {
    survivors: Survivors,
    at: usize,
    random: SplitMix64,
    /// Survival probability in quarters.
    likely: u64,
}

impl Chance {
    fn new(survivors: Survivors) -> Chance {
        let seed = match survivors {
            Survivors::Random(seed) => seed,
            _ => 0,
        };
        let mut random = SplitMix64::new(seed);
        let likely = 1 + random.below(3);
        Chance { survivors, at: 0, random, likely }
    }

    fn survives(&mut self) -> bool {
        let at = self.at;
        self.at += 1;
        match self.survivors {
            Survivors::None => false,
            Survivors::All => true,
            Survivors::Only(only) => at == only,
            Survivors::AllBut(lost) => at != lost,
            Survivors::Random(_) => self.random.below(4) < self.likely,
        }
    }

    fn left_of_file(&mut self, file: &Arc<File>) -> Arc<File> {
        if file.pending.is_empty() {
            return Arc::clone(file);
        }
        let mut content = Vec::clone(&file.synced);
        for change in &file.pending {
            if self.survives() {
                self.write(change, &mut content);
            }
        }

        // The size is stored separately from the content and may reach the disk first.
        let is_random = matches!(self.survivors, Survivors::Random(_));
        if is_random && self.random.below(4) == 0 {
            content.resize(content.len().max(file.cached.len()), 0);
        }
        let content = Arc::new(content);
        Arc::new(File { synced: Arc::clone(&content), cached: content, pending: Vec::new() })
    }

    fn write(&mut self, change: &FileChange, content: &mut Vec<u8>) {
        let is_torn = matches!(self.survivors, Survivors::Random(_)) && self.random.below(2) == 0;
        let FileChange::Write { offset, bytes } = change else {
            return change.apply(content);
        };
        if !is_torn {
            return change.apply(content);
        }

        let mut start = 0;
        while start < bytes.len() {
            let left_in_sector = SECTOR - (offset + start) % SECTOR;
            let end = bytes.len().min(start + left_in_sector);
            if self.random.below(2) == 0 {
                let sector =
                    FileChange::Write { offset: offset + start, bytes: bytes[start..end].into() };
                sector.apply(content);
            }
            start = end;
        }
    }

    fn left_of_folder(&mut self, folder: &Arc<Folder>) -> Arc<Folder> {
        if folder.pending.is_empty() {
            return Arc::clone(folder);
        }
        let mut names: Names = folder.synced.clone();
        for change in &folder.pending {
            if self.survives() {
                change.apply(&mut names);
            }
        }
        Arc::new(Folder { synced: names.clone(), cached: names, pending: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use meshgrad_ckpt::vfs::{Vfs, VfsFile};

    use super::super::SimFs;
    use super::*;

    fn content(fs: &SimFs, path: &str) -> Option<Vec<u8>> {
        let file = fs.open(Path::new(path)).ok()?;
        let mut bytes = vec![0; file.size().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        Some(bytes)
    }

    fn create(fs: &SimFs, path: &str, bytes: &[u8]) -> Box<dyn VfsFile> {
        let file = fs.create_new(Path::new(path)).unwrap();
        file.write_at(bytes, 0).unwrap();
        file
    }

    /// Content needs the sync of its file, a name the sync of its folder.
    #[test]
    fn synced_changes_survive_and_others_may_not() {
        let fs = SimFs::new();
        let file = create(&fs, "/a", b"one");
        file.sync_data().unwrap();
        assert_eq!(content(&fs.after_crash(Survivors::None), "/a"), None);

        fs.sync_dir(Path::new("/")).unwrap();
        file.write_at(b"two", 0).unwrap();
        let left = |survivors| content(&fs.after_crash(survivors), "/a").unwrap();
        assert_eq!(left(Survivors::None), b"one");
        assert_eq!(left(Survivors::All), b"two");

        create(&fs, "/b", b"three");
        fs.sync_dir(Path::new("/")).unwrap();
        assert_eq!(content(&fs.after_crash(Survivors::None), "/b").unwrap(), b"");
    }

    /// Renames in one folder survive a power cut independently of each other.
    #[test]
    fn renames_are_atomic_and_unordered() {
        let fs = SimFs::new();
        for path in ["/a", "/b"] {
            create(&fs, path, b"").sync_data().unwrap();
        }
        fs.sync_dir(Path::new("/")).unwrap();
        fs.rename_no_replace(Path::new("/a"), Path::new("/x")).unwrap();
        fs.rename_no_replace(Path::new("/b"), Path::new("/y")).unwrap();

        let pending = fs.lock_shared().tree.pending();
        let states: BTreeSet<_> = Survivors::choose(pending, 64, 7)
            .into_iter()
            .map(|survivors| fs.after_crash(survivors).list(Path::new("/")).unwrap())
            .collect();
        let expected = [["a", "b"], ["x", "y"], ["a", "y"], ["b", "x"]];
        assert_eq!(states, expected.map(|names| names.map(Into::into).into()).into());
    }

    #[test]
    fn writes_are_torn_by_sectors_only() {
        let fs = SimFs::new();
        let file = create(&fs, "/a", &[1; 4 * SECTOR]);
        file.sync_data().unwrap();
        fs.sync_dir(Path::new("/")).unwrap();
        file.write_at(&[2; 3 * SECTOR], 100).unwrap();
        file.write_at(&[3], 4 * SECTOR as u64 - 1).unwrap();

        let mut seen = BTreeSet::new();
        for seed in 0..3000 {
            let bytes = content(&fs.after_crash(Survivors::Random(seed)), "/a").unwrap();
            assert!(bytes[..100].iter().all(|&byte| byte == 1));
            for sector in bytes[100..100 + 3 * SECTOR].chunk_by(|a, b| a == b) {
                let is_end = sector.len() % SECTOR == 100 || sector.len() % SECTOR == SECTOR - 100;
                assert!(is_end || sector.len().is_multiple_of(SECTOR), "{}", sector.len());
            }
            seen.insert(bytes);
        }
        assert_eq!(seen.len(), 32, "four sectors, and the last byte");
    }

    #[test]
    fn choices_differ_and_stay_within_the_budget() {
        for pending in 0..40 {
            for budget in [2, 10, 70] {
                let chosen = Survivors::choose(pending, budget, 1);
                assert!(chosen.len() <= budget);
                let different: BTreeSet<String> =
                    chosen.iter().map(|choice| choice.to_string()).collect();
                assert_eq!(different.len(), chosen.len());
            }
        }
    }
}
