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
    tags: Vec<(&'static str, String)>,
    /// Rules of the control interface, each as `allow` or `deny` and a line of YAML.
    rules: Vec<(&'static str, String)>,
    config: String,
}

pub fn workload(name: &str, image: &str) -> Workload {
    Workload {
        name: name.to_owned(),
        agent: "agent_A".to_owned(),
        runtime: "podman".to_owned(),
        restart: None,
        dependencies: Vec::new(),
        tags: Vec::new(),
        rules: Vec::new(),
        config: format!("image: {image}"),
    }
}

/// A workload of `podman-kube`: one pod with the same name, and one container of this image in it.
pub fn pod(name: &str, image: &str) -> Workload {
    // Podman must not restart it: that is left to the agent.
    let spec =
        format!("spec: {{restartPolicy: Never, containers: [{{name: main, image: \"{image}\"}}]}}");
    let config = format!("manifest: |\n  kind: Pod\n  metadata: {{name: {name}}}\n  {spec}");
    Workload {
        runtime: "podman-kube".to_owned(),
        config,
        ..workload(name, image)
    }
}

impl Workload {
    pub fn name(&self) -> &str {
        &self.name
    }

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

    /// A tag that changes nothing else.
    pub fn tag(self, value: &str) -> Self {
        self.tagged("tag", value)
    }

    pub fn tagged(mut self, key: &'static str, value: &str) -> Self {
        self.tags.push((key, value.to_owned()));
        self
    }

    /// Allows the workload to read or write (`Read`, `Write`, `ReadWrite`) what `mask` selects.
    pub fn allow(self, operation: &str, mask: &str) -> Self {
        self.rule(
            "allow",
            format!("{{type: StateRule, operation: {operation}, filterMasks: [\"{mask}\"]}}"),
        )
    }

    pub fn deny(self, operation: &str, mask: &str) -> Self {
        self.rule(
            "deny",
            format!("{{type: StateRule, operation: {operation}, filterMasks: [\"{mask}\"]}}"),
        )
    }

    /// Allows the workload to read the logs of workloads with this name.
    pub fn allow_logs(self, name: &str) -> Self {
        self.rule(
            "allow",
            format!("{{type: LogRule, workloadNames: [\"{name}\"]}}"),
        )
    }

    fn rule(mut self, kind: &'static str, rule: String) -> Self {
        self.rules.push((kind, rule));
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
    writeln!(
        text,
        "  {}:\n    agent: {}\n    runtime: {}",
        workload.name, workload.agent, workload.runtime
    )?;
    if let Some(policy) = workload.restart {
        writeln!(text, "    restartPolicy: {policy}")?;
    }
    if !workload.dependencies.is_empty() {
        writeln!(text, "    dependencies:")?;
    }
    for (name, condition) in &workload.dependencies {
        writeln!(text, "      {name}: {condition}")?;
    }
    if !workload.tags.is_empty() {
        let tags = workload.tags.iter();
        let tags: Vec<String> = tags.map(|(key, value)| format!("{key}: {value}")).collect();
        writeln!(text, "    tags: {{{}}}", tags.join(", "))?;
    }
    if !workload.rules.is_empty() {
        let mut allow = Vec::new();
        let mut deny = Vec::new();
        for (kind, rule) in &workload.rules {
            if *kind == "allow" {
                allow.push(rule.as_str());
            } else {
                deny.push(rule.as_str());
            }
        }
        writeln!(
            text,
            "    controlInterfaceAccess: {{allowRules: [{}], denyRules: [{}]}}",
            allow.join(", "),
            deny.join(", ")
        )?;
    }
    writeln!(
        text,
        "    runtimeConfig: |\n      {}",
        workload.config.replace('\n', "\n      ")
    )
}
