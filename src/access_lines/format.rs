//! The formats of access logs by name.

use super::apache;
use super::common::CommonForm;
use super::draft::Meaning;
use super::error::FormatError;
use super::fields::{self, NamedPath};
use super::nginx;
use super::path_tree::PathTree;
use super::record::Moment;
use super::template::Template;

/// The names of formats.
const NAMES: &[&str] = &[
    "combined",
    "common",
    "json",
    "tollgate",
    "caddy",
    "traefik",
    "envoy",
    "haproxy",
    "alb",
    "cloudfront",
    "nginx: FORMAT",
    "apache: FORMAT",
];

/// The shape of the lines of a log.
#[derive(Clone, Debug)]
pub struct Format {
    name: &'static str,
    pub(super) syntax: LineSyntax,
}

/// How the lines of a format are read.
#[derive(Clone, Debug)]
pub(super) enum LineSyntax {
    Common(CommonForm, Moment),
    Template(Template),
    Json(JsonFormat),
    /// JSON if a line begins with a brace, otherwise text.
    Traefik(JsonFormat),
    Envoy(JsonFormat),
    /// The captures that the operator names.
    HaProxy(Vec<(usize, Meaning)>),
    Alb,
    /// The columns are told by the log.
    CloudFront,
}

/// The members of a JSON format.
#[derive(Clone, Debug)]
pub(super) struct JsonFormat {
    known: &'static [NamedPath],
    pub(super) paths: PathTree,
    /// The fields that the operator names.
    named: Vec<Meaning>,
    /// Whether a line without a word about TLS says that there was none.
    pub(super) has_plain_default: bool,
}

impl Format {
    /// Reads the name of a format: `combined`, `common`, `json`, `tollgate`, `caddy`, `traefik`, `envoy`, `haproxy`, `alb`,
    /// `cloudfront` (also `w3c`), `nginx: $remote_addr ..` with the text of a `log_format`, or `apache: %h ..` with that of
    /// a `LogFormat`. `nginx: combined`, `apache: combined`, `apache: common` and `apache: vhost_combined` tell which
    /// server wrote the log, and so which moment of the request its times are.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let text = text.trim();
        if let Some((server, format)) = text.split_once(':') {
            match server.trim().to_ascii_lowercase().as_str() {
                "nginx" => return nginx(format.trim()),
                "apache" => return apache(format.trim()),
                _ => {}
            }
        }
        let common = |name, form| Self::new(name, LineSyntax::Common(form, Moment::Unknown));
        Ok(match text.to_ascii_lowercase().as_str() {
            "combined" | "vhost_combined" => common("combined", CommonForm::Combined),
            "common" | "vhost_common" => common("common", CommonForm::Common),
            "json" => Self::new("json", LineSyntax::Json(JsonFormat::new(fields::JSON, false)?)),
            "tollgate" => {
                Self::new("tollgate", LineSyntax::Json(JsonFormat::new(fields::TOLLGATE, true)?))
            }
            "caddy" => Self::new("caddy", LineSyntax::Json(JsonFormat::new(fields::CADDY, true)?)),
            "traefik" => {
                Self::new("traefik", LineSyntax::Traefik(JsonFormat::new(fields::TRAEFIK, false)?))
            }
            "envoy" => {
                Self::new("envoy", LineSyntax::Envoy(JsonFormat::new(fields::ENVOY, false)?))
            }
            "haproxy" => Self::new("haproxy", LineSyntax::HaProxy(Vec::new())),
            "alb" => Self::new("alb", LineSyntax::Alb),
            "cloudfront" | "w3c" => Self::new("cloudfront", LineSyntax::CloudFront),
            _ => return Err(FormatError::unknown(text, NAMES)),
        })
    }

    /// Says where fields stand: `NAME=PATH`. For JSON formats, a path has names between dots (`request.headers.x-api-key.0`);
    /// for HAProxy it is `captures.N`, the captured header field of the request with the index `N`. A name replaces what
    /// the format knows by that name.
    pub fn with_fields(mut self, fields: &[impl AsRef<str>]) -> Result<Self, FormatError> {
        let mut named = Vec::new();
        for field in fields {
            let (name, path) = fields::divide(field.as_ref())?;
            fields::meaning(name, path)?;
            named.push((name.to_owned(), path.to_owned()));
        }
        match &mut self.syntax {
            LineSyntax::Json(json) | LineSyntax::Traefik(json) | LineSyntax::Envoy(json) => {
                json.paths = fields::tree(json.known, &named)?;
                let meanings = named.iter().map(|(name, path)| fields::meaning(name, path));
                json.named = meanings.collect::<Result<_, _>>()?;
            }
            LineSyntax::HaProxy(captures) => {
                for (name, path) in &named {
                    let index = path.strip_prefix("captures.").and_then(|index| index.parse().ok());
                    let unknown = || FormatError::Capture { path: path.clone() };
                    captures.push((index.ok_or_else(unknown)?, fields::meaning(name, path)?));
                }
            }
            LineSyntax::Common(..)
            | LineSyntax::Template(_)
            | LineSyntax::Alb
            | LineSyntax::CloudFront => {
                if !named.is_empty() {
                    return Err(FormatError::NoFields { format: self.name.to_owned() });
                }
            }
        }
        Ok(self)
    }

    /// The word that stands for the format in [`Format::parse`]; behind `nginx` and `apache`, the text of the format follows
    /// there.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The header fields of requests that the format itself names: a line without one of them says that the request had none.
    /// (What JSON lines have is told by the lines.)
    pub fn headers(&self) -> Vec<String> {
        let header = |meaning: &Meaning| match meaning {
            Meaning::Header(name) => Some(name.to_string()),
            _ => None,
        };
        match &self.syntax {
            LineSyntax::Common(CommonForm::Combined, _) => {
                vec!["user-agent".to_owned(), "referer".to_owned()]
            }
            LineSyntax::Template(template) => template.meanings().filter_map(header).collect(),
            LineSyntax::HaProxy(captures) => {
                captures.iter().filter_map(|(_, meaning)| header(meaning)).collect()
            }
            LineSyntax::Json(json) | LineSyntax::Traefik(json) | LineSyntax::Envoy(json) => {
                json.named.iter().filter_map(header).collect()
            }
            LineSyntax::Common(..) | LineSyntax::Alb | LineSyntax::CloudFront => Vec::new(),
        }
    }

    /// All formats that a log can be tried with, the more special first.
    pub(super) fn candidates() -> impl Iterator<Item = Self> {
        let names = [
            "tollgate",
            "caddy",
            "traefik",
            "envoy",
            "haproxy",
            "alb",
            "cloudfront",
            "combined",
            "common",
            "json",
        ];
        names.into_iter().filter_map(|name| Self::parse(name).ok())
    }

    fn new(name: &'static str, syntax: LineSyntax) -> Self {
        Self { name, syntax }
    }
}

impl JsonFormat {
    fn new(known: &'static [NamedPath], has_plain_default: bool) -> Result<Self, FormatError> {
        Ok(Self { known, paths: fields::tree(known, &[])?, named: Vec::new(), has_plain_default })
    }
}

fn nginx(format: &str) -> Result<Format, FormatError> {
    let syntax = match format {
        "combined" => LineSyntax::Common(CommonForm::Combined, Moment::End),
        format => LineSyntax::Template(nginx::compile(format)?),
    };
    Ok(Format::new("nginx", syntax))
}

fn apache(format: &str) -> Result<Format, FormatError> {
    let syntax = match format {
        "combined" | "vhost_combined" => LineSyntax::Common(CommonForm::Combined, Moment::Start),
        "common" | "vhost_common" => LineSyntax::Common(CommonForm::Common, Moment::Start),
        format => LineSyntax::Template(apache::compile(format)?),
    };
    Ok(Format::new("apache", syntax))
}
