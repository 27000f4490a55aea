//! Bad input: a message that names it and an exit code, never a panic.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::models;
use crate::{Workplace, said, shown};

#[test]
fn refusals() {
    let place = Workplace::new();
    let model = models::mixture();
    models::folder(&place.path("model"), &model);
    models::checkpoint(&place.path("run"), 1, &model);
    models::checkpoint(&place.path("damaged"), 1, &model);
    fs::write(place.path("damaged/step-000001/manifest.json"), "{}").unwrap();
    fs::create_dir(place.path("nothing")).unwrap();
    fs::write(
        place.path("text.txt"),
        "once upon a time there was a file\n",
    )
    .unwrap();
    fs::write(place.path("empty.safetensors"), "").unwrap();
    let bytes = fs::read(place.path("model/model.safetensors")).unwrap();
    fs::write(place.path("truncated.safetensors"), &bytes[..1000]).unwrap();

    let said = shown([
        place.ckpt(&["inspect", "absent"]),
        place.ckpt(&["inspect", "nothing"]),
        place.ckpt(&["inspect", "text.txt"]),
        place.ckpt(&["inspect", "empty.safetensors"]),
        place.ckpt(&["inspect", "truncated.safetensors"]),
        place.ckpt(&["inspect", "damaged"]),
        place.ckpt(&["inspect", "damaged/step-000001", "--tensors", "lm_head*"]),
        place.ckpt(&["inspect", "model", "--tensors", "*.qproj.*"]),
        place.ckpt(&["inspect", "model", "--tensors", "a[b"]),
        place.ckpt(&["inspect", "model", "--stats", "--budget", "1e9"]),
        place.ckpt(&["inspect", "model", "--stats", "--budget", "1KiB"]),
        place.ckpt(&["inspect"]),
        place.ckpt(&["diff", "model", "absent"]),
        place.ckpt(&["diff", "text.txt", "model"]),
        place.ckpt(&["diff", "model", "run", "--tensors", "*.qproj.*"]),
        place.ckpt(&["diff", "model"]),
        place.ckpt(&["verify", "absent"]),
        place.ckpt(&["verify", "nothing"]),
        place.ckpt(&["verify", "text.txt"]),
        place.ckpt(&["verify", "damaged"]),
        place.ckpt(&["verify", "damaged/step-000001"]),
        place.ckpt(&["gc", "absent"]),
        place.ckpt(&["gc", "text.txt"]),
        place.ckpt(&["gc", "nothing"]),
        place.ckpt(&["gc", "run/step-000001"]),
        place.ckpt(&["gc", "run", "--keep", "0"]),
    ]);
    insta::assert_snapshot!(said);
}

/// The superuser may read everything: for him the program runs as somebody else.
#[test]
fn what_may_not_be_read_is_named() {
    let place = Workplace::new();
    models::folder(&place.path("model"), &models::mixture());
    let secret = place.path("model/model.safetensors");
    let mode = |path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    mode(place.path(""), 0o755);
    mode(secret.clone(), 0o000);

    for (subcommand, code) in [("inspect", 1), ("verify", 2), ("diff", 2)] {
        let arguments = match subcommand {
            "diff" => vec!["diff", "model", "model"],
            other => vec![other, "model"],
        };
        let mut command = place.command(&arguments);
        if File::open(&secret).is_ok() {
            // The program's own folder may be closed to others.
            let program = place.path("meshgrad");
            fs::copy(env!("CARGO_BIN_EXE_meshgrad"), &program).unwrap();
            command = Command::new(program);
            command
                .arg("ckpt")
                .args(&arguments)
                .current_dir(place.path(""));
            command.uid(65534).gid(65534);
        }
        let said = said(&arguments, command);
        assert_eq!(said.code, code, "{}", said.shown());
        let message = "cannot open model/model.safetensors: Permission denied";
        assert!(said.stderr.contains(message), "{}", said.shown());
        assert_eq!(said.stdout, "");
    }
}
