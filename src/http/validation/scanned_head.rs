//! What the scan of a head found, for the validation of the same head after it was parsed.

use std::borrow::Cow;
use std::sync::Arc;

use super::framing::Length;
use super::host;
use super::reject_reason::RejectReason;
use super::request::{HeadBounds, ValidRequest};
use super::target::TargetSpans;
use super::uncommon_fields::UncommonFields;

/// The host of a connection's last request. The next request usually names the same authority, which is then not read
/// again.
#[derive(Clone, Debug)]
pub struct HostCache {
    authority: Vec<u8>,
    host: Arc<str>,
}

impl Default for HostCache {
    fn default() -> Self {
        // The host of an empty authority.
        Self { authority: Vec::new(), host: Arc::from("") }
    }
}

impl HostCache {
    /// The host of an authority.
    pub(crate) fn of(&mut self, authority: &[u8]) -> Result<Arc<str>, RejectReason> {
        if self.authority != authority {
            self.host = Arc::from(host::host(authority)?);
            self.authority.clear();
            self.authority.extend_from_slice(authority);
        }
        Ok(Arc::clone(&self.host))
    }
}

/// What the scan of a head found. Spans refer to its request target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedHead {
    /// Lower case, without port and trailing dot; empty where HTTP/1.0 sent none.
    pub host: Arc<str>,
    pub(super) spans: TargetSpans,
    /// Bytes of the target.
    pub(crate) target: usize,
    pub(crate) body: Length,
    /// Whether `Connection` nominates an end-to-end field.
    pub(crate) nominates: bool,
    /// Fields that need a second look.
    pub(crate) uncommon: UncommonFields,
}

/// Validates a parsed head by what the scan of its bytes found. `None` when `target` is not the target that was scanned.
pub fn validate_scanned<'r>(
    scanned: &'r ScannedHead,
    target: &'r [u8],
    bounds: HeadBounds,
) -> Option<Result<ValidRequest<'r>, RejectReason>> {
    if target.len() != scanned.target {
        return None;
    }
    let target = std::str::from_utf8(target).ok()?;
    let too_large = matches!(
        (scanned.body, bounds.body_size), (Length::Bytes(bytes), Some(max)) if bytes > max
    );
    Some(if too_large {
        Err(RejectReason::BodySize)
    } else if scanned.nominates {
        Err(RejectReason::ConnectionField)
    } else {
        scanned.spans.read(Cow::Borrowed(&scanned.host), target, scanned.uncommon)
    })
}
