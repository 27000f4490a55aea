//! Training rate as a function of rows per step, tokens per row, experts and layers, and of ranks
//! instead of threads.

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::{fs, thread};

use anyhow::{Context, anyhow};
use meshgrad::prelude::*;
use meshgrad_harness::{Options, Spread, finish};
use plotters::prelude::*;
use serde_json::{Value, json};

use super::shapes::{Section, Shapes, Train};
use super::training::TimedModel;

/// Time the training of a small model as one extent at a time grows.
#[derive(clap::Args)]
pub(crate) struct Growth {
    #[command(flatten)]
    options: Options,
    /// Also plot the rates, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Measurements per size.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Approximate seconds per measurement.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
}

/// Steps per measurement of concurrent ranks.
const STEPS_OF_RANKS: usize = 4;

const DTYPES: [DType; 2] = [DType::F32, DType::BF16];

/// An extent of a model, and how to set it.
struct Extent {
    name: &'static str,
    sizes: &'static [usize],
    grow: fn(&mut Train, usize),
}

const EXTENTS: [Extent; 4] = [
    Extent {
        name: "rows of 256 tokens per step",
        sizes: &[1, 2, 4, 8, 16, 32],
        grow: |train, size| train.batch = size,
    },
    Extent {
        name: "tokens per row, 2,048 per step",
        sizes: &[64, 128, 256, 512, 1024, 2048],
        grow: |train, size| (train.batch, train.tokens) = (2048 / size, size),
    },
    Extent {
        name: "experts, 2 per token",
        sizes: &[2, 4, 8, 16, 32, 64],
        grow: |train, size| set(train, "num_experts", size),
    },
    Extent {
        name: "layers",
        sizes: &[1, 2, 4, 8, 16],
        grow: |train, size| set(train, "num_hidden_layers", size),
    },
];

fn set(train: &mut Train, key: &str, size: usize) {
    train.model.insert(key.into(), (size as i64).into());
}

/// Tokens per second at a size.
struct Point {
    size: usize,
    dtype: DType,
    rate: Spread,
}

impl Growth {
    pub(crate) fn run(&self, cpu: &Device) -> anyhow::Result<()> {
        let smoke = self.options.smoke;
        let section = if smoke { Section::Smoke } else { Section::Cpu };
        let shapes = Shapes::read(None, section)?;
        let train = shapes.train.first().context("no model to train")?;
        println!("{}, tokens per second: medians (min - max)", train.what);

        let mut extents = Vec::new();
        for extent in &EXTENTS {
            println!("\n| {} | f32 | bf16 |\n|---|---|---|", extent.name);
            let sizes = if smoke { &extent.sizes[..1] } else { extent.sizes };
            let mut points = Vec::new();
            for &size in sizes {
                let mut grown = train.clone();
                (extent.grow)(&mut grown, size);
                for dtype in DTYPES {
                    let rate = self.rate(&grown, dtype, cpu)?;
                    points.push(Point { size, dtype, rate });
                }
                let [f32, bf16] = points.last_chunk().context("two dtypes")?;
                println!("| {size} | {} | {} |", f32.rate, bf16.rate);
            }
            extents.push((extent.name, points));
        }
        let ranks = self.ranks(train, cpu)?;
        if let Some(path) = &self.plot {
            draw(path, &train.what, &extents)?;
        }
        let of_extent = |(name, points): &(&str, Vec<Point>)| {
            let points = points.iter().map(|point| {
                let dtype = point.dtype.name();
                json!({"size": point.size, "dtype": dtype, "tokens_per_s": point.rate.json()})
            });
            json!({"extent": name, "points": points.collect::<Vec<_>>()})
        };
        let report = json!({
            "bench": "growth", "model": train.what, "rounds": self.rounds,
            "extents": extents.iter().map(of_extent).collect::<Vec<_>>(), "ranks": ranks,
        });
        finish(&self.options, report, Value::Null)
    }

    /// Tokens per second of a model that trains alone.
    fn rate(&self, train: &Train, dtype: DType, device: &Device) -> anyhow::Result<Spread> {
        let tokens = (train.batch * train.tokens) as f64;
        let shape = [train.batch, train.tokens];
        let mut model = TimedModel::new(&train.config()?, shape, dtype, device)?;
        model.time_steps(1)?;
        let steps = self.steps(model.time_steps(1)?);
        let rates = (0..self.rounds()).map(|_| Ok(tokens / model.time_steps(steps)?));
        Ok(Spread::of(&rates.collect::<anyhow::Result<Vec<f64>>>()?))
    }

    fn rounds(&self) -> usize {
        if self.options.smoke { 1 } else { self.rounds.max(1) }
    }

    /// Steps per measurement, if a step takes `seconds`.
    fn steps(&self, seconds: f64) -> usize {
        match self.options.smoke {
            true => 1,
            false => (self.seconds / seconds).ceil().clamp(1.0, 1000.0) as usize,
        }
    }

    /// One rank with all threads, compared with one rank per thread, each with its share of the
    /// rows. Ranks exchange no gradients: this measures the cost of sharing the machine.
    fn ranks(&self, train: &Train, cpu: &Device) -> anyhow::Result<Value> {
        let ranks = cpu.properties().threads.max(1);
        println!("\n| ranks x threads | f32 | bf16 |\n|---|---|---|");
        let mut rows = Vec::new();
        for (count, threads) in [(1, ranks), (ranks, 1)] {
            let mut part = train.clone();
            part.batch = train.batch.div_ceil(count);
            let mut rates = Vec::new();
            for dtype in DTYPES {
                rates.push(self.concurrent(&part, dtype, count, threads)?);
            }
            println!("| {count} x {threads} | {} | {} |", rates[0], rates[1]);
            rows.push(json!({
                "ranks": count, "threads": threads, "rows_a_rank": part.batch,
                "tokens_per_s": {"f32": rates[0].json(), "bf16": rates[1].json()},
            }));
        }
        Ok(json!(rows))
    }

    /// Total tokens per second of concurrent ranks, which start each measurement together.
    fn concurrent(
        &self,
        train: &Train,
        dtype: DType,
        ranks: usize,
        threads: usize,
    ) -> anyhow::Result<Spread> {
        let barrier = Barrier::new(ranks);
        let config = train.config()?;
        let shape = [train.batch, train.tokens];
        let rank = |device: &Device| -> anyhow::Result<Vec<f64>> {
            let created = TimedModel::new(&config, shape, dtype, device);
            let mut model = created.and_then(|mut model| model.time_steps(1).map(|_| model));
            let mut seconds = Vec::new();
            for _ in 0..self.rounds() {
                // A rank that failed must also reach the barrier.
                barrier.wait();
                let measured = model.as_mut().map(|model| model.time_steps(STEPS_OF_RANKS));
                seconds.extend(measured.ok());
            }
            model.and_then(|_| seconds.into_iter().collect())
        };
        let devices = (0..ranks).map(|_| Device::cpu_with_threads(threads));
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        let seconds = thread::scope(|scope| {
            let rank = &rank;
            let begin = |device: &'_ Device| {
                let device = device.clone();
                scope.spawn(move || device.run(|| rank(&device)))
            };
            let running: Vec<_> = devices.iter().map(begin).collect();
            let joined = running.into_iter().map(|running| {
                let joined = running.join();
                joined.unwrap_or_else(|_| Err(anyhow!("a rank panicked")))
            });
            joined.collect::<anyhow::Result<Vec<_>>>()
        })?;
        let tokens = (ranks * train.batch * train.tokens) as f64;
        let rates = (0..self.rounds()).map(|round| {
            let slowest = seconds.iter().map(|of_rank| of_rank[round]);
            tokens / slowest.fold(0.0, f64::max)
        });
        Ok(Spread::of(&rates.collect::<Vec<_>>()))
    }
}

/// One panel per extent: tokens per second over its sizes.
fn draw(path: &Path, model: &str, extents: &[(&str, Vec<Point>)]) -> anyhow::Result<()> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (960, 720)).into_drawing_area();
    draw_panels(&area, model, extents).map_err(|error| anyhow!("cannot draw: {error}"))?;
    drop(area);
    fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))
}

type Area<'s> = DrawingArea<SVGBackend<'s>, plotters::coord::Shift>;

fn draw_panels(
    area: &Area<'_>,
    model: &str,
    extents: &[(&str, Vec<Point>)],
) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let title = format!("{model}: tokens per second, f32 (blue) and bf16 (red)");
    let area = area.titled(&title, ("sans-serif", 20))?;
    for (panel, (name, points)) in area.split_evenly((2, 2)).iter().zip(extents) {
        let sizes = || points.iter().map(|point| point.size as f64);
        let first = sizes().fold(f64::INFINITY, f64::min);
        let last = sizes().fold(first * 1.01, f64::max);
        let most = points.iter().map(|point| point.rate.max).fold(1.0, f64::max);
        let mut chart = ChartBuilder::on(panel)
            .caption(name, ("sans-serif", 16))
            .margin(20)
            .x_label_area_size(30)
            .y_label_area_size(60)
            .build_cartesian_2d((first..last).log_scale().base(2.0), 0.0..1.05 * most)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|size| format!("{size:.0}"))
            .y_label_formatter(&|rate| format!("{rate:.0}"))
            .draw()?;
        for (dtype, color) in DTYPES.into_iter().zip([&BLUE, &RED]) {
            let of_dtype = points.iter().filter(|point| point.dtype == dtype);
            let curve = of_dtype.map(|point| (point.size as f64, point.rate.median));
            chart.draw_series(LineSeries::new(curve, color.stroke_width(2)).point_size(3))?;
        }
    }
    area.present()?;
    Ok(())
}
