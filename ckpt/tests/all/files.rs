//! Single files: irregular files, and reads beyond a tensor.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use meshgrad_ckpt::{Folder, Kind, TensorFile};

/// A file with two tensors of four bytes, 0 to 7.
fn two_tensors(path: &Path) {
    let header = concat!(
        r#"{"left":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"#,
        r#""right":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#
    );
    let len = (header.len() as u64).to_le_bytes();
    let file = [&len, header.as_bytes(), &[0, 1, 2, 3, 4, 5, 6, 7]].concat();
    fs::write(path, file).unwrap();
}

/// Opening a pipe without a writer would block forever.
#[test]
#[cfg(target_os = "linux")]
fn only_regular_files_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("model.safetensors");
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();

    let socket = folder.path().join("socket");
    let _listening = UnixListener::bind(&socket).unwrap();
    let link = folder.path().join("link");
    symlink(&pipe, &link).unwrap();

    let device = Path::new("/dev/null");
    for path in [folder.path(), &pipe, &socket, &link, device] {
        let error = TensorFile::open(path).unwrap_err();
        assert!(error.to_string().contains(" is not a regular file"), "{error}");
    }

    let error = Folder::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains(" is not a regular file"), "{error}");
}

#[test]
fn named_files_may_be_links() {
    let folder = tempfile::tempdir().unwrap();
    two_tensors(&folder.path().join("x.safetensors"));
    let link = folder.path().join("link");
    symlink("x.safetensors", &link).unwrap();
    assert_eq!(TensorFile::open(&link).unwrap().tensors().len(), 2);

    let error = TensorFile::open(folder.path().join("none")).unwrap_err();
    assert_eq!(error.kind(), Kind::Missing);
    assert!(error.to_string().starts_with("cannot open "), "{error}");
}

#[test]
fn reads_are_bounded_by_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    two_tensors(&path);
    let file = TensorFile::open(&path).unwrap();

    let mut two = [0; 2];
    file.read_range_into("right", 1, &mut two).unwrap();
    assert_eq!(two, [5, 6]);
    file.read_range_into("left", 4, &mut []).unwrap();

    for offset in [3, 4, 5, usize::MAX] {
        let error = file.read_range_into("left", offset, &mut two).unwrap_err();
        assert!(error.to_string().contains("were requested, but it has 4 bytes"), "{error}");
    }
    for size in [0, 3, 5] {
        let error = file.read_into("left", &mut vec![0; size]).unwrap_err();
        assert!(error.to_string().contains("were requested, but it has"), "{error}");
    }

    let error = file.read("rihgt").unwrap_err();
    assert!(error.to_string().ends_with("did you mean `right`?"), "{error}");

    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(fs::metadata(&path).unwrap().len() - 1)
        .unwrap();
    let error = file.read("right").unwrap_err();
    assert!(error.to_string().contains("is truncated; do not write to a checkpoint"), "{error}");
}
