//! The command line of one engine: queries, calls that change something, and podman's list of
//! containers.
//!
//! Thread: the caller's. Owns: the name of the program and where its calls are recorded.

use super::RuntimeError;
use super::call_error::{CallError, ReadMeaning};
use super::command::{EngineCall, quoted};
use super::container_list::{self, EngineContainer};
use super::container_records::ContainerRecords;
use super::engine_children::EngineChildren;
use super::log_reader::LogCall;
use super::masking::MaskedArguments;
use crate::limits::LISTING_MAX;

/// How one engine is called.
#[derive(Debug, Clone)]
pub(crate) struct EngineCli {
    pub(crate) program: &'static str,
    read_meaning: ReadMeaning,
    children: EngineChildren,
}

impl EngineCli {
    /// Calls `program`, looked up in `PATH` each time, and records calls that change something in
    /// `children`. `read_meaning` reads its errors.
    pub(crate) fn new(
        program: &'static str,
        read_meaning: ReadMeaning,
        children: EngineChildren,
    ) -> Self {
        Self {
            program,
            read_meaning,
            children,
        }
    }

    /// Which containers this agent made.
    pub(crate) fn records(&self) -> ContainerRecords {
        ContainerRecords::below(self.children.agent_folder(), self.children.boot())
    }

    /// A call that changes nothing; the caller may limit it and runs it.
    pub(crate) fn call(&self, arguments: impl Into<MaskedArguments>) -> EngineCall<'_> {
        self.new_call(arguments).limit(LISTING_MAX)
    }

    /// A call that changes something, recorded for the next agent; the caller limits and runs it.
    pub(crate) fn change(&self, arguments: impl Into<MaskedArguments>) -> EngineCall<'_> {
        self.new_call(arguments).recorded(&self.children)
    }

    fn new_call(&self, arguments: impl Into<MaskedArguments>) -> EngineCall<'_> {
        EngineCall::new(self.program, arguments).reading(self.read_meaning)
    }

    /// A call that prints a log; its reader starts it. `prefix` is put before each line.
    pub(crate) fn log_call(&self, arguments: Vec<String>, prefix: String) -> LogCall {
        LogCall {
            program: self.program.to_owned(),
            arguments,
            prefix,
            children: self.children.clone(),
        }
    }

    /// Makes a call that changes nothing, within [`LISTING_MAX`], and returns its output.
    pub(crate) fn query(&self, arguments: &[&str]) -> Result<String, RuntimeError> {
        let call = self.call(MaskedArguments::default().plain(arguments));
        call.run(None)?.into_text()
    }

    /// The error for output that cannot be understood.
    pub(crate) fn nonsense(&self, why: &str, arguments: &[&str]) -> RuntimeError {
        let call = quoted(self.program, arguments);
        RuntimeError::Failed(CallError::in_call(why.to_owned(), call))
    }

    /// All containers of podman, ended ones too, as far as the options of `ps` select them.
    // [impl->swdd~podmancli-container-state-cache-all-containers~1]
    pub(crate) fn containers(
        &self,
        options: &[&str],
    ) -> Result<Vec<EngineContainer>, RuntimeError> {
        let mut arguments = [&["ps", "--all"], options].concat();
        let format = format!("--format={}", container_list::podman_format());
        let shown = [&arguments[..], &["--format=..."]].concat();
        arguments.push(&format);
        self.read_listing(
            self.call(MaskedArguments::shown_as(&arguments, &shown)),
            &shown,
        )
    }

    /// Makes a call that prints a listing. In errors it has the arguments `shown`, since templates
    /// are long.
    pub(crate) fn read_listing(
        &self,
        call: EngineCall<'_>,
        shown: &[&str],
    ) -> Result<Vec<EngineContainer>, RuntimeError> {
        container_list::parse(&call.run(None)?.into_text()?)
            .map_err(|why| self.nonsense(&why, shown))
    }
}
