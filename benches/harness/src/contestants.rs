//! Contestants that train in turns: programs in Python, and ranks that are threads of this process.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::peer::{Peer, numbers};
use crate::report::Options;
use crate::spread::{Spread, interleave};

/// How often contestants take turns.
#[derive(clap::Args)]
pub struct TurnOptions {
    /// Turns of each contestant, after one that warms up.
    #[arg(long, default_value_t = 8)]
    pub rounds: usize,
    /// Steps per turn.
    #[arg(long, default_value_t = 3)]
    pub steps: usize,
}

impl TurnOptions {
    /// One step of each contestant if `--smoke` is given.
    pub fn or_smoke(self, options: &Options) -> TurnOptions {
        match options.smoke {
            true => TurnOptions { rounds: 0, steps: 1 },
            false => self,
        }
    }

    /// Every contestant trains with each of the batch sizes in turn. Steps of the first round are not
    /// measured, unless it is the only one.
    ///
    /// # Errors
    /// The first of a contestant.
    pub fn run(
        &self,
        contestants: &mut [&mut Contestant],
        sequences: &[usize],
    ) -> anyhow::Result<()> {
        let last = (self.rounds + 1) * sequences.len() - 1;
        interleave(contestants.len(), last, |turn, at| {
            let is_measured = self.rounds == 0 || turn >= sequences.len();
            let turn = Turn { sequences: sequences[turn % sequences.len()], steps: self.steps };
            contestants[at].take(turn, is_measured)
        })
    }
}

/// What a contestant does before the next one runs.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Turn {
    /// Sequences per step.
    pub sequences: usize,
    /// Steps.
    pub steps: usize,
}

/// A step.
#[derive(Clone, Copy)]
pub struct Step {
    /// The mean loss.
    pub loss: f64,
    /// Seconds.
    pub seconds: f64,
    /// Of them, those in which the rank waited for others.
    pub waited: f64,
}

/// One way to train, and its steps.
pub struct Contestant {
    /// What the report calls it.
    pub name: String,
    runner: Runner,
    /// The losses of all steps.
    losses: Vec<f64>,
    /// The measured steps with their sequences.
    steps: Vec<(usize, Step)>,
}

enum Runner {
    Peer(Peer),
    Ranks(Ranks),
}

impl Contestant {
    /// A program that answers a [`Turn`] with `loss` and `seconds` of its steps.
    pub fn peer(name: impl Into<String>, peer: Peer) -> Contestant {
        Contestant::new(name, Runner::Peer(peer))
    }

    /// Threads of this process.
    pub fn ranks(name: impl Into<String>, ranks: Ranks) -> Contestant {
        Contestant::new(name, Runner::Ranks(ranks))
    }

    fn new(name: impl Into<String>, runner: Runner) -> Contestant {
        Contestant { name: name.into(), runner, losses: Vec::new(), steps: Vec::new() }
    }

    fn take(&mut self, turn: Turn, is_measured: bool) -> anyhow::Result<()> {
        let steps = match &mut self.runner {
            Runner::Ranks(ranks) => ranks.take(turn)?,
            Runner::Peer(peer) => steps_of(&peer.ask(&serde_json::to_value(turn)?)?),
        };
        self.losses.extend(steps.iter().map(|step| step.loss));
        if is_measured {
            let steps = steps.into_iter().map(|step| (turn.sequences, step));
            self.steps.extend(steps);
        }
        Ok(())
    }

    /// The loss of the last step; NaN before the first.
    pub fn last_loss(&self) -> f64 {
        self.losses.last().copied().unwrap_or(f64::NAN)
    }

    /// Milliseconds of the measured steps of `sequences` sequences.
    ///
    /// # Panics
    /// If there are no such steps.
    pub fn milliseconds(&self, sequences: usize, of: impl Fn(&Step) -> f64) -> Spread {
        let steps = self.steps.iter();
        let steps = steps.filter(|(size, _)| *size == sequences);
        Spread::of(&steps.map(|(_, step)| 1e3 * of(step)).collect::<Vec<f64>>())
    }

    /// The versions that a program found; null for threads.
    pub fn versions(&self) -> Value {
        match &self.runner {
            Runner::Peer(peer) => peer.hello["versions"].clone(),
            Runner::Ranks(_) => Value::Null,
        }
    }

    /// Name, losses, and the spreads of the steps of each batch size.
    pub fn json(&self, sequences: &[usize]) -> Value {
        let spreads = sequences.iter().map(|&size| {
            json!({
                "sequences": size,
                "step_ms": self.milliseconds(size, |step| step.seconds).json(),
            })
        });
        json!({"name": self.name, "steps": spreads.collect::<Vec<_>>(), "loss": self.losses})
    }
}

/// The largest difference of a loss between two contestants, over their first steps. Later losses may
/// differ more, because rounding errors grow.
pub fn loss_difference<'a>(contestants: impl Iterator<Item = &'a Contestant>) -> f64 {
    const FIRST: usize = 4;

    let losses: Vec<&[f64]> = contestants.map(|one| &one.losses[..]).collect();
    let of_step = |at: usize| {
        let losses = losses.iter().map(|losses| losses.get(at));
        let losses = losses.map(|loss| loss.copied().unwrap_or(f64::NAN));
        let spread = losses.collect::<Vec<f64>>();
        Spread::try_of(&spread).map_or(0.0, |spread| spread.max - spread.min)
    };
    let steps = losses.iter().map(|losses| losses.len()).max().unwrap_or(0);
    (0..steps.min(FIRST)).map(of_step).fold(0.0, f64::max)
}

fn steps_of(answer: &Value) -> Vec<Step> {
    let (losses, seconds) = (numbers(&answer["loss"]), numbers(&answer["seconds"]));
    let pairs = losses.into_iter().zip(seconds);
    let step = |(loss, seconds)| Step { loss, seconds, waited: 0.0 };
    pairs.map(step).collect()
}

/// The other processes of a contestant whose ranks are processes, as the first one has them.
pub struct OtherRanks(Option<Vec<Child>>);

impl OtherRanks {
    /// Starts `commands`, if this process is the first rank.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start(rank: usize, commands: Vec<Command>) -> anyhow::Result<OtherRanks> {
        let mut started = Vec::new();
        for mut command in commands.into_iter().filter(|_| rank == 0) {
            started.push(command.stdin(Stdio::piped()).spawn()?);
        }
        Ok(OtherRanks((rank == 0).then_some(started)))
    }

    /// Calls `take` for each turn, one per line, like the programs of benches/torch. The first rank
    /// passes on what it is asked, and answers.
    ///
    /// # Errors
    /// The first of `take`; when another rank has ended.
    pub fn serve(
        mut self,
        mut take: impl FnMut(Turn) -> anyhow::Result<Vec<Step>>,
    ) -> anyhow::Result<()> {
        if self.0.is_some() {
            println!("{}", json!({"versions": null}));
        }
        for line in std::io::stdin().lines() {
            let line = line?;
            for other in self.0.iter_mut().flatten() {
                writeln!(other.stdin.as_mut().context("a rank has ended")?, "{line}")?;
            }
            let steps = take(serde_json::from_str(&line)?)?;
            if self.0.is_some() {
                let loss: Vec<f64> = steps.iter().map(|step| step.loss).collect();
                let seconds: Vec<f64> = steps.iter().map(|step| step.seconds).collect();
                println!("{}", json!({"loss": loss, "seconds": seconds}));
            }
        }
        for mut other in self.0.into_iter().flatten() {
            drop(other.stdin.take());
            other.wait()?;
        }
        Ok(())
    }
}

/// Threads that train as the ranks of one contestant, and wait for turns.
pub struct Ranks {
    turns: Vec<Sender<Turn>>,
    answers: Receiver<Vec<Step>>,
    launcher: Option<JoinHandle<anyhow::Result<()>>>,
}

/// Where a rank gets its turns.
pub struct Inbox {
    turns: Mutex<Receiver<Turn>>,
    /// Of the first rank, whose steps are those of the contestant.
    answer: Option<Mutex<Sender<Vec<Step>>>>,
}

impl Ranks {
    /// Calls `launch`, which starts the ranks and returns when all have ended, with one inbox each.
    pub fn start(
        ranks: usize,
        launch: impl FnOnce(&[Inbox]) -> anyhow::Result<()> + Send + 'static,
    ) -> Ranks {
        let (answer, answers) = channel();
        let mut answer = Some(Mutex::new(answer));
        let (turns, inboxes): (Vec<_>, Vec<_>) = (0..ranks)
            .map(|_| {
                let (turns, inbox) = channel();
                let inbox = Inbox { turns: Mutex::new(inbox), answer: answer.take() };
                (turns, inbox)
            })
            .unzip();
        Ranks { turns, answers, launcher: Some(std::thread::spawn(move || launch(&inboxes))) }
    }

    fn take(&mut self, turn: Turn) -> anyhow::Result<Vec<Step>> {
        for rank in &self.turns {
            // A rank that has failed takes no turns; its error is that of the launcher.
            let _ = rank.send(turn);
        }
        if let Ok(steps) = self.answers.recv() {
            return Ok(steps);
        }
        let ended = self.launcher.take().map(JoinHandle::join);
        match ended.context("the ranks have ended")? {
            Ok(Ok(())) => anyhow::bail!("the ranks ended before their turn"),
            Ok(Err(error)) => Err(error),
            Err(_) => anyhow::bail!("a rank panicked"),
        }
    }
}

impl Inbox {
    /// Calls `take` for each turn, until the contestant is dropped.
    ///
    /// # Errors
    /// The first of `take`.
    pub fn serve(
        &self,
        mut take: impl FnMut(Turn) -> anyhow::Result<Vec<Step>>,
    ) -> anyhow::Result<()> {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        for turn in &*turns {
            let steps = take(turn)?;
            if let Some(answer) = &self.answer {
                let answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
                answer.send(steps)?;
            }
        }
        Ok(())
    }
}
