//! The command line tool `ank`: answers for people and scripts (spec/cli.md).
//!
//! Thread: `main`; `cli:rx` and `cli:tx` only pass on what comes from and goes to the server.

pub mod apply;
pub mod args;
pub mod error;
pub mod get;
pub mod live;
pub mod manifest_schema;
pub mod output;
pub mod rows;
pub mod run;
pub mod session;
pub mod set;
pub mod settings;
pub mod state_input;
pub mod state_output;
pub mod state_shape;
pub mod table;
#[cfg(test)]
mod testing;
pub mod update;
pub mod wait;

use crate::clock::{Clock, SystemClock};
use args::{Arguments, Delete, Get, Run, Set, Verb};
use error::{CliError, ExitCode};
use get::Filter;
use output::Output;
use session::{ServerLink, Session};
use settings::CliSettings;
use std::ffi::OsString;
use update::{Context, Update};

/// Runs `ank` with the words of the command line, the program's name first.
pub fn main(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    let arguments = match Arguments::read(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print(); // Nobody is left to tell when the stream is closed.
            return if error.use_stderr() { ExitCode::Usage } else { ExitCode::Success };
        }
    };
    let mut output = Output::of_process();
    match run(&arguments, &mut output) {
        Ok(code) => code,
        Err(error) if error.is_broken_pipe() => ExitCode::Success,
        Err(error) => {
            output.error(error.text_for(&arguments.command), error.hint().as_deref());
            ExitCode::Failed
        }
    }
}

fn run(arguments: &Arguments, output: &mut Output<'_>) -> Result<ExitCode, CliError> {
    let settings = CliSettings::load(arguments, output)?;
    let job = Job::prepare(&arguments.command, output)?;
    if let Job::Nothing(text) = job {
        output.status(text)?;
        return Ok(ExitCode::Success);
    }
    let mut session = Session::open(settings.url, settings.security, settings.response_timeout, settings.message_max)?;
    let says_goodbye = !matches!(job, Job::Get(_));
    let mut context = Context { link: &mut session, clock: &SystemClock, output, waiting: settings.waiting };
    let result = job.run(&mut context);
    if says_goodbye && result.is_ok() {
        session.say_goodbye();
    } else {
        session.leave();
    }
    result
}

/// What to ask the server for. Files are read and checked before a connection is made.
enum Job<'a> {
    Get(&'a Get),
    Update(Update),
    DeleteConfigs(&'a [String]),
    /// The command needs no server; the text says why.
    Nothing(&'static str),
}

impl<'a> Job<'a> {
    fn prepare(verb: &'a Verb, output: &mut Output<'_>) -> Result<Self, CliError> {
        Ok(match verb {
            Verb::Get { object } => Self::Get(object),
            Verb::Set { object: Set::State { masks_and_file, delete_missing } } => {
                Self::Update(set::update(masks_and_file, *delete_missing, output)?)
            }
            Verb::Delete { object: Delete::Workload { names } } => Self::Update(update::delete_workloads(names)),
            Verb::Delete { object: Delete::Config { names } } => Self::DeleteConfigs(names),
            Verb::Run { object: Run::Workload { name, runtime, config, agent, tags } } => {
                Self::Update(run::update(name, runtime, config, agent, tags))
            }
            Verb::Apply(arguments) => match apply::update(arguments, output)? {
                update if update.masks.is_empty() => Self::Nothing("Nothing to update."),
                update => Self::Update(update),
            },
        })
    }

    fn run<L: ServerLink, C: Clock>(self, context: &mut Context<'_, '_, L, C>) -> Result<ExitCode, CliError> {
        match self {
            Self::Get(object) => get(object, context).map(|()| ExitCode::Success),
            Self::Update(update) => context.update_and_wait(update),
            Self::DeleteConfigs(names) => context.delete_configs(names),
            Self::Nothing(_) => Ok(ExitCode::Success),
        }
    }
}

fn get<L: ServerLink, C: Clock>(object: &Get, context: &mut Context<'_, '_, L, C>) -> Result<(), CliError> {
    let (link, output) = (&mut *context.link, &mut *context.output);
    match object {
        Get::State { output: format, masks } => get::state(link, masks, *format, output),
        Get::Workload { agent, state, watch, names } => {
            let filter = Filter { agent: agent.clone(), state: state.clone(), names: names.clone() };
            if *watch { get::watch_workloads(link, &filter, output) } else { get::workloads(link, &filter, output) }
        }
        Get::Agent => get::agents(link, output),
        Get::Config => get::configs(link, output),
    }
}
