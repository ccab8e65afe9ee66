//! Manifests of the tests, short to write: workloads with an image of the fake engine.
//!
//! Thread: the test's. A plain value. Gives: YAML text.

use std::fmt::Write as _;

/// One workload on `agent_A`, runtime `podman`, unless said otherwise.
#[derive(Clone)]
pub struct Workload {
    name: String,
    agent: String,
    runtime: String,
    restart: Option<&'static str>,
    dependencies: Vec<(String, &'static str)>,
    config: String,
}

pub fn workload(name: &str, image: &str) -> Workload {
    Workload {
        name: name.to_owned(),
        agent: "agent_A".to_owned(),
        runtime: "podman".to_owned(),
        restart: None,
        dependencies: Vec::new(),
        config: format!("image: {image}"),
    }
}

impl Workload {
    pub fn on(mut self, agent: &str) -> Self {
        agent.clone_into(&mut self.agent);
        self
    }

    pub fn runtime(mut self, runtime: &str) -> Self {
        runtime.clone_into(&mut self.runtime);
        self
    }

    pub fn restart(mut self, policy: &'static str) -> Self {
        self.restart = Some(policy);
        self
    }

    pub fn after(mut self, workload: &str, condition: &'static str) -> Self {
        self.dependencies.push((workload.to_owned(), condition));
        self
    }

    /// A further line of the runtime configuration.
    pub fn config(mut self, line: &str) -> Self {
        self.config.push('\n');
        self.config.push_str(line);
        self
    }
}

/// The manifest of all `workloads`.
pub fn manifest(workloads: &[Workload]) -> String {
    let mut text = "apiVersion: v1\nworkloads:\n".to_owned();
    for workload in workloads {
        write_workload(&mut text, workload).expect("writing to a String cannot fail");
    }
    text
}

fn write_workload(text: &mut String, workload: &Workload) -> std::fmt::Result {
    writeln!(text, "  {}:\n    agent: {}\n    runtime: {}", workload.name, workload.agent, workload.runtime)?;
    if let Some(policy) = workload.restart {
        writeln!(text, "    restartPolicy: {policy}")?;
    }
    if !workload.dependencies.is_empty() {
        writeln!(text, "    dependencies:")?;
    }
    for (name, condition) in &workload.dependencies {
        writeln!(text, "      {name}: {condition}")?;
    }
    writeln!(text, "    runtimeConfig: |\n      {}", workload.config.replace('\n', "\n      "))
}
