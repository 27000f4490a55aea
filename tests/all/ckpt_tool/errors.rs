//! Invalid input: an error message and an exit code, never a panic.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::ckpt_tool::models;
use crate::ckpt_tool::shown;
use crate::test_dir::{MESHGRAD, Output, TestDir};

#[test]
fn errors() {
    let dir = TestDir::new();
    let model = models::mixture();
    models::folder(&dir.path("model"), &model);
    models::checkpoint(&dir.path("run"), 1, &model);
    models::checkpoint(&dir.path("damaged"), 1, &model);
    fs::write(dir.path("damaged/step-000001/manifest.json"), "{}").unwrap();
    fs::create_dir(dir.path("empty")).unwrap();
    fs::write(dir.path("text.txt"), "once upon a time there was a file\n").unwrap();
    fs::write(dir.path("empty.safetensors"), "").unwrap();
    let bytes = fs::read(dir.path("model/model.safetensors")).unwrap();
    fs::write(dir.path("truncated.safetensors"), &bytes[..1000]).unwrap();

    let output = shown([
        dir.ckpt(&["inspect", "absent"]),
        dir.ckpt(&["inspect", "empty"]),
        dir.ckpt(&["inspect", "text.txt"]),
        dir.ckpt(&["inspect", "empty.safetensors"]),
        dir.ckpt(&["inspect", "truncated.safetensors"]),
        dir.ckpt(&["inspect", "damaged"]),
        dir.ckpt(&["inspect", "damaged/step-000001", "--tensors", "lm_head*"]),
        dir.ckpt(&["inspect", "model", "--tensors", "*.qproj.*"]),
        dir.ckpt(&["inspect", "model", "--tensors", "a[b"]),
        dir.ckpt(&["inspect", "model", "--stats", "--budget", "1e9"]),
        dir.ckpt(&["inspect", "model", "--stats", "--budget", "1KiB"]),
        dir.ckpt(&["inspect"]),
        dir.ckpt(&["diff", "model", "absent"]),
        dir.ckpt(&["diff", "text.txt", "model"]),
        dir.ckpt(&["diff", "model", "run", "--tensors", "*.qproj.*"]),
        dir.ckpt(&["diff", "model"]),
        dir.ckpt(&["verify", "absent"]),
        dir.ckpt(&["verify", "empty"]),
        dir.ckpt(&["verify", "text.txt"]),
        dir.ckpt(&["verify", "damaged"]),
        dir.ckpt(&["verify", "damaged/step-000001"]),
        dir.ckpt(&["gc", "absent"]),
        dir.ckpt(&["gc", "text.txt"]),
        dir.ckpt(&["gc", "empty"]),
        dir.ckpt(&["gc", "run/step-000001"]),
        dir.ckpt(&["gc", "run", "--keep", "0"]),
    ]);
    insta::assert_snapshot!(output);
}

/// Unreadable files are named. Root may read every file, so under root the program runs as another
/// user.
#[test]
fn unreadable_files_are_named() {
    let dir = TestDir::new();
    models::folder(&dir.path("model"), &models::mixture());
    let secret = dir.path("model/model.safetensors");
    let mode = |path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    mode(dir.path(""), 0o755);
    mode(secret.clone(), 0o000);

    for (subcommand, code) in [("inspect", 1), ("verify", 2), ("diff", 2)] {
        let arguments = match subcommand {
            "diff" => vec!["ckpt", "diff", "model", "model"],
            other => vec!["ckpt", other, "model"],
        };
        let mut command = dir.command(&arguments);
        if File::open(&secret).is_ok() {
            // Other users may not be able to access the program's folder.
            let program = dir.path("meshgrad");
            fs::copy(MESHGRAD, &program).unwrap();
            command = Command::new(program);
            command.args(&arguments).current_dir(dir.path(""));
            command.uid(65534).gid(65534);
        }
        let output = Output::of(&mut command);
        assert_eq!(output.code, code, "{}", output.shown());
        let message = "cannot open model/model.safetensors: Permission denied";
        assert!(output.stderr.contains(message), "{}", output.shown());
        assert_eq!(output.stdout, "");
    }
}
