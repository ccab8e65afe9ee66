//! The known name that an unknown one probably stands for.
//!
//! Thread: none, plain functions.

/// `, did you mean '...'?` where one of `known` is similar to `name`.
pub fn meant<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    nearest(name, known).map_or_else(String::new, |name| format!(", did you mean '{name}'?"))
}

/// The candidate that is most similar to `name`, if one is similar enough to be meant.
pub fn nearest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let lower = name.to_lowercase();
    let length = lower.chars().count();
    let similar = |candidate: &'c str| {
        let other = candidate.to_lowercase();
        // Two names of one letter have nothing in common.
        let most =
            (candidate.chars().count().max(3) / 3).min(candidate.chars().count().checked_sub(1)?);
        // The lengths alone tell most of them apart.
        let may_be = length.abs_diff(other.chars().count()) <= most;
        let distance = may_be.then(|| strsim::damerau_levenshtein(&lower, &other))?;
        (distance <= most).then_some((distance, candidate))
    };
    candidates
        .into_iter()
        .filter_map(similar)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
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
}
