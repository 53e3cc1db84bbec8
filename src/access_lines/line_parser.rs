//! Reads lines by a format, and remembers what helps with the next line.

use super::common::{self, CommonForm};
use super::format::{Format, JsonFormat, LineSyntax};
use super::reader::MAX_LINE;
use super::record::{AccessLine, LineError, Moment};
use super::time_reader::TimeReader;
use super::w3c::Columns;
use super::zone::Zone;
use super::{alb, envoy, haproxy, json};

/// Reads the lines of a log.
#[derive(Clone, Debug)]
pub struct LineParser {
    format: Format,
    times: TimeReader,
    columns: Columns,
}

impl LineParser {
    /// Reads lines of this format. Times without a zone are in `zone`.
    pub fn new(format: Format, zone: Zone) -> Self {
        Self { format, times: TimeReader::new(zone), columns: Columns::cloudfront() }
    }

    /// Whether a time that was read names no zone and comes twice in that of the log, as in the night when clocks go back.
    pub const fn has_doubtful_times(&self) -> bool {
        self.times.has_doubtful()
    }

    /// Reads a line. Its order matters for comments only: `#Fields:` tells the columns of the lines behind it.
    pub fn parse<'l>(&mut self, line: &'l [u8]) -> Result<AccessLine<'l>, LineError> {
        if line.len() > MAX_LINE {
            return Err(LineError::TooLong);
        }
        let line = line.trim_ascii_end();
        match line.first() {
            None => return Err(LineError::NoRequest),
            Some(b'#') => {
                self.columns.comment(line);
                return Err(LineError::NoRequest);
            }
            Some(_) => {}
        }
        let times = &mut self.times;
        match &self.format.syntax {
            LineSyntax::Common(form, moment) => common::parse(*form, *moment, line, times),
            LineSyntax::Template(template) => template.parse(line, times),
            LineSyntax::Json(format) => parse_json(format, line, times),
            LineSyntax::Traefik(format) if line[0] == b'{' => parse_json(format, line, times),
            LineSyntax::Traefik(_) => {
                common::parse(CommonForm::Traefik, Moment::Start, line, times)
            }
            LineSyntax::Envoy(format) if line[0] == b'{' => parse_json(format, line, times),
            LineSyntax::Envoy(_) => envoy::parse(line, times),
            LineSyntax::HaProxy(captures) => haproxy::parse(captures, line, times),
            LineSyntax::Alb => alb::parse(line, times),
            LineSyntax::CloudFront => self.columns.parse(line, times),
        }
    }
}

fn parse_json<'l>(
    format: &JsonFormat,
    line: &'l [u8],
    times: &mut TimeReader,
) -> Result<AccessLine<'l>, LineError> {
    json::parse(&format.paths, format.has_plain_default, line, times)
}
