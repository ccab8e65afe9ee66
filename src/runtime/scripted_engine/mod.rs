//! Stands for an engine's program in unit tests: a shell script that records its calls and prints
//! what a test wants.
//!
//! Thread: the one of the test.

use super::call_error::{ErrorMeaning, ReadMeaning};
use super::container_config::{EngineArguments as _, config_of};
use super::engine_children::EngineChildren;
use super::engine_cli::EngineCli;
use super::{ContainerId, NewContainer, RuntimeError};
use ankaios_model::names::InstanceName;
use ankaios_model::workload::Workload;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// An id as engines print it.
pub(crate) const ID: &str = "1111111111111111111111111111111111111111111111111111111111111111";
/// Another one.
pub(crate) const OTHER: &str = "2222222222222222222222222222222222222222222222222222222222222222";

/// The folder of one scripted engine.
pub(crate) struct ScriptedEngine {
    folder: TempDir,
}

impl ScriptedEngine {
    /// An engine that answers its calls, in order, by these lines of shell. Without a line it does
    /// nothing and succeeds.
    pub(crate) fn answering(answers: &[&str]) -> Self {
        let engine = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for (index, answer) in answers.iter().enumerate() {
            engine.on(&(index + 1).to_string(), answer);
        }
        fs::write(engine.path().join("calls"), "").unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripted_engine/engine.sh");
        // A link, since a file that is written while another test forks cannot be executed.
        std::os::unix::fs::symlink(script, engine.path().join("engine")).unwrap();
        engine
    }

    /// Answers the call with this number, or those with this first argument, by a line of shell.
    pub(crate) fn on(&self, call: &str, answer: &str) {
        fs::write(self.path().join(call), answer).unwrap();
    }

    /// Makes the call with this number or first argument hang. Returns a file that becomes readable
    /// when it hangs, to cancel it.
    pub(crate) fn cancelling(&self, call: &str) -> fs::File {
        let fifo = self.path().join("cancel");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
        let readable = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&fifo)
            .unwrap();
        self.on(call, &format!("echo >{}; exec sleep 600", fifo.display()));
        readable
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn children(&self) -> EngineChildren {
        EngineChildren::open(&self.path().join("children"))
            .unwrap()
            .0
    }

    /// The command line of this engine, as the code under test uses it.
    pub(crate) fn cli(&self, read_meaning: ReadMeaning) -> EngineCli {
        EngineCli::new(
            self.path()
                .join("engine")
                .to_str()
                .unwrap()
                .to_owned()
                .leak(),
            read_meaning,
            self.children(),
        )
    }

    /// The calls so far, arguments joined by blanks.
    pub(crate) fn calls(&self) -> Vec<String> {
        fs::read_to_string(self.path().join("calls"))
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// The call as it stands in an error text.
    pub(crate) fn execution(&self, arguments: &[&str]) -> String {
        let quoted: String = arguments
            .iter()
            .map(|argument| format!(" \"{argument}\""))
            .collect();
        format!(
            "Execution of '{}{quoted}'",
            self.cli(|_| ErrorMeaning::Failure).program
        )
    }
}

/// A workload `web` of `agent_A`.
pub(crate) fn new_container(runtime: &str, config: &str) -> NewContainer {
    NewContainer {
        instance: InstanceName::new("web", config, "agent_A"),
        workload: Arc::new(Workload::new("agent_A", runtime, config)),
        control_interface: None,
        files: Vec::new(),
        notify_socket: None,
        pid_file: None,
    }
}

/// The call that creates this container; the tests of `container_config.rs` say which arguments it
/// has.
pub(crate) fn run_call(new: &NewContainer) -> String {
    config_of(&new.workload, &new.workload.runtime)
        .unwrap()
        .run_arguments(new)
        .unwrap()
        .given
        .join(" ")
}

pub(crate) fn id(text: &str) -> ContainerId {
    ContainerId(text.into())
}

/// The text of a failure that may be retried.
#[track_caller]
pub(crate) fn failed<T: std::fmt::Debug>(result: Result<T, RuntimeError>) -> String {
    match result {
        Err(
            RuntimeError::Failed(error)
            | RuntimeError::NotStarted(error)
            | RuntimeError::NotInstalled(error),
        ) => error.to_string(),
        other => panic!("{other:?}"),
    }
}
