//! The images of the store, once a test has made the file `images.json`: what a container is created
//! of is pulled, and images are listed, lose names and are removed as podman does it.
//!
//! Thread: `main`. Owns: the file `images.json`, an object for each image.

use crate::arguments::Invocation;
use crate::store::Store;
use crate::{Answer, ENGINE_ERROR, rendered};
use serde_json::{Value, json};

const FILE: &str = "images.json";

fn read(store: &Store) -> Option<Vec<Value>> {
    let text = std::fs::read_to_string(store.path(FILE)).ok()?;
    Some(serde_json::from_str(&text).expect("images.json must be JSON"))
}

fn write(store: &Store, images: &[Value]) {
    let new = store.path(&format!("{FILE}.{}", std::process::id()));
    std::fs::write(&new, json!(images).to_string()).expect("own folder is writable");
    std::fs::rename(new, store.path(FILE)).expect("own folder is writable");
}

/// The name as the store has it.
fn full(name: &str) -> String {
    let tagged = if name.contains(':') {
        name.to_owned()
    } else {
        format!("{name}:latest")
    };
    format!("docker.io/library/{tagged}")
}

/// An id that is the same for each image of this name.
fn id(name: &str) -> String {
    let hex: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex:0<64}")
}

/// Pulls an image, unless it is there or the test has no images.
pub fn pull(store: &Store, name: &str) {
    let _lock = store.lock();
    let Some(mut images) = read(store) else {
        return;
    };
    let full = full(name);
    for image in &images {
        if let Some(names) = image["Names"].as_array()
            && names.contains(&json!(full))
        {
            return; // It is there.
        }
    }
    images.push(json!({ "Id": id(name), "Names": [full], "Bytes": 1_048_576 }));
    write(store, &images);
}

pub fn list(store: &Store, invocation: &Invocation) -> Answer {
    let images = read(store).unwrap_or_default();
    let rows = images.iter().map(|image| {
        json!({ "ImageSummary": {
            "ID": image["Id"], "RepoTags": image["Names"], "RepoDigests": null, "Size": image["Bytes"],
            "ReadOnly": false,
        }})
    });
    let format = invocation.option(&["--format"]).unwrap_or("{{json .}}");
    rendered(format, rows)
}

/// Takes a name from an image.
pub fn untag(store: &Store, invocation: &Invocation) -> Answer {
    let _lock = store.lock();
    let mut images = read(store).unwrap_or_default();
    let [id, names @ ..] = &invocation.positional[..] else {
        return Answer::error(ENGINE_ERROR, "an image is required");
    };
    let Some(image) = images.iter_mut().find(|image| image["Id"] == **id) else {
        return Answer::error(ENGINE_ERROR, format!("{id}: image not known"));
    };
    let kept = image["Names"].as_array().cloned().unwrap_or_default();
    let kept = kept
        .into_iter()
        .filter(|name| !names.iter().any(|gone| *name == **gone));
    image["Names"] = kept.collect();
    write(store, &images);
    Answer::ok("")
}

/// Removes an image by its id.
pub fn remove(store: &Store, invocation: &Invocation) -> Answer {
    let _lock = store.lock();
    let mut images = read(store).unwrap_or_default();
    let id = invocation.positional.first().map_or("", String::as_str);
    let Some(place) = images.iter().position(|image| image["Id"] == *id) else {
        return Answer::error(1, format!("{id}: image not known"));
    };
    let names = images[place]["Names"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    for container in store.list() {
        if names.contains(&json!(full(&container.image))) {
            return Answer::error(2, "image is in use by a container");
        }
    }
    if names.len() > 1 {
        return Answer::error(
            ENGINE_ERROR,
            "unable to delete image with more than one tag",
        );
    }
    images.remove(place);
    write(store, &images);
    Answer::ok(format!("Deleted: {id}\n"))
}
