//! The known name that an unknown one probably stands for.
//!
//! Thread: none, plain functions.

/// Returns `; did you mean '...'?` if one of `known` is similar to `name`, else an empty text.
pub fn meant<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    match nearest(name, known) {
        Some(name) => format!("; did you mean '{name}'?"),
        None => String::new(),
    }
}

/// Returns the candidate that is most similar to `name`, if one is similar enough.
pub fn nearest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let lower = name.to_lowercase();
    let mut best = None;
    let mut shortest = usize::MAX;
    for candidate in candidates {
        if let Some(distance) = distance(&lower, candidate)
            && distance < shortest
        {
            shortest = distance;
            best = Some(candidate);
        }
    }
    best
}

/// Returns by how many edits `candidate` differs from a lower-case name; `None` if by too many.
fn distance(name: &str, candidate: &str) -> Option<usize> {
    let length = candidate.chars().count();
    // At most a third of the letters, and never all: two names of one letter have nothing in
    // common.
    let allowed = (length.max(3) / 3).min(length.checked_sub(1)?);
    let lower = candidate.to_lowercase();
    // The lengths alone rule out most candidates.
    if name.chars().count().abs_diff(lower.chars().count()) > allowed {
        return None;
    }
    let distance = strsim::damerau_levenshtein(name, &lower);
    if distance > allowed {
        return None;
    }
    Some(distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_leads_to_the_name_and_nonsense_to_nothing() {
        let known = ["agent", "runtime", "runtimeConfig", "restartPolicy", "tags"];
        for (name, expected) in [
            ("agnet", Some("agent")),
            ("Agent", Some("agent")),
            ("tag", Some("tags")),
            ("runtimeconfig", Some("runtimeConfig")),
            ("restart_policy", Some("restartPolicy")),
            ("image", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name:?}");
        }
        assert_eq!(nearest("B", ["A"]), None, "one letter");
    }

    #[test]
    fn most_similar_of_several_names_is_found_wherever_it_is() {
        for known in [["runtimeXY", "runtimeX"], ["runtimeX", "runtimeXY"]] {
            assert_eq!(nearest("runtime", known), Some("runtimeX"));
        }
    }
}
