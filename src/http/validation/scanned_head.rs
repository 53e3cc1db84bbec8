//! What the scan of a head found, for whoever reads the head when it is parsed.

use std::borrow::Cow;
use std::sync::Arc;

use super::framing::Length;
use super::{HeadBounds, RejectReason, TargetSpans, UncommonFields, ValidRequest, host};

/// The host that a connection's last request asked for. Most ask for the same one again, whose
/// authority is then not read a second time.
#[derive(Clone, Debug)]
pub struct HostCache {
    authority: Vec<u8>,
    host: Arc<str>,
}

impl Default for HostCache {
    fn default() -> Self {
        // What an empty authority means.
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

/// What the scan of a head found. Places are those of its request target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedHead {
    /// Lower case, without port and trailing dot; empty where HTTP/1.0 sent none.
    pub host: Arc<str>,
    pub(super) aim: TargetSpans,
    /// Bytes of the target.
    pub(crate) target: usize,
    pub(crate) body: Length,
    /// Whether `Connection` nominates a field that is not of the connection.
    pub(crate) nominates: bool,
    /// Fields that need a second look.
    pub(crate) rare: UncommonFields,
}

/// Reads what was scanned out of the parsed head's target. `None`: that is not the target that was
/// scanned.
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
        (scanned.body, bounds.body_size), (Length::Bytes(bytes), Some(most)) if bytes > most
    );
    Some(if too_large {
        Err(RejectReason::BodySize)
    } else if scanned.nominates {
        Err(RejectReason::ConnectionField)
    } else {
        scanned.aim.read(Cow::Borrowed(&scanned.host), target, scanned.rare)
    })
}
