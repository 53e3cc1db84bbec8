//! The results of cases, as text for people and as XML for CI servers.

use std::fmt::Write as _;

use super::CaseResult;

/// The results of one file of cases.
pub(super) struct Suite {
    pub(super) file: String,
    pub(super) results: Vec<CaseResult>,
}

impl Suite {
    pub(super) fn passes(&self) -> bool {
        self.failures() == 0
    }

    fn failures(&self) -> usize {
        self.results.iter().filter(|result| !result.differences.is_empty()).count()
    }
}

/// The differences of each case that failed, and one line about all cases.
pub(super) fn summary(suites: &[Suite]) -> String {
    let mut text = String::new();
    for Suite { file, results } in suites {
        for result in results.iter().filter(|result| !result.differences.is_empty()) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{file}: FAILED {}", result.name);
            for difference in &result.differences {
                let _ = writeln!(text, "  {difference}");
            }
        }
    }
    let all: usize = suites.iter().map(|suite| suite.results.len()).sum();
    let failures: usize = suites.iter().map(Suite::failures).sum();
    let _ = writeln!(text, "{} of {all} cases pass", all - failures);
    text
}

/// The results as JUnit XML.
pub(super) fn junit(suites: &[Suite]) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for suite in suites {
        let (file, all, failed) = (escaped(&suite.file), suite.results.len(), suite.failures());
        let _ =
            writeln!(text, "  <testsuite name=\"{file}\" tests=\"{all}\" failures=\"{failed}\">");
        for result in &suite.results {
            let name = escaped(&result.name);
            let _ = write!(text, "    <testcase classname=\"{file}\" name=\"{name}\"");
            if result.differences.is_empty() {
                text.push_str("/>\n");
                continue;
            }
            let why = escaped(&result.differences.join("\n"));
            let _ =
                writeln!(text, "><failure message=\"not as expected\">{why}</failure></testcase>");
        }
        text.push_str("  </testsuite>\n");
    }
    text.push_str("</testsuites>\n");
    text
}

/// Escapes a text for XML 1.0. Characters that XML cannot hold become `?`.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' | '\t' => safe.push(character),
            c if c.is_control() => safe.push('?'),
            c => safe.push(c),
        }
    }
    safe
}
