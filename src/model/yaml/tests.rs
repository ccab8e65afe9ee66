//! What texts become, and the errors of those that become nothing.

use super::*;

fn whole(text: &str) -> Result<Yaml, YamlError> {
    read(text, Origin::Others).map(|document| document.root)
}

fn plain(kind: Plain, text: &str) -> Content {
    Content::Plain(kind, text.into())
}

#[test]
fn scalars_keep_their_source_text_and_kind() {
    for (text, expected) in [
        ("1.10", plain(Plain::Float, "1.10")),
        ("0x1F", plain(Plain::Integer, "0x1F")),
        ("+7", plain(Plain::Integer, "+7")),
        ("-0o17", plain(Plain::Integer, "-0o17")),
        ("-.inf", plain(Plain::Float, "-.inf")),
        ("true", plain(Plain::Boolean, "true")),
        ("'1.10'", Content::Text("1.10".into())),
        ("yes", Content::Text("yes".into())),
        ("007", Content::Text("007".into())),
        ("+-1", Content::Text("+-1".into())),
        ("inf", Content::Text("inf".into())),
        ("0x", Content::Text("0x".into())),
        ("~", plain(Plain::Null, "~")),
        ("", plain(Plain::Null, "")),
        (
            "99999999999999999999",
            plain(Plain::Integer, "99999999999999999999"),
        ),
        ("!!str 5", Content::Text("5".into())),
        ("!!int '5'", plain(Plain::Integer, "5")),
        ("!own '5'", Content::Text("5".into())),
    ] {
        assert_eq!(whole(text).unwrap().content, expected, "{text:?}");
    }
    let tree = whole("a: [1.0, {2.0: x, b: &v 3.0}]\nc: *v\nd: !tag 4.0\n").unwrap();
    let Content::List(items) = &tree.get("a").unwrap().content else {
        panic!("{tree:?}")
    };
    assert_eq!(items[0].content, plain(Plain::Float, "1.0"));
    assert_eq!(
        items[1].get("2.0").unwrap().content,
        Content::Text("x".into())
    );
    assert_eq!(tree.get("c").unwrap().content, plain(Plain::Float, "3.0"));
    assert_eq!(tree.get("d").unwrap().content, plain(Plain::Float, "4.0"));
    assert_eq!(
        (tree.get("b"), tree.get("d").unwrap().get("e")),
        (None, None)
    );
}

#[test]
fn what_is_not_one_document_is_refused_with_the_line() {
    for (text, part, line) in [
        ("a: [1", "did not find expected ',' or ']'", Some(2)),
        (
            "a: 1\nb: 2\na: 3\n",
            "duplicate entry with key \"a\"",
            Some(3),
        ),
        (
            "a:\n  b: 1\n  c: 2\n  b: 3\n",
            "a: duplicate entry with key \"b\"",
            Some(4),
        ),
        (
            "a: 1\n---\nb: 2\n",
            "more than one document is not supported: the second one begins at line 2 column 1",
            Some(2),
        ),
        (
            "a: 1\n---\nb: [2\n",
            "more than one document is not supported",
            Some(2),
        ),
        (
            "\u{feff}---\na: 1\n---\nb: 2\n",
            "the second one begins at line 3 column 1",
            Some(3),
        ),
        (
            "\u{feff}a: 1\na: 2\n",
            "duplicate entry with key \"a\" at line 2 column 1",
            Some(2),
        ),
        ("a: *nobody\n", "unknown anchor", Some(1)),
        (
            "a: &x 1\n---\nb: *x\n",
            "more than one document is not supported",
            Some(2),
        ),
        ("a: b: c\n", "mapping values are not allowed", Some(1)),
        (
            "a: [0, {b: !!int x}]\n",
            "a[1].b: invalid value, expected an integer at line 1 column 12",
            Some(1),
        ),
    ] {
        let error = whole(text).unwrap_err();
        assert!(error.message.contains(part), "{text:?}: {error}");
        assert_eq!(error.location.map(|at| at.line), line, "{text:?}: {error}");
    }
}

#[test]
fn text_with_byte_order_mark_is_read_as_without() {
    for text in ["", "a: 1", "a: 1\n", "---\na: [x]\n...\n", "# c\na: 1\n"] {
        assert_eq!(whole(&format!("\u{feff}{text}")), whole(text), "{text:?}");
    }
    assert_eq!(
        whole("a: '\u{feff}'")
            .unwrap()
            .get("a")
            .and_then(Yaml::scalar),
        Some("\u{feff}")
    );
}

/// The entries of `key` in a text, sorted.
fn entries(text: &str, key: &str) -> Vec<(String, String)> {
    let root = whole(text).unwrap();
    let Content::Map(entries) = &root.get(key).unwrap().content else {
        panic!("{root:?}")
    };
    let texts = |node: &Yaml| node.scalar().map_or_else(|| node.describe(), str::to_owned);
    let mut entries: Vec<_> = entries
        .iter()
        .map(|(key, value)| (texts(key), texts(value)))
        .collect();
    entries.sort();
    entries
}

#[test]
fn merge_key_adds_what_its_mapping_does_not_have() {
    let bases = "x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\n";
    for (map, expected) in [
        ("{<<: *x}", "a 1 b 2"),
        ("{<<: *x, b: 9}", "a 1 b 9"),
        ("{b: 9, <<: *x}", "a 1 b 9"),
        ("{<<: [*x, *y]}", "a 1 b 2 c 4"),
        ("{<<: [*y, *x], d: 5}", "a 1 b 3 c 4 d 5"),
        ("{<<: {e: 6, a: 0}, a: 7}", "a 7 e 6"),
        ("{<<: {<<: *x, c: 8}, b: 9}", "a 1 b 9 c 8"),
        ("{<<: []}", ""),
        ("{<<: {}, a: 1}", "a 1"),
        ("{!!merge '<<': *x}", "a 1 b 2"),
        // In quotes, with another tag or as a value it is a text.
        ("{'<<': z}", "<< z"),
        ("{\"<<\": z, a: 1}", "<< z a 1"),
        ("{!!str <<: z}", "<< z"),
        ("{a: <<, b: 2}", "a << b 2"),
    ] {
        let found = entries(&format!("{bases}map: {map}\n"), "map");
        let found: Vec<String> = found
            .into_iter()
            .flat_map(|(key, value)| [key, value])
            .collect();
        assert_eq!(found.join(" "), expected, "{map}");
    }
    let chain: String = (1..200)
        .map(|n| format!("l{n}: &l{n} {{<<: *l{}, k{n}: x}}\n", n - 1))
        .collect();
    assert!(
        read(&format!("l0: &l0 {{k: x}}\n{chain}"), Origin::Own).is_ok(),
        "a chain of them is not nested deep"
    );
}

#[test]
fn merge_key_without_mappings_is_refused_with_its_line() {
    for (text, message) in [
        (
            "a:\n  <<: 5\n",
            "a: number 5 found at '<<', expected a mapping or a list of mappings at line 2 column 3",
        ),
        (
            "a:\n  <<:\n",
            "a: nothing found at '<<', expected a mapping or a list of mappings at line 2 column 3",
        ),
        (
            "x: &x t\na: {<<: *x}\n",
            "a: text 't' found at '<<', expected",
        ),
        (
            "x: &x [t]\na: {<<: [*x]}\n",
            "a: a list found at '<<', expected",
        ),
        (
            "a: {<<: {b: 1},\n <<: {c: 2}}\n",
            "a: duplicate entry with key \"<<\" at line 2 column 2",
        ),
        (
            "a: &a {<<: *a}\n",
            "the alias '*a' is inside of its own anchor",
        ),
        (
            "x: &x {a: 1}\na: {<<: *x, b: 1,\n b: 2}\n",
            "a: duplicate entry with key \"b\" at line 3 column 2",
        ),
    ] {
        let error = whole(text).unwrap_err().message;
        assert!(error.starts_with(message), "{text:?}: {error}");
    }
}

#[test]
fn keys_and_values_are_found_again() {
    let root = whole("workloads:\n  web:\n    files:\n    - a: 1\n  7: {tags: [p, q]}\n").unwrap();
    for (path, key, value) in [
        (&["workloads"][..], (1, 1), (2, 3)),
        (&["workloads", "web", "files"], (3, 5), (4, 5)),
        (&["workloads", "7", "tags"], (5, 7), (5, 13)),
    ] {
        let at = |(line, column)| Location { line, column };
        let found = root.entry_at(path).map(|(key, value)| (key.at, value.at));
        assert_eq!(found, Some((at(key), at(value))), "{path:?}");
    }
    for path in [&[][..], &["nobody"], &["workloads", "web", "files", "a"]] {
        assert_eq!(root.entry_at(path), None, "{path:?}");
    }
}

#[test]
fn what_nests_too_deep_is_an_error_and_no_crash() {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert!(whole(&deep(128)).is_ok());
    for text in [
        deep(129),
        "[".repeat(100_000),
        format!(
            "a: &a {}\nb: {}*a{}",
            deep(100),
            "[".repeat(50),
            "]".repeat(50)
        ),
    ] {
        let error = whole(&text).unwrap_err();
        assert!(
            error.message.contains("nested more than 128 deep"),
            "{error}"
        );
    }
}

const MANY: usize = 20_000;

/// Texts that become much because of aliases or prefixes of tags.
fn bombs() -> Vec<(&'static str, String)> {
    let kilobytes = "x".repeat(20_000);
    vec![
        (
            "one text",
            format!("a: &a {kilobytes}\nb: [{}]\n", "*a, ".repeat(MANY)),
        ),
        (
            "a list",
            format!(
                "a: &a [{}]\nb: [{}]\n",
                "x, ".repeat(100),
                "*a, ".repeat(MANY)
            ),
        ),
        (
            "keys",
            format!("a: &a {kilobytes}\nb: [{}]\n", "{*a : x}, ".repeat(MANY)),
        ),
        ("lists of lists", {
            let level =
                |n: usize| format!("l{n}: &l{n} [{}]\n", format!("*l{}, ", n - 1).repeat(100));
            format!(
                "l0: &l0 x\n{}{}{}{}",
                level(1),
                level(2),
                level(3),
                level(4)
            )
        }),
        (
            "an anchor that is there twice",
            format!("- &a x\n- &a {kilobytes}\n- [{}]\n", "*a, ".repeat(MANY)),
        ),
        (
            "tags",
            format!(
                "%TAG !e! tag:{kilobytes}\n---\n[{}]\n",
                "!e!a x, ".repeat(MANY)
            ),
        ),
        (
            "what nobody looks at",
            format!(
                "image: x\nunknown: [&a {kilobytes}, {}]\n",
                "*a, ".repeat(MANY)
            ),
        ),
        (
            "a merged mapping",
            format!(
                "a: &a {{k: {kilobytes}}}\nb: [{}]\n",
                "{<<: *a}, ".repeat(MANY)
            ),
        ),
        (
            "many merged mappings",
            format!(
                "a: &a {{k: {kilobytes}}}\nb: {{<<: [{}]}}\n",
                "*a, ".repeat(MANY)
            ),
        ),
        ("merged mappings with many entries", {
            let entries: String = (0..1000).map(|key| format!("k{key}: x, ")).collect();
            format!("a: &a {{{entries}}}\nb: [{}]\n", "{<<: *a}, ".repeat(MANY))
        }),
        ("merged mappings of merged mappings", {
            let level = |n: usize| {
                format!(
                    "l{n}: &l{n} {{k{n}: [{}]}}\n",
                    format!("{{<<: *l{}}}, ", n - 1).repeat(100)
                )
            };
            format!(
                "l0: &l0 {{k: x}}\n{}{}{}{}",
                level(1),
                level(2),
                level(3),
                level(4)
            )
        }),
        ("merged mappings in one another", {
            let entries: String = (0..MANY).map(|key| format!("k{key}: x, ")).collect();
            format!(
                "a: {}{{{entries}}}{}\n",
                "{<<: ".repeat(100),
                "}".repeat(100)
            )
        }),
        (
            "indented lines",
            format!(
                "a: &a \"{}\"\nb: [{}]\n",
                "a\\n".repeat(1000),
                format!("{}*a{}, ", "[".repeat(90), "]".repeat(90)).repeat(400)
            ),
        ),
    ]
}

#[test]
fn what_becomes_of_aliases_and_tags_is_bounded_by_bytes() {
    for (what, text) in bombs() {
        for (origin, bound) in [
            (Origin::Own, "67108864 bytes longer"),
            (Origin::Others, "4194304 bytes"),
        ] {
            for error in [read(&text, origin).err(), read_all(&text, origin).err()] {
                let message = error.map(|error| error.message).unwrap_or_default();
                let expected = format!("the YAML text becomes more than {bound} when");
                assert!(message.starts_with(&expected), "{what}: {message}");
            }
        }
    }
    let second = format!(
        "a\n---\na: &a {}\nb: [{}]\n",
        "x".repeat(20_000),
        "*a, ".repeat(MANY)
    );
    assert!(
        read_all(&second, Origin::Own)
            .unwrap_err()
            .message
            .contains("its aliases are followed")
    );
    for text in ["a: &a [*a]", "&a {x: [1, {y: *a}]}", "? &a [*a]\n: x"] {
        assert_eq!(
            whole(text).unwrap_err().message,
            "the alias '*a' is inside of its own anchor",
            "{text}"
        );
    }
}

#[test]
fn what_has_no_alias_counts_only_where_others_sent_it() {
    for (what, text) in [
        (
            "keys without values",
            format!(
                "{{{}}}",
                (0..2 * MANY)
                    .map(|key| format!("{key}, "))
                    .collect::<String>()
            ),
        ),
        ("nodes", format!("[{}]", "x,".repeat(2 * MANY))),
        (
            "long tags",
            format!(
                "[{}]",
                format!("!<tag:{}> x, ", "x".repeat(20_000)).repeat(300)
            ),
        ),
        (
            "indented lines",
            format!(
                "{}\"{}\"{}",
                "[".repeat(100),
                "a\\n".repeat(2 * MANY),
                "]".repeat(100)
            ),
        ),
        ("a long text", "x".repeat(OTHERS_MAX + 1)),
    ] {
        let refused = whole(&text).unwrap_err().message;
        assert!(
            refused.starts_with("the YAML text becomes more than 4194304 bytes when it is read"),
            "{what}: {refused}"
        );
        assert!(read(&text, Origin::Own).is_ok(), "{what}");
    }
}

#[test]
fn text_of_exactly_the_bound_is_read() {
    let longest = OTHERS_MAX - NODE_BYTES;
    assert!(whole(&"x".repeat(longest)).is_ok());
    assert!(whole(&"x".repeat(longest + 1)).is_err());
}

#[test]
fn aliases_within_the_bound_are_followed() {
    let many = 700;
    let tree = whole(&format!(
        "a: &a {{k: [1, 2]}}\nb: [{}]\nc: &a x\nd: *a\n",
        "*a, ".repeat(many)
    ))
    .unwrap();
    let Content::List(items) = &tree.get("b").unwrap().content else {
        panic!("{tree:?}")
    };
    assert_eq!(items.len(), many);
    assert!(
        items.iter().all(|item| Some(item) == tree.get("a")),
        "also their places are those of the anchor"
    );
    assert_eq!(tree.get("d").unwrap().scalar(), Some("x"));
    let documents = read_all("--- &a x\n--- y\n", Origin::Own).unwrap();
    assert_eq!(
        documents.iter().map(Yaml::scalar).collect::<Vec<_>>(),
        [Some("x"), Some("y")]
    );
}

#[test]
fn scalar_that_does_not_fit_its_tag_is_refused() {
    for (text, expected) in [
        ("!!null x", "invalid value, expected null"),
        ("!!bool x", "invalid value, expected a boolean"),
        ("!!int x", "invalid value, expected an integer"),
        ("!!float x", "invalid value, expected a float"),
    ] {
        let message = whole(text).unwrap_err().message;
        assert!(message.contains(expected), "{text}: {message}");
    }
    for text in [
        "!!null ~",
        "!!bool true",
        "!!int 1",
        "!!float 1",
        "!!float 1.5",
    ] {
        assert!(whole(text).is_ok(), "{text}");
    }
}

#[test]
fn character_that_is_not_allowed_is_refused_with_its_position() {
    let message = whole("ab\u{1}").unwrap_err().message;
    assert!(message.contains(" at position 2"), "{message}");
}
