//! The command line tool `ank`.
//!
//! Thread: `main`; `cli:rx` connects and forwards the messages of the server, `cli:signals` signals.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod apply;
pub mod args;
mod blame;
mod completion;
mod describe;
mod diff;
mod error;
mod events;
mod get;
mod graph;
mod logs;
mod modes;
pub mod output;
mod prune;
mod rows;
mod session;
pub mod set;
pub mod settings;
mod stops;
#[cfg(test)]
mod tests;
mod top;
mod update;
mod version;
mod wait;

use args::{
    ApplyArguments, Arguments, Delete, DiffArguments, EventsArguments, Get, ModeArguments, Run,
    Set, Verb,
};
use error::{CliError, ExitCode};
use output::Output;
use session::{CliUpdate, Context, Session};
use settings::CliSettings;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::ffi::{OsString, c_int};
use std::time::SystemTime;

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
            return if error.use_stderr() {
                ExitCode::Usage
            } else {
                ExitCode::Success
            };
        }
    };
    let mut output = Output::of_process();
    match run(&arguments, &mut output) {
        Ok(code) => code,
        Err(error) if error.is_broken_pipe() || error.is_interrupted() => ExitCode::Success,
        Err(error) => {
            output.error(error.text_for(arguments.command.action()), &error.hint());
            error.exit_code()
        }
    }
}

/// Runs a command. The connection is made by its first request, and closed at its end.
fn run(arguments: &Arguments, output: &mut Output) -> Result<ExitCode, CliError> {
    let verb = &arguments.command;
    match verb {
        Verb::Validate(arguments) => return apply::validate(arguments, output),
        Verb::Completion { shell } => {
            output.result(&completion::script(shell)?)?;
            return Ok(ExitCode::Success);
        }
        _ => {}
    }
    let settings = CliSettings::load(arguments.server_url.as_deref(), &arguments.common, output)?;
    if verb.is_endless() {
        output.quiet = false; // `quiet` of a config file would suppress all their output.
    }
    let signals = signals(verb);
    let mut session = Session::new(&settings, signals);
    let mut context = Context {
        link: &mut session,
        output,
        waiting: settings.waiting,
        ignore_modes: settings.ignore_modes,
    };
    let result = run_verb(verb, &mut context);
    let is_interrupted = match &result {
        Err(error) => error.is_interrupted(),
        Ok(_) => false,
    };
    if !is_interrupted {
        session.warn_of_storage(output);
    }
    session.close(is_interrupted || result.is_ok());
    if is_interrupted && signals == SIGINT_ONLY {
        // The command has printed its warning. Now the signal ends the program as usual.
        let _ = signal_hook::low_level::emulate_default_handler(SIGINT);
    }
    result
}

/// The signals of a command that warns of unfinished work before the signal ends it.
const SIGINT_ONLY: &[c_int] = &[SIGINT];
/// The signals of a command that usually ends by one of them, with the exit code of success.
const ALL_SIGNALS: &[c_int] = &[SIGINT, SIGTERM, SIGQUIT, SIGHUP];

/// The signals that a command catches. All others end the program.
fn signals(verb: &Verb) -> &'static [c_int] {
    match verb {
        // Events with an end of their own are not among these: a script would take the success
        // after a signal for that end.
        Verb::Logs(_)
        | Verb::Get(Get::Events(EventsArguments {
            until: None,
            count: None,
            since: None,
            ..
        })) => ALL_SIGNALS,
        Verb::Apply(ApplyArguments { dry_run: false, .. })
        | Verb::Mode(ModeArguments { mode: Some(_), .. })
        | Verb::Set(_)
        | Verb::Delete(_)
        | Verb::Run(_)
        | Verb::Restart { .. }
        | Verb::Stop { .. }
        | Verb::Start { .. }
        | Verb::Rollback { .. }
        | Verb::Wait(_) => SIGINT_ONLY,
        _ => &[],
    }
}

/// Runs a command that needs a server.
fn run_verb(verb: &Verb, context: &mut Context<'_>) -> Result<ExitCode, CliError> {
    let link = &mut *context.link;
    let output = &mut *context.output;
    match verb {
        Verb::Get(Get::State {
            output: format,
            masks,
        }) => get::state(link, masks, *format, output)?,
        Verb::Get(Get::Workload(filter)) => {
            get::workloads(link, filter, SystemTime::now(), output)?;
        }
        Verb::Get(Get::Agent(arguments)) => get::agents(arguments, link, output)?,
        Verb::Get(Get::Config(arguments)) => get::configs(arguments, link, output)?,
        Verb::Get(Get::Update(arguments)) => update::print(arguments, link, output)?,
        Verb::Get(Get::Events(
            arguments @ EventsArguments {
                since: Some(since), ..
            },
        )) => events::print_past(arguments, since.time(SystemTime::now()), link, output)?,
        Verb::Get(Get::Events(arguments)) => {
            return events::follow(arguments, SystemTime::now, context);
        }
        Verb::Set(Set::State {
            masks_and_file,
            delete_missing,
            mode,
        }) => {
            let update = set::update(masks_and_file, *delete_missing, output)?;
            return context.update_and_wait(CliUpdate {
                mode_rule: mode.rule(),
                ..update
            });
        }
        Verb::Delete(Delete::Workload { names }) => {
            return context.update_and_wait(update::delete_workloads(names)?);
        }
        Verb::Delete(Delete::Config { names }) => return context.delete_configs(names),
        Verb::Run(Run::Workload(arguments)) => {
            return context.update_and_wait(update::run_workload(arguments)?);
        }
        Verb::Apply(ApplyArguments {
            input,
            dry_run: true,
            output: format,
            ..
        })
        | Verb::Diff(DiffArguments {
            input,
            output: format,
        }) => {
            let mut update = apply::update(input, output)?;
            prune::extend(&mut update, &input.prune, link)?;
            return diff::print(update, *format, link, output);
        }
        Verb::Apply(ApplyArguments {
            input,
            rollback,
            force,
            restart_dependents,
            yes,
            ..
        }) => {
            let mut update = apply::update(input, output)?;
            let pruned = prune::extend(&mut update, &input.prune, link)?;
            prune::confirm(&pruned, *yes, link, output)?;
            let mut restart = Vec::new();
            if *restart_dependents {
                let names = rows::names(update.new_state.at(&["desiredState", "workloads"]));
                restart = names.map(str::to_owned).collect();
            }
            return context.update_and_wait(CliUpdate {
                rollback: *rollback,
                force: *force,
                restart,
                ..update
            });
        }
        Verb::Restart { names } => {
            let update = update::restart(names, link, output)?;
            return context.update_and_wait(update);
        }
        Verb::Stop { names } => {
            let update = stops::stop(names, link, output)?;
            return stops::send(update, context);
        }
        Verb::Start { names } => {
            let update = stops::start(names, link, output)?;
            return stops::send(update, context);
        }
        Verb::Rollback { id } => return update::roll_back(*id, context),
        Verb::Mode(ModeArguments {
            mode: Some(mode),
            new,
            ..
        }) => {
            let update = modes::switch(link, mode, *new)?;
            return context.update_and_wait(update);
        }
        Verb::Mode(arguments) => modes::show(link, arguments.output, output)?,
        Verb::Logs(arguments) => return logs::print(arguments, SystemTime::now, link, output),
        Verb::Wait(arguments) => return wait::run(arguments, context),
        Verb::Describe(arguments) => describe::print(arguments, SystemTime::now(), link, output)?,
        Verb::Graph(arguments) => graph::print(arguments, link, output)?,
        Verb::Blame(arguments) => blame::print(arguments, link, output)?,
        Verb::Top(arguments) => return top::show(arguments, SystemTime::now, link, output),
        Verb::Version { output: format } => {
            version::print(*format, SystemTime::now(), link, output)?;
        }
        Verb::Validate(_) | Verb::Completion { .. } => {} // They need no server.
    }
    Ok(ExitCode::Success)
}
