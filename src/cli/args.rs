//! The command line of `ank`: commands, options, help texts.
//!
//! Thread: `main`. Takes: the words of the command line and the environment. Gives: [`Arguments`].
//!
//! Options for all commands may stand before and after the command. Only `-s` is different: it
//! means the server before the command, the state in `get workloads`, so after a command the server
//! needs its long form.

use super::output::timestamp;
use super::session::ModeRule;
use ankaios_model::execution_state::Phase;
use ankaios_model::field_path::parts;
use ankaios_model::fields::table::why_no_value;
use ankaios_model::nearest::{meant, nearest};
use ankaios_model::version::SHOWN_VERSION;
use ankaios_platform::settings::naming_variable;
use clap::builder::{BoolValueParser, OsStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{
    Arg, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
    ValueHint,
};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The way to name the server where `-s` has another meaning, or none.
const SERVER_URL_TIP: &str =
    "for the server write '--server-url <URL>', or '-s <URL>' before the command";
/// The way out for an option that names a namespace.
pub(crate) const NAMESPACE_TIP: &str = "leave it out: a cluster has no namespaces";
/// Help pages: examples before the options.
const PAGE: &str = "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\n{all-args}";
const EVERYWHERE: &str = "Options of all commands";
/// Help pages of commands: the options of all commands are one line.
const PAGE_OF_COMMAND: &str = "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\n{all-args}\n\n\
                               Options of all commands: 'ank --help'";

/// The command line after it was checked.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "ank",
    version = SHOWN_VERSION.as_str(),
    about = "Applies manifests to an Ankaios cluster and shows its workloads",
    arg_required_else_help = true,
    subcommand_required = true,
    help_template = PAGE,
    after_help = "Examples:\n  ank apply cluster.yaml        start its workloads and wait\n  \
                  ank get workloads             show all workloads\n  \
                  ank get state desiredState    show the desired state\n\n\
                  '--no-insecure', '--no-quiet', '--no-verbose' and '--wait' switch off what the config file switches on.\n\
                  Run 'ank help <command>' for the options and examples of a command."
)]
pub struct Arguments {
    /// URL of the server [default: https://127.0.0.1:25551]
    #[arg(short, long, env = "ANK_SERVER_URL", value_name = "URL", value_hint = ValueHint::Url, help_heading = EVERYWHERE, hide_short_help = true, global = true)]
    pub(crate) server_url: Option<String>,
    /// Options that may also stand after the command.
    #[command(flatten)]
    pub common: Common,
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Verb,
}

/// Options that may stand before and after the command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = EVERYWHERE)]
pub struct Common {
    /// Config file [default: ~/.config/ankaios/ank.conf or /etc/ankaios/ank.conf]
    #[arg(short = 'x', long, global = true, value_parser = path(), value_name = "PATH", value_hint = ValueHint::FilePath, hide_short_help = true)]
    pub(crate) ank_config: Option<PathBuf>,
    /// Use the table [contexts.<NAME>] of the config file in place of [default]
    #[arg(
        long,
        global = true,
        env = "ANK_CONTEXT",
        value_name = "NAME",
        hide_short_help = true
    )]
    pub(crate) context: Option<String>,
    /// Milliseconds to wait for a response of the server [default: 3000]
    #[arg(long, global = true, value_name = "MS", value_parser = parse_milliseconds, hide_short_help = true)]
    pub(crate) response_timeout: Option<u64>,
    /// Print debug messages on standard error
    #[arg(short, long, global = true, hide_short_help = true)]
    pub(crate) verbose: bool,
    /// Override `verbose` of the config file
    #[arg(long, global = true, hide = true)]
    pub(crate) no_verbose: bool,
    /// Print results, warnings and errors only
    #[arg(short, long, global = true, hide_short_help = true)]
    pub(crate) quiet: bool,
    /// Override `quiet` of the config file
    #[arg(long, global = true, hide = true)]
    pub(crate) no_quiet: bool,
    /// Do not wait for workloads after a change
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) no_wait: bool,
    /// Override `no_wait` of the config file
    #[arg(long, global = true, hide = true)]
    pub(crate) wait: bool,
    /// Wait also for disconnected agents, give up after this time, for example 90s or 5m, and exit
    /// with 4
    #[arg(long, global = true, value_name = "TIME", value_parser = parse_duration, hide_short_help = true)]
    pub(crate) wait_timeout: Option<Duration>,
    /// Exit with 3 when a workload that the command names failed, and with 4 when a guarded update
    /// stays open because an agent is disconnected
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) fail_on_error: bool,
    /// Connect to the server without TLS, if no certificates are set
    #[arg(short = 'k', long, global = true, env = "ANK_INSECURE", num_args = 0, value_parser = BoolValueParser::new(), default_missing_value = "true", value_name = "BOOL", hide_short_help = true)]
    pub(crate) insecure: Option<bool>,
    /// Override `insecure` of the config file and of the environment
    #[arg(long, global = true, hide = true)]
    pub(crate) no_insecure: bool,
    /// PEM file with the certificate of the authority that signed the server's certificate
    #[arg(long = "ca_pem", global = true, env = "ANK_CA_PEM", value_parser = path(), value_name = "PATH", value_hint = ValueHint::FilePath, hide_short_help = true)]
    pub(crate) ca_pem: Option<PathBuf>,
    /// PEM file with the certificate of this client
    #[arg(long = "crt_pem", global = true, env = "ANK_CRT_PEM", value_parser = path(), value_name = "PATH", value_hint = ValueHint::FilePath, hide_short_help = true)]
    pub(crate) crt_pem: Option<PathBuf>,
    /// PEM file with the private key of this client
    #[arg(long = "key_pem", global = true, env = "ANK_KEY_PEM", value_parser = path(), value_name = "PATH", value_hint = ValueHint::FilePath, hide_short_help = true)]
    pub(crate) key_pem: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Verb {
    /// Show the state of the cluster
    #[command(subcommand)]
    Get(Get),
    /// Change parts of the state
    #[command(subcommand)]
    Set(Set),
    /// Delete workloads or configs
    #[command(subcommand)]
    Delete(Delete),
    /// Run a workload without a manifest
    #[command(subcommand)]
    Run(Run),
    /// Create and update the workloads and configs of manifests, or delete them
    #[command(
        arg_required_else_help = true,
        after_help = "Examples:\n  ank apply web.yaml db.yaml      apply both as one update and wait\n  \
                      ank apply --agent agent_A -     apply standard input, all on agent_A\n  \
                      ank apply -d web.yaml           delete its workloads and configs\n  \
                      ank apply --dry-run web.yaml    show what would change, as 'ank diff' does\n  \
                      ank apply --rollback web.yaml   roll it back if a workload fails\n  \
                      ank apply --prune cluster.yaml  also delete what the manifest does not name\n  \
                      ank apply --restart-dependents db.yaml\n                                  restart the dependents of 'db', too\n  \
                      ank apply web.yaml --wait-timeout 60 --fail-on-error\n                                  exit code 3 if one failed, 4 if one is late"
    )]
    Apply(ApplyArguments),
    /// Show what 'apply' would add, change and delete, and change nothing
    #[command(
        arg_required_else_help = true,
        mut_arg("ignore_modes", |option| option.help("As in 'ank apply'")),
        mut_arg("switch_mode", |option| option.help("As in 'ank apply'")),
        mut_arg("keep_mode", |option| option.help("As in 'ank apply'")),
        after_help = "Exit code: 0 without differences, 6 with some, 1 after an error.\n\n\
                      Examples:\n  ank diff web.yaml db.yaml        field by field, as a unified diff\n  \
                      ank diff -d web.yaml             what 'apply -d' would delete\n  \
                      ank diff --prune cluster.yaml    what 'apply --prune' would delete as well\n  \
                      ank diff -o json web.yaml        for scripts"
    )]
    Diff(DiffArguments),
    /// Check manifests without a server, for example in a build pipeline
    #[command(
        arg_required_else_help = true,
        after_help = "Exit code: 0 when they are valid, 1 when not. Several files are checked as one update, and all that is \
                      wrong is named. A \
                      workload or config that is referred to and is in none of the files is a warning: it may be in the \
                      cluster. Templates are rendered by the server, so what they lead to is not checked.\n\n\
                      Examples:\n  ank validate web.yaml db.yaml\n  \
                      ank validate --agent agent_A web.yaml    as 'ank apply --agent' would use it\n  \
                      ank validate --strict web.yaml           a warning is an error"
    )]
    Validate(ValidateArguments),
    /// Restart workloads and their dependents
    #[command(
        arg_required_else_help = true,
        after_help = "Direct and indirect dependents begin to stop first and are started last. The desired state \
                      stays as it is. A restart is refused while the agent of one of them is disconnected, or while one is in an open \
                      guarded update.\n\n\
                      Examples:\n  ank restart web             restart 'web' and its dependents, and wait\n  \
                      ank restart db map          restart both as one\n  \
                      ank restart db --no-wait    do not wait"
    )]
    Restart {
        /// Names of workloads
        #[arg(value_name = "WORKLOAD", required = true)]
        names: Vec<String>,
    },
    /// Stop workloads until 'ank start' starts them again
    #[command(
        arg_required_else_help = true,
        after_help = "The desired state stays as it is: 'ank apply', a switch of the mode and a rollback do not start a stopped \
                      workload. Commands warn of it until it is started or deleted. It stays stopped over a restart of the \
                      server that has 'state_dir'. What needs it running must be stopped with it.\n\n\
                      Examples:\n  ank stop web        stop 'web' and wait\n  \
                      ank stop db web     stop 'db', and 'web' that needs it"
    )]
    Stop {
        /// Names of workloads
        #[arg(value_name = "WORKLOAD", required = true)]
        names: Vec<String>,
    },
    /// Start workloads that 'ank stop' has stopped
    #[command(
        arg_required_else_help = true,
        after_help = "What has ended by itself is run again by 'ank restart'.\n\n\
                      Example:\n  ank start db web"
    )]
    Start {
        /// Names of workloads
        #[arg(value_name = "WORKLOAD", required = true)]
        names: Vec<String>,
    },
    /// Roll back a guarded update
    #[command(
        after_help = "Without ID, this is the newest update that is open, or else the newest that is GOOD or KEPT. \
                            It is refused when one of its workloads or configs was changed since then. Without ID it \
                            is also refused when the newest update was rolled back or withdrawn.\n\n\
                            Examples:\n  ank get updates      the updates that the server keeps\n  \
                            ank rollback 3       roll back update 3, and wait"
    )]
    Rollback {
        /// Number of the update, as 'ank get updates' shows it
        #[arg(value_name = "ID", value_parser = parse_update)]
        id: Option<u64>,
    },
    /// Print what workloads wrote to their standard output and error
    #[command(
        arg_required_else_help = true,
        after_help = "Examples:\n  ank logs web                    print all lines\n  \
                      ank logs -f --tail 10 web db    the last 10 lines of both and all new ones\n  \
                      ank logs --since 10m --timestamps web\n  \
                      ank logs -l team=one            of all workloads with this tag"
    )]
    Logs(LogsArguments),
    /// Show the modes of the vehicle, or switch to one
    #[command(
        after_help = "A config item of the server holds the current mode; workloads name theirs in the tag 'modes'.\n\n\
                      Examples:\n  ank mode                   show the modes\n  \
                      ank mode park              switch, and wait for the workloads\n  \
                      ank mode --new flash       switch also if no workload names this mode"
    )]
    Mode(ModeArguments),
    /// Wait until workloads run, have succeeded or are gone
    #[command(
        arg_required_else_help = true,
        after_help = "Exit code: 0 when all are there, 3 with --fail-on-error as soon as one has failed, 4 when the time has passed.\n\n\
                      Examples:\n  ank wait web db                    until both run\n  \
                      ank wait --for succeeded job       until it has ended with success\n  \
                      ank wait --for gone web --timeout 60s"
    )]
    Wait(WaitArguments),
    /// Show all that is known of a workload or an agent
    #[command(
        arg_required_else_help = true,
        after_help = "Examples:\n  ank describe web            state, starts, dependencies, update, usage, log\n  \
                      ank describe agent_A        of an agent: load, tags and workloads\n  \
                      ank describe web -o json    for scripts"
    )]
    Describe(DescribeArguments),
    /// Print the dependencies of workloads and whether they are met
    #[command(
        after_help = "Examples:\n  ank graph                             a tree below each workload\n  \
                      ank graph web                         only 'web' and what it needs\n  \
                      ank graph --timing                    when each of them was ready\n  \
                      ank graph --mode park                 only what is in mode 'park'\n  \
                      ank graph -o dot | dot -Tsvg > graph.svg"
    )]
    Graph(GraphArguments),
    /// Print how long the starts of workloads took and which dependencies they waited for
    #[command(
        after_help = "Columns, in seconds; empty where a time is not known, '>' where it still grows:\n  \
                      WAITED      from the first report that it waits until it was started\n  \
                      WAITED FOR  the dependency that was met last\n  \
                      PREPARED    how far its start was prepared: IMAGE, CREATE or INIT\n  \
                      START       until its container ran, or had ended\n  \
                      READY       from there until its check 'ready' succeeded\n  \
                      TOTAL       from its acceptance, or its last restart, until it was ready\n\n\
                      Examples:\n  ank blame                    the longest start first\n  \
                      ank blame web db             only these workloads\n  \
                      ank blame -o svg > boot.svg  a chart for a browser"
    )]
    Blame(BlameArguments),
    /// Show how much CPU and memory workloads and nodes use
    #[command(
        mut_arg("agent", |agent| agent.help("Only workloads of this agent")),
        after_help = "CPU is in percent of one core, between two samples. MEMORY leaves out the page cache that the kernel can take \
                      back at once; PEAK includes it. '-' is unknown. Below the workloads stand, for each agent, their sum \
                      and the whole node.\n\n\
                      Examples:\n  ank top                            all workloads, those with most CPU first\n  \
                      ank top -w -s memory -a agent_A    keep showing one agent, sorted by memory\n  \
                      ank top -o json web db             for scripts"
    )]
    Top(TopArguments),
    /// Show the versions of ank, of the server and of connected agents
    #[command(after_help = "Examples:\n  ank version\n  ank version -o json    for scripts")]
    Version {
        /// Format of the output
        #[arg(short, long, value_parser = formats(&["table", "wide", "json", "yaml"]), default_value = "table", value_name = "FORMAT")]
        output: Format,
    },
    /// Print the script that completes command lines in a shell
    #[command(
        arg_required_else_help = true,
        after_help = "The script asks 'ank' for candidates, so it knows the names in the cluster.\n\n\
                      Examples:\n  source <(ank completion bash)        in this shell; in ~/.bashrc for all\n  \
                      source <(ank completion zsh)         in ~/.zshrc, after 'compinit'\n  \
                      ank completion fish | source         in ~/.config/fish/config.fish"
    )]
    Completion {
        /// The shell
        #[arg(value_name = "SHELL", value_parser = ["bash", "zsh", "fish", "elvish", "powershell"])]
        shell: String,
    },
}

/// What `get` shows.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Get {
    /// The complete state, or the parts that masks select
    #[command(after_help = "Examples:\n  ank get state -o json\n  \
                            ank get state desiredState.workloads.web\n  \
                            ank get state 'desiredState.workloads.*.agent' workloadStates\n  \
                            ank get state -o manifest > backup.yaml    'ank apply --prune backup.yaml' restores it")]
    State {
        /// Format of the output; 'manifest' is the desired state as 'ank apply' reads it
        #[arg(short, long, value_parser = formats(&["yaml", "json", "manifest"]), default_value = "yaml", value_name = "FORMAT")]
        output: Format,
        /// Parts to show, names separated by dots; '*' stands for every name at its place
        #[arg(value_name = "MASK")]
        masks: Vec<String>,
    },
    /// A table of workloads and their states
    #[command(
        visible_alias = "workloads",
        after_help = "Examples:\n  ank get workloads\n  ank get workloads -a agent_A -s running\n  \
                      ank get workloads -w web db\n  ank get workloads -o json    for scripts"
    )]
    Workload(WorkloadArguments),
    /// A table of connected agents with their load
    #[command(
        visible_alias = "agents",
        after_help = "CPU USAGE is in percent of all cores, FREE MEMORY in bytes, with '-o wide' in MiB or GiB.\n\nExample:\n  ank get agents"
    )]
    Agent(ListArguments),
    /// A list of the configs that templates can use
    #[command(visible_alias = "configs", after_help = "Example:\n  ank get configs")]
    Config(ListArguments),
    /// A table of guarded updates: those that are open and the last that have ended
    #[command(
        visible_alias = "updates",
        after_help = "Examples:\n  ank get updates\n  ank get updates 3 -o json",
        mut_arg("names", |names| names.value_name("ID").help("Only those with these numbers"))
    )]
    Update(ListArguments),
    /// Changes of the state as they happen, until interrupted
    #[command(
        after_help = "One document for each change: 'timestamp', 'addedFields', 'updatedFields', 'removedFields' and, in \
                      'completeState', the new values. Without masks this includes the load reports of agents.\n\n\
                      Examples:\n  ank get events -o json workloadStates\n  \
                      ank get events -c --count 1 desiredState.workloads.web\n  \
                      ank get events --until 'workloadStates.*.web.*.state=Running'\n  \
                      ank get events --since 1h       what happened in the last hour\n  \
                      ank get events --since 1d web   only to 'web'"
    )]
    Events(EventsArguments),
}

/// What `set` changes.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Set {
    /// Replace parts of the state with those of a file
    #[command(
        arg_required_else_help = true,
        override_usage = "ank set state [OPTIONS] <OBJECT_FIELD_MASK>... <FILE>",
        after_help = "The file holds a complete state as 'ank get state' prints it, not a manifest.\n\
                      A part that the file lacks is refused. To delete it, use --delete-missing, or give the map around it as \
                      empty: 'workloads: {}'.\n\n\
                      Examples:\n  ank set state desiredState.workloads.web.restartPolicy state.yaml\n  \
                      ank set state agents.agent_A.tags -"
    )]
    State {
        /// Parts to change, names separated by dots; last, the file with the new state ('-':
        /// standard input)
        // One list, since options may stand between the two.
        #[arg(value_name = "OBJECT_FIELD_MASK", required = true)]
        masks_and_file: Vec<String>,
        /// Delete the parts that the file lacks
        #[arg(long)]
        delete_missing: bool,
        #[command(flatten)]
        mode: ModeChange,
    },
}

/// What `delete` deletes.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Delete {
    /// Stop workloads and remove them from the desired state; unknown names are no error
    #[command(
        visible_alias = "workloads",
        arg_required_else_help = true,
        after_help = "Example:\n  ank delete workload web db"
    )]
    Workload {
        /// Names of workloads
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
    /// Remove configs from the desired state; unknown names are no error
    #[command(
        visible_alias = "configs",
        arg_required_else_help = true,
        after_help = "Example:\n  ank delete config ports"
    )]
    Config {
        /// Names of configs
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
}

/// What `run` runs.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Run {
    /// Run one workload; one with the same name is replaced
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  ank run workload web --agent agent_A --runtime podman \\\n      --config 'image: docker.io/nginx:latest'"
    )]
    Workload(RunArguments),
}

/// Which instances are shown.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Filter {
    /// Only those of this agent
    #[arg(short, long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// Only workloads with these names
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Options of `get workload`: which rows it shows; all conditions must hold.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WorkloadArguments {
    #[command(flatten)]
    pub(crate) filter: Filter,
    /// Only those in this state, for example 'running' or 'Pending(Starting)'
    #[arg(short, long, value_name = "STATE")]
    pub(crate) state: Option<String>,
    /// Keep showing changes until interrupted
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Format of the output
    #[arg(short, long, value_parser = formats(&["table", "wide", "json", "yaml", "name"]), default_value = "table", value_name = "FORMAT")]
    pub(crate) output: Format,
}

/// Options of lists of agents, configs and updates.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ListArguments {
    /// Format of the output
    #[arg(short, long, value_parser = formats(&["table", "wide", "json", "yaml", "name"]), default_value = "table", value_name = "FORMAT")]
    pub(crate) output: Format,
    /// Only those with these names
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Options of `get events`.
#[derive(Debug, Clone, Args)]
pub(crate) struct EventsArguments {
    /// Format of the output [default: yaml, with '--since' a table]
    #[arg(short, long, value_parser = formats(&["yaml", "json"]), value_name = "FORMAT")]
    pub(crate) output: Option<Format>,
    /// Print the last changes of states that the server keeps, since this time, and end: 1h ago,
    /// with s, m, h or d, or 2026-01-31T12:00:00Z. MASK is the name of a workload or agent then
    #[arg(long, value_name = "TIME", value_parser = parse_moment, conflicts_with_all = ["include_current_state", "count", "until", "reconnect"])]
    pub(crate) since: Option<Moment>,
    /// Print the current state before the first event
    #[arg(short = 'c', long)]
    pub(crate) include_current_state: bool,
    /// End after this many events; the state that '-c' prints does not count
    #[arg(long, value_name = "N", value_parser = parse_number::<u64>)]
    pub(crate) count: Option<u64>,
    /// End when this field has this value, at once if it has it already; '*' stands for every name
    /// at its place
    #[arg(long, value_name = "FIELD=VALUE", value_parser = parse_until)]
    pub(crate) until: Option<Until>,
    /// Connect again when the connection is lost, and print the state at that time
    #[arg(long)]
    pub(crate) reconnect: bool,
    /// Parts to watch, names separated by dots; '*' stands for every name at its place
    #[arg(value_name = "MASK")]
    pub(crate) masks: Vec<String>,
}

/// A field and the value that ends `get events`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Until {
    /// The field; `*` stands for every name at its place.
    pub(crate) mask: String,
    /// The value as the state prints it.
    pub(crate) value: String,
}

/// Options of `run workload`.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArguments {
    /// Name of the workload
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Runtime that runs it: podman, podman-kube or containerd
    #[arg(long, value_name = "RUNTIME")]
    pub(crate) runtime: String,
    /// Configuration for the runtime, as in the runtimeConfig of a manifest
    #[arg(long, value_name = "CONFIG")]
    pub(crate) config: String,
    /// Agent that runs it
    #[arg(long, value_name = "AGENT")]
    pub(crate) agent: String,
    /// A tag as <key>=<value>; may be given several times
    #[arg(long, value_name = "TAGS", value_parser = parse_tag)]
    pub(crate) tags: Vec<(String, String)>,
    /// Run it on a server without modes although it has the tag 'modes'
    #[arg(long)]
    pub(crate) ignore_modes: bool,
}

/// The manifests of `apply` and `diff`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ManifestArguments {
    /// Assign all workloads of the manifests to this agent
    #[arg(long, value_name = "AGENT")]
    pub(crate) agent: Option<String>,
    /// Delete the workloads and configs that the manifests name
    #[arg(short = 'd')]
    pub(crate) delete: bool,
    /// Apply workloads with the tag 'modes' also to a server without modes, which runs all of them
    #[arg(long)]
    pub(crate) ignore_modes: bool,
    #[command(flatten)]
    pub(crate) mode: ModeChange,
    #[command(flatten)]
    pub(crate) prune: PruneArguments,
    /// Further manifests, as FILE
    #[arg(short = 'f', long = "file", value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub(crate) files: Vec<String>,
    /// Manifests; '-' as the first reads one from standard input; of a folder all its '*.yaml'
    #[arg(value_name = "FILE", required_unless_present = "files", value_hint = ValueHint::AnyPath)]
    pub(crate) manifests: Vec<String>,
}

/// Whether what the manifests do not name is deleted.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PruneArguments {
    /// Also delete the workloads that the manifests do not name, and the configs that no workload
    /// uses any more, in the same update
    #[arg(long, conflicts_with = "delete")]
    pub(crate) prune: bool,
    /// Of these only workloads with this tag, and the configs that they used; may be given several
    /// times
    #[arg(long = "prune-tag", value_name = "KEY=VALUE", value_parser = parse_tag, requires = "prune")]
    pub(crate) tags: Vec<(String, String)>,
}

/// What becomes of the mode of the vehicle when an update would switch it.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ModeChange {
    /// Let it switch the mode of the vehicle, which is refused otherwise
    #[arg(long)]
    pub(crate) switch_mode: bool,
    /// Change all but the mode of the vehicle, which stays as it is
    #[arg(long, conflicts_with = "switch_mode")]
    pub(crate) keep_mode: bool,
}

impl ModeChange {
    /// The rule that the options mean.
    pub(crate) fn rule(&self) -> ModeRule {
        if self.switch_mode {
            return ModeRule::MaySwitch;
        }
        if self.keep_mode {
            return ModeRule::Keep;
        }
        ModeRule::MustNotSwitch
    }
}

/// Options of `validate`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ValidateArguments {
    /// Assign all workloads of the manifests to this agent
    #[arg(long, value_name = "AGENT")]
    pub(crate) agent: Option<String>,
    /// Treat warnings as errors, for example that of a runtime that no agent has
    #[arg(long)]
    pub(crate) strict: bool,
    /// Further manifests, as FILE
    #[arg(short = 'f', long = "file", value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub(crate) files: Vec<String>,
    /// Manifests; '-' as the first reads one from standard input; of a folder all its '*.yaml'
    #[arg(value_name = "FILE", required_unless_present = "files", value_hint = ValueHint::AnyPath)]
    pub(crate) manifests: Vec<String>,
}

/// Options of `apply`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ApplyArguments {
    /// The manifests, and what to do with them.
    #[command(flatten)]
    pub(crate) input: ManifestArguments,
    /// Show what would change and change nothing; exit with 6 when something would
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Format of the output of '--dry-run'
    #[arg(short, long, value_parser = formats(&["text", "json"]), default_value = "text", value_name = "FORMAT", requires = "dry_run")]
    pub(crate) output: Format,
    /// Roll back when a workload fails or is not healthy in time; exit with 5 then, or 7 if what
    /// was there does not run again. Watched by this command only; for a rollback by the server use
    /// 'lifecycle.update'
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) rollback: bool,
    /// Try it also when the server has rolled the same update back before
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) force: bool,
    /// Also restart the dependents of the changed workloads, so that the change need not wait for
    /// them; without a change, nothing is restarted
    #[arg(long, conflicts_with_all = ["dry_run", "rollback", "delete"])]
    pub(crate) restart_dependents: bool,
    /// Do not ask before '--prune' deletes more than half of all workloads, or all of an agent
    #[arg(long, requires = "prune")]
    pub(crate) yes: bool,
}

/// Options of `diff`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DiffArguments {
    /// The manifests to compare with the desired state.
    #[command(flatten)]
    pub(crate) input: ManifestArguments,
    /// Format of the output
    #[arg(short, long, value_parser = formats(&["text", "json"]), default_value = "text", value_name = "FORMAT")]
    pub(crate) output: Format,
}

/// Options of `logs`.
#[derive(Debug, Clone, Args)]
pub(crate) struct LogsArguments {
    /// Print new lines until interrupted
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Lines from the end; -1 means all. '-n N' is the same
    #[arg(short, long, value_name = "N", default_value = "-1", allow_negative_numbers = true, value_parser = parse_number::<i32>)]
    pub(crate) tail: i32,
    /// Begin each line with the name of the workload, also when there is only one
    #[arg(short = 'n', long = "names")]
    pub(crate) names_before_lines: bool,
    /// Begin each line with agent and workload, as <agent>/<workload>
    #[arg(long)]
    pub(crate) agent_names: bool,
    /// Begin each line with its time, after the name of the workload
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// Only lines since this time: 10m ago, with s, m, h or d, or 2026-01-31T12:00:00Z
    #[arg(short, long, value_name = "TIME", value_parser = parse_moment)]
    pub(crate) since: Option<Moment>,
    /// Only lines until this time
    #[arg(short, long, value_name = "TIME", value_parser = parse_moment)]
    pub(crate) until: Option<Moment>,
    /// All workloads with this tag; given several times, with all of them
    #[arg(short = 'l', long = "tag", value_name = "KEY=VALUE", value_parser = parse_tag, conflicts_with = "names")]
    pub(crate) tags: Vec<(String, String)>,
    /// Names of workloads
    #[arg(value_name = "NAME", required_unless_present = "tags")]
    pub(crate) names: Vec<String>,
}

/// A point in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Moment {
    /// RFC 3339 time.
    At(String),
    /// This duration before now.
    Ago(Duration),
}

impl Moment {
    /// The point in time; `now` is the present. A time before 1970 becomes 1970.
    pub(crate) fn time(&self, now: SystemTime) -> SystemTime {
        let time = match self {
            Self::At(text) => time_of(text),
            Self::Ago(duration) => now.checked_sub(*duration),
        };
        match time {
            Some(time) => time.max(UNIX_EPOCH),
            None => UNIX_EPOCH,
        }
    }

    /// The point in time as RFC 3339 writes it; `now` is the present.
    pub(crate) fn text(&self, now: SystemTime) -> String {
        match self {
            Self::At(text) => text.clone(),
            Self::Ago(_) => timestamp(self.time(now)),
        }
    }
}

/// Options of `wait`.
#[derive(Debug, Clone, Args)]
pub(crate) struct WaitArguments {
    /// State to wait for
    #[arg(
        long = "for",
        value_name = "STATE",
        value_enum,
        default_value = "running"
    )]
    pub(crate) state: Awaited,
    /// Give up after this time, for example 90s or 5m, and exit with 4; as '--wait-timeout'
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Names of workloads
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

/// The state that `wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Awaited {
    /// It runs, and is ready if it has a check for that
    Running,
    /// It has ended with success
    Succeeded,
    /// It has no instance any more
    Gone,
}

/// Options of `describe`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DescribeArguments {
    /// Format of the output
    #[arg(short, long, value_parser = formats(&["text", "json", "yaml"]), default_value = "text", value_name = "FORMAT")]
    pub(crate) output: Format,
    /// Name of a workload or an agent
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Options of `mode`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModeArguments {
    /// Format of the output
    #[arg(short, long, value_parser = formats(&["table", "wide", "json", "yaml"]), default_value = "table", value_name = "FORMAT", conflicts_with = "mode")]
    pub(crate) output: Format,
    /// Switch also to a mode that no workload names
    #[arg(long, requires = "mode")]
    pub(crate) new: bool,
    /// The mode to switch to
    #[arg(value_name = "NAME")]
    pub(crate) mode: Option<String>,
}

/// Options of `graph`.
#[derive(Debug, Clone, Args)]
pub(crate) struct GraphArguments {
    /// Format of the output
    #[arg(short, long, value_parser = formats(&["text", "wide", "json", "yaml", "dot", "mermaid"]), default_value = "text", value_name = "FORMAT")]
    pub(crate) output: Format,
    /// Show when each workload was ready: '@' and the seconds since the boot of the server's node,
    /// '+' and the seconds that it took; '*' marks the chain that was ready last
    #[arg(long)]
    pub(crate) timing: bool,
    /// Only workloads in this mode
    #[arg(long, value_name = "NAME")]
    pub(crate) mode: Option<String>,
    /// Only these workloads and their dependencies
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Options of `blame`.
#[derive(Debug, Clone, Args)]
pub(crate) struct BlameArguments {
    /// Format of the output
    #[arg(short, long, value_parser = formats(&["table", "wide", "json", "yaml", "svg"]), default_value = "table", value_name = "FORMAT")]
    pub(crate) output: Format,
    /// Only these workloads
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

/// Options of `top`.
#[derive(Debug, Clone, Args)]
pub(crate) struct TopArguments {
    #[command(flatten)]
    pub(crate) filter: Filter,
    /// Order of the rows, highest first
    #[arg(short, long, value_parser = ["cpu", "memory", "peak", "pids", "restarts", "uptime", "name"], default_value = "cpu", value_name = "KEY")]
    pub(crate) sort: String,
    /// Keep showing changes until interrupted
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Time between two samples, from 500ms to 1h [default: 1s; with --watch 2s]
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    pub(crate) interval: Option<Duration>,
    /// Format of the output
    #[arg(short, long, value_parser = formats(&["table", "wide", "json", "yaml"]), default_value = "table", value_name = "FORMAT")]
    pub(crate) output: Format,
}

/// How something is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table, or other text for people.
    #[default]
    #[value(alias = "text")]
    Table,
    /// A table with further columns, as wide as it is.
    Wide,
    Json,
    Yaml,
    /// Names only, one a line.
    Name,
    /// The desired state as a manifest.
    Manifest,
    Svg,
    Dot,
    Mermaid,
}

impl Verb {
    /// Returns whether the command prints changes until it is stopped.
    pub(crate) fn is_endless(&self) -> bool {
        matches!(
            self,
            Self::Get(
                Get::Events(EventsArguments { since: None, .. })
                    | Get::Workload(WorkloadArguments { watch: true, .. })
            ) | Self::Top(TopArguments { watch: true, .. })
        )
    }

    /// The action that errors name; `None` where errors of Eclipse Ankaios name none.
    pub(crate) fn action(&self) -> Option<&'static str> {
        Some(match self {
            Self::Get(Get::State { .. }) => "get state",
            Self::Get(Get::Workload(WorkloadArguments { watch: false, .. })) => "get workloads",
            Self::Get(Get::Workload(WorkloadArguments { watch: true, .. })) => "watch workloads",
            Self::Get(Get::Agent(_)) => "get agents",
            Self::Get(Get::Config(_)) => "get configs",
            Self::Get(Get::Events(_)) => "get events",
            Self::Set(Set::State { .. }) => "set state",
            Self::Delete(Delete::Workload { .. }) => "delete workloads",
            Self::Delete(Delete::Config { .. }) => "delete configs",
            Self::Run(Run::Workload(_)) => "run workloads",
            Self::Logs(_) => "output logs",
            _ => return None,
        })
    }
}

impl Arguments {
    /// Reads the words of the command line, the program's name first.
    ///
    /// # Errors
    /// A usage error, or the text of help or version: clap's error knows where to print it and the
    /// exit code.
    pub fn read(
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let mut words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        if is_help_of_help(&words) {
            words.pop(); // `help` has no options of its own.
        }
        let words = with_tail(words);
        // First, read the words without the environment. With it, `ank` alone would not print the
        // help: clap takes the value of a variable for a word.
        let mut has_variable = false;
        let is_help_of_command = is_help_of_command(&words);
        let first = command_with(|argument| {
            has_variable |= is_in_environment(&argument);
            if is_help_of_command {
                for_help_of_command(argument)
            } else {
                without_environment(argument)
            }
        });
        let first = first.try_get_matches_from(&words);
        let mut matches = first.map_err(|error| with_tip(error, &words))?;
        // Then, read them with the environment, if it has values: this takes half a millisecond.
        if has_variable {
            matches = command()
                .try_get_matches_from(words)
                .map_err(|error| naming_variable(error, &command()))?;
        }
        let arguments =
            Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))?;
        // Finally, check the rules that clap cannot.
        match arguments.wrong_usage() {
            Some(text) => Err(usage_error(text, &matches)),
            None => Ok(arguments),
        }
    }

    /// The text about wrong arguments that clap accepts; `None` if all are right.
    fn wrong_usage(&self) -> Option<&'static str> {
        let would_print_nothing = self.common.quiet && self.command.is_endless();
        Some(match &self.command {
            Verb::Set(Set::State { masks_and_file, .. }) if masks_and_file.len() < 2 => {
                "the following required arguments were not provided:\n  <FILE>"
            }
            Verb::Apply(ApplyArguments { rollback: true, .. }) if self.common.no_wait => {
                "the argument '--no-wait' cannot be used with '--rollback'"
            }
            Verb::Get(Get::Workload(WorkloadArguments {
                state: Some(state), ..
            })) if state.contains("://") => {
                "'-s' is a state of workloads here; for the server write '--server-url <URL>', or '-s <URL>' before the command"
            }
            Verb::Get(Get::Events(_)) if would_print_nothing => {
                "the argument '--quiet' cannot be used with 'get events'"
            }
            _ if would_print_nothing => "the argument '--quiet' cannot be used with '--watch'",
            Verb::Get(Get::Workload(WorkloadArguments {
                watch: true,
                output: Format::Json | Format::Yaml | Format::Name,
                ..
            })) => {
                "the argument '--watch' cannot be used with '-o json', '-o yaml' and '-o name'; see 'ank get events'"
            }
            _ => return None,
        })
    }
}

/// A usage error with the usage line of the innermost given command.
fn usage_error(text: &str, matches: &ArgMatches) -> clap::Error {
    let mut command = command_with(without_environment);
    command.build(); // Or the usage line would lack the names of the commands above.
    let mut given = matches;
    while let Some((name, below)) = given.subcommand()
        && let Some(found) = command.find_subcommand(name).cloned()
    {
        command = found;
        given = below;
    }
    command.error(ErrorKind::ArgumentConflict, text)
}

/// Replaces `-n NUMBER` and `-nNUMBER` of `ank logs` by `--tail NUMBER`. Other tools have `-n` for
/// the number of lines. Here it is a flag, and a number behind it is hardly the name of a workload.
fn with_tail(words: Vec<OsString>) -> Vec<OsString> {
    if !words.iter().any(|word| word == "logs") {
        return words;
    }
    let mut changed: Vec<OsString> = Vec::with_capacity(words.len());
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            changed.push(word);
            break; // Only names follow.
        }
        let text = word.to_string_lossy();
        if text == "-n" && words.peek().is_some_and(is_number) {
            changed.push("--tail".into());
        } else if let Some(number) = text.strip_prefix("-n").filter(|rest| is_digits(rest)) {
            changed.push(format!("--tail={number}").into());
        } else {
            changed.push(word);
        }
    }
    changed.extend(words);
    changed
}

/// Returns whether the last words are `help --help`, and `help` is not an argument of a command.
fn is_help_of_help(words: &[OsString]) -> bool {
    let [before @ .., word, option] = words else {
        return false;
    };
    let has_help_option = option == "--help" || option == "-h";
    word == "help" && has_help_option && !before.iter().any(is_command)
}

/// Returns whether the words request the help of a command.
fn is_help_of_command(words: &[OsString]) -> bool {
    let is_help = words.iter().any(|word| word == "--help" || word == "help");
    // Checked last: it takes half a millisecond.
    is_help && words.iter().skip(1).any(is_command)
}

/// Returns whether a word is the name of a command.
fn is_command(word: &OsString) -> bool {
    let name = word.to_string_lossy();
    name != "help" && Arguments::command().find_subcommand(&*name).is_some()
}

fn is_number(word: &OsString) -> bool {
    is_digits(&word.to_string_lossy())
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit())
}

/// Adds a tip to the error of `-s` after a command, and to that of an unknown command.
fn with_tip(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    if let Some(tip) = tip_for_option(&error, words) {
        // The nearest name would be a guess.
        error.remove(ContextKind::SuggestedArg);
        add_tip(&mut error, &tip);
        return error;
    }
    let Some(unknown) = unknown_command(&error) else {
        return error;
    };
    let command = innermost_command(words);
    if let Some(tip) = tip_for_habit(command.get_name(), &unknown, words) {
        // The nearest name would be a guess.
        error.remove(ContextKind::SuggestedSubcommand);
        add_tip(&mut error, &tip);
        return error;
    }
    if error.get(ContextKind::SuggestedSubcommand).is_some() {
        return error;
    }
    // Clap finds no command whose letters are swapped.
    let names = command
        .get_subcommands()
        .flat_map(Command::get_name_and_visible_aliases);
    if let Some(meant) = nearest(&unknown, names) {
        let meant = ContextValue::Strings(vec![meant.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, meant);
    }
    error
}

/// The tip for an option or argument that a command does not have, but that other commands or
/// tools have.
fn tip_for_option(error: &clap::Error, words: &[OsString]) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let tip = match unknown.as_str() {
        "-s" => SERVER_URL_TIP,
        "-l" | "--selector" => {
            "name the workloads; only 'ank logs -l KEY=VALUE' chooses them by their tags"
        }
        "-A" | "--all-namespaces" | "--namespace" => NAMESPACE_TIP,
        "-n" if may_name_namespace(words) => NAMESPACE_TIP,
        "--no-headers" => "there is no such option; '-o name' prints names without a heading",
        "-f" | "--file" | "--filename" if words.iter().any(|word| word == "delete") => {
            let file = word_after(words, unknown).unwrap_or_else(|| "FILE".to_owned());
            return Some(format!(
                "'ank apply -d {file}' deletes the workloads and configs of a manifest"
            ));
        }
        name if !name.starts_with('-') && innermost_command(words).get_name() == "describe" => {
            return Some(format!(
                "it takes one name, without its kind: 'ank describe {name}'"
            ));
        }
        _ => return None,
    };
    Some(tip.to_owned())
}

/// Returns whether `-n` may name a namespace, as in other tools. With a number it means lines there.
fn may_name_namespace(words: &[OsString]) -> bool {
    match word_after(words, "-n") {
        Some(word) => !is_digits(&word),
        None => false,
    }
}

/// The word that follows the first `word`.
fn word_after(words: &[OsString], word: &str) -> Option<String> {
    let mut words = words.iter();
    words.find(|found| *found == word)?;
    Some(words.next()?.to_string_lossy().into_owned())
}

/// The unknown command of an error; `None` if it has another cause.
fn unknown_command(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(unknown)) => Some(unknown.clone()),
        _ => None,
    }
}

fn add_tip(error: &mut clap::Error, tip: &str) {
    let tips = ContextValue::StyledStrs(vec![tip.to_owned().into()]);
    error.insert(ContextKind::Suggested, tips);
}

/// The last command that the words name: `get` for `ank get nodes`.
fn innermost_command(words: &[OsString]) -> Command {
    let mut command = command();
    for word in words.iter().skip(1) {
        let found = command.find_subcommand(&*word.to_string_lossy()).cloned();
        command = found.unwrap_or(command);
    }
    command
}

/// The tip for a command that other tools have.
fn tip_for_habit(command: &str, word: &str, words: &[OsString]) -> Option<String> {
    let tip = match (command, word) {
        ("ank", "ps" | "ls" | "list" | "status") => "'ank get workloads' lists the workloads",
        ("ank", "rm" | "remove" | "kill") => {
            "'ank delete workload NAME' stops and removes a workload"
        }
        ("ank", "down") => {
            "'ank stop NAME' stops a workload until 'ank start NAME'; 'ank apply -d FILE' deletes those of a manifest"
        }
        ("ank", "up") => "'ank apply FILE' creates, updates and starts workloads",
        ("ank", "exec" | "attach" | "cp") => {
            "use the container engine of the node, for example 'podman exec'; 'ank get workloads -o wide' has the id"
        }
        ("ank", "edit" | "scale") => {
            "change the manifest and 'ank apply' it; 'ank diff' shows what changes"
        }
        ("ank", "create" | "deploy") => "'ank apply FILE' creates and updates workloads",
        ("ank", "log") => "'ank logs NAME' prints what a workload wrote",
        ("ank", "events") => "'ank get events --since 1h' prints what happened in the last hour",
        ("ank", "stats") => "'ank top' shows how much CPU and memory workloads and nodes use",
        ("ank", "show" | "inspect") => {
            "'ank describe NAME' shows all that is known of a workload or an agent"
        }
        ("ank", "rollout") => {
            "'ank get updates' lists guarded updates, 'ank rollback' rolls one back"
        }
        ("ank", "node" | "nodes") => "'ank get agents' lists the agents",
        ("get", "nodes" | "node") => "'ank get agents' lists the agents",
        ("get", "pods" | "pod" | "containers") => "'ank get workloads' lists the workloads",
        ("delete", "pod" | "pods" | "container" | "containers") => {
            let name = word_after(words, word).unwrap_or_else(|| "NAME".to_owned());
            return Some(format!("'ank delete workload {name}' deletes a workload"));
        }
        // A typing error: the nearest name is the tip.
        ("delete" | "run", name) if nearest(name, ["workload", "config"]).is_some() => return None,
        ("delete", name) => {
            return Some(format!(
                "'ank delete workload {name}' deletes a workload, 'ank delete config {name}' a config"
            ));
        }
        ("run", name) => {
            return Some(format!(
                "a workload is run with 'ank run workload {name} ...'"
            ));
        }
        _ => return None,
    };
    Some(tip.to_owned())
}

/// The whole command tree, also for help pages and completion.
pub fn command() -> Command {
    command_with(|argument| argument)
}

/// Returns the whole command tree, after `change` was applied to each global option.
fn command_with(change: impl FnMut(Arg) -> Arg) -> Command {
    let command = Arguments::command().mut_args(change);
    let server_url = command
        .get_arguments()
        .find(|argument| argument.get_id() == "server_url");
    // Each subcommand has a copy of `--server-url`: without `-s`, and first in its list of options.
    let server_url = server_url.map(|argument| argument.clone().short(None).display_order(0));
    command.mut_subcommands(|command| with_server_url(command, &server_url))
}

/// Adds `--server-url` to a command and to those below it.
fn with_server_url(command: Command, server_url: &Option<Arg>) -> Command {
    command
        .help_template(PAGE_OF_COMMAND)
        .args(server_url)
        .mut_subcommands(|command| with_server_url(command, server_url))
}

/// Returns whether the environment has a value for an option.
fn is_in_environment(argument: &Arg) -> bool {
    match argument.get_env() {
        Some(name) => std::env::var_os(name).is_some(),
        None => false,
    }
}

/// Changes an option as [`without_environment`] does. Also hides the options of all commands: the
/// help of one command does not list them.
fn for_help_of_command(argument: Arg) -> Arg {
    let is_everywhere = argument.get_help_heading() == Some(EVERYWHERE);
    let is_hidden = argument.is_hide_set() || is_everywhere;
    without_environment(argument).hide(is_hidden)
}

/// Makes clap ignore the environment variable of an option, and names the variable in its help.
fn without_environment(argument: Arg) -> Arg {
    let Some(name) = argument.get_env() else {
        return argument;
    };
    let help = match argument.get_help() {
        Some(help) => help.to_string(),
        None => String::new(),
    };
    let value = std::env::var_os(name).unwrap_or_default();
    let help = format!(
        "{help} [env: {}={}]",
        name.to_string_lossy(),
        value.to_string_lossy()
    );
    argument.env(None::<&'static str>).help(help)
}

// --------------------------------------------------------- values of options

/// A path. An empty path, which clap would refuse, fails when it is opened, as other wrong paths.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// One of the formats `names`.
fn formats(names: &'static [&'static str]) -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(names).map(|name| Format::from_str(&name, false).unwrap_or_default())
}

/// A whole number, with an error that names no type of the language.
fn parse_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| "expected a whole number".to_owned())
}

fn parse_update(text: &str) -> Result<u64, String> {
    let number = text.parse();
    number.map_err(|_| "expected the number of an update; 'ank get updates' lists them".to_owned())
}

fn parse_milliseconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number from 1".to_owned()),
        Ok(milliseconds) => Ok(milliseconds),
    }
}

/// Splits `key=value` at the first `=`; both may be empty.
fn parse_tag(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("invalid KEY=value: no `=` found in `{text}`")),
    }
}

/// Splits `<mask>=<value>` at the first `=`.
fn parse_until(text: &str) -> Result<Until, String> {
    match text.split_once('=') {
        Some((mask, value)) if !mask.is_empty() => {
            check_until(&parts(mask), value)?;
            Ok(Until {
                mask: mask.to_owned(),
                value: value.to_owned(),
            })
        }
        _ => Err(
            "expected a field and a value, for example 'workloadStates.*.web.*.state=Running'"
                .to_owned(),
        ),
    }
}

/// Refuses a field that no state has, and a state that no workload has: the wait for it would never
/// end.
fn check_until(path: &[&str], value: &str) -> Result<(), String> {
    // First, a field that no state has.
    if let Some(reason) = why_no_value(path) {
        return Err(reason);
    }
    // Then, a state that no workload has.
    let ["workloadStates", _, _, _, field @ ("state" | "subState")] = path else {
        return Ok(());
    };
    let mut known = Vec::new();
    for (_, state, sub_state) in Phase::ALL {
        known.push(if *field == "state" { state } else { sub_state });
    }
    if known.contains(&value) {
        return Ok(());
    }
    let hint = meant(value, known);
    Err(format!("no workload has the {field} '{value}'{hint}"))
}

/// A whole number with `ms`, `s`, `m` or `h`. Without a unit it is a number of seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => {
            return Err("expected a whole number of seconds, or one with ms, s, m or h".to_owned());
        }
    };
    let number: u64 = parse_number(number)?;
    match number.checked_mul(milliseconds) {
        Some(milliseconds) => Ok(Duration::from_millis(milliseconds)),
        None => Err("too long".to_owned()),
    }
}

/// The time between two samples.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    // The counters of the CPU are updated in steps of some milliseconds.
    if (Duration::from_millis(500)..=Duration::from_secs(3600)).contains(&interval) {
        return Ok(interval);
    }
    Err("expected a time from 500ms to 1h".to_owned())
}

/// A point in time: RFC 3339, or the distance from now.
fn parse_moment(text: &str) -> Result<Moment, String> {
    if text.contains("://") {
        return Err(format!("expected a time; {SERVER_URL_TIP}"));
    }
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return parse_time(text).map(Moment::At),
    };
    let number: u64 = parse_number(number)?;
    match number.checked_mul(seconds) {
        Some(seconds) => Ok(Moment::Ago(Duration::from_secs(seconds))),
        None => Err("too long".to_owned()),
    }
}

/// The point in time of an RFC 3339 text; `None` for other texts, and for times before 1970.
fn time_of(text: &str) -> Option<SystemTime> {
    let parsed: toml::value::Datetime = text.parse().ok()?;
    let date = parsed.date?;
    let time = parsed.time?;
    let offset_minutes = match parsed.offset? {
        toml::value::Offset::Z => 0,
        toml::value::Offset::Custom { minutes } => i64::from(minutes),
    };
    let days = days_since_1970(date.year.into(), date.month.into(), date.day.into());
    let hours = days * 24 + i64::from(time.hour);
    let minutes = hours * 60 + i64::from(time.minute) - offset_minutes;
    let seconds = minutes * 60 + i64::from(time.second);
    let whole = Duration::from_secs(u64::try_from(seconds).ok()?);
    Some(UNIX_EPOCH + whole + Duration::from_nanos(time.nanosecond.into()))
}

/// The days from 1970-01-01 to a day of the Gregorian calendar. Years are counted from March on, so
/// that the leap day is the last day of a year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    /// From 0000-03-01 to 1970-01-01.
    const DAYS_BEFORE_1970: i64 = 719_468;
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    // Each five months from March on have 153 days: 31, 30, 31, 30, 31.
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    365 * year + year / 4 - year / 100 + year / 400 + day_of_year - DAYS_BEFORE_1970
}

/// A time that the runtimes accept: RFC 3339, for example `2026-01-31T12:00:00Z`.
fn parse_time(text: &str) -> Result<String, String> {
    // A date-time of TOML is the same, but it can lack seconds.
    let has_seconds = text.get(16..17) == Some(":");
    if has_seconds
        && let Ok(time) = text.parse::<toml::value::Datetime>()
        && time.date.is_some()
        && time.offset.is_some()
    {
        return Ok(text.to_owned());
    }
    let example = "2026-01-31T12:00:00Z or 2026-01-31T13:00:00.5+01:00";
    Err(format!(
        "expected a time like 10m, with s, m, h or d, or one as in RFC 3339, for example {example}"
    ))
}

#[cfg(test)]
mod tests;
