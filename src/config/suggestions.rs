//! Suggestions for words with a slip.

/// Among more words than this a slip gets no suggestion.
const MAX_COMPARED_WORDS: usize = 200;

/// `did you mean "writes"?`, if one of the words is similar enough.
pub(super) fn did_you_mean(typed: &str, words: &[&str]) -> Option<String> {
    // A file of ten thousand names with ten thousand slips would be compared for minutes.
    if words.len() > MAX_COMPARED_WORDS {
        return None;
    }
    let plain = plain_word(typed);
    let distance = |word: &&&str| strsim::damerau_levenshtein(&plain, &plain_word(word));
    let nearest = words.iter().min_by_key(distance)?;
    // A word of which nothing is left is no slip: 3 is not 1.
    let is_similar = distance(&nearest) <= 1 + plain.len() / 4 && distance(&nearest) < plain.len();
    is_similar.then(|| format!("did you mean {nearest:?}?"))
}

/// A word without what spellings differ in: `missingKey`, `missing-key` and `Missing_Key` are alike.
fn plain_word(word: &str) -> String {
    word.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).flat_map(char::to_lowercase).collect()
}
