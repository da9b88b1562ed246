//! SVG pictures of boxes with text.

use std::fmt::Write;

/// A picture that grows with what is drawn into it.
pub(crate) struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    pub(crate) fn new() -> Svg {
        Svg { body: String::new(), width: 0.0, height: 0.0 }
    }

    /// Draws a filled box; `at` is its `(x, y)`, `size` its `(width, height)`, `tip` its tooltip.
    pub(crate) fn area(&mut self, at: (f64, f64), size: (f64, f64), fill: &str, tip: &str) {
        self.width = self.width.max(at.0 + size.0);
        self.height = self.height.max(at.1 + size.1);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            self.body,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"3\" \
             fill=\"{fill}\" stroke=\"#999\" stroke-width=\"0.5\"><title>{}</title></rect>",
            at.0,
            at.1,
            size.0,
            size.1,
            escaped(tip)
        );
    }

    /// Draws black text; `at` is the `(x, y)` where its baseline starts.
    pub(crate) fn text(&mut self, at: (f64, f64), text: &str) {
        self.ink(at, text, "#000");
    }

    /// Draws text in any colour.
    pub(crate) fn ink(&mut self, at: (f64, f64), text: &str, ink: &str) {
        self.width = self.width.max(at.0 + text.chars().count() as f64 * LETTER);
        self.height = self.height.max(at.1 + 4.0);
        let _ = writeln!(
            self.body,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{ink}\">{}</text>",
            at.0,
            at.1,
            escaped(text)
        );
    }

    /// The finished picture.
    pub(crate) fn finish(self) -> String {
        let (width, height) = (self.width + 10.0, self.height + 10.0);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// Average width of a letter, in units of the picture.
pub(crate) const LETTER: f64 = 6.6;

/// `text` with the characters of markup escaped.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_encloses_its_parts_and_escapes_names() {
        let mut svg = Svg::new();
        svg.area((10.0, 10.0), (200.0, 50.0), "#eee", "a < b");
        svg.text((20.0, 30.0), "<eth0> & \"more\"");
        let text = svg.finish();
        assert!(text.contains("width=\"220\" height=\"70\""), "{text}");
        assert!(text.contains("&lt;eth0&gt; &amp; &quot;more&quot;") && text.contains("a &lt; b"));
    }
}
