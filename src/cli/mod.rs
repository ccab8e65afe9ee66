//! The command line tool `ank`.
//!
//! Thread: `main`; `cli:rx` and `cli:tx` only forward messages from and to the server, `cli:signals` signals.

pub mod apply;
pub mod args;
pub mod blame;
pub mod completion;
pub mod diff;
pub mod error;
pub mod events;
pub mod get;
pub mod graph;
pub mod live;
pub mod logs;
pub mod mode_check;
pub mod modes;
pub mod output;
pub mod reasons;
pub mod rows;
pub mod run;
pub mod session;
pub mod set;
pub mod settings;
pub mod signals;
pub mod state_input;
pub mod state_output;
pub mod table;
#[cfg(test)]
mod tests;
pub mod timings;
pub mod top;
pub mod update;
pub mod updates;
pub mod validate;
pub mod wait;

use crate::limits::EVENTS_RECONNECT_INTERVAL;
use crate::platform::clock::{Clock, SystemClock};
use args::{
    ApplyArguments, Arguments, BlameArguments, Delete, DiffArguments, Format, Get, GraphArguments, LogsArguments,
    ModeArguments, Run, Set, TopArguments, Verb, WorkloadArguments,
};
use crossbeam_channel::never;
use error::{CliError, ExitCode};
use events::Events;
use output::Output;
use session::{ServerLink, Session};
use settings::{CliSettings, Waiting};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signals::Interrupts;
use std::ffi::{OsString, c_int};
use std::time::SystemTime;
use top::Top;
use update::{Context, Update};

/// Runs `ank` with the words of the command line, the program's name first.
pub fn main(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    let read = match completion::respond_to_shell(words.clone()) {
        Ok(true) => return ExitCode::Success,
        Ok(false) => Arguments::read(words.clone()),
        Err(error) => Err(error),
    };
    let arguments = match read {
        Ok(arguments) => arguments,
        Err(error) => {
            output::print_usage(&error, &words);
            return if error.use_stderr() { ExitCode::Usage } else { ExitCode::Success };
        }
    };
    let mut output = Output::of_process();
    match run(&arguments, &mut output) {
        Ok(code) => code,
        Err(error) if error.is_broken_pipe() || error.is_interrupted() => ExitCode::Success,
        Err(error) => {
            output.error(error.text_for(arguments.command.action()), error.hint().as_deref());
            ExitCode::Failed
        }
    }
}

fn run(arguments: &Arguments, output: &mut Output<'_>) -> Result<ExitCode, CliError> {
    let settings = match arguments.command {
        Verb::Validate(_) | Verb::Completion { .. } => None, // No server.
        _ => Some(CliSettings::load(arguments.server_url.as_deref(), &arguments.common, output)?),
    };
    let (Some(mut job), Some(settings)) = (Job::prepare(&arguments.command, output)?, settings) else {
        return Ok(ExitCode::Success);
    };
    if let Job::Update(update) = &mut job {
        update.checks_modes &= !settings.ignore_modes;
    }
    if matches!(&job, Job::Update(update) if update.masks.is_empty()) {
        output.status("Nothing to update.")?;
        return Ok(ExitCode::Success);
    }
    if job.is_endless() {
        output.set_level(false, output.is_verbose()); // `quiet` of a config file would suppress all their output.
    }
    let interrupts = job.signals().map(Interrupts::catch).transpose()?;
    let signals = interrupts.as_ref().map_or_else(never, Interrupts::receiver);
    loop {
        let session = Session::open(&settings, signals.clone());
        let result = session.and_then(|session| job.run_in(session, settings.waiting, output));
        match result {
            Err(error) if job.reconnects() && error.is_transient() => {
                output.warn(format_args!("{error}; trying again"));
                if signals.recv_timeout(EVENTS_RECONNECT_INTERVAL).is_ok() {
                    return Ok(ExitCode::Success);
                }
            }
            Err(error) if error.is_interrupted() && !job.ends_by_signal() => {
                // What is left in force was said: the end is that of all commands which signals end.
                let _ = signal_hook::low_level::emulate_default_handler(SIGINT);
                return Err(error);
            }
            result => return result,
        }
    }
}

/// A command with its input: files are read and checked before a connection is made.
enum Job<'a> {
    Get(&'a Get),
    Update(Update),
    Diff(Update, Format),
    Rollback(Option<u64>),
    DeleteConfigs(&'a [String]),
    Events(Events<'a>),
    Logs(&'a LogsArguments),
    Mode(&'a ModeArguments),
    Graph(&'a GraphArguments),
    Blame(&'a BlameArguments),
    Top(&'a TopArguments),
}

impl<'a> Job<'a> {
    /// `None` where all is done: that needed no server.
    fn prepare(verb: &'a Verb, output: &mut Output<'_>) -> Result<Option<Self>, CliError> {
        Ok(Some(match verb {
            Verb::Get(Get::Events(arguments)) => Self::Events(Events::new(arguments, SystemTime::now)),
            Verb::Get(object) => Self::Get(object),
            Verb::Logs(arguments) => Self::Logs(arguments),
            Verb::Mode(arguments) => Self::Mode(arguments),
            Verb::Graph(arguments) => Self::Graph(arguments),
            Verb::Blame(arguments) => Self::Blame(arguments),
            Verb::Top(arguments) => Self::Top(arguments),
            Verb::Set(Set::State { masks_and_file, delete_missing }) => {
                Self::Update(set::update(masks_and_file, *delete_missing, output)?)
            }
            Verb::Delete(Delete::Workload { names }) => Self::Update(update::delete_workloads(names)?),
            Verb::Delete(Delete::Config { names }) => Self::DeleteConfigs(names),
            Verb::Run(Run::Workload(arguments)) => Self::Update(run::update(arguments)?),
            Verb::Apply(ApplyArguments { input, dry_run: true, output: format, .. })
            | Verb::Diff(DiffArguments { input, output: format }) => Self::Diff(apply::update(input, output)?, *format),
            Verb::Apply(ApplyArguments { input, rollback, force, .. }) => {
                let update = apply::update(input, output)?;
                Self::Update(Update { rollback: *rollback, force: *force, ..update })
            }
            Verb::Rollback { id } => Self::Rollback(*id),
            Verb::Validate(arguments) => return validate::check(arguments, output).map(|()| None),
            Verb::Completion { shell } => {
                output.result(&completion::script(shell)?)?;
                return Ok(None);
            }
        }))
    }

    /// Whether it prints changes until it is stopped.
    fn is_endless(&self) -> bool {
        match self {
            Self::Events(_) | Self::Get(Get::Workload(WorkloadArguments { watch: true, .. })) => true,
            Self::Top(arguments) => arguments.watch,
            _ => false,
        }
    }

    /// Whether a signal is the usual end, with the exit code of success.
    fn ends_by_signal(&self) -> bool {
        match self {
            Self::Events(events) => events.end_by_signal(),
            _ => matches!(self, Self::Logs(_)),
        }
    }

    /// The signals that it reacts to.
    fn signals(&self) -> Option<&'static [c_int]> {
        match self {
            _ if self.ends_by_signal() => Some(&[SIGINT, SIGTERM, SIGQUIT, SIGHUP]),
            // Who interrupts the wait is told what stays in force.
            Self::Update(_) | Self::Rollback(_) | Self::Mode(ModeArguments { mode: Some(_), .. }) => Some(&[SIGINT]),
            _ => None,
        }
    }

    fn reconnects(&self) -> bool {
        matches!(self, Self::Events(events) if events.reconnect(&SystemClock))
    }

    fn run_in(
        &mut self,
        mut session: Session,
        waiting: Waiting,
        output: &mut Output<'_>,
    ) -> Result<ExitCode, CliError> {
        let mut context = Context { link: &mut session, clock: &SystemClock, output, waiting };
        let result = self.run(&mut context);
        let in_order = result.as_ref().map_or_else(CliError::is_interrupted, |_| true);
        if in_order && !matches!(self, Job::Get(_) | Job::Diff(..) | Job::Graph(_) | Job::Blame(_) | Job::Top(_)) {
            session.close_with_goodbye();
        } else {
            session.close();
        }
        result
    }

    fn run<L: ServerLink, C: Clock>(&mut self, context: &mut Context<'_, '_, L, C>) -> Result<ExitCode, CliError> {
        let (link, output) = (&mut *context.link, &mut *context.output);
        match self {
            Self::Get(object) => get(object, context).map(|()| ExitCode::Success),
            Self::Update(update) => {
                mode_check::check(update, link, output)?;
                context.update_and_wait(std::mem::take(update))
            }
            Self::Mode(arguments) => match &arguments.mode {
                Some(mode) => {
                    let update = modes::switch(link, mode, arguments.new)?;
                    context.update_and_wait(update)
                }
                None => modes::show(link, arguments.output, output).map(|()| ExitCode::Success),
            },
            Self::Diff(update, format) => diff::print(update, *format, link, output),
            Self::Rollback(id) => updates::roll_back(*id, context),
            Self::DeleteConfigs(names) => context.delete_configs(names),
            Self::Events(events) => events.follow(context.waiting.limit, link, context.clock, output),
            Self::Logs(arguments) => logs::print(arguments, link, output),
            Self::Graph(arguments) => graph::print(arguments, link, output).map(|()| ExitCode::Success),
            Self::Blame(arguments) => blame::print(arguments, link, output).map(|()| ExitCode::Success),
            Self::Top(arguments) => {
                let top = Top { arguments, now: SystemTime::now };
                top.show(link, context.clock, output).map(|()| ExitCode::Success)
            }
        }
    }
}

fn get<L: ServerLink, C: Clock>(object: &Get, context: &mut Context<'_, '_, L, C>) -> Result<(), CliError> {
    let (link, output) = (&mut *context.link, &mut *context.output);
    match object {
        Get::State { output: format, masks } => get::state(link, masks, *format, output),
        Get::Workload(filter) => get::workloads(link, filter, output),
        Get::Agent { output: format } => get::agents(*format, link, output),
        Get::Config { output: format } => get::configs(*format, link, output),
        Get::Update { output: format } => updates::print(*format, link, output),
        Get::Events(_) => Ok(()), // A job of its own.
    }
}
