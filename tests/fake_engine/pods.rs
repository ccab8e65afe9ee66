//! Pods and volumes: `kube play` and `kube down`, `pod ls` and `pod rm`, and the volumes that
//! remember what was played.
//!
//! A pod is made of each document of kind `Pod`; its containers behave as their image says
//! (container.rs). There is no container that holds the pod.
//!
//! Thread: `main`. Owns: `pods/<id>` and `volumes/<name>` in the engine's folder.

use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::arguments::Invocation;
use crate::container::{self, Behaviour};
use crate::store::{Pod, Store};
use crate::{Answer, ENGINE_ERROR};

/// The requested parts of a pod: its name and the images of its containers.
struct Wanted {
    name: String,
    images: Vec<String>,
}

/// The pods of a manifest.
fn wanted(manifest: &str) -> Vec<Wanted> {
    let mut pods = Vec::new();
    for document in serde_yaml::Deserializer::from_str(manifest) {
        let Ok(document) = Value::deserialize(document) else {
            continue;
        };
        if document["kind"] != "Pod" {
            continue;
        }
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let mut images = Vec::new();
        for container in document["spec"]["containers"]
            .as_array()
            .into_iter()
            .flatten()
        {
            images.extend(container["image"].as_str().map(str::to_owned));
        }
        pods.push(Wanted {
            name: name.to_owned(),
            images,
        });
    }
    pods
}

/// The workload that a manifest belongs to: tests give its name to the first pod.
pub fn workload_of(manifest: &str) -> Option<String> {
    wanted(manifest).into_iter().next().map(|pod| pod.name)
}

/// Makes the pods of a manifest and starts their containers. With `only_create` it does not start
/// them, as a play that fails half way.
pub fn play(store: &Store, manifest: &str, only_create: bool) -> Answer {
    let mut stdout = String::new();
    for Wanted { name, images } in wanted(manifest) {
        let Some(pod) = store.create_pod(&name) else {
            return Answer::error(
                ENGINE_ERROR,
                format!("adding pod to state: name \"{name}\" is in use: pod already exists"),
            );
        };
        for (number, image) in images.iter().enumerate() {
            let Some(behaviour) = Behaviour::parse(image) else {
                return Answer::error(
                    ENGINE_ERROR,
                    format!("initializing source docker://{image}: no such host"),
                );
            };
            let id = store.create_in_pod(&pod, &format!("{name}-{number}"), image, &behaviour);
            if !only_create && let Err(text) = container::launch(store, &id) {
                return Answer::error(126, text);
            }
        }
        stdout.push_str(&format!("Pod:\n{}\nContainer:\n\n", pod.id));
    }
    Answer::ok(stdout)
}

/// Removes the pods of a manifest. Ends when one is missing, and kills running containers at once,
/// as podman 4.3 does.
pub fn down(store: &Store, manifest: &str) -> Answer {
    for Wanted { name, .. } in wanted(manifest) {
        let Some(pod) = store.pods().into_iter().find(|pod| pod.name == name) else {
            return Answer::error(
                ENGINE_ERROR,
                format!("no pod with name or ID {name} found: no such pod"),
            );
        };
        if let Err((code, text)) = remove_pod(store, &pod, Some(0)) {
            return Answer::error(code, text);
        }
    }
    Answer::ok("Pods stopped:\nPods removed:\n")
}

/// Removes a pod with its containers, which are stopped as [`container::stop`] does.
fn remove_pod(store: &Store, pod: &Pod, stop_seconds: Option<u64>) -> Result<(), (i32, String)> {
    for one in store.list().into_iter().filter(|one| one.pod == pod.id) {
        container::stop(store, &one.id, stop_seconds)?;
        store.remove(&one.id);
    }
    store.remove_pod(&pod.id);
    Ok(())
}

/// Lists the pods by the template `{{.Id}} {{.Name}}`, which is the only one that is used.
pub fn list(store: &Store) -> Answer {
    let mut lines = String::new();
    for pod in store.pods() {
        lines.push_str(&format!("{} {}\n", pod.id, pod.name));
    }
    Answer::ok(lines)
}

/// `pod rm --force --ignore <id> ...`.
pub fn remove(store: &Store, invocation: &Invocation) -> Answer {
    for pod in store.pods() {
        if invocation.positional.contains(&pod.id)
            && let Err((code, text)) = remove_pod(store, &pod, None)
        {
            return Answer::error(code, text);
        }
    }
    Answer::ok("")
}

pub fn volume(store: &Store, invocation: &Invocation) -> Answer {
    let name = invocation.positional.first().map_or("", String::as_str);
    let file = store.path("volumes").join(name);
    let missing = Answer::error(
        1,
        format!("no volume with name \"{name}\" found: no such volume"),
    );
    match invocation.command.as_str() {
        "volume create" => {
            let labels: serde_json::Map<String, Value> = invocation
                .labels()
                .into_iter()
                .map(|(key, value)| (key, json!(value)))
                .collect();
            let content = json!([{ "Name": name, "Labels": labels }]);
            match std::fs::write(&file, content.to_string()) {
                Ok(()) => Answer::ok(format!("{name}\n")),
                Err(error) => Answer::error(ENGINE_ERROR, error.to_string()),
            }
        }
        "volume inspect" => match std::fs::read_to_string(&file) {
            Ok(content) => Answer::ok(content),
            Err(_) => missing,
        },
        "volume rm" => match std::fs::remove_file(&file) {
            Ok(()) => Answer::ok(""),
            Err(_) => missing,
        },
        _ => Answer::ok(listed_volumes(store, invocation)),
    }
}

/// The names of the volumes that all filters accept, one a line.
fn listed_volumes(store: &Store, invocation: &Invocation) -> String {
    let mut lines = String::new();
    for file in std::fs::read_dir(store.path("volumes"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = file.file_name().to_string_lossy().into_owned();
        let mut filters = invocation.filters().into_iter();
        if filters.all(|filter| is_accepted(&name, filter)) {
            lines.push_str(&format!("{name}\n"));
        }
    }
    lines
}

/// Returns whether a filter accepts a volume. It is a regular expression with an end, and perhaps a
/// begin, of characters that stand for themselves.
fn is_accepted(name: &str, filter: &str) -> bool {
    let expression = filter.strip_prefix("name=").unwrap_or("");
    let expression = expression.replace("\\.", ".");
    let plain = expression.trim_start_matches('^').trim_end_matches('$');
    if expression.starts_with('^') {
        return name == plain;
    }
    name.ends_with(plain)
}
