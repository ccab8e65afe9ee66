//! Habits of this code base that can be checked by reading the files: each rule is a function from
//! a file to violations, each violation names file, line and rule.
//!
//! What a compiler or clippy can check is left to them (`clippy.toml`, `[workspace.lints]` in
//! `Cargo.toml`).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Files that may contain `unsafe`, and what for; each block says there why it is sound.
const UNSAFE_FILES: [(&str, &str); 8] = [
    (
        "src/platform/child.rs",
        "a child gives up our protection between fork and exec",
    ),
    (
        "src/platform/memory.rs",
        "settings of the C library's allocator, which has no safe interface",
    ),
    (
        "src/model/yaml/events.rs",
        "the events of a YAML text one by one, which only the parser itself gives",
    ),
    (
        "src/wire/client.rs",
        "gRPC takes a connected socket by its number",
    ),
    (
        "src/wire/grpc_parts.rs",
        "the library's list of its parts is replaced by ours",
    ),
    (
        "src/wire/listener.rs",
        "who is at the other end of a socket; the safe call cannot hold process id 0",
    ),
    (
        "src/wire/server_endpoint.rs",
        "gRPC takes a connected socket by its number",
    ),
    (
        "src/simulation/coroutine.rs",
        "tests only: the running coroutine finds its own stack",
    ),
];

/// Files that may call what `clippy.toml` forbids: each is the one place where that is done.
const EXEMPT_FILES: [&str; 3] = [
    "src/platform/child.rs",
    "src/platform/clock.rs",
    "src/platform/threads.rs",
];

/// Files that search words with blanks in a text, and whose words. Elsewhere texts are for people:
/// programs decide by values, so that a better word changes no decision.
const WORD_READERS: [(&str, &str); 11] = [
    (
        "src/runtime/call_error.rs",
        "what engines write when a call fails",
    ),
    (
        "src/runtime/engine_version.rs",
        "versions that engines print",
    ),
    (
        "src/model/refusal.rs",
        "refusals of servers that send no reason",
    ),
    (
        "src/model/guarded_update.rs",
        "reasons of servers that send no cause",
    ),
    (
        "src/model/reason.rs",
        "states of programs that send no reason",
    ),
    ("src/agent/resources.rs", "files of the kernel"),
    ("src/runtime/out_of_memory.rs", "files of the kernel"),
    (
        "src/wire/grpc.rs",
        "the user agent of a call, which has a number",
    ),
    ("src/wire/key_kinds.rs", "the format PEM"),
    (
        "src/platform/settings.rs",
        "texts with keys, which no error may quote",
    ),
    (
        "src/cli/rows.rs",
        "shown texts that would say the same twice",
    ),
];

/// Calls that search a text.
const SEARCHES: [&str; 9] = [
    ".contains(\"",
    ".starts_with(\"",
    ".ends_with(\"",
    ".strip_prefix(\"",
    ".strip_suffix(\"",
    ".find(\"",
    ".rfind(\"",
    ".split_once(\"",
    ".rsplit_once(\"",
];

/// Crates of async runtimes, and what would bring one.
const ASYNC_CRATES: [&str; 6] = [
    "tokio",
    "async-std",
    "smol",
    "async-executor",
    "tonic",
    "hyper",
];

/// Test programs of one file. All others have a folder below `tests/` with a `main.rs`: each
/// program is linked, and compiles what it shares with the others, once more.
const TEST_PROGRAMS: [&str; 3] = [
    "tests/cross_qemu.rs",
    "tests/fuzz_bounded.rs",
    "tests/tidy.rs",
];

/// Words that a comment in plain English does without: German in English words, persons in the
/// place of threads, and verbs that leave open whether something is a plan or a ban.
const UNPLAIN_WORDS: [&str; 23] = [
    "anew",
    "besides",
    "greedy",
    "modest",
    "stranger",
    "strangers",
    "farewell",
    "whoever",
    "somebody",
    "nobody",
    "thereby",
    "hereby",
    "shall",
    "told",
    "for ever",
    "may not",
    "so long",
    "so many",
    "from now on",
    "is to be",
    "are to be",
    "all the same",
    "in case that",
];
/// Words that begin a clause in the place of a noun when one of [`CLAUSE_VERBS`] follows.
const CLAUSE_WORDS: [&str; 5] = ["what", "who", "whose", "whoever", "whatever"];
const CLAUSE_VERBS: [&str; 22] = [
    "is", "are", "was", "were", "waits", "has", "have", "had", "goes", "comes", "runs", "needs",
    "may", "can", "lasts", "begins", "others", "it", "they", "nobody", "somebody", "there",
];
/// Longest name of a test, in characters: with its module it stays on one line.
const TEST_NAME_MAX: usize = 60;

/// The remaining texts of a room that are not plain. A number may only fall.
struct Unplain {
    room: &'static str,
    /// [`UNPLAIN_WORDS`] in comments.
    words: usize,
    /// Clauses in the place of a noun in the first lines of comments.
    clauses: usize,
    /// Names of tests above [`TEST_NAME_MAX`].
    test_names: usize,
}

impl Unplain {
    const fn left(room: &'static str, words: usize, clauses: usize, test_names: usize) -> Self {
        Self {
            room,
            words,
            clauses,
            test_names,
        }
    }
}

const UNPLAIN_LEFT: [Unplain; 11] = [
    Unplain::left("agent", 0, 0, 0),
    Unplain::left("bin", 0, 0, 0),
    Unplain::left("cli", 0, 0, 0),
    Unplain::left("fakes", 0, 0, 0),
    Unplain::left("model", 0, 0, 0),
    Unplain::left("platform", 0, 0, 0),
    Unplain::left("runtime", 0, 0, 0),
    Unplain::left("server", 0, 0, 0),
    Unplain::left("simulation", 0, 0, 0),
    Unplain::left("tests", 0, 1, 0),
    Unplain::left("wire", 0, 0, 0),
];

/// One source file: its path from the top of the repository, its text, and its text without the
/// contents of comments and strings.
struct Source {
    path: String,
    text: String,
    code: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: blank_comments_and_strings(text),
        }
    }

    fn is_test(&self) -> bool {
        self.path.starts_with("tests/")
            || self.path.ends_with("/tests.rs")
            || self.path.contains("/tests/")
    }

    /// The folder below `src/`; `tests` for all files there.
    fn room(&self) -> &str {
        let mut parts = self.path.split('/');
        match parts.next() {
            Some("src") => parts.next().unwrap_or_default(),
            first => first.unwrap_or_default(),
        }
    }

    fn violation(&self, line: usize, rule: &str) -> String {
        format!("{}:{line}: {rule}", self.path)
    }
}

#[test]
fn sources_keep_the_rules() {
    let sources = sources();
    assert!(
        sources.iter().any(|source| source.path == "src/lib.rs"),
        "the rules found no sources to look at"
    );
    let mut violations: Vec<String> = sources
        .iter()
        .flat_map(|source| {
            [
                header(source),
                leftovers(source),
                unsafe_code(source),
                exempt(source),
                decisions_by_words(source),
            ]
        })
        .flatten()
        .collect();
    for source in &sources {
        match source.path.as_str() {
            "src/lib.rs" => violations.extend(map_is_true(source, &sources)),
            path if path.starts_with("tests/") => violations.extend(test_module(source, &sources)),
            _ => violations.extend(undeclared_module(source, &sources)),
        }
    }
    report(&violations);
}

#[test]
fn no_room_has_more_unplain_texts_than_it_had() {
    let sources = sources();
    let mut violations = vec![];
    for left in UNPLAIN_LEFT {
        let files = || sources.iter().filter(|source| source.room() == left.room);
        let kinds: [(&str, usize, Rule); 3] = [
            ("unplain words", left.words, unplain_words),
            ("clauses in first lines", left.clauses, clauses),
            ("long names of tests", left.test_names, long_test_names),
        ];
        for (kind, max, rule) in kinds {
            let found: Vec<String> = files().flat_map(rule).collect();
            if found.len() > max {
                let count = found.len();
                violations.push(format!("{}: {count} {kind}, at most {max}:", left.room));
                violations.extend(found);
            }
        }
    }
    report(&violations);
}

#[test]
fn no_async_runtime_is_locked() {
    report(&async_crates(
        &fs::read_to_string(top().join("Cargo.lock")).unwrap(),
    ));
}

/// Cargo.toml names the build script of the programs. An empty one at the top would be no error,
/// and look as if it were the one.
#[test]
fn the_only_build_script_is_the_one_that_cargo_toml_names() {
    let manifest = fs::read_to_string(top().join("Cargo.toml")).unwrap();
    assert!(
        manifest
            .lines()
            .any(|line| line == "build = \"cross/link.rs\""),
        "another build script"
    );
    assert!(
        !top().join("build.rs").exists(),
        "build.rs at the top is never run: remove it"
    );
}

#[track_caller]
fn report(violations: &[String]) {
    assert!(
        violations.is_empty(),
        "{} violations:\n{}",
        violations.len(),
        violations.join("\n")
    );
}

// -------------------------------------------------------------------- rules

/// Each file begins with a header; in `src/` it names the thread that runs the file.
fn header(source: &Source) -> Vec<String> {
    let header: Vec<&str> = source
        .text
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .collect();
    if header.is_empty() {
        return vec![
            source.violation(1, "begins with a `//!` header that says what the file does"),
        ];
    }
    let is_test = source.is_test();
    let names_thread = header.iter().any(|line| line.trim().starts_with("Thread:"));
    if is_test || names_thread || source.path == "src/lib.rs" {
        return vec![];
    }
    vec![source.violation(
        1,
        "has a header line `Thread:` with the thread that runs it, or `Thread: none`",
    )]
}

/// Nothing unfinished and no test that does not run.
fn leftovers(source: &Source) -> Vec<String> {
    let fix_me = concat!("FIX", "ME");
    let code = lines_with(&source.code, |line| {
        line.contains("todo!(") || line.contains("unimplemented!(") || line.contains("#[ignore")
    });
    let text = lines_with(&source.text, |line| line.contains(fix_me));
    code.chain(text)
        .map(|line| source.violation(line, "is finished: no todo, no test that does not run"))
        .collect()
}

/// `unsafe` only where it is listed, and a reason with each block there; a file that needs none any
/// more is not listed.
fn unsafe_code(source: &Source) -> Vec<String> {
    let uses: Vec<usize> = lines_with(&source.code, |line| {
        words(line).any(|word| word == "unsafe")
    })
    .collect();
    if !UNSAFE_FILES.iter().any(|(path, _)| *path == source.path) {
        let rule = "`unsafe` only in the files that tests/tidy.rs lists";
        return uses
            .into_iter()
            .map(|line| source.violation(line, rule))
            .collect();
    }
    let reasons = source.text.matches("// SAFETY:").count();
    if uses.is_empty() || reasons < uses.len() {
        return vec![source.violation(
            1,
            "is listed for `unsafe`: each use has a comment `// SAFETY:`",
        )];
    }
    vec![]
}

/// No shipped code searches a text for words with a blank, except in the files that are listed.
fn decisions_by_words(source: &Source) -> Vec<String> {
    let is_shipped = !source.is_test() && !["simulation", "fakes"].contains(&source.room());
    let is_listed = WORD_READERS.iter().any(|(path, _)| *path == source.path);
    if !is_shipped || is_listed {
        return vec![];
    }
    let shipped = source.text.split("#[cfg(test)]\nmod tests").next();
    lines_with(shipped.unwrap_or_default(), searches_words)
        .map(|line| source.violation(line, "decides by a value, not by words of a text"))
        .collect()
}

fn searches_words(line: &str) -> bool {
    SEARCHES.iter().any(|search| {
        let literals = line.split(search).skip(1);
        let mut words = literals.filter_map(|rest| rest.split('"').next());
        words.any(|words| words.contains(' ') && words.contains(char::is_alphabetic))
    })
}

/// What clippy.toml forbids is allowed only where it is listed. Tests may do it.
fn exempt(source: &Source) -> Vec<String> {
    if source.is_test() || EXEMPT_FILES.contains(&source.path.as_str()) {
        return vec![];
    }
    lines_with(&source.code, |line| {
        line.contains("clippy::disallowed_methods") && !line.contains("cfg_attr(test")
    })
    .map(|line| {
        source.violation(
            line,
            "allows disallowed methods only in the files that tests/tidy.rs lists",
        )
    })
    .collect()
}

/// The words of a comment in lower case, with a blank around each; `None` for other lines and for
/// tags of requirements.
fn comment_words(line: &str) -> Option<String> {
    let comment = line.trim().strip_prefix("//")?.to_lowercase();
    if comment.contains("->swdd~") {
        return None;
    }
    let words: Vec<&str> = words(&comment).filter(|word| !word.is_empty()).collect();
    Some(format!(" {} ", words.join(" ")))
}

fn unplain_words(source: &Source) -> Vec<String> {
    let mut found = vec![];
    for (index, line) in source.text.lines().enumerate() {
        let Some(comment) = comment_words(line) else {
            continue;
        };
        for word in UNPLAIN_WORDS {
            if comment.contains(&format!(" {word} ")) {
                found.push(source.violation(index + 1, &format!("'{word}' has a plainer word")));
            }
        }
    }
    found
}

/// Clauses in the first line of a comment, such as "what is wanted": a noun says more.
fn clauses(source: &Source) -> Vec<String> {
    let mut found = vec![];
    let mut is_in_comment = false;
    for (index, line) in source.text.lines().enumerate() {
        let comment = comment_words(line);
        if let Some(comment) = &comment
            && !is_in_comment
            && has_clause(comment)
        {
            found.push(source.violation(index + 1, "begins with the noun, not with a clause"));
        }
        is_in_comment = comment.is_some();
    }
    found
}

fn has_clause(comment: &str) -> bool {
    let words: Vec<&str> = comment.split_whitespace().collect();
    let mut pairs = words.windows(2);
    pairs.any(|pair| CLAUSE_WORDS.contains(&pair[0]) && CLAUSE_VERBS.contains(&pair[1]))
}

fn long_test_names(source: &Source) -> Vec<String> {
    let mut found = vec![];
    let mut is_test = false;
    for (index, line) in source.text.lines().enumerate() {
        let line = line.trim();
        if line == "#[test]" {
            is_test = true;
        }
        let Some(rest) = line.strip_prefix("fn ") else {
            continue;
        };
        let name = words(rest).next().unwrap_or_default();
        if is_test && name.len() > TEST_NAME_MAX {
            let rule = format!("a test has a name of at most {TEST_NAME_MAX} characters");
            found.push(source.violation(index + 1, &rule));
        }
        is_test = false;
    }
    found
}

/// The map in the crate docs names every room, and no file or folder that does not exist.
fn map_is_true(lib: &Source, sources: &[Source]) -> Vec<String> {
    let map = parse_map(&lib.text);
    let files = || {
        sources
            .iter()
            .filter_map(|source| source.path.strip_prefix("src/"))
    };
    let rooms: BTreeSet<&str> = files()
        .filter_map(|file| file.split_inclusive('/').next())
        .collect();
    let rooms: BTreeSet<&str> = rooms
        .into_iter()
        .filter(|room| room.ends_with('/'))
        .collect();
    let unnamed = rooms.iter().filter(|room| !map.contains(**room));
    let unnamed = unnamed.map(|room| lib.violation(1, &format!("the map does not name '{room}'")));
    let exists = |name: &str| {
        files().any(|file| file == name || (name.ends_with('/') && file.starts_with(name)))
    };
    let stale = map.iter().filter(|name| !exists(name));
    let stale = stale
        .map(|name| lib.violation(1, &format!("the map names '{name}', which does not exist")));
    unnamed.chain(stale).collect()
}

/// A test file belongs to the program of its level, whose `main.rs` names it: else nothing compiles
/// it.
fn test_module(source: &Source, sources: &[Source]) -> Vec<String> {
    let Some((folder, name)) = source.path.rsplit_once('/') else {
        return vec![];
    };
    if folder == "tests" && !TEST_PROGRAMS.contains(&source.path.as_str()) {
        return vec![source.violation(
            1,
            "is a module of a program such as tests/process/main.rs, not one more program",
        )];
    }
    let main = sources
        .iter()
        .find(|main| main.path == format!("{folder}/main.rs"));
    let named = |main: &Source| {
        main.code
            .contains(&format!("mod {};", name.trim_end_matches(".rs")))
    };
    if name == "main.rs" || main.is_none_or(named) {
        return vec![];
    }
    vec![source.violation(1, &format!("is a module of {folder}/main.rs"))]
}

/// A file below `src/` is a module of the file or folder above it: else nothing compiles it, and
/// its tests never run.
fn undeclared_module(source: &Source, sources: &[Source]) -> Vec<String> {
    let module = source.path.trim_end_matches(".rs");
    let module = module.trim_end_matches("/mod");
    let Some((folder, name)) = module.rsplit_once('/') else {
        return vec![];
    };
    // Each of these begins a crate or a program.
    if folder == "src/bin" || name == "lib" || name == "build" {
        return vec![];
    }
    let parents = ["/lib.rs", "/mod.rs", ".rs"].map(|end| format!("{folder}{end}"));
    let declaration = format!("mod {name};");
    for parent in sources {
        if parents.contains(&parent.path) && parent.code.contains(&declaration) {
            return vec![];
        }
    }
    vec![source.violation(1, "is not compiled: no file has it as a module")]
}

fn async_crates(lock: &str) -> Vec<String> {
    lock.lines()
        .filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .filter(|name| ASYNC_CRATES.contains(name))
        .map(|name| format!("Cargo.lock: no async runtime, directly or through others: '{name}'"))
        .collect()
}

// ------------------------------------------------------------ reading files

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let mut paths = vec![];
    for folder in ["src", "tests"] {
        collect(&top().join(folder), &mut paths);
    }
    paths.sort();
    paths
        .iter()
        .map(|path| Source::new(path, &fs::read_to_string(top().join(path)).unwrap()))
        .collect()
}

fn collect(folder: &Path, paths: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(
                path.strip_prefix(top())
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned(),
            );
        }
    }
}

fn lines_with<'a>(
    text: &'a str,
    found: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = usize> + 'a {
    text.lines()
        .enumerate()
        .filter(move |(_, line)| found(line))
        .map(|(index, _)| index + 1)
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The files and folders that the first fenced block of the crate docs names at the beginning of
/// its lines. An indented line belongs to the folder above it.
fn parse_map(lib: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut folders: Vec<(usize, String)> = vec![];
    let block = lib
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .skip_while(|line| !line.trim().starts_with("```"))
        .skip(1)
        .take_while(|line| !line.trim().starts_with("```"));
    for line in block {
        let indent = line.len() - line.trim_start().len();
        folders.retain(|(depth, _)| *depth < indent);
        let folder = folders.last().map_or("", |(_, folder)| folder).to_owned();
        let words = line
            .split_whitespace()
            .map(|word| word.trim_end_matches(','));
        for name in words.take_while(|word| word.ends_with(".rs") || word.ends_with('/')) {
            let name = format!("{folder}{name}");
            if name.ends_with('/') {
                folders.push((indent, name.clone()));
            }
            names.insert(name);
        }
    }
    names
}

/// The text with comments and the contents of strings replaced by blanks; line breaks stay.
fn blank_comments_and_strings(text: &str) -> String {
    let mut rest = text;
    let mut code = String::with_capacity(text.len());
    while let Some(first) = rest.chars().next() {
        let skip = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => string(rest),
            'r' => raw_string(rest),
            '\'' => character(rest),
            _ => 0,
        };
        if skip == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(
                rest[..skip]
                    .chars()
                    .map(|c| if c == '\n' { '\n' } else { ' ' }),
            );
            rest = &rest[skip..];
        }
    }
    code
}

/// Length of the block comment at the start of `text`; block comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// Length of the string at the start of `text`.
fn string(text: &str) -> usize {
    let mut escaped = true; // Steps over the opening quote.
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of the raw string at the start of `text`, 0 when there is none.
fn raw_string(text: &str) -> usize {
    let hashes = text[1..].chars().take_while(|c| *c == '#').count();
    if !text[1 + hashes..].starts_with('"') {
        return 0;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let body = 2 + hashes;
    text[body..]
        .find(&close)
        .map_or(text.len(), |at| body + at + close.len())
}

/// Length of the character literal at the start of `text`, 0 when it is a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some(_)) => text[3..].find('\'').map_or(0, |at| at + 4),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

// ---------------------------------------------------- the rules can also fail

type Rule = fn(&Source) -> Vec<String>;

#[test]
fn every_rule_finds_what_it_forbids() {
    let fine = "//! Does one thing.\n//!\n//! Thread: none, plain values.\n";
    let unsafe_line = "let x = unsafe { y };\n";
    #[rustfmt::skip]
    let rows: [(&str, &str, String, Rule, usize); 23] = [
        ("no header", "src/a.rs", "use std::fs;\n".into(), header, 1),
        ("header without thread", "src/a.rs", "//! Does one thing.\n".into(), header, 1),
        ("full header", "src/a.rs", fine.into(), header, 0),
        ("a test names no thread", "tests/a.rs", "//! Tests one thing.\n".into(), header, 0),
        ("unfinished", "src/a.rs", "fn f() { todo!() }\nfn g() { unimplemented!() }\n".into(), leftovers, 2),
        ("text about it", "src/a.rs", "let text = \"todo!() \\\" #[ignore]\"; let raw = r#\"a\"todo!()\"#;\n".into(), leftovers, 0),
        ("test that does not run", "src/a.rs", "#[test]\n#[ignore]\n".into(), leftovers, 1),
        ("marker in a comment", "src/a.rs", format!("// {}: later\n", concat!("FIX", "ME")), leftovers, 1),
        ("unsafe", "src/a.rs", unsafe_line.into(), unsafe_code, 1),
        ("word in a string", "src/a.rs", "let c = '\"'; let quote = '\\''; let s = \"unsafe\"; fn f<'a>(a: &'a str) {}\n".into(), unsafe_code, 0),
        ("unsafe after a lifetime", "src/a.rs", format!("fn f<'a>(a: &'a str) {{}} {unsafe_line}"), unsafe_code, 1),
        ("exemption", "src/a.rs", "#[allow(clippy::disallowed_methods)]\n".into(), exempt, 1),
        ("words of a text", "src/a.rs", "if text.contains(\"no such pod\") || text.starts_with(\"x: \") {}\n".into(), decisions_by_words, 1),
        ("marks of a format", "src/a.rs", "let a = text.contains(\"://\") || text.split_once(\": \");\n".into(), decisions_by_words, 0),
        ("words in a test", "src/a.rs", "#[cfg(test)]\nmod tests {\n    text.contains(\"a b\");\n}\n".into(), decisions_by_words, 0),
        ("words of an engine", "src/runtime/call_error.rs", "text.contains(\"no such pod\")\n".into(), decisions_by_words, 0),
        ("unplain words", "src/a.rs", "/// Nobody waits\n// for ever.\nlet nobody = 1;\n".into(), unplain_words, 2),
        ("parts of words", "src/a.rs", "/// An anewer, it is untold.\n".into(), unplain_words, 0),
        ("clause", "src/a.rs", "/// What is wanted.\nlet a = 1;\n//! Sent to whoever\n//! who waits.\n".into(), clauses, 1),
        ("question", "src/a.rs", "/// Returns what to do.\n/// It is what it was.\n".into(), clauses, 0),
        ("long name of a test", "src/a.rs", format!("#[test]\nfn {}() {{}}\nfn {}() {{}}\n", "a".repeat(61), "b".repeat(61)), long_test_names, 1),
        ("short name of a test", "src/a.rs", format!("#[test]\nfn {}() {{}}\n", "a".repeat(60)), long_test_names, 0),
        ("exemption for tests", "src/lib.rs", "#![cfg_attr(test, allow(clippy::disallowed_methods))]\n".into(), exempt, 0),
    ];
    for (name, path, text, rule, expected) in rows {
        let found = rule(&Source::new(path, &text));
        assert_eq!(found.len(), expected, "{name}: {found:?}");
    }
}

#[test]
fn the_map_must_name_every_room_and_only_what_there_is() {
    let lib = "//! Docs.\n//!\n//! ```text\n//! bin/      programs, see net/c.rs\n//! model/    values\n\
               //!   one.rs, deep/   a value and more\n//!   gone.rs   -\n//! ```\n";
    let files = [
        "lib.rs",
        "bin/a.rs",
        "model/mod.rs",
        "model/one.rs",
        "model/deep/mod.rs",
    ];
    let mut sources: Vec<Source> = files
        .iter()
        .map(|file| Source::new(&format!("src/{file}"), lib))
        .collect();
    let found = map_is_true(&sources[0], &sources);
    assert_eq!(
        found,
        ["src/lib.rs:1: the map names 'model/gone.rs', which does not exist"]
    );
    sources.push(Source::new("src/model/gone.rs", ""));
    sources.push(Source::new("src/net/new.rs", ""));
    assert_eq!(
        map_is_true(&sources[0], &sources),
        ["src/lib.rs:1: the map does not name 'net/'"]
    );
}

#[test]
fn a_test_file_must_belong_to_the_program_of_its_level() {
    let files = [
        ("tests/tidy.rs", ""),
        ("tests/more.rs", ""),
        ("tests/process/main.rs", "mod one;\n// mod two;\n"),
        ("tests/process/one.rs", ""),
        ("tests/process/two.rs", ""),
        ("tests/support/mod.rs", ""),
    ];
    let sources = files.map(|(path, text)| Source::new(path, text));
    let found: Vec<String> = sources
        .iter()
        .flat_map(|source| test_module(source, &sources))
        .collect();
    let lines = [
        "tests/more.rs:1: is a module of a program such as tests/process/main.rs, not one more program",
        "tests/process/two.rs:1: is a module of tests/process/main.rs",
    ];
    assert_eq!(found, lines);
}

#[test]
fn source_that_no_file_has_as_a_module_is_found() {
    let files = [
        ("src/bin/ank.rs", ""),
        ("src/lib.rs", ""),
        ("src/one/lib.rs", "mod deep;\nmod flat;\nmod lost_now;\n"),
        ("src/one/build.rs", ""),
        ("src/one/deep/mod.rs", "#[cfg(test)]\nmod tests;\n"),
        ("src/one/deep/tests.rs", ""),
        ("src/one/flat.rs", "// mod tests;\n"),
        ("src/one/flat/tests.rs", ""),
        ("src/one/lost.rs", ""),
    ];
    let sources = files.map(|(path, text)| Source::new(path, text));
    let mut found = Vec::new();
    for source in &sources {
        found.extend(undeclared_module(source, &sources));
    }
    let lines = [
        "src/one/flat/tests.rs:1: is not compiled: no file has it as a module",
        "src/one/lost.rs:1: is not compiled: no file has it as a module",
    ];
    assert_eq!(found, lines);
}

#[test]
fn an_async_runtime_in_the_lock_file_is_found() {
    assert_eq!(
        async_crates("[[package]]\nname = \"tokio\"\nname = \"tokio-like\"\n").len(),
        1
    );
}
