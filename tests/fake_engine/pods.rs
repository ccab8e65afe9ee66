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
    let documents = serde_yaml::Deserializer::from_str(manifest);
    let documents = documents.filter_map(|document| Value::deserialize(document).ok());
    let pods = documents
        .filter(|document| document["kind"] == "Pod")
        .map(|document| Wanted {
            name: document["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            images: document["spec"]["containers"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|one| one["image"].as_str().map(str::to_owned))
                .collect(),
        });
    pods.collect()
}

/// The workload that a manifest belongs to: tests call its first pod like it.
pub fn workload_of(manifest: &str) -> Option<String> {
    wanted(manifest).into_iter().next().map(|pod| pod.name)
}

/// `only_create` leaves the pods without starting their containers, as a play does that fails half
/// way.
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

/// Refuses as soon as a pod is missing, and kills running containers at once, as podman 4.3 does.
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

/// `stop_seconds` as in [`container::stop`].
fn remove_pod(store: &Store, pod: &Pod, stop_seconds: Option<u64>) -> Result<(), (i32, String)> {
    for one in store.list().into_iter().filter(|one| one.pod == pod.id) {
        container::stop(store, &one.id, stop_seconds)?;
        store.remove(&one.id);
    }
    store.remove_pod(&pod.id);
    Ok(())
}

/// `{{.Id}} {{.Name}}` of each, which is all that is asked.
pub fn list(store: &Store) -> Answer {
    Answer::ok(
        store
            .pods()
            .iter()
            .map(|pod| format!("{} {}\n", pod.id, pod.name))
            .collect::<String>(),
    )
}

/// `pod rm --force --ignore <id> ...`.
pub fn remove(store: &Store, invocation: &Invocation) -> Answer {
    for pod in store
        .pods()
        .into_iter()
        .filter(|pod| invocation.positional.contains(&pod.id))
    {
        if let Err((code, text)) = remove_pod(store, &pod, None) {
            return Answer::error(code, text);
        }
    }
    Answer::ok("")
}

pub fn volume(store: &Store, invocation: &Invocation) -> Answer {
    let name = invocation.positional.first().map_or("", String::as_str);
    let file = store.path("volumes").join(name);
    let missing = || {
        Answer::error(
            1,
            format!("no volume with name \"{name}\" found: no such volume"),
        )
    };
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
        "volume inspect" => std::fs::read_to_string(&file).map_or_else(|_| missing(), Answer::ok),
        "volume rm" => std::fs::remove_file(&file).map_or_else(|_| missing(), |()| Answer::ok("")),
        // The filters are regular expressions with an end; ours look at the text after the last
        // escaped dots.
        _ => Answer::ok(listed_volumes(store, invocation)),
    }
}

fn listed_volumes(store: &Store, invocation: &Invocation) -> String {
    let files = std::fs::read_dir(store.path("volumes"))
        .into_iter()
        .flatten()
        .flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let fits = |name: &String| {
        invocation.filters().iter().all(|filter| {
            let expression = filter
                .strip_prefix("name=")
                .unwrap_or("")
                .replace("\\.", ".");
            let plain = expression.trim_start_matches('^').trim_end_matches('$');
            if expression.starts_with('^') {
                name == plain
            } else {
                name.ends_with(plain)
            }
        })
    };
    names.filter(fits).map(|name| format!("{name}\n")).collect()
}
