//! The other libraries, in a Python process.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use meshgrad_harness::{Peer, PeerOptions, numbers};
use serde_json::{Value, json};

use super::rounds::Contestant;
use super::saves;

const LOADS: [(&str, &str, &str, &[&str]); 9] = [
    ("safetensors safe_open + clone", "clone", RECYCLED, SAFETENSORS),
    ("safetensors safe_open(backend=pread)", "pread", RECYCLED, SAFETENSORS),
    (STACK, "stack", RECYCLED, SAFETENSORS),
    ("safetensors.numpy load_file", "numpy_load_file", RECYCLED, SAFETENSORS),
    ("torch.load", "torch_load", RECYCLED, &["model.pt"]),
    ("torch.load(mmap) + clone", "torch_load_mmap", RECYCLED, &["model.pt"]),
    ("torch DCP load", "dcp_load", "reused tensors", &["dcp"]),
    ("fastsafetensors, CPU", "fastsafetensors", RECYCLED, SAFETENSORS),
    (D9D, "d9d_stack", RECYCLED, SAFETENSORS),
];

const SAVES: [(&str, &str, &str); 3] = [
    ("safetensors save_file (no fsync)", "save_safetensors", "page cache"),
    ("torch.save (no fsync)", "save_torch", "page cache"),
    ("torch DCP save", "save_dcp", "disk"),
];

const HEADERS: [(&str, &str); 2] = [
    ("Python json.loads of the header", "parse_json"),
    ("safetensors safe_open + keys", "open_header"),
];

pub(super) const STACK: &str = "safetensors safe_open + torch.stack 10 to 1";
pub(super) const D9D: &str = "d9d stack 10 to 1";

const RECYCLED: &str = "recycled heap";
const SAFETENSORS: &[&str] = &["model.safetensors"];

/// The peer, if there is one.
pub(super) struct Peers(Option<(RefCell<Peer>, PathBuf)>);

impl Peers {
    pub(super) fn start(options: &PeerOptions) -> anyhow::Result<Peers> {
        let Some(python) = &options.torch else {
            return Ok(Peers(None));
        };
        let peer = start(python)?;
        Ok(Peers(Some((RefCell::new(peer), python.clone()))))
    }

    pub(super) fn process(&self) -> Option<u32> {
        let (peer, _) = self.0.as_ref()?;
        peer.borrow().hello["pid"].as_u64().map(|pid| pid as u32)
    }

    pub(super) fn versions(&self) -> Value {
        self.0.as_ref().map_or(Value::Null, |(peer, _)| {
            let hello = &peer.borrow().hello;
            json!({"python": hello["versions"], "packages": hello["packages"]})
        })
    }

    /// Makes the peer write the blocks in its own formats.
    pub(super) fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        if let Some((peer, _)) = &self.0 {
            ask(peer, "prepare", folder)?;
        }
        Ok(())
    }

    pub(super) fn loads<'a>(&'a self, folder: &'a Path) -> Vec<Contestant<'a>> {
        let turns = LOADS.map(|(name, what, destination, files)| {
            let files = files.iter().map(|file| folder.join(file)).collect();
            self.contestant(name, what, destination, folder, files)
        });
        turns.into_iter().flatten().collect()
    }

    pub(super) fn headers<'a>(&'a self, folder: &'a Path) -> Vec<Contestant<'a>> {
        let turns =
            HEADERS.map(|(name, what)| self.contestant(name, what, "-", folder, Vec::new()));
        turns.into_iter().flatten().collect()
    }

    /// The contestants that save into `folder`/saved.
    pub(super) fn saves<'a>(&'a self, folder: &'a Path) -> Vec<Contestant<'a>> {
        let turns = SAVES.map(|(name, what, destination)| {
            let mut turn = self.contestant(name, what, destination, folder, Vec::new())?;
            turn.before = Box::new(|| saves::empty(&folder.join("saved")));
            Some(turn)
        });
        turns.into_iter().flatten().collect()
    }

    fn contestant<'a>(
        &'a self,
        name: &str,
        what: &'static str,
        destination: &'static str,
        folder: &'a Path,
        files: Vec<PathBuf>,
    ) -> Option<Contestant<'a>> {
        let (peer, _) = self.0.as_ref()?;
        let turn = move || {
            let answer = ask(peer, what, folder)?;
            answer.as_f64().context("the peer's answer has no seconds")
        };
        Some(Contestant {
            name: name.to_owned(),
            destination,
            files,
            before: Box::new(|| Ok(())),
            sample: Box::new(turn),
        })
    }

    /// Bytes that other libraries read for rank 0's shard of a tensor, by library. Runs in a
    /// separate process, because torch must be initialized with a fake process group.
    pub(super) fn bytes_read(
        &self,
        folder: &Path,
        dim: usize,
        ranks: u64,
    ) -> anyhow::Result<Vec<(&'static str, f64)>> {
        let Some((_, python)) = &self.0 else {
            return Ok(Vec::new());
        };
        let (file, dcp) = (folder.join("model.safetensors"), folder.join("dcp"));
        let arguments = json!([file, "weight", dim, ranks, dcp]);
        let answer = start(python)?.ask(&json!({"do": "bytes_read", "arguments": arguments}))?;
        let names = ["torch DCP", "safetensors pread get_slice"];
        Ok(names.into_iter().zip(numbers(&result(answer)?)).collect())
    }
}

fn start(python: &Path) -> anyhow::Result<Peer> {
    let mut peer = Peer::start(python, "checkpoint.py", &[])?;
    // Samples start when the machine is quiet, so no pause is needed.
    peer.pause = Duration::ZERO;
    Ok(peer)
}

fn ask(peer: &RefCell<Peer>, what: &str, folder: &Path) -> anyhow::Result<Value> {
    result(peer.borrow_mut().ask(&json!({"do": what, "folder": folder}))?)
}

fn result(mut answer: Value) -> anyhow::Result<Value> {
    match answer["error"].as_str() {
        Some(error) => Err(anyhow!("{error}")),
        None => Ok(answer["ok"].take()),
    }
}
