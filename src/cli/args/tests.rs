//! The rules of the command line, row by row.

use super::*;

fn read(words: &str) -> Result<Arguments, clap::Error> {
    Arguments::read(std::iter::once("ank").chain(words.split_whitespace()))
}

/// The arguments in debug form, or the first line of the usage error.
fn shown(words: &str) -> String {
    match read(words) {
        Ok(arguments) => format!("{:?} {:?}", arguments.common, arguments.command),
        Err(error) => error
            .to_string()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned(),
    }
}

#[test]
fn the_command_tree_is_consistent() {
    command().debug_assert();
}

#[test]
fn accepted_words_mean_the_same() {
    for (words, same_as) in [
        ("-kq get configs", "--insecure --quiet get config"),
        ("get configs -k", "-k get configs"),
        ("get -k configs", "-k get configs"),
        ("apply f.yaml --no-wait", "--no-wait apply f.yaml"),
        (
            "apply --response-timeout 5 f",
            "--response-timeout=5 apply f",
        ),
        (
            "run workload w --runtime r --config c --agent a -q",
            "-q run workload w --agent a --config c --runtime r",
        ),
        ("get state -o json", "get state -ojson"),
        ("get state -o=json m", "get state m -o json"),
        (
            "get workloads -a x -s y -w",
            "get workload --watch --agent=x --state y",
        ),
        ("delete workloads a b", "delete workload a b"),
        ("delete configs a", "delete config a"),
        ("get agents", "get agent"),
        ("apply f --wait-timeout 90", "apply f --wait-timeout 90s"),
        (
            "apply f --wait-timeout 2m",
            "apply f --wait-timeout 120000ms",
        ),
        ("apply -d --agent A - b", "apply --agent A -d - b"),
        ("apply -- -d", "apply -- -d"),
        ("logs -t -1 a", "logs --tail=-1 a"),
        ("logs -n 5 a", "logs --tail 5 a"),
        ("logs a -n5", "logs --tail 5 a"),
        ("-k logs -f -n 5 a", "-k logs --follow --tail 5 a"),
        ("logs -n a", "logs --names a"),
        ("logs -n -- 5", "logs --names -- 5"),
        ("logs --since 120s a", "logs --since 2m a"),
        ("logs --since 24h a", "logs --since 1d a"),
        ("logs -l a=b -l c=d", "logs --tag a=b --tag c=d"),
        ("logs -t=-1 a b", "logs a b"),
        (
            "logs -fn -t 5 a -s 2026-01-31T12:00:00Z",
            "logs --follow --names --tail 5 --since=2026-01-31T12:00:00Z a",
        ),
        (
            "logs a -u 2026-01-31T12:00:00Z -k",
            "-k logs --until 2026-01-31T12:00:00Z a",
        ),
        (
            "get events -c m -o json n",
            "get events --include-current-state -ojson m n",
        ),
        (
            "get events --until agents.A.tags.b=c=d",
            "get events --until=agents.A.tags.b=c=d",
        ),
        (
            "get agents --context car --no-quiet --wait",
            "--no-quiet --wait --context=car get agents",
        ),
        ("graph -o dot a", "graph a -o=dot"),
        ("get updates", "get update"),
        ("diff f -d --agent A -ojson", "diff -d --agent=A -o json f"),
        ("apply f --dry-run -o json", "apply --dry-run -o=json f"),
        ("graph --timing", "graph --timing -o text"),
        ("blame -o svg a b", "blame a -osvg b"),
    ] {
        let arguments = shown(words);
        assert!(!arguments.starts_with("error"), "{words}: {arguments}");
        assert_eq!(arguments, shown(same_as), "{words}");
    }
}

#[test]
fn a_wait_for_what_can_never_happen_is_refused() {
    for (until, reason) in [
        ("foo=bar", "no part of the state is called 'foo'"),
        (
            "desiredState.wrkloads.a.agent=b",
            "no part of 'desiredState' is called 'wrkloads'; did you mean 'workloads'?",
        ),
        (
            "desiredState.workloads.*.agnet=b",
            "no part of 'desiredState.workloads.*' is called 'agnet'; did you mean 'agent'?",
        ),
        (
            "workloadStates.front.storage.state=Running",
            "the id of the instance is missing before 'state'; write 'workloadStates.front.storage.*.state'",
        ),
        (
            "workloadStates.storage.state=Running",
            "'workloadStates.storage.state' is a group of fields and has no value; write 'workloadStates.storage.*.*.state'",
        ),
        (
            "workloadStates.A.w.*.stat=x",
            "no part of 'workloadStates.A.w.*' is called 'stat'; did you mean 'state'?",
        ),
        (
            "workloadStates.A.w=Running",
            "'workloadStates.A.w' is a group of fields",
        ),
        (
            "desiredState.workloads.agent=A",
            "'desiredState.workloads.agent' is a group of fields and has no value; write 'desiredState.workloads.*.agent'",
        ),
        ("agents.A=1", "'agents.A' is a group of fields"),
        (
            "agents.cpuUsage=1",
            "'agents.cpuUsage' is a group of fields",
        ),
        (
            "desiredState.workloads.w.tags=x",
            "'desiredState.workloads.w.tags' is a group of fields",
        ),
        (
            "desiredState.workloads.w.files=x",
            "'desiredState.workloads.w.files' is a group of fields or a list",
        ),
        ("*=x", "'*' is a group of fields"),
        (
            "workloadStates.*.w.*.state=Runing",
            "no workload has the state 'Runing'; did you mean 'Running'?",
        ),
        (
            "workloadStates.*.w.*.subState=OK",
            "no workload has the subState 'OK'; did you mean 'Ok'?",
        ),
    ] {
        let error = read(&format!("get events --until {until}"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(reason), "{until}: {error}");
    }
    for until in [
        "workloadStates.*.w.*.state=Running",
        "workloadStates.A.w.*.additionalInfo=x",
        "*.workloads.w.agent=A",
        "desiredState.workloads.w.tags.site=x",
        "desiredState.apiVersion=v1",
        "agents.A.status.cpuUsage=5",
        "workloadStates.*.*.*.*=Running",
        "desiredState.configs.c.d=e",
        "desiredState.workloads.w.dependencies.*=ADD_COND_RUNNING",
    ] {
        read(&format!("get events --until {until}")).unwrap();
    }
}

#[test]
fn refused_words_are_usage_errors_that_name_the_problem() {
    for (words, message) in [
        ("gett", "error: unrecognized subcommand 'gett'"),
        ("get states", "error: unrecognized subcommand 'states'"),
        ("ge state", "error: unrecognized subcommand 'ge'"),
        (
            "get --version",
            "error: unexpected argument '--version' found",
        ),
        (
            "--insec get state",
            "error: unexpected argument '--insec' found",
        ),
        (
            "-k -k get state",
            "error: the argument '--insecure' cannot be used multiple times",
        ),
        (
            "-k=false get state",
            "error: unexpected argument '-=' found",
        ),
        (
            "--insecure=true get state",
            "error: unexpected value 'true' for '--insecure' found; no more were expected",
        ),
        (
            "--no-wait=true get state",
            "error: unexpected value 'true' for '--no-wait' found; no more were expected",
        ),
        (
            "get workload -a x -a y",
            "error: the argument '--agent <NAME>' cannot be used multiple times",
        ),
        (
            "apply --agent a --agent b f",
            "error: the argument '--agent <AGENT>' cannot be used multiple times",
        ),
        (
            "get state -o YAML",
            "error: invalid value 'YAML' for '--output <FORMAT>'",
        ),
        (
            "--response-timeout -1 get state",
            "error: unexpected argument '-1' found",
        ),
        (
            "--response-timeout soon get state",
            "error: invalid value 'soon' for '--response-timeout <MS>': expected a whole number from 1",
        ),
        (
            "--response-timeout 0 get state",
            "error: invalid value '0' for '--response-timeout <MS>': expected a whole number from 1",
        ),
        (
            "apply f --wait-timeout 5x",
            "error: invalid value '5x' for '--wait-timeout <TIME>': expected a whole number of seconds, or one with ms, s, m or h",
        ),
        (
            "apply f --wait-timeout s",
            "error: invalid value 's' for '--wait-timeout <TIME>': expected a whole number",
        ),
        (
            "get events -q",
            "error: the argument '--quiet' cannot be used with 'get events'",
        ),
        (
            "get events --until a.b",
            "error: invalid value 'a.b' for '--until <FIELD=VALUE>': expected a field and a value, for example \
             'workloadStates.*.web.*.state=Running'",
        ),
        ("get event", "error: unrecognized subcommand 'event'"),
        (
            "get events -o text",
            "error: invalid value 'text' for '--output <FORMAT>'",
        ),
        ("log a", "error: unrecognized subcommand 'log'"),
        (
            "logs -f -f a",
            "error: the argument '--follow' cannot be used multiple times",
        ),
        (
            "logs -t x a",
            "error: invalid value 'x' for '--tail <N>': expected a whole number",
        ),
        (
            "logs --since 10x a",
            "error: invalid value '10x' for '--since <TIME>': expected a time like 10m, with s, m, h or d, or one as in \
             RFC 3339, for example 2026-01-31T12:00:00Z or 2026-01-31T13:00:00.5+01:00",
        ),
        (
            "logs --until 99999999999999999999d a",
            "error: invalid value '99999999999999999999d' for '--until <TIME>': expected a whole number",
        ),
        (
            "logs --since 9999999999999999999d a",
            "error: invalid value '9999999999999999999d' for '--since <TIME>': too long",
        ),
        (
            "logs -l team a",
            "error: invalid value 'team' for '--tag <KEY=VALUE>': invalid KEY=value: no `=` found in `team`",
        ),
        (
            "logs -l a=b c",
            "error: the argument '--tag <KEY=VALUE>' cannot be used with '[NAME]...'",
        ),
        (
            "diff f -o yaml",
            "error: invalid value 'yaml' for '--output <FORMAT>'",
        ),
        (
            "apply f -o json",
            "error: the following required arguments were not provided:",
        ),
        (
            "apply f --rollback --no-wait",
            "error: the argument '--no-wait' cannot be used with '--rollback'",
        ),
        (
            "--no-wait apply f --rollback",
            "error: the argument '--no-wait' cannot be used with '--rollback'",
        ),
        (
            "apply f --dry-run --force",
            "error: the argument '--dry-run' cannot be used with '--force'",
        ),
        (
            "rollback x",
            "error: invalid value 'x' for '[ID]': expected the number of an update; 'ank get updates' lists them",
        ),
        ("rollback 1 2", "error: unexpected argument '2' found"),
        (
            "get update -o svg",
            "error: invalid value 'svg' for '--output <FORMAT>'",
        ),
        (
            "get workload -w -o json",
            "error: the argument '--watch' cannot be used with '-o json', '-o yaml' and '-o name'; see 'ank get events'",
        ),
        (
            "apply f --dry-run --rollback",
            "error: the argument '--dry-run' cannot be used with '--rollback'",
        ),
        (
            "graph -o svg",
            "error: invalid value 'svg' for '--output <FORMAT>'",
        ),
        (
            "blame -o dot",
            "error: invalid value 'dot' for '--output <FORMAT>'",
        ),
        (
            "get workload -w -q",
            "error: the argument '--quiet' cannot be used with '--watch'",
        ),
        (
            "set state only",
            "error: the following required arguments were not provided:",
        ),
        (
            "run workload w --runtime r --config c --agent a --tags x",
            "error: invalid value 'x' for '--tags <TAGS>': invalid KEY=value: no `=` found in `x`",
        ),
        (
            "run workload w --runtime r --config c",
            "error: the following required arguments were not provided:",
        ),
        (
            "delete workload a -s x",
            "error: unexpected argument '-s' found",
        ),
    ] {
        assert_eq!(shown(words), message, "{words}");
        assert_eq!(read(words).unwrap_err().exit_code(), 2, "{words}");
    }
    assert!(
        read("set state only")
            .unwrap_err()
            .to_string()
            .contains("<OBJECT_FIELD_MASK>...")
    );
}

#[test]
fn a_command_with_swapped_letters_leads_to_a_suggestion() {
    for (words, tip) in [
        ("gte workloads", "tip: a similar subcommand exists: 'get'"),
        ("-k aplpy f", "tip: a similar subcommand exists: 'apply'"),
        ("get wrokloads", "tip: "),
        ("get stte", "tip: a similar subcommand exists: 'state'"),
        ("delete cnofig x", "'config'"),
    ] {
        let error = read(words).unwrap_err().to_string();
        assert!(error.contains(tip), "{words}: {error}");
    }
    assert!(!read("nonsense").unwrap_err().to_string().contains("tip:"));
}

#[test]
fn missing_commands_show_help_on_standard_error() {
    for words in [
        "",
        "get",
        "set",
        "delete",
        "run",
        "apply",
        "diff",
        "logs",
        "set state",
        "delete workload",
        "run workload",
    ] {
        let error = read(words).unwrap_err();
        assert_eq!(
            error.kind(),
            clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
            "{words:?}"
        );
        assert_eq!(
            (error.exit_code(), error.use_stderr()),
            (2, true),
            "{words:?}"
        );
    }
    for words in ["--help", "get workload -h", "help apply", "--version"] {
        let error = read(words).unwrap_err();
        assert_eq!(
            (error.exit_code(), error.use_stderr()),
            (0, false),
            "{words}"
        );
    }
    assert_eq!(
        read("--version").unwrap_err().to_string(),
        format!("ank {}\n", *SHOWN_VERSION)
    );
}

#[test]
fn short_s_is_server_before_and_state_after_the_command() {
    let url = |words: &str| read(words).unwrap().server_url;
    assert_eq!(
        url("-s http://a get workload -s running"),
        Some("http://a".to_owned())
    );
    assert_eq!(url("get workload -s running"), None);
    assert_eq!(
        url("get workload --server-url http://b"),
        Some("http://b".to_owned())
    );
    assert_eq!(
        url("-s http://a get --server-url http://c agents"),
        Some("http://c".to_owned())
    );
    assert_eq!(
        url("-s  http://a get --server-url http://c agents --server-url http://d"),
        Some("http://d".to_owned())
    );
}

#[test]
fn masks_and_file_of_set_state_may_have_options_between_them() {
    for words in [
        "set state a.b c f.yaml --delete-missing",
        "set state a.b c --delete-missing f.yaml",
    ] {
        let Verb::Set(Set::State {
            masks_and_file,
            delete_missing,
            ..
        }) = read(words).unwrap().command
        else {
            panic!("another command")
        };
        assert_eq!(
            (masks_and_file.join(" ").as_str(), delete_missing),
            ("a.b c f.yaml", true),
            "{words}"
        );
    }
}

#[test]
fn an_empty_path_is_given_and_fails_later_with_a_reason() {
    assert_eq!(
        read("--ca_pem= get agents").unwrap().common.ca_pem,
        Some(PathBuf::new())
    );
    assert_eq!(
        read("get agents --ank-config=").unwrap().common.ank_config,
        Some(PathBuf::new())
    );
}

#[test]
fn tags_are_split_at_the_first_equals_sign() {
    for (text, key, value) in [
        ("a=b", "a", "b"),
        ("e=", "e", ""),
        ("c==d", "c", "=d"),
        ("=x", "", "x"),
    ] {
        assert_eq!(
            parse_tag(text),
            Ok((key.to_owned(), value.to_owned())),
            "{text}"
        );
    }
    let words = "run workload w --runtime r --config c --agent a --tags a=1 --tags a=2";
    let Verb::Run(Run::Workload(RunArguments { tags, .. })) = read(words).unwrap().command else {
        panic!("another command")
    };
    assert_eq!(tags.len(), 2);
}

#[test]
fn help_keeps_the_lines_that_tools_read() {
    let help = read("--help").unwrap_err().to_string();
    for words in [
        "get",
        "get agent",
        "get workload",
        "apply",
        "delete config",
        "graph",
    ] {
        let page = read(&format!("{words} --help")).unwrap_err().to_string();
        let (usage, options) = (page.find("\nUsage: ank "), page.find("\nOptions:\n"));
        assert!(
            usage.is_some()
                && usage < options
                && options < page.find("\nOptions of all commands: "),
            "{page}"
        );
        assert!(!page.contains("--ca_pem"), "one line is enough: {page}");
    }
    for line in ["Usage: ank [OPTIONS] <COMMAND>", "Commands:", "Options:"] {
        assert!(help.lines().any(|candidate| candidate == line), "{line}");
    }
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(
        commands,
        [
            "get",
            "set",
            "delete",
            "run",
            "apply",
            "diff",
            "validate",
            "restart",
            "stop",
            "start",
            "rollback",
            "logs",
            "mode",
            "wait",
            "describe",
            "graph",
            "blame",
            "top",
            "version",
            "completion",
            "help"
        ]
    );
}

#[test]
fn help_of_a_command_has_one_line_for_options_of_all() {
    let help = |words: &str| read(words).unwrap_err().to_string();
    let of_all = "\nOptions of all commands:\n";
    for words in [
        "",
        "get",
        "get state",
        "get workload",
        "get agent",
        "get events",
        "delete workload",
        "graph",
        "logs",
    ] {
        let (short, long) = (
            help(&format!("{words} -h")),
            help(&format!("{words} --help")),
        );
        assert_eq!(long, help(&format!("help {words}")), "{words}");
        for variable in ["[env:ANK_SERVER_URL=", "[env:ANK_INSECURE="] {
            let is_listed = long.replace(['\n', ' '], "").contains(variable);
            assert_eq!(is_listed, words.is_empty(), "{long}");
            assert!(!short.contains(variable), "{short}");
        }
        assert_eq!(long.contains(of_all), words.is_empty(), "{long}");
        let line = "\nOptions of all commands: 'ank --help'";
        assert_eq!(long.contains(line), !words.is_empty(), "{long}");
        assert!(!short.contains(of_all), "{short}");
        assert!(
            short.contains("--help"),
            "it leads to the other one: {short}"
        );
    }
    for (words, line) in [
        (
            "get -h",
            "  workload  A table of workloads and their states [alias: workloads]",
        ),
        (
            "delete -h",
            "  config    Remove configs from the desired state; unknown names are no error [alias: configs]",
        ),
        ("get workload -h", "A table of workloads and their states"),
        (
            "get agent -h",
            "  -o, --output <FORMAT>  Format of the output [default: table] [possible values: table, wide, json,",
        ),
    ] {
        let page = help(words);
        assert!(
            page.lines().any(|candidate| candidate == line),
            "{words}\n{page}"
        );
    }
}

#[test]
fn examples_come_before_the_options_of_each_command() {
    fn check(words: &str, command: &Command) {
        let below: Vec<_> = command
            .get_subcommands()
            .filter(|below| below.get_name() != "help")
            .collect();
        for option in ["-h", "--help"] {
            let page = read(&format!("{words} {option}")).unwrap_err().to_string();
            let examples = page.find("\nExample");
            assert!(examples.is_some() || !below.is_empty(), "{words}: {page}");
            assert!(examples < page.find("\nOptions:\n"), "{words}: {page}");
        }
        below
            .iter()
            .for_each(|below| check(&format!("{words} {}", below.get_name()), below));
    }
    check("", &command());
}

#[test]
fn times_must_be_as_rfc_3339_has_them() {
    for (text, valid) in [
        ("2026-01-31T12:00:00Z", true),
        ("2026-01-31t12:00:00z", true),
        ("2026-01-31 12:00:00Z", true),
        ("2026-01-31T12:00:00.123456789+01:00", true),
        ("2024-02-29T23:59:60-00:30", true),
        ("2026-02-29T00:00:00Z", false),
        ("2026-13-01T00:00:00Z", false),
        ("2026-04-31T00:00:00Z", false),
        ("2026-01-31T24:00:00Z", false),
        ("2026-01-31T12:00:00", false),
        ("2026-01-31T12:00:00.Z", false),
        ("2026-01-31T12:00:00+0100", false),
        ("2026-01-31T12:00:00+01:60", false),
        ("+026-01-31T12:00:00Z", false),
        ("2026-01-31", false),
        ("10m", false),
        ("", false),
        ("äääääääääääääääääääää", false),
    ] {
        assert_eq!(parse_time(text).is_ok(), valid, "{text:?}");
    }
}

#[test]
fn words_of_other_tools_lead_to_the_command_for_it() {
    for (words, tip) in [
        ("ank ps", "'ank get workloads' lists the workloads"),
        ("ank down", "'ank stop NAME' stops a workload"),
        ("ank exec web sh", "use the container engine of the node"),
        (
            "ank delete web",
            "'ank delete workload web' deletes a workload",
        ),
        ("ank run web", "'ank run workload web ...'"),
        ("ank get pods", "'ank get workloads' lists the workloads"),
        (
            "ank get workloads -s https://a:1",
            "for the server write '--server-url <URL>'",
        ),
        (
            "ank logs -s https://a:1 web",
            "expected a time; for the server write '--server-url <URL>'",
        ),
        (
            "ank get workloads -l a=b",
            "tip: name the workloads; only 'ank logs -l ",
        ),
        (
            "ank top --selector a=b",
            "tip: name the workloads; only 'ank logs -l ",
        ),
        (
            "ank get workloads -A",
            "tip: leave it out: a cluster has no namespaces",
        ),
        (
            "ank get workloads -n default",
            "tip: leave it out: a cluster has no namespaces",
        ),
        ("ank events", "'ank get events --since 1h' prints"),
        (
            "ank delete -f a.yaml",
            "'ank apply -d a.yaml' deletes the workloads",
        ),
        ("ank describe workload web", "'ank describe web'"),
        ("ank describe agent front", "'ank describe front'"),
        ("ank rollout undo web", "'ank rollback' rolls one back"),
        ("ank inspect web", "'ank describe NAME' shows all"),
        ("ank show web", "'ank describe NAME' shows all"),
        ("ank stats", "'ank top' shows how much CPU"),
        ("ank node", "'ank get agents' lists the agents"),
        ("ank nodes", "'ank get agents' lists the agents"),
        (
            "ank get workloads --no-headers",
            "tip: there is no such option; '-o name' prints names",
        ),
        (
            "ank delete pod web",
            "'ank delete workload web' deletes a workload",
        ),
    ] {
        let error = Arguments::read(words.split(' ')).unwrap_err().to_string();
        assert!(error.contains(tip), "{words}: {error}");
        assert!(!error.contains("similar"), "{words}: {error}");
    }
    for words in ["ank help --help", "ank -k help -h"] {
        let help = Arguments::read(words.split(' ')).unwrap_err();
        assert!(!help.use_stderr(), "{help}");
    }
    assert!(Arguments::read(["ank", "logs", "help", "--help"]).is_err());
}

#[test]
fn files_after_an_option_are_manifests_too() {
    let arguments = Arguments::read(["ank", "apply", "-f", "a.yaml", "-f", "-"]).unwrap();
    let Verb::Apply(apply) = arguments.command else {
        panic!("another command");
    };
    assert_eq!(apply.input.files, ["a.yaml", "-"]);
    assert!(apply.input.manifests.is_empty());
}

#[test]
fn moments_are_points_in_time_with_any_offset() {
    let now = UNIX_EPOCH + Duration::from_secs(2_000_000_000);
    for (text, seconds) in [
        ("1970-01-01T00:00:00Z", 0),
        ("2000-02-29T23:59:59Z", 951_868_799),
        ("2000-03-01T00:00:00Z", 951_868_800),
        ("2026-01-31T13:00:00+01:00", 1_769_860_800),
        ("2026-01-31T11:30:00-00:30", 1_769_860_800),
        ("2100-03-01T00:00:00Z", 4_107_542_400),
        ("10m", 1_999_999_400),
        ("1d", 1_999_913_600),
        // Before 1970 there is nothing.
        ("1960-01-01T00:00:00Z", 0),
        ("99999999d", 0),
    ] {
        let moment = parse_moment(text).unwrap();
        let time = moment.time(now).duration_since(UNIX_EPOCH).unwrap();
        assert_eq!(time.as_secs(), seconds, "{text}");
    }
}
