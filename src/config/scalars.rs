//! Parses single texts of a configuration: durations, rates, sizes, numbers, networks and names.
//! Every function takes the text as typed and returns the value, or an error in words for the
//! operator. Nothing here knows where a text was written.

use std::time::Duration;

use ipnet::IpNet;

use super::guesses::{boolean_cure, duration_cure, integer_cure, rate_cure, size_cure};
use crate::clock::Nanos;
use crate::limit::{MAX_PERIOD, Rate};
use crate::policy::client::unmapped;
use crate::policy::{CLIENT_NAME_KINDS, canonical_client_name};

/// Longest duration: the longest period of a rate, 366 days.
const MAX_DURATION: Duration = Duration::from_nanos(MAX_PERIOD.get());

/// Longest host name, in bytes (RFC 1035, section 2.3.4).
pub(super) const MAX_HOST_NAME: usize = 253;

/// `500ms`, `10s`, `1m`, `2h` or `1d`; zero is allowed.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || {
        let cure = duration_cure(text);
        format!(
            "{text:?} is not a duration; {}",
            cure.as_deref().unwrap_or("write 500ms, 10s, 1m, 2h or 1d")
        )
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    let duration = number.checked_mul(millis).map(Duration::from_millis);
    duration
        .filter(|duration| *duration <= MAX_DURATION)
        .ok_or_else(|| format!("{text:?} is too long; write at most 366d"))
}

/// A duration above zero.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("{text:?} is zero; write at least 1ms")),
        duration => Ok(duration),
    }
}

/// The name of a client's certificate, in its one spelling.
pub(crate) fn client_name(text: &str) -> Result<String, String> {
    canonical_client_name(text).ok_or_else(|| {
        let kinds = CLIENT_NAME_KINDS.join(", ");
        format!(
            "{text:?} names no certificate; begin it with one of {kinds} (for example dns:a.internal)"
        )
    })
}

/// `5/s` or `60/1m`: a number of units per period of time.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    let wrong = || {
        let cure = rate_cure(text);
        format!(
            "{text:?} is not a rate; {}",
            cure.as_deref().unwrap_or("write for example 5/s or 60/1m")
        )
    };
    let (count, period) = text.split_once('/').ok_or_else(wrong)?;
    let period = match period {
        "s" | "m" | "h" | "d" => duration(&format!("1{period}")),
        period => duration(period).map_err(|_| wrong()),
    }?;
    let count = count.parse::<u64>().map_err(|_| wrong())?;
    let count = u32::try_from(count)
        .map_err(|_| format!("{text:?} is too large; write at most {} units", u32::MAX))?;
    Rate::new(count, Nanos::from(period))
        .map_err(|error| format!("{text:?}: {error}; write for example 5/s or 60/1m"))
}

/// `64KiB`, `1MiB`, `512B` or a number of bytes, in bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let wrong = || {
        let cure = size_cure(text);
        format!(
            "{text:?} is not a size; {}",
            cure.as_deref().unwrap_or("write for example 64KiB or 1MiB")
        )
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let factor = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).ok_or_else(wrong)
}

/// A number from `min` to `max`, both included.
pub(super) fn integer(min: u64, max: u64) -> impl Fn(&str) -> Result<u64, String> {
    move |text| {
        // 010 is 8 to readers of YAML 1.1, and 10 to those of YAML 1.2.
        if let Some(plain) = text.strip_prefix('0').map(|rest| rest.trim_start_matches('0'))
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && text.len() > 1
        {
            let plain = if plain.is_empty() { "0" } else { plain };
            return Err(format!("{text:?} begins with 0, which may mean octal; write {plain}"));
        }
        let number = text.parse::<u64>().ok().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| {
            let wrong = format!("{text:?} is not a whole number from {min} to {max}");
            match integer_cure(text) {
                Some(cure) => format!("{wrong}; {cure}"),
                None => wrong,
            }
        })
    }
}

/// `true` or `false`.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => {
            let cure = boolean_cure(text).unwrap_or("write one of the two");
            Err(format!("{text:?} is neither true nor false; {cure}"))
        }
    }
}

/// Longest name of a limit, a route or an origin, in bytes. Names appear in metrics, logs and header
/// fields.
const MAX_NAME: usize = 64;

/// The cure for a text that is not a name.
pub(super) const NAME_CURE: &str = "use a-z, A-Z, 0-9, _ and -, at most 64";

/// Whether a text is a name: `[a-zA-Z0-9_-]{1,64}`. Names that differ in case are different names.
pub(super) fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

/// Whether a text is a token (RFC 9110, section 5.6.2), as names of cookies are.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// `100%` or `12.5%`, in parts per million; at most four decimals.
pub(super) fn share(text: &str) -> Result<u32, String> {
    let wrong = || {
        let number = text.trim_end_matches('%').trim();
        let cure = match number.parse::<f64>() {
            // 0.25 of all is 25 %.
            Ok(share) if number.starts_with("0.") && !text.contains('%') => {
                format!("write {}%, if you think of this share", share * 100.0)
            }
            Ok(percent) if (0.0..=100.0).contains(&percent) => format!("write {number}%"),
            _ => "write for example 100% or 2.5%".to_owned(),
        };
        format!("{text:?} is not a share; {cure}")
    };
    let number = text.strip_suffix('%').ok_or_else(wrong)?;
    let (percent, decimals) = number.split_once('.').unwrap_or((number, ""));
    if decimals.len() > 4 || !decimals.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let percent: u32 = percent.parse().map_err(|_| wrong())?;
    let decimals: u32 = format!("{decimals:0<4}").parse().map_err(|_| wrong())?;
    let ppm = percent.checked_mul(10_000).and_then(|ppm| ppm.checked_add(decimals));
    ppm.filter(|ppm| *ppm <= 1_000_000).ok_or_else(wrong)
}

/// `10.0.0.0/8`, `2001:db8::/32`, or a single address.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    if let Ok(network) = text.parse::<IpNet>() {
        let truncated = network.trunc();
        if truncated.addr() != network.addr() {
            return Err(format!("{text:?} has bits beyond its prefix; write {truncated}"));
        }
        return Ok(truncated);
    }
    let address = text.parse().map(|address| IpNet::from(unmapped(address)));
    address.map_err(|_| {
        let cure = network_cure(text);
        let cure = cure.as_deref().unwrap_or("write 10.0.0.0/8 or 203.0.113.7");
        format!("{text:?} is not a network; {cure}")
    })
}

/// `write 10.0.0.0/8` for `10.0.0.0/255.0.0.0` and `10.*.*.*`.
fn network_cure(text: &str) -> Option<String> {
    if text.contains([',', ' ']) {
        return Some("write a list, as [10.0.0.0/8, 192.168.0.0/16]".to_owned());
    }
    if text == "localhost" {
        return Some("write 127.0.0.0/8".to_owned());
    }
    if let Some((address, mask)) = text.split_once('/')
        && let (Ok(address), Ok(mask)) = (address.parse(), mask.parse())
        && let Ok(network) = IpNet::with_netmask(address, mask)
    {
        return Some(format!("write {}", network.trunc()));
    }
    let octets: Vec<&str> = text.split('.').collect();
    let fixed = octets.iter().take_while(|octet| octet.parse::<u8>().is_ok()).count();
    let has_stars = octets.len() <= 4 && octets[fixed..].iter().all(|octet| *octet == "*");
    (has_stars && fixed > 0 && fixed < octets.len()).then(|| {
        let zeros = ".0".repeat(4 - fixed);
        format!("write {}{zeros}/{}", octets[..fixed].join("."), 8 * fixed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_text_is_parsed_or_refused() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7_200)));
        assert!(duration("10").is_err() && duration("1.5s").is_err() && duration("400d").is_err());
        assert_eq!(rate("5/s"), Ok(Rate::new(5, Nanos::SECOND).unwrap()));
        assert_eq!(rate("300/5m"), Ok(Rate::new(300, Nanos::from_secs(300)).unwrap()));
        assert!(rate("0/s").is_err() && rate("5").is_err() && rate("5/x").is_err());
        assert!(rate("5000000000/s").is_err() && rate("-1/s").is_err());
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("512"), Ok(512));
        assert!(size("64kb").is_err() && size("99999999999999999999").is_err());
        assert_eq!(share("100%"), Ok(1_000_000));
        assert_eq!(share("2.5%"), Ok(25_000));
        assert!(share("101%").is_err() && share("5").is_err());
        assert!(is_name("a-1") && is_name("_A_b-") && is_name(&"Z".repeat(64)));
        for text in ["", "a.b", "a b", "a\"", "a\0", "\u{e9}", &"a".repeat(65)] {
            assert!(!is_name(text), "{text:?}");
        }
    }
}
