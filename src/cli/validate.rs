//! `ank validate`: the checks of manifests that need no server.
//!
//! Thread: `main`, plain functions. The server renders templates, so what they lead to is not checked.

use super::apply;
use super::args::{ManifestArguments, ValidateArguments};
use super::error::{CliError, Result, counted, meant_or};
use super::output::Output;
use crate::model::complete_state::DesiredState;
use crate::model::cycles::{cycle_text, find_cycle};
use crate::model::names::RUNTIMES;
use crate::model::nearest::meant;
use crate::model::validation::{check_config_keys, check_config_references, check_workload, check_workload_name};
use crate::model::workload::Workload;

/// Checks the manifests as one update of an empty cluster.
///
/// # Errors
/// Everything that a server or an agent would refuse.
pub fn check(arguments: &ValidateArguments, output: &mut Output) -> Result<()> {
    let ValidateArguments { agent, manifests } = arguments.clone();
    let input = ManifestArguments { agent, manifests, delete: false, ignore_modes: true };
    let state = apply::desired_state(&input, output)?;
    for warning in unknown(&state) {
        output.warn(warning);
    }
    let errors = errors(&state);
    if !errors.is_empty() {
        let text = format!("Invalid manifest data provided:\n{}", errors.join("\n"));
        return Err(CliError::input(text, "correct the manifests; 'ank apply' would be refused or fail"));
    }
    let (workloads, configs) = (counted(state.workloads.len(), "workload"), counted(state.configs.len(), "config"));
    output.status(&format!("Valid: {workloads}, {configs}."))?;
    Ok(())
}

fn errors(state: &DesiredState) -> Vec<String> {
    let mut errors: Vec<String> =
        check_config_keys(&state.configs).err().map(|error| error.to_string()).into_iter().collect();
    for (name, workload) in &state.workloads {
        let is_template = |text: &str| !workload.configs.is_empty() && text.contains("{{");
        let named =
            if is_template(&workload.agent) { check_workload_name(name) } else { check_workload(name, workload) };
        let rules = named.and_then(|()| check_config_references(workload)).err().map(|error| error.to_string());
        let runs = !is_template(&workload.runtime_config) && RUNTIMES.contains(&&*workload.runtime);
        let engine = if runs { workload.config().engine.as_ref().err().cloned() } else { None };
        errors.extend(rules.into_iter().chain(engine).map(|error| format!("workload '{name}': {error}")));
    }
    let workload = |name: &str| state.workloads.get(name).map(|workload| &**workload);
    errors.extend(find_cycle(workload, state.workloads.keys()).map(|cycle| cycle_text(&cycle)));
    errors
}

/// What the manifests refer to and do not have: it may be in the cluster, or a typing error.
fn unknown(state: &DesiredState) -> Vec<String> {
    let workloads = || state.workloads.keys().map(|name| &**name);
    let configs = || state.configs.keys().map(String::as_str);
    let mut unknown = Vec::new();
    for (name, Workload { runtime, dependencies, configs: used, .. }) in
        state.workloads.iter().map(|(name, workload)| (name, &**workload))
    {
        if !RUNTIMES.contains(&&**runtime) {
            let known = format!("agents have '{}'", RUNTIMES.join("', '"));
            let meant = meant_or(runtime, RUNTIMES, &known);
            unknown.push(format!("workload '{name}': unknown runtime '{runtime}', {meant}"));
        }
        for needed in dependencies.keys().filter(|needed| !state.workloads.contains_key(needed.as_str())) {
            let meant = meant(needed, workloads().filter(|other| *other != &**name));
            unknown.push(format!("workload '{name}' needs '{needed}', which is in no manifest{meant}"));
        }
        for config in used.values().filter(|config| !state.configs.contains_key(config.as_str())) {
            let meant = meant(config, configs());
            unknown.push(format!("workload '{name}' uses the config '{config}', which is in no manifest{meant}"));
        }
    }
    unknown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::manifest::Manifest;

    fn state(workloads: &str) -> DesiredState {
        Manifest::parse(&format!("apiVersion: v1\n{workloads}")).unwrap().state
    }

    fn workload(further: &str) -> String {
        format!("{{ runtime: podman, agent: A, runtimeConfig: 'image: x'{further} }}")
    }

    #[test]
    fn what_a_server_or_an_agent_refuses_is_an_error_and_all_of_it_is_named() {
        let (good, long) = (workload(""), "w".repeat(64));
        let text = format!(
            "workloads: {{ a: {}, b: {}, {long}: {good}, noimage: {{ runtime: podman, agent: A, runtimeConfig: 'imag: x' }} }}",
            workload(", dependencies: { b: ADD_COND_RUNNING }"),
            workload(", dependencies: { a: ADD_COND_SUCCEEDED }"),
        );
        let errors = errors(&state(&text));
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors[0].starts_with("workload 'noimage': ") && errors[0].contains("image"), "{errors:?}");
        assert!(errors[1].starts_with(&format!("workload '{long}': ")), "{errors:?}");
        assert_eq!(errors[2], "workload dependency 'a' is part of a cycle. It is: a -> b -> a");
    }

    #[test]
    fn what_templates_lead_to_is_left_to_the_server() {
        let text = "workloads: { a: { runtime: podman, agent: '{{c.agent}}', runtimeConfig: '{{c.all}}', configs: { c: c } } }\n\
                    configs: { c: { agent: A, all: 'image: x' } }";
        assert_eq!((errors(&state(text)), unknown(&state(text))), (Vec::new(), Vec::new()));
    }

    #[test]
    fn what_no_manifest_has_is_a_warning_with_the_nearest_name() {
        let text = format!(
            "workloads: {{ storage: {}, web: {}, x: {{ runtime: podmn, agent: A, runtimeConfig: '' }} }}\nconfigs: {{ ports: '1' }}",
            workload(""),
            workload(", dependencies: { storag: ADD_COND_RUNNING, other: ADD_COND_RUNNING }, configs: { p: port }"),
        );
        let expected = [
            "workload 'web' needs 'other', which is in no manifest",
            "workload 'web' needs 'storag', which is in no manifest, did you mean 'storage'?",
            "workload 'web' uses the config 'port', which is in no manifest, did you mean 'ports'?",
            "workload 'x': unknown runtime 'podmn', did you mean 'podman'?",
        ];
        assert_eq!(unknown(&state(&text)), expected);
        assert_eq!(errors(&state(&text)), [""; 0]);
    }
}
