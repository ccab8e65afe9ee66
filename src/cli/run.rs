//! `ank run workload`: one workload without a manifest.
//!
//! Thread: `main`, plain functions.

use super::args::RunArguments;
use super::error::Result;
use super::session::Update;
use super::update::check_name;
use crate::model::complete_state::{Rendering, workload_node};
use crate::model::node::Node;
use crate::model::workload::Workload;

/// The update that creates or replaces the workload.
///
/// # Errors
/// The name is none that a workload can have.
pub fn update(arguments: &RunArguments) -> Result<Update> {
    let RunArguments { name, runtime, config, agent, tags, ignore_modes } = arguments;
    check_name("workload", name)?;
    let mut workload = Workload::new(agent.as_str(), runtime, config);
    workload.tags = tags.iter().cloned().collect(); // Of repeated keys the last one counts.
    let workloads = Node::map([(name.as_str(), workload_node(&workload, Rendering::Sparse))]);
    let state = Node::map([("desiredState", Node::map([("workloads", workloads)]))]);
    let masks = vec![format!("desiredState.workloads.{name}")];
    Ok(Update { new_state: state, masks, checks_modes: !ignore_modes, ..Update::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> RunArguments {
        let [name, runtime, config, agent] = [name, "podman", "image: x\n", "A"].map(str::to_owned);
        let tags = [("a", "1"), ("b", ""), ("a", "2")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        RunArguments { name, runtime, config, agent, tags, ignore_modes: false }
    }

    #[test]
    fn the_update_holds_one_workload_and_names_it() {
        let Update { new_state: state, masks, .. } = update(&named("w")).unwrap();
        assert_eq!(masks, ["desiredState.workloads.w"]);
        let workload = state.at(&["desiredState", "workloads", "w"]).unwrap();
        let text = |key: &str| workload.get(key).and_then(Node::as_text);
        assert_eq!(
            (text("agent"), text("runtime"), text("runtimeConfig")),
            (Some("A"), Some("podman"), Some("image: x"))
        );
        assert_eq!(workload.at(&["tags", "a"]).and_then(Node::as_text), Some("2"));
        assert_eq!(workload.at(&["tags", "b"]).and_then(Node::as_text), Some(""));
        assert_eq!(state.at(&["desiredState", "apiVersion"]), None, "what is sent without it is not checked");
    }

    #[test]
    fn a_name_with_a_dot_would_replace_part_of_another_workload_and_is_refused() {
        for name in ["web.agent", "a b", "", "ä"] {
            let error = update(&named(name)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("Command failed: 'Invalid workload name '{name}'")), "{error}");
        }
    }
}
