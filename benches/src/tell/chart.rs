//! Charts as SVG, by hand: lines of percentiles, bars of rates.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
/// Room for the labels: left, right, top, bottom.
const MARGIN: (f64, f64, f64, f64) = (70.0, 90.0, 16.0, 40.0);

/// Colours that colour-blind people can tell apart.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// One line of a chart: a value for each place on the x axis.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) values: Vec<f64>,
}

/// Lines over places with names, on a logarithmic scale.
pub(crate) fn lines(places: &[&str], unit: &str, series: &[Series]) -> String {
    let (left, right, top, bottom) = MARGIN;
    let all = || series.iter().flat_map(|line| &line.values).copied().filter(|value| *value > 0.0);
    let low = all().fold(f64::INFINITY, f64::min).log10().floor();
    let high = all().fold(1.0, f64::max).log10().ceil().max(low + 1.0);
    if !low.is_finite() {
        return String::new();
    }
    let steps = (places.len().max(2) - 1) as f64;
    let x = |n: usize| left + n as f64 / steps * (WIDTH - left - right);
    let y = |value: f64| {
        let part = (value.max(1e-3).log10() - low) / (high - low);
        HEIGHT - bottom - part * (HEIGHT - top - bottom)
    };
    let mut svg = open(HEIGHT);
    // Writing to a string cannot fail, here and below.
    for power in low as i32..=high as i32 {
        let value = 10_f64.powi(power);
        rule(&mut svg, (left, WIDTH - right), y(value));
        label(&mut svg, "end", left - 8.0, y(value) + 4.0, &format!("{value} {unit}"));
    }
    for (n, place) in places.iter().enumerate() {
        label(&mut svg, "middle", x(n), HEIGHT - bottom + 20.0, place);
    }
    for (n, line) in series.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let points: Vec<String> = line
            .values
            .iter()
            .enumerate()
            .map(|(n, v)| format!("{:.1},{:.1}", x(n), y(*v)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            points.join(" ")
        );
        let at = top + 14.0 + n as f64 * 18.0;
        let from = WIDTH - right + 14.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{from}\" y=\"{}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>",
            at - 6.0
        );
        label(&mut svg, "start", from + 18.0, at, &line.name);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Horizontal bars, each with its name and its value in words.
pub(crate) fn bars(values: &[(String, f64, String)]) -> String {
    const ROW: f64 = 30.0;
    const LEFT: f64 = 170.0;
    const RIGHT: f64 = 110.0;
    let most = values.iter().map(|(_, value, _)| *value).fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let mut svg = open(values.len() as f64 * ROW + 10.0);
    for (n, (name, value, words)) in values.iter().enumerate() {
        let top = n as f64 * ROW + 6.0;
        let width = value / most * (WIDTH - LEFT - RIGHT);
        let colour = COLOURS[n % 2];
        label(&mut svg, "end", LEFT - 8.0, top + 15.0, name);
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"20\" fill=\"{colour}\"/>"
        );
        label(&mut svg, "start", LEFT + width + 8.0, top + 15.0, words);
    }
    svg.push_str("</svg>\n");
    svg
}

fn open(height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {WIDTH} {height}\">\n"
    )
}

fn rule(svg: &mut String, (from, to): (f64, f64), y: f64) {
    let _ = writeln!(svg, "<path d=\"M{from} {y:.1}H{to}\" stroke=\"#ccc\" stroke-width=\"1\"/>");
}

fn label(svg: &mut String, anchor: &str, x: f64, y: f64, text: &str) {
    let text = escape(text);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"12\">{text}</text>"
    );
}

/// Text with the characters escaped that HTML and SVG reserve.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_series_and_a_bar_a_value() {
        let series = |name: &str| Series { name: name.into(), values: vec![50.0, 5000.0] };
        let svg = lines(&["p50", "max"], "ns", &[series("8 B"), series("<64> B")]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("&lt;64&gt; B") && svg.ends_with("</svg>\n"), "{svg}");
        let svg = bars(&[("a".into(), 1.0, "one".into()), ("b".into(), 2.0, "two".into())]);
        assert_eq!(svg.matches("<rect").count(), 2);
    }

    #[test]
    fn nothing_to_draw_is_no_chart() {
        assert_eq!(lines(&["p50"], "ns", &[]), "");
        assert_eq!(bars(&[]), "");
    }
}
