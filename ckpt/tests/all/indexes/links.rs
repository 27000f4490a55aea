//! Links in folders: rejected, except from a snapshot of the Hugging Face cache to the blobs of its
//! repository.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use meshgrad_ckpt::{Error, Folder};

use crate::indexes::INDEX;
use crate::on_disk::write_shard;

const SINGLE: &str = "model.safetensors";

/// A cache with one blob, `feed`, and the path of its empty snapshot.
fn cache(root: &Path) -> PathBuf {
    let repository = root.join("models--org--name");
    let snapshot = repository.join("snapshots/0123abcd");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repository.join("blobs/folder")).unwrap();
    write_shard(&repository.join("blobs/feed"), &["w"]);
    write_shard(&repository.join("secret"), &["secret"]);
    write_shard(&snapshot.join("plain"), &["plain"]);
    snapshot
}

/// The verdict on a snapshot whose model is a link with this text.
fn through(snapshot: &Path, text: impl AsRef<Path>) -> Result<Folder, Error> {
    let _ = fs::remove_file(snapshot.join(SINGLE));
    symlink(text, snapshot.join(SINGLE)).unwrap();
    Folder::open(snapshot)
}

#[test]
fn snapshots_may_link_to_the_blobs_of_their_repository() {
    let root = tempfile::tempdir().unwrap();
    let snapshot = cache(root.path());
    let blobs = fs::canonicalize(snapshot.join("../../blobs")).unwrap();

    for text in ["../../blobs/feed".into(), blobs.join("feed")] {
        let folder = through(&snapshot, text).unwrap();
        assert_eq!(folder.read("w").unwrap(), b"wwwwwwww");
        assert_eq!(folder.files()[0].path(), snapshot.join(SINGLE));
    }

    // The path to the snapshot may contain links.
    let link = root.path().join("link");
    symlink(&snapshot, &link).unwrap();
    assert!(Folder::open(&link).is_ok());
}

#[test]
fn snapshots_may_not_link_elsewhere() {
    let root = tempfile::tempdir().unwrap();
    let snapshot = cache(root.path());
    let secret = root.path().join("models--org--name/secret");
    symlink("../secret", snapshot.join("../../blobs/link")).unwrap();

    let texts = [
        "../../blobs/../secret",
        "../../secret",
        "../../blobs/folder/../../secret",
        "../../blobs/..",
        "../../blobs",
        "../../../models--org--name/secret",
        "../../blobs/link",
        "plain",
        "./plain",
        "/proc/self/fd/0",
        secret.to_str().unwrap(),
    ];
    for text in texts {
        let error = through(&snapshot, text).unwrap_err();
        assert!(error.to_string().contains(" is a link to "), "{text}: {error}");
    }

    let error = through(&snapshot, "../../blobs/folder").unwrap_err();
    assert!(error.to_string().contains(" is not a regular file"), "{error}");
    let error = through(&snapshot, "../../blobs/none").unwrap_err();
    assert!(error.to_string().contains("contains neither model.safetensors nor"), "{error}");
}

/// Rejects links in a folder outside a cache, and in a cache whose blobs folder is itself a link.
#[test]
fn other_folders_may_not_contain_links() {
    let root = tempfile::tempdir().unwrap();
    let snapshot = cache(root.path());
    let blobs = root.path().join("models--org--name/blobs");

    let other = root.path().join("models--org--name/other/0123abcd");
    fs::create_dir_all(&other).unwrap();
    let error = through(&other, "../../blobs/feed").unwrap_err();
    assert!(error.to_string().contains(" is a link to "), "{error}");

    fs::rename(&blobs, root.path().join("elsewhere")).unwrap();
    symlink(root.path().join("elsewhere"), &blobs).unwrap();
    let error = through(&snapshot, "../../blobs/feed").unwrap_err();
    assert!(error.to_string().contains(" is a link to "), "{error}");
}

/// While a name alternates between a file and a link, the file that is opened is always the file
/// that was checked.
#[test]
fn a_link_swapped_in_is_never_followed() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("model");
    fs::create_dir(&folder).unwrap();
    write_shard(&root.path().join("secret"), &["secret"]);
    write_shard(&folder.join("x"), &["w"]);
    fs::write(folder.join(INDEX), r#"{"weight_map":{"w":"x"}}"#).unwrap();

    let stop = AtomicBool::new(false);
    let swap = || {
        for turn in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let new = folder.join("new");
            match turn % 2 {
                0 => symlink("../secret", &new).unwrap(),
                _ => write_shard(&new, &["w"]),
            }
            fs::rename(&new, folder.join("x")).unwrap();
        }
    };

    let followed = std::thread::scope(|scope| {
        scope.spawn(swap);

        let (mut opened, mut rejected) = (0, 0);
        let mut followed = None;
        while followed.is_none() && (opened < 20 || rejected < 20) {
            match Folder::open(&folder).map_err(|error| error.to_string()) {
                Ok(_) => opened += 1,
                Err(error) if error.contains("lacks tensors") => followed = Some(error),
                Err(_) => rejected += 1,
            }
        }
        stop.store(true, Ordering::Relaxed);
        followed
    });
    assert_eq!(followed, None, "the secret was opened");
}
