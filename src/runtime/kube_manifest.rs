//! Kubernetes manifests for `podman kube play`: adds the control interface, and finds which pods a manifest makes.
//!
//! Thread: none, plain values; runs on `wl:<name>`.

use crate::model::yaml::{self, Content, Origin, Plain, Yaml, YamlError};
use serde_yaml::{Mapping, Value};
use std::collections::BTreeSet;
use std::path::Path;

/// Name of the volume with the control interface inside a pod.
const VOLUME: &str = "control-interface-volume";

/// A document of a manifest that becomes one or more pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDocument {
    /// The document alone.
    pub text: String,
    /// `metadata.name`.
    name: String,
    is_pod: bool,
}

impl PodDocument {
    /// Whether podman may have made the pod called `pod` from this document: a Pod keeps its name, the pods of
    /// anything else are called `<name>-pod` or `<name>-pod-<number>`, depending on podman's version.
    pub fn makes(&self, pod: &str) -> bool {
        if self.is_pod {
            return pod == self.name;
        }
        match pod.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix("-pod")) {
            Some("") => true,
            Some(rest) => {
                rest.strip_prefix('-').is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
            }
            None => false,
        }
    }
}

/// The documents of `manifest` that become pods; empty when it cannot be read.
pub fn pod_documents(manifest: &str) -> Vec<PodDocument> {
    let document = |document: &Value| {
        let name = document.get("metadata")?.get("name")?.as_str()?.to_owned();
        let is_pod = document.get("kind")?.as_str() == Some("Pod");
        Some(PodDocument { text: serde_yaml::to_string(document).ok()?, name, is_pod })
    };
    of_pods(manifest).iter().filter_map(document).collect()
}

/// The images that a play of `manifest` pulls when they are missing: not those that it always or never pulls. Nothing
/// that would be read as an option.
pub fn images(manifest: &str) -> BTreeSet<String> {
    let mut documents = of_pods(manifest);
    let lists = documents.iter_mut().filter_map(pod_spec);
    let lists = lists.flat_map(|spec| [spec.get("containers"), spec.get("initContainers")]);
    let containers = lists.filter_map(|list| list?.as_sequence()).flatten();
    let pulled = containers.filter(|container| {
        container.get("imagePullPolicy").is_none_or(|policy| policy.as_str() == Some("IfNotPresent"))
    });
    let images = pulled.filter_map(|container| container.get("image")?.as_str());
    images.filter(|image| !image.is_empty() && !image.starts_with('-')).map(str::to_owned).collect()
}

/// How the name of the first container of a manifest ends, as podman calls it.
pub fn first_container(manifest: &str) -> Option<String> {
    let name = |document: &mut Value| {
        let spec = pod_spec(document)?;
        Some(format!("-{}", spec.get("containers")?.get(0)?.get("name")?.as_str()?))
    };
    of_pods(manifest).iter_mut().find_map(name)
}

/// The documents of the kinds that become pods; none when the manifest cannot be read.
fn of_pods(manifest: &str) -> Vec<Value> {
    let mut documents = parse(manifest).unwrap_or_default();
    // Kinds that podman turns into pods.
    documents.retain(|one| {
        one.get("kind")
            .and_then(Value::as_str)
            .is_some_and(|kind| ["Pod", "Deployment", "DaemonSet", "Job"].contains(&kind))
    });
    documents
}

/// Mounts `host_folder` as control interface into the container that `target` (`<pod>/<container>`) names.
pub fn with_control_interface(manifest: &str, target: Option<&str>, host_folder: &Path) -> Result<String, String> {
    let target = target.ok_or("Control interface target not specified in runtime config.")?;
    let (pod, container) =
        target.split_once('/').filter(|(_, container)| !container.contains('/')).ok_or_else(|| {
            format!(
                "Invalid control interface target format: '{target}'. Expected format: '<pod_name>/<container_name>'"
            )
        })?;
    let mut documents = parse(manifest).map_err(|error| format!("Failed to parse YAML manifest: {error}"))?;
    let document = find_pod(&mut documents, pod)?;
    let spec = pod_spec(document).ok_or("Manifest missing spec.containers")?;
    let containers = spec.get_mut("containers").and_then(Value::as_sequence_mut);
    add_mount(containers.ok_or("Manifest missing spec.containers")?, container)?;
    let host_path = mapping([("path", host_folder.display().to_string().into()), ("type", "Directory".into())]);
    let volume = mapping([("name", VOLUME.into()), ("hostPath", host_path)]);
    append(spec, "volumes", volume).ok_or("Manifest missing spec.volumes")?;
    let texts: Result<Vec<String>, _> = documents.iter().map(serde_yaml::to_string).collect();
    texts.map(|texts| texts.join("---\n")).map_err(|error| format!("Failed to parse YAML manifest: {error}"))
}

/// The documents without empty ones, which a `---` at the end makes.
fn parse(manifest: &str) -> Result<Vec<Value>, YamlError> {
    let documents = yaml::read_all(manifest, Origin::Others)?;
    Ok(documents.iter().filter(|document| !document.is_null()).map(value).collect())
}

fn value(node: &Yaml) -> Value {
    match &node.content {
        Content::Text(text) => (**text).into(),
        Content::Plain(Plain::Null, _) => Value::Null,
        Content::Plain(Plain::Boolean, text) => text.eq_ignore_ascii_case("true").into(),
        Content::Plain(_, text) => text.parse().map_or_else(|_| (**text).into(), Value::Number),
        Content::List(items) => Value::Sequence(items.iter().map(value).collect()),
        Content::Map(entries) => Value::Mapping(entries.iter().map(|(key, node)| (value(key), value(node))).collect()),
    }
}

fn find_pod<'a>(documents: &'a mut [Value], pod: &str) -> Result<&'a mut Value, String> {
    for document in documents {
        let kind = document.get("kind").and_then(Value::as_str).ok_or("Manifest missing 'kind' field")?;
        let name = document.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Value::as_str);
        let name = name.ok_or("Manifest missing metadata.name")?;
        let found = match kind {
            "Pod" => name == pod,
            "Deployment" => pod.strip_suffix("-pod") == Some(name),
            _ => false,
        };
        if found {
            return Ok(document);
        }
    }
    Err(format!("Cannot add Control Interface. Target pod not found '{pod}'"))
}

/// What stands beside the list of containers.
fn pod_spec(document: &mut Value) -> Option<&mut Value> {
    let spec = document.get_mut("spec")?;
    if spec.get("containers").is_some_and(Value::is_sequence) {
        return Some(spec);
    }
    spec.get_mut("template")?.get_mut("spec")
}

fn add_mount(containers: &mut [Value], name: &str) -> Result<(), String> {
    for container in containers {
        let found = container.get("name").and_then(Value::as_str).ok_or("Container missing name field")?;
        if found == name {
            // Where a container finds its control interface.
            let mount = mapping([("name", VOLUME.into()), ("mountPath", "/run/ankaios/control_interface".into())]);
            return append(container, "volumeMounts", mount)
                .ok_or_else(|| format!("The volumeMounts of container '{name}' are not a list"));
        }
    }
    Err(format!("Cannot add Control Interface. Target container '{name}' not found."))
}

/// Appends to the list `key` of `parent`, which is created when it is absent; `None` when it is something else.
fn append(parent: &mut Value, key: &str, item: Value) -> Option<()> {
    let list = parent.as_mapping_mut()?.entry(key.into()).or_insert(Value::Null);
    if list.is_null() {
        *list = Value::Sequence(Vec::new());
    }
    list.as_sequence_mut()?.push(item);
    Some(())
}

fn mapping<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Mapping(entries.into_iter().map(|(key, value)| (key.into(), value)).collect::<Mapping>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "kind: ConfigMap\nmetadata: {name: settings}\n---\nkind: Pod\nmetadata: {name: web}\n\
        spec:\n  containers:\n  - name: first\n  - name: second\n    volumeMounts: [{name: x, mountPath: /x}]\n---\n\
        kind: Deployment\nmetadata: {name: db}\nspec:\n  template:\n    spec:\n      containers: [{name: main}]\n\
        \x20     volumes: [{name: y}]\n";

    fn inject(manifest: &str, target: &str) -> Result<String, String> {
        with_control_interface(manifest, Some(target), Path::new("/run/a/control_interface"))
    }

    fn documents(text: &str) -> Vec<Value> {
        parse(text).unwrap()
    }

    fn yaml(text: &str) -> Value {
        serde_yaml::from_str(text).unwrap()
    }

    #[test]
    fn images_are_those_of_all_containers_that_are_pulled_only_when_they_are_missing() {
        let manifest = "kind: Pod\nmetadata: {name: a}\nspec:\n  initContainers: [{name: i, image: first}]\n\
            \x20 containers: [{name: c, image: second, imagePullPolicy: IfNotPresent}, {name: d, image: second}]\n---\n\
            kind: Deployment\nmetadata: {name: b}\nspec: {template: {spec: {containers: [\
            {name: e, image: third}, {name: f, image: fourth, imagePullPolicy: Always}, {name: h, image: -v},\
            {name: g, image: fifth, imagePullPolicy: Never}]}}}\n---\nkind: ConfigMap\nmetadata: {name: x}\n";
        assert_eq!(images(manifest).into_iter().collect::<Vec<_>>(), ["first", "second", "third"]);
        assert_eq!((images("kind: Pod").len(), images("{").len()), (0, 0));
    }

    #[test]
    fn the_control_interface_is_mounted_into_the_named_container_only() {
        let mount = "{name: control-interface-volume, mountPath: /run/ankaios/control_interface}";
        let volume = "{name: control-interface-volume, hostPath: {path: /run/a/control_interface, type: Directory}}";

        let result = documents(&inject(MANIFEST, "web/second").unwrap());
        let mut expected = documents(MANIFEST);
        expected[1] = yaml(&format!(
            "{{kind: Pod, metadata: {{name: web}}, spec: {{containers: [{{name: first}}, \
             {{name: second, volumeMounts: [{{name: x, mountPath: /x}}, {mount}]}}], volumes: [{volume}]}}}}"
        ));
        assert_eq!(result, expected);

        let result = documents(&inject(MANIFEST, "db-pod/main").unwrap());
        let mut expected = documents(MANIFEST);
        expected[2] = yaml(&format!(
            "{{kind: Deployment, metadata: {{name: db}}, spec: {{template: {{spec: {{containers: \
             [{{name: main, volumeMounts: [{mount}]}}], volumes: [{{name: y}}, {volume}]}}}}}}}}"
        ));
        assert_eq!(result, expected);
    }

    #[test]
    fn what_cannot_be_injected_says_why() {
        let pod = |rest: &str| format!("kind: Pod\nmetadata: {{name: p}}\n{rest}");
        for (manifest, target, expected) in [
            (MANIFEST, "db/main", "Cannot add Control Interface. Target pod not found 'db'"),
            (MANIFEST, "web/third", "Cannot add Control Interface. Target container 'third' not found."),
            ("metadata: {name: p}", "p/c", "Manifest missing 'kind' field"),
            ("kind: 5", "p/c", "Manifest missing 'kind' field"),
            ("kind: Pod", "p/c", "Manifest missing metadata.name"),
            (&pod("spec: {}"), "p/c", "Manifest missing spec.containers"),
            (&pod("spec: {containers: text}"), "p/c", "Manifest missing spec.containers"),
            (&pod(""), "p/c", "Manifest missing spec.containers"),
            (&pod("spec: {containers: [{image: x}]}"), "p/c", "Container missing name field"),
            (&pod("spec: {containers: [{name: c}], volumes: {}}"), "p/c", "Manifest missing spec.volumes"),
            (
                &pod("spec: {containers: [{name: c, volumeMounts: 1}]}"),
                "p/c",
                "The volumeMounts of container 'c' are not a list",
            ),
        ] {
            assert_eq!(inject(manifest, target), Err(expected.to_owned()), "{manifest}");
        }
        for target in ["web", "a/b/c"] {
            let format = "Expected format: '<pod_name>/<container_name>'";
            let text = format!("Invalid control interface target format: '{target}'. {format}");
            assert_eq!(inject(MANIFEST, target), Err(text));
        }
        let error = inject("a: [", "p/c").unwrap_err();
        assert!(error.starts_with("Failed to parse YAML manifest: "), "{error}");
        let none = with_control_interface(MANIFEST, None, Path::new("/x"));
        assert_eq!(none, Err("Control interface target not specified in runtime config.".to_owned()));
    }

    #[test]
    fn documents_behind_the_target_and_empty_ones_do_not_matter() {
        let manifest = "---\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n---\nno: kind\n---\n";
        assert_eq!(documents(&inject(manifest, "p/c").unwrap()).len(), 2);
    }

    #[test]
    fn pods_are_told_by_the_names_that_podman_gives_them() {
        let found = pod_documents(MANIFEST);
        assert_eq!(found.len(), 2);
        for (pod, first, second) in [
            ("web", true, false),
            ("web-pod", false, false),
            ("db-pod", false, true),
            ("db-pod-0", false, true),
            ("db-pod-x", false, false),
            ("db-pods", false, false),
            ("db", false, false),
        ] {
            assert_eq!((found[0].makes(pod), found[1].makes(pod)), (first, second), "{pod}");
        }
        assert_eq!(documents(&found[1].text), [documents(MANIFEST).remove(2)]);
        assert_eq!(pod_documents("a: ["), []);
    }
}
