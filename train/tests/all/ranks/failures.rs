//! Stops and failures of one rank: all ranks end together, and nothing saved is lost.

use std::error::Error as _;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use meshgrad_comm::{Error, FailedRank, Local, Rank};
use meshgrad_train::decoder;
use meshgrad_train::events::Event;
use meshgrad_train::session::Session;

use crate::ranks::world::{MESHES, ONE, Place, STEPS};

/// A request to stop on one rank stops all after the same step, with a checkpoint.
#[test]
fn all_ranks_stop_together() {
    let place = Place::moe();
    let on = &MESHES[1];
    static STOP: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    let stopped = place.train_with("run", (on, &[]), |rank, session| {
        let own = rank.rank();
        let session = session.stop_when(&STOP[own]);
        match own {
            2 => session.subscribe("stop", |event| {
                if let Event::StepStarted { step: 5 } = event {
                    STOP[2].store(true, Ordering::Relaxed);
                }
                Ok(())
            }),
            _ => session,
        }
    });
    let stopped = stopped.unwrap();
    assert!(stopped.iter().all(|it| *it == stopped[0]));
    assert!((5..=6).contains(&stopped[0].step), "{}", stopped[0].step);
    assert!(stopped[0].checkpoint.exists());
    assert_eq!(place.train("run", on, &[]).step, STEPS);
    place.train("whole", on, &[]);
    assert_eq!(place.differ("run", "whole"), 0.0);
}

/// The rank and the message of the first failure, and the errors of all ranks.
fn failure(error: Error) -> FailedRank {
    let cause = error.source().and_then(|source| source.downcast_ref::<Error>());
    let first = cause.and_then(Error::details).or_else(|| error.details::<FailedRank>());
    first.unwrap_or_else(|| panic!("{error}")).clone()
}

/// An error of one rank, in a step or between steps, ends all ranks, with its message. The last
/// checkpoint stays, and the run resumes from it.
#[test]
fn an_error_on_one_rank_ends_all() {
    let place = Place::moe();
    let on = &MESHES[1];
    for (number, victim) in [(0, 2), (1, 1), (2, 0)] {
        let run = format!("run-{number}");
        let failed = place.train_with(&run, (on, &[]), |rank, session| {
            let is_victim = rank.rank() == victim;
            session.subscribe("fault", move |event| match (event, number) {
                (Event::ForwardBackwardFinished { step: 13, .. }, 0)
                | (Event::StepStarted { step: 13 }, 1)
                | (Event::CheckpointStarted { step: 20 }, 2)
                    if is_victim =>
                {
                    Err("the planted fault".into())
                }
                _ => Ok(()),
            })
        });
        let FailedRank { rank, reason } = failure(failed.unwrap_err());
        assert_eq!(rank, victim, "{reason}");
        assert!(reason.contains("the planted fault"), "{reason}");

        assert!(place.path(&run).join("step-000010").exists());
        place.train(&run, on, &[]);
        place.train("whole", on, &["train.steps=20"]);
        assert_eq!(place.differ(&run, "whole"), 0.0);
        fs::remove_dir_all(place.path("whole")).unwrap();
    }
}

/// A loss that is not finite ends all ranks with the same error.
#[test]
fn all_ranks_find_that_a_step_diverged() {
    let place = Place::moe();
    let sets = ["optimizer.learning_rate=1e30", "schedule.warmup_steps=0"];
    let failed = place.train_with("run", (&MESHES[1], &sets), |_, session| session);
    let error = failed.unwrap_err().to_string();
    assert!(error.contains("diverged"), "{error}");
}

/// A folder that rank 0 cannot open is its error, which all others have too.
#[test]
fn a_run_folder_that_cannot_be_used_is_an_error_of_all() {
    let place = Place::moe();
    fs::write(place.path("run"), "not a folder").unwrap();
    let failed = place.train_with("run", (&MESHES[0], &[]), |_, session| session);
    let FailedRank { rank, reason } = failure(failed.unwrap_err());
    assert_eq!(rank, 0, "{reason}");
    assert!(reason.contains("cannot write to the run folder"), "{reason}");
}

/// Averages of the weights are evaluated with homes of any kind, and the values are those of one rank.
#[test]
fn averages_are_evaluated_on_ranks() {
    let place = Place::dense();
    let sets = ["optimizer.ema_decay=0.9", "log.val_every=2", "sample.every=3", "train.steps=6"];
    place.train_alone("alone", &sets);
    for (number, on) in MESHES[..6].iter().enumerate() {
        let run = format!("{number}");
        place.train(&run, on, &sets);
        assert!(place.differ("alone", &run) < 1e-3, "{:?}", on.sets);
    }
}

/// A validation or a sample that fails ends the run, but the state of its step is saved first.
#[test]
fn a_failed_evaluation_costs_no_step() {
    let place = Place::moe();
    let sets = ["checkpoint.every=0", "log.val_every=3", "sample.every=5", "train.steps=6"];
    for (number, on) in [&ONE, &MESHES[1]].into_iter().enumerate() {
        for (fails_at, name) in [(3, "validation"), (5, "sample"), (6, "last")] {
            let run = format!("{name}-{number}");
            let failed = place.train_with(&run, (on, &sets), |_, session| {
                session.subscribe("fault", move |event| match event {
                    Event::EvaluationFinished { step, .. } | Event::Sampled { step, .. }
                        if step == fails_at =>
                    {
                        Err("the planted fault".into())
                    }
                    _ => Ok(()),
                })
            });
            let FailedRank { reason, .. } = failure(failed.unwrap_err());
            assert!(reason.contains("the planted fault"), "{reason}");
            let saved = place.path(&run).join(format!("step-{fails_at:06}"));
            assert!(saved.exists(), "{name} on {} ranks", on.ranks);
            assert_eq!(place.records(&run).len() as u64, fails_at);
        }
    }
}

/// It also is if one rank alone fails: before a validation, in which the others then wait for it, or
/// after one that they have completed. Time is simulated, so nobody waits.
#[test]
fn an_evaluation_that_fails_on_one_rank_costs_no_step() {
    let place = Place::moe();
    let on = &MESHES[1];
    let config = place.config(on, &["log.val_every=3", "sample.every=5", "train.steps=6"]);
    for (name, fails_at) in [("before", 3), ("after", 3), ("sample", 5)] {
        let run = place.path(name);
        let failed = Local::new(on.ranks).threads(1).simulated(1).launch(|rank| {
            let session = Session::new(&config, rank.device()).on(rank).run_dir(&run);
            let is_last = rank.rank() + 1 == rank.world_size();
            decoder::train(session.subscribe("fault", move |event| {
                let at = match event {
                    Event::EvaluationStarted { step } if name == "before" => step,
                    Event::EvaluationFinished { step, .. } if name == "after" => step,
                    Event::Sampled { step, .. } if name == "sample" => step,
                    _ => return Ok(()),
                };
                match is_last && at == fails_at {
                    true => Err("the planted fault".into()),
                    false => Ok(()),
                }
            }))
        });
        let FailedRank { rank, reason } = failure(failed.unwrap_err());
        assert_eq!(rank, on.ranks - 1, "{name}");
        assert!(reason.contains("the planted fault"), "{name}: {reason}");
        assert!(run.join(format!("step-{fails_at:06}")).exists(), "{name}");
        assert_eq!(place.records(name).len() as u64, fails_at);
    }
}
