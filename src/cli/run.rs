//! `ank run workload`: one workload without a manifest (spec/cli.md section 6.8).
//!
//! Thread: `main`, plain functions.

use super::update::Update;
use crate::model::complete_state::{Rendering, workload_node};
use crate::model::node::Node;
use crate::model::workload::Workload;

/// The update that creates or replaces the workload.
#[must_use]
pub fn update(name: &str, runtime: &str, config: &str, agent: &str, tags: &[(String, String)]) -> Update {
    let mut workload = Workload::new(agent, runtime, config);
    workload.tags = tags.iter().cloned().collect(); // Of repeated keys the last one counts.
    let workloads = Node::map([(name, workload_node(&workload, Rendering::Sparse))]);
    let state = Node::map([("desiredState", Node::map([("workloads", workloads)]))]);
    Update { new_state: state, masks: vec![format!("desiredState.workloads.{name}")] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_update_holds_one_workload_and_names_it() {
        let tags = [("a", "1"), ("b", ""), ("a", "2")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let Update { new_state: state, masks } = update("w", "podman", "image: x\n", "A", &tags);
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
}
