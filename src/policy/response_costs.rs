//! What a response says of the costs of a route's limits: its head first, then its body while it passes, then its trailers.
//!
//! It names costs and charges nothing. What must always hold: a cost is final only if the response has come to its end,
//! so a response that is cut off gives nothing back.

use http::{HeaderMap, HeaderValue, header};
use smallvec::SmallVec;

use super::cost::{NamedCost, ResponseSource, UnreadCost, named_by_field};
use super::response_body::{BodyScan, JsonPointer};
use super::route::{Route, RouteLimit};
use super::ruleset::MAX_LIMITS_PER_ROUTE;

const _: () = assert!(MAX_LIMITS_PER_ROUTE <= u16::BITS as usize);

/// The costs that one response names, by the index of a limit in its route.
#[derive(Debug)]
pub struct ResponseCosts {
    named: SmallVec<[Option<NamedCost>; 4]>,
    /// The scan of the body, if a cost can still be in it.
    body: Option<BodyScan>,
    /// The limits whose pointers the scan looks for: a bit for each, by its index. No two have equal pointers.
    scanned: u16,
    /// The limits whose cost is asked for: a bit for each, by its index.
    asked: u16,
}

impl ResponseCosts {
    /// The costs that the head names. `limits`: a bit for each limit of the route whose cost is asked for.
    pub fn of_head(route: &Route, limits: u16, status: u16, headers: &HeaderMap) -> Self {
        let unread_body = unread_body(status, headers);
        let mut costs = Self { named: SmallVec::new(), body: None, scanned: 0, asked: limits };
        for (index, limit) in route.limits.iter().enumerate() {
            let source = limit.cost.response_source().filter(|_| limits & 1 << index != 0);
            let named = match (source, unread_body) {
                (Some(ResponseSource::Header(name)), _) => Some(named_by_field(name, headers)),
                (Some(ResponseSource::Body(_)), Some(reason)) => Some(NamedCost::Unread(reason)),
                (Some(ResponseSource::Body(pointer)), None) => {
                    if costs.pointers(route).all(|other| other != pointer) {
                        costs.scanned |= 1 << index;
                    }
                    None
                }
                (Some(ResponseSource::Trailer(_)), _) => None,
                (None, _) => Some(NamedCost::Unread(UnreadCost::Absent)),
            };
            costs.named.push(named.map(|named| limit.cost.bounded(named)));
        }
        if costs.scanned != 0 {
            let count = costs.pointers(route).count();
            costs.body = Some(BodyScan::new(count, is_event_stream(headers)));
        }
        costs
    }

    /// The costs that a log names. `is_end`: the rest of the response names no more.
    pub fn of_log(
        route: &Route,
        is_end: bool,
        named: impl Fn(&ResponseSource) -> Option<NamedCost>,
    ) -> Self {
        let unread = NamedCost::Unread(UnreadCost::Absent);
        let costs = route.limits.iter().map(|limit| match limit.cost.response_source() {
            None => Some(unread),
            Some(source) => {
                let found = named(source).or(is_end.then_some(unread));
                found.map(|found| limit.cost.bounded(found))
            }
        });
        Self { named: costs.collect(), body: None, scanned: 0, asked: u16::MAX }
    }

    /// The cost for one limit of the route; `None` if the rest of the response may name it.
    pub fn named(&self, index: usize) -> Option<NamedCost> {
        self.named.get(index).copied().flatten()
    }

    /// The cost for one limit of the route, if it is asked for and named.
    pub fn asked(&self, index: usize) -> Option<NamedCost> {
        self.named(index).filter(|_| self.asked & 1 << index != 0)
    }

    /// Whether the rest of the response may name a cost.
    pub fn need_rest(&self) -> bool {
        self.named.iter().any(Option::is_none)
    }

    /// Reads the next bytes of the body.
    pub fn read_body(&mut self, route: &Route, bytes: &[u8]) {
        let scanned = self.scanned;
        if let Some(body) = &mut self.body {
            body.push(pointers(route, scanned), bytes);
        }
    }

    /// Reads the trailers.
    pub fn read_trailers(&mut self, route: &Route, trailers: &HeaderMap) {
        for (named, limit) in self.named.iter_mut().zip(&route.limits) {
            if let (None, Some(ResponseSource::Trailer(name))) =
                (&named, limit.cost.response_source())
            {
                *named = Some(limit.cost.bounded(named_by_field(name, trailers)));
            }
        }
    }

    /// Names every cost: the response has ended. `is_complete`: it has come to its end.
    pub fn finish(&mut self, route: &Route, is_complete: bool) {
        let numbers = self
            .body
            .take()
            .map(|body| body.finish(pointers(route, self.scanned), is_complete))
            .unwrap_or_default();
        let missing = if is_complete { UnreadCost::Absent } else { UnreadCost::Incomplete };
        for (named, limit) in self.named.iter_mut().zip(&route.limits) {
            if named.is_some() {
                continue;
            }
            let number = match limit.cost.response_source() {
                Some(ResponseSource::Body(pointer)) => pointers(route, self.scanned)
                    .position(|scanned| scanned == pointer)
                    .and_then(|index| numbers.get(index)),
                Some(ResponseSource::Header(_) | ResponseSource::Trailer(_)) | None => None,
            };
            let read = number.map_or(NamedCost::Unread(missing), |number| (*number).into());
            *named = Some(limit.cost.bounded(read));
        }
    }

    fn pointers<'r>(&self, route: &'r Route) -> impl Iterator<Item = &'r JsonPointer> + Clone {
        pointers(route, self.scanned)
    }
}

impl Route {
    /// Whether the cost under one of its limits is in the body of the response.
    pub fn reads_body(&self) -> bool {
        self.has_cost_in(|source| matches!(source, ResponseSource::Body(_)))
    }

    /// Whether the cost under one of its limits is in a trailer.
    pub fn reads_trailers(&self) -> bool {
        self.has_cost_in(|source| matches!(source, ResponseSource::Trailer(_)))
    }

    fn has_cost_in(&self, is_source: impl Fn(&ResponseSource) -> bool) -> bool {
        let reads = |limit: &RouteLimit| limit.cost.response_source().is_some_and(&is_source);
        self.limits.iter().any(reads)
    }
}

/// The pointers of the limits whose bits are set, in the order of the route.
fn pointers(route: &Route, scanned: u16) -> impl Iterator<Item = &JsonPointer> + Clone {
    let limits = route.limits.iter().enumerate();
    limits.filter(move |(index, _)| scanned & 1 << index != 0).filter_map(|(_, limit)| match limit
        .cost
        .response_source()
    {
        Some(ResponseSource::Body(pointer)) => Some(pointer),
        Some(ResponseSource::Header(_) | ResponseSource::Trailer(_)) | None => None,
    })
}

/// Why the body of a response with this head is not read.
fn unread_body(status: u16, headers: &HeaderMap) -> Option<UnreadCost> {
    let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    match status {
        // These have no body. After a 101 the connection is no longer HTTP.
        101 | 204 | 304 => Some(UnreadCost::Absent),
        // It is not known which part of the document comes.
        206 => Some(UnreadCost::Incomplete),
        _ if !headers.get_all(header::CONTENT_ENCODING).iter().all(is_plain) => {
            Some(UnreadCost::Encoded)
        }
        _ => None,
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.and_then(|value| value.split(';').next());
    media_type.is_some_and(|value| value.trim().eq_ignore_ascii_case("text/event-stream"))
}
