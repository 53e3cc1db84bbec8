//! What came of the cases, for people and for CI servers.

use std::fmt::Write as _;

use super::CaseResult;

pub(super) type Suite = (String, Vec<CaseResult>);

/// A line for each case that failed, and one for all; how many failed.
pub(super) fn told(suites: &[Suite]) -> (String, usize) {
    let (mut text, mut failed, mut all) = (String::new(), 0, 0);
    for (file, outcomes) in suites {
        for outcome in outcomes {
            all += 1;
            if outcome.differences.is_empty() {
                continue;
            }
            failed += 1;
            // A String takes every line.
            let _ = writeln!(text, "{file}: FAILED {}", outcome.name);
            for difference in &outcome.differences {
                let _ = writeln!(text, "  {difference}");
            }
        }
    }
    let _ = writeln!(text, "{} of {all} cases pass", all - failed);
    (text, failed)
}

/// The results as JUnit's XML, which CI servers read.
pub(super) fn junit(suites: &[Suite]) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for (file, outcomes) in suites {
        let failed = outcomes.iter().filter(|one| !one.differences.is_empty()).count();
        let (file, all) = (escaped(file), outcomes.len());
        let _ =
            writeln!(text, "  <testsuite name=\"{file}\" tests=\"{all}\" failures=\"{failed}\">");
        for outcome in outcomes {
            let name = escaped(&outcome.name);
            let _ = write!(text, "    <testcase classname=\"{file}\" name=\"{name}\"");
            if outcome.differences.is_empty() {
                text.push_str("/>\n");
                continue;
            }
            let why = escaped(&outcome.differences.join("\n"));
            let _ =
                writeln!(text, "><failure message=\"not as expected\">{why}</failure></testcase>");
        }
        text.push_str("  </testsuite>\n");
    }
    text.push_str("</testsuites>\n");
    text
}

/// Text of XML 1.0: what it cannot hold becomes `?`.
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
