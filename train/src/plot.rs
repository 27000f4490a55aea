//! `loss.svg`: a plot of training and validation loss over steps.
//!
//! The training loss is drawn as measured, in a pale color, and as a centered running mean. Values
//! that are not finite are left out. Isolated outliers are clipped, so that they do not set the
//! scale.

use std::ops::Range;
use std::path::Path;

use meshgrad_error::{Result, error};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::metrics::Record;
use crate::run_folder::replace;

const SIZE: (u32, u32) = (960, 540);
const FONT: &str = "Inter, Helvetica, Arial, DejaVu Sans, sans-serif";

const INK: RGBColor = RGBColor(34, 40, 49);
const GREY: RGBColor = RGBColor(110, 118, 129);
const GRID: RGBColor = RGBColor(232, 235, 239);
const TRAINING: RGBColor = RGBColor(31, 105, 179);
const MEASURED: RGBColor = RGBColor(168, 200, 231);
const VALIDATION: RGBColor = RGBColor(222, 90, 24);

/// A curve with more points is downsampled, because they could not be distinguished.
const MAX_POINTS: usize = 1600;

type Point = (f64, f64);

/// Draws the curves of `records` under `title` into an SVG file.
///
/// # Errors
/// When no record has a finite loss, or the file cannot be written.
pub fn save(path: &Path, title: &str, records: &[Record]) -> Result<()> {
    replace(path, render(title, records)?.as_bytes())
}

/// The plot as SVG text.
///
/// # Errors
/// When no record has a finite loss.
pub fn render(title: &str, records: &[Record]) -> Result<String> {
    let empty = || error!(Invalid, "nothing to plot: no step has a finite loss");
    let curves = Curves::of(records).ok_or_else(empty)?;

    let mut svg = String::new();
    let drawn = draw(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area(), title, &curves);
    drawn.map_err(|problem| error!(System, "cannot draw the plot: {problem}"))?;
    Ok(svg)
}

struct Curves {
    measured: Vec<Point>,
    smoothed: Vec<Point>,
    validation: Vec<Point>,
    x: Range<f64>,
    y: Range<f64>,
    last: String,
}

impl Curves {
    fn of(records: &[Record]) -> Option<Self> {
        let finite = |point: &Point| point.1.is_finite();
        let training: Vec<Point> =
            records.iter().map(|record| (record.step as f64, record.loss)).filter(finite).collect();
        let validation: Vec<Point> = records
            .iter()
            .filter_map(|record| Some((record.step as f64, record.val_loss?)))
            .filter(finite)
            .collect();

        let half_window = training.len() / 60;
        let smoothed = running(&training, half_window, mean);
        let x_end = training.iter().chain(&validation).map(|point| point.0).reduce(f64::max)?;

        Some(Self {
            x: 0.0..x_end.max(1.0),
            y: y_range(&training, &validation)?,
            last: last_values(smoothed.last(), validation.last(), records),
            measured: downsampled(&training),
            smoothed: downsampled(&smoothed),
            validation,
        })
    }
}

/// The range of the curves with a margin. A running median of five removes isolated outliers.
fn y_range(training: &[Point], validation: &[Point]) -> Option<Range<f64>> {
    let typical = running(training, 2, median);
    let (least, most) = extremes(typical.iter().map(|point| point.1))
        .or_else(|| extremes(validation.iter().map(|point| point.1)))?;

    let span = most - least;
    let near =
        validation.iter().map(|point| point.1).filter(|loss| (loss - most).abs() <= 2.0 * span);
    let (least, most) = extremes(near.chain([least, most]))?;

    let room = (0.06 * (most - least)).max(1e-3 * most.abs()).max(1e-6);
    // A loss is not negative, so the axis does not extend below zero.
    let floor = if least >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
    Some((least - room).max(floor)..most + room)
}

fn extremes(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.map(|value| (value, value)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

/// `reduce` over a window that extends `half` points to both sides. At the start, where curves are
/// steep, the window is narrower but symmetric, which avoids a shift. At the end only its right
/// side is shortened, so that the last value is not a single measurement.
fn running(points: &[Point], half: usize, reduce: fn(&mut [f64]) -> f64) -> Vec<Point> {
    let mut window = Vec::with_capacity(2 * half + 1);
    let mut reduced = Vec::with_capacity(points.len());
    for (at, &(x, _)) in points.iter().enumerate() {
        let before = half.min(at);
        let after = before.min(points.len() - 1 - at);
        window.clear();
        window.extend(points[at - before..=at + after].iter().map(|point| point.1));
        reduced.push((x, reduce(&mut window)));
    }
    reduced
}

fn mean(values: &mut [f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// At most about [`MAX_POINTS`] points: the minimum and maximum of each bucket, which keeps spikes.
fn downsampled(points: &[Point]) -> Vec<Point> {
    if points.len() <= MAX_POINTS {
        return points.to_vec();
    }

    let mut kept = Vec::with_capacity(MAX_POINTS + 2);
    for bucket in points.chunks(points.len().div_ceil(MAX_POINTS / 2)) {
        let by_loss = |a: &&Point, b: &&Point| a.1.total_cmp(&b.1);
        let least = bucket.iter().min_by(by_loss);
        let most = bucket.iter().max_by(by_loss);
        let mut pair: Vec<Point> = least.into_iter().chain(most).copied().collect();
        pair.sort_by(|a, b| a.0.total_cmp(&b.0));
        pair.dedup();
        kept.extend(pair);
    }
    kept
}

fn last_values(training: Option<&Point>, validation: Option<&Point>, records: &[Record]) -> String {
    let mut parts = Vec::new();
    parts.extend(training.map(|point| format!("training {:.3}", point.1)));
    parts.extend(validation.map(|point| format!("validation {:.3}", point.1)));

    let bits = records.iter().rev().find_map(|record| record.val_bits_per_byte);
    parts.extend(
        bits.filter(|bits| bits.is_finite()).map(|bits| format!("{bits:.3} bits per byte")),
    );
    parts.join(", ")
}

type Area<'s> = DrawingArea<SVGBackend<'s>, plotters::coord::Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn draw(area: &Area<'_>, title: &str, curves: &Curves) -> Drawn {
    area.fill(&WHITE)?;
    draw_title(area, title, &curves.last)?;
    draw_legend(area)?;
    draw_curves(area, curves)?;
    area.present()
}

fn font(size: u32, color: RGBColor) -> TextStyle<'static> {
    (FONT, size).into_font().color(&color)
}

fn draw_title(area: &Area<'_>, title: &str, last: &str) -> Drawn {
    let bold = (FONT, 26).into_font().style(FontStyle::Bold).color(&INK);
    area.draw(&Text::new(title, (28, 22), bold))?;
    area.draw(&Text::new(last, (28, 54), font(18, GREY)))
}

/// Draws the legend above the curves, on the right.
fn draw_legend(area: &Area<'_>) -> Drawn {
    let left_of_text = Pos::new(HPos::Left, VPos::Center);
    let entries = [
        (536, MEASURED, 2, "training, each step"),
        (706, TRAINING, 3, "smoothed"),
        (818, VALIDATION, 3, "validation"),
    ];
    for (x, color, width, name) in entries {
        let y = 61;
        area.draw(&PathElement::new([(x, y), (x + 22, y)], color.stroke_width(width)))?;
        area.draw(&Text::new(name, (x + 28, y), font(16, INK).pos(left_of_text)))?;
    }
    area.draw(&Circle::new((829, 61), 4, VALIDATION.filled()))
}

fn draw_curves(area: &Area<'_>, curves: &Curves) -> Drawn {
    let mut chart = ChartBuilder::on(area)
        .margin_top(84)
        .margin_right(28)
        .margin_left(18)
        .margin_bottom(14)
        .x_label_area_size(48)
        .y_label_area_size(58)
        .build_cartesian_2d(curves.x.clone(), curves.y.clone())?;

    let decimals = decimals(curves.y.end - curves.y.start);
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GREY)
        .x_labels(8)
        .y_labels(8)
        .label_style(font(16, GREY))
        .axis_desc_style(font(17, INK))
        .x_desc("step")
        .y_desc("loss (nats per token)")
        .x_label_formatter(&|step| crate::report::format::thousands(*step))
        .y_label_formatter(&|loss| format!("{loss:.decimals$}"))
        .draw()?;

    let inside = |points: &[Point]| -> Vec<Point> {
        let clamp = |point: &Point| (point.0, point.1.clamp(curves.y.start, curves.y.end));
        points.iter().map(clamp).collect()
    };
    let lines = [
        (&curves.measured, MEASURED.stroke_width(1)),
        (&curves.smoothed, TRAINING.stroke_width(2)),
        (&curves.validation, VALIDATION.stroke_width(2)),
    ];
    for (points, style) in lines {
        chart.draw_series(LineSeries::new(inside(points), style))?;
    }

    // If there are few validations, each one is marked with a dot.
    if curves.validation.len() <= 60 {
        let dots = inside(&curves.validation);
        chart.draw_series(dots.into_iter().map(|at| Circle::new(at, 3, VALIDATION.filled())))?;
    }
    Ok(())
}

fn decimals(span: f64) -> usize {
    match span {
        span if span >= 2.0 => 1,
        span if span >= 0.2 => 2,
        span if span >= 0.02 => 3,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(step: u64, loss: f64) -> Record {
        Record { step, loss, ..Record::default() }
    }

    fn falling(steps: u64) -> Vec<Record> {
        (1..=steps).map(|step| record(step, 3.0 + 5.0 / (step as f64).sqrt())).collect()
    }

    #[test]
    fn the_plot_has_title_axes_legend_and_curves() {
        let mut records = falling(200);
        records[99].val_loss = Some(3.4);
        records[199].val_loss = Some(3.25);
        records[199].val_bits_per_byte = Some(1.5);

        let svg = render("a <run> & its loss", &records).unwrap();
        let expected = [
            "a &lt;run&gt; &amp; its loss",
            "loss (nats per token)",
            "step",
            "validation 3.250",
            "1.500 bits per byte",
        ];
        for text in expected {
            assert!(svg.contains(text), "{text}");
        }
        for color in ["#1F69B3", "#A8C8E7"] {
            assert_eq!(svg.matches(color).count(), 2, "one stroke in the legend, one curve");
        }
        assert_eq!(svg.matches("<circle").count(), 3, "one dot in the legend, two measurements");
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn no_finite_loss_is_an_error() {
        for records in [&[][..], &[record(1, f64::NAN)]] {
            let error = render("", records).unwrap_err().to_string();
            assert_eq!(error, "nothing to plot: no step has a finite loss");
        }
    }

    #[test]
    fn one_step_and_a_flat_loss_have_a_range() {
        render("", &[record(1, 2.0)]).unwrap();
        render("", &[record(1, 0.0), record(2, 0.0)]).unwrap();
    }

    #[test]
    fn isolated_outliers_do_not_set_the_range() {
        let mut records = falling(200);
        let calm = Curves::of(&records).unwrap().y;
        records[150].loss = 1e6;
        records[160].loss = f64::INFINITY;
        records[180].val_loss = Some(1e9);

        let y = Curves::of(&records).unwrap().y;
        assert!((y.end - calm.end).abs() < 0.5, "{y:?} and {calm:?}");
        render("", &records).unwrap();
    }

    #[test]
    fn long_runs_are_downsampled_but_keep_spikes() {
        let mut points: Vec<Point> = (0..100_000).map(|at| (f64::from(at), 1.0)).collect();
        points[77_777].1 = 9.0;

        let thin = downsampled(&points);
        assert!(thin.len() <= MAX_POINTS + 2);
        assert!(thin.contains(&(77_777.0, 9.0)));
        assert!(thin.is_sorted_by(|a, b| a.0 < b.0));
    }

    proptest! {
        /// Smoothing preserves a straight line, except in the shortened windows at the end, and
        /// stays within the range of its input.
        #[test]
        fn smoothing_keeps_lines_and_ranges(
            losses in prop::collection::vec(0.0f64..10.0, 1..80),
            half in 0usize..20,
            slope in -1.0f64..1.0,
        ) {
            let steps = (0..losses.len()).map(|at| at as f64);
            let line: Vec<Point> = steps.clone().map(|at| (at, slope * at)).collect();
            let whole_windows = line.len().saturating_sub(half);
            let smoothed = running(&line, half, mean);
            for (smooth, exact) in smoothed.iter().zip(&line).take(whole_windows) {
                prop_assert!((smooth.1 - exact.1).abs() < 1e-9);
            }

            let points: Vec<Point> = steps.zip(losses.iter().copied()).collect();
            let (least, most) = extremes(losses.iter().copied()).unwrap();
            for (_, smooth) in running(&points, half, mean) {
                prop_assert!(smooth >= least - 1e-12 && smooth <= most + 1e-12);
            }
        }
    }
}
