//! A reader of markup that is strict enough to find a tag or an attribute that a text has broken.

use std::collections::BTreeSet;

const ELEMENTS: &str = "html head meta title style body header h1 h2 h3 h4 p nav ul li a main section figure figcaption svg \
     desc g rect path div span details summary table caption thead tbody tr th td article dl dt dd pre footer code";

const ATTRIBUTES: &str = "lang charset http-equiv content name id class href aria-label aria-labelledby tabindex role scope \
     viewBox preserveAspectRatio x y width height d vector-effect";

/// Panics if elements are not nested, an element or attribute is none of ours, or an identifier is there twice.
pub(crate) fn check(page: &str) {
    let elements: BTreeSet<&str> = ELEMENTS.split_whitespace().collect();
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
    let (mut open, mut ids) = (Vec::<&str>::new(), BTreeSet::new());
    while let Some((text, after)) = rest.split_once('<') {
        check_text(text, open.last() == Some(&"style"));
        let (tag, after) = after.split_once('>').unwrap();
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "before {:?}", &after[..after.len().min(80)]);
            continue;
        }
        let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(elements.contains(name), "{name}");
        assert_eq!(is_empty, matches!(name, "meta" | "rect" | "path") && is_empty, "{tag}");
        check_attributes(attributes, &mut ids);
        if !is_empty {
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?}");
    for (_, reference) in references(page) {
        reference.split(' ').for_each(|id| assert!(ids.contains(id), "{id}"));
    }
}

fn check_text(text: &str, is_style: bool) {
    assert!(is_style || !text.contains('>'), "{text:?}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    for after in text.split('&').skip(1) {
        let (entity, _) = after.split_once(';').unwrap();
        assert!(["amp", "lt", "gt", "quot", "#39"].contains(&entity), "{entity}");
    }
}

fn check_attributes<'p>(mut attributes: &'p str, ids: &mut BTreeSet<&'p str>) {
    let known: BTreeSet<&str> = ATTRIBUTES.split_whitespace().collect();
    while !attributes.trim().is_empty() {
        let (name, after) = attributes.trim_start().split_once("=\"").unwrap();
        let (value, after) = after.split_once('"').unwrap();
        assert!(known.contains(name), "{name}");
        check_text(value, false);
        assert!(name != "href" || value.starts_with('#'), "{value}");
        assert!(name != "id" || ids.insert(value), "{value} is there twice");
        attributes = after;
    }
}

/// Identifiers that other elements refer to.
fn references(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let of = |name: &'static str| {
        page.split(name).skip(1).filter_map(move |after| Some((name, after.split_once('"')?.0)))
    };
    of("aria-labelledby=\"").chain(of("href=\"#"))
}
