//! The check of the history (scripts/history.sh) in repositories of its own: accepted histories,
//! refused ones, and those without anything to check.
//!
//! Thread: the test's. Owns: one scratch folder per test, with a repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::python::{repository, succeeded};
use crate::support::scratch;
use tempfile::TempDir;

/// Ends of commit messages that say why.
const BODY: &str = "It was seen with podman 4.3.1; a test shows it.";

/// A repository with the script and one commit, which is tagged: it is the last release.
struct Repository {
    folder: TempDir,
}

impl Repository {
    fn new() -> Self {
        let repository = Self::without_tag();
        repository.git(&["tag", "v1.0.0"]);
        repository
    }

    fn without_tag() -> Self {
        let folder = scratch::folder("history");
        let repository = Self { folder };
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        copy_script(repository.path());
        repository.git(&["add", "--all"]);
        repository.git(&[
            "commit",
            "--quiet",
            "--message=What was written before the rules",
        ]);
        repository
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs git with an identity of its own and none of the machine's settings.
    fn git(&self, arguments: &[&str]) -> String {
        let mut git = without_settings("git");
        git.current_dir(self.path()).args([
            "-c",
            "user.name=test",
            "-c",
            "user.email=test@example.org",
        ]);
        succeeded(&format!("git {arguments:?}"), git.args(arguments).output())
    }

    /// Changes `file` and commits that with `message`.
    fn commit(&self, file: &str, message: &str) {
        let path = self.path().join(file);
        fs::create_dir_all(path.parent().expect("it is in the folder"))
            .expect("own folder is writable");
        fs::write(path, message).expect("own folder is writable");
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", message]);
    }
}

/// `program` without the settings and the repository of the user of the tests.
fn without_settings(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    command
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE");
    command.env_remove("ANKAIOS_LEFT_OUT");
    command
}

fn copy_script(top: &Path) {
    fs::create_dir_all(top.join("scripts")).expect("own folder is writable");
    for script in ["scripts/common.sh", "scripts/history.sh"] {
        fs::copy(repository(script), top.join(script)).expect("own folder is writable");
    }
}

fn script_in(top: &Path) -> PathBuf {
    top.join("scripts/history.sh")
}

fn run_script(top: &Path) -> Output {
    without_settings("bash")
        .arg(script_in(top))
        .output()
        .expect("bash is there")
}

#[track_caller]
fn assert_accepted(top: &Path, printed: &str) {
    let output = run_script(top);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    assert_eq!(text, printed);
}

#[track_caller]
fn assert_refused(top: &Path, violations: &[&str]) {
    let output = run_script(top);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for violation in violations {
        assert!(text.contains(violation), "'{violation}' is not in:\n{text}");
    }
    let count = format!("error: {} violation(s) in ", violations.len());
    assert!(
        text.contains(&count) && text.contains("\nhint: the rules are in CONTRIBUTING.md"),
        "{text}"
    );
}

#[track_caller]
fn assert_left_out(top: &Path, reason: &str) {
    let list = scratch::folder("left-out");
    let list = list.path().join("list");
    let output = without_settings("bash")
        .arg(script_in(top))
        .env("ANKAIOS_LEFT_OUT", &list)
        .output();
    let output = output.expect("bash is there");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    assert_eq!(
        text,
        format!("warning: the history is not checked: {reason}\n")
    );
    assert_eq!(
        fs::read_to_string(list).expect("it is listed"),
        format!("history: {reason}\n")
    );
}

#[test]
fn commits_that_keep_the_rules_are_accepted() {
    let repository = Repository::new();
    assert_accepted(
        repository.path(),
        "history: 0 commit(s) since v1.0.0 keep the rules\n",
    );
    repository.commit(
        "src/agent.rs",
        &format!("agent: keep the result of a container\n\n{BODY}"),
    );
    // 72 characters, of which one has two bytes.
    let subject = format!("server: {}é", "x".repeat(63));
    assert_eq!(subject.chars().count(), 72);
    repository.commit("src/server.rs", &format!("{subject}\n\n{BODY}"));
    assert_accepted(
        repository.path(),
        "history: 2 commit(s) since v1.0.0 keep the rules\n",
    );
}

#[test]
fn commit_of_pages_alone_needs_no_body() {
    let repository = Repository::new();
    repository.commit("docs/tls.md", "docs: say who reads the key");
    repository.commit("docs/bench.svg", "docs: draw the numbers again");
    assert_accepted(
        repository.path(),
        "history: 2 commit(s) since v1.0.0 keep the rules\n",
    );
    fs::write(repository.path().join("docs/tls.md"), "changed").expect("own folder is writable");
    repository.commit("docs/examples/run.sh", "docs: start the broker first");
    assert_refused(
        repository.path(),
        &["'docs: start the broker first' has no body"],
    );
}

#[test]
fn commit_without_a_reason_is_refused() {
    let repository = Repository::new();
    repository.commit("src/agent.rs", "agent: restart it");
    repository.commit(
        "src/cli.rs",
        "cli: sign it\n\nSigned-off-by: Somebody <somebody@example.org>",
    );
    repository.git(&["commit", "--quiet", "--allow-empty", "--message=ci: run it"]);
    let violations = [
        "'agent: restart it' has no body",
        "'cli: sign it' has no body",
        "'ci: run it' has no body",
    ];
    assert_refused(repository.path(), &violations);
}

#[test]
fn subject_without_an_area_is_refused() {
    let repository = Repository::new();
    for subject in [
        "Agent: restart it",
        "restart it",
        "agent:restart it",
        "agent, cli: restart it",
        "fixup! agent: x",
    ] {
        repository.commit("src/agent.rs", &format!("{subject}\n\n{BODY}"));
    }
    let violations = [
        "'Agent: restart it' does not begin",
        "'restart it' does not begin",
        "'agent:restart it' does not begin",
        "'agent, cli: restart it' does not begin",
        "'fixup! agent: x' does not begin",
    ];
    assert_refused(repository.path(), &violations);
}

#[test]
fn subject_longer_than_72_characters_is_refused() {
    let repository = Repository::new();
    repository.commit(
        "src/agent.rs",
        &format!("agent: {}\n\n{BODY}", "x".repeat(66)),
    );
    assert_refused(
        repository.path(),
        &["has a subject of 73 characters, more than 72"],
    );
}

#[test]
fn merge_commit_is_refused() {
    let repository = Repository::new();
    repository.git(&["checkout", "--quiet", "-b", "work"]);
    repository.commit("src/agent.rs", &format!("agent: restart it\n\n{BODY}"));
    repository.git(&["checkout", "--quiet", "main"]);
    let message = format!("agent: merge the branch\n\n{BODY}");
    repository.git(&["merge", "--quiet", "--no-ff", "--message", &message, "work"]);
    assert_refused(
        repository.path(),
        &["'agent: merge the branch' is a merge commit"],
    );
}

/// The settings of the user do not change the input of the script.
#[test]
fn history_is_read_whatever_git_is_set_to_show() {
    let repository = Repository::new();
    repository.git(&["config", "log.showSignature", "true"]);
    repository.git(&["config", "color.ui", "always"]);
    repository.git(&["config", "diff.external", "false"]);
    repository.commit("docs/ä page.md", "docs: describe it");
    assert_accepted(
        repository.path(),
        "history: 1 commit(s) since v1.0.0 keep the rules\n",
    );
}

#[test]
fn without_a_tag_commits_since_the_base_are_checked() {
    let repository = Repository::without_tag();
    assert_left_out(
        repository.path(),
        "it has neither a tag nor the commit 2e15547acedd",
    );
    let base = repository.git(&["rev-parse", "HEAD"]).trim().to_owned();
    let script = script_in(repository.path());
    let text = fs::read_to_string(&script).expect("it was copied");
    let changed = text.replace(
        "base=2e15547acedd48b4487ccd6cc3babf922bc64be1",
        &format!("base={base}"),
    );
    assert_ne!(changed, text);
    repository.commit(
        "scripts/history.sh",
        &format!("scripts: begin earlier\n\n{BODY}"),
    );
    fs::write(script, changed).expect("own folder is writable");
    let printed = format!(
        "history: 1 commit(s) since {} keep the rules\n",
        &base[..12]
    );
    assert_accepted(repository.path(), &printed);
}

/// A clone of `repository` with its last `depth` commits.
fn shallow_clone(repository: &Repository, depth: u32) -> TempDir {
    let clone = scratch::folder("shallow");
    let mut git = without_settings("git");
    git.args(["clone", "--quiet", "--depth", &depth.to_string()]);
    git.arg(format!("file://{}", repository.path().display()))
        .arg(clone.path());
    succeeded("git clone", git.output());
    clone
}

#[test]
fn shallow_clone_is_checked_as_far_as_it_goes() {
    let repository = Repository::new();
    repository.commit("docs/tls.md", "docs: say who reads the key");
    repository.commit("src/agent.rs", "agent: restart it");
    // What its oldest commit changed is not known there: every file is new in it.
    let clone = shallow_clone(&repository, 1);
    assert_left_out(clone.path(), "this shallow clone is too short");
    let clone = shallow_clone(&repository, 2);
    assert_refused(clone.path(), &["'agent: restart it' has no body"]);
}

#[test]
fn sources_without_a_repository_have_no_history() {
    let folder = scratch::folder("tarball");
    copy_script(folder.path());
    assert_left_out(folder.path(), "these sources are not a git repository");
}
