//! Containers in the listings of an engine, which the fake one prints in podman's form.

use serde_json::Value;

/// The containers of one workload, in any state.
pub fn containers_of(listed: Vec<Value>, workload: &str) -> Vec<Value> {
    let prefix = format!("{workload}.");
    let mut own = listed;
    own.retain(|container| match container["Labels"]["name"].as_str() {
        Some(name) => name.starts_with(&prefix),
        None => false,
    });
    own
}

/// Pid and id of the only container of `workload`.
///
/// # Panics
/// When there is none or more than one.
pub fn only_container(listed: Vec<Value>, workload: &str) -> (u32, String) {
    let all = containers_of(listed, workload);
    assert_eq!(all.len(), 1, "containers of '{workload}': {all:?}");
    let pid = all[0]["Pid"]
        .as_u64()
        .and_then(|pid| u32::try_from(pid).ok())
        .expect("a pid");
    (pid, all[0]["Id"].as_str().expect("an id").to_owned())
}
