//! What was promised, what was measured, and whether it holds.

/// One promise.
struct Row {
    what: String,
    measured: String,
    bound: String,
    holds: bool,
}

/// All of them, printed as they are measured and once more as a table in the end.
#[derive(Default)]
pub struct Report(Vec<Row>);

impl Report {
    pub fn at_most(&mut self, what: &str, measured: f64, bound: f64, unit: &str) {
        self.add(what, measured, &format!("at most {}", number(bound)), unit, measured <= bound);
    }

    pub fn at_least(&mut self, what: &str, measured: f64, bound: f64, unit: &str) {
        self.add(what, measured, &format!("at least {}", number(bound)), unit, measured >= bound);
    }

    /// Something that nothing is promised about.
    pub fn note(&mut self, what: &str, measured: f64, unit: &str) {
        self.add(what, measured, "", unit, true);
    }

    fn add(&mut self, what: &str, measured: f64, bound: &str, unit: &str, holds: bool) {
        let measured = format!("{} {unit}", number(measured));
        println!("{what}: {measured} {bound}{}", if holds { "" } else { " (FAILS)" });
        self.0.push(Row { what: what.to_owned(), measured, bound: bound.to_owned(), holds });
    }

    /// Prints the table; fails when a promise does not hold.
    pub fn end(self) {
        println!("\n| what | measured | promised |\n|---|---|---|");
        for Row { what, measured, bound, holds } in &self.0 {
            println!("| {what} | {measured} | {bound}{} |", if *holds { "" } else { " **fails**" });
        }
        let broken: Vec<&str> =
            self.0.iter().filter(|row| !row.holds).map(|row| row.what.as_str()).collect();
        assert!(broken.is_empty(), "does not hold: {broken:?}");
    }
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}
