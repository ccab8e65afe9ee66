//! The command line tool `ank`: answers for people and scripts (spec/cli.md).
//!
//! Thread: `main`; `cli:rx` and `cli:tx` only pass on what comes from and goes to the server, `cli:signals` signals.

pub mod apply;
pub mod args;
pub mod completion;
pub mod error;
pub mod events;
pub mod get;
pub mod graph;
pub mod live;
pub mod logs;
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
mod testing;
pub mod update;
pub mod wait;

use crate::limits::EVENTS_RECONNECT_INTERVAL;
use crate::platform::clock::{Clock, SystemClock};
use args::{Arguments, Delete, Get, GraphFormat, LogsArguments, Run, Set, Verb};
use crossbeam_channel::never;
use error::{CliError, ExitCode};
use events::Events;
use get::Filter;
use output::Output;
use session::{ServerLink, Session};
use settings::{CliSettings, Waiting};
use signals::Interrupts;
use std::ffi::OsString;
use std::time::SystemTime;
use update::{Context, Update};

/// Runs `ank` with the words of the command line, the program's name first.
pub fn main(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    let read = match completion::answer_shell(words.clone()) {
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
            output.error(error.text_for(&arguments.command), error.hint().as_deref());
            ExitCode::Failed
        }
    }
}

fn run(arguments: &Arguments, output: &mut Output<'_>) -> Result<ExitCode, CliError> {
    let settings = CliSettings::load(arguments.server_url.as_deref(), &arguments.common, output)?;
    let mut job = Job::prepare(&arguments.command, output)?;
    if let Job::Nothing(text) = job {
        output.status(text)?;
        return Ok(ExitCode::Success);
    }
    if job.goes_on() {
        output.set_level(false, output.is_verbose()); // A config file's `quiet` would leave nothing of them.
    }
    let interrupts = if job.ends_by_signal() { Some(Interrupts::catch()?) } else { None };
    let signals = interrupts.as_ref().map_or_else(never, Interrupts::receiver);
    loop {
        let (url, security) = (settings.url.clone(), settings.security.clone());
        let session = Session::open(url, security, settings.response_timeout, settings.message_max, signals.clone());
        let result = session.and_then(|session| job.run_in(session, settings.waiting, output));
        match result {
            Err(error) if job.reconnects() && error.may_pass() => {
                output.warn(format_args!("{error}; trying again"));
                if signals.recv_timeout(EVENTS_RECONNECT_INTERVAL).is_ok() {
                    return Ok(ExitCode::Success);
                }
            }
            result => return result,
        }
    }
}

/// What to ask the server for. Files are read and checked before a connection is made.
enum Job<'a> {
    Get(&'a Get),
    Update(Update),
    DeleteConfigs(&'a [String]),
    Events {
        events: Events<'a>,
        reconnect: bool,
        connected: bool,
    },
    Logs(&'a LogsArguments),
    Graph {
        format: GraphFormat,
        names: &'a [String],
    },
    /// The command needs no server; the text says why.
    Nothing(&'static str),
}

impl<'a> Job<'a> {
    fn prepare(verb: &'a Verb, output: &mut Output<'_>) -> Result<Self, CliError> {
        Ok(match verb {
            Verb::Get {
                object: Get::Events { output: format, include_current_state, count, until, reconnect, masks },
            } => {
                let (format, include_current_state, left) = (*format, *include_current_state, *count);
                let (until, limit, give_up, now) = (until.as_ref(), None, None, SystemTime::now as fn() -> SystemTime);
                let events = Events { masks, format, include_current_state, left, until, limit, give_up, now };
                Self::Events { events, reconnect: *reconnect, connected: false }
            }
            Verb::Get { object } => Self::Get(object),
            Verb::Logs(arguments) => Self::Logs(arguments),
            Verb::Graph { output: format, names } => Self::Graph { format: *format, names },
            Verb::Set { object: Set::State { masks_and_file, delete_missing } } => {
                Self::Update(set::update(masks_and_file, *delete_missing, output)?)
            }
            Verb::Delete { object: Delete::Workload { names } } => Self::Update(update::delete_workloads(names)?),
            Verb::Delete { object: Delete::Config { names } } => Self::DeleteConfigs(names),
            Verb::Run { object: Run::Workload { name, runtime, config, agent, tags } } => {
                Self::Update(run::update(name, runtime, config, agent, tags)?)
            }
            Verb::Apply(arguments) => match apply::update(arguments, output)? {
                update if update.masks.is_empty() => Self::Nothing("Nothing to update."),
                update => Self::Update(update),
            },
        })
    }

    /// Whether it shows changes until it is stopped.
    fn goes_on(&self) -> bool {
        matches!(self, Self::Events { .. } | Self::Get(Get::Workload { watch: true, .. }))
    }

    /// Whether a signal is the usual way to end it. Not of events that are waited for: a script must not go on as if
    /// they had come.
    fn ends_by_signal(&self) -> bool {
        match self {
            Self::Events { events, .. } => events.until.is_none() && events.left.is_none(),
            Self::Logs(_) => true,
            _ => false,
        }
    }

    /// Whether a lost connection is followed by another one. The first one has to be had.
    fn reconnects(&self) -> bool {
        matches!(self, Self::Events { reconnect: true, connected: true, events } if !events.is_late(&SystemClock))
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
        if in_order && !matches!(self, Job::Get(_) | Job::Graph { .. }) {
            session.say_goodbye();
        } else {
            session.leave();
        }
        result
    }

    fn run<L: ServerLink, C: Clock>(&mut self, context: &mut Context<'_, '_, L, C>) -> Result<ExitCode, CliError> {
        let (link, output) = (&mut *context.link, &mut *context.output);
        match self {
            Self::Get(object) => get(object, context).map(|()| ExitCode::Success),
            Self::Update(update) => context.update_and_wait(std::mem::take(update)),
            Self::DeleteConfigs(names) => context.delete_configs(names),
            Self::Events { events, connected, .. } => {
                if std::mem::replace(connected, true) {
                    events.resume();
                }
                events.limit = context.waiting.limit;
                events.follow(link, context.clock, output)
            }
            Self::Logs(arguments) => logs::print(arguments, link, output),
            Self::Graph { format, names } => graph::print(link, names, *format, output).map(|()| ExitCode::Success),
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
        Get::Events { .. } => Ok(()), // A job of its own.
    }
}
