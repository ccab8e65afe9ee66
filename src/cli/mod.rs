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
    ApplyArguments, Arguments, Delete, DiffArguments, Format, Get, ModeArguments, Run, Set, TopArguments, Verb,
    WorkloadArguments,
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
    match &arguments.command {
        Verb::Validate(arguments) => return validate::check(arguments, output).map(|()| ExitCode::Success),
        Verb::Completion { shell } => {
            output.result(&completion::script(shell)?)?;
            return Ok(ExitCode::Success);
        }
        _ => {}
    }
    let settings = CliSettings::load(arguments.server_url.as_deref(), &arguments.common, output)?;
    let mut job = Job::prepare(&arguments.command, output)?;
    if let Some(update) = &mut job.update {
        update.checks_modes &= !settings.ignore_modes;
        if update.masks.is_empty() && job.diff.is_none() {
            output.status("Nothing to update.")?;
            return Ok(ExitCode::Success);
        }
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
struct Job<'a> {
    verb: &'a Verb,
    /// What it sends, or compares.
    update: Option<Update>,
    /// The update is only compared, and shown like this.
    diff: Option<Format>,
    events: Option<Events<'a>>,
}

impl<'a> Job<'a> {
    fn prepare(verb: &'a Verb, output: &mut Output<'_>) -> Result<Self, CliError> {
        let update = match verb {
            Verb::Set(Set::State { masks_and_file, delete_missing }) => {
                Some(set::update(masks_and_file, *delete_missing, output)?)
            }
            Verb::Delete(Delete::Workload { names }) => Some(update::delete_workloads(names)?),
            Verb::Run(Run::Workload(arguments)) => Some(run::update(arguments)?),
            Verb::Diff(DiffArguments { input, .. }) => Some(apply::update(input, output)?),
            Verb::Apply(ApplyArguments { input, rollback, force, .. }) => {
                Some(Update { rollback: *rollback, force: *force, ..apply::update(input, output)? })
            }
            _ => None,
        };
        let diff = match verb {
            Verb::Diff(DiffArguments { output, .. }) | Verb::Apply(ApplyArguments { dry_run: true, output, .. }) => {
                Some(*output)
            }
            _ => None,
        };
        let events = match verb {
            Verb::Get(Get::Events(arguments)) => Some(Events::new(arguments, SystemTime::now)),
            _ => None,
        };
        Ok(Self { verb, update, diff, events })
    }

    /// Whether it prints changes until it is stopped.
    fn is_endless(&self) -> bool {
        matches!(
            self.verb,
            Verb::Get(Get::Events(_) | Get::Workload(WorkloadArguments { watch: true, .. }))
                | Verb::Top(TopArguments { watch: true, .. })
        )
    }

    /// Whether a signal is the usual end, with the exit code of success.
    fn ends_by_signal(&self) -> bool {
        matches!(self.verb, Verb::Logs(_)) || self.events.as_ref().is_some_and(Events::end_by_signal)
    }

    /// The signals that it reacts to.
    fn signals(&self) -> Option<&'static [c_int]> {
        match self.verb {
            _ if self.ends_by_signal() => Some(&[SIGINT, SIGTERM, SIGQUIT, SIGHUP]),
            // Who interrupts the wait is told what stays in force.
            _ if self.update.is_some() && self.diff.is_none() => Some(&[SIGINT]),
            Verb::Rollback { .. } | Verb::Mode(ModeArguments { mode: Some(_), .. }) => Some(&[SIGINT]),
            _ => None,
        }
    }

    fn reconnects(&self) -> bool {
        self.events.as_ref().is_some_and(|events| events.reconnect(&SystemClock))
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
        let only_reads = match self.verb {
            Verb::Get(_) => self.events.is_none(),
            Verb::Graph(_) | Verb::Blame(_) | Verb::Top(_) => true,
            _ => self.diff.is_some(),
        };
        if in_order && !only_reads {
            session.close_with_goodbye();
        } else {
            session.close();
        }
        result
    }

    fn run<L: ServerLink, C: Clock>(&mut self, context: &mut Context<'_, '_, L, C>) -> Result<ExitCode, CliError> {
        let (link, output) = (&mut *context.link, &mut *context.output);
        if let Some(update) = &mut self.update {
            if let Some(format) = self.diff {
                return diff::print(update, format, link, output);
            }
            mode_check::check(update, link, output)?;
            return context.update_and_wait(std::mem::take(update));
        }
        if let Some(events) = &mut self.events {
            return events.follow(context.waiting.limit, link, context.clock, output);
        }
        match self.verb {
            Verb::Get(object) => get(object, context)?,
            Verb::Mode(ModeArguments { mode: Some(mode), new, .. }) => {
                let update = modes::switch(link, mode, *new)?;
                return context.update_and_wait(update);
            }
            Verb::Mode(arguments) => modes::show(link, arguments.output, output)?,
            Verb::Rollback { id } => return updates::roll_back(*id, context),
            Verb::Delete(Delete::Config { names }) => return context.delete_configs(names),
            Verb::Logs(arguments) => return logs::print(arguments, link, output),
            Verb::Graph(arguments) => graph::print(arguments, link, output)?,
            Verb::Blame(arguments) => blame::print(arguments, link, output)?,
            Verb::Top(arguments) => Top { arguments, now: SystemTime::now }.show(link, context.clock, output)?,
            _ => {} // They have an update, or need no server.
        }
        Ok(ExitCode::Success)
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
