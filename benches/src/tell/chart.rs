//! Charts as SVG, drawn by plotters: one for a wide page and one for a phone. The page's style
//! sheet names the colours, so that they follow light and dark.

use std::error::Error;
use std::fmt::Write;

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::ShapeStyle;

use crate::error::Failure;

/// Width and height of the two drawings, and the size of their text, in pixels.
const WIDE: (u32, u32, i32) = (720, 360, 16);
const NARROW: (u32, u32, i32) = (340, 300, 14);

/// Colours of series in the style sheet.
pub(crate) const COLOURS: usize = 7;

/// Other colours of the style sheet. plotters takes colours by value, so each of these stands for a
/// name, which takes its place in the drawing.
const INK: RGBColor = RGBColor(1, 0, 0);
const GRID: RGBColor = RGBColor(1, 0, 1);
const MARK: RGBColor = RGBColor(1, 0, 2);

fn colour(n: usize) -> RGBColor {
    RGBColor(2, 0, (n % COLOURS) as u8)
}

/// Puts the names in place of the colours.
fn named(svg: &str) -> String {
    let mut svg = svg.to_owned();
    for (value, name) in [("010000", "ink"), ("010001", "grid"), ("010002", "mark")] {
        svg = svg.replace(&format!("\"#{value}\""), &format!("\"var(--{name})\""));
    }
    for n in 0..COLOURS {
        svg = svg.replace(&format!("\"#02000{n}\""), &format!("\"var(--c{n})\""));
    }
    svg
}

/// How a series looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Look {
    Line,
    Dashed,
    Dots,
}

/// One series of a chart.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) look: Look,
    /// Its colour in the style sheet, below [`COLOURS`]; else that of its place.
    pub(crate) colour: Option<usize>,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Series {
    pub(crate) fn new(name: String, look: Look, points: Vec<(f64, f64)>) -> Series {
        Series { name, look, colour: None, points }
    }
}

/// A chart with two axes.
#[derive(Default)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What it shows, for those who do not see it, too.
    pub(crate) caption: String,
    pub(crate) x: String,
    /// Names of the places 0, 1, 2 on the x axis; empty for numbers.
    pub(crate) places: Vec<String>,
    /// With its unit.
    pub(crate) y: String,
    /// A logarithmic scale; else from 0.
    pub(crate) is_log: bool,
    pub(crate) series: Vec<Series>,
    /// Places on the x axis where something happened.
    pub(crate) marks: Vec<(f64, String)>,
}

impl Chart {
    /// The chart with its caption and legend; nothing if there is nothing to draw.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub(crate) fn html(&self) -> Result<String, Failure> {
        let drawn = || self.series.iter().flat_map(|of| &of.points);
        if !drawn().any(|(_, y)| *y > 0.0) {
            return Ok(String::new());
        }
        let (wide, narrow) = (self.svg(WIDE, "wide")?, self.svg(NARROW, "narrow")?);
        let (title, caption) = (escape(&self.title), escape(&self.caption));
        let mut legend = String::new();
        for (n, series) in self.series.iter().enumerate() {
            let look = format!("{:?}", series.look).to_lowercase();
            // Writing to a string cannot fail.
            let _ = write!(
                legend,
                "<li><span class=\"{look} k{}\"></span>{}</li>",
                series.colour.unwrap_or(n) % COLOURS,
                escape(&series.name)
            );
        }
        Ok(format!(
            "<figure>\n<h2>{title}</h2>\n<ul class=\"legend\">{legend}</ul>\n{wide}{narrow}\
             <figcaption>{caption}</figcaption>\n</figure>\n"
        ))
    }

    /// The drawing of one size, with a name for those who do not see it.
    fn svg(&self, size: (u32, u32, i32), class: &str) -> Result<String, Failure> {
        let drawn = self
            .draw(size)
            .map_err(|error| Failure::new(format!("draw {}: {error}", self.title)))?;
        let (width, height, _) = size;
        let body = drawn.split_once('>').map_or("", |(_, body)| body);
        Ok(format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{}: {}\">{}",
            escape(&self.title),
            escape(&self.caption),
            named(body)
        ))
    }

    fn draw(&self, size: (u32, u32, i32)) -> Result<String, Box<dyn Error>> {
        let mut svg = String::new();
        let values = || self.series.iter().flat_map(|of| &of.points).map(|(_, y)| *y);
        let high = values().fold(0.0, f64::max);
        if self.is_log {
            let low = values().filter(|y| *y > 0.0).fold(high, f64::min);
            // Whole powers of ten, so that both ends have a label.
            let (low, high) = (10_f64.powf(low.log10().floor()), 10_f64.powf(high.log10().ceil()));
            // Marks have their names above all points, in a seventh of the height.
            let room = ((high / low).log10() / 6.0).ceil().max(1.0);
            let high = if self.marks.is_empty() { high } else { high * 10_f64.powf(room) };
            self.draw_with(&mut svg, size, (low..high.max(10.0 * low) * 1.0001).log_scale())?;
        } else {
            self.draw_with(&mut svg, size, 0.0..(high * 1.1))?;
        }
        Ok(svg)
    }

    fn draw_with<Y>(
        &self,
        svg: &mut String,
        (width, height, text): (u32, u32, i32),
        y: Y,
    ) -> Result<(), Box<dyn Error>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let root = SVGBackend::with_string(svg, (width, height)).into_drawing_area();
        let (low, high) = self.x_range();
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .margin_right(16)
            .x_label_area_size(3 * text)
            .y_label_area_size(5 * text)
            .build_cartesian_2d(low..high, y)?;
        let every = self.every(width, text);
        let font = || ("sans-serif", text).into_font().color(&INK);
        let labels =
            if self.places.is_empty() { width as usize / 80 } else { 2 * self.places.len() };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(font())
            .axis_desc_style(font())
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_labels(labels)
            .x_label_formatter(&|x| self.place(*x, every))
            .y_labels(if self.is_log { 12 } else { 6 })
            .y_label_formatter(&|y| short(*y))
            .draw()?;
        let dot = if (width, height) == (WIDE.0, WIDE.1) { 3 } else { 2 };
        let (floor, pixel) = (chart.y_range(), (high - low) / f64::from(width));
        let mut named = f64::NEG_INFINITY;
        for (x, what) in &self.marks {
            let line = [(*x, floor.start), (*x, floor.end)];
            chart.draw_series([DashedPathElement::new(line, 4, 4, MARK)])?;
            // The name stands along the line. Where the last name is too near there is no room.
            if (x - named) / pixel > 1.5 * f64::from(text) {
                named = *x;
                let along = font().transform(FontTransform::Rotate90);
                chart.draw_series([Text::new(what.clone(), (*x, floor.end), along)])?;
            }
        }
        for (n, series) in self.series.iter().enumerate() {
            let points = series.points.iter().copied().filter(|(_, y)| *y > 0.0);
            let style = ShapeStyle {
                color: colour(series.colour.unwrap_or(n)).into(),
                filled: true,
                stroke_width: 2,
            };
            match series.look {
                Look::Line => {
                    chart.draw_series(LineSeries::new(points.clone(), style))?;
                    chart.draw_series(points.map(|at| Circle::new(at, dot, style)))?;
                }
                Look::Dashed => {
                    let line: Vec<(f64, f64)> = points.collect();
                    chart.draw_series([DashedPathElement::new(line, 6, 4, style)])?;
                }
                Look::Dots => {
                    chart.draw_series(points.map(|at| Circle::new(at, dot + 1, style)))?;
                }
            }
        }
        root.present()?;
        drop(chart);
        drop(root);
        Ok(())
    }

    /// The ends of the x axis.
    fn x_range(&self) -> (f64, f64) {
        if !self.places.is_empty() {
            return (-0.3, self.places.len() as f64 - 0.7);
        }
        let values = || self.series.iter().flat_map(|of| &of.points).map(|(x, _)| *x);
        let low = values().fold(f64::INFINITY, f64::min);
        (low.min(0.0), values().fold(low, f64::max).max(1e-3) * 1.02)
    }

    /// One place in this many has room for its name.
    fn every(&self, width: u32, text: i32) -> usize {
        let longest = self.places.iter().map(|place| place.chars().count()).max().unwrap_or(0);
        // Letters are less than half as wide as the text is high; the y axis takes some room.
        let wide = 0.42 * f64::from(text) * longest as f64 + 2.0;
        let room = f64::from(width) - 5.0 * f64::from(text) - 24.0;
        (wide * self.places.len() as f64 / room).ceil().max(1.0) as usize
    }

    /// What stands at that place of the x axis, if one place in `every` has a name.
    fn place(&self, x: f64, every: usize) -> String {
        if self.places.is_empty() {
            return short(x);
        }
        let is_whole = (x - x.round()).abs() < 1e-6 && x > -0.5;
        let place = self.places.get(x.round() as usize).filter(|_| is_whole);
        place.filter(|_| (x.round() as usize).is_multiple_of(every)).cloned().unwrap_or_default()
    }
}

/// A number with few digits: 250, 1.5k, 20M.
pub(crate) fn short(number: f64) -> String {
    let (scaled, unit) = match number.abs() {
        1e9.. => (number / 1e9, "G"),
        1e6.. => (number / 1e6, "M"),
        1e3.. => (number / 1e3, "k"),
        _ => (number, ""),
    };
    let digits = usize::from(scaled.abs() < 10.0);
    let text = format!("{scaled:.digits$}");
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// Text with the characters escaped that HTML and SVG reserve.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(is_log: bool) -> Chart {
        let series = |name: &str, look| Series {
            name: name.into(),
            look,
            colour: None,
            points: vec![(0.0, 50.0), (1.0, 5000.0)],
        };
        Chart {
            title: "Times".into(),
            caption: "<what> it shows".into(),
            x: "percentile".into(),
            places: vec!["p50".into(), "max".into()],
            y: "time, ns".into(),
            is_log,
            series: vec![series("8 B", Look::Line), series("floor", Look::Dashed)],
            marks: vec![(0.5, "FAR".into())],
        }
    }

    #[test]
    fn a_chart_has_axes_with_titles_a_legend_and_a_name() {
        for is_log in [true, false] {
            let html = chart(is_log).html().unwrap();
            assert_eq!(html.matches("<svg class").count(), 2);
            assert_eq!(html.matches("aria-label=\"Times: &lt;what&gt;").count(), 2);
            assert_eq!(html.matches("<li>").count(), 2);
            for word in ["percentile", "time, ns", "p50", "max", "FAR", "1k", "var(--c0)"] {
                assert!(html.contains(word), "{word} is not in {html}");
            }
            // Every colour follows the style sheet.
            assert!(!html.contains("\"#"), "{html}");
        }
    }

    #[test]
    fn nothing_to_draw_is_no_chart() {
        let mut empty = chart(true);
        empty.series.iter_mut().for_each(|series| series.points = vec![(0.0, 0.0)]);
        assert_eq!(empty.html().unwrap(), "");
    }

    #[test]
    fn names_that_would_overlap_are_left_out() {
        let mut many = chart(false);
        assert_eq!((many.every(WIDE.0, WIDE.2), many.every(NARROW.0, NARROW.2)), (1, 1));
        many.places = (0..12).map(|n| format!("abcde{n:02}")).collect();
        assert_eq!((many.every(WIDE.0, WIDE.2), many.every(NARROW.0, NARROW.2)), (1, 3));
        let svg = many.svg(NARROW, "narrow").unwrap();
        assert!(svg.contains("abcde03") && !svg.contains("abcde02"), "{svg}");
    }

    #[test]
    fn names_of_marks_do_not_overlap_each_other_or_the_points() {
        let mut marked = chart(true);
        marked.marks = ["FAR", "MIX", "NEAR"]
            .map(str::to_owned)
            .into_iter()
            .zip([0.5, 0.505, 0.8])
            .map(|(what, x)| (x, what))
            .collect();
        let svg = marked.svg(WIDE, "wide").unwrap();
        assert!(svg.contains("FAR") && svg.contains("NEAR") && !svg.contains("MIX"), "{svg}");
        // The highest point is 5 000, and the names stand above 10 000.
        assert!(svg.contains("100k"), "{svg}");
    }

    #[test]
    fn numbers_are_short() {
        let of = [0.0, 0.5, 50.0, 999.0, 1000.0, 1500.0, 20e3, 1e6, 2.5e9].map(short);
        assert_eq!(of, ["0", "0.5", "50", "999", "1k", "1.5k", "20k", "1M", "2.5G"]);
    }
}
